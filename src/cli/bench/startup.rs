//! `spmd-run bench startup`: from the launch of a job until every process knows the device count.
//!
//! Each start is one of this very command, with a hidden option that tells it when it was launched.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::json;
use spmd_run::plugins;
use spmd_run::runtime::{RuntimeError, StepTimes};

use crate::cli::job::{JobOptions, Role};
use crate::cli::report::{print, table};
use crate::cli::{Failure, Format, memory};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    job: JobOptions,

    /// Jobs to start, one after the other
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,

    /// Form of the results on standard output
    #[arg(long, value_enum, default_value = "text")]
    format: Format,

    /// When this job was launched, on the system's monotonic clock
    #[arg(long, hide = true, value_name = "NANOSECONDS")]
    launched_at: Option<u64>,
}

/// What one process took until it knew the device count, in seconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Phases([f64; PHASES.len()]);

/// The name of each phase and what happens in it.
const PHASES: [(&str, &str); 7] = [
    ("processes", "launcher and processes start"),
    ("rendezvous", "processes meet"),
    ("plugin", "plugin is loaded"),
    ("client", "devices are opened"),
    ("device_count", "devices are made known to all"),
    ("total", "launch until every process knows device_count"),
    ("transport", "after that: processes connect for data"),
];

fn now() -> Duration {
    // The clock's seconds since the system started are never negative.
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

pub fn main(options: Options) -> Result<u8, Failure> {
    let Some(launched_at) = options.launched_at else { return options.repeat() };
    let job = &options.job;
    let launched_at = Duration::from_nanos(launched_at);
    let membership = match job.role(|| Ok(None))? {
        Role::Launcher { processes } => return job.launch(processes, &[]),
        Role::Controller(membership) => membership,
    };
    let started = now();
    membership.take_part(job, |world, data_plane| {
        let met = now();
        let runtime = job.open(world, data_plane, None)?;
        let opening = runtime.opening();
        let opened = now();
        let phases = [
            started.saturating_sub(launched_at),
            met - started,
            opening.plugin,
            opening.client,
            opening.topology,
            opened.saturating_sub(launched_at + opening.transport),
            opening.transport,
        ];
        let phases = Phases(phases.map(|phase| phase.as_secs_f64()));
        let all = runtime.world().all_gather("phases", phases).map_err(RuntimeError::from)?;
        if runtime.world().process_index() == 0 {
            print(&format!("{}\n", json!(all)))?;
        }
        Ok(0)
    })
}

impl Options {
    /// Starts the jobs and reports on them.
    fn repeat(&self) -> Result<u8, Failure> {
        let Role::Launcher { processes } = self.job.role(|| Ok(None))? else {
            return Err(Failure::usage("bench startup starts its processes itself: leave --coordinator out"));
        };
        plugins::find(self.job.plugin.as_deref())?;
        let mut starts = Vec::new();
        for _ in 0..self.repeat {
            match start()? {
                Ok(phases) => starts.push(phases),
                Err(code) => return Ok(code),
            }
        }
        let times: Vec<StepTimes> = (0..PHASES.len()).filter_map(|phase| slowest(&starts, phase)).collect();
        print(&match self.format {
            Format::Text => text(processes, &times),
            Format::Json => {
                let phases: serde_json::Map<_, _> =
                    PHASES.iter().zip(&times).map(|((name, _), times)| ((*name).to_owned(), json!(times))).collect();
                format!("{}\n", json!({ "process_count": processes, "repeat": self.repeat, "phases": phases }))
            }
        })?;
        Ok(0)
    }
}

/// Starts one job; the phases of each of its processes, or its exit code when it failed and has said why.
fn start() -> Result<Result<Vec<Phases>, u8>, Failure> {
    let program = std::env::current_exe().map_err(Failure::program)?;
    let mut job = Command::new(program);
    // As a shell would start it: with settings of its own still to be made.
    job.args(std::env::args_os().skip(1)).env_remove(memory::VARIABLE);
    job.arg("--launched-at").arg(now().as_nanos().to_string()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = job.output().context("cannot start a job").map_err(Failure::program)?;
    if !output.status.success() {
        return Ok(Err(output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)));
    }
    let phases = serde_json::from_slice(&output.stdout).context("a job's report cannot be read");
    Ok(Ok(phases.map_err(Failure::program)?))
}

/// A phase over all starts, each as long as in its slowest process.
fn slowest(starts: &[Vec<Phases>], phase: usize) -> Option<StepTimes> {
    let processes = starts.iter().map(Vec::len).min()?;
    let of_process = |process: usize| starts.iter().map(|phases| phases[process].0[phase]).collect();
    StepTimes::of_slowest(&(0..processes).map(of_process).collect::<Vec<_>>())
}

fn text(processes: u32, times: &[StepTimes]) -> String {
    let millis = |seconds: f64| format!("{:.2}", seconds * 1e3);
    let row = |((name, meaning), times): (&(&str, &str), &StepTimes)| {
        vec![(*name).to_owned(), millis(times.min), millis(times.median), (*meaning).to_owned()]
    };
    let rows: Vec<_> = PHASES.iter().zip(times).map(row).collect();
    let starts = times.first().map_or(0, |times| times.steps);
    format!(
        "{starts} starts of {processes} process(es), the slowest process of each\n\n{}",
        table(&["phase", "#min (ms)", "#median (ms)", "what"], &rows)
    )
}
