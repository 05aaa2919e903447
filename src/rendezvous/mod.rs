//! Where the processes of a job meet: who is there, a key-value store, barriers, and one fate for all.
//!
//! The coordinator runs on a thread of its own inside process 0. Every process, process 0 too, holds one TCP
//! connection to it, which carries requests, answers and heartbeats. A peer proves that it knows the job token before
//! anything else it sends is read, and the coordinator proves it in turn. What follows is neither encrypted nor signed unless
//! the job asks for it ([`Tls`]): then all of this happens in TLS.
//! No wait is without limit, and a wait that runs out says which processes are missing.
//!
//! ```
//! # use std::time::Duration;
//! # use spmd_run::rendezvous::{JoinOptions, Rendezvous, listen};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = listen("127.0.0.1:0")?;
//! let address = listener.local_addr()?.to_string();
//! let limit = Duration::from_secs(10);
//! let job = Rendezvous::join(JoinOptions {
//!     host_coordinator: Some(listener),
//!     ..JoinOptions::new(address, 0, 1, limit)
//! })?;
//! job.put("greeting", b"hello")?;
//! assert_eq!(job.get("greeting", limit)?, b"hello");
//! assert_eq!(job.all_gather("names", b"zero", limit)?, [b"zero"]);
//! job.shutdown(limit)?;
//! # Ok(())
//! # }
//! ```

mod client;
mod connect;
mod coordinator;
mod error;
mod estate;
mod handshake;
mod link;
mod local;
mod progress;
mod reach;
mod report;
mod status;
mod tls;
mod token;
mod wire;

use std::net::TcpListener;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use client::Rendezvous;
pub use connect::{listen, query_status};
pub use error::{JoinError, RendezvousError};
pub use local::local_jobs;
pub use progress::Progress;
pub use report::{Abort, Missing, MissingProcess, Place, ProcessList};
pub use status::{JobStatus, ProcessState, ProcessStatus};
pub use tls::Tls;
pub use token::{InvalidToken, JobId, JobToken};

/// Does with bytes from the network all that processes and the coordinator do. For fuzzing.
#[doc(hidden)]
pub fn take_untrusted(bytes: &[u8]) {
    wire::take_untrusted(bytes);
    coordinator::take_untrusted(bytes);
}

/// The most bytes that one value of the store, or all contributions to one all-gather, may have.
pub const MAX_VALUE_BYTES: usize = wire::MAX_BODY;

/// What a process says when it joins.
#[derive(Debug)]
pub struct JoinOptions {
    /// Where the coordinator listens, as `HOST:PORT`.
    pub coordinator: String,
    /// The socket to serve the coordinator on; for process 0, and only for it.
    pub host_coordinator: Option<TcpListener>,
    /// This process, from 0.
    pub process_index: u32,
    /// How many processes the job has; every process must say the same.
    pub process_count: u32,
    /// The secret all processes of the job share. Without one, only a loopback coordinator is allowed.
    pub token: Option<JobToken>,
    /// Whether connections are encrypted; the same for every process.
    pub tls: Option<Tls>,
    /// How long to wait until all processes have joined.
    pub timeout: Duration,
    /// How often signs of life are sent, and when they are missed. What process 0 says holds for all.
    pub heartbeat: Heartbeat,
    /// The name of this process's host, for messages only.
    pub host: String,
    /// The version of the program; every process must have the same.
    pub version: String,
    /// The slice that this process belongs to, from 0.
    pub slice: u32,
    /// The processes' hosts as far as they are known beforehand; process 0's are used, to say where one is missing.
    pub expected_hosts: Vec<String>,
    /// Where process 0 serves the job's status over HTTP, without any proof of who asks.
    pub metrics: Option<TcpListener>,
    /// Whether someone watches process 0's messages: then every change in who is missing is told at once.
    pub live: bool,
}

impl JoinOptions {
    /// Options without a token and without a coordinator to host; what is not given has its usual value.
    pub fn new(coordinator: impl Into<String>, process_index: u32, process_count: u32, timeout: Duration) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self {
            coordinator: coordinator.into(),
            host_coordinator: None,
            process_index,
            process_count,
            token: None,
            tls: None,
            timeout,
            heartbeat: Heartbeat::default(),
            host,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            slice: 0,
            expected_hosts: Vec::new(),
            metrics: None,
            live: false,
        }
    }
}

/// How often the coordinator and each process exchange a sign of life, and how long one may do without.
///
/// A process that ends is noticed at once by its closed connection, and a host that is gone within two seconds by what it
/// does not acknowledge. Signs of life find processes that are there and do not get on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The time between two signs of life.
    pub interval: Duration,
    /// How long a process may be silent, or wait for others in one collective. After half of it there is a warning, at the
    /// end the job is stopped.
    pub limit: Duration,
}

impl Heartbeat {
    /// With this limit, and signs of life at the usual interval or more often where the limit is short.
    pub fn within(limit: Duration) -> Self {
        let usual = Self::default();
        Self { interval: usual.interval.min(limit / 5).max(Duration::from_millis(10)), limit }
    }

    /// For a job of this many processes: one of thousands has longer intervals, so that its coordinator has other things to
    /// do as well.
    fn among(self, process_count: u32) -> Self {
        let interval = self.interval.max(Duration::from_micros(500) * process_count);
        Self { interval: interval.min(self.limit / 5).max(self.interval), ..self }
    }

    /// How many intervals the limit has.
    fn beats(&self) -> u32 {
        let beats = self.limit.as_millis().div_ceil(self.interval.as_millis().max(1));
        u32::try_from(beats).unwrap_or(u32::MAX).max(1)
    }
}

impl Default for Heartbeat {
    /// Every 400 ms, and ten minutes.
    fn default() -> Self {
        Self { interval: Duration::from_millis(400), limit: Duration::from_secs(600) }
    }
}
