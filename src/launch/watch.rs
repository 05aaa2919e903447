//! Watches a job until its end: hands on signals, and ends all controllers when one has failed.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTSTP};

use super::job::{End, Failed, Job, LaunchError, Outcome, failed};
use super::signals::Signals;

/// The started controllers of a job, wherever they run. Dropping them kills those that still run.
pub trait Started {
    /// Whether there is something left to wait for.
    fn any_running(&self) -> bool;
    /// Sends a signal to the process groups of all that still run.
    fn signal(&mut self, signal: Signal);
    /// Those that have ended since the last call.
    fn ended(&mut self) -> Result<Vec<Ended>, LaunchError>;
    /// Readable when there may be news, beside the signal for a child's end; `None` if that says it all.
    fn news(&self) -> Option<BorrowedFd<'_>>;
    /// How long to wait for news before [`Started::ended`] is called nonetheless.
    fn patience(&self) -> Option<Duration>;
    /// Waits no longer for those that SIGKILL has not ended.
    fn give_up(&mut self);
    /// Readable when all that was printed has been handed on, once none is running.
    fn printed(&mut self) -> Option<BorrowedFd<'_>>;
    /// The host of a controller in a job over hosts.
    fn host_of(&self, process_index: u32) -> Option<String>;
    /// What a controller printed last.
    fn last_words(&self, process_index: u32) -> Option<String>;
}

/// A controller that has ended.
pub struct Ended {
    pub process_index: u32,
    pub end: End,
    /// What it was doing.
    pub phase: Option<String>,
}

/// How far the end of a job has come.
#[derive(Clone, Copy)]
enum Ending {
    No,
    /// One has failed; the others may end by themselves until then.
    Grace(Instant),
    /// They have been told by a signal.
    Told(Instant),
    /// They have been killed, and are given up then.
    Killed(Instant),
}

/// Waits until all controllers have ended.
pub fn watch(job: &Job, started: &mut impl Started, signals: &mut Signals) -> Result<Outcome, LaunchError> {
    Watch { job, started, signals, ending: Ending::No, stopped_by: None, failures: Vec::new() }.run()
}

struct Watch<'a, S> {
    job: &'a Job,
    started: &'a mut S,
    signals: &'a mut Signals,
    ending: Ending,
    stopped_by: Option<i32>,
    /// Controllers that failed before they were sent a signal, in order.
    failures: Vec<Ended>,
}

impl<S: Started> Watch<'_, S> {
    fn run(mut self) -> Result<Outcome, LaunchError> {
        let mut clean = true;
        while self.started.any_running() {
            self.wait()?;
            self.hand_on_signals();
            let mut ended = self.started.ended()?;
            // Which of several ended first cannot be told, but a signal is more likely the cause than a consequence.
            ended.sort_by_key(|ended| ended.end.signal().is_none());
            for ended in ended {
                clean &= ended.end.is_success();
                self.note_end(ended);
            }
            self.escalate();
        }
        // Standard error may be slow to take the output; a signal ends the wait for it.
        while let Some(printed) = self.started.printed() {
            if wait_for([self.signals.as_fd(), printed], None)?[1] || !self.signals.take().is_empty() {
                break;
            }
        }
        Ok(self.outcome(clean))
    }

    /// Waits for a signal, for news or a deadline.
    fn wait(&self) -> Result<(), LaunchError> {
        let until = match self.ending {
            Ending::Grace(until) | Ending::Told(until) | Ending::Killed(until) => Some(until),
            Ending::No => None,
        };
        let until = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = until.into_iter().chain(self.started.patience()).min();
        match self.started.news() {
            Some(news) => wait_for([self.signals.as_fd(), news], timeout).map(drop),
            None => wait_for([self.signals.as_fd()], timeout).map(drop),
        }
    }

    fn hand_on_signals(&mut self) {
        for number in self.signals.take() {
            if number == SIGTSTP {
                self.pause();
                continue;
            }
            let again = self.stopped_by.is_some();
            self.stopped_by.get_or_insert(number);
            if again && number == SIGINT {
                self.kill();
            } else if let Some(signal) = Signal::from_named_raw(number) {
                self.started.signal(signal);
                if !matches!(self.ending, Ending::Told(_) | Ending::Killed(_)) {
                    self.ending = Ending::Told(Instant::now() + self.job.stop_timeout);
                }
            }
        }
    }

    /// Stops the whole job until someone continues this process.
    fn pause(&mut self) {
        self.started.signal(Signal::STOP);
        let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
        self.started.signal(Signal::CONT);
    }

    fn note_end(&mut self, ended: Ended) {
        tracing::debug!("process {} ended: {:?}", ended.process_index, ended.end);
        if ended.end.is_success() || matches!(self.ending, Ending::Told(_) | Ending::Killed(_)) {
            return;
        }
        self.failures.push(ended);
        if matches!(self.ending, Ending::No) {
            self.ending = Ending::Grace(Instant::now() + self.job.grace);
        }
    }

    fn escalate(&mut self) {
        match self.ending {
            Ending::Grace(until) if until <= Instant::now() => {
                self.started.signal(Signal::TERM);
                self.ending = Ending::Told(Instant::now() + self.job.kill_after);
            }
            Ending::Told(until) if until <= Instant::now() => self.kill(),
            Ending::Killed(until) if until <= Instant::now() => {
                self.started.give_up();
                self.ending = Ending::Killed(Instant::now() + self.job.kill_after);
            }
            _ => {}
        }
    }

    fn kill(&mut self) {
        self.started.signal(Signal::KILL);
        self.ending = Ending::Killed(Instant::now() + self.job.kill_after);
    }

    fn outcome(mut self, clean: bool) -> Outcome {
        let own = self.failures.iter().position(|failure| !failure.end.is_of_peer());
        match (self.failures.is_empty(), self.stopped_by) {
            (false, _) => {
                let Ended { process_index, end, phase } = self.failures.swap_remove(own.unwrap_or(0));
                let host = self.started.host_of(process_index);
                let last_words = self.started.last_words(process_index);
                Outcome::Failed(Failed { process_index, host, end, phase, last_words })
            }
            (true, Some(signal)) if !clean => Outcome::Stopped { signal },
            (true, _) => Outcome::Done,
        }
    }
}

/// Waits until one of the descriptors is readable, and tells which are.
pub fn wait_for<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> Result<[bool; N], LaunchError> {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut polled = descriptors.each_ref().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.map(|polled| !polled.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(error) => Err(failed("wait for the processes")(error)),
    }
}
