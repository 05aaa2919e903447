//! What a job does when one of its processes fails.

mod harness;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Outcome, command, finish, run};

/// A job that runs for minutes when nothing happens to it.
const LONG: [&str; 3] = ["hlo/scan_layers.hlo", "--repeat", "1000000"];

/// Starts a command whose end is waited for with [`finish`].
fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spmd-run starts")
}

/// The processes that a process has started, in the order in which it did.
fn children(of: &Child) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", of.id());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Waits until all controllers are in collectives; returns their process ids.
fn wait_until_running(job: &Child, processes: usize) -> Vec<u32> {
    let start = Instant::now();
    loop {
        let pids = children(job);
        let is_running = |pid: &u32| {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
            names.any(|name| name.starts_with("collective"))
        };
        if pids.len() == processes && pids.iter().all(is_running) {
            return pids;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the job does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(pid: u32, signal: &str) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill starts");
    assert!(status.success());
}

fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[track_caller]
fn ended(outcome: &Outcome, code: i32, parts: &[&str], pids: &[u32]) {
    assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
    for part in parts {
        assert!(outcome.stderr.contains(part), "no {part:?} in:\n{}", outcome.stderr);
    }
    for &pid in pids {
        assert!(!is_alive(pid), "process {pid} is left behind");
    }
}

#[test]
fn a_killed_process_ends_the_job_and_is_named() {
    for victim in [0, 2] {
        let job = start(command(["-n", "4"].iter().chain(&LONG)));
        let pids = wait_until_running(&job, 4);
        signal(pids[victim], "-KILL");
        let outcome = finish(job);
        ended(&outcome, 137, &[&format!("process {victim} failed: killed by signal 9 (SIGKILL)")], &pids);
    }
}

#[test]
fn a_stopped_process_that_goes_on_does_no_harm() {
    let job = start(command(["-n", "2"].iter().chain(&LONG)));
    let pids = wait_until_running(&job, 2);
    signal(pids[1], "-STOP");
    std::thread::sleep(Duration::from_secs(2));
    signal(pids[1], "-CONT");
    std::thread::sleep(Duration::from_secs(1));
    assert!(pids.iter().all(|&pid| is_alive(pid)), "{:?}", finish(job));
    signal(job.id(), "-TERM");
    ended(&finish(job), 143, &["SIGTERM"], &pids);
}

#[test]
fn a_job_that_takes_too_long_is_ended() {
    for processes in ["1", "2"] {
        let outcome = run(command(["-n", processes, "--timeout", "1"].iter().chain(&LONG)));
        ended(&outcome, 1, &["the job did not end within 1 s (--timeout)"], &[]);
    }
}

#[test]
fn a_process_that_is_stuck_is_named() {
    let job = start(command(["-n", "2", "--stall-timeout", "2"].iter().chain(&LONG)));
    let pids = wait_until_running(&job, 2);
    signal(pids[1], "-STOP");
    let outcome = finish(job);
    ended(&outcome, 3, &["process 1"], &pids);
}

#[test]
fn a_signal_ends_the_whole_job() {
    let job = start(command(["-n", "2"].iter().chain(&LONG)));
    let pids = wait_until_running(&job, 2);
    signal(job.id(), "-TERM");
    ended(&finish(job), 143, &["SIGTERM"], &pids);
}

#[test]
fn processes_started_by_hand_join() {
    let by_hand = |address: &str, index: &str, program: &str| {
        let arguments = ["-n", "2", "--coordinator", address, "--process-id", index, program, "--fill", "ones"];
        let mut command = command(arguments);
        command.env("SPMD_JOB_TOKEN", "0123456789abcdef0123456789abcdef");
        command
    };
    let free_address = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("its address").to_string()
    };
    let address = free_address();
    let first = start(by_hand(&address, "0", "hlo/tp_mlp.hlo"));
    let second = run(by_hand(&address, "1", "hlo/tp_mlp.hlo"));
    let first = finish(first);
    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}{}", first.stderr, second.stderr);
    assert!(first.stdout.contains("2 processes × 2 devices"), "{}", first.stdout);
    assert_eq!(second.stdout, "");

    let address = free_address();
    let first = start(by_hand(&address, "0", "hlo/tp_mlp.hlo"));
    let second = run(by_hand(&address, "1", "hlo/moe.hlo"));
    for outcome in [finish(first), second] {
        let message = "the program files differ: process 1 has another one than process 0";
        assert!(outcome.code != Some(0) && outcome.stderr.contains(message), "{outcome:?}");
    }
}

#[test]
fn a_process_that_never_comes_is_named() {
    let arguments = ["-n", "3", "--coordinator", "127.0.0.1:0", "--process-id", "0", "--rendezvous-timeout", "1"];
    let outcome = run(command(arguments.iter().chain(&["hlo/moe.hlo"])));
    ended(&outcome, 3, &["missing 2 of 3: process 1, 2"], &[]);
}
