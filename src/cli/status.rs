//! `spmd-run status`: how running jobs are doing.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use spmd_run::rendezvous::{JobStatus, ProcessState, ProcessStatus, local_jobs, query_status};

use super::job::{TlsOptions, job_token, join_failure};
use super::report::{print, table};
use super::{Failure, Format};

#[derive(Args)]
pub struct Options {
    /// Ask the coordinator at this address [default: all jobs of this user whose process 0 runs on this machine]
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,

    /// File with the job's secret [default: $SPMD_JOB_TOKEN]
    #[arg(long, value_name = "FILE", requires = "coordinator")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    tls: TlsOptions,

    /// Show it again and again, until the job has ended
    #[arg(long)]
    watch: bool,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, requires = "watch", value_parser = pause)]
    every: f64,

    /// Form of the report; with --watch, JSON has one line for each look
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// How long a coordinator may take to answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Moves to the top of the terminal, and clears it from there.
const CLEAR: &str = "\x1b[H\x1b[J";

fn pause(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.1..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err("must be from 0.1 to 86400 seconds".to_owned()) }
}

pub fn main(options: Options) -> Result<u8, Failure> {
    let clears = options.watch && io::stdout().is_terminal() && matches!(options.format, Format::Text);
    let mut seen = false;
    loop {
        let jobs = match options.look() {
            // The end of what was watched is no failure.
            Err(_) if seen => return Ok(0),
            jobs => jobs?,
        };
        if jobs.is_empty() && (seen || !options.watch) {
            if seen {
                return Ok(0);
            }
            return Err(Failure::program(anyhow::anyhow!(
                "no job of several processes of yours has its process 0 on this machine: --coordinator HOST:PORT asks \
                 one elsewhere"
            )));
        }
        seen |= !jobs.is_empty();
        let report = match options.format {
            Format::Text => jobs.iter().map(text).collect::<Vec<_>>().join("\n"),
            Format::Json => format!("{}\n", json!(jobs)),
        };
        print(&if clears { format!("{CLEAR}{report}") } else { report })?;
        if !options.watch {
            return Ok(0);
        }
        std::thread::sleep(Duration::from_secs_f64(options.every));
    }
}

impl Options {
    fn look(&self) -> Result<Vec<JobStatus>, Failure> {
        let Some(address) = &self.coordinator else {
            let jobs = local_jobs().map_err(Failure::program)?;
            return Ok(jobs.into_iter().map(|(_, job)| job).collect());
        };
        let token = job_token(self.token_file.as_deref())?;
        Ok(vec![query_status(address, token.as_ref(), self.tls.chosen().as_ref(), LIMIT).map_err(join_failure)?])
    }
}

fn text(job: &JobStatus) -> String {
    let name = if job.job.is_empty() { String::new() } else { format!(" {}", job.job) };
    let states: Vec<String> = ProcessState::ALL
        .into_iter()
        .map(|state| (state, job.count(state)))
        .filter(|(state, count)| *count > 0 || *state == ProcessState::Active)
        .map(|(state, count)| format!("{count} {}", state.name()))
        .collect();
    let mut text = format!(
        "job{name}, up for {}\nprocesses  {}: {}\ndevices    {}, slices {}\nstep       {}, {:.1} per second\nmoved      {}\n",
        seconds(job.uptime_seconds),
        job.process_count,
        states.join(", "),
        job.device_count,
        job.slice_count,
        job.step,
        job.steps_per_second,
        bytes(job.sent_bytes),
    );
    if let Some(failure) = &job.failure {
        text += &format!("stopped    {failure}\n");
    }
    let rows: Vec<Vec<String>> = job.processes.iter().map(row).collect();
    text + "\n" + &table(&["#process", "host", "state", "#devices", "#step", "#moved", "at"], &rows)
}

fn row(process: &ProcessStatus) -> Vec<String> {
    let at = match &process.collective {
        _ if process.silent_seconds > 0.0 => format!("silent for {}", seconds(process.silent_seconds)),
        Some(collective) if process.waits => format!("in {collective}"),
        _ => process.waits_at.as_ref().map_or_else(|| process.phase.clone(), |place| format!("at {place}")),
    };
    vec![
        process.process_index.to_string(),
        process.host.clone(),
        process.state.name().to_owned(),
        process.device_count.to_string(),
        process.step.to_string(),
        bytes(process.sent_bytes),
        at,
    ]
}

/// `1 h 2 min`, `5 min 3 s`, `3.2 s`
fn seconds(seconds: f64) -> String {
    match seconds as u64 {
        0..60 => format!("{seconds:.1} s"),
        whole @ 60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        whole => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `1.5 GiB`
fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = (bytes.checked_ilog2().unwrap_or(0) / 10).min(5);
    match power {
        0 => format!("{bytes} B"),
        _ => format!("{:.1} {}", bytes as f64 / (1_u64 << (10 * power)) as f64, UNITS[power as usize]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_shown_as_text() {
        let process = |process_index, state, collective: Option<&str>, silent_seconds| ProcessStatus {
            process_index,
            host: format!("host-{process_index}"),
            state,
            device_count: 2,
            step: 5,
            sent_bytes: 3 << 30,
            phase: "running 'main'".into(),
            collective: collective.map(str::to_owned),
            waits: collective.is_some(),
            silent_seconds,
            ..ProcessStatus::default()
        };
        let job = JobStatus {
            job: "0badcafe".into(),
            uptime_seconds: 3723.0,
            process_count: 4,
            device_count: 6,
            slice_count: 1,
            step: 5,
            steps_per_second: 12.34,
            sent_bytes: 9 << 30,
            failure: None,
            processes: vec![
                process(0, ProcessState::Active, Some("all-reduce.3"), 0.0),
                process(1, ProcessState::Active, None, 0.0),
                process(2, ProcessState::Active, Some("all-reduce.3"), 4.8),
                ProcessStatus { process_index: 3, ..ProcessStatus::default() },
            ],
        };
        insta::assert_snapshot!(text(&job), @"
        job 0badcafe, up for 1 h 2 min
        processes  4: 3 active, 1 pending
        devices    6, slices 1
        step       5, 12.3 per second
        moved      9.0 GiB

        process  host    state    devices  step    moved  at
              0  host-0  active         2     5  3.0 GiB  in all-reduce.3
              1  host-1  active         2     5  3.0 GiB  running 'main'
              2  host-2  active         2     5  3.0 GiB  silent for 4.8 s
              3          pending        0     0      0 B
        ");
        assert_eq!([seconds(2.25), seconds(75.0)], ["2.2 s", "1 min 15 s"]);
        assert_eq!([bytes(0), bytes(1023), bytes(1536), bytes(u64::MAX)], ["0 B", "1023 B", "1.5 KiB", "16384.0 PiB"]);
    }
}
