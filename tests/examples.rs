//! The examples, each on 1, 2 and 4 processes.

mod harness;

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use harness::{Outcome, spmd_run};

fn example(name: &str) -> PathBuf {
    // Tests lie in target/PROFILE/deps, examples beside that folder.
    let test = std::env::current_exe().expect("a test has a file");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("a target folder").join("examples");
    let path = folder.join(name);
    assert!(path.exists(), "{}: build it with cargo build --examples", path.display());
    path
}

/// Runs an example on so many processes with so many devices each.
fn run(name: &str, processes: usize, devices: usize) -> Outcome {
    let (processes, devices) = (processes.to_string(), devices.to_string());
    let program = example(name);
    let job = ["-n", &processes, "--devices-per-process", &devices, "--"].map(OsString::from);
    // Few steps of training, for the others an argument that they do not read.
    spmd_run(job.into_iter().chain([program.into(), "40".into()]))
        .success(&format!("{name} on {processes} × {devices}"))
}

/// The output on four devices, which is the same however many processes have them.
fn on_four_devices(name: &str) -> String {
    let outputs = [(1, 4), (2, 2), (4, 1)].map(|(processes, devices)| run(name, processes, devices).stdout);
    assert_eq!(outputs[0], outputs[1], "{name}");
    assert_eq!(outputs[0], outputs[2], "{name}");
    outputs[0].clone()
}

#[test]
fn hello_sees_all_devices() {
    insta::assert_snapshot!(run("hello", 1, 1).stdout, @"
    processes: 1, devices: 1
    cpu [0]
    ");
    insta::assert_snapshot!(run("hello", 2, 2).stdout, @"
    processes: 2, devices: 4
    cpu [0, 1]
    cpu [2, 3]
    ");
    insta::assert_snapshot!(run("hello", 4, 1).stdout, @"
    processes: 4, devices: 4
    cpu [0]
    cpu [1]
    cpu [2]
    cpu [3]
    ");
}

#[test]
fn all_reduce_sums_over_devices() {
    insta::assert_snapshot!(run("all_reduce", 1, 1).stdout, @"[[  1.0  10.0 100.0]]");
    insta::assert_snapshot!(on_four_devices("all_reduce"), @"[[  10.0  100.0 1000.0]]");
}

#[test]
fn a_sharded_product_is_the_product() {
    let whole = run("sharded_matmul", 1, 1).stdout;
    assert_eq!(on_four_devices("sharded_matmul"), whole);
    insta::assert_snapshot!(whole, @"64 × 64: the elements' sum is 69");
}

#[test]
fn a_perceptron_learns_on_any_number_of_processes() {
    let whole = run("train_mlp", 1, 1).stdout;
    assert_eq!(on_four_devices("train_mlp"), whole);
    insta::assert_snapshot!(whole, @"");
}

#[test]
fn an_example_runs_alone() {
    let mut command = Command::new(example("train_mlp"));
    command.arg("40").current_dir(harness::root());
    let alone = harness::run(command).success("train_mlp alone");
    assert_eq!(alone.stdout, run("train_mlp", 1, 1).stdout);
}

/// Processes that torchrun starts, or Ray, know their place from its variables.
#[test]
fn an_example_joins_the_job_of_a_scheduler() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
    let start = |rank: &str| {
        let mut command = Command::new(example("all_reduce"));
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
        command.env("MASTER_PORT", port.to_string()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let outcomes = ["0", "1"].map(start).map(|child| harness::finish(child).success("all_reduce"));
    assert_eq!(outcomes[0].stdout, "[[  3.0  30.0 300.0]]\n");
    assert_eq!(outcomes[1].stdout, "");
}

#[test]
fn a_failure_is_told_once() {
    let job = ["-n", "3", "--"].map(OsString::from);
    let outcome = spmd_run(job.into_iter().chain([example("train_mlp").into(), "no number".into()]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), "error: invalid digit found in string\n"));
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let outcome = spmd_run(["-n", "2", "--", "target/no such program"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("target/no such program: No such file"), "{}", outcome.stderr);
}
