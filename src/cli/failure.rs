//! Why a command ended without success, and the exit code that says so.

use std::io::Write;

use spmd_run::bench::BenchError;
use spmd_run::plugins::FindError;
use spmd_run::runtime::RuntimeError;

/// A command's failure. Exit codes: 1 the program failed, 2 usage, 3 a peer or the rendezvous failed.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    error: Option<anyhow::Error>,
}

impl Failure {
    /// The command was called in a way that cannot work.
    pub fn usage(error: impl Into<String>) -> Failure {
        Failure { code: 2, error: Some(anyhow::Error::msg(error.into())) }
    }

    /// As [`Failure::usage`], for errors of the library.
    pub fn wrong_usage(error: impl Into<anyhow::Error>) -> Failure {
        Failure { code: 2, error: Some(error.into()) }
    }

    /// The program, its arguments or its plugin failed.
    pub fn program(error: impl Into<anyhow::Error>) -> Failure {
        Failure { code: 1, error: Some(error.into()) }
    }

    /// Another process or the rendezvous failed.
    pub fn peer(error: impl Into<anyhow::Error>) -> Failure {
        Failure { code: 3, error: Some(error.into()) }
    }

    /// A failure whose message has been shown already, by this process or by the one where it began.
    pub fn silent(self) -> Failure {
        Failure { error: None, ..self }
    }

    /// One line for other processes.
    pub fn message(&self) -> String {
        self.error.as_ref().map(with_causes).unwrap_or_default()
    }

    /// Prints the message to standard error and returns the exit code.
    pub fn report(self) -> u8 {
        if let Some(error) = &self.error {
            // In one piece, as other processes write to the same stream.
            let line = format!("error: {}\n", with_causes(error));
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        self.code
    }
}

/// An error and its causes, without those that it tells of itself.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |mut text, cause| {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text += if text.is_empty() { "" } else { ": " };
            text += &cause;
        }
        text
    })
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
