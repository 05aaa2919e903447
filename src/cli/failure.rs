//! Why a command ended without success, and the exit code that says so.

use spmd_run::bench::BenchError;
use spmd_run::launch::{PEER_FAILED, PROGRAM_FAILED, WRONG_USAGE};
use spmd_run::plugins::FindError;
use spmd_run::runtime::{self, RuntimeError};

/// A command's failure. Exit codes: 1 the program failed, 2 usage, 3 a peer or the rendezvous failed.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    error: Option<anyhow::Error>,
}

impl Failure {
    /// The command was called in a way that cannot work.
    pub fn usage(error: impl Into<String>) -> Failure {
        Failure { code: WRONG_USAGE, error: Some(anyhow::Error::msg(error.into())) }
    }

    /// As [`Failure::usage`], for errors of the library.
    pub fn wrong_usage(error: impl Into<anyhow::Error>) -> Failure {
        Failure { code: WRONG_USAGE, error: Some(error.into()) }
    }

    /// The program, its arguments or its plugin failed.
    pub fn program(error: impl Into<anyhow::Error>) -> Failure {
        Failure { code: PROGRAM_FAILED, error: Some(error.into()) }
    }

    /// Another process or the rendezvous failed.
    pub fn peer(error: impl Into<anyhow::Error>) -> Failure {
        Failure { code: PEER_FAILED, error: Some(error.into()) }
    }

    /// Another process failed, and this one says so, or is silent where the message has been shown already.
    pub fn of_other(message: Option<String>) -> Failure {
        Failure { code: PEER_FAILED, error: message.map(anyhow::Error::msg) }
    }

    /// One line for other processes.
    pub fn message(&self) -> String {
        self.error.as_ref().map(|error| runtime::with_causes(error.as_ref())).unwrap_or_default()
    }

    /// Prints the message to standard error and returns the exit code.
    pub fn report(self) -> u8 {
        if self.error.is_some() {
            runtime::show_failure(&self.message());
        }
        self.code
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        if error.is_of_peer() { Failure::peer(error) } else { Failure::program(error) }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error {
            BenchError::Runtime(error) => error.into(),
            _ => Failure::program(error),
        }
    }
}

impl From<FindError> for Failure {
    fn from(error: FindError) -> Failure {
        Failure::program(error)
    }
}
