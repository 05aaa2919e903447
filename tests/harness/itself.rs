//! Tests that start themselves again in all processes of a job.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use spmd_run::runtime::Runtime;

use super::{Outcome, command, run};

/// Which part of a test a process takes part in.
pub const PART: &str = "SPMD_TEST_PART";
pub const FOLDER: &str = "SPMD_TEST_FOLDER";

/// Runs `body` in every process of a job of so many processes with so many devices each.
#[track_caller]
pub fn on(test: &str, part: &str, (processes, devices): (u32, u32), folder: &Path, body: impl FnOnce(&Runtime, &Path)) {
    if let Some(outcome) = job(test, part, (processes, devices), folder, body) {
        outcome.success(&format!("{test}, {part}, on {processes} × {devices}"));
    }
}

/// As [`on`], and tells how the job ended; `None` in its processes.
pub fn job(
    test: &str,
    part: &str,
    (processes, devices): (u32, u32),
    folder: &Path,
    body: impl FnOnce(&Runtime, &Path),
) -> Option<Outcome> {
    if let Some(chosen) = std::env::var_os(PART) {
        if chosen == part {
            let runtime = Runtime::init().unwrap();
            assert_eq!((runtime.process_count(), runtime.device_count()), (processes, (processes * devices) as usize));
            body(&runtime, Path::new(&std::env::var_os(FOLDER).unwrap()));
            runtime.shutdown().unwrap();
        }
        return None;
    }
    let (processes, devices) = (processes.to_string(), devices.to_string());
    let program = std::env::current_exe().unwrap().into_os_string();
    let job = ["-n", &processes, "--devices-per-process", &devices, "--"].map(OsString::from);
    let mut command = command(job.into_iter().chain([program]));
    command.args(["--exact", test, "--nocapture"]).env(PART, part).env(FOLDER, folder);
    Some(run(command))
}

/// Waits until another process has put up this notice.
pub fn wait_for(runtime: &Runtime, notice: &str) {
    while !runtime.world().is_posted(notice).unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
