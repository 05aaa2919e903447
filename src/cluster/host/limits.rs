//! Limits of a host and of the processes on it.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// Limits that jobs run into. Sizes are bytes, and what is `None` is not limited or cannot be told.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Limits {
    /// Open files of a process, `ulimit -n`; the launcher raises it as far as [`Limits::most_open_files`].
    pub open_files: Option<u64>,
    /// How far a process may raise that.
    pub most_open_files: Option<u64>,
    /// Memory that a process may lock, `ulimit -l`; fabrics and accelerators lock their buffers.
    pub locked_memory_bytes: Option<u64>,
    /// Size of `/dev/shm`, through which MPI libraries move messages on one host.
    pub shared_memory_bytes: Option<u64>,
    /// What of it is free.
    pub free_shared_memory_bytes: Option<u64>,
    /// Memory that can be had without swapping.
    pub available_memory_bytes: Option<u64>,
    /// When the kernel makes huge pages by itself: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
}

impl Limits {
    /// Those of this process, and of the host whose files are at `root`.
    pub fn here(root: &Path) -> Limits {
        let files = getrlimit(Resource::Nofile);
        let shared = rustix::fs::statvfs(root.join("dev/shm")).ok();
        let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
        Limits {
            open_files: files.current,
            most_open_files: files.maximum,
            locked_memory_bytes: getrlimit(Resource::Memlock).current,
            shared_memory_bytes: shared.as_ref().map(|shared| shared.f_blocks.saturating_mul(shared.f_frsize)),
            free_shared_memory_bytes: shared.as_ref().map(|shared| shared.f_bavail.saturating_mul(shared.f_frsize)),
            available_memory_bytes: available(&read("proc/meminfo")),
            transparent_huge_pages: chosen(&read("sys/kernel/mm/transparent_hugepage/enabled")),
        }
    }
}

/// `MemAvailable:   21608100 kB`
fn available(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// `always [madvise] never`
fn chosen(choices: &str) -> Option<String> {
    Some(choices.split_once('[')?.1.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel() {
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen(""), None);
        assert_eq!(available("MemFree: 1 kB\nMemAvailable:   21608 kB\n"), Some(21608 << 10));
        assert_eq!(available("MemAvailable: 18446744073709551615 kB"), None);
    }

    #[test]
    fn this_host_has_memory() {
        assert!(Limits::here(Path::new("/")).available_memory_bytes.unwrap() > 0);
    }
}
