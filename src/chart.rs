//! Line charts, for files and pages.

use std::error::Error;

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::coord::{CoordTranslate, Shift};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::register_font;

const FONT: &str = "sans-serif";
/// The colours of everything but lines. Pages replace them by their own.
pub const INK: RGBColor = RGBColor(0, 0, 0);
/// The colour behind everything.
pub const PAPER: RGBColor = RGBColor(255, 255, 255);
/// The colour of thin lines behind the others.
pub const GRID: RGBColor = RGBColor(200, 200, 200);

/// The colour of a chart's main line.
pub const FIRST: RGBColor = RGBColor(0, 0, 1);
/// The colour of the line beside it.
pub const SECOND: RGBColor = RGBColor(0x25, 0x68, 0xab);

/// A drawing area of some backend.
pub type Area<B> = DrawingArea<B, Shift>;

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it shows, for the legend.
    pub name: String,
    /// Its colour.
    pub color: RGBColor,
    /// Whether it is dashed.
    pub is_dashed: bool,
    /// Its points; those with a `y` of 0 or less are left out, as the axis is logarithmic.
    pub points: Vec<(f64, f64)>,
}

/// Lines over one axis. The other one is logarithmic.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What is above it.
    pub title: String,
    /// What is below the horizontal axis.
    pub x_title: String,
    /// Whether that is logarithmic, with base 2.
    pub x_is_log: bool,
    /// How numbers on it are written.
    pub x_text: fn(f64) -> String,
    /// How numbers on the vertical axis are written.
    pub y_text: fn(f64) -> String,
    /// The lines, in the order of drawing.
    pub lines: Vec<Line>,
}

/// Has text measured and, in pictures made of pixels, drawn with a font that comes along: machines without a display rarely
/// have any.
pub fn use_own_font() -> Result<(), Box<dyn Error>> {
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| "the font cannot be read".into())
}

impl Line {
    fn draw<B: DrawingBackend, C: CoordTranslate>(
        &self,
        area: &DrawingArea<B, C>,
        points: Vec<C::From>,
    ) -> Result<(), Box<dyn Error>>
    where
        C::From: Clone + 'static,
        B::ErrorType: 'static,
    {
        let style = self.color.stroke_width(2);
        if self.is_dashed {
            area.draw(&DashedPathElement::new(points, 5, 4, style))?;
        } else {
            area.draw(&PathElement::new(points, style))?;
        }
        Ok(())
    }

    fn visible(&self) -> impl Iterator<Item = (f64, f64)> {
        self.points.iter().copied().filter(|(_, y)| *y > 0.0)
    }
}

impl Chart {
    /// Draws the chart.
    pub fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Box<dyn Error>>
    where
        B::ErrorType: 'static,
    {
        let (first, last) = bounds(self.lines.iter().flat_map(Line::visible).map(|(x, _)| x));
        match self.x_is_log {
            true => self.draw_over(area, (first..last).log_scale().base(2.0)),
            false => self.draw_over(area, first..last),
        }
    }

    fn draw_over<B: DrawingBackend, X: AsRangedCoord<Value = f64>>(
        &self,
        area: &Area<B>,
        x: X,
    ) -> Result<(), Box<dyn Error>>
    where
        B::ErrorType: 'static,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let (low, high) = bounds(self.lines.iter().flat_map(Line::visible).map(|(_, y)| y));
        let mut builder = ChartBuilder::on(area);
        if !self.title.is_empty() {
            builder.caption(&self.title, (FONT, 20));
        }
        let mut chart = builder
            .margin(12)
            .margin_right(24)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(x, (low..high).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(&self.x_title)
            .x_labels((area.dim_in_pixel().0 / 80) as usize)
            .y_labels((area.dim_in_pixel().1 / 50) as usize)
            .x_label_formatter(&|value| (self.x_text)(*value))
            .y_label_formatter(&|value| (self.y_text)(*value))
            .label_style((FONT, 13))
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for line in &self.lines {
            line.draw(chart.plotting_area(), line.visible().collect())?;
        }
        Ok(())
    }
}

/// Draws which line is which, and other remarks below.
pub fn draw_legend<B: DrawingBackend>(area: &Area<B>, lines: &[Line], remarks: &[&str]) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    for (y, line) in (60..).step_by(22).zip(lines) {
        line.draw(area, vec![(0, y), (34, y)])?;
        area.draw(&Text::new(line.name.clone(), (42, y - 7), (FONT, 13)))?;
    }
    let below = 60 + 22 * lines.len() as i32;
    for (y, remark) in (below..).step_by(18).zip(remarks) {
        area.draw(&Text::new(*remark, (0, y), (FONT, 12)))?;
    }
    Ok(())
}

/// A range that holds all values and is never empty.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    if low < high {
        (low, high)
    } else if low == high {
        (low / 2.0, high * 2.0)
    } else {
        (1.0, 2.0)
    }
}
