//! Controllers on this machine.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group, waitid};
use signal_hook::consts::{SIGINT, SIGTSTP};

use super::environment::{COORDINATOR, COORDINATOR_FD, PHASE_FD, PROCESS_COUNT, PROCESS_INDEX};
use super::limits::{self, TooMany};
use super::output::Output;
use super::phase::Memory;
use super::signals::{Signals, describe};
use crate::rendezvous::JobToken;

/// The exit code of a controller that ended because another one failed. It is never taken for the cause.
pub const PEER_FAILED: i32 = 3;

/// Copies of one program to start as the controllers of a job on this machine.
#[derive(Debug, Clone)]
pub struct LocalJob {
    /// How many to start.
    pub process_count: u32,
    /// The program; usually the running one.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Environment variables to set beside those that are inherited.
    pub envs: Vec<(OsString, OsString)>,
    /// How long the others may take to end by themselves after one has failed, before they get SIGTERM.
    pub grace: Duration,
    /// How long they may take to end after a signal, before they get SIGKILL.
    pub kill_after: Duration,
}

impl LocalJob {
    /// A job without arguments, with the usual limits.
    pub fn new(process_count: u32, program: impl Into<PathBuf>) -> Self {
        Self {
            process_count,
            program: program.into(),
            args: Vec::new(),
            envs: Vec::new(),
            grace: Duration::from_secs(2),
            kill_after: Duration::from_secs(5),
        }
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All controllers succeeded.
    Done,
    /// A controller failed; the first one, and not because of another.
    Failed(Failed),
    /// A signal to the launcher ended the job.
    Stopped {
        /// The signal's number.
        signal: i32,
    },
}

/// A controller that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub process_index: u32,
    /// How it ended.
    pub status: ExitStatus,
    /// What it was doing, see [`phase`](super::phase).
    pub phase: Option<String>,
    /// Why it gave up, as far as its output tells, when a signal ended it.
    pub last_words: Option<String>,
}

impl Outcome {
    /// What the launcher should exit with: the failed controller's exit code, or 128 + the signal.
    pub fn exit_code(&self) -> u8 {
        let code = match self {
            Self::Done => 0,
            Self::Failed(Failed { status, .. }) => {
                status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
            }
            Self::Stopped { signal } => 128 + signal,
        };
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("all processes succeeded"),
            Self::Failed(Failed { process_index, status, phase, last_words }) => {
                write!(f, "process {process_index} failed: ")?;
                let Some(signal) = status.signal() else {
                    return write!(f, "exit code {}", status.code().unwrap_or_default());
                };
                write!(f, "killed by {}", describe(signal))?;
                if let Some(phase) = phase {
                    write!(f, " while {phase}")?;
                }
                if let Some(last_words) = last_words {
                    write!(f, "\nits last words: {last_words}")?;
                }
                Ok(())
            }
            Self::Stopped { signal } => write!(f, "stopped by {}", describe(*signal)),
        }
    }
}

/// Why a job could not be started or watched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No controllers to start.
    #[error("a job needs at least 1 process")]
    NoProcesses,
    /// More than this machine can run.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// A controller did not start; those before it have been killed.
    #[error("cannot start process {process_index}, {}: {source}", .program.display())]
    Spawn {
        /// Which.
        process_index: u32,
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system failed otherwise.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> LaunchError {
    move |error| LaunchError::Io { what, source: error.into() }
}

/// Starts the controllers of a job and waits until all have ended.
///
/// Each is a process group of its own, dies when the thread that calls this function dies, and finds in its
/// environment what [`ControllerEnv`](super::ControllerEnv) reads. The standard output of process 0 is the caller's;
/// all other output is copied to standard error, each line tagged with the process index when there are several.
/// Process 0 reads the caller's standard input unless that is a terminal. SIGINT, SIGTERM, SIGHUP and SIGTSTP are handed
/// on, a second SIGINT kills. The caller no longer dies of these signals when the function has returned.
pub fn local(job: &LocalJob) -> Result<Outcome, LaunchError> {
    if job.process_count == 0 {
        return Err(LaunchError::NoProcesses);
    }
    limits::check(job.process_count)?;
    let signals = Signals::catch().map_err(failed("catch signals"))?;
    let mut controllers = Controllers(Vec::new());
    let output = controllers.start(job)?;
    Watch { job, controllers, signals, ending: Ending::No, stopped_by: None, failures: Vec::new() }.run(output)
}

struct Controller {
    process_index: u32,
    child: Child,
    running: bool,
    phase: Memory,
}

/// The started controllers. Dropping them kills those that still run.
struct Controllers(Vec<Controller>);

impl Controllers {
    fn start(&mut self, job: &LocalJob) -> Result<Output, LaunchError> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed("open a socket for the coordinator"))?;
        let address = listener.local_addr().map_err(failed("open a socket for the coordinator"))?;
        let token = JobToken::random().map_err(failed("make a job token"))?;
        let mut pipes = Vec::new();
        for process_index in 0..job.process_count {
            let phase = Memory::create().map_err(failed("make memory for a process's phase"))?;
            let mut command = Command::new(&job.program);
            command
                .args(&job.args)
                .envs(job.envs.iter().map(|(name, value)| (name, value)))
                .env(COORDINATOR, address.to_string())
                .env(PROCESS_INDEX, process_index.to_string())
                .env(PROCESS_COUNT, job.process_count.to_string())
                .env(PHASE_FD, phase.as_fd().as_raw_fd().to_string())
                .env(JobToken::VARIABLE, token.reveal())
                .env_remove(COORDINATOR_FD)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0);
            let mut inherited = vec![phase.as_fd()];
            if process_index == 0 {
                command.env(COORDINATOR_FD, listener.as_raw_fd().to_string()).stdout(Stdio::inherit());
                // In a process group of its own it would be stopped for reading a terminal.
                if !io::stdin().is_terminal() {
                    command.stdin(Stdio::inherit());
                }
                inherited.push(listener.as_fd());
            }
            tie_to_this_process(&mut command, &inherited);
            let mut child = command.spawn().map_err(|source| LaunchError::Spawn {
                process_index,
                program: job.program.clone(),
                source,
            })?;
            let outputs = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
            pipes.extend(outputs.into_iter().flatten().map(|pipe| (process_index, pipe)));
            self.0.push(Controller { process_index, child, running: true, phase });
        }
        Output::start(pipes, job.process_count > 1).map_err(failed("copy the processes' output"))
    }

    fn any_running(&self) -> bool {
        self.0.iter().any(|controller| controller.running)
    }

    fn signal(&self, signal: Signal) {
        for controller in self.0.iter().filter(|controller| controller.running) {
            // A controller that has just ended is no longer there to be told.
            let group = Pid::from_child(&controller.child);
            let _ = kill_process_group(group, signal);
            if signal != Signal::STOP {
                // A process that is stopped acts on no other signal until then.
                let _ = kill_process_group(group, Signal::CONT);
            }
        }
    }

    /// Collects the controllers that have ended, and kills what they left behind in their process groups.
    fn reap(&mut self) -> io::Result<Vec<(u32, ExitStatus)>> {
        let mut ended = Vec::new();
        for controller in self.0.iter_mut().filter(|controller| controller.running) {
            let pid = Pid::from_child(&controller.child);
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if waitid(WaitId::Pid(pid), options)?.is_some() {
                // Before the child is collected its number, which is the group's too, cannot mean another process.
                let _ = kill_process_group(pid, Signal::KILL);
                controller.running = false;
                ended.push((controller.process_index, controller.child.wait()?));
            }
        }
        Ok(ended)
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for controller in self.0.iter_mut().filter(|controller| controller.running) {
            let _ = controller.child.wait();
        }
    }
}

/// Lets a child die with this thread, and keep these descriptors.
fn tie_to_this_process(command: &mut Command, inherited: &[BorrowedFd<'_>]) {
    let parent = getpid();
    let inherited: Vec<_> = inherited.iter().map(|fd| fd.as_raw_fd()).collect();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        for &fd in &inherited {
            // SAFETY: the parent keeps the descriptor open until the child has been started.
            fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes a few system calls and neither allocates nor locks.
    unsafe { command.pre_exec(prepare) };
}

/// How far the end of a job has come.
#[derive(Clone, Copy)]
enum Ending {
    No,
    /// One has failed; the others may end by themselves until then.
    Grace(Instant),
    /// They have been told by a signal.
    Told(Instant),
    Killed,
}

struct Watch<'a> {
    job: &'a LocalJob,
    controllers: Controllers,
    signals: Signals,
    ending: Ending,
    stopped_by: Option<i32>,
    /// Controllers that failed before they were sent a signal, in order.
    failures: Vec<(u32, ExitStatus)>,
}

impl Watch<'_> {
    fn run(mut self, mut output: Output) -> Result<Outcome, LaunchError> {
        let mut clean = true;
        while self.controllers.any_running() {
            self.wait(None)?;
            self.hand_on_signals();
            let mut ended = self.controllers.reap().map_err(failed("wait for a process"))?;
            // Which of several ended first cannot be told, but a signal is more likely the cause than a consequence.
            ended.sort_by_key(|(_, status)| status.signal().is_none());
            for (process_index, status) in ended {
                clean &= status.success();
                self.note_end(process_index, status);
            }
            self.escalate();
        }
        self.ending = Ending::No;
        output.stop();
        // Standard error may be slow to take the output; a signal ends the wait for it.
        while !self.wait(Some(output.done()))? {
            if !self.signals.take().is_empty() {
                return Ok(self.outcome(clean, HashMap::new()));
            }
        }
        Ok(self.outcome(clean, output.last_words()))
    }

    /// Waits for a signal, a deadline or the given descriptor, and tells whether it was the last.
    fn wait(&self, other: Option<BorrowedFd<'_>>) -> Result<bool, LaunchError> {
        let timeout = match self.ending {
            Ending::Grace(until) | Ending::Told(until) => Some(until.saturating_duration_since(Instant::now())),
            Ending::No | Ending::Killed => None,
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let descriptors = [self.signals.as_fd()].into_iter().chain(other);
        let mut polled: Vec<_> = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => Ok(polled.get(1).is_some_and(|other| !other.revents().is_empty())),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(failed("wait for the processes")(error)),
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
                self.controllers.signal(signal);
                if !matches!(self.ending, Ending::Told(_) | Ending::Killed) {
                    self.ending = Ending::Told(Instant::now() + self.job.kill_after);
                }
            }
        }
    }

    /// Stops the whole job until someone continues this process.
    fn pause(&self) {
        self.controllers.signal(Signal::STOP);
        let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
        self.controllers.signal(Signal::CONT);
    }

    fn note_end(&mut self, process_index: u32, status: ExitStatus) {
        tracing::debug!("process {process_index} ended: {status}");
        if status.success() || matches!(self.ending, Ending::Told(_) | Ending::Killed) {
            return;
        }
        self.failures.push((process_index, status));
        if matches!(self.ending, Ending::No) {
            self.ending = Ending::Grace(Instant::now() + self.job.grace);
        }
    }

    fn escalate(&mut self) {
        match self.ending {
            Ending::Grace(until) if until <= Instant::now() => {
                self.controllers.signal(Signal::TERM);
                self.ending = Ending::Told(Instant::now() + self.job.kill_after);
            }
            Ending::Told(until) if until <= Instant::now() => self.kill(),
            _ => {}
        }
    }

    fn kill(&mut self) {
        self.controllers.signal(Signal::KILL);
        self.ending = Ending::Killed;
    }

    fn outcome(&self, clean: bool, mut last_words: HashMap<u32, String>) -> Outcome {
        let own = self.failures.iter().find(|(_, status)| status.code() != Some(PEER_FAILED));
        match (own.or(self.failures.first()), self.stopped_by) {
            (Some(&(process_index, status)), _) => {
                let controller = self.controllers.0.iter().find(|controller| controller.process_index == process_index);
                Outcome::Failed(Failed {
                    process_index,
                    status,
                    phase: controller.and_then(|controller| controller.phase.read()),
                    last_words: last_words.remove(&process_index),
                })
            }
            (None, Some(signal)) if !clean => Outcome::Stopped { signal },
            (None, _) => Outcome::Done,
        }
    }
}
