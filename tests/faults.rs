//! What a job does when one of its processes fails.

mod harness;

use std::process::Child;
use std::time::Duration;

use ::spmd_run::rendezvous::{JobId, JobToken};
use harness::by_hand::{self, TOKEN, free_address};
use harness::job::{is_alive, plan, signal};
use harness::{command, fails, finish, run, spmd_run, start};

/// A job that runs for minutes when nothing happens to it.
const LONG: [&str; 3] = ["hlo/scan_layers.hlo", "--repeat", "1000000"];

#[test]
fn a_killed_process_ends_the_job_and_is_named() {
    for victim in [0, 2] {
        let mut job = plan(["-n", "4"].iter().chain(&LONG)).start();
        let pids = job.wait_until_running(4);
        signal(pids[&victim], "-KILL");
        let outcome = job.finish();
        fails(&outcome, 137, &[&format!("process {victim} failed: killed by signal 9 (SIGKILL)")]);
    }
}

#[test]
fn a_stopped_process_that_goes_on_does_no_harm() {
    let mut job = plan(["-n", "2"].iter().chain(&LONG)).start();
    let pids = job.wait_until_running(2);
    signal(pids[&1], "-STOP");
    std::thread::sleep(Duration::from_secs(2));
    signal(pids[&1], "-CONT");
    std::thread::sleep(Duration::from_secs(1));
    assert!(pids.values().all(|pid| is_alive(*pid)), "{:?}", job.finish());
    signal(job.child.id(), "-TERM");
    fails(&job.finish(), 143, &["SIGTERM"]);
}

#[test]
fn a_job_that_takes_too_long_is_ended() {
    for processes in ["1", "2"] {
        let outcome = run(command(["-n", processes, "--timeout", "1"].iter().chain(&LONG)));
        fails(&outcome, 1, &["the job did not end within 1 s (--timeout)"]);
    }
}

#[test]
fn a_process_that_is_stuck_is_named() {
    let mut job = plan(["-n", "2", "--stall-timeout", "2"].iter().chain(&LONG)).start();
    let pids = job.wait_until_running(2);
    signal(pids[&1], "-STOP");
    let outcome = job.finish();
    fails(&outcome, 3, &["no progress for 2", "process 1 (", "has been silent for 2", "process 0 ("]);
    assert!(outcome.stderr.contains("the job ends after 2 s: "), "{}", outcome.stderr);
}

#[test]
fn a_signal_ends_the_whole_job() {
    let mut job = plan(["-n", "2"].iter().chain(&LONG)).start();
    job.wait_until_running(2);
    signal(job.child.id(), "-TERM");
    fails(&job.finish(), 143, &["SIGTERM"]);
}

#[test]
fn processes_started_by_hand_join() {
    let address = free_address();
    let program = ["hlo/tp_mlp.hlo", "--fill", "ones"];
    let first = start(by_hand::process(&address, 0, &program));
    let second = run(by_hand::process(&address, 1, &program));
    let first = finish(first);
    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}{}", first.stderr, second.stderr);
    assert!(first.stdout.contains("2 processes × 2 devices"), "{}", first.stdout);
    assert_eq!(second.stdout, "");
}

#[test]
fn processes_with_different_jobs_are_told_in_what_they_differ() {
    let changed = tempfile::tempdir().expect("a folder");
    let changed = changed.path().join("changed.hlo");
    let text = std::fs::read_to_string(harness::root().join("hlo/tp_mlp.hlo")).expect("the sample");
    std::fs::write(&changed, text.replacen("tanh(", "negate(", 1)).expect("a copy");
    let changed = changed.to_str().expect("a path");
    let cases: [([&[&str]; 2], &[&str]); 3] = [
        (
            [&["hlo/tp_mlp.hlo"], &[changed]],
            &[
                "the processes do not do the same job:\nprogram\n  process 0 (",
                "the first difference of process 0 and 1 in ENTRY ",
                "negate(",
            ],
        ),
        (
            [&["hlo/tp_mlp.hlo", "--transport", "tcp"], &["hlo/tp_mlp.hlo"]],
            &["\n--transport\n  process 0 (", "): tcp\n  process 1 (", "): auto"],
        ),
        (
            [&["hlo/tp_mlp.hlo", "--fill", "ones"], &["hlo/tp_mlp.hlo", "--fill", "zeros"]],
            &["\narg0\n  process 0 (", "filled with Ones\n  process 1 (", "filled with Zeros"],
        ),
    ];
    for ([first, second], parts) in cases {
        let address = free_address();
        let first = start(by_hand::process(&address, 0, first));
        let second = run(by_hand::process(&address, 1, second));
        for outcome in [finish(first), second] {
            fails(&outcome, 3, parts);
        }
    }
}

#[test]
fn the_status_of_a_running_job_is_shown() {
    let address = free_address();
    let arguments = [&LONG[..], &["--timeout", "300"]].concat();
    let jobs = [0, 1].map(|index| start(by_hand::process(&address, index, &arguments)));
    let id = JobId::of(Some(&TOKEN.parse().expect("a token"))).to_string();
    let status = by_hand::wait_for_steps(|| by_hand::status(&address), 2);
    assert!(status.starts_with(&format!("job {id}, up for ")), "{status}");
    // Other tests have jobs as well.
    let local = spmd_run(["status", "--format", "json"]).success("status");
    let local: serde_json::Value = serde_json::from_str(&local.stdout).expect("JSON");
    let this = local.as_array().expect("a list").iter().find(|job| job["job"] == *id).expect("the job").clone();
    assert_eq!((&this["process_count"], &this["device_count"]), (&2.into(), &4.into()));
    assert!(this["step"].as_u64() > Some(0) && this["sent_bytes"].as_u64() > Some(0), "{this}");

    let watch = start_watch(&address);
    for job in &jobs {
        signal(job.id(), "-TERM");
    }
    for job in jobs {
        finish(job);
    }
    finish(watch).success("the watched job's end");
    let gone = run(by_hand::status(&address));
    fails(&gone, 3, &[&format!("cannot reach {address}: connection refused")]);
}

fn start_watch(address: &str) -> Child {
    let mut command = by_hand::status(address);
    command.args(["--watch", "--every", "0.1"]);
    let mut watch = start(command);
    // It has seen the job once it has printed something.
    std::io::Read::read_exact(watch.stdout.as_mut().expect("stdout is piped"), &mut [0; 4]).expect("a first look");
    watch
}

#[test]
fn a_process_of_another_job_is_told_so() {
    let address = free_address();
    let first = start(by_hand::process(&address, 0, &["hlo/tp_mlp.hlo"]));
    let mut other = by_hand::process(&address, 1, &["hlo/tp_mlp.hlo"]);
    other.env(JobToken::VARIABLE, TOKEN.replace('0', "x"));
    fails(&run(other), 3, &["is of job ", ", this process belongs to job "]);
    let again = run(by_hand::process(&address, 0, &["hlo/tp_mlp.hlo"]));
    fails(&again, 3, &[&format!("cannot listen on {address}: the port is in use, perhaps by another job")]);
    let second = run(by_hand::process(&address, 1, &["hlo/tp_mlp.hlo"]));
    assert_eq!((second.code, finish(first).code), (Some(0), Some(0)), "{}", second.stderr);
}

#[test]
fn processes_listen_where_they_are_told_to() {
    for place in [["--bind", "127.0.0.1"], ["--interface", "lo"]] {
        let address = free_address();
        let arguments = [&["hlo/tp_mlp.hlo"], &place[..]].concat();
        let first = start(by_hand::process(&address, 0, &arguments));
        let second = run(by_hand::process(&address, 1, &arguments));
        assert_eq!((second.code, finish(first).code), (Some(0), Some(0)), "{}", second.stderr);
    }
    let wrong = run(by_hand::process(&free_address(), 0, &["hlo/tp_mlp.hlo", "--interface", "nope0"]));
    fails(&wrong, 2, &["--interface nope0: this host has no such interface"]);
}

#[test]
fn a_process_that_never_comes_is_named() {
    let arguments = ["-n", "3", "--coordinator", "127.0.0.1:0", "--process-id", "0", "--rendezvous-timeout", "1"];
    let outcome = run(command(arguments.iter().chain(&["hlo/moe.hlo"])));
    fails(&outcome, 3, &["missing 2 of 3: process 1, 2"]);
}
