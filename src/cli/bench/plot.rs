//! Bandwidth and time over size, drawn.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::anyhow;
use plotters::coord::{CoordTranslate, Shift};
use plotters::element::DashedPathElement;
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

const SIZE: (u32, u32) = (1400, 560);
/// The width of the column that tells which line is which.
const LEGEND: u32 = 170;
const FONT: &str = "sans-serif";

/// What is drawn of a row.
struct Panel {
    title: &'static str,
    value: fn(&Row) -> f64,
}

const PANELS: [Panel; 2] = [
    Panel { title: "bus bandwidth (GB/s)", value: |row| row.busbw_bytes_per_second / 1e9 },
    Panel { title: "time of a step (µs)", value: |row| row.median_seconds * 1e6 },
];

type Area<B> = DrawingArea<B, Shift>;

/// Draws the rows: a colour for each collective, solid lines for programs and dashed ones for the engine alone.
pub fn draw(picture: &Picture, rows: &[Row]) -> anyhow::Result<()> {
    // The font comes along, as machines without a display rarely have any.
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| anyhow!("the font cannot be read"))?;
    let drawn = match picture.form {
        Form::Svg => draw_on(&SVGBackend::new(&picture.path, SIZE).into_drawing_area(), rows),
        Form::Png => draw_png(&picture.path, rows),
    };
    drawn.map_err(|error| anyhow!("cannot draw {}: {error}", picture.path.display()))
}

fn draw_png(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let (width, height) = SIZE;
    // Three bytes for each pixel.
    let mut pixels = vec![0; (3 * width * height) as usize];
    draw_on(&BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area(), rows)?;
    let mut encoder = png::Encoder::new(BufWriter::new(File::create(path)?), width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(())
}

fn draw_on<B: DrawingBackend>(area: &Area<B>, rows: &[Row]) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    let (panels, legend) = area.split_horizontally(SIZE.0 - LEGEND);
    for (part, panel) in panels.split_evenly((1, PANELS.len())).iter().zip(&PANELS) {
        panel.draw(part, rows)?;
    }
    let series = Series::of(rows);
    for (y, series) in (60..).step_by(22).zip(&series) {
        series.line(&legend, [(0, y), (34, y)])?;
        legend.draw(&Text::new(series.op.name(), (42, y - 7), (FONT, 13)))?;
    }
    let below = 60 + 22 * series.len() as i32;
    for (y, way) in [(below, "solid: in a program"), (below + 18, "dashed: engine alone")] {
        legend.draw(&Text::new(way, (0, y), (FONT, 12)))?;
    }
    area.present()?;
    Ok(())
}

/// The rows of one line.
struct Series {
    op: Op,
    way: Way,
    style: ShapeStyle,
}

impl Series {
    fn of(rows: &[Row]) -> Vec<Series> {
        let all = Op::ALL.into_iter().enumerate().flat_map(|(index, op)| {
            [Way::Program, Way::Engine].map(|way| Series { op, way, style: Palette99::pick(index).stroke_width(2) })
        });
        all.filter(|series| rows.iter().any(|row| series.has(row))).collect()
    }

    fn has(&self, row: &Row) -> bool {
        row.op == self.op && row.through == self.way
    }

    fn line<B: DrawingBackend, C: CoordTranslate>(
        &self,
        area: &DrawingArea<B, C>,
        points: impl IntoIterator<Item = C::From>,
    ) -> Result<(), Box<dyn Error>>
    where
        C::From: Clone + 'static,
        B::ErrorType: 'static,
    {
        match self.way {
            Way::Program => area.draw(&PathElement::new(points.into_iter().collect::<Vec<_>>(), self.style))?,
            Way::Engine => {
                area.draw(&DashedPathElement::new(points.into_iter().collect::<Vec<_>>(), 5, 4, self.style))?
            }
        }
        Ok(())
    }
}

impl Panel {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>, rows: &[Row]) -> Result<(), Box<dyn Error>>
    where
        B::ErrorType: 'static,
    {
        // A group of one rank moves nothing over the bus, and a logarithmic axis has no zero.
        let point = |row: &Row| Some((row.size_bytes as f64, (self.value)(row))).filter(|(_, y)| *y > 0.0);
        let (first, last) = bounds(rows.iter().filter_map(point).map(|(x, _)| x));
        let (low, high) = bounds(rows.iter().filter_map(point).map(|(_, y)| y));
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, (FONT, 20))
            .margin(12)
            .margin_right(24)
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
        for series in Series::of(rows) {
            let points = rows.iter().filter(|row| series.has(row)).filter_map(point);
            series.line(chart.plotting_area(), points)?;
        }
        Ok(())
    }
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

fn size_text(bytes: f64) -> String {
    match bytes {
        ..1024.0 => format!("{bytes}"),
        ..1_048_576.0 => format!("{}K", bytes / 1024.0),
        ..1_073_741_824.0 => format!("{}M", bytes / 1_048_576.0),
        _ => format!("{}G", bytes / 1_073_741_824.0),
    }
}
