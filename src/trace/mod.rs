//! What the processes of a job do and when: recorded while they do it, put together when they are done.
//!
//! Recording is off until [`Files::start_recording`], and costs a branch until then. Devices and the engine push events of
//! fixed size into a ring that keeps the newest; the few phases of a process (compiling, transfers, …) are kept apart, the
//! first of them. Times are the process's own, of a clock that only it has; a [`ProcessTrace`] comes with samples of how
//! that clock relates to the coordinator's, and a [`Trace`] has all processes on one clock.

mod chrome;
mod clock;
mod event;
mod ring;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub use chrome::write_json;
pub use clock::{ClockSample, Trace};
pub use event::Event;
use ring::Ring;

/// Events that are kept of one process, at most.
const MOST_EVENTS: usize = 1 << 18;
/// Events that are kept of all processes of a job.
const ALL_EVENTS: usize = 1 << 21;
/// Phases that are kept of one process.
const MOST_PHASES: usize = 4096;
/// Collectives whose names are kept.
const MOST_COLLECTIVES: usize = 1 << 16;
/// A wait that is shorter is counted, and no event.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);
/// Waits of one collective that are events; the others are only counted.
const MOST_WAITS: u32 = 32;

/// Something that a process does once in a while, as in `compile`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// What it does.
    pub name: String,
    /// A number for the thread that does it, from 0.
    pub thread: u32,
    /// Nanoseconds.
    pub start: u64,
    /// Nanoseconds.
    pub end: u64,
}

/// A collective instruction of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Collective {
    /// Its name.
    pub name: String,
    /// As in `all-reduce`.
    pub opcode: String,
    /// Bytes of the larger one of a device's operands and results, as nccl-tests counts them.
    pub bytes: u64,
    /// Its groups of global device ids.
    pub groups: Vec<Vec<u32>>,
    /// For each group, the bus bandwidth as a multiple of the algorithm bandwidth.
    pub busbw_factors: Vec<f64>,
}

/// Who recorded something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// From 0.
    pub process_index: u32,
    /// Of the whole job.
    pub process_count: u32,
    /// From 0.
    pub slice: u32,
    /// Its host's name.
    pub host: String,
    /// What the host's kernel calls the time since it was started; empty if it does not say.
    pub boot: String,
    /// Its number there.
    pub pid: u32,
    /// Global id of its first device.
    pub first_device: u32,
    /// The kinds of its devices; empty if it did not come to know them.
    pub devices: Vec<String>,
}

/// What one process has recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessTrace {
    /// Who it is.
    pub identity: Identity,
    /// How its clock relates to the coordinator's, oldest first; empty for the coordinator's process itself.
    pub clock: Vec<ClockSample>,
    /// What it did.
    pub phases: Vec<Phase>,
    /// What its devices did, and its collectives; oldest first.
    pub events: Vec<Event>,
    /// The names of programs.
    pub programs: BTreeMap<u32, String>,
    /// Collectives by program and key.
    pub collectives: BTreeMap<(u32, u32), Collective>,
    /// For each process, the nanoseconds that collectives have waited for it.
    pub waited: Vec<u64>,
    /// Events and phases for which there was no room.
    pub dropped: u64,
}

/// Takes note of what this process does.
pub struct Recorder {
    ring: Ring,
    waited: Box<[AtomicU64]>,
    rest: Mutex<Rest>,
}

/// What changes rarely.
#[derive(Default)]
struct Rest {
    identity: Identity,
    clock: Vec<ClockSample>,
    phases: Vec<Phase>,
    programs: BTreeMap<u32, String>,
    collectives: BTreeMap<(u32, u32), Collective>,
    dropped: u64,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// The files in which process 0 shows how a job went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The whole trace, see [`write_json`].
    pub trace: Option<PathBuf>,
    /// A page for people.
    pub report: Option<PathBuf>,
}

impl Files {
    /// Those that are wanted.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.trace.iter().chain(&self.report).map(PathBuf::as_path)
    }

    /// Whether there are any.
    pub fn are_wanted(&self) -> bool {
        self.paths().next().is_some()
    }

    /// Has this process record what it does, if any are wanted.
    pub fn start_recording(&self, process_index: u32, process_count: u32) {
        if self.are_wanted() {
            RECORDER.get_or_init(|| Recorder::new(process_index, process_count));
        }
    }

    /// Those of one process that cannot reach process 0: `run.process-2.json`.
    pub fn of_process(&self, index: u32) -> Files {
        let of_process = |path: &PathBuf| {
            let extension = path.extension().map(OsStr::to_os_string).unwrap_or_default();
            let mut name = path.file_stem().map(OsStr::to_os_string).unwrap_or_default();
            name.push(format!(".process-{index}."));
            name.push(extension);
            path.with_file_name(name)
        };
        Files { trace: self.trace.as_ref().map(of_process), report: self.report.as_ref().map(of_process) }
    }
}

/// What records, if anything does.
pub fn recorder() -> Option<&'static Recorder> {
    RECORDER.get()
}

/// Nanoseconds of the host's clock that only ever goes forward.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Records a phase from now until the result is dropped.
#[must_use = "it lasts until it is dropped"]
pub fn phase(name: impl Into<String>) -> Option<RunningPhase> {
    let recorder = recorder()?;
    let index = recorder.begin(Phase { name: name.into(), thread: thread_number(), start: now(), end: u64::MAX })?;
    Some(RunningPhase { recorder, index })
}

/// A phase that is not over.
pub struct RunningPhase {
    recorder: &'static Recorder,
    index: usize,
}

impl Drop for RunningPhase {
    fn drop(&mut self) {
        if let Some(phase) = self.recorder.rest().phases.get_mut(self.index) {
            phase.end = now();
        }
    }
}

/// Threads that record phases are few.
fn thread_number() -> u32 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed) as u32);
    NUMBER.with(|number| *number)
}

impl Recorder {
    fn new(process_index: u32, process_count: u32) -> Recorder {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let pid = std::process::id();
        let identity = Identity { process_index, process_count, pid, boot, ..Identity::default() };
        Recorder {
            ring: Ring::new(MOST_EVENTS.min(ALL_EVENTS / process_count.max(1) as usize)),
            waited: (0..process_count).map(|_| AtomicU64::new(0)).collect(),
            rest: Mutex::new(Rest { identity, ..Rest::default() }),
        }
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells more of who this process is.
    pub fn identify(&self, with: impl FnOnce(&mut Identity)) {
        with(&mut self.rest().identity);
    }

    /// Adds a sample of the coordinator's clock.
    pub fn add_clock(&self, sample: ClockSample) {
        self.rest().clock.push(sample);
    }

    fn begin(&self, phase: Phase) -> Option<usize> {
        let mut rest = self.rest();
        if rest.phases.len() >= MOST_PHASES {
            rest.dropped += 1;
            return None;
        }
        rest.phases.push(phase);
        Some(rest.phases.len() - 1)
    }

    /// Gives a program a name.
    pub fn name_program(&self, program: u32, name: &str) {
        let mut rest = self.rest();
        if rest.programs.len() < MOST_COLLECTIVES {
            rest.programs.insert(program, name.to_owned());
        }
    }

    /// Tells what a program's collective `key` is.
    pub fn name_collective(&self, program: u32, key: u32, collective: Collective) {
        let mut rest = self.rest();
        if rest.collectives.len() < MOST_COLLECTIVES {
            rest.collectives.insert((program, key), collective);
        }
    }

    /// Adds an event. Takes no lock and makes no system call.
    pub fn push(&self, event: &Event) {
        self.ring.push(event.to_words());
    }

    /// What there is so far. Phases that are not over end now.
    pub fn read(&self) -> ProcessTrace {
        let (events, dropped) = self.ring.read();
        let rest = self.rest();
        ProcessTrace {
            identity: rest.identity.clone(),
            clock: rest.clock.clone(),
            phases: rest.phases.iter().map(|phase| Phase { end: phase.end.min(now()), ..phase.clone() }).collect(),
            events: events.into_iter().filter_map(Event::of_words).collect(),
            programs: rest.programs.clone(),
            collectives: rest.collectives.clone(),
            waited: self.waited.iter().map(|time| time.load(Ordering::Relaxed)).collect(),
            dropped: dropped + rest.dropped,
        }
    }
}

/// Up to this size, giving a message away takes about as long as looking at the clock.
const SMALL: usize = 16 << 10;

/// How long one call of a collective exchanged data with other processes. Used by one thread at a time, which looks at the
/// clock no more than it has to.
#[derive(Clone, Debug, Default)]
pub struct ExchangeTimes {
    /// The local device on whose line waits are drawn.
    lane: u32,
    nanoseconds: Cell<u64>,
    waits: Cell<u32>,
    /// The step whose messages have been seen to arrive, and when the last one had.
    arrived: Cell<Option<(u32, u64)>>,
}

impl ExchangeTimes {
    /// For a call of a group whose first local device is this one.
    pub fn new(lane: u32) -> ExchangeTimes {
        ExchangeTimes { lane, ..ExchangeTimes::default() }
    }

    /// The local device on whose line waits are drawn.
    pub fn lane(&self) -> u32 {
        self.lane
    }

    /// Nanoseconds in total.
    pub fn nanoseconds(&self) -> u64 {
        self.nanoseconds.get()
    }

    fn add(&self, nanoseconds: u64) {
        self.nanoseconds.set(self.nanoseconds.get() + nanoseconds);
    }

    /// Times something that gives so many bytes away.
    pub fn sending<R>(&self, bytes: usize, send: impl FnOnce() -> R) -> R {
        if bytes <= SMALL {
            return send();
        }
        let start = now();
        let result = send();
        self.add(now() - start);
        result
    }

    /// Times something that looks for a moment whether a message of a step has come, and tells that.
    pub fn looking(&self, recorder: &Recorder, peer: u32, step: u32, look: impl FnOnce() -> bool) -> bool {
        let start = self.arrived.get().map_or_else(now, |(_, last)| last);
        let is_there = look();
        let end = now();
        self.arrived.set(is_there.then_some((step, end)));
        self.wait(recorder, peer, start, end);
        is_there
    }

    /// Times something that waits for a message of a step. It tells when it had its data, if it goes on to do something with
    /// it.
    pub fn taking<R>(
        &self,
        recorder: &Recorder,
        peer: u32,
        step: u32,
        take: impl FnOnce(Option<&Cell<u64>>) -> R,
    ) -> R {
        if self.arrived.get().is_some_and(|(arrived, _)| arrived == step) {
            return take(None);
        }
        let start = now();
        let arrived = Cell::new(0);
        let result = take(Some(&arrived));
        let end = if arrived.get() == 0 { now() } else { arrived.get() };
        self.wait(recorder, peer, start, end);
        result
    }

    /// Times something that waits for a process.
    pub fn waiting<R>(&self, recorder: &Recorder, peer: u32, wait: impl FnOnce() -> R) -> R {
        let start = now();
        let result = wait();
        self.wait(recorder, peer, start, now());
        result
    }

    fn wait(&self, recorder: &Recorder, peer: u32, start: u64, end: u64) {
        let waited = end - start;
        self.add(waited);
        if let Some(all) = recorder.waited.get(peer as usize) {
            all.fetch_add(waited, Ordering::Relaxed);
        }
        if waited >= SHORTEST_WAIT.as_nanos() as u64 && self.waits.get() < MOST_WAITS {
            self.waits.set(self.waits.get() + 1);
            recorder.push(&Event::Wait { lane: self.lane, peer, start, end });
        }
    }
}
