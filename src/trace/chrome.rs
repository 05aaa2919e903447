//! The trace in Chrome's JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

use std::fmt;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Collective, Event, ProcessTrace, Trace};

/// Devices of a group that are named one by one.
const LISTED: usize = 16;

/// The numbers of a process's lines, in the order in which they are shown.
fn controller(thread: u32) -> u64 {
    1 + u64::from(thread)
}

fn device_line(device: u32) -> u64 {
    1_000_000 + 2 * u64::from(device)
}

fn collectives_line(lane: u32) -> u64 {
    device_line(lane) + 1
}

/// Nanoseconds, as the microseconds that the format wants.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Text in JSON's quotes.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self.0).map_err(|_| fmt::Error)?)
    }
}

/// Writes a trace.
///
/// A process is a process there; its lines are the controller's phases, each device with its steps and the collectives in
/// them, and the collectives that the process carried out, one line for those that begin with the same device, with the waits
/// in them.
pub fn write_json(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let metadata = json!({
        "tool": concat!("spmd-run ", env!("CARGO_PKG_VERSION")),
        "process_count": trace.process_count,
        "processes_missing": trace.missing(),
        "clock_error_us": trace.clock_error as f64 / 1e3,
        "clock": "times of different processes are on process 0's clock, and off against each other by at most clock_error_us",
        "events_dropped": trace.dropped(),
        "waited_us": trace.processes.iter().map(waited).collect::<Value>(),
    });
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{metadata},\"traceEvents\":[")?;
    let mut out = Events { out, is_first: true };
    for process in &trace.processes {
        out.process(process)?;
    }
    out.out.write_all(b"\n]}\n")
}

/// For whom a process waited, and for how long.
fn waited(process: &ProcessTrace) -> Value {
    let peers = process.waited.iter().enumerate().filter(|(_, time)| **time > 0);
    let peers = peers.map(|(peer, time)| (peer.to_string(), json!(*time as f64 / 1e3))).collect();
    json!({ "process": process.identity.process_index, "for": Value::Object(peers) })
}

struct Events<'a, W> {
    out: &'a mut W,
    is_first: bool,
}

impl<W: Write> Events<'_, W> {
    fn event(&mut self, event: fmt::Arguments<'_>) -> io::Result<()> {
        let separator = if std::mem::take(&mut self.is_first) { "\n" } else { ",\n" };
        write!(self.out, "{separator}{{{event}}}")
    }

    fn name(&mut self, kind: &str, pid: u32, tid: u64, name: &str) -> io::Result<()> {
        let args = json!({ "name": name });
        self.event(format_args!(r#""ph":"M","name":"{kind}","pid":{pid},"tid":{tid},"args":{args}"#))
    }

    /// Names a line and puts it in its place.
    fn line(&mut self, pid: u32, tid: u64, name: &str) -> io::Result<()> {
        self.name("thread_name", pid, tid, name)?;
        self.event(format_args!(
            r#""ph":"M","name":"thread_sort_index","pid":{pid},"tid":{tid},"args":{{"sort_index":{tid}}}"#
        ))
    }

    fn slice(
        &mut self,
        (pid, tid): (u32, u64),
        category: &str,
        name: &str,
        (start, end): (u64, u64),
        args: fmt::Arguments<'_>,
    ) -> io::Result<()> {
        let (start, duration, name) = (Micros(start), Micros(end.saturating_sub(start)), Quoted(name));
        self.event(format_args!(
            r#""ph":"X","cat":"{category}","name":{name},"pid":{pid},"tid":{tid},"ts":{start},"dur":{duration},"args":{{{args}}}"#
        ))
    }

    fn process(&mut self, process: &ProcessTrace) -> io::Result<()> {
        let identity = &process.identity;
        let pid = identity.process_index;
        self.name("process_name", pid, 0, &format!("process {pid} on {}, slice {}", identity.host, identity.slice))?;
        self.event(format_args!(
            r#""ph":"M","name":"process_sort_index","pid":{pid},"tid":0,"args":{{"sort_index":{pid}}}"#
        ))?;
        self.lines(process)?;
        for phase in &process.phases {
            let line = (pid, controller(phase.thread));
            self.slice(line, "phase", &phase.name, (phase.start, phase.end), format_args!(""))?;
        }
        for event in &process.events {
            self.recorded(process, event)?;
        }
        Ok(())
    }

    fn lines(&mut self, process: &ProcessTrace) -> io::Result<()> {
        let pid = process.identity.process_index;
        let mut threads: Vec<u32> = process.phases.iter().map(|phase| phase.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        for (index, thread) in threads.into_iter().enumerate() {
            let name = if index == 0 { "controller".to_owned() } else { format!("controller, thread {thread}") };
            self.line(pid, controller(thread), &name)?;
        }
        let mut lanes: Vec<u32> = process
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Collective { lane, .. } => Some(*lane),
                _ => None,
            })
            .collect();
        lanes.sort_unstable();
        lanes.dedup();
        for (local, kind) in (0..).zip(&process.identity.devices) {
            let device = process.identity.first_device + local;
            self.line(pid, device_line(local), &format!("device {device} ({kind})"))?;
            if lanes.contains(&local) {
                self.line(pid, collectives_line(local), &format!("collectives of device {device}'s groups"))?;
            }
        }
        Ok(())
    }

    fn recorded(&mut self, process: &ProcessTrace, event: &Event) -> io::Result<()> {
        let pid = process.identity.process_index;
        let first_device = process.identity.first_device;
        let times = event.times();
        match *event {
            Event::Step { device, program, run, .. } => {
                let program = Quoted(process.programs.get(&program).map_or("", String::as_str));
                let (step, line) = (run + 1, (pid, device_line(device)));
                let args = format_args!(r#""program":{program},"step":{step},"device":{}"#, first_device + device);
                self.slice(line, "step", &format!("step {step}"), times, args)
            }
            Event::Call { device, program, key, run, .. } => {
                let name = process.collectives.get(&(program, key)).map_or("collective", |it| &*it.name);
                let args = format_args!(r#""step":{},"device":{}"#, run + 1, first_device + device);
                self.slice((pid, device_line(device)), "call", name, times, args)
            }
            Event::Collective { lane, group, program, key, run, trip, start, gathered, end, exchanged } => {
                let Some(collective) = process.collectives.get(&(program, key)) else { return Ok(()) };
                let Collective { name, opcode, bytes, groups, .. } = collective;
                let group = groups.get(group as usize).map_or(json!([]), |devices| listed(devices));
                // Before that, the first of its devices may still be in another collective of this line.
                let begin = start + u64::from(gathered);
                let combined = end.saturating_sub(begin + exchanged);
                let args = format_args!(
                    r#""op":"{opcode}","bytes":{bytes},"group":{group},"step":{},"call":{trip},"gathered_us":{},"combined_us":{},"exchanged_us":{}"#,
                    run + 1,
                    Micros(gathered.into()),
                    Micros(combined),
                    Micros(exchanged)
                );
                self.slice((pid, collectives_line(lane)), "collective", name, (begin, end), args)
            }
            Event::Wait { lane, peer, .. } => {
                let args = format_args!(r#""process":{peer}"#);
                self.slice((pid, collectives_line(lane)), "wait", &format!("wait for process {peer}"), times, args)
            }
        }
    }
}

/// A group's devices, or how many there are.
fn listed(devices: &[u32]) -> Value {
    match devices {
        [first, .., last] if devices.len() > LISTED => json!(format!("{first}, …, {last} ({} devices)", devices.len())),
        _ => json!(devices),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Identity, Phase};
    use super::*;

    #[test]
    fn the_format() {
        let identity = Identity {
            process_index: 1,
            process_count: 2,
            host: "host-\"b\"".into(),
            first_device: 2,
            devices: vec!["cpu".into(), "cpu".into()],
            ..Identity::default()
        };
        let collective = Collective {
            name: "all-reduce.3".into(),
            opcode: "all-reduce".into(),
            bytes: 64,
            groups: vec![vec![0, 1, 2, 3]],
            busbw_factors: vec![1.5],
        };
        let (program, key, run) = (0, 7, 4);
        let process = ProcessTrace {
            identity,
            phases: vec![Phase { name: "compile".into(), thread: 0, start: 0, end: 1_000_000 }],
            events: vec![
                Event::Wait { lane: 0, peer: 0, start: 1_002_000, end: 1_002_500 },
                Event::Collective {
                    lane: 0,
                    group: 0,
                    program,
                    key,
                    run,
                    trip: 0,
                    start: 1_000_500,
                    gathered: 250,
                    end: 1_003_000,
                    exchanged: 1_000,
                },
                Event::Call { device: 1, program, key, run, start: 1_000_500, end: 1_003_000 },
                Event::Step { device: 1, program, run, start: 1_000_000, end: 1_004_001 },
            ],
            programs: [(0, "train".to_owned())].into(),
            collectives: [((0, 7), collective)].into(),
            waited: vec![500, 0],
            ..ProcessTrace::default()
        };
        let mut json = Vec::new();
        write_json(&Trace::new(vec![process], 2), &mut json).unwrap();
        let text = String::from_utf8(json).unwrap();
        serde_json::from_str::<Value>(&text).unwrap();
        insta::assert_snapshot!(text);
    }
}
