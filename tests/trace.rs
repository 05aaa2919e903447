//! Files that show how a job went, and the line that shows how it goes.

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use spmd_run::builder::Builder;
use spmd_run::dtype::DType::F32;
use spmd_run::host_array::HostArray;
use spmd_run::mesh::Mesh;
use spmd_run::runtime::{Array, Program, Runtime};

use harness::job::{plan, signal};
use harness::{Outcome, command, fails, run, spmd_run};

const PROGRAM: &str = "hlo/dp_tp_mlp_step.hlo";

/// A slice of the trace; times in nanoseconds.
#[derive(Debug)]
struct Slice {
    category: String,
    name: String,
    line: (u64, u64),
    start: u64,
    end: u64,
    args: Value,
}

fn read(path: &Path) -> (Value, Vec<Slice>) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let trace: Value = serde_json::from_str(&text).unwrap();
    let nanoseconds = |value: &Value| (value.as_f64().unwrap() * 1000.0).round() as u64;
    let events = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    let slice = |event: &Value| {
        let start = nanoseconds(&event["ts"]);
        Slice {
            category: event["cat"].as_str().unwrap().to_owned(),
            name: event["name"].as_str().unwrap().to_owned(),
            line: (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap()),
            start,
            end: start + nanoseconds(&event["dur"]),
            args: event["args"].clone(),
        }
    };
    let slices = events.map(slice).collect();
    (trace["otherData"].clone(), slices)
}

/// Fails unless on each line a slice lies within the one that it begins in.
fn check_nesting(slices: &[Slice]) {
    let mut lines: BTreeMap<(u64, u64), Vec<&Slice>> = BTreeMap::new();
    slices.iter().for_each(|slice| lines.entry(slice.line).or_default().push(slice));
    for slices in lines.values_mut() {
        slices.sort_by_key(|slice| (slice.start, std::cmp::Reverse(slice.end)));
        let mut open: Vec<&Slice> = Vec::new();
        for slice in slices {
            while open.last().is_some_and(|outer| outer.end <= slice.start) {
                open.pop();
            }
            assert!(open.last().is_none_or(|outer| slice.end <= outer.end), "{slice:?} is cut off by {open:?}");
            open.push(slice);
        }
    }
}

fn of<'a>(slices: &'a [Slice], category: &str, process: u64) -> Vec<&'a Slice> {
    slices.iter().filter(|slice| slice.category == category && slice.line.0 == process).collect()
}

/// Whether phases have these names, among others.
#[track_caller]
fn has_phases(slices: &[Slice], process: u64, names: &[&str]) {
    let phases: BTreeSet<&str> = of(slices, "phase", process).iter().map(|slice| &*slice.name).collect();
    for name in names {
        assert!(phases.contains(name), "process {process} has no '{name}' but {phases:?}");
    }
}

#[test]
fn all_processes_steps_and_collectives_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let (json, html) = (folder.path().join("run.json"), folder.path().join("run.html"));
    let mut job = command(["-n", "2", "--devices-per-process", "4", "--warmup", "1", "--repeat", "4"]);
    job.arg("--trace").arg(&json).arg("--report").arg(&html).arg(PROGRAM);
    let outcome = run(job).success("a traced job");
    assert_eq!(outcome.stderr, "");
    let (metadata, slices) = read(&json);
    assert_eq!((&metadata["process_count"], &metadata["events_dropped"]), (&2.into(), &0.into()));
    assert_eq!(metadata["processes_missing"], Value::Array(Vec::new()));
    check_nesting(&slices);

    has_phases(&slices, 0, &["rendezvous", "parse", "prepare", "partition", "lower", "compile", "load arguments"]);
    has_phases(&slices, 1, &["rendezvous", "load the plugin", "compile", "load arguments"]);
    for process in 0..2 {
        let steps: BTreeSet<(u64, u64)> = of(&slices, "step", process)
            .iter()
            .map(|slice| (slice.args["device"].as_u64().unwrap(), slice.args["step"].as_u64().unwrap()))
            .collect();
        let expected = (4 * process..4 * process + 4).flat_map(|device| (1..=5).map(move |step| (device, step)));
        assert_eq!(steps, expected.collect());
        assert_eq!(of(&slices, "step", process).len(), 20);
    }

    // Gradients of a layer's halves of weights and biases over the data axis, whose groups are every other device.
    let sizes = BTreeMap::from([
        ("all-reduce.1", 32 * 32 * 4),
        ("all-reduce.2", 32 * 4),
        ("all-reduce.3", 32 * 16 * 4),
        ("all-reduce.4", 16 * 4),
        ("all-reduce.5", 4),
    ]);
    let mut calls: BTreeMap<(String, u64, String), Vec<&Slice>> = BTreeMap::new();
    for slice in slices.iter().filter(|slice| slice.category == "collective") {
        let args = &slice.args;
        assert_eq!((&args["op"], &args["bytes"]), (&"all-reduce".into(), &sizes[&*slice.name].into()));
        let parts = ["combined_us", "exchanged_us"].map(|part| args[part].as_f64().unwrap());
        let sum = parts.iter().sum::<f64>() * 1000.0;
        assert!((sum - (slice.end - slice.start) as f64).abs() < 1.0, "{slice:?}");
        let key = (slice.name.clone(), args["step"].as_u64().unwrap(), args["group"].to_string());
        calls.entry(key).or_default().push(slice);
    }
    assert_eq!(calls.len(), sizes.len() * 5 * 2);
    let error = (metadata["clock_error_us"].as_f64().unwrap() * 1000.0) as u64;
    for ((.., group), slices) in &calls {
        assert!(["[0,2,4,6]", "[1,3,5,7]"].contains(&&**group), "{group}");
        let processes: BTreeSet<u64> = slices.iter().map(|slice| slice.line.0).collect();
        assert_eq!((processes.len(), slices.len()), (2, 2), "{slices:?}");
        // No process is done before all have come, on one clock.
        let (begun, done) = (slices.iter().map(|it| it.start).max(), slices.iter().map(|it| it.end).min());
        assert!(begun.unwrap() <= done.unwrap() + error, "{slices:?}");
    }
    // Each device is in each of its collectives.
    assert_eq!(slices.iter().filter(|slice| slice.category == "call").count(), 8 * 5 * 5);

    let page = std::fs::read_to_string(html).unwrap();
    for part in [
        "dp_tp_mlp_step: 2 processes, 8 devices",
        "Time per step",
        "Devices",
        "device 7 (cpu)",
        "Who waits for whom",
        "Collectives",
        "all-reduce.3",
        "2.00 KiB",
        "A typical step",
        "The whole job",
        "prefers-color-scheme",
    ] {
        assert!(page.contains(part), "no {part:?} in the report");
    }
    for reference in ["http:", "https:", " src=", " href=", "@import", "url("] {
        let found = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!found.contains(reference), "{reference} in the report");
    }
}

#[test]
fn a_single_process_is_traced_and_a_check_too() {
    let folder = tempfile::tempdir().unwrap();
    let (json, html) = (folder.path().join("run.json"), folder.path().join("run.html"));
    let mut job = command(["--devices-per-process", "8", "--repeat", "3", PROGRAM]);
    job.arg("--trace").arg(&json).arg("--report").arg(&html);
    run(job).success("a traced job of one process");
    let (_, slices) = read(&json);
    check_nesting(&slices);
    assert_eq!(of(&slices, "step", 0).len(), 8 * 3);
    assert!(slices.iter().all(|slice| slice.category != "collective"));
    assert!(std::fs::read_to_string(&html).unwrap().contains("the plugin carries its collectives out by itself"));

    let mut check = command(["-n", "2", "--devices-per-process", "4", "--check", PROGRAM]);
    check.arg("--trace").arg(&json).arg("--report").arg(&html);
    run(check).success("a traced check");
    let (_, slices) = read(&json);
    has_phases(&slices, 1, &["compile"]);
    assert!(slices.iter().all(|slice| slice.category == "phase"));
    assert!(std::fs::read_to_string(&html).unwrap().contains("Beside the steps"));
}

#[test]
fn what_there_is_of_a_stopped_job_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        // Its collectives have groups that overlap.
        let program = "hlo/subgroups.hlo";
        let mut plan = plan(["-n", "2", "--repeat", "100000000", "--fill", "random:0", program]);
        plan.command.arg("--trace").arg(&json);
        let mut job = plan.start();
        job.wait_until_running(2);
        signal(job.child.id(), name);
        fails(&job.finish(), code, &["stopped by signal"]);
        let (metadata, slices) = read(&json);
        assert_eq!(metadata["processes_missing"], Value::Array(Vec::new()));
        check_nesting(&slices);
        assert!((0..2).all(|process| !of(&slices, "step", process).is_empty()), "{name}: a process has no step");
        std::fs::remove_file(&json).unwrap();
    }
}

#[test]
fn what_there_is_of_a_job_whose_time_is_over_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    for processes in ["1", "4"] {
        let mut plan = plan(["-n", processes, "--timeout", "5", "--repeat", "100000000", "hlo/scan_layers.hlo"]);
        plan.command.arg("--trace").arg(&json);
        let outcome = plan.run();
        fails(&outcome, 1, &["the job did not end within 5 s (--timeout)"]);
        assert!(!outcome.stderr.contains("PJRT"), "{}", outcome.stderr);
        let (metadata, slices) = read(&json);
        assert_eq!(metadata["processes_missing"], Value::Array(Vec::new()));
        check_nesting(&slices);
        std::fs::remove_file(&json).unwrap();
    }
}

#[test]
fn what_is_left_of_a_failed_job_is_written() {
    // Process 1 ends in its third step, or process 0 does.
    for (culprit, file, there) in [("1", "run.json", vec![0, 2]), ("0", "run.process-2.json", vec![2])] {
        let folder = tempfile::tempdir().unwrap();
        let Some(outcome) =
            program_job("what_is_left_of_a_failed_job_is_written", &["-n", "3"], folder.path(), culprit)
        else {
            return;
        };
        assert_eq!(outcome.code, Some(128 + 9), "{}", outcome.stderr);
        let (metadata, slices) = read(&folder.path().join(file));
        let missing: Vec<u64> = (0..3).filter(|process| !there.contains(process)).collect();
        assert_eq!(metadata["processes_missing"], Value::from(missing));
        check_nesting(&slices);
        for process in there {
            assert!(of(&slices, "step", process).len() >= 2, "{slices:?}");
            has_phases(&slices, process, &["rendezvous", "compile"]);
        }
    }
}

#[test]
fn programs_are_traced_by_their_launcher_and_alone() {
    let folder = tempfile::tempdir().unwrap();
    let name = "programs_are_traced_by_their_launcher_and_alone";
    let Some(outcome) = program_job(name, &["-n", "2"], folder.path(), "nobody") else { return };
    outcome.success("a traced program");
    let (_, slices) = read(&folder.path().join("run.json"));
    assert_eq!([0, 1].map(|process| of(&slices, "step", process).len()), [4, 4]);
    let reduced = of(&slices, "collective", 1);
    assert_eq!((reduced.len(), &reduced[0].args["bytes"]), (4, &4.into()), "{reduced:?}");

    std::fs::remove_file(folder.path().join("run.json")).unwrap();
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", name, "--nocapture"]).env(FOLDER, folder.path()).env(CULPRIT, "nobody");
    alone.env("SPMD_TRACE", folder.path().join("run.json"));
    run(alone).success("a traced program without a launcher");
    assert_eq!(of(&read(&folder.path().join("run.json")).1, "step", 0).len(), 4);
}

const FOLDER: &str = "SPMD_TEST_FOLDER";
const CULPRIT: &str = "SPMD_TEST_CULPRIT";

/// Runs this test again as a program that takes four steps, in which the process `culprit` kills itself after the second.
/// How its job ended; `None` in its processes.
fn program_job(test: &str, options: &[&str], folder: &Path, culprit: &str) -> Option<Outcome> {
    if std::env::var_os(FOLDER).is_some() {
        steps();
        return None;
    }
    let mut job = command(options);
    job.arg("--trace").arg(folder.join("run.json")).arg("--").arg(std::env::current_exe().unwrap());
    job.args(["--exact", test, "--nocapture"]).env(FOLDER, folder).env(CULPRIT, culprit);
    Some(run(job))
}

fn steps() {
    let runtime = Runtime::init().unwrap();
    let devices = runtime.device_count();
    let mesh = Mesh::new(&[("data", devices)]).unwrap();
    let sharding = mesh.sharding(("data",)).unwrap();
    let b = Builder::new("sum");
    let x = b.sharded_parameter("x", F32, &[devices as i64], &sharding);
    let program = Program::compile(&runtime, b.build(&[x.sum(&[])]).unwrap()).unwrap();
    let ones = HostArray::from_elements(&[devices], &vec![1f32; devices]).unwrap();
    let x = Array::from_host(&runtime, &ones, &sharding).unwrap();
    for step in 0..4 {
        if step == 2 && std::env::var(CULPRIT).unwrap() == runtime.process_index().to_string() {
            // SAFETY: a signal to this process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        if let Err(error) = program.run(&[&x]) {
            runtime.world().abort(&error.to_string());
            std::process::exit(3);
        }
    }
    // So that there is something to see on a terminal.
    if std::env::var(CULPRIT).unwrap() == "slow" {
        println!("a line of its own");
        std::thread::sleep(Duration::from_secs(3));
    }
    runtime.shutdown().unwrap();
}

#[test]
fn files_that_cannot_be_written_are_told() {
    let job = |options: &[&str]| spmd_run([&["-n", "2", "--devices-per-process", "4", PROGRAM], options].concat());
    fails(&job(&["--trace", "/nonexistent/run.json"]), 1, &["error: cannot write /nonexistent/run.json: No such file"]);
    fails(&job(&["--report", "/"]), 1, &["error: cannot write /: "]);
    fails(&job(&["--trace", "a", "--report", "a"]), 2, &["--trace and --report: these are two files"]);
    fails(&job(&["--trace", "/dev/full"]), 1, &["error: cannot write /dev/full: No space left on device"]);
    let alone = spmd_run([PROGRAM, "--devices-per-process", "8", "--report", "/dev/full"]);
    fails(&alone, 1, &["error: cannot write /dev/full: No space left on device"]);
}

#[test]
fn a_terminal_shows_how_far_the_job_is() {
    let name = "a_terminal_shows_how_far_the_job_is";
    if std::env::var_os(FOLDER).is_some() {
        return steps();
    }
    let shown = on_a_terminal(&["-n", "2"], name);
    assert!(shown.contains("step 4"), "{shown}");
    // What processes print is on lines of its own.
    assert!(shown.contains("[1] a line of its own\r\n"), "{shown}");
}

#[test]
fn a_terminal_shows_the_processes_of_all_hosts() {
    let name = "a_terminal_shows_the_processes_of_all_hosts";
    if std::env::var_os(FOLDER).is_some() {
        return steps();
    }
    let shown = on_a_terminal(&["--hosts", "a,b", "-x", FOLDER, "-x", CULPRIT], name);
    // Each host tells of its own: of b when its process has not joined yet, and of both, as all have begun a step that is shown.
    assert!(shown.contains("joining: 1 of 2, missing process 1"), "{shown}");
    assert!(shown.contains("step 4"), "{shown}");
    assert!(shown.contains("[1 b] a line of its own\r\n"), "{shown}");
}

/// What a terminal shows of a job in which process 1 joins late, and which takes its time after its last step.
fn on_a_terminal(options: &[&str], test: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let late = format!("[ $SPMD_PROCESS_INDEX = 0 ] || sleep 3; exec {} --exact {test} --nocapture", program.display());
    let mut plan = plan(options);
    plan.command.args(["--", "sh", "-c", &late]).env(FOLDER, ".").env(CULPRIT, "slow");
    // Gives the command a terminal.
    let terminal = plan.script("terminal", "exec script -qec \"$(printf \"'%s' \" \"$@\")\" /dev/null\n");
    let outcome = plan.behind(&[terminal.to_str().unwrap()]).run().success("a job on a terminal");
    outcome.stdout
}

#[test]
fn elsewhere_there_is_no_line() {
    let quiet = command(["-n", "2", "--devices-per-process", "4", "--repeat", "50", PROGRAM]);
    let outcome = run(quiet).success("a job without a terminal");
    assert!(!outcome.stderr.contains("step") && !outcome.stderr.contains('\r'), "{}", outcome.stderr);
}
