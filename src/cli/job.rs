//! Options that every command with controller processes takes, and who this process is under them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{Failure, Format};

#[derive(Args)]
pub struct JobOptions {
    /// Controller processes, one per host by default
    #[arg(short = 'n', long = "processes", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    processes: Option<u32>,

    /// CPU devices per process [default: the program's devices ÷ N, else 1]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub devices_per_process: Option<u32>,

    /// PJRT plugin: a known name or the path of a shared library
    #[arg(long, value_name = "NAME|PATH")]
    pub plugin: Option<String>,

    /// Data plane between processes
    #[arg(long, value_enum, default_value = "auto")]
    transport: Transport,

    /// Join the job whose process 0 listens at this address (started by hand, with --process-id and -n)
    #[arg(long, value_name = "HOST:PORT", requires = "process_id", requires = "processes")]
    coordinator: Option<String>,

    /// This process's index in a job started by hand
    #[arg(long, value_name = "I", requires = "coordinator")]
    process_id: Option<u32>,

    /// File with the secret that all processes of a job started by hand share [default: $SPMD_JOB_TOKEN]
    #[arg(long, value_name = "FILE", requires = "coordinator")]
    token_file: Option<PathBuf>,

    /// Seconds until all processes must have joined
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub rendezvous_timeout: Duration,

    /// Seconds that a process waits for the others in a collective or at a barrier
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub stall_timeout: Duration,

    /// Seconds until the whole job must have ended
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,

    /// Form of the results on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,

    #[command(flatten)]
    later: LaterOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Auto,
    Tcp,
    Shm,
    Mpi,
}

/// Options whose names are taken, so that they get a better answer than "unknown flag".
#[derive(Args)]
struct LaterOptions {
    #[arg(long, hide = true)]
    hosts: Option<String>,
    #[arg(long, hide = true)]
    hostfile: Option<PathBuf>,
    #[arg(long, hide = true)]
    slices: Option<u32>,
}

/// A number of seconds, fractions allowed.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("must be more than 0 seconds".to_owned()),
    }
}
