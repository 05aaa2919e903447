use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::transport::{Tag, Transport, TransportError};

use super::buffer::{Input, Output};
use super::error::CollectiveError;
use super::exchange::{Exchange, InstanceId};
use super::group::{Group, World};
use super::ragged::RaggedError;
use super::scratch::ScratchPool;
use super::spec::{CollectiveKind, CollectiveSpec};
use super::{movement, ragged, reduction};

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
    instructions: HashMap<u32, Arc<Instruction>>,
}

pub(super) struct Instruction {
    pub spec: CollectiveSpec,
    digest: u64,
    /// By index; `None` for groups without members on this process.
    groups: Vec<Option<(Group, movement::Plan)>>,
    /// All groups' members, for judging other processes' messages.
    members: Vec<Vec<u32>>,
    /// Group and rank of each local device.
    places: Vec<Option<(u32, usize)>>,
    operand_sizes: Vec<usize>,
    result_sizes: Vec<usize>,
    /// Per local device: the last run that called, and its number of calls.
    trips: Mutex<Vec<(u64, u64)>>,
}

/// Longer limits than this are cut, so that deadlines stay representable.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

type Done = Box<dyn FnOnce(Result<(), CollectiveError>) + Send>;

/// One device's call.
pub(super) struct Call {
    pub rank: usize,
    pub args: Vec<Input>,
    pub results: Vec<Output>,
}

struct Arrived {
    local_device: u32,
    call: Call,
    done: Done,
}

struct Instance {
    id: InstanceId,
    instruction: Arc<Instruction>,
    arrived: Vec<Arrived>,
    since: Instant,
}

struct Shared {
    world: World,
    /// The process of every device.
    processes: Vec<u32>,
    transport: Option<Arc<dyn Transport>>,
    limits: Limits,
    state: Mutex<State>,
    work: Condvar,
    timer: Condvar,
    scratch: ScratchPool,
}

/// What engine threads do.
enum Job {
    /// Every local member of the group is here.
    Run(Instance),
    /// A call has come to its end.
    Return(Done, Result<(), CollectiveError>),
}

#[derive(Default)]
struct State {
    failed: Option<CollectiveError>,
    closed: bool,
    /// Per local device: the call it has not returned from.
    current: Vec<Option<InstanceId>>,
    gathering: HashMap<InstanceId, Instance>,
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
            world,
            transport,
            limits,
            state: Mutex::new(state),
            work: Condvar::new(),
            timer: Condvar::new(),
            scratch: ScratchPool::default(),
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
        let mut instructions = HashMap::new();
        for spec in specs {
            let key = spec.key;
            let instruction = Instruction::new(spec, &self.shared.world, &self.shared.processes)?;
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
        let arrived = Arrived { local_device, call: Call { rank, args, results }, done };
        let instance = state.gathering.entry(id).or_insert_with(|| Instance {
            id,
            instruction: Arc::clone(instruction),
            arrived: Vec::new(),
            since: Instant::now(),
        });
        instance.arrived.push(arrived);
        if instance.arrived.len() == instance.group().map_or(0, |group| group.local_ranks().len()) {
            if let Some(instance) = state.gathering.remove(&id) {
                self.shared.put_to_work(state, Job::Run(instance));
            }
            return Ok(());
        }
        if let Some(explanation) = self.shared.local_divergence(&state, &id) {
            drop(state);
            self.shared.fail(CollectiveError::Diverged(explanation));
            return Ok(());
        }
        self.shared.start_timer(&mut state);
        Ok(())
    }
}

impl Instruction {
    fn new(spec: CollectiveSpec, world: &World, processes: &[u32]) -> Result<Instruction, CollectiveError> {
        let device_count = world.device_count();
        let members =
            if spec.groups.is_empty() { vec![(0..device_count).collect::<Vec<u32>>()] } else { spec.groups.clone() };
        spec.check(&members, device_count)?;
        let with_plan = |members: &Vec<u32>| {
            let group = Group::new(members.clone(), processes, world.process_index)?;
            let plan = movement::Plan::new(&spec, &group);
            Some((group, plan))
        };
        let groups = members.iter().map(with_plan).collect();
        let mut places = vec![None; world.local_device_count() as usize];
        for (index, group) in members.iter().enumerate() {
            for (rank, &device) in group.iter().enumerate() {
                let local = device.checked_sub(world.first_local_device());
                if let Some(place) = local.and_then(|local| places.get_mut(local as usize)) {
                    *place = Some((index as u32, rank));
                }
            }
        }
        let sizes = |arrays: &[super::ArraySpec]| arrays.iter().map(|array| array.size().unwrap_or(0)).collect();
        Ok(Instruction {
            digest: spec.digest(),
            operand_sizes: sizes(&spec.operands),
            result_sizes: sizes(&spec.results),
            trips: Mutex::new(vec![(0, 0); places.len()]),
            groups,
            members,
            places,
            spec,
        })
    }

    /// The group and rank of a local device whose buffers fit the instruction.
    fn check_call(
        &self,
        local_device: u32,
        args: &[Input],
        results: &[Output],
    ) -> Result<(u32, usize), CollectiveError> {
        let invalid = |problem| CollectiveError::InvalidCall { instruction: self.spec.name.clone(), problem };
        let place = self.places.get(local_device as usize).copied().flatten();
        let place = place.ok_or_else(|| invalid(format!("local device {local_device} is in none of its groups")))?;
        if !args.iter().map(Input::len).eq(self.operand_sizes.iter().copied()) {
            let sizes: Vec<usize> = args.iter().map(Input::len).collect();
            return Err(invalid(format!("operands of {sizes:?} bytes instead of {:?}", self.operand_sizes)));
        }
        if !results.iter().map(Output::len).eq(self.result_sizes.iter().copied()) {
            let sizes: Vec<usize> = results.iter().map(Output::len).collect();
            return Err(invalid(format!("results of {sizes:?} bytes instead of {:?}", self.result_sizes)));
        }
        Ok(place)
    }

    fn next_trip(&self, local_device: u32, run: u64) -> Result<u64, String> {
        let mut trips = lock(&self.trips);
        let (last_run, calls) = &mut trips[local_device as usize];
        if run < *last_run {
            return Err(format!("local device {local_device} came from run {last_run} back to run {run}"));
        }
        if run > *last_run {
            (*last_run, *calls) = (run, 0);
        }
        *calls += 1;
        Ok(*calls - 1)
    }

    fn has_entered(&self, local_device: u32, id: &InstanceId) -> bool {
        let (last_run, calls) = lock(&self.trips)[local_device as usize];
        last_run > id.run || last_run == id.run && calls > id.trip
    }
}

impl Instance {
    fn group(&self) -> Option<&Group> {
        self.instruction.groups.get(self.id.group as usize)?.as_ref().map(|(group, _)| group)
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
    /// Wakes or starts a thread for a job.
    fn put_to_work(self: &Arc<Self>, mut state: MutexGuard<'_, State>, job: Job) {
        state.ready.push_back(job);
        // A device has one call outstanding, which runs or returns.
        let enough = state.threads.len() - usize::from(state.has_timer) >= 2 * state.current.len();
        if enough || state.ready.len() <= state.idle_threads {
            drop(state);
            self.work.notify_one();
            return;
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("collective".to_owned()).spawn(move || shared.run_ready());
        match thread {
            Ok(thread) => state.threads.push(thread),
            Err(error) => {
                drop(state);
                let problem = format!("cannot start a thread: {error}");
                self.fail(CollectiveError::Internal { instruction: "collective engine".to_owned(), problem });
            }
        }
    }

    fn run_ready(self: &Arc<Self>) {
        loop {
            let mut state = lock(&self.state);
            let job = loop {
                if let Some(job) = state.ready.pop_front() {
                    break job;
                }
                if state.closed {
                    return;
                }
                state.idle_threads += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle_threads -= 1;
            };
            drop(state);
            match job {
                Job::Run(instance) => self.run(instance),
                Job::Return(done, outcome) => done(outcome),
            }
        }
    }

    fn run(self: &Arc<Self>, instance: Instance) {
        let Instance { id, instruction, mut arrived, .. } = instance;
        arrived.sort_by_key(|arrived| arrived.call.rank);
        let mut calls = Vec::with_capacity(arrived.len());
        let mut waiting = Vec::with_capacity(arrived.len());
        for Arrived { local_device, call, done } in arrived {
            calls.push(call);
            waiting.push((local_device, done));
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| self.execute(&id, &instruction, &mut calls)));
        let outcome = outcome.unwrap_or_else(|_| {
            let problem = "the engine panicked".to_owned();
            Err(CollectiveError::Internal { instruction: instruction.spec.name.clone(), problem })
        });
        drop(calls);
        let outcome = outcome.map_err(|error| self.fail(error));
        let mut state = lock(&self.state);
        for (local_device, _) in &waiting {
            state.current[*local_device as usize] = None;
        }
        drop(state);
        // A device may go on with its program inside `done` and wait there for another one that is done here, too.
        let last = waiting.pop();
        for (_, done) in waiting {
            self.put_to_work(lock(&self.state), Job::Return(done, outcome.clone()));
        }
        if let Some((_, done)) = last {
            done(outcome);
        }
    }

    fn execute(&self, id: &InstanceId, instruction: &Instruction, calls: &mut [Call]) -> Result<(), CollectiveError> {
        let name = || instruction.spec.name.clone();
        let Some(Some((group, plan))) = instruction.groups.get(id.group as usize) else {
            return Err(CollectiveError::Internal { instruction: name(), problem: "no such group".to_owned() });
        };
        let exchange = Exchange {
            transport: self.transport.as_deref(),
            id: *id,
            digest: instruction.digest,
            deadline: Instant::now() + self.limits.timeout.min(FOREVER),
            judge: &|peer, tag| self.judge(id, instruction, group, peer, tag),
        };
        let spec = &instruction.spec;
        let outcome = match spec.kind {
            CollectiveKind::AllReduce { op } => reduction::all_reduce(spec, op, group, calls, &exchange, &self.scratch),
            CollectiveKind::ReduceScatter { op, dim } => {
                reduction::reduce_scatter(spec, op, dim, group, calls, &exchange, &self.scratch)
            }
            CollectiveKind::RaggedAllToAll => {
                match ragged::ragged_all_to_all(spec, group, calls, &exchange, &self.scratch) {
                    Err(RaggedError::Call(problem)) => {
                        return Err(CollectiveError::InvalidCall { instruction: name(), problem });
                    }
                    Err(RaggedError::Transport(error)) => Err(error),
                    Ok(()) => Ok(()),
                }
            }
            _ => movement::run(plan, calls, &exchange, &self.scratch),
        };
        outcome.map_err(|error| self.transport_error(instruction, error))
    }

    fn transport_error(&self, instruction: &Instruction, error: TransportError) -> CollectiveError {
        match error {
            TransportError::Mismatch { explanation } => CollectiveError::Diverged(explanation),
            TransportError::AbortedByPeer { .. } => remote_error(error),
            TransportError::Timeout { peer, .. } => CollectiveError::Timeout {
                instruction: instruction.spec.name.clone(),
                missing: format!("process {peer}"),
                timeout: self.limits.timeout,
            },
            source => CollectiveError::Transport { instruction: instruction.spec.name.clone(), source },
        }
    }

    /// We wait for process `peer` in `id`, and it shows by `tag` where one of its devices is. Says why the two can never
    /// meet, if so: a device of `peer` that has yet to come to `id` waits for one of ours, which waits here.
    fn judge(&self, id: &InstanceId, instruction: &Instruction, group: &Group, peer: u32, tag: &Tag) -> Option<String> {
        let (theirs, digest) = InstanceId::of_tag(tag);
        let here = self.world.process_index;
        let state = lock(&self.state);
        if theirs == *id {
            return (digest != instruction.digest).then(|| {
                format!(
                    "{} is a different instruction on process {peer} than on process {here}: compare its kind, groups, \
                     element types and shapes",
                    state.name(id)
                )
            });
        }
        let other = state.instruction(&theirs)?;
        let members = other.members.get(theirs.group as usize)?;
        let in_both = |process: u32| {
            let shared = members.iter().filter(|device| group.members.contains(device));
            shared.copied().find(|&device| self.processes.get(device as usize) == Some(&process))
        };
        let (ours, their_device) = (in_both(here)?, in_both(peer)?);
        if other.has_entered(ours - self.world.first_local_device(), &theirs) {
            return None;
        }
        Some(format!(
            "device {ours} of process {here} is in {}, device {their_device} of process {peer} is in {}",
            state.name(id),
            state.name(&theirs)
        ))
    }

    /// Says so if `id` waits for a local device that waits for one of `id`'s in another call.
    fn local_divergence(&self, state: &State, id: &InstanceId) -> Option<String> {
        let first = self.world.first_local_device();
        let locals = |id: &InstanceId| {
            let instruction = state.instruction(id);
            let members = instruction.and_then(|found| found.members.get(id.group as usize).cloned());
            let locals = members.into_iter().flatten().filter_map(move |device| device.checked_sub(first));
            locals.filter(|&local| (local as usize) < state.current.len()).collect::<Vec<u32>>()
        };
        let members = locals(id);
        let arrived: Vec<u32> = state.gathering.get(id)?.arrived.iter().map(|arrived| arrived.local_device).collect();
        for &local in members.iter().filter(|local| !arrived.contains(local)) {
            let Some(other) = state.current[local as usize] else { continue };
            if !state.gathering.contains_key(&other) {
                continue;
            }
            if let Some(waiting) = locals(&other).into_iter().find(|member| arrived.contains(member)) {
                return Some(format!(
                    "device {} is in {}, device {} is in {}",
                    first + waiting,
                    state.name(id),
                    first + local,
                    state.name(&other)
                ));
            }
        }
        None
    }

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
                    Job::Run(instance) => pending.push(instance),
                    Job::Return(..) => state.ready.push_back(job),
                }
            }
            for arrived in pending.iter().flat_map(|instance| &instance.arrived) {
                state.current[arrived.local_device as usize] = None;
            }
            (error, pending)
        };
        if let Some(transport) = &self.transport {
            transport.abort(&first.to_string());
        }
        for Arrived { call, done, .. } in pending.into_iter().flat_map(|instance| instance.arrived) {
            drop(call);
            done(Err(first.clone()));
        }
        first
    }

    /// Starts the thread that fails what has been gathering for too long.
    fn start_timer(self: &Arc<Self>, state: &mut State) {
        if state.has_timer {
            return;
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("collective-timer".to_owned()).spawn(move || shared.watch());
        if let Ok(thread) = thread {
            state.threads.push(thread);
            state.has_timer = true;
        }
    }

    fn watch(&self) {
        let tick = (self.limits.timeout / 4).clamp(Duration::from_millis(1), Duration::from_secs(1));
        let mut state = lock(&self.state);
        while !state.closed && state.failed.is_none() {
            state = self.timer.wait_timeout(state, tick).unwrap_or_else(PoisonError::into_inner).0;
            let late = state.gathering.values().find(|instance| instance.since.elapsed() >= self.limits.timeout);
            if let Some(instance) = late {
                let error = self.gathering_timeout(instance);
                drop(state);
                self.fail(error);
                return;
            }
        }
    }

    fn gathering_timeout(&self, instance: &Instance) -> CollectiveError {
        let arrived: Vec<usize> = instance.arrived.iter().map(|arrived| arrived.call.rank).collect();
        let members = instance.instruction.members.get(instance.id.group as usize);
        let local = instance.group().map_or(&[][..], Group::local_ranks);
        let missing: Vec<String> = local
            .iter()
            .filter(|rank| !arrived.contains(rank))
            .filter_map(|&rank| members?.get(rank).map(|device| format!("device {device}")))
            .collect();
        CollectiveError::Timeout {
            instruction: instance.instruction.spec.name.clone(),
            missing: format!("{} of process {}", missing.join(", "), self.world.process_index),
            timeout: self.limits.timeout,
        }
    }
}

fn remote_error(error: TransportError) -> CollectiveError {
    match error {
        TransportError::AbortedByPeer { peer, reason } => CollectiveError::Remote { process: peer, message: reason },
        source => CollectiveError::Transport { instruction: "transport".to_owned(), source },
    }
}
