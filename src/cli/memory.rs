//! How the C library, from which plugins take memory, deals with large blocks.
//!
//! Every step of a program has results in fresh memory, which the system clears and hands out page by page when it is
//! first touched: for large results that takes longer than computing them. So memory that a step gives back is kept for
//! the next one, and comes in pages of 2 MiB.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What the C library reads its settings from.
pub const VARIABLE: &str = "GLIBC_TUNABLES";

/// Huge pages; no blocks that go back to the system when they are freed, thus from one arena that has no upper limit and
/// is not cut back.
const SETTINGS: [(&str, &str); 4] = [
    ("glibc.malloc.hugetlb", "1"),
    ("glibc.malloc.mmap_max", "0"),
    ("glibc.malloc.arena_max", "1"),
    ("glibc.malloc.trim_threshold", "1099511627776"),
];

/// Makes the settings for this process and those that it starts, but for those that were made before. The library reads
/// them only when a program begins, so this begins the program anew.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn keep_large_blocks() {
    let mut settings = std::env::var_os(VARIABLE).unwrap_or_default();
    // SAFETY: only reads what the system told this process. Where this is set, the library drops the variable.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let before = settings.to_string_lossy().into_owned();
    let missing = SETTINGS.iter().filter(|(name, _)| !before.contains(name));
    if is_privileged || missing.clone().count() == 0 {
        return;
    }
    for (name, value) in missing {
        if !settings.is_empty() {
            settings.push(":");
        }
        settings.push(format!("{name}={value}"));
    }
    let mut arguments = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_else(|| OsString::from(env!("CARGO_PKG_NAME"))));
    // Returns only if that is not possible: then without.
    let _ = command.args(arguments).env(VARIABLE, settings).exec();
}

/// Other C libraries have no such settings.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_large_blocks() {}
