//! Runs commands under Open MPI's `mpirun`, where it is installed.

use std::ffi::OsStr;
use std::process::Command;

/// `mpirun -n N` of a command, in the repository's root; `None` without Open MPI.
pub fn mpirun<A: AsRef<OsStr>>(processes: u32, command: impl IntoIterator<Item = A>) -> Option<Command> {
    let version = Command::new("mpirun").arg("--version").output();
    if !version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI")) {
        eprintln!("skipped: Open MPI's mpirun is not installed");
        return None;
    }
    let mut mpirun = Command::new("mpirun");
    // Tests may run in containers, as root and with fewer cores than processes.
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", &processes.to_string()]);
    mpirun.args(command).current_dir(super::root());
    Some(mpirun)
}
