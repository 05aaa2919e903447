use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::collective::error::CollectiveError;
use crate::collective::exchange::{Exchange, InstanceId};
use crate::collective::group::Group;
use crate::collective::ragged::{self, RaggedError};
use crate::collective::spec::CollectiveKind;
use crate::collective::{movement, reduction};
use crate::transport::TransportError;

use super::instruction::Instruction;
use super::{Arrived, Call, Instance, Job, Shared, State, lock, remote_error};

/// Longer limits than this are cut, so that deadlines stay representable.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

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
