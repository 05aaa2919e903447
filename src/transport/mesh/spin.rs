//! How long a thread looks again and again before it sleeps. Sleeping and being woken costs tens of microseconds, a look
//! next to nothing; but where processes share cores, who looks keeps the other from what is looked for.

use std::cell::Cell;
use std::hint::spin_loop;
use std::thread::{available_parallelism, yield_now};
use std::time::{Duration, Instant};

use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};

/// How long to look without a pause where every process has a core.
const PATIENCE: Duration = Duration::from_micros(5);

/// How long to go on after that while others may have the core.
const COURTESY: Duration = Duration::from_micros(500);

/// How long a thread stays on a core that it has moved to, whoever else is there.
const STAY: Duration = Duration::from_millis(2);

/// Looks between two looks at the clock.
const LOOKS: usize = 50;

/// How often the core is offered to others where it has to be shared.
const YIELDS: usize = 30;

/// What a thread that waits does at first.
#[derive(Clone, Copy)]
pub(in crate::transport) struct Spin {
    crowded: bool,
    looks: usize,
}

/// One wait.
pub(in crate::transport) struct Spinning {
    how: Spin,
    since: Option<Instant>,
    yields: usize,
    over: bool,
}

impl Spin {
    /// For a host that runs this many processes of the job.
    pub fn new(processes_here: usize) -> Spin {
        Spin { crowded: available_parallelism().is_ok_and(|cores| processes_here > cores.get()), looks: LOOKS }
    }

    /// The same where what is waited for shows only when the system is asked, by the caller.
    pub fn blind(self) -> Spin {
        Spin { looks: 0, ..self }
    }

    pub fn begin(self) -> Spinning {
        Spinning { how: self, since: None, yields: 0, over: false }
    }
}

impl Spinning {
    pub fn goes_on(&self) -> bool {
        !self.over
    }

    /// Lets a moment pass, or less if there is news. `false` when it is time to sleep. The system may have put who is waited
    /// for on the same core, and takes its time to part the two: where `makes_room` says so, this thread goes elsewhere. It
    /// must say so to one of the two only: both would go, and meet again.
    pub fn pause(&mut self, has_news: impl Fn() -> bool, makes_room: impl Fn() -> bool) -> bool {
        if self.over {
            return false;
        }
        if self.how.crowded {
            self.yields += 1;
            self.over = self.yields >= YIELDS;
            yield_now();
            return true;
        }
        for _ in 0..self.how.looks {
            if has_news() {
                return true;
            }
            spin_loop();
        }
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now >= since + PATIENCE {
            let goes = makes_room();
            yield_now();
            if goes && now.elapsed() >= PATIENCE {
                leave_core();
            }
            self.over = now >= since + PATIENCE + COURTESY;
        }
        true
    }
}

/// Has this thread go on on another core, if there is one. It may come back when the system likes.
fn leave_core() {
    thread_local! {
        static MOVED: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    if MOVED.get().is_some_and(|moved| moved.elapsed() < STAY) {
        return;
    }
    MOVED.set(Some(Instant::now()));
    let Ok(cores) = sched_getaffinity(None) else { return };
    let mut others = cores;
    others.unset(sched_getcpu());
    if sched_setaffinity(None, &others).is_ok() {
        let _ = sched_setaffinity(None, &cores);
    }
}
