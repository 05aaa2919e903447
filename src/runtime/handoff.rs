//! Threads on which devices go on after a collective.
//!
//! Whoever completes a custom call runs what comes next on that device: all of it, up to the next wait, and that may
//! be a wait for another device whose own collective is still to be completed. So each device goes on on a thread
//! that nothing else needs.

use std::collections::VecDeque;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long a thread waits for something to do before it ends.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Threads {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
}

static THREADS: LazyLock<Threads> = LazyLock::new(Threads::default);

/// Runs the job on a thread that does nothing else meanwhile. There are as many as there are jobs at a time.
pub(super) fn run(job: impl FnOnce() + Send + 'static) {
    let mut state = THREADS.state.lock().unwrap_or_else(PoisonError::into_inner);
    state.jobs.push_back(Box::new(job));
    if state.jobs.len() <= state.idle {
        THREADS.changed.notify_one();
        return;
    }
    drop(state);
    if thread::Builder::new().name("device".to_owned()).spawn(work).is_err() {
        // Better a device that waits on this thread than one that never goes on.
        if let Some(job) = take(Duration::ZERO) {
            job();
        }
    }
}

fn work() {
    while let Some(job) = take(IDLE_LIMIT) {
        job();
    }
}

fn take(limit: Duration) -> Option<Job> {
    let mut state = THREADS.state.lock().unwrap_or_else(PoisonError::into_inner);
    state.idle += 1;
    let waited = THREADS.changed.wait_timeout_while(state, limit, |state| state.jobs.is_empty());
    let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
    state.idle -= 1;
    state.jobs.pop_front()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn jobs_that_wait_for_each_other_all_run() {
        for _ in 0..50 {
            let barrier = Arc::new(Barrier::new(9));
            for _ in 0..8 {
                let barrier = barrier.clone();
                run(move || {
                    barrier.wait();
                });
            }
            barrier.wait();
        }
    }
}
