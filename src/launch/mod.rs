//! Starts the controller processes of a job and watches them.
//!
//! [`local()`] starts them on this machine. They learn their place from environment variables, which
//! [`ControllerEnv::from_env`] reads back.

mod environment;
mod local;
mod output;
mod signals;

pub use environment::{ControllerEnv, EnvironmentError};
pub use local::{LaunchError, LocalJob, Outcome, PEER_FAILED, local};
