//! The examples, each on 1, 2 and 4 processes.

mod harness;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use harness::by_hand::{self, TOKEN, free_address};
use harness::job::plan as plan_job;
use harness::mpirun::mpirun;
use harness::{Outcome, spmd_run};
use spmd_run::rendezvous::JobToken;

/// The file of an example. Cargo builds examples by itself only when it is asked for no tests in particular.
fn example(name: &str) -> PathBuf {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        // Tests lie in target/PROFILE/deps, examples beside that folder.
        let test = std::env::current_exe().expect("a test has a file");
        let profile = test.parent().and_then(|deps| deps.parent()).expect("a target folder");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--examples"]).current_dir(harness::root());
        cargo.args(profile.ends_with("release").then_some("--release"));
        assert!(cargo.status().expect("cargo starts").success(), "the examples do not build");
        profile.join("examples")
    });
    BUILT.join(name)
}

/// Runs an example on so many processes with so many devices each.
fn start(name: &str, processes: usize, devices: usize, arguments: &[&str], input: &str) -> Outcome {
    let (processes, devices) = (processes.to_string(), devices.to_string());
    let job = ["-n", &processes, "--devices-per-process", &devices, "--"].map(OsString::from);
    let arguments = arguments.iter().map(OsString::from);
    let mut command = harness::command(job.into_iter().chain([example(name).into()]).chain(arguments));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("spmd-run cannot be started");
    let written = child.stdin.take().expect("stdin is piped").write_all(input.as_bytes());
    let outcome = harness::finish(child).success(&format!("{name} on {processes} × {devices}"));
    written.expect("it reads its input");
    outcome
}

/// As [`start`], with few steps of training; for the others it is an argument that they do not read.
fn run(name: &str, processes: usize, devices: usize) -> Outcome {
    start(name, processes, devices, &["40"], "")
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
    let losses: Vec<f32> = whole.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    assert!(losses.len() == 4 && losses.is_sorted_by(|a, b| a > b), "{whole}");
}

/// Few steps of a small GPT, the loss of each shown.
fn train_gpt(processes: usize, devices: usize, more: &[&str]) -> Outcome {
    let arguments = ["--steps", "3", "--layers", "1", "--every", "1"];
    start("train_gpt", processes, devices, &[&arguments, more].concat(), "")
}

#[test]
fn a_gpt_learns_the_same_on_any_number_of_processes_and_answers_requests() {
    let folder = tempfile::tempdir().expect("a folder");
    let (weights, curve) = (folder.path().join("weights"), folder.path().join("loss.svg"));
    let (saved, drawn) = (weights.to_str().expect("a path"), curve.to_str().expect("a path"));
    let losses = |outcome: &Outcome| -> Vec<f32> {
        outcome.stdout.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
    };
    let alone = losses(&train_gpt(1, 1, &[]));
    let pairs = train_gpt(2, 2, &["--save", saved, "--plot", drawn]);
    assert_eq!(train_gpt(4, 1, &[]).stdout, pairs.stdout);
    assert_eq!((alone.len(), losses(&pairs).len()), (3, 3), "{pairs:?}");
    for (found, expected) in losses(&pairs).into_iter().zip(&alone) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
    assert!(alone.is_sorted_by(|a, b| a > b), "{alone:?}");
    assert!(std::fs::read_to_string(curve).expect("the curve").contains("<polyline"));

    let requests = "ORLANDO\tWhat\n\nAll the world's a stage, and all the men and women merely players\n";
    let answers = |processes, devices| start("batched_inference", processes, devices, &[saved], requests).stdout;
    let alone = answers(1, 1);
    let texts: Vec<String> = alone.lines().map(|line| serde_json::from_str(line).expect("a string")).collect();
    assert!(texts.len() == 3 && texts.iter().all(|text| text.len() == 32), "{alone}");
    assert_eq!(answers(4, 1), alone);
}

#[test]
fn a_step_exported_from_jax_trains_as_in_jax() {
    let values = harness::root().join("examples/data/train_step.npz");
    let losses = spmd_run::host_array::npz::read_npz(&values).expect("values").remove("losses").expect("losses");
    let losses = losses.into_host_array(spmd_run::dtype::DType::F32, &[40]).expect("losses of 40 steps");
    let losses = losses.to_elements::<f32>().expect("floats");
    let arguments = ["examples/data/train_step.mlirbc", "examples/data/train_step.npz", "40"];
    let outputs = [(1, 4), (2, 2), (4, 1)]
        .map(|(processes, devices)| start("train_exported_step", processes, devices, &arguments, "").stdout);
    assert_eq!(outputs[0], outputs[1]);
    assert_eq!(outputs[0], outputs[2]);
    let found: Vec<f32> = outputs[0].lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    assert_eq!(found.len(), 4, "{}", outputs[0]);
    for (found, expected) in found.iter().zip(losses.chunks(10).filter_map(|steps| steps.last())) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}

#[test]
fn an_example_runs_alone() {
    let mut command = Command::new(example("train_mlp"));
    command.arg("40").current_dir(harness::root());
    let alone = harness::run(command).success("train_mlp alone");
    // The plugin is quiet, too.
    assert_eq!((alone.stdout, &*alone.stderr), (run("train_mlp", 1, 1).stdout, ""));
}

/// Processes that torchrun starts, or Ray, know their place from its variables.
#[test]
fn an_example_joins_the_job_of_a_scheduler() {
    let address = free_address();
    let port = address.rsplit_once(':').expect("HOST:PORT").1;
    let start = |rank: &str| {
        let mut command = Command::new(example("all_reduce"));
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)]);
        harness::start(command)
    };
    let outcomes = ["0", "1"].map(start).map(|child| harness::finish(child).success("all_reduce"));
    assert_eq!(outcomes[0].stdout, "[[  3.0  30.0 300.0]]\n");
    assert_eq!(outcomes[1].stdout, "");
}

/// A program learns of `--tls` from its environment.
#[test]
fn an_example_joins_an_encrypted_job() {
    let job = ["-n", "2", "--tls", "--transport", "auto", "--"].map(OsString::from);
    let outcome = spmd_run(job.into_iter().chain([example("all_reduce").into()])).success("all_reduce");
    assert_eq!(outcome.stdout, "[[  3.0  30.0 300.0]]\n");
    let address = free_address();
    let program = example("all_reduce");
    let program = ["--rendezvous-timeout", "8", "--", program.to_str().expect("a path")];
    let start = |index, tls: &[&str]| {
        let mut command = harness::command(by_hand::place(&address, index, 2));
        command.args(tls).args(program).env(JobToken::VARIABLE, TOKEN);
        harness::start(command)
    };
    let (first, second) = (start(0, &["--tls"]), start(1, &[]));
    let second = harness::finish(second);
    assert!(second.stderr.contains("it runs with --tls, this process without"), "{}", second.stderr);
    assert_eq!((harness::finish(first).code, second.code), (Some(3), Some(3)));
}

#[test]
fn an_example_joins_the_job_of_mpirun() {
    let Some(command) = mpirun(2, [example("all_reduce")]) else { return };
    let outcome = harness::run(command).success("all_reduce under mpirun");
    assert_eq!(outcome.stdout, "[[  3.0  30.0 300.0]]\n");
}

#[test]
fn a_failure_is_told_once() {
    let job = ["-n", "3", "--"].map(OsString::from);
    let outcome = spmd_run(job.into_iter().chain([example("train_mlp").into(), "no number".into()]));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let told = outcome.stderr.strip_suffix("error: no number: invalid digit found in string\n");
    assert!(told.is_some_and(|process| process.len() <= "[1] ".len()), "{outcome:?}");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let outcome = spmd_run(["-n", "2", "--", "target/no such program"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    insta::assert_snapshot!(outcome.stderr, @"error: target/no such program: No such file or directory (os error 2)");
    let outcome = spmd_run(["-n", "2", "--", "no-such-program"]);
    insta::assert_snapshot!(outcome.stderr, @"error: no-such-program: no such program on the PATH; one in this folder is ./no-such-program");
}

/// How often a job is killed; once for each of these random numbers.
fn kills() -> u64 {
    std::env::var("SPMD_TEST_KILLS").map_or(3, |kills| kills.parse().expect("SPMD_TEST_KILLS is a number"))
}

/// The last line that `resume_after_kill` prints: the loss with its bits.
fn last_loss(outcome: &Outcome) -> &str {
    outcome.stdout.lines().last().filter(|line| line.starts_with("step 120: loss ")).expect("a loss")
}

/// Checks that all that looks like a checkpoint is one.
fn assert_whole(folder: &Path) {
    let checkpoints = std::fs::read_dir(folder).expect("checkpoints").map(|entry| entry.expect("an entry").path());
    let checkpoints: Vec<PathBuf> =
        checkpoints.filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] != b'.')).collect();
    assert_eq!(checkpoints.len(), 3, "{checkpoints:?}");
    for checkpoint in checkpoints {
        let manifest = std::fs::read(checkpoint.join("manifest.json")).expect("a manifest");
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("a whole manifest");
        for (file, length) in manifest["files"].as_object().expect("files") {
            let metadata = std::fs::metadata(checkpoint.join(file)).expect("a file");
            assert_eq!(Some(metadata.len()), length.as_u64(), "{}: {file}", checkpoint.display());
        }
    }
}

#[test]
fn a_killed_job_ends_with_the_same_loss() {
    let plan = |folder: &Path, restarts: &str| {
        let (checkpoints, logs) = (folder.join("checkpoints"), folder.join("logs"));
        let job =
            ["-n", "2", "--devices-per-process", "2", "--max-restarts", restarts, "--log-dir"].map(OsString::from);
        let program = [logs.into(), "--".into(), example("resume_after_kill").into(), checkpoints.into(), "120".into()];
        plan_job(job.into_iter().chain(program))
    };
    let folder = tempfile::tempdir().expect("a folder");
    let undisturbed = plan(folder.path(), "0").run().success("an undisturbed run");
    let expected = last_loss(&undisturbed);
    for kill in 0..kills() {
        // Which process, at which step, and how long after it: checkpoints are written meanwhile.
        let random = blake3::hash(format!("{kill} {}", std::process::id()).as_bytes());
        let [process, step, delay, ..] = *random.as_bytes();
        let (victim, step) = (u32::from(process % 2), u64::from(step) % 11 * 10 + 10);
        let folder = tempfile::tempdir().expect("a folder");
        let mut job = plan(folder.path(), "1").start();
        let log = folder.path().join("logs/process-0.out");
        let has_come = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains(&format!("step {step}: ")));
        while !has_come() && job.child.try_wait().expect("a child's status").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(u64::from(delay) * 100));
        let what = format!("killed process {victim} {} ms after step {step}", f64::from(delay) / 10.0);
        let pid = job.controllers().get(&victim).and_then(|&pid| Pid::from_raw(pid as i32));
        // It may have ended by now.
        let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        let outcome = job.finish().success(&what);
        assert_eq!(last_loss(&outcome), expected, "{what}\n{outcome:?}");
        assert_whole(&folder.path().join("checkpoints"));
        eprintln!("{what}: {} restarts", outcome.stderr.matches("restart 1 of 1").count());
    }
}
