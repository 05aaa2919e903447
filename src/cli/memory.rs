//! Large blocks of memory in huge pages.
//!
//! Every step of a program has results in fresh memory, which the system hands out page by page when it is first
//! touched: for large results that takes several times as long as computing them. With pages of 2 MiB it does not.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What the C library reads its settings from.
pub const VARIABLE: &str = "GLIBC_TUNABLES";
const SETTING: &str = "glibc.malloc.hugetlb";

/// Has the C library ask for huge pages, for this process and those that it starts. The library reads its settings only
/// when a program begins, so this begins the program anew unless the setting was made.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn use_huge_pages() {
    let mut settings = std::env::var_os(VARIABLE).unwrap_or_default();
    // SAFETY: only reads what the system told this process. Where this is set, the library drops the variable.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_privileged || settings.to_string_lossy().contains(SETTING) {
        return;
    }
    if !settings.is_empty() {
        settings.push(":");
    }
    settings.push(format!("{SETTING}=1"));
    let mut arguments = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_else(|| OsString::from(env!("CARGO_PKG_NAME"))));
    // Returns only if that is not possible: then without.
    let _ = command.args(arguments).env(VARIABLE, settings).exec();
}

/// Other C libraries have no such setting.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn use_huge_pages() {}
