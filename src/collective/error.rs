use std::time::Duration;

use crate::transport::TransportError;

/// Why a collective could not run. The first error of a communicator ends it: all later calls get the same one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// A [`CollectiveSpec`](super::CollectiveSpec) that describes nothing that could run.
    #[error("{instruction}: {problem}")]
    InvalidSpec {
        /// The instruction's name.
        instruction: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The processes of the job and the transport do not fit together.
    #[error("{0}")]
    InvalidWorld(String),
    /// A program id was used twice.
    #[error("program id {0} is in use or was before: ids are never used again")]
    DuplicateProgram(u64),
    /// The program has no collective with this key.
    #[error("the program has no collective with key {key}")]
    UnknownKey {
        /// The key asked for.
        key: u32,
    },
    /// A call with arguments that do not fit the instruction, or out of order.
    #[error("{instruction}: {problem}")]
    InvalidCall {
        /// The instruction's name.
        instruction: String,
        /// What is wrong with the call.
        problem: String,
    },
    /// Two participants wait for each other in different collectives, or in the same one with different operands.
    #[error("the devices do not run the same collectives: {0}")]
    Diverged(String),
    /// Participants did not arrive in time.
    #[error("{instruction}: {missing} did not arrive within {:.0} s", timeout.as_secs_f64())]
    Timeout {
        /// The instruction's name.
        instruction: String,
        /// Who was waited for.
        missing: String,
        /// The limit.
        timeout: Duration,
    },
    /// The exchange with another process failed.
    #[error("{instruction}: {source}")]
    Transport {
        /// The instruction's name.
        instruction: String,
        /// What happened.
        source: TransportError,
    },
    /// Another process failed first.
    #[error("process {process} failed: {message}")]
    Remote {
        /// The process that failed.
        process: u32,
        /// Its own error.
        message: String,
    },
    /// [`Communicator::abort`](super::Communicator::abort) was called.
    #[error("aborted: {0}")]
    Aborted(String),
    /// The communicator is gone.
    #[error("the communicator is closed")]
    Closed,
    /// A defect of this program.
    #[error("{instruction}: internal error: {problem}")]
    Internal {
        /// The instruction's name.
        instruction: String,
        /// What was found.
        problem: String,
    },
}
