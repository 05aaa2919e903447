//! `spmd-run doctor`: what this process sees of the world around it, and what to change.

mod advice;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use spmd_run::cluster::{self, ClusterError, Detected, Environment, Part, Scheduler, host};
use spmd_run::plugins;

use super::report::{print, table};
use super::{Failure, Format};

#[derive(Args)]
pub struct Options {
    /// PJRT plugin that is meant: a known name or the path of a shared library
    #[arg(long, value_name = "NAME|PATH")]
    plugin: Option<String>,

    /// Read /sys, /proc, /dev and /etc in this folder
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,

    /// Form of the report
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// What was found. The keys are those of the JSON form.
#[derive(Serialize)]
struct Report {
    /// Whose job this process would join; none if it would start processes itself.
    joins: Option<Place>,
    /// Why that cannot be told.
    error: Option<String>,
    /// What every scheduler's variables say.
    schedulers: Vec<Seen>,
    plugin: Option<plugins::Found>,
    plugin_error: Option<String>,
    chips: Vec<host::Chip>,
    /// Who has the device files of TPU chips open.
    holders: Vec<host::Holder>,
    interfaces: Vec<host::Interface>,
    /// The address that other hosts are given.
    address_for_peers: Option<IpAddr>,
    limits: host::Limits,
    /// Whether this program was built with MPI.
    mpi: bool,
    advice: Vec<String>,
}

#[derive(Serialize)]
struct Place {
    scheduler: Scheduler,
    process_index: u32,
    process_count: Option<u32>,
    local: Option<Part>,
    slice: Option<Part>,
    coordinator: Option<String>,
    has_token: bool,
    #[serde(skip)]
    text: String,
}

impl From<&Detected> for Place {
    fn from(detected: &Detected) -> Place {
        Place {
            scheduler: detected.scheduler,
            process_index: detected.process_index,
            process_count: detected.process_count,
            local: detected.local,
            slice: detected.slice,
            coordinator: detected.coordinator.clone().ok(),
            has_token: detected.token.is_some(),
            text: detected.to_string(),
        }
    }
}

#[derive(Serialize)]
struct Seen {
    scheduler: Scheduler,
    /// Those of its variables that are set.
    variables: BTreeMap<&'static str, String>,
    /// What follows from them, for people.
    says: String,
}

/// Prints the report. Exit code 1 says that a job would fail at once.
pub fn main(options: &Options) -> Result<u8, Failure> {
    let report = Report::new(options);
    print(&match options.format {
        Format::Text => report.text(),
        Format::Json => format!("{}\n", serde_json::to_string_pretty(&report).map_err(Failure::program)?),
    })?;
    Ok(u8::from(report.error.is_some() || report.plugin.is_none()))
}

impl Report {
    fn new(options: &Options) -> Report {
        let environment = Environment::of_process_at(&options.root);
        let (detected, error) = match cluster::detect(&environment) {
            Ok(detected) => (detected, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let schedulers = cluster::survey(&environment)
            .into_iter()
            .map(|finding| Seen {
                scheduler: finding.scheduler,
                says: says(finding.scheduler, &finding.outcome),
                variables: finding.variables.into_iter().collect(),
            })
            .collect();
        let (plugin, plugin_error) = match plugins::find(options.plugin.as_deref()) {
            Ok(found) => (Some(found), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let interfaces = host::interfaces().unwrap_or_default();
        let mut report = Report {
            joins: detected.as_ref().filter(|detected| detected.process_count != Some(1)).map(Place::from),
            error,
            schedulers,
            plugin,
            plugin_error,
            chips: host::chips(&options.root),
            holders: host::holders(&options.root),
            address_for_peers: host::best(&interfaces),
            interfaces,
            limits: host::Limits::here(&options.root),
            mpi: cfg!(feature = "mpi"),
            advice: Vec::new(),
        };
        report.advice = advice::advice(&report, detected.as_ref(), &environment);
        report
    }

    fn text(&self) -> String {
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut row = |label: &str, text: String| rows.push(vec![label.to_owned(), text]);
        row(
            "job",
            match (&self.joins, &self.error) {
                (Some(place), _) => place.text.clone(),
                (None, Some(error)) => format!("error: {error}"),
                (None, None) => "no scheduler's: -n starts processes on this host".to_owned(),
            },
        );
        for seen in &self.schedulers {
            row("seen", seen.says.clone());
            for (name, value) in &seen.variables {
                row("", format!("{name}={value}"));
            }
        }
        row(
            "plugin",
            match (&self.plugin, &self.plugin_error) {
                (Some(found), _) => format!("{} ({})", found.path.display(), found.place),
                (None, error) => error.as_deref().unwrap_or_default().lines().next().unwrap_or_default().to_owned(),
            },
        );
        row("mpi", if self.mpi { "built in" } else { "not built in" }.to_owned());
        if self.chips.is_empty() {
            row("chips", "none on the PCI bus".to_owned());
        }
        for chip in &self.chips {
            row("chip", format!("{} at {}", chip.kind, chip.address));
        }
        for host::Holder { device, pid, command } in &self.holders {
            row("in use", format!("{device} by process {pid} ({command})"));
        }
        for interface in &self.interfaces {
            let used = if Some(interface.address) == self.address_for_peers { ", given to other hosts" } else { "" };
            let down = if interface.is_up { "" } else { ", down" };
            let speed = interface.speed.map(|speed| format!(", {speed} Mbit/s")).unwrap_or_default();
            row("interface", format!("{} {}{speed}{used}{down}", interface.name, interface.address));
        }
        let limits = &self.limits;
        let count = |number: Option<u64>| number.map_or("unlimited".to_owned(), |number| number.to_string());
        row("open files", format!("{}, up to {}", count(limits.open_files), count(limits.most_open_files)));
        row("locked memory", limits.locked_memory_bytes.map_or("unlimited".to_owned(), size));
        if let (Some(all), Some(free)) = (limits.shared_memory_bytes, limits.free_shared_memory_bytes) {
            row("/dev/shm", format!("{}, {} free", size(all), size(free)));
        }
        if let Some(available) = limits.available_memory_bytes {
            row("memory", format!("{} available", size(available)));
        }
        row("huge pages", limits.transparent_huge_pages.clone().unwrap_or("unknown".to_owned()));
        let mut text = table(&["", ""], &rows).trim_start().to_owned();
        for advice in &self.advice {
            text += &format!("\nadvice: {advice}");
        }
        if self.advice.is_empty() {
            text += "\nnothing to change";
        }
        text + "\n"
    }
}

fn says(scheduler: Scheduler, outcome: &Result<Option<Detected>, ClusterError>) -> String {
    match outcome {
        Ok(Some(detected)) => match &detected.coordinator {
            Ok(_) => detected.to_string(),
            Err(reason) => format!("{detected}; no coordinator, since {reason}"),
        },
        Ok(None) => format!("{scheduler} did not start this process"),
        Err(error) => format!("error: {error}"),
    }
}

/// A size in binary units.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..UNITS.len()).rev().find(|unit| bytes >> (10 * unit) > 0).unwrap_or(0);
    let whole = bytes as f64 / (1u64 << (10 * unit)) as f64;
    if bytes.is_multiple_of(1 << (10 * unit)) {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{whole:.1} {}", UNITS[unit])
    }
}
