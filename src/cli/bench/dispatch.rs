//! `spmd-run bench dispatch`: what a step costs.

use clap::Args;
use serde_json::json;
use spmd_run::bench::{self, Dispatch};
use spmd_run::runtime::{Runtime, RuntimeError, StepTimes};

use crate::cli::job::JobOptions;
use crate::cli::report::{print, table};
use crate::cli::{Failure, Format};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    job: JobOptions,

    /// Steps to time
    #[arg(long, value_name = "COUNT", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,

    /// Steps before those that are timed
    #[arg(short = 'w', long = "warmup-iters", value_name = "COUNT", default_value_t = 100)]
    warmup: u32,

    /// Form of the results on standard output
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn main(options: Options) -> Result<u8, Failure> {
    let job = &options.job;
    let nothing_else = |_| Ok(());
    job.run(
        &[],
        || Ok(None),
        nothing_else,
        |world, data_plane| {
            let (warmup, steps) = world
                .from_first("bench", || Ok::<_, RuntimeError>((options.warmup as usize, options.iters as usize)))?;
            let runtime = job.open(world, data_plane, None)?;
            let rows = bench::dispatch(&runtime, warmup, steps)?;
            if runtime.world().process_index() == 0 {
                print(&match options.format {
                    Format::Text => text(&rows),
                    Format::Json => format!("{}\n", as_json(&rows, &runtime)),
                })?;
            }
            Ok(0)
        },
    )
}

fn text(rows: &[Dispatch]) -> String {
    let micros = |seconds: f64| format!("{:.2}", seconds * 1e6);
    let mut cells = Vec::new();
    for row in rows {
        for (what, times) in [("step", &row.step), ("plugin alone", &row.bare)] {
            let StepTimes { min, median, p99, .. } = *times;
            cells.push(vec![row.program.into(), what.into(), micros(min), micros(median), micros(p99)]);
        }
        cells.push(vec![row.program.into(), "on top".into(), String::new(), micros(row.overhead()), String::new()]);
    }
    table(&["program", "what", "#min (µs)", "#median (µs)", "#p99 (µs)"], &cells)
}

fn as_json(rows: &[Dispatch], runtime: &Runtime) -> serde_json::Value {
    let row = |row: &Dispatch| {
        json!({
            "program": row.program,
            "step": row.step,
            "plugin": row.bare,
            "overhead_seconds": row.overhead(),
        })
    };
    json!({
        "process_count": runtime.topology().processes().len(),
        "device_count": runtime.topology().device_count(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
