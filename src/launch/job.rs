//! What to start, and how it ended.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use super::chips::ChipsError;
use super::hosts::{HostError, Hosts, RayError};
use super::limits::TooMany;
use super::signals::describe;

/// The exit code of a controller that ended because another one failed. It is never taken for the cause.
pub const PEER_FAILED: u8 = 3;
/// The exit code of a controller whose program was refused, or failed by itself.
pub const PROGRAM_FAILED: u8 = 1;
/// The exit code of a controller that was called in a way that cannot work.
pub const WRONG_USAGE: u8 = 2;

/// Copies of one program to start as the controllers of a job.
#[derive(Debug, Clone)]
pub struct Job {
    /// How many to start.
    pub process_count: u32,
    /// The program; usually the running one, and always that when there are `hosts`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Environment variables to set beside those that are inherited.
    pub envs: Vec<(OsString, OsString)>,
    /// How long the others may take to end by themselves after one has failed, before they get SIGTERM.
    pub grace: Duration,
    /// How long all may take to end, and to save what they have, after the job was sent a signal, before they get SIGKILL.
    pub stop_timeout: Duration,
    /// How long the others of one that has failed may take to end after a signal, before they get SIGKILL.
    pub kill_after: Duration,
    /// A folder for what each process prints, in files of its own: `process-0.out`, `process-0.err`, …
    pub log_dir: Option<PathBuf>,
    /// How often the whole job is started again after a failure that may pass.
    pub max_restarts: u32,
    /// The accelerator chips of each host that the job uses, divided in order among the host's controllers.
    pub chips: Option<Vec<u32>>,
    /// Where to start the controllers; this machine if there are none.
    pub hosts: Option<Hosts>,
}

impl Job {
    /// A job on this machine without arguments, with the usual limits.
    pub fn new(process_count: u32, program: impl Into<PathBuf>) -> Self {
        Self {
            process_count,
            program: program.into(),
            args: Vec::new(),
            envs: Vec::new(),
            grace: Duration::from_secs(2),
            stop_timeout: Duration::from_secs(30),
            kill_after: Duration::from_secs(5),
            log_dir: None,
            max_restarts: 0,
            chips: None,
            hosts: None,
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
    /// Its host, in a job over hosts.
    pub host: Option<String>,
    /// How it ended.
    pub end: End,
    /// What it was doing, see [`phase`](super::phase).
    pub phase: Option<String>,
    /// Why it gave up, as far as its output tells, when a signal ended it.
    pub last_words: Option<String>,
}

/// How a controller ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// By itself or by a signal.
    Status(ExitStatus),
    /// Nobody knows: the connection to its host is cut, for this reason.
    Lost(String),
}

impl End {
    /// Whether the controller did what it should.
    pub(super) fn is_success(&self) -> bool {
        matches!(self, Self::Status(status) if status.success())
    }

    /// Whether the controller ended because another one did.
    pub(super) fn is_of_peer(&self) -> bool {
        matches!(self, Self::Status(status) if status.code() == Some(PEER_FAILED.into()))
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        match self {
            Self::Status(status) => status.signal(),
            Self::Lost(_) => None,
        }
    }
}

impl Failed {
    /// Whether the same job may succeed another time. What a program or its plugin refused, it will refuse again.
    pub fn may_pass(&self) -> bool {
        let refused = [Some(PROGRAM_FAILED.into()), Some(WRONG_USAGE.into())];
        !matches!(&self.end, End::Status(status) if refused.contains(&status.code()))
    }
}

impl Outcome {
    /// What the launcher should exit with: the failed controller's exit code, or 128 + the signal.
    pub fn exit_code(&self) -> u8 {
        let code = match self {
            Self::Done => 0,
            Self::Failed(Failed { end: End::Lost(_), .. }) => PEER_FAILED.into(),
            Self::Failed(Failed { end: End::Status(status), .. }) => {
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
            Self::Failed(failed) => failed.fmt(f),
            Self::Stopped { signal } => write!(f, "stopped by {}", describe(*signal)),
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.process_index)?;
        if let Some(host) = &self.host {
            write!(f, " ({host})")?;
        }
        let status = match &self.end {
            End::Status(status) => status,
            End::Lost(reason) => return write!(f, " was lost: {reason}"),
        };
        let Some(signal) = status.signal() else {
            return write!(f, " failed: exit code {}", status.code().unwrap_or_default());
        };
        write!(f, " failed: killed by {}", describe(signal))?;
        if let Some(phase) = &self.phase {
            write!(f, " while {phase}")?;
        }
        if let Some(last_words) = &self.last_words {
            write!(f, "\nits last words: {last_words}")?;
        }
        Ok(())
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
    /// Chips that the controllers cannot have.
    #[error(transparent)]
    Chips(#[from] ChipsError),
    /// A host on which no controller can be started; those on others have been ended.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A Ray cluster that gives no hosts.
    #[error(transparent)]
    Ray(#[from] RayError),
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
    /// A file for a process's output.
    #[error("--log-dir: {}: {source}", .path.display())]
    Log {
        /// The file or its folder.
        path: PathBuf,
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

pub(super) fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> LaunchError {
    move |error| LaunchError::Io { what, source: error.into() }
}
