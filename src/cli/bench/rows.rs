//! What a measurement of collectives tells, as text in nccl-tests' columns, as JSON or as CSV.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};
use spmd_run::bench::{Case, Measurement, Op, Settings, Way};
use spmd_run::runtime::{Runtime, Topology};

use super::collectives::Format;
use crate::cli::Failure;
use crate::cli::report::{links_text, print};

/// One case, measured in one way.
#[derive(Clone, Serialize)]
pub struct Row {
    pub op: Op,
    pub size_bytes: usize,
    count: usize,
    dtype: &'static str,
    redop: &'static str,
    root: i32,
    ranks: usize,
    pub through: Way,
    steps: usize,
    min_seconds: f64,
    pub median_seconds: f64,
    p99_seconds: f64,
    algbw_bytes_per_second: f64,
    pub busbw_bytes_per_second: f64,
    wrong: Option<u64>,
}

impl Row {
    pub fn new(case: &Case, measured: Measurement) -> Row {
        let Measurement { way, times, algbw, busbw, wrong } = measured;
        Row {
            op: case.op,
            size_bytes: case.size(),
            count: case.count,
            dtype: case.dtype.name(),
            redop: case.redop(),
            root: case.op.root(),
            ranks: case.ranks(),
            through: way,
            steps: times.steps,
            min_seconds: times.min,
            median_seconds: times.median,
            p99_seconds: times.p99,
            algbw_bytes_per_second: algbw,
            busbw_bytes_per_second: busbw,
            wrong,
        }
    }

    /// The columns of nccl-tests, and after them what it does not have.
    fn text(&self) -> String {
        format!(
            "{:>12} {:>12} {:>8} {:>7} {:>6} {:>9} {:>8} {:>8} {:>7} {:>9} {:>9}  {}\n",
            self.size_bytes,
            self.count,
            self.dtype,
            self.redop,
            self.root,
            microseconds(self.median_seconds),
            gigabytes(self.algbw_bytes_per_second),
            gigabytes(self.busbw_bytes_per_second),
            self.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string()),
            microseconds(self.min_seconds),
            microseconds(self.p99_seconds),
            self.through,
        )
    }
}

fn microseconds(seconds: f64) -> String {
    let time = seconds * 1e6;
    if time < 1e4 { format!("{time:.2}") } else { format!("{time:.0}") }
}

fn gigabytes(bytes: f64) -> String {
    format!("{:.3}", bytes / 1e9)
}

const COLUMNS: &str = "\
#       size        count     type   redop   root      time    algbw    busbw  #wrong       min       p99  through
#        (B)   (elements)                              (us)   (GB/s)   (GB/s)              (us)      (us)
";

/// Rows on their way to standard output: text row by row, everything else when all are there.
pub struct Report {
    format: Format,
    /// Other processes than the first collect rows and print nothing.
    prints: bool,
    about: Value,
    rows: Vec<Row>,
    /// The first row of the collective that is being measured.
    first: usize,
}

impl Report {
    pub fn new(format: Format, prints: bool) -> Report {
        Report { format, prints, about: Value::Null, rows: Vec::new(), first: 0 }
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Wrong elements in all rows.
    pub fn wrong(&self) -> u64 {
        self.rows.iter().filter_map(|row| row.wrong).sum()
    }

    /// Tells what is measured, and where.
    pub fn begin(&mut self, runtime: &Runtime, settings: &Settings) -> Result<(), Failure> {
        self.about = about(runtime, settings);
        self.text(|| header(runtime, settings))
    }

    pub fn begin_op(&mut self, op: Op) -> Result<(), Failure> {
        self.first = self.rows.len();
        self.text(|| format!("#\n# {op}\n#\n{COLUMNS}"))
    }

    pub fn add(&mut self, row: Row) -> Result<(), Failure> {
        self.text(|| row.text())?;
        self.rows.push(row);
        Ok(())
    }

    /// nccl-tests' last lines.
    pub fn end_op(&self) -> Result<(), Failure> {
        let rows = &self.rows[self.first..];
        let wrong: u64 = rows.iter().filter_map(|row| row.wrong).sum();
        let mean = rows.iter().map(|row| row.busbw_bytes_per_second).sum::<f64>() / rows.len().max(1) as f64;
        self.text(|| {
            let verdict = if wrong == 0 { "OK" } else { "FAILED" };
            format!("# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {}\n", gigabytes(mean))
        })
    }

    pub fn end(&self) -> Result<(), Failure> {
        if !self.prints {
            return Ok(());
        }
        match self.format {
            Format::Text => Ok(()),
            Format::Json => {
                let mut report = self.about.clone();
                report["rows"] = json!(self.rows);
                print(&format!("{report}\n"))
            }
            Format::Csv => {
                let mut table = csv::Writer::from_writer(Vec::new());
                self.rows.iter().try_for_each(|row| table.serialize(row)).map_err(Failure::program)?;
                let bytes = table.into_inner().map_err(|error| Failure::program(error.into_error()))?;
                print(&String::from_utf8_lossy(&bytes))
            }
        }
    }

    fn text(&self, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.prints && self.format == Format::Text { print(&text()) } else { Ok(()) }
    }
}

fn hosts(topology: &Topology) -> BTreeSet<&str> {
    topology.processes().iter().map(|process| process.host.as_str()).collect()
}

/// What carries data, for each kind of pair of processes.
fn transport(runtime: &Runtime) -> String {
    match runtime.transport_name() {
        None => "none, one process".to_owned(),
        Some("shm and tcp") => "shm between processes that share a host's memory, tcp between the others".to_owned(),
        Some(name) => format!("{name} between all processes"),
    }
}

fn header(runtime: &Runtime, settings: &Settings) -> String {
    let topology = runtime.topology();
    let Settings { begin, end, factor, warmup, check, .. } = settings;
    let iterations = settings.iterations.map_or("by size".to_owned(), |count| count.to_string());
    let mut text = format!(
        "# spmd-run {} bench collectives\n\
         # minBytes {begin} maxBytes {end} step: {factor}(factor) warmup iters: {warmup} iters: {iterations} \
         validation: {}\n",
        env!("CARGO_PKG_VERSION"),
        u8::from(*check)
    );
    if let Some(process) = topology.processes().first() {
        let (major, minor) = process.pjrt_api_version;
        let version = process.platform_version.replace('\n', " ");
        let file = runtime.client().plugin().path().file_name().unwrap_or_default().to_string_lossy();
        text += &format!("# Plugin: {file}, PJRT C API {major}.{minor}, {version}\n");
    }
    text += &format!(
        "# Processes: {} on {} host(s)\n# Transport: {}\n{}#\n# Using devices\n",
        topology.processes().len(),
        hosts(topology).len(),
        transport(runtime),
        runtime.links().map(|links| format!("# Links: {}\n", links_text(&links))).unwrap_or_default()
    );
    let groups = settings.split.groups(topology.device_count() as u32).unwrap_or_default();
    for (index, process) in topology.processes().iter().enumerate() {
        for device in &process.devices {
            let place = groups
                .iter()
                .enumerate()
                .find_map(|(group, members)| Some((members.iter().position(|member| *member == device.id)?, group)));
            let (rank, group) = place.unwrap_or_default();
            text += &format!(
                "#  Rank {rank:>2} Group {group:>2} Pid {:>6} on {} process {index:>2} device {:>2} {}\n",
                process.pid, process.host, device.id, device.kind
            );
        }
    }
    text
}

fn about(runtime: &Runtime, settings: &Settings) -> Value {
    let topology = runtime.topology();
    let process = topology.processes().first();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "process_count": topology.processes().len(),
        "device_count": topology.device_count(),
        "hosts": hosts(topology),
        "plugin": runtime.client().plugin().path(),
        "platform": process.map(|process| &process.platform),
        "platform_version": process.map(|process| &process.platform_version),
        "pjrt_api_version": process.map(|process| process.pjrt_api_version),
        "transport": runtime.transport_name(),
        "links": runtime.links(),
        "groups": settings.split.groups(topology.device_count() as u32).unwrap_or_default(),
        "warmup_steps": settings.warmup,
    })
}
