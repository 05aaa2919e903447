//! What is wrong with a program, and where.

use std::panic::Location;

/// A call of the builder that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub struct BuildError {
    /// Where the call stands in the caller's source.
    pub location: &'static Location<'static>,
    /// The operation, and what is wrong with it.
    pub message: String,
}

impl BuildError {
    pub(super) fn new(location: &'static Location<'static>, message: String) -> BuildError {
        BuildError { location, message }
    }
}
