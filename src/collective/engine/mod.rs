mod divergence;
mod instruction;
mod run;
mod times;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::transport::{Transport, TransportError};

use super::buffer::{Input, Output};
use super::cluster::Cluster;
use super::error::CollectiveError;
use super::exchange::InstanceId;
use super::group::World;
use super::scratch::ScratchPool;
use super::spec::CollectiveSpec;
pub(super) use instruction::ONE_STEP_LIMIT;
use instruction::{Instruction, LocalGroup, Pace};
use times::Times;

/// Limits of a [`Communicator`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a collective waits for participants. One limit for all of them; arriving late is no error before it.
    pub timeout: Duration,
}

impl Default for Limits {
    /// Ten minutes: enough for a process that compiles while the others wait.
    fn default() -> Limits {
        Limits { timeout: Duration::from_secs(600) }
    }
}

/// Runs the collectives of one job on one process. Dropping it fails the calls in flight.
pub struct Communicator {
    shared: Arc<Shared>,
}

/// The collectives of one program on this process. Made by [`Communicator::program`].
pub struct ProgramCollectives {
    shared: Arc<Shared>,
    program: Arc<Program>,
}

struct Program {
    id: u64,
    instructions: Map<u32, Arc<Instruction>>,
}

/// Keys are ours, not a stranger's.
type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

type Done = Box<dyn FnOnce(Result<(), CollectiveError>) + Send>;

/// One device's call.
pub(super) struct Call {
    pub rank: usize,
    pub args: Vec<Input>,
    pub results: Vec<Output>,
}

/// A call of a whole group, as far as its local devices have arrived.
struct Instance {
    id: InstanceId,
    instruction: Arc<Instruction>,
    /// In rank order.
    calls: Vec<Call>,
    /// Device and what lets it go on, in the same order.
    waiting: Vec<(u32, Done)>,
    /// When the first of them did.
    since: Instant,
    times: Option<Times>,
}

/// Whether the processes of an island, a slice or else a host, act together towards other islands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Where messages are long enough for it; or where it is sooner over, by [`Communicator::with_cluster`].
    #[default]
    Auto,
    /// Never: every process exchanges data with every other one.
    Flat,
    /// Always, where there are several islands and some have several processes.
    Hierarchical,
}

/// What decides about the algorithm of a collective, alike on every process.
#[derive(Debug)]
enum Choice {
    Given(Algorithm),
    /// Whichever is sooner over there.
    Predicted(Cluster),
}

/// How much of a collective is to be done.
#[derive(Clone, Copy)]
enum Share {
    All,
    /// What needs no other process.
    FirstHalf,
    /// What is left after that.
    SecondHalf,
}

struct Shared {
    world: World,
    /// The process of every device.
    processes: Vec<u32>,
    /// A number for the island of every process: its slice if there are several, else its host.
    islands: Vec<u32>,
    choice: Choice,
    transport: Option<Arc<dyn Transport>>,
    limits: Limits,
    state: Mutex<State>,
    work: Condvar,
    timer: Condvar,
    scratch: ScratchPool,
    /// Bytes that were sent to other processes.
    sent: AtomicU64,
}

/// Where a process is in its collectives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The instruction that a local device has entered and not left or, without one, that it entered last.
    pub instruction: Option<String>,
    /// Whether it has not been left.
    pub waits: bool,
    /// Global ids of the local devices that the others wait for there.
    pub late_devices: Vec<u32>,
    /// How often local devices have entered a collective.
    pub entered: u64,
    /// Bytes sent to other processes.
    pub sent_bytes: u64,
}

/// What engine threads do.
enum Job {
    /// Every local member of the group is here.
    Run(Instance, Share),
    /// A call has come to its end.
    Return(Done, Result<(), CollectiveError>),
}

#[derive(Default)]
struct State {
    failed: Option<CollectiveError>,
    closed: bool,
    /// Per local device: the call it has not returned from.
    current: Vec<Option<InstanceId>>,
    /// The call that was entered last.
    last: Option<InstanceId>,
    entered: u64,
    gathering: Map<InstanceId, Instance>,
    ready: VecDeque<Job>,
    programs: HashMap<u64, Weak<Program>>,
    used_program_ids: HashSet<u64>,
    idle_threads: usize,
    threads: Vec<JoinHandle<()>>,
    has_timer: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Communicator {
    /// A communicator between the processes of `world`. A single process needs no transport.
    pub fn new(
        world: World,
        transport: Option<Arc<dyn Transport>>,
        limits: Limits,
    ) -> Result<Communicator, CollectiveError> {
        Communicator::with_algorithm(world, transport, limits, Algorithm::Auto)
    }

    /// As [`new`](Self::new), with collectives between islands done as `algorithm` says, the same on every process.
    pub fn with_algorithm(
        world: World,
        transport: Option<Arc<dyn Transport>>,
        limits: Limits,
        algorithm: Algorithm,
    ) -> Result<Communicator, CollectiveError> {
        Communicator::open(world, transport, limits, Choice::Given(algorithm))
    }

    /// As [`new`](Self::new), with the algorithm of each collective between islands that is sooner over on this cluster.
    pub fn with_cluster(
        world: World,
        transport: Option<Arc<dyn Transport>>,
        limits: Limits,
        cluster: Cluster,
    ) -> Result<Communicator, CollectiveError> {
        Communicator::open(world, transport, limits, Choice::Predicted(cluster))
    }

    fn open(
        world: World,
        transport: Option<Arc<dyn Transport>>,
        limits: Limits,
        choice: Choice,
    ) -> Result<Communicator, CollectiveError> {
        world.check()?;
        let here = (world.process_index, world.devices_per_process.len());
        let there = transport.as_ref().map_or((0, 1), |t| (t.process_index(), t.process_count() as usize));
        if here != there {
            return Err(CollectiveError::InvalidWorld(format!(
                "this is process {} of {}, but process {} of {} for the transport",
                here.0, here.1, there.0, there.1
            )));
        }
        let state = State { current: vec![None; world.local_device_count() as usize], ..State::default() };
        let shared = Arc::new(Shared {
            processes: world.processes(),
            islands: match choice {
                Choice::Given(Algorithm::Flat) => Vec::new(),
                _ => islands(&world.slices, transport.as_deref()),
            },
            choice,
            world,
            transport,
            limits,
            state: Mutex::new(state),
            work: Condvar::new(),
            timer: Condvar::new(),
            scratch: ScratchPool::default(),
            sent: AtomicU64::new(0),
        });
        if let Some(transport) = &shared.transport {
            let shared = Arc::downgrade(&shared);
            transport.on_abort(Box::new(move |error| {
                if let Some(shared) = shared.upgrade() {
                    shared.fail(remote_error(error));
                }
            }));
        }
        Ok(Communicator { shared })
    }

    /// Registers a program's collectives. `id` is the same on every process and never used for another program; the
    /// specs are the same on every process.
    pub fn program(&self, id: u64, specs: Vec<CollectiveSpec>) -> Result<Arc<ProgramCollectives>, CollectiveError> {
        let mut instructions = Map::default();
        for spec in specs {
            let key = spec.key;
            let Shared { world, processes, islands, choice, .. } = &*self.shared;
            let instruction = Instruction::new(spec, world, processes, islands, choice)?;
            times::describe(id, &instruction);
            let name = instruction.spec.name.clone();
            if instructions.insert(key, Arc::new(instruction)).is_some() {
                let problem = format!("key {key} belongs to another instruction as well");
                return Err(CollectiveError::InvalidSpec { instruction: name, problem });
            }
        }
        let program = Arc::new(Program { id, instructions });
        let mut state = lock(&self.shared.state);
        if !state.used_program_ids.insert(id) {
            return Err(CollectiveError::DuplicateProgram(id));
        }
        state.programs.retain(|_, program| program.strong_count() > 0);
        state.programs.insert(id, Arc::downgrade(&program));
        Ok(Arc::new(ProgramCollectives { shared: Arc::clone(&self.shared), program }))
    }

    /// Where this process is.
    pub fn position(&self) -> Position {
        let state = lock(&self.shared.state);
        let current = state.current.iter().flatten().next();
        Position {
            instruction: current.or(state.last.as_ref()).and_then(|id| Some(state.instruction(id)?.spec.name.clone())),
            waits: current.is_some(),
            late_devices: state.gathering.values().next().map(|it| self.shared.late_devices(it)).unwrap_or_default(),
            entered: state.entered,
            sent_bytes: self.shared.sent.load(Ordering::Relaxed),
        }
    }

    /// Fails every call in flight and to come, here and on the other processes.
    pub fn abort(&self, reason: &str) {
        self.shared.fail(CollectiveError::Aborted(reason.to_owned()));
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let busy = {
            let mut state = lock(&self.shared.state);
            state.closed = true;
            state.current.iter().any(Option::is_some)
        };
        if busy {
            self.shared.fail(CollectiveError::Closed);
        } else {
            lock(&self.shared.state).failed.get_or_insert(CollectiveError::Closed);
        }
        self.shared.work.notify_all();
        self.shared.timer.notify_all();
        let threads = std::mem::take(&mut lock(&self.shared.state).threads);
        let this_thread = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != this_thread {
                // A panic of an engine thread has been reported as the error of its call.
                let _ = thread.join();
            }
        }
    }
}

impl ProgramCollectives {
    /// Local device `local_device` has come to instruction `key` in execution `run` of the program. Returns at once;
    /// `done` is called exactly once, when the results are written or with the error, possibly before this returns and
    /// from any thread; it may wait for what other devices do, but not for another call of this one.
    ///
    /// Each device has at most one call outstanding in the whole communicator, and goes through the runs of a program
    /// one after the other, in increasing order, the same on every process.
    pub fn enter(
        &self,
        run: u64,
        key: u32,
        local_device: u32,
        args: Vec<Input>,
        results: Vec<Output>,
        done: impl FnOnce(Result<(), CollectiveError>) + Send + 'static,
    ) {
        let done: Done = Box::new(done);
        if let Err((error, done)) = self.arrive(run, key, local_device, args, results, done) {
            done(Err(self.shared.fail(error)));
        }
    }

    /// The name of an instruction.
    pub fn name(&self, key: u32) -> Option<&str> {
        self.program.instructions.get(&key).map(|instruction| &*instruction.spec.name)
    }

    /// The instructions' specs, in no particular order.
    pub fn specs(&self) -> impl Iterator<Item = &CollectiveSpec> {
        self.program.instructions.values().map(|instruction| &instruction.spec)
    }

    fn arrive(
        &self,
        run: u64,
        key: u32,
        local_device: u32,
        args: Vec<Input>,
        results: Vec<Output>,
        done: Done,
    ) -> Result<(), (CollectiveError, Done)> {
        let Some(instruction) = self.program.instructions.get(&key) else {
            return Err((CollectiveError::UnknownKey { key }, done));
        };
        let (group, rank) = match instruction.check_call(local_device, &args, &results) {
            Ok(place) => place,
            Err(error) => return Err((error, done)),
        };
        let mut state = lock(&self.shared.state);
        if let Some(error) = &state.failed {
            return Err((error.clone(), done));
        }
        let invalid = |problem| CollectiveError::InvalidCall { instruction: instruction.spec.name.clone(), problem };
        if let Some(other) = state.current.get(local_device as usize).copied().flatten() {
            let other = state.name(&other);
            return Err((invalid(format!("local device {local_device} has not returned from {other} yet")), done));
        }
        let trip = match instruction.next_trip(local_device, run) {
            Ok(trip) => trip,
            Err(problem) => return Err((invalid(problem), done)),
        };
        let id = InstanceId { program: self.program.id, run, key, group, trip };
        state.current[local_device as usize] = Some(id);
        state.last = Some(id);
        state.entered += 1;
        let call = Call { rank, args, results };
        let local_ranks = instruction.local(group).map_or(0, |local| local.group.local_ranks().len());
        let mut instance = state.gathering.remove(&id).unwrap_or_else(|| Instance {
            id,
            instruction: Arc::clone(instruction),
            calls: Vec::with_capacity(local_ranks),
            waiting: Vec::with_capacity(local_ranks),
            since: Instant::now(),
            times: Times::new(instruction, group),
        });
        let place = instance.calls.partition_point(|other| other.rank < rank);
        if let Some(times) = &mut instance.times {
            times.arrive(local_device);
        }
        instance.calls.insert(place, call);
        instance.waiting.insert(place, (local_device, done));
        if instance.calls.len() == local_ranks {
            if instance.local().is_some_and(|local| local.pace != Pace::Long) {
                drop(state);
                self.shared.run_here(instance, local_device);
            } else {
                self.shared.put_to_work(state, Job::Run(instance, Share::All));
            }
            return Ok(());
        }
        state.gathering.insert(id, instance);
        if let Some(explanation) = self.shared.local_divergence(&state, &id) {
            drop(state);
            self.shared.fail(CollectiveError::Diverged(explanation));
            return Ok(());
        }
        self.shared.start_timer(&mut state);
        Ok(())
    }
}

impl Instance {
    fn local(&self) -> Option<&LocalGroup> {
        self.instruction.local(self.id.group)
    }

    /// Tells the timeline that the devices are about to go on.
    fn record(&self) {
        if let Some(times) = &self.times {
            times.record(&self.id, self.local().map_or(0, |local| local.group.local_ranks().len()));
        }
    }
}

impl State {
    fn instruction(&self, id: &InstanceId) -> Option<Arc<Instruction>> {
        self.programs.get(&id.program)?.upgrade()?.instructions.get(&id.key).cloned()
    }

    /// The instruction's name, with run and trip where they tell calls apart.
    fn name(&self, id: &InstanceId) -> String {
        match self.instruction(id) {
            Some(instruction) => format!("{} (run {}, call {})", instruction.spec, id.run, id.trip),
            None => format!("instruction {} of program {} (run {}, call {})", id.key, id.program, id.run, id.trip),
        }
    }
}

impl Shared {
    /// Ends the communicator with `error`, unless it has ended before; returns what it ended with.
    fn fail(&self, error: CollectiveError) -> CollectiveError {
        let (first, pending) = {
            let mut state = lock(&self.state);
            if let Some(first) = &state.failed {
                return first.clone();
            }
            state.failed = Some(error.clone());
            let mut pending: Vec<Instance> = std::mem::take(&mut state.gathering).into_values().collect();
            for job in std::mem::take(&mut state.ready) {
                match job {
                    Job::Run(instance, _) => pending.push(instance),
                    Job::Return(..) => state.ready.push_back(job),
                }
            }
            for (local_device, _) in pending.iter().flat_map(|instance| &instance.waiting) {
                state.current[*local_device as usize] = None;
            }
            (error, pending)
        };
        if let Some(transport) = &self.transport {
            transport.abort(&first.to_string());
        }
        for instance in pending {
            instance.record();
            let Instance { calls, waiting, .. } = instance;
            drop(calls);
            waiting.into_iter().for_each(|(_, done)| done(Err(first.clone())));
        }
        first
    }
}

/// The island of each process, within which data travels faster than to others: its slice if there are several, else its host.
pub(crate) fn islands(slices: &[u32], transport: Option<&dyn Transport>) -> Vec<u32> {
    match transport {
        Some(_) if slices.iter().any(|slice| Some(slice) != slices.first()) => slices.to_vec(),
        Some(transport) => transport.hosts(),
        None => vec![0],
    }
}

fn remote_error(error: TransportError) -> CollectiveError {
    match error {
        TransportError::AbortedByPeer { peer, reason } => CollectiveError::Remote { process: peer, message: reason },
        source => CollectiveError::Transport { instruction: "transport".to_owned(), source },
    }
}
