use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use crate::collective::error::CollectiveError;
use crate::collective::exchange::{Exchange, MEETING};
use crate::collective::group::Group;
use crate::collective::movement;
use crate::collective::ragged::{self, RaggedError};
use crate::collective::reduction::Reduction;
use crate::collective::spec::{CollectiveKind, CollectiveSpec};
use crate::transport::TransportError;

use super::instruction::{Instruction, LocalGroup, Pace};
use super::times::Times;
use super::{Call, Instance, Job, Share, Shared, State, lock, remote_error};

/// Longer limits than this are cut, so that deadlines stay representable.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// The other processes that a collective exchanges messages with.
fn others<'a>(spec: &CollectiveSpec, local: &'a LocalGroup) -> Box<dyn Iterator<Item = u32> + 'a> {
    if moves_only(&spec.kind) && !local.plan.is_by_islands() {
        Box::new(local.plan.processes())
    } else {
        Box::new(local.group.peers().map(|part| part.process))
    }
}

fn moves_only(kind: &CollectiveKind) -> bool {
    use CollectiveKind::{AllReduce, RaggedAllToAll, ReduceScatter};
    !matches!(kind, AllReduce { .. } | ReduceScatter { .. } | RaggedAllToAll)
}

impl Shared {
    /// Wakes or starts a thread for a job.
    pub(super) fn put_to_work(self: &Arc<Self>, mut state: MutexGuard<'_, State>, job: Job) {
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
                Job::Run(instance, share) => self.run(instance, share),
                Job::Return(done, outcome) => done(outcome),
            }
        }
    }

    /// Runs a collective that is soon over on the thread of its last device, or the first half of it if other processes
    /// take their time.
    pub(super) fn run_here(self: &Arc<Self>, mut instance: Instance, local_device: u32) {
        let is_local = instance.local().is_some_and(|local| local.pace == Pace::Local);
        let mut outcome = self.guarded(&mut instance, if is_local { Share::All } else { Share::FirstHalf });
        if outcome.is_ok() && !is_local {
            if !self.others_arrive_soon(&instance) {
                return self.put_to_work(lock(&self.state), Job::Run(instance, Share::SecondHalf));
            }
            outcome = self.guarded(&mut instance, Share::SecondHalf);
        }
        self.complete(instance, outcome, Some(local_device));
    }

    fn others_arrive_soon(&self, instance: &Instance) -> bool {
        let Some(local) = instance.local() else { return true };
        let step = if local.pace == Pace::Brief { MEETING } else { 0 };
        self.exchange(instance, &local.group, |exchange| {
            others(&instance.instruction.spec, local).all(|process| exchange.arrives_soon(process, step))
        })
    }

    fn run(self: &Arc<Self>, mut instance: Instance, share: Share) {
        let outcome = self.guarded(&mut instance, share);
        self.complete(instance, outcome, None);
    }

    /// Lets the devices go on; `here`, if any, on this thread.
    fn complete(self: &Arc<Self>, instance: Instance, outcome: Result<(), CollectiveError>, here: Option<u32>) {
        instance.record();
        let Instance { calls, mut waiting, .. } = instance;
        drop(calls);
        let outcome = outcome.map_err(|error| self.fail(error));
        let mut state = lock(&self.state);
        for (local_device, _) in &waiting {
            state.current[*local_device as usize] = None;
        }
        drop(state);
        // A device may go on with its program inside `done` and wait there for another one that is done here, too.
        let on_this_thread = waiting.iter().position(|(device, _)| here.is_none_or(|here| here == *device));
        let last = on_this_thread.map(|index| waiting.swap_remove(index));
        for (_, done) in waiting {
            self.put_to_work(lock(&self.state), Job::Return(done, outcome.clone()));
        }
        if let Some((_, done)) = last {
            done(outcome);
        }
    }

    fn guarded(&self, instance: &mut Instance, share: Share) -> Result<(), CollectiveError> {
        let mut calls = std::mem::take(&mut instance.calls);
        let outcome = catch_unwind(AssertUnwindSafe(|| self.execute(instance, &mut calls, share)));
        instance.calls = calls;
        outcome.unwrap_or_else(|_| {
            let problem = "the engine panicked".to_owned();
            Err(CollectiveError::Internal { instruction: instance.instruction.spec.name.clone(), problem })
        })
    }

    fn exchange<R>(&self, instance: &Instance, group: &Group, with: impl FnOnce(&Exchange<'_>) -> R) -> R {
        let Instance { id, instruction, since, times, .. } = instance;
        with(&Exchange {
            transport: self.transport.as_deref(),
            id: *id,
            digest: instruction.digest,
            deadline: *since + self.limits.timeout.min(FOREVER),
            sent: &self.sent,
            judge: &|peer, tag| self.judge(id, instruction, group, peer, tag),
            times: times.as_ref().map(Times::of_exchange),
        })
    }

    /// `calls` are those of the instance.
    fn execute(&self, instance: &Instance, calls: &mut [Call], share: Share) -> Result<(), CollectiveError> {
        let instruction = &instance.instruction;
        let name = || instruction.spec.name.clone();
        let Some(local) = instance.local() else {
            return Err(CollectiveError::Internal { instruction: name(), problem: "no such group".to_owned() });
        };
        let LocalGroup { group, plan, meets, .. } = local;
        let (spec, scratch) = (&instruction.spec, &self.scratch);
        let outcome = self.exchange(instance, group, |exchange| {
            let mut share = share;
            if *meets {
                let mut met = Ok(());
                if !matches!(share, Share::SecondHalf) {
                    met = others(spec, local).try_for_each(|process| exchange.send(process, MEETING, &[]));
                }
                if met.is_ok() && !matches!(share, Share::FirstHalf) {
                    met = others(spec, local).try_for_each(|process| exchange.take(process, MEETING, 0, &mut |_| {}));
                }
                if met.is_err() || matches!(share, Share::FirstHalf) {
                    return Ok(met);
                }
                share = Share::All;
            }
            let (op, scatter) = match spec.kind {
                CollectiveKind::AllReduce { op } => (op, None),
                CollectiveKind::ReduceScatter { op, dim } => (op, Some(dim)),
                CollectiveKind::RaggedAllToAll => {
                    return match ragged::ragged_all_to_all(spec, group, calls, exchange, scratch) {
                        Err(RaggedError::Call(problem)) => {
                            Err(CollectiveError::InvalidCall { instruction: name(), problem })
                        }
                        Err(RaggedError::Transport(error)) => Ok(Err(error)),
                        Ok(()) => Ok(Ok(())),
                    };
                }
                _ => {
                    return Ok(match share {
                        Share::All => movement::run(plan, calls, exchange, scratch),
                        Share::FirstHalf => movement::begin(plan, calls, exchange, scratch),
                        Share::SecondHalf => movement::finish(plan, calls, exchange),
                    });
                }
            };
            let reduction = Reduction::new(spec, op, scatter, group, scratch, exchange);
            Ok(match share {
                Share::All => reduction.run(calls, exchange),
                Share::FirstHalf => reduction.begin(calls, exchange),
                Share::SecondHalf => reduction.finish(calls, exchange),
            })
        })?;
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

    /// Starts the thread that fails what has been gathering for too long.
    pub(super) fn start_timer(self: &Arc<Self>, state: &mut State) {
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
        let late: Vec<String> = self.late_devices(instance).iter().map(|device| format!("device {device}")).collect();
        CollectiveError::Timeout {
            instruction: instance.instruction.spec.name.clone(),
            missing: format!("{} of process {}", late.join(", "), self.world.process_index),
            timeout: self.limits.timeout,
        }
    }

    /// Local devices that have not come to a call yet, by global id.
    pub(super) fn late_devices(&self, instance: &Instance) -> Vec<u32> {
        let members = instance.instruction.members.get(instance.id.group as usize);
        let local = instance.local().map_or(&[][..], |local| local.group.local_ranks());
        let absent = local.iter().filter(|rank| !instance.calls.iter().any(|call| call.rank == **rank));
        absent.filter_map(|&rank| members?.get(rank).copied()).collect()
    }
}
