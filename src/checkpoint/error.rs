//! What can go wrong with checkpoints.

use std::io;
use std::path::Path;

use crate::host_array::FileError;
use crate::runtime::{ArrayError, RuntimeError, WorldError};

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CheckpointError {
    #[error(transparent)]
    Array(Box<ArrayError>),
    #[error(transparent)]
    Runtime(Box<RuntimeError>),
    #[error(transparent)]
    World(#[from] WorldError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot {what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("process {process} failed with a checkpoint: {reason}")]
    Process { process: u32, reason: String },
    #[error("a checkpoint of step {step} is there already: {folder}; remove it, or count steps on from it")]
    Exists { step: u64, folder: String },
    #[error(
        "process {process} wrote {file}, and process 0 {found}: checkpoints need a folder on a file system that the hosts of \
         all processes share"
    )]
    NotShared { process: u32, file: String, found: String },
    #[error("there is no checkpoint of step {step} in {folder}")]
    NoCheckpoint { step: u64, folder: String },
    #[error("{problem}; remove this checkpoint to go back to the one before")]
    Damaged { problem: String },
    #[error("the checkpoint of step {step} has no {what} '{name}', it has {known}")]
    NoEntry { step: u64, what: &'static str, name: String, known: String },
    #[error("a checkpoint cannot hold the value '{name}': {source}")]
    Value { name: String, source: serde_json::Error },
    #[error("the value '{name}' of the checkpoint of step {step} is another one: {source}")]
    OtherValue { name: String, step: u64, source: serde_json::Error },
    #[error("a checkpoint has the name '{name}' twice")]
    Twice { name: String },
    #[error("the thread that writes checkpoints panicked")]
    Panicked,
}

impl From<ArrayError> for CheckpointError {
    fn from(error: ArrayError) -> CheckpointError {
        CheckpointError::Array(Box::new(error))
    }
}

impl From<RuntimeError> for CheckpointError {
    fn from(error: RuntimeError) -> CheckpointError {
        CheckpointError::Runtime(Box::new(error))
    }
}

impl CheckpointError {
    pub(super) fn of_path(what: &str, path: &Path, source: io::Error) -> CheckpointError {
        CheckpointError::Io { what: format!("{what} {}", path.display()), source }
    }
}
