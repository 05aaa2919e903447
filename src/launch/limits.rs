//! Whether this machine has room for the processes of a job, before any of them is started.

use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

/// What a controller takes at the very least, with a plugin and one small program.
const LEAST_MEMORY: u64 = 16 << 20;
/// Descriptors that the launcher holds for each controller: two pipes and the memory for its phase.
const DESCRIPTORS: u64 = 3;
/// Descriptors that the launcher needs for itself.
const OWN_DESCRIPTORS: u64 = 64;

/// More processes than this machine can run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} processes are too many for this machine, which has room for {room}: {reason}")]
pub struct TooMany {
    /// How many were asked for.
    pub asked: u32,
    /// How many might be started.
    pub room: u64,
    /// What is short.
    pub reason: String,
}

/// Checks the limits on memory, processes and open files. The latter is raised as far as this process may.
pub(super) fn check(processes: u32) -> Result<(), TooMany> {
    let asked = u64::from(processes);
    let too_many = |room, reason| Err(TooMany { asked: processes, room, reason });
    if let Some(available) = available_memory()
        && asked.saturating_mul(LEAST_MEMORY) > available
    {
        let reason =
            format!("{} MiB of memory are available, each takes more than {}", mib(available), mib(LEAST_MEMORY));
        return too_many(available / LEAST_MEMORY, reason);
    }
    // The system does not hold the superuser to this limit.
    if let Some(limit) = getrlimit(Resource::Nproc).current.filter(|_| !geteuid().is_root())
        && asked > limit
    {
        return too_many(limit, format!("a user may have {limit} processes (ulimit -u)"));
    }
    let needed = asked * DESCRIPTORS + OWN_DESCRIPTORS;
    let files = getrlimit(Resource::Nofile);
    if let (Some(current), maximum) = (files.current, files.maximum)
        && needed > current
    {
        let raised = Rlimit { current: Some(maximum.map_or(needed, |maximum| maximum.min(needed))), maximum };
        let current = setrlimit(Resource::Nofile, raised).map_or(Some(current), |()| raised.current);
        if let Some(current) = current.filter(|&current| needed > current) {
            let room = current.saturating_sub(OWN_DESCRIPTORS) / DESCRIPTORS;
            return too_many(room, format!("a process may have {current} open files (ulimit -n)"));
        }
    }
    Ok(())
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// Bytes that can be had without swapping, as far as the system tells.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_processes_fit_and_billions_do_not() {
        check(4).unwrap();
        let error = check(u32::MAX).unwrap_err();
        assert!(error.room > 0 && error.room < u64::from(u32::MAX), "{error}");
        assert!(error.reason.contains("MiB of memory are available"), "{error}");
    }
}
