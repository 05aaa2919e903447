//! Bandwidth and time over size, drawn.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::anyhow;
use plotters::prelude::*;
use plotters::style::register_font;
use spmd_run::bench::{Op, Way};

use super::rows::Row;

/// A file to draw to.
#[derive(Clone, Debug)]
pub struct Picture {
    path: PathBuf,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Svg,
    Png,
}

impl FromStr for Picture {
    type Err = String;

    fn from_str(path: &str) -> Result<Picture, String> {
        let path = PathBuf::from(path);
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let form = match extension.to_ascii_lowercase().as_str() {
            "svg" => Form::Svg,
            "png" => Form::Png,
            _ => return Err("the file's name must end in .svg or .png".to_owned()),
        };
        Ok(Picture { path, form })
    }
}

impl Picture {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

const SIZE: (u32, u32) = (1280, 560);
const FONT: &str = "sans-serif";

/// One panel: what it shows of a row.
struct Panel {
    title: &'static str,
    value: fn(&Row) -> f64,
}

const PANELS: [Panel; 2] = [
    Panel { title: "bus bandwidth (GB/s)", value: |row| row.busbw_bytes_per_second / 1e9 },
    Panel { title: "time of a step (µs)", value: |row| row.median_seconds * 1e6 },
];

/// Draws the rows: a colour for each collective, solid in programs and dotted on the engine alone.
pub fn draw(picture: &Picture, rows: &[Row]) -> anyhow::Result<()> {
    // The font is the program's own, as machines without a display rarely have any.
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| anyhow!("the font cannot be read"))?;
    let drawn = match picture.form {
        Form::Svg => draw_on(&SVGBackend::new(&picture.path, SIZE).into_drawing_area(), rows),
        Form::Png => draw_on(&BitMapBackend::new(&picture.path, SIZE).into_drawing_area(), rows),
    };
    drawn.map_err(|error| anyhow!("cannot draw {}: {error}", picture.path.display()))
}

fn draw_on<B: DrawingBackend>(area: &DrawingArea<B, plotters::coord::Shift>, rows: &[Row]) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    for (part, panel) in area.split_evenly((1, PANELS.len())).iter().zip(&PANELS) {
        panel.draw(part, rows)?;
    }
    area.present()?;
    Ok(())
}

impl Panel {
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, plotters::coord::Shift>,
        rows: &[Row],
    ) -> Result<(), Box<dyn Error>>
    where
        B::ErrorType: 'static,
    {
        // A group of one rank moves nothing over the bus, and a logarithmic axis has no zero.
        let points = || rows.iter().map(|row| (row.size_bytes as f64, (self.value)(row))).filter(|(_, y)| *y > 0.0);
        let (low, high) = bounds(points().map(|(_, y)| y));
        let (first, last) = bounds(points().map(|(x, _)| x));
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d((first..last).log_scale().base(2.0), (low..high).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("size (bytes)")
            .x_label_formatter(&|size| size_text(*size))
            .y_label_formatter(&|value| format!("{value}"))
            .label_style((FONT, 13))
            .light_line_style(WHITE)
            .draw()?;
        for (index, op) in Op::ALL.into_iter().enumerate() {
            for way in [Way::Program, Way::Engine] {
                let of_series = rows.iter().filter(|row| row.op == op && row.through == way);
                let series: Vec<(f64, f64)> = of_series
                    .map(|row| (row.size_bytes as f64, (self.value)(row)))
                    .filter(|(_, y)| *y > 0.0)
                    .collect();
                if series.is_empty() {
                    continue;
                }
                let style = Palette99::pick(index).stroke_width(2);
                let drawn = match way {
                    Way::Program => chart.draw_series(LineSeries::new(series, style).point_size(2))?,
                    Way::Engine => chart.draw_series(DashedLineSeries::new(series, 4, 4, style))?,
                };
                drawn
                    .label(format!("{op}, {way}"))
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font((FONT, 13))
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    }
}

/// A range that holds all values and is never empty.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    if low < high { (low, high) } else if low == high { (low / 2.0, high * 2.0) } else { (1.0, 2.0) }
}

fn size_text(bytes: f64) -> String {
    match bytes {
        ..1024.0 => format!("{bytes}"),
        ..1_048_576.0 => format!("{}K", bytes / 1024.0),
        ..1_073_741_824.0 => format!("{}M", bytes / 1_048_576.0),
        _ => format!("{}G", bytes / 1_073_741_824.0),
    }
}
