//! Running a helper program to its end, within a time limit.

use std::io::{self, Read, Seek};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What a program that ended by itself left behind.
pub(super) struct Output {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs `command` without standard input; past the limit it is killed and the error is `TimedOut`.
pub(super) fn run(mut command: Command, limit: Duration) -> io::Result<Output> {
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let mut child = command.spawn()?;
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no end within {} s", limit.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |file: &mut std::fs::File| -> io::Result<String> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Output { status, stdout: text(&mut stdout)?, stderr: text(&mut stderr)? })
}
