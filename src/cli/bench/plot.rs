//! Bandwidth and time over size, drawn.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::anyhow;
use plotters::prelude::*;
use spmd_run::bench::{Op, Way};
use spmd_run::chart::{self, Area, Chart, Line};

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

/// What is drawn of a row.
struct Panel {
    title: &'static str,
    value: fn(&Row) -> f64,
}

const PANELS: [Panel; 2] = [
    Panel { title: "bus bandwidth (GB/s)", value: |row| row.busbw_bytes_per_second / 1e9 },
    Panel { title: "time of a step (µs)", value: |row| row.median_seconds * 1e6 },
];

/// Draws the rows: a colour for each collective, solid lines for programs and dashed ones for the engine alone.
pub fn draw(picture: &Picture, rows: &[Row]) -> anyhow::Result<()> {
    let drawn = chart::use_own_font().and_then(|()| match picture.form {
        Form::Svg => draw_svg(&picture.path, rows),
        Form::Png => draw_png(&picture.path, rows),
    });
    drawn.map_err(|error| anyhow!("cannot draw {}: {error}", picture.path.display()))
}

fn draw_svg(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let mut svg = String::new();
    draw_on(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(), rows)?;
    // Fits into narrow windows.
    std::fs::write(path, svg.replacen("<svg ", "<svg style=\"max-width:100%;height:auto\" ", 1))?;
    Ok(())
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
    area.fill(&chart::PAPER)?;
    let (panels, legend) = area.split_horizontally(SIZE.0 - LEGEND);
    for (part, panel) in panels.split_evenly((1, PANELS.len())).iter().zip(&PANELS) {
        let chart = Chart {
            title: panel.title.to_owned(),
            x_title: "size (bytes)".to_owned(),
            x_is_log: true,
            x_text: size_text,
            y_text: |value| format!("{value}"),
            lines: lines(rows, panel.value),
        };
        chart.draw(part)?;
    }
    chart::draw_legend(&legend, &lines(rows, PANELS[0].value), &["solid: in a program", "dashed: engine alone"])?;
    area.present()?;
    Ok(())
}

/// A line for each collective and way that there are rows of. A group of one rank moves nothing over the bus.
fn lines(rows: &[Row], value: fn(&Row) -> f64) -> Vec<Line> {
    let all = Op::ALL.into_iter().enumerate().flat_map(|(index, op)| {
        [Way::Program, Way::Engine].map(|way| {
            let rows = rows.iter().filter(|row| row.op == op && row.through == way);
            Line {
                name: op.name().to_owned(),
                color: color(index),
                is_dashed: way == Way::Engine,
                points: rows.map(|row| (row.size_bytes as f64, value(row))).collect(),
            }
        })
    });
    all.filter(|line| !line.points.is_empty()).collect()
}

/// Colours that can be told apart on white, also by most who are color-blind.
fn color(index: usize) -> RGBColor {
    const COLORS: [RGBColor; Op::ALL.len()] = [
        RGBColor(0x25, 0x68, 0xab),
        RGBColor(0xb8, 0x62, 0x00),
        RGBColor(0x1b, 0x7f, 0x4b),
        RGBColor(0xb0, 0x2a, 0x5b),
        RGBColor(0x6b, 0x4f, 0xb3),
        RGBColor(0x00, 0x81, 0x8f),
        RGBColor(0x7a, 0x5c, 0x3e),
    ];
    COLORS[index]
}

fn size_text(bytes: f64) -> String {
    match bytes {
        ..1024.0 => format!("{bytes}"),
        ..1_048_576.0 => format!("{}K", bytes / 1024.0),
        ..1_073_741_824.0 => format!("{}M", bytes / 1_048_576.0),
        _ => format!("{}G", bytes / 1_073_741_824.0),
    }
}
