//! Saving together before the job is taken away.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use signal_hook::consts::SIGTERM;

use super::{Runtime, RuntimeError, World};

/// How soon a signal is passed on to the other processes.
const INTERVAL: Duration = Duration::from_millis(100);
const NOTICE: &str = "preemption";

/// Watches for a signal that some process gets.
pub(super) struct Preemption {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    signalled: Arc<AtomicBool>,
    /// Nobody asks any more.
    over: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The last step at which this process asked.
    last: Option<u64>,
    stage: Stage,
}

#[derive(Default)]
enum Stage {
    #[default]
    Quiet,
    /// The processes tell each other how far they are, and none goes on until that is done.
    Agreeing,
    /// The step of which all have been told.
    Agreed(u64),
    /// That step has come.
    Reached,
    Failed(String),
}

impl Runtime {
    /// Whether all processes are at the step at which they save because the job is about to be taken away:
    /// `multihost_utils.reached_preemption_sync_point`.
    ///
    /// Once a process gets SIGTERM, which from the first call on no longer ends it, the processes tell each other how far they
    /// are, and agree on the first step that none of them has begun. There the answer is `true` in all of them, once; then
    /// they save and end. `spmd-run`, which passes the signal on, kills those that run five seconds later. Every process asks before each of its steps, with numbers that grow alike.
    ///
    /// # Errors
    /// The signal cannot be caught, or another process fails.
    pub fn reached_preemption_sync_point(&self, step: u64) -> Result<bool, RuntimeError> {
        let preemption = match self.preemption.get() {
            Some(preemption) => preemption,
            None => {
                let started = Preemption::start(self.world.clone());
                let started = started.map_err(|source| RuntimeError::Signal { source })?;
                self.preemption.get_or_init(|| started)
            }
        };
        preemption.shared.reached(step)
    }
}

impl Preemption {
    fn start(world: World) -> io::Result<Preemption> {
        let shared = Arc::new(Shared::default());
        signal_hook::flag::register(SIGTERM, Arc::clone(&shared.signalled))?;
        std::thread::Builder::new().name("preemption".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.watch(&world)
        })?;
        Ok(Preemption { shared })
    }
}

impl Drop for Preemption {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, world: &World) {
        let outcome = self.wait_for_notice(world).and_then(|is_noticed| {
            if !is_noticed {
                return Ok(None);
            }
            let last = {
                let mut state = self.state();
                state.stage = Stage::Agreeing;
                state.last
            };
            Ok(world.all_gather("preemption/steps", last)?.into_iter().flatten().max())
        });
        let mut state = self.state();
        match (&state.stage, outcome) {
            (Stage::Agreeing, Ok(last)) => state.stage = Stage::Agreed(last.map_or(0, |last| last + 1)),
            (_, Err(error)) => state.stage = Stage::Failed(error.to_string()),
            _ => {}
        }
        self.changed.notify_all();
    }

    /// Waits until a process has got the signal; `false` if that is not asked for any more.
    fn wait_for_notice(&self, world: &World) -> Result<bool, super::WorldError> {
        while !self.over.load(Ordering::Relaxed) {
            if self.signalled.load(Ordering::Relaxed) {
                world.post(NOTICE)?;
                return Ok(true);
            }
            if world.is_posted(NOTICE)? {
                return Ok(true);
            }
            std::thread::sleep(INTERVAL);
        }
        Ok(false)
    }

    fn reached(&self, step: u64) -> Result<bool, RuntimeError> {
        let waits = |state: &mut State| matches!(state.stage, Stage::Agreeing);
        let mut state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        state.last = Some(step);
        match &state.stage {
            Stage::Agreed(agreed) if step >= *agreed => {
                state.stage = Stage::Reached;
                Ok(true)
            }
            Stage::Failed(reason) => Err(RuntimeError::Preemption(reason.clone())),
            _ => Ok(false),
        }
    }
}
