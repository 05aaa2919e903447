//! Jobs whose processes are started by hand, each by a command of its own.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use spmd_run::rendezvous::JobToken;

use super::{command, run};

/// The secret that the processes share.
pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// An address at which nobody listens.
pub fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its address").to_string()
}

/// The options that say which process of which job one is.
pub fn place(address: &str, index: usize, count: usize) -> [String; 6] {
    ["-n", &count.to_string(), "--coordinator", address, "--process-id", &index.to_string()].map(str::to_owned)
}

/// Process `index` of a job of two.
pub fn process(address: &str, index: usize, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    command.args(place(address, index, 2)).env(JobToken::VARIABLE, TOKEN);
    command
}

/// Asks a job how it is doing.
pub fn status(address: &str) -> Command {
    let mut command = command(["status", "--coordinator", address]);
    command.env(JobToken::VARIABLE, TOKEN);
    command
}

/// Waits until a job's status tells that so many processes are active and make steps; returns it.
pub fn wait_for_steps(status: impl Fn() -> Command, processes: usize) -> String {
    let start = Instant::now();
    loop {
        let told = run(status());
        let is_idle = ["step       0,", "moved      0 B"].iter().any(|idle| told.stdout.contains(idle));
        if told.stdout.contains(&format!("{processes} active")) && !is_idle {
            return told.stdout;
        }
        assert!(start.elapsed() < Duration::from_secs(100), "the job does not start: {told:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
