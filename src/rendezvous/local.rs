//! The jobs of this user whose process 0 runs on this machine.
//!
//! Each of these processes has a Unix socket in the kernel's abstract namespace, whose name holds its process id. It tells
//! the job's status to processes of the same user, for which the kernel vouches: no token is needed, nothing lies on a
//! disk, and nothing is left when the process is gone.

use std::fs;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::getuid;

use super::status::JobStatus;

const PREFIX: &str = "spmd-run/status/";
/// Where the kernel lists Unix sockets, abstract ones with an `@` before their names.
const SOCKETS: &str = "/proc/net/unix";
/// How long a job may take to answer.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest answer.
const LONGEST: u64 = 64 << 20;

pub(super) fn socket_name(pid: u32) -> String {
    format!("{PREFIX}{pid}")
}

/// The process ids of those process 0 that run here, and their jobs' status. Those of other users are left out, also for
/// root.
pub fn local_jobs() -> io::Result<Vec<(u32, JobStatus)>> {
    let sockets = fs::read_to_string(SOCKETS)?;
    let names = sockets.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'));
    let mut pids: Vec<u32> = names.filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok()).collect();
    pids.sort_unstable();
    pids.dedup();
    // One that has just ended, or does not answer, has no status.
    Ok(pids.into_iter().filter_map(|pid| Some((pid, ask(pid).ok()??))).collect())
}

/// `None` if the socket is another user's.
fn ask(pid: u32) -> io::Result<Option<JobStatus>> {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(socket_name(pid))?)?;
    stream.set_read_timeout(Some(LIMIT))?;
    if socket_peercred(&stream)?.uid != getuid() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    stream.by_ref().take(LONGEST).read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map(Some).map_err(io::Error::other)
}
