//! All processes on one clock.

use serde::{Deserialize, Serialize};

use super::{Event, ProcessTrace};

/// How a process's clock relates to the coordinator's at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockSample {
    /// When, in nanoseconds of the process's clock.
    pub at: u64,
    /// What has to be added to the process's clock.
    pub offset: i64,
    /// By how much that may be wrong: half of the round trip.
    pub error: u64,
}

impl ClockSample {
    /// From an exchange with the coordinator: what this clock said when the question went out and when the answer came, and
    /// what the coordinator's said in between.
    pub fn of_ping(asked: u64, answered: u64, theirs: u64) -> ClockSample {
        let error = answered.saturating_sub(asked).div_ceil(2);
        let at = asked + error;
        ClockSample { at, offset: theirs.wrapping_sub(at) as i64, error }
    }
}

/// What all processes of a job have recorded, on one clock that begins with the first of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// By process index. Those that left nothing are missing.
    pub processes: Vec<ProcessTrace>,
    /// How many there were.
    pub process_count: u32,
    /// By how much times of two processes may be off, in nanoseconds.
    pub clock_error: u64,
}

impl Trace {
    /// Puts the processes' own records on the coordinator's clock.
    pub fn new(mut processes: Vec<ProcessTrace>, process_count: u32) -> Trace {
        processes.sort_by_key(|process| process.identity.process_index);
        processes.dedup_by_key(|process| process.identity.process_index);
        let coordinator = processes.iter().find(|process| process.identity.process_index == 0);
        let boot = coordinator.map_or(String::new(), |process| process.identity.boot.clone());
        for process in &mut processes {
            // One kernel has one clock. A container may have been given another one, which the samples show.
            let is_same = |sample: &ClockSample| sample.offset.unsigned_abs() <= sample.error;
            if !boot.is_empty() && process.identity.boot == boot && process.clock.iter().all(is_same) {
                process.clock.clear();
            }
        }
        let mut errors: Vec<u64> =
            processes.iter().map(|it| it.clock.iter().map(|sample| sample.error).max().unwrap_or(0)).collect();
        errors.sort_unstable();
        // The two worst, one against the other.
        let clock_error = errors.iter().rev().take(2).sum();
        for process in &mut processes {
            let clock = std::mem::take(&mut process.clock);
            shift(process, |time| time.wrapping_add_signed(offset(&clock, time)));
            process.clock = clock;
        }
        let first = processes.iter().filter_map(first_time).min().unwrap_or(0);
        for process in &mut processes {
            shift(process, |time| time.saturating_sub(first));
        }
        Trace { processes, process_count, clock_error }
    }

    /// Events and phases for which there was no room.
    pub fn dropped(&self) -> u64 {
        self.processes.iter().map(|process| process.dropped).sum()
    }

    /// The processes that left nothing.
    pub fn missing(&self) -> Vec<u32> {
        let is_there = |index| self.processes.iter().any(|process| process.identity.process_index == index);
        (0..self.process_count).filter(|index| !is_there(*index)).collect()
    }
}

/// What to add at a time: between samples a share of each, as clocks drift.
fn offset(samples: &[ClockSample], time: u64) -> i64 {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return 0 };
    if last.at <= first.at {
        return first.offset;
    }
    let share = time.wrapping_sub(first.at) as i64 as f64 / (last.at - first.at) as f64;
    first.offset + ((last.offset.wrapping_sub(first.offset)) as f64 * share.clamp(0.0, 1.0)) as i64
}

fn first_time(process: &ProcessTrace) -> Option<u64> {
    let phases = process.phases.iter().map(|phase| phase.start);
    phases.chain(process.events.iter().map(|event| event.times().0)).min()
}

fn shift(process: &mut ProcessTrace, by: impl Fn(u64) -> u64) {
    for phase in &mut process.phases {
        (phase.start, phase.end) = (by(phase.start), by(phase.end));
    }
    for event in &mut process.events {
        let (start, end) = event.times_mut();
        (*start, *end) = (by(*start), by(*end));
    }
}

impl Event {
    /// When it began and ended.
    pub fn times(&self) -> (u64, u64) {
        let mut copy = *self;
        let (start, end) = copy.times_mut();
        (*start, *end)
    }

    fn times_mut(&mut self) -> (&mut u64, &mut u64) {
        match self {
            Event::Step { start, end, .. }
            | Event::Call { start, end, .. }
            | Event::Collective { start, end, .. }
            | Event::Wait { start, end, .. } => (start, end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Identity, Phase};
    use super::*;

    fn process(process_index: u32, clock: Vec<ClockSample>, times: &[(u64, u64)]) -> ProcessTrace {
        let phase = |&(start, end): &(u64, u64)| Phase { name: "p".into(), thread: 0, start, end };
        ProcessTrace {
            identity: Identity { process_index, ..Identity::default() },
            clock,
            phases: times.iter().map(phase).collect(),
            ..ProcessTrace::default()
        }
    }

    #[test]
    fn a_ping_tells_the_offset_to_within_half_its_round_trip() {
        let sample = ClockSample::of_ping(1000, 1100, 51_050);
        assert_eq!(sample, ClockSample { at: 1050, offset: 50_000, error: 50 });
        assert_eq!(ClockSample::of_ping(51_000, 51_100, 1050).offset, -50_000);
    }

    #[test]
    fn processes_come_to_one_clock_that_begins_at_zero() {
        let drifting =
            vec![ClockSample { at: 1000, offset: -500, error: 4 }, ClockSample { at: 2000, offset: -600, error: 7 }];
        let trace = Trace::new(
            vec![process(2, drifting, &[(1000, 1500), (2000, 5000)]), process(0, Vec::new(), &[(400, 401)])],
            4,
        );
        let times = |index: usize| -> Vec<(u64, u64)> {
            trace.processes[index].phases.iter().map(|phase| (phase.start, phase.end)).collect()
        };
        assert_eq!(times(0), [(0, 1)]);
        assert_eq!(times(1), [(100, 550), (1000, 4000)]);
        assert_eq!((trace.clock_error, trace.missing()), (7, vec![1, 3]));
    }

    #[test]
    fn processes_of_one_kernel_have_one_clock() {
        let of_boot = |mut process: ProcessTrace| {
            process.identity.boot = "b".into();
            process
        };
        let sample = |offset| vec![ClockSample { at: 10, offset, error: 5 }];
        let first = of_boot(process(0, Vec::new(), &[(0, 1)]));
        for (offset, start, error) in [(5, 10, 0), (6, 16, 5)] {
            let trace = Trace::new(vec![first.clone(), of_boot(process(1, sample(offset), &[(10, 11)]))], 2);
            assert_eq!((trace.processes[1].phases[0].start, trace.clock_error), (start, error));
        }
    }
}
