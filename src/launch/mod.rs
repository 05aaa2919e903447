//! Starts the controller processes of a job and watches them.
//!
//! [`local()`] starts them on this machine. They learn their place from environment variables, which
//! [`ControllerEnv::from_env`] reads back. When one is ended by a signal, the launcher tells in which [`phase`] it was, and
//! what it printed last.

mod environment;
mod last_words;
mod limits;
mod local;
mod output;
pub mod phase;
mod settings;
mod signals;

pub use environment::{ControllerEnv, EnvironmentError};
pub use limits::TooMany;
pub use local::{Failed, LaunchError, LocalJob, Outcome, PEER_FAILED, local};
pub use settings::Settings;
