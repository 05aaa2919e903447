//! The local launcher with real processes. This test program runs itself again as the launcher and as controllers.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use spmd_run::launch::{ControllerEnv, Job, PEER_FAILED, run};
use spmd_run::rendezvous::{Heartbeat, JoinOptions, Rendezvous, RendezvousError};

/// Long enough for a loaded machine; reaching it means a hang.
const LONG: Duration = Duration::from_secs(60);
const SCRIPT: &str = "SPMD_TEST_SCRIPT";
const ROLE: &str = "SPMD_TEST_ROLE";
const COUNT: &str = "SPMD_TEST_COUNT";
const PATIENCE_MS: &str = "SPMD_TEST_PATIENCE_MS";

/// Not a test of its own: the launcher that other tests start.
#[test]
fn launcher_process() {
    let Ok(count) = std::env::var(COUNT) else { return };
    let mut job = if let Ok(script) = std::env::var(SCRIPT) {
        let mut job = Job::new(count.parse().unwrap(), "/bin/sh");
        job.args = vec!["-c".into(), script.into()];
        job
    } else {
        let mut job = Job::new(count.parse().unwrap(), std::env::current_exe().unwrap());
        job.args = ["--exact", "controller_process", "--nocapture"].map(Into::into).into();
        job
    };
    let patience = std::env::var(PATIENCE_MS).map_or(LONG, |ms| Duration::from_millis(ms.parse().unwrap()));
    job.grace = patience;
    job.stop_timeout = patience;
    job.kill_after = patience;
    let outcome = run(&job).unwrap();
    eprintln!("{outcome}");
    std::process::exit(outcome.exit_code().into());
}

/// Not a test of its own: a controller that meets the others.
#[test]
fn controller_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let place = ControllerEnv::from_env().unwrap().unwrap();
    let index = place.process_index;
    let job = Rendezvous::join(JoinOptions {
        host_coordinator: place.listener,
        token: place.token,
        host: String::new(),
        heartbeat: Heartbeat { interval: Duration::from_millis(100), limit: Duration::from_secs(5) },
        ..JoinOptions::new(place.coordinator, index, place.process_count, LONG)
    });
    let job = job.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        std::process::exit(PEER_FAILED.into())
    });
    let all = job.all_gather("indices", &[index as u8], LONG).unwrap_or_else(stopped).concat();
    eprintln!("met {all:?}");
    let victim = index == place.process_count / 2;
    match &*role {
        "meet" => {}
        "paused" => {
            eprintln!("ready {}", std::process::id());
            if index == 0 {
                std::io::stdin().read_line(&mut String::new()).unwrap();
            }
            job.barrier("resumed", LONG).unwrap_or_else(stopped);
        }
        "killed" if victim => kill_process(rustix::process::getpid(), Signal::KILL).unwrap(),
        "killed first" if index == 0 => kill_process(rustix::process::getpid(), Signal::KILL).unwrap(),
        "killed in shutdown" if victim => {
            std::thread::sleep(Duration::from_millis(300));
            kill_process(rustix::process::getpid(), Signal::KILL).unwrap()
        }
        "killed in shutdown" => {}
        "fails" if victim => {
            job.abort("no such file");
            std::process::exit(1);
        }
        _ => job.barrier("never", LONG).unwrap_or_else(stopped),
    }
    std::thread::sleep(Duration::from_millis(u64::from(index) * 50));
    job.shutdown(LONG).unwrap_or_else(stopped);
    std::process::exit(0);
}

fn stopped<T>(error: RendezvousError) -> T {
    match error {
        RendezvousError::Aborted(abort) => {
            eprintln!("error: {abort}");
            std::process::exit(PEER_FAILED.into())
        }
        other => panic!("{other}"),
    }
}

fn launcher(count: u32) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "launcher_process", "--nocapture"]).env(COUNT, count.to_string());
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn script(count: u32, script: &str) -> Command {
    let mut command = launcher(count);
    command.env(SCRIPT, script);
    command
}

fn role(count: u32, role: &str) -> Command {
    let mut command = launcher(count);
    command.env(ROLE, role);
    command
}

/// What a launcher printed to standard output, without the test harness's own first lines.
fn results(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.strip_prefix("\nrunning 1 test\n").unwrap().to_owned()
}

/// The lines on standard error in a fixed order.
fn sorted_lines(output: &Output) -> Vec<String> {
    let mut lines: Vec<_> = String::from_utf8(output.stderr.clone()).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// A launcher whose processes have said `ready PID` on standard error.
struct Running {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    pids: Vec<Pid>,
}

impl Running {
    fn start(mut command: Command, ready: usize) -> Self {
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut pids = Vec::new();
        while pids.len() < ready {
            let mut line = String::new();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "the launcher ended early");
            if let Some((_, pid)) = line.trim().split_once("ready ") {
                pids.push(Pid::from_raw(pid.parse().unwrap()).unwrap());
            }
        }
        Self { child, stderr, pids }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the launcher's end, and for the end of all processes that said they are ready.
    fn finish(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        let deadline = Instant::now() + LONG;
        for pid in self.pids {
            while is_running(pid) {
                assert!(Instant::now() < deadline, "{pid:?} was left behind");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        (status, rest)
    }
}

/// Whether a process exists and is more than a zombie that its new parent has not collected yet.
fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
    test_kill_process(pid).is_ok() && !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z')
}

const READY_CHILD: &str = "echo ready $$ >&2; sleep 1000 & echo ready $! >&2; ";

#[test]
fn results_and_logs_go_different_ways() {
    let output =
        script(3, "echo out $SPMD_PROCESS_INDEX of $SPMD_PROCESS_COUNT; printf 'no newline' >&2").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(results(&output), "out 0 of 3\n");
    let lines = [
        "[0] no newline",
        "[1] no newline",
        "[1] out 1 of 3",
        "[2] no newline",
        "[2] out 2 of 3",
        "all processes succeeded",
    ];
    assert_eq!(sorted_lines(&output), lines);
}

#[test]
fn only_process_0_gets_the_socket_and_all_get_the_same_token() {
    let output = script(
        3,
        "echo ${#SPMD_JOB_TOKEN} ${SPMD_COORDINATOR_FD:-none} $SPMD_JOB_TOKEN $(tr '\\0' ' ' </proc/$$/cmdline | grep -c $SPMD_JOB_TOKEN) >&2",
    );
    let output = { output }.output().unwrap();
    let lines = sorted_lines(&output);
    let fields: Vec<Vec<_>> = lines.iter().map(|line| line.split(' ').collect()).collect();
    assert_eq!([fields[0][1], fields[1][1], fields[2][1]], ["64"; 3]);
    assert!(fields[0][2].parse::<u32>().is_ok());
    assert_eq!([fields[1][2], fields[2][2]], ["none"; 2]);
    assert_eq!([fields[1][3], fields[2][3]], [fields[0][3]; 2]);
    assert_eq!([fields[0][4], fields[1][4], fields[2][4]], ["0"; 3], "on no command line");
}

#[test]
fn lines_of_many_processes_are_never_torn() {
    let output =
        script(4, "i=0; while [ $i -lt 500 ]; do printf begin; printf -- -$i-; echo end; i=$((i+1)); done >&2")
            .output()
            .unwrap();
    let mut expected: Vec<_> = (0..4).flat_map(|p| (0..500).map(move |i| format!("[{p}] begin-{i}-end"))).collect();
    expected.push("all processes succeeded".to_owned());
    expected.sort();
    assert_eq!(sorted_lines(&output), expected);
}

#[test]
fn process_0_reads_standard_input() {
    let mut child = script(2, "cat").stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"given\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(results(&output), "given\n");
    assert_eq!(sorted_lines(&output), ["all processes succeeded"]);
}

#[test]
fn the_first_failure_is_the_cause_and_the_others_are_ended() {
    let mut command =
        script(4, &format!("[ $SPMD_PROCESS_INDEX = 2 ] && exit 7; {READY_CHILD} trap 'exit 1' TERM; wait"));
    command.env(PATIENCE_MS, "300");
    let (status, rest) = Running::start(command, 6).finish();
    insta::assert_snapshot!(rest.trim(), @"process 2 failed: exit code 7");
    assert_eq!(status.code(), Some(7));
}

#[test]
fn a_killed_process_is_named_with_its_signal() {
    let output = script(2, "[ $SPMD_PROCESS_INDEX = 1 ] && kill -9 $$; exit 0").output().unwrap();
    insta::assert_snapshot!(sorted_lines(&output).join("\n"), @"process 1 failed: killed by signal 9 (SIGKILL)");
    assert_eq!(output.status.code(), Some(137));
}

#[test]
fn a_process_that_ended_because_of_another_is_not_the_cause() {
    let output = script(2, "[ $SPMD_PROCESS_INDEX = 0 ] && exit 3; sleep 0.3; exit 5").output().unwrap();
    insta::assert_snapshot!(sorted_lines(&output).join("\n"), @"process 1 failed: exit code 5");
    let output = script(2, "exit 3").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn processes_that_ignore_sigterm_are_killed() {
    let mut command =
        script(2, "trap '' TERM; echo ready $$ >&2; [ $SPMD_PROCESS_INDEX = 1 ] && exit 9; while :; do sleep 1; done");
    command.env(PATIENCE_MS, "200");
    let (status, rest) = Running::start(command, 2).finish();
    insta::assert_snapshot!(rest.trim(), @"process 1 failed: exit code 9");
    assert_eq!(status.code(), Some(9));
}

#[test]
fn signals_are_handed_on_to_whole_process_groups() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let running = Running::start(script(2, &format!("{READY_CHILD} wait")), 4);
        running.signal(signal);
        let (status, rest) = running.finish();
        assert_eq!(status.code(), Some(code), "{rest}");
        assert!(rest.starts_with(&format!("stopped by signal {}", code - 128)), "{rest}");
    }
}

#[test]
fn processes_that_end_well_after_a_signal_make_a_good_end() {
    let running = Running::start(script(2, "trap 'exit 0' TERM; echo ready $$ >&2; while :; do sleep 0.1; done"), 2);
    running.signal(Signal::TERM);
    assert_eq!(running.finish().0.code(), Some(0));
}

#[test]
fn a_stopped_process_delays_no_end() {
    let running = Running::start(script(2, "echo ready $$ >&2; while :; do sleep 0.1; done"), 2);
    kill_process(running.pids[1], Signal::STOP).unwrap();
    let told = Instant::now();
    running.signal(Signal::TERM);
    let (status, rest) = running.finish();
    assert_eq!(status.code(), Some(143), "{rest}");
    assert!(told.elapsed() < LONG, "it was killed only when its time was over");
}

#[test]
fn a_job_stops_and_goes_on_as_a_whole() {
    let state = |pid: Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap()
    };
    let wait_for = |pids: &[Pid], stopped: bool| {
        let started = Instant::now();
        while !pids.iter().all(|&pid| (state(pid) == 'T') == stopped) {
            assert!(started.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let running = Running::start(script(2, &format!("{READY_CHILD} wait")), 4);
    let all: Vec<Pid> = running.pids.iter().copied().chain([Pid::from_child(&running.child)]).collect();
    running.signal(Signal::TSTP);
    wait_for(&all, true);
    running.signal(Signal::CONT);
    wait_for(&all, false);
    running.signal(Signal::TERM);
    assert_eq!(running.finish().0.code(), Some(143));
}

#[test]
fn lines_of_a_single_process_have_no_tag() {
    let output = script(1, "echo one; echo two >&2").output().unwrap();
    assert_eq!(results(&output), "one\n");
    assert_eq!(sorted_lines(&output), ["all processes succeeded", "two"]);
}

#[test]
fn a_process_that_aborts_is_quoted() {
    let abort = "echo 'F0102 03:04:05.678901    42 check.cc:7] Check failed: x' >&2; echo '    @ 0x7f00  (unknown)' >&2; kill -ABRT $$";
    let output = script(1, abort).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    insta::assert_snapshot!(stderr.trim(), @r"
    F0102 03:04:05.678901    42 check.cc:7] Check failed: x
    process 0 failed: killed by signal 6 (SIGABRT)
    its last words: check.cc:7] Check failed: x
    ");
}

#[test]
fn a_second_interrupt_kills() {
    let command = script(2, "trap 'echo told >&2' INT; echo ready $$ >&2; while :; do sleep 0.1; done");
    let mut running = Running::start(command, 2);
    running.signal(Signal::INT);
    for _ in 0..2 {
        let mut line = String::new();
        running.stderr.read_line(&mut line).unwrap();
        assert!(line.ends_with("told\n"), "{line}");
    }
    running.signal(Signal::INT);
    let (status, rest) = running.finish();
    insta::assert_snapshot!(rest.trim(), @"stopped by signal 2 (SIGINT)");
    assert_eq!(status.code(), Some(130));
}

#[test]
fn processes_die_with_the_launcher() {
    let running = Running::start(script(3, "echo ready $$ >&2; while :; do sleep 0.1; done"), 3);
    running.signal(Signal::KILL);
    assert_eq!(running.finish().0.code(), None);
}

#[test]
fn what_a_process_leaves_behind_is_killed() {
    let (status, _) = Running::start(script(2, "sleep 1000 & echo ready $! >&2"), 2).finish();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let error = run(&Job::new(2, Path::new("/no/such/program"))).unwrap_err();
    insta::assert_snapshot!(error, @"cannot start process 0, /no/such/program: No such file or directory (os error 2)");
    insta::assert_snapshot!(run(&Job::new(0, "/bin/true")).unwrap_err(), @"a job needs at least 1 process");
}

#[test]
fn controllers_meet_and_end_well() {
    let output = role(4, "meet").output().unwrap();
    let lines = sorted_lines(&output);
    assert_eq!(output.status.code(), Some(0), "{lines:?}");
    for process in 0..4 {
        assert!(lines.contains(&format!("[{process}] met [0, 1, 2, 3]")), "{lines:?}");
    }
}

#[test]
fn a_killed_controller_ends_the_others_and_is_the_cause() {
    for (name, victim) in [("killed", 2), ("killed first", 0), ("killed in shutdown", 2)] {
        let started = Instant::now();
        let output = role(4, name).output().unwrap();
        assert!(started.elapsed() < LONG, "the others must not wait until their barrier's limit");
        let lines = sorted_lines(&output);
        assert_eq!(output.status.code(), Some(137), "{lines:?}");
        assert!(lines.contains(&format!("process {victim} failed: killed by signal 9 (SIGKILL)")), "{lines:?}");
        let reason = |line: &&String| {
            line.contains("error: process 2 died: its connection closed without a goodbye")
                || line.contains("error: lost the coordinator at 127.0.0.1:")
        };
        assert_eq!(lines.iter().filter(reason).count(), 3, "{lines:?}");
    }
}

#[test]
fn a_controller_that_is_stopped_for_a_while_does_no_harm() {
    for paused in 0..2 {
        let mut command = role(3, "paused");
        command.stdin(Stdio::piped());
        let mut running = Running::start(command, 3);
        kill_process(running.pids[paused], Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        kill_process(running.pids[paused], Signal::CONT).unwrap();
        running.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let (status, rest) = running.finish();
        assert_eq!(status.code(), Some(0), "{rest}");
    }
}

#[test]
fn a_failing_controller_tells_the_others_why() {
    let output = role(4, "fails").output().unwrap();
    let lines = sorted_lines(&output);
    assert_eq!(output.status.code(), Some(1), "{lines:?}");
    assert_eq!(
        lines.iter().filter(|line| line.ends_with("error: process 2 failed: no such file")).count(),
        3,
        "{lines:?}"
    );
    assert!(lines.contains(&"process 2 failed: exit code 1".to_owned()), "{lines:?}");
}
