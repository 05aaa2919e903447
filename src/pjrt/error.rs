//! What can go wrong between us and a plugin.

use std::fmt;
use std::path::PathBuf;

/// The result of a PJRT operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the PJRT layer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The dynamic loader refused the file.
    #[error("cannot load the PJRT plugin {}: {reason}", path.display())]
    Load {
        /// The file that was asked for.
        path: PathBuf,
        /// What the loader said.
        reason: String,
    },
    /// The file is a library, but no plugin that we can talk to.
    #[error("{} is not a usable PJRT plugin: {reason}", path.display())]
    NotAPlugin {
        /// The file that was asked for.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A function slot, extension or capability that this plugin does not have.
    #[error("plugin {plugin} lacks {what}")]
    Lacks {
        /// The plugin's name and version.
        plugin: String,
        /// The C name of the function or extension, or a description of the capability.
        what: String,
    },
    /// The plugin created a client that differs from what a create option asked for.
    #[error("plugin {plugin} ignored the option {option}={asked}: {found}")]
    OptionIgnored {
        /// The plugin's name and version.
        plugin: String,
        /// The option's name.
        option: String,
        /// Its value as asked for.
        asked: String,
        /// What the client has instead.
        found: String,
    },
    /// The plugin reported an error.
    #[error("{context}: {message} ({code})")]
    Plugin {
        /// The canonical status code.
        code: ErrorCode,
        /// The plugin's message.
        message: String,
        /// The PJRT function that failed.
        context: &'static str,
    },
    /// The call was refused before it reached the plugin, or the plugin answered something impossible.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// The plugin's status code, when the plugin reported this error.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Error::Plugin { code, .. } => Some(*code),
            _ => None,
        }
    }
}

macro_rules! error_codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// The canonical status codes that PJRT and XLA's FFI share.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the names are the canonical ones")]
        pub enum ErrorCode {
            $($name = $number,)*
        }

        impl ErrorCode {
            /// The code with this number; `Unknown` for numbers that are none.
            pub fn from_number(number: u32) -> ErrorCode {
                match number {
                    $($number => ErrorCode::$name,)*
                    _ => ErrorCode::Unknown,
                }
            }

            /// The canonical name, as in `INVALID_ARGUMENT`.
            pub fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => $text,)*
                }
            }
        }
    };
}

error_codes! {
    Cancelled = 1, "CANCELLED";
    Unknown = 2, "UNKNOWN";
    InvalidArgument = 3, "INVALID_ARGUMENT";
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    NotFound = 5, "NOT_FOUND";
    AlreadyExists = 6, "ALREADY_EXISTS";
    PermissionDenied = 7, "PERMISSION_DENIED";
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    Aborted = 10, "ABORTED";
    OutOfRange = 11, "OUT_OF_RANGE";
    Unimplemented = 12, "UNIMPLEMENTED";
    Internal = 13, "INTERNAL";
    Unavailable = 14, "UNAVAILABLE";
    DataLoss = 15, "DATA_LOSS";
    Unauthenticated = 16, "UNAUTHENTICATED";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
