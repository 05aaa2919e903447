//! Who belongs to the job, how far each process has come, and who keeps the others waiting.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::super::Heartbeat;
use super::super::progress::Progress;
use super::super::report::{MissingProcess, Place, ProcessList, Seconds};
use super::super::status::{ProcessState, ProcessStatus};
use super::super::wire::Join;

/// After this many beats without a word a process counts as silent.
const SILENT: u32 = 4;
/// The most processes that are described one by one.
const DESCRIBED: usize = 8;
/// How many beats the step rate is taken over.
const PACE: usize = 32;

/// A process that has joined.
///
/// Its silence is counted in beats of the coordinator, not by the clock: when process 0 itself was stopped for a while,
/// that must not be taken for everyone else's silence.
pub struct Member {
    pub host: String,
    pub address: SocketAddr,
    pub state: ProcessState,
    slice: u32,
    progress: Progress,
    /// Beats since its last word.
    silent: u32,
    /// Beats since it last got on.
    unchanged: u32,
}

/// All processes that have joined.
pub struct Members {
    /// Where those are expected that have not joined; empty where nobody knows.
    expected_hosts: Vec<String>,
    joined: BTreeMap<u32, Member>,
    /// The step that all have come to, at the last beats.
    pace: VecDeque<(Instant, u64)>,
}

/// Processes that have waited for too long, and those that they wait for.
#[derive(Debug, PartialEq, Eq)]
pub struct Stall {
    /// How many beats the longest wait has lasted.
    pub beats: u32,
    /// The first process that is waited for, if one can be named.
    pub culprit: Option<u32>,
    /// Who is where.
    pub text: String,
}

impl Members {
    pub fn new(expected_hosts: Vec<String>) -> Self {
        Self { expected_hosts, joined: BTreeMap::new(), pace: VecDeque::new() }
    }

    pub fn len(&self) -> usize {
        self.joined.len()
    }

    pub fn get(&self, process: u32) -> Option<&Member> {
        self.joined.get(&process)
    }

    pub fn insert(&mut self, join: &Join, address: SocketAddr) {
        let member = Member {
            host: join.host.clone(),
            address,
            state: ProcessState::Active,
            slice: join.slice,
            progress: Progress::default(),
            silent: 0,
            unchanged: 0,
        };
        self.joined.insert(join.process_index, member);
    }

    pub fn set_state(&mut self, process: u32, state: ProcessState) {
        if let Some(member) = self.joined.get_mut(&process) {
            member.state = state;
        }
    }

    /// The hosts' names, by process, of all that have joined.
    pub fn hosts(&self) -> Vec<&str> {
        self.joined.values().map(|member| &*member.host).collect()
    }

    /// The first process that has left the job.
    pub fn first_gone(&self) -> Option<u32> {
        self.joined.iter().find(|(_, member)| member.state == ProcessState::Done).map(|(process, _)| *process)
    }

    /// `process 2 (host-b)`
    pub fn name(&self, process: u32) -> String {
        match self.host(process) {
            Some(host) if !host.is_empty() => format!("process {process} ({host})"),
            _ => format!("process {process}"),
        }
    }

    fn host(&self, process: u32) -> Option<&str> {
        let joined = self.joined.get(&process).map(|member| &*member.host);
        joined.or_else(|| self.expected_hosts.get(process as usize).map(String::as_str))
    }

    /// A process that others wait for.
    pub fn missing(&self, process_index: u32) -> MissingProcess {
        MissingProcess {
            process_index,
            host: self.host(process_index).map(str::to_owned),
            waits_at: None,
            last_seen: self.last_seen(process_index),
        }
    }

    /// Where a process was seen last, if it has said.
    pub fn last_seen(&self, process: u32) -> Option<String> {
        self.joined.get(&process)?.progress.last_seen().map(|seen| seen.to_string())
    }

    /// A process has sent something, perhaps how far it is.
    pub fn hear(&mut self, process: u32, progress: Option<Progress>) {
        let Some(member) = self.joined.get_mut(&process) else { return };
        member.silent = 0;
        if let Some(progress) = progress {
            if !progress.is_at(&member.progress) {
                member.unchanged = 0;
            }
            member.progress = progress;
        }
    }

    /// A beat has passed.
    pub fn beat(&mut self, now: Instant) {
        for member in self.joined.values_mut() {
            member.silent = member.silent.saturating_add(1);
            member.unchanged = member.unchanged.saturating_add(1);
        }
        self.pace.push_back((now, self.step()));
        self.pace.drain(..self.pace.len().saturating_sub(PACE));
    }

    /// The step that all processes have come to.
    pub fn step(&self) -> u64 {
        self.active().map(|(_, member)| member.progress.step).min().unwrap_or_default()
    }

    /// Steps per second over the last beats.
    pub fn step_rate(&self) -> f64 {
        let (Some((start, first)), Some((end, last))) = (self.pace.front(), self.pace.back()) else { return 0.0 };
        let seconds = end.saturating_duration_since(*start).as_secs_f64();
        if seconds > 0.0 { last.saturating_sub(*first) as f64 / seconds } else { 0.0 }
    }

    /// Who has waited in a collective, or been silent, for this many beats, when some processes wait at `places` of the
    /// coordinator's.
    pub fn stall(
        &self,
        beats: u32,
        heartbeat: Heartbeat,
        places: impl FnOnce() -> BTreeMap<u32, Place>,
    ) -> Option<Stall> {
        let waited = |member: &Member| member.silent.max(if member.progress.waits { member.unchanged } else { 0 });
        let longest = self.active().map(|(_, member)| waited(member)).max().filter(|longest| *longest >= beats)?;
        let places = places();
        let (waiting, late): (Vec<_>, Vec<_>) = self.active().partition(|(process, member)| {
            let is_in_collective = member.progress.waits && member.progress.late_devices.is_empty();
            member.silent < SILENT && (is_in_collective || places.contains_key(process))
        });
        let mut text = String::new();
        for (process, member) in late.iter().take(DESCRIBED) {
            text += if text.is_empty() { "" } else { "; " };
            self.describe(&mut text, *process, member, heartbeat.interval);
        }
        if late.len() > DESCRIBED {
            let _ = write!(text, "; and {} more", late.len() - DESCRIBED);
        }
        let mut met: BTreeMap<String, Vec<(u32, &str)>> = BTreeMap::new();
        for (process, member) in waiting {
            let collective = member.progress.collective.as_deref().unwrap_or("a collective");
            let place = match places.get(&process) {
                Some(place) => format!("at {place}"),
                None => format!("in {collective} of step {}", member.progress.step),
            };
            met.entry(place).or_default().push((process, &member.host));
        }
        for (place, processes) in met.iter().take(DESCRIBED) {
            text += if text.is_empty() { "" } else { "; " };
            let verb = if processes.len() == 1 { "waits" } else { "wait" };
            let _ = write!(text, "{} {verb} {place}", ProcessList(processes));
        }
        Some(Stall { beats: longest, culprit: late.first().map(|(process, _)| *process), text })
    }

    fn describe(&self, text: &mut String, process: u32, member: &Member, interval: Duration) {
        let Progress { step, collective, late_devices, .. } = &member.progress;
        let name = self.name(process);
        let _ = match (collective, &late_devices[..]) {
            _ if member.silent >= SILENT => {
                let silent = Seconds(interval.saturating_mul(member.silent));
                let last = member.progress.last_seen().map(|seen| format!(", {seen}")).unwrap_or_default();
                write!(text, "{name} has been silent for {silent}{last}")
            }
            (Some(collective), [_, ..]) => {
                let devices: Vec<_> = late_devices.iter().map(u32::to_string).collect();
                let devices = devices.join(", ");
                write!(text, "device {devices} of {name} has not come to {collective} of step {step}")
            }
            _ if *step == 0 => match member.progress.last_seen() {
                Some(seen) => write!(text, "{name} was {seen}"),
                None => write!(text, "{name} has entered no step"),
            },
            _ => write!(text, "{name} last entered step {step}"),
        };
    }

    fn active(&self) -> impl Iterator<Item = (u32, &Member)> {
        let active = self.joined.iter().filter(|(_, member)| member.state == ProcessState::Active);
        active.map(|(process, member)| (*process, member))
    }

    /// How each of `process_count` processes is doing.
    pub fn status(
        &self,
        process_count: u32,
        heartbeat: Heartbeat,
        places: &BTreeMap<u32, Place>,
    ) -> Vec<ProcessStatus> {
        let of = |process_index| {
            let host = self.host(process_index).unwrap_or_default().to_owned();
            let Some(member) = self.joined.get(&process_index) else {
                return ProcessStatus { process_index, host, ..ProcessStatus::default() };
            };
            let Progress { phase, step, collective, waits, sent_bytes, device_count, .. } = member.progress.clone();
            ProcessStatus {
                process_index,
                host,
                state: member.state,
                slice: member.slice,
                device_count,
                phase,
                step,
                collective,
                waits,
                waits_at: places.get(&process_index).map(Place::to_string),
                sent_bytes,
                silent_seconds: match member.silent {
                    0..SILENT => 0.0,
                    beats => (heartbeat.interval * beats).as_secs_f64(),
                },
            }
        };
        (0..process_count).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: u32) -> Members {
        let mut members = Members::new(Vec::new());
        for process_index in 0..count {
            let host = format!("host-{}", ["a", "b", "c"][process_index as usize % 3]);
            let join = Join {
                version: String::new(),
                process_index,
                process_count: count,
                host,
                slice: 0,
                timeout: Duration::MAX,
            };
            members.insert(&join, ([127, 0, 0, 1], 1).into());
        }
        members
    }

    fn at(step: u64, collective: &str) -> Progress {
        Progress { step, collective: Some(collective.into()), waits: true, entered: step, ..Progress::default() }
    }

    fn beats(members: &mut Members, count: u32, silent: Option<u32>) {
        for _ in 0..count {
            members.beat(Instant::now());
            for process in (0..members.len() as u32).filter(|process| Some(*process) != silent) {
                members.hear(process, None);
            }
        }
    }

    fn stall(members: &Members, beats: u32) -> Option<String> {
        let heartbeat = Heartbeat { interval: Duration::from_millis(500), ..Heartbeat::default() };
        let places = BTreeMap::from([(3, Place::Barrier("compiled".into()))]);
        let stall = members.stall(beats, heartbeat, || places);
        stall.map(|stall| format!("{:?} after {}: {}", stall.culprit, stall.beats, stall.text))
    }

    #[test]
    fn who_is_late_is_named_with_where_the_others_wait() {
        let mut members = members(4);
        for process in [0, 2] {
            members.hear(process, Some(at(5, "all-reduce.3")));
        }
        members.hear(1, Some(Progress { waits: false, ..at(4, "all-reduce.7") }));
        beats(&mut members, 9, None);
        assert_eq!(stall(&members, 10), None);
        beats(&mut members, 1, None);
        insta::assert_snapshot!(stall(&members, 10).unwrap(), @"Some(1) after 10: process 1 (host-b) last entered step 4; process 3 (host-a) waits at barrier 'compiled'; process 0 (host-a), 2 (host-c) wait in all-reduce.3 of step 5");
        members.hear(0, Some(at(6, "all-reduce.3")));
        members.hear(2, Some(at(6, "all-reduce.3")));
        assert_eq!(stall(&members, 10), None);
    }

    #[test]
    fn silence_is_named_whatever_was_said_before() {
        let mut members = members(2);
        members.hear(0, Some(at(5, "all-reduce.3")));
        members.hear(1, Some(at(5, "all-reduce.3")));
        beats(&mut members, 10, Some(1));
        insta::assert_snapshot!(stall(&members, 10).unwrap(), @"Some(1) after 10: process 1 (host-b) has been silent for 5 s, last in all-reduce.3, step 5; process 0 (host-a) waits in all-reduce.3 of step 5");
        beats(&mut members, 1, None);
        members.hear(1, Some(at(6, "all-reduce.3")));
        insta::assert_snapshot!(stall(&members, 10).unwrap(), @"None after 11: process 0 (host-a) waits in all-reduce.3 of step 5; process 1 (host-b) waits in all-reduce.3 of step 6");
    }

    #[test]
    fn late_devices_and_processes_without_steps_are_named() {
        let mut members = members(3);
        members.hear(0, Some(at(1, "all-reduce")));
        members.hear(1, Some(Progress { late_devices: vec![2, 3], ..at(1, "all-reduce") }));
        members.hear(2, Some(Progress { phase: "compiling 'main'".into(), ..Progress::default() }));
        beats(&mut members, 10, None);
        insta::assert_snapshot!(stall(&members, 10).unwrap(), @"Some(1) after 10: device 2, 3 of process 1 (host-b) has not come to all-reduce of step 1; process 2 (host-c) was last seen compiling 'main'; process 0 (host-a) waits in all-reduce of step 1");
        members.set_state(0, ProcessState::Done);
        members.set_state(1, ProcessState::Done);
        assert_eq!(stall(&members, 10), None);
    }

    #[test]
    fn the_step_rate_is_that_of_the_slowest() {
        let mut members = members(2);
        let start = Instant::now();
        for second in 0..3 {
            members.hear(0, Some(at(10 * second + 7, "x")));
            members.hear(1, Some(at(10 * second + 1, "x")));
            members.beat(start + Duration::from_secs(second));
        }
        assert_eq!((members.step(), members.step_rate()), (21, 10.0));
    }
}
