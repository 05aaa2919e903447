//! Numbers of a job, from what its processes have recorded.

use std::collections::{BTreeMap, HashMap};

use crate::trace::{Event, ProcessTrace, Trace};

/// What the page shows.
#[derive(Debug, Default)]
pub struct Summary {
    /// In the order in which they began.
    pub steps: Vec<Step>,
    /// By global id.
    pub devices: Vec<DeviceTime>,
    /// Longest total time first.
    pub collectives: Vec<CollectiveTime>,
    /// `[process][other]`: the nanoseconds that a process waited for the last of a collective's processes.
    pub waits: Vec<Vec<u64>>,
}

/// An execution of a program on all processes.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub program: u32,
    /// From 0.
    pub run: u64,
    pub start: u64,
    /// When the last device was done.
    pub end: u64,
    /// The time from the start on a process until its last device was done, on the slowest process.
    pub duration: u64,
    /// That process.
    pub slowest: u32,
    /// The mean time that its devices were not in collectives.
    pub compute: u64,
}

/// What a device did in all steps, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceTime {
    pub id: u32,
    pub kind: String,
    /// Of its process.
    pub process: u32,
    /// In steps, and not in collectives.
    pub compute: u64,
    /// In collectives while some device had yet to come.
    pub waiting: u64,
    /// In collectives after that.
    pub moving: u64,
}

/// A collective instruction over all its calls.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveTime {
    pub name: String,
    pub opcode: String,
    pub bytes: u64,
    /// Devices of its largest group.
    pub ranks: usize,
    /// Calls of groups all of whose processes are known.
    pub calls: usize,
    /// Nanoseconds from when the last device had come until the last process was done: the median call.
    pub median: u64,
    /// Bytes per second of the median call.
    pub busbw: f64,
    /// Nanoseconds of all calls.
    pub total: u64,
}

/// A call of a group, put together of its processes.
#[derive(Default)]
struct Call {
    /// Process with when its last device had come, and when it was done.
    parts: Vec<(u32, u64, u64)>,
}

/// Program, execution, instruction, group, call of the execution.
type CallId = (u32, u64, u32, u32, u32);

impl Summary {
    pub fn new(trace: &Trace) -> Summary {
        let mut calls: BTreeMap<CallId, Call> = BTreeMap::new();
        for process in &trace.processes {
            for event in &process.events {
                if let Event::Collective { group, program, key, run, trip, start, gathered, end, .. } = *event {
                    let call = calls.entry((program, run, key, group, trip)).or_default();
                    call.parts.push((process.identity.process_index, start + u64::from(gathered), end));
                }
            }
        }
        let mut summary = Summary { steps: steps(trace), ..Summary::default() };
        let mut moving: HashMap<u32, u64> = HashMap::new();
        summary.waits = vec![vec![0; trace.process_count as usize]; trace.process_count as usize];
        let mut by_instruction: BTreeMap<(u32, u32), Vec<(u64, f64)>> = BTreeMap::new();
        let owners = owners(trace);
        for ((program, _, key, group, _), call) in &calls {
            let Some(collective) = trace.processes.iter().find_map(|it| it.collectives.get(&(*program, *key))) else {
                continue;
            };
            let Some(members) = collective.groups.get(*group as usize) else { continue };
            let Some(&(last, arrival, _)) = call.parts.iter().max_by_key(|(_, arrival, _)| arrival) else { continue };
            let mut processes: Vec<u32> = members.iter().filter_map(|device| owners.get(device).copied()).collect();
            processes.sort_unstable();
            processes.dedup();
            if processes.len() != call.parts.len() || members.iter().any(|device| !owners.contains_key(device)) {
                continue;
            }
            for &(process, own, end) in &call.parts {
                if let Some(waited) = summary.waits.get_mut(process as usize).and_then(|row| row.get_mut(last as usize))
                {
                    *waited += arrival - own;
                }
                for device in members.iter().filter(|device| owners.get(device) == Some(&process)) {
                    *moving.entry(*device).or_default() += end.saturating_sub(arrival);
                }
            }
            let end = call.parts.iter().map(|(.., end)| *end).max().unwrap_or(arrival);
            let factor = collective.busbw_factors.get(*group as usize).copied().unwrap_or(0.0);
            by_instruction.entry((*program, *key)).or_default().push((end.saturating_sub(arrival), factor));
        }
        summary.devices = devices(trace, &moving);
        for ((program, key), mut times) in by_instruction {
            let found = trace.processes.iter().find_map(|it| it.collectives.get(&(program, key)));
            let Some(collective) = found else { continue };
            times.sort_by_key(|(time, _)| *time);
            let (median, factor) = times[(times.len() - 1) / 2];
            let seconds = median.max(1) as f64 / 1e9;
            summary.collectives.push(CollectiveTime {
                name: collective.name.clone(),
                opcode: collective.opcode.clone(),
                bytes: collective.bytes,
                ranks: collective.groups.iter().map(Vec::len).max().unwrap_or(0),
                calls: times.len(),
                median,
                busbw: collective.bytes as f64 * factor / seconds,
                total: times.iter().map(|(time, _)| time).sum(),
            });
        }
        summary.collectives.sort_by_key(|collective| std::cmp::Reverse(collective.total));
        summary
    }

    /// The process that the others waited for longest, and for how long together.
    pub fn slowest(&self) -> Option<(usize, u64)> {
        let waited_for = |process: usize| self.waits.iter().map(|row| row[process]).sum::<u64>();
        let all = (0..self.waits.len()).map(|process| (process, waited_for(process)));
        all.max_by_key(|(_, waited)| *waited).filter(|(_, waited)| *waited > 0)
    }

    /// The number of the program that took most time.
    pub fn main_program(&self) -> Option<u32> {
        let mut times: BTreeMap<u32, u64> = BTreeMap::new();
        for step in &self.steps {
            *times.entry(step.program).or_default() += step.duration;
        }
        times.into_iter().max_by_key(|(_, time)| *time).map(|(program, _)| program)
    }
}

/// The process of every device.
fn owners(trace: &Trace) -> HashMap<u32, u32> {
    let of = |process: &ProcessTrace| {
        let identity = &process.identity;
        let devices = identity.first_device..identity.first_device + identity.devices.len() as u32;
        devices.map(|device| (device, process.identity.process_index)).collect::<Vec<_>>()
    };
    trace.processes.iter().flat_map(of).collect()
}

/// The time that each local device spent in the collectives of each execution.
fn in_collectives(process: &ProcessTrace) -> HashMap<(u32, u64, u32), u64> {
    let mut times = HashMap::new();
    for event in &process.events {
        if let Event::Call { device, program, run, start, end, .. } = *event {
            *times.entry((program, run, device)).or_default() += end.saturating_sub(start);
        }
    }
    times
}

fn steps(trace: &Trace) -> Vec<Step> {
    let mut steps: BTreeMap<(u32, u64), Step> = BTreeMap::new();
    for process in &trace.processes {
        let in_collectives = in_collectives(process);
        let mut own: BTreeMap<(u32, u64), (u64, u64, u64, u64)> = BTreeMap::new();
        for event in &process.events {
            if let Event::Step { device, program, run, start, end } = *event {
                let busy = in_collectives.get(&(program, run, device)).copied().unwrap_or(0);
                let (first, last, compute, devices) = own.entry((program, run)).or_insert((start, end, 0, 0));
                (*first, *last) = ((*first).min(start), (*last).max(end));
                *compute += (end - start).saturating_sub(busy);
                *devices += 1;
            }
        }
        for ((program, run), (start, end, compute, devices)) in own {
            let duration = end - start;
            let slowest = process.identity.process_index;
            let new = Step { program, run, start, end, duration, slowest, compute: compute / devices };
            let step = steps.entry((program, run)).or_insert_with(|| new.clone());
            if duration > step.duration {
                *step = Step { start: step.start, end: step.end, ..new };
            }
            (step.start, step.end) = (step.start.min(start), step.end.max(end));
        }
    }
    let mut steps: Vec<Step> = steps.into_values().collect();
    steps.sort_by_key(|step| step.start);
    steps
}

fn devices(trace: &Trace, moving: &HashMap<u32, u64>) -> Vec<DeviceTime> {
    let mut all = Vec::new();
    for process in &trace.processes {
        let identity = &process.identity;
        let mut in_steps: HashMap<u32, u64> = HashMap::new();
        for event in &process.events {
            if let Event::Step { device, start, end, .. } = *event {
                *in_steps.entry(device).or_default() += end - start;
            }
        }
        let mut busy: HashMap<u32, u64> = HashMap::new();
        for ((_, _, device), time) in in_collectives(process) {
            *busy.entry(device).or_default() += time;
        }
        for (local, kind) in (0..).zip(&identity.devices) {
            let id = identity.first_device + local;
            let time = |of: &HashMap<u32, u64>, key: u32| of.get(&key).copied().unwrap_or(0);
            let busy = time(&busy, local);
            let moving = time(moving, id).min(busy);
            all.push(DeviceTime {
                id,
                kind: kind.clone(),
                process: identity.process_index,
                compute: time(&in_steps, local).saturating_sub(busy),
                waiting: busy - moving,
                moving,
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Collective, Identity};

    /// Two processes with a device each: an all-reduce to which process 1 comes 30 ns late, and which takes 20 ns then.
    fn trace() -> Trace {
        let process = |process_index: u32, arrival: u64, end: u64| ProcessTrace {
            identity: Identity {
                process_index,
                first_device: process_index,
                devices: vec!["cpu".into()],
                ..Identity::default()
            },
            events: vec![
                Event::Call { device: 0, program: 0, key: 1, run: 0, start: arrival, end },
                Event::Collective {
                    lane: 0,
                    group: 0,
                    program: 0,
                    key: 1,
                    run: 0,
                    trip: 0,
                    start: arrival,
                    gathered: 0,
                    end,
                    exchanged: 0,
                },
                Event::Step { device: 0, program: 0, run: 0, start: 100, end: end + 10 },
            ],
            collectives: [(
                (0, 1),
                Collective {
                    name: "all-reduce".into(),
                    opcode: "all-reduce".into(),
                    bytes: 40,
                    groups: vec![vec![0, 1]],
                    busbw_factors: vec![1.0],
                },
            )]
            .into(),
            ..ProcessTrace::default()
        };
        Trace { processes: vec![process(0, 110, 160), process(1, 140, 158)], process_count: 2, clock_error: 0 }
    }

    #[test]
    fn time_is_divided_among_compute_waiting_and_moving() {
        let summary = Summary::new(&trace());
        let times: Vec<_> = summary.devices.iter().map(|it| (it.id, it.compute, it.waiting, it.moving)).collect();
        assert_eq!(times, [(0, 20, 30, 20), (1, 50, 0, 18)]);
        assert_eq!((&summary.waits, summary.slowest()), (&vec![vec![0, 30], vec![0, 0]], Some((1, 30))));
        let Step { duration, slowest, compute, .. } = summary.steps[0];
        assert_eq!((duration, slowest, compute), (70, 0, 20));
        let collective = &summary.collectives[0];
        assert_eq!((collective.calls, collective.median, collective.total), (1, 20, 20));
        // 40 bytes in 20 ns.
        assert!((collective.busbw - 2e9).abs() < 1.0);
    }

    #[test]
    fn calls_of_processes_that_left_nothing_do_not_count() {
        let mut trace = trace();
        trace.processes.pop();
        let summary = Summary::new(&trace);
        assert!(summary.collectives.is_empty() && summary.slowest().is_none());
        assert_eq!((summary.devices.len(), summary.steps.len()), (1, 1));
    }
}
