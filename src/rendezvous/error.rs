//! What can go wrong at the rendezvous.

use std::io;
use std::time::Duration;

use super::report::{Abort, Missing, Seconds};
use super::token::JobId;
use crate::channel::IdentityError;

/// Why a process could not join its job.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The options contradict themselves.
    #[error("{0}")]
    Options(String),
    /// Without a token only a loopback coordinator is allowed.
    #[error(
        "the coordinator {0} can be reached from other machines and this job has no token: set SPMD_JOB_TOKEN to the \
         same secret for every process, or use a loopback address"
    )]
    TokenNeeded(String),
    /// The coordinator's socket could not be opened.
    #[error("cannot listen on {address}: {}", listen_advice(.source))]
    Listen {
        /// The address asked for.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The coordinator's host name has no address.
    #[error(
        "cannot find the coordinator's host '{host}': {reason} (tried for {}): check its spelling; under Kubernetes the \
         pods need a headless service that publishes addresses which are not ready",
        Seconds(*.waited)
    )]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        reason: String,
        /// How long it was tried.
        waited: Duration,
    },
    /// Nobody answers at the coordinator's address.
    #[error("cannot reach {address}: {reason} (tried for {})", Seconds(*.waited))]
    Unreachable {
        /// The address, with what it resolved to when that differs.
        address: String,
        /// What the system said.
        reason: String,
        /// How long it was tried.
        waited: Duration,
    },
    /// Something else listens at the coordinator's address.
    #[error("{0} is not a coordinator of spmd-run: another program listens there")]
    NotACoordinator(String),
    /// The coordinator speaks another version of the protocol.
    #[error(
        "the coordinator at {address} speaks rendezvous protocol {theirs}, this process {ours}: use the same version \
         of spmd-run on every host"
    )]
    Protocol {
        /// The coordinator's address.
        address: String,
        /// This process's version.
        ours: u16,
        /// The coordinator's version.
        theirs: u16,
    },
    /// Another job's coordinator listens there.
    #[error(
        "the coordinator at {address} is of job {theirs}, this process belongs to job {ours}: another job has this port, \
         or SPMD_JOB_TOKEN is not the same for every process"
    )]
    OtherJob {
        /// The coordinator's address.
        address: String,
        /// This process's job.
        ours: JobId,
        /// The coordinator's job.
        theirs: JobId,
    },
    /// One of the two does not know the other's token.
    #[error("the coordinator at {address} has another job token: {}", token_advice(*.had_token))]
    Token {
        /// The coordinator's address.
        address: String,
        /// Whether this process has a token.
        had_token: bool,
    },
    /// One of the two has TLS and the other has not, or does not trust the other's certificate.
    #[error("cannot talk to the coordinator at {address}: {reason}")]
    Tls {
        /// The coordinator's address.
        address: String,
        /// What stands against it, said of the coordinator.
        reason: String,
    },
    /// This process's own certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Process 0 may not open as many connections as the job has processes.
    #[error(
        "a job of {process_count} processes needs {needed} open files in process 0, which may have {limit}: raise the \
         limit there (ulimit -n)"
    )]
    OpenFiles {
        /// The job's processes.
        process_count: u32,
        /// What the coordinator needs.
        needed: u64,
        /// What it may have.
        limit: u64,
    },
    /// The coordinator does not accept this process.
    #[error("{0}")]
    Refused(String),
    /// Others did not join in time.
    #[error("{0}")]
    TimedOut(Missing),
    /// The job was stopped while processes were still joining.
    #[error("{0}")]
    Aborted(Abort),
    /// The system failed otherwise.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn listen_advice(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is in use, perhaps by another job: stop that one or choose another port".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "this is not an address of this machine: process 0 hosts the coordinator and must run there".to_owned()
        }
        io::ErrorKind::PermissionDenied => format!("{error}: ports below 1024 need privileges"),
        _ => error.to_string(),
    }
}

fn token_advice(had_token: bool) -> &'static str {
    if had_token {
        "SPMD_JOB_TOKEN must be the same for every process of a job"
    } else {
        "this process has none, set SPMD_JOB_TOKEN to the one of the job"
    }
}

/// Why something asked of the rendezvous was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    /// Others did not come in time.
    #[error("{0}")]
    TimedOut(Missing),
    /// Nobody put the key in time.
    #[error("waited {} for key '{key}': no process has put it", Seconds(*.waited))]
    KeyMissing {
        /// The key.
        key: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The job was stopped.
    #[error("{0}")]
    Aborted(Abort),
    /// The coordinator cannot do this.
    #[error("{0}")]
    Rejected(String),
    /// The coordinator lives but did not answer.
    #[error("the coordinator did not answer within {}", Seconds(*.waited))]
    NoAnswer {
        /// How long its answer was waited for.
        waited: Duration,
    },
    /// This process has already left the job.
    #[error("this process has already left the job")]
    Left,
}
