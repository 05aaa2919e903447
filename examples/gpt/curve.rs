//! The loss over the steps, drawn.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::register_font;

const FONT: &str = "sans-serif";

/// Draws the losses as an SVG file.
pub fn draw(path: &Path, losses: &[f32]) -> Result<(), Box<dyn Error>> {
    // The font comes along, as machines without a display rarely have any.
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| "the font cannot be read")?;
    let area = SVGBackend::new(path, (800, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let highest = losses.iter().copied().fold(1.0, f32::max);
    let mut chart = ChartBuilder::on(&area)
        .caption("loss (nats per character)", (FONT, 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(1..losses.len().max(2), 0.0..1.05 * highest)?;
    chart.configure_mesh().x_desc("step").label_style((FONT, 13)).light_line_style(WHITE).draw()?;
    let points: Vec<(usize, f32)> = (1..).zip(losses.iter().copied()).collect();
    chart.plotting_area().draw(&PathElement::new(points, BLUE.stroke_width(2)))?;
    area.present()?;
    Ok(())
}
