//! A running job with all its processes, wherever they are on this machine.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Outcome, behind, command, finish, start};

/// Set for all processes of a job, to find them by.
const MARK: &str = "SPMD_TEST_JOB";
/// A wait that takes longer fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A job, and the folder in which its processes make their temporary files.
pub struct Job {
    pub child: Child,
    mark: String,
    folder: TempDir,
}

/// A command that is ready to become a job.
pub struct Plan {
    pub command: Command,
    mark: String,
    folder: TempDir,
}

/// `spmd-run` with these arguments. Its hosts are this machine: what goes by ssh elsewhere goes through a shell.
pub fn plan<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Plan {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::create_dir(folder.path().join("tmp")).expect("a temporary folder");
    let mut plan = Plan { command: command(arguments), mark, folder };
    // As with ssh, the agent is one process and what it starts another.
    let agent = plan.script("ssh", "shift\nsh -c \"$1\"\n");
    let temporary = plan.temporary();
    plan.command.env(MARK, &plan.mark).env("TMPDIR", temporary).env("SPMD_SSH", agent);
    plan
}

impl Plan {
    /// Where its processes make their temporary files.
    fn temporary(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    /// A shell script of this name, beside the temporary files.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}")).expect("a script");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("a script");
        path
    }

    /// Gives its mark to processes that do not inherit it.
    pub fn export_mark(&mut self) {
        self.command.arg("-x").arg(MARK);
    }

    /// Takes this script in place of ssh. Its first parameter is the host, its second the command.
    pub fn with_agent(mut self, text: &str) -> Plan {
        let agent = self.script("agent", text);
        self.command.env("SPMD_SSH", agent);
        self
    }

    /// Runs the command behind these words, which run it in their place.
    pub fn behind(mut self, words: &[&str]) -> Plan {
        self.command = behind(words, &self.command);
        self
    }

    pub fn start(self) -> Job {
        Job { child: start(self.command), mark: self.mark, folder: self.folder }
    }

    pub fn run(self) -> Outcome {
        self.start().finish()
    }
}

impl Job {
    /// The processes that are alive, but for the launcher.
    pub fn processes(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.mark);
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_ours = |pid: &u32| variables(*pid).contains(&mark) && is_alive(*pid);
        pids.filter(|pid| *pid != self.child.id()).filter(is_ours).collect()
    }

    /// The controllers by their process index.
    pub fn controllers(&self) -> BTreeMap<u32, u32> {
        let index = |pid: u32| {
            let variables = variables(pid);
            let index = variables.iter().find_map(|variable| variable.strip_prefix("SPMD_PROCESS_INDEX="));
            Some((index?.parse().ok()?, pid))
        };
        self.processes().into_iter().filter_map(index).collect()
    }

    /// The helpers, in the order in which they were started.
    pub fn helpers(&self) -> Vec<u32> {
        let is_helper = |pid: &u32| {
            let words = words(*pid);
            words.get(1).is_some_and(|word| word == "__host") && words.get(2).is_some_and(|word| word != "--is")
        };
        self.processes().into_iter().filter(is_helper).collect()
    }

    /// Waits until all controllers are in collectives; returns them by their index.
    pub fn wait_until_running(&mut self, processes: usize) -> BTreeMap<u32, u32> {
        let start = Instant::now();
        loop {
            let controllers = self.controllers();
            if controllers.len() == processes && controllers.values().all(|pid| is_in_collectives(*pid)) {
                return controllers;
            }
            if self.child.try_wait().expect("a child's status").is_some() || start.elapsed() > PATIENCE {
                let _ = self.child.kill();
                let child = std::mem::replace(&mut self.child, Command::new("true").spawn().expect("true"));
                panic!("the job does not start: {}", finish(child).stderr);
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits for the launcher's end, and for that of all other processes. Nothing may be left behind.
    pub fn finish(self) -> Outcome {
        let (outcome, left) = self.finish_and_look(|_| false);
        assert!(left.is_empty(), "left behind: {left:?}\nstderr:\n{}", outcome.stderr);
        outcome
    }

    /// Waits for the launcher's end, and tells what is left behind some time later, but for what is excused.
    pub fn finish_and_look(mut self, is_excused: impl Fn(&str) -> bool) -> (Outcome, Vec<String>) {
        let child = std::mem::replace(&mut self.child, Command::new("true").spawn().expect("true"));
        let _ = self.child.wait();
        let outcome = finish(child);
        let start = Instant::now();
        let left_behind = || self.left_behind().into_iter().filter(|left| !is_excused(left)).collect::<Vec<_>>();
        // What a process leaves behind may take moments to end.
        while !left_behind().is_empty() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
        (outcome, left_behind())
    }

    fn left_behind(&self) -> Vec<String> {
        let processes = self.processes().into_iter().map(|pid| format!("process {pid} {}", words(pid).join(" ")));
        let files = std::fs::read_dir(self.folder.path().join("tmp")).expect("the folder").flatten();
        processes.chain(files.map(|file| file.path().display().to_string())).collect()
    }
}

/// Sends a signal to a process.
pub fn signal(pid: u32, signal: &str) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill starts");
    assert!(status.success(), "kill {signal} {pid}");
}

pub fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn is_in_collectives(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.any(|name| name.starts_with("collective"))
}

/// The variables with which a process was started.
pub fn variables(pid: u32) -> Vec<String> {
    parts(Path::new(&format!("/proc/{pid}/environ")))
}

/// A process's command line.
pub fn words(pid: u32) -> Vec<String> {
    parts(Path::new(&format!("/proc/{pid}/cmdline")))
}

fn parts(path: &Path) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}
