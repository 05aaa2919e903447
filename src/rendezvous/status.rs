//! How a running job is doing, for people and for monitoring.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// Where a process stands in its job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It has not joined yet.
    #[default]
    Pending,
    /// It takes part.
    Active,
    /// It has finished, and left in order.
    Done,
    /// It died, or ended the job.
    Failed,
}

impl ProcessState {
    /// All states, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Active, Self::Pending, Self::Done, Self::Failed];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// How one process is doing, by its last sign of life.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Which.
    pub process_index: u32,
    /// Its host; empty where that is not known.
    pub host: String,
    /// Where it stands.
    pub state: ProcessState,
    /// Its slice.
    pub slice: u32,
    /// How many devices it has opened.
    pub device_count: u32,
    /// What it does, as in `compiling 'main'`.
    pub phase: String,
    /// The step that it entered last, from 1; 0 before the first.
    pub step: u64,
    /// The collective that it entered last.
    pub collective: Option<String>,
    /// Whether it is in that collective.
    pub waits: bool,
    /// Where it waits for others outside of collectives, as in `barrier 'compiled'`.
    pub waits_at: Option<String>,
    /// Bytes that it has sent to other processes in collectives.
    pub sent_bytes: u64,
    /// For how long nothing has been heard of it; 0 for moments.
    pub silent_seconds: f64,
}

/// How a job is doing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job's id; empty where it has none.
    pub job: String,
    /// Seconds since its coordinator started.
    pub uptime_seconds: f64,
    /// How many processes it has.
    pub process_count: u32,
    /// Devices that are open.
    pub device_count: u32,
    /// Slices of the processes that have joined.
    pub slice_count: u32,
    /// The step that all processes have come to, from 1; 0 before the first.
    pub step: u64,
    /// Steps per second, lately.
    pub steps_per_second: f64,
    /// Bytes that processes have sent to each other in collectives.
    pub sent_bytes: u64,
    /// Why the job has been stopped, if it has.
    pub failure: Option<String>,
    /// All processes, by index.
    pub processes: Vec<ProcessStatus>,
}

impl JobStatus {
    /// How many processes are in a state.
    pub fn count(&self, state: ProcessState) -> usize {
        self.processes.iter().filter(|process| process.state == state).count()
    }

    /// The text format of Prometheus, version 0.0.4.
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
            let _ = write!(text, "# HELP spmd_run_{name} {help}\n# TYPE spmd_run_{name} {kind}\n");
            for (labels, value) in samples {
                let _ = writeln!(text, "spmd_run_{name}{labels} {value}");
            }
        };
        let states =
            ProcessState::ALL.map(|state| (format!("{{state=\"{}\"}}", state.name()), self.count(state) as f64));
        metric("processes", "gauge", "Processes of the job by state.", &states);
        for (name, kind, help, value) in [
            ("devices", "gauge", "Devices that are open.", f64::from(self.device_count)),
            ("slices", "gauge", "Slices of the processes that have joined.", f64::from(self.slice_count)),
            ("step", "gauge", "The step that all processes have come to.", self.step as f64),
            ("steps_per_second", "gauge", "Steps per second, lately.", self.steps_per_second),
            ("sent_bytes_total", "counter", "Bytes sent between processes in collectives.", self.sent_bytes as f64),
            ("uptime_seconds", "gauge", "Seconds since the coordinator started.", self.uptime_seconds),
        ] {
            metric(name, kind, help, &[(String::new(), value)]);
        }
        let by_process = |value: fn(&ProcessStatus) -> f64| -> Vec<_> {
            let joined = self.processes.iter().filter(|process| process.state != ProcessState::Pending);
            joined.map(|process| (labels(process), value(process))).collect()
        };
        metric("process_step", "gauge", "The step that a process entered last.", &by_process(|it| it.step as f64));
        metric(
            "process_sent_bytes_total",
            "counter",
            "Bytes that a process has sent to others in collectives.",
            &by_process(|it| it.sent_bytes as f64),
        );
        metric(
            "process_silent_seconds",
            "gauge",
            "For how long nothing has been heard of a process.",
            &by_process(|it| it.silent_seconds),
        );
        text
    }
}

fn labels(process: &ProcessStatus) -> String {
    let host = process.host.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{{process=\"{}\",host=\"{host}\"}}", process.process_index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_can_read_it() {
        let process = ProcessStatus {
            host: "a \"host\"\\\n".into(),
            state: ProcessState::Active,
            step: 5,
            sent_bytes: 1 << 30,
            ..ProcessStatus::default()
        };
        let pending = ProcessStatus { process_index: 1, ..ProcessStatus::default() };
        let status = JobStatus { step: 5, processes: vec![process, pending], ..JobStatus::default() };
        let text = status.to_prometheus();
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        insta::assert_snapshot!(samples.join("\n"), @r#"
        spmd_run_processes{state="active"} 1
        spmd_run_processes{state="pending"} 1
        spmd_run_processes{state="done"} 0
        spmd_run_processes{state="failed"} 0
        spmd_run_devices 0
        spmd_run_slices 0
        spmd_run_step 5
        spmd_run_steps_per_second 0
        spmd_run_sent_bytes_total 0
        spmd_run_uptime_seconds 0
        spmd_run_process_step{process="0",host="a \"host\"\\\n"} 5
        spmd_run_process_sent_bytes_total{process="0",host="a \"host\"\\\n"} 1073741824
        spmd_run_process_silent_seconds{process="0",host="a \"host\"\\\n"} 0
        "#);
    }
}
