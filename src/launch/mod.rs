//! Starts the controller processes of a job and watches them.
//!
//! [`run`] starts them on this machine or, over ssh, on others. They learn their place from environment variables, which
//! [`ControllerEnv::from_env`] reads back. When one is ended by a signal, the launcher tells in which [`phase`] it was, and
//! what it printed last.
//!
//! There is one watch over a job, in the launcher (`watch.rs`), and one way to start and end controllers
//! (`controllers.rs`), which the launcher uses for its own machine and a helper process on each host of a job over hosts
//! ([`hosts`]).

mod chips;
mod controllers;
mod environment;
pub mod hosts;
mod job;
mod last_words;
mod limits;
mod local;
mod output;
pub mod phase;
mod printer;
mod progress;
mod settings;
mod signals;
mod watch;

pub use chips::ChipsError;
pub use environment::{ControllerEnv, EnvironmentError, SSH};
pub use hosts::{Hosts, RayCluster, RayError, shipped};
pub use job::{End, Failed, Job, LaunchError, Outcome, PEER_FAILED, PROGRAM_FAILED, WRONG_USAGE};
pub use limits::TooMany;
pub use settings::{COMPILATION_CACHE, Settings};

use job::failed;
use local::Local;
use signals::Signals;
use watch::watch;

/// Starts the controllers of a job and waits until all have ended, and starts them again if they may.
///
/// Each is a process group of its own, dies when the thread that calls this function dies, and finds in its
/// environment what [`ControllerEnv`] reads. The standard output of process 0 goes to the caller's; all other output goes
/// to standard error, each line tagged with the process index when there are several. On this machine process 0 reads the
/// caller's standard input unless that is a terminal. SIGINT, SIGTERM, SIGHUP and SIGTSTP are handed on, a second SIGINT
/// kills. The caller no longer dies of these signals when the function has returned.
pub fn run(job: &Job) -> Result<Outcome, LaunchError> {
    if job.process_count == 0 {
        return Err(LaunchError::NoProcesses);
    }
    let mut signals = Signals::catch().map_err(failed("catch signals"))?;
    let mut restarts = 0;
    loop {
        let outcome = match &job.hosts {
            None => watch(job, &mut Local::start(job, restarts)?, &mut signals),
            Some(hosts) => hosts::run(job, hosts, restarts, &mut signals),
        }?;
        match &outcome {
            Outcome::Failed(failed) if restarts < job.max_restarts && failed.may_pass() => {
                restarts += 1;
                tracing::warn!("restart {restarts} of {} because {failed}", job.max_restarts);
            }
            _ => return Ok(outcome),
        }
    }
}
