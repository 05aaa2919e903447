//! What can be wrong with a file of arrays.

use std::io;

/// A file of arrays that cannot be read or written, or that holds something else than is asked for.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system says no.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// What it says.
        source: io::Error,
    },
    /// The file is broken, or none that we read.
    #[error("{origin}: {problem}")]
    Malformed {
        /// The file, and the array in it.
        origin: String,
        /// What is wrong.
        problem: String,
    },
    /// The array is not the one that is asked for.
    #[error("{origin} is {found}, the program's is {expected}{advice}")]
    Mismatch {
        /// The file, and the array in it.
        origin: String,
        /// Shape of the array.
        found: String,
        /// Shape that is asked for.
        expected: String,
        /// What to do about it; begins with punctuation.
        advice: String,
    },
}

impl FileError {
    pub(super) fn malformed(origin: &str, problem: impl ToString) -> FileError {
        FileError::Malformed { origin: origin.to_owned(), problem: problem.to_string() }
    }
}
