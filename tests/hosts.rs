//! Jobs over several hosts. The hosts are this machine, each behind a script in place of ssh, or behind a real ssh server.

mod harness;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use harness::fails;
use harness::job::{plan, signal, variables, words};
use harness::ssh::SshServer;

/// A job that runs for minutes when nothing happens to it.
const LONG: [&str; 3] = ["hlo/scan_layers.hlo", "--repeat", "1000000"];

#[test]
fn processes_go_to_hosts_in_order() {
    let outcome = plan(["devices", "--hosts", "a,b:2,localhost"]).run().success("three hosts");
    assert!(outcome.stdout.contains("process_count  4"), "{}", outcome.stdout);
    assert!(!outcome.stdout.contains("127.0.0.1"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("hosts");
    std::fs::write(&file, "a slots=2 # two\nb slots=2\n").expect("a hostfile");
    let arguments = ["-n", "4", "--hostfile", file.to_str().expect("a name"), "hlo/tp_mlp.hlo", "--fill", "ones"];
    let outcome = plan(arguments).run().success("a hostfile");
    assert!(outcome.stdout.contains("4 processes × 1 device"), "{}", outcome.stdout);
}

#[test]
fn hosts_and_processes_must_agree() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("hosts");
    std::fs::write(&file, "a slots=2\nb slot=2\n").expect("a hostfile");
    let file = file.to_str().expect("a name");
    fails(&plan(["devices", "--hostfile", file]).run(), 2, &[&format!("{file}:2: 'slot=2' is not known")]);
    fails(&plan(["devices", "--hosts", "a:2,b:2", "-n", "5"]).run(), 2, &["-n 5: the hosts have 4 slots (a:2, b:2)"]);
    let by_hand = ["devices", "--hosts", "a,b", "--coordinator", "c:1"];
    fails(&plan(by_hand).run(), 2, &["--coordinator: --hosts starts all processes itself"]);
}

#[test]
fn a_host_without_the_binary_is_sent_it() {
    let binary = env!("CARGO_BIN_EXE_spmd-run");
    let elsewhere = format!("shift\nsh -c \"$(printf %s \"$1\" | sed 's,{binary},/no/such/binary,')\"\n");
    let mut job = plan(["--hosts", "a,b", "--fill", "ones"].iter().chain(&LONG)).with_agent(&elsewhere).start();
    let controllers = job.wait_until_running(2);
    for pid in controllers.values() {
        assert!(!words(*pid)[0].contains(binary), "{:?}", words(*pid));
    }
    signal(job.child.id(), "-TERM");
    fails(&job.finish(), 143, &[]);
}

#[test]
fn a_host_without_the_input_files_is_sent_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("a name").to_owned();
    for (name, original) in [("program", "hlo/dp_tp_mlp_step.hlo"), ("in.npz", "hlo/data/dp_tp_mlp_step.in.npz")] {
        std::fs::copy(harness::root().join(original), file(name)).expect("a copy");
    }
    std::fs::copy(harness::root().join("hlo/data/dp_tp_mlp_step.out.npz"), file("out.npz")).expect("a copy");
    let Some(without) = agent_without(folder.path()) else { return };
    let files = [file("program"), "--input".into(), file("in.npz"), "--expect".into(), file("out.npz")];
    let close = ["--rtol", "1e-5", "--atol", "1e-5", "--hosts", "a,b"].map(str::to_owned);
    let outcome = plan(files.iter().chain(&close)).with_agent(&without).run().success("hidden files");
    assert!(outcome.stdout.contains("out4: "), "{}", outcome.stdout);
}

/// A script in place of ssh, for hosts that have nothing in a folder. `None` where nothing can be hidden.
fn agent_without(folder: &Path) -> Option<String> {
    let hide = format!("mount -t tmpfs none {}", folder.display());
    if !Command::new("unshare").args(["-m", "sh", "-c", &hide]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no files can be hidden here (unshare -m and mount)");
        return None;
    }
    Some(format!("shift\nunshare -m sh -c \"{hide}; $1\"\n"))
}

#[test]
fn a_host_without_the_program_is_sent_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("greet");
    std::fs::write(&program, "#!/bin/sh\necho \"$1 from $SPMD_PROCESS_INDEX of $0\"\n").expect("a script");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("a script");
    let program = program.to_str().expect("a name");
    let Some(without) = agent_without(folder.path()) else { return };
    let arguments = ["--hosts", "a,b", "--", program, "hello"];
    let here = plan(arguments).run().success("a program that is there");
    assert!(here.stdout.contains(&format!("hello from 0 of {program}")), "{}", here.stdout);
    let sent = plan(arguments).with_agent(&without).run().success("a program that is sent");
    assert!(sent.stdout.contains("hello from 0 of /") && !sent.stdout.contains(program), "{}", sent.stdout);
    assert!(sent.stderr.contains("[1 b] hello from 1 of /"), "{}", sent.stderr);
}

#[test]
fn a_second_interrupt_kills() {
    let mut plan = plan(["--hosts", "a,localhost", "--"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = folder.path().display();
    let stubborn = format!(
        "trap ': >{place}/told.$SPMD_PROCESS_INDEX' INT\n: >{place}/ready.$SPMD_PROCESS_INDEX\nwhile :; do sleep 0.1; done\n"
    );
    let stubborn = plan.script("stubborn", &stubborn);
    plan.command.arg(stubborn);
    let mut job = plan.start();
    let launcher = job.child.id();
    let mut wait_for = |name: &str| {
        let start = std::time::Instant::now();
        while !(0..2).all(|index| folder.path().join(format!("{name}.{index}")).exists()) {
            assert!(start.elapsed().as_secs() < 60 && job.child.try_wait().expect("a child").is_none(), "not {name}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    wait_for("ready");
    signal(launcher, "-INT");
    wait_for("told");
    signal(launcher, "-INT");
    fails(&job.finish(), 130, &["stopped by signal 2 (SIGINT)"]);
}

#[test]
fn variables_go_along() {
    // Whoever starts like ours and is not is complained about, which shows that it is there.
    let outcome = plan(["devices", "--hosts", "a", "-x", "SPMD_PROCES_INDEX=7"]).run();
    fails(&outcome, 2, &["unknown environment variable SPMD_PROCES_INDEX"]);
    fails(
        &plan(["devices", "-x", "NO_SUCH_VARIABLE"]).run(),
        2,
        &["-x NO_SUCH_VARIABLE: there is no such variable here"],
    );
    let clean = "shift\nenv -u RUST_LOG sh -c \"$1\"\n";
    let mut job = plan(["--hosts", "a,b", "-x", "GREETING=good day"].iter().chain(&LONG)).with_agent(clean);
    job.command.env("RUST_LOG", "warn");
    let mut job = job.start();
    let controllers = job.wait_until_running(2);
    for pid in controllers.values() {
        let all = variables(*pid);
        assert!(all.contains(&"GREETING=good day".to_owned()) && all.contains(&"RUST_LOG=warn".to_owned()), "{all:?}");
        let token = all.iter().find_map(|variable| variable.strip_prefix("SPMD_JOB_TOKEN=")).expect("a token");
        for pid in job.processes().into_iter().chain([job.child.id()]) {
            assert!(!words(pid).join(" ").contains(token), "the token is on a command line: {:?}", words(pid));
        }
    }
    signal(job.child.id(), "-INT");
    fails(&job.finish(), 130, &["stopped by signal 2 (SIGINT)"]);
}

#[test]
fn a_host_that_cannot_be_used_is_named() {
    let cases = [
        ("echo 'ssh: connect to host b port 22: Connection refused' >&2; exit 255", "no ssh server listens there"),
        ("echo 'me@b: Permission denied (publickey).' >&2; exit 255", "ssh-copy-id b"),
        ("echo 'Host key verification failed.' >&2; exit 255", "if you trust the host, accept its key: ssh b"),
        ("echo 'ssh: Could not resolve hostname b: unknown' >&2; exit 255", "check the host's name"),
        ("echo 'sh: head: not found' >&2; exit 127", "head: not found"),
        ("echo what; exit 1", "check that this works: ssh b true"),
        ("kill -9 $$", "killed by signal 9 (SIGKILL)"),
    ];
    for (what, advice) in cases {
        let outcome = plan(["devices", "--hosts", "a,b"])
            .with_agent(&format!("if [ $1 = b ]; then {what}; fi\nshift\nsh -c \"$1\"\n"));
        fails(&outcome.run(), 3, &["error: host b: the connection has", advice]);
    }
    let silent = plan(["devices", "--hosts", "b", "--rendezvous-timeout", "1"]).with_agent("exec sleep 1000\n");
    fails(&silent.run(), 3, &["error: host b: it was not ready within 1 s"]);
    let mut missing = plan(["devices", "--hosts", "a"]);
    missing.command.args(["--ssh", "/no/such/agent -x"]);
    fails(&missing.run(), 3, &["error: host a: cannot run /no/such/agent: No such file"]);
}

#[test]
fn a_killed_process_is_named_with_its_host() {
    let mut job = plan(["--hosts", "a,b,localhost:2"].iter().chain(&LONG)).start();
    let controllers = job.wait_until_running(4);
    signal(controllers[&1], "-KILL");
    fails(&job.finish(), 137, &["error: hlo/scan_layers.hlo: process 1 (b) failed: killed by signal 9 (SIGKILL)"]);
}

#[test]
fn a_host_that_is_gone_ends_the_job_and_is_named() {
    for host in ["a", "localhost"] {
        let mut job = plan(["--hosts", &format!("b,{host}")].iter().map(|word| &**word).chain(LONG)).start();
        let controllers = job.wait_until_running(2);
        let parent = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
            let line = status.lines().find_map(|line| line.strip_prefix("PPid:").map(str::trim));
            line.and_then(|pid| pid.parse().ok()).expect("a parent")
        };
        signal(parent(controllers[&1]), "-KILL");
        fails(&job.finish(), 3, &[&format!("process 1 ({host}) was lost: the connection has ended")]);
    }
}

#[test]
fn nothing_outlives_the_launcher() {
    let mut job = plan(["--hosts", "a,b"].iter().chain(&LONG)).start();
    job.wait_until_running(2);
    signal(job.child.id(), "-KILL");
    assert_eq!(job.finish().code, None);
}

#[test]
fn what_processes_print_is_kept_in_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let logs = folder.path().join("logs");
    for hosts in [&[][..], &["--hosts", "a,b"]] {
        let arguments = ["devices", "-n", "2", "--log-dir", logs.to_str().expect("a name"), "-x", "RUST_LOG=debug"];
        let outcome = plan(arguments.iter().chain(hosts)).run().success("logs");
        let read = |name: &str| std::fs::read_to_string(logs.join(name)).expect("a log");
        assert_eq!(read("process-0.out"), outcome.stdout);
        assert!(outcome.stdout.contains("process_count  2"));
        assert_eq!(read("process-1.out"), "");
        for index in 0..2 {
            let log = read(&format!("process-{index}.err"));
            let line = log.lines().next().expect("a line");
            assert!(outcome.stderr.contains(line) && !line.starts_with('['), "{}", outcome.stderr);
        }
        assert!(outcome.stderr.contains(if hosts.is_empty() { "[1] " } else { "[1 b] " }), "{}", outcome.stderr);
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let outcome = plan(["devices", "--log-dir", file.to_str().expect("a name")]).run();
    fails(&outcome, 1, &["--log-dir: ", "Cargo.toml"]);
}

#[test]
fn jobs_run_over_ssh() {
    let Some(server) = SshServer::start("127.0.0.1", &[]) else { return };
    let ssh = server.client("user", "known_hosts");
    let outcome = plan(["--hosts", "a:2,b:2", "--ssh", &ssh, "hlo/tp_mlp.hlo", "--fill", "ones"]).run();
    let outcome = outcome.success("over ssh");
    assert!(outcome.stdout.contains("4 processes × 1 device"), "{}", outcome.stdout);

    // Processes are found by a variable, which ssh does not hand on by itself.
    let start = || {
        let mut plan = plan(["--hosts", "a,b", "--ssh", &ssh].iter().chain(&LONG));
        plan.export_mark();
        plan.start()
    };
    let mut job = start();
    let controllers = job.wait_until_running(2);
    signal(controllers[&1], "-KILL");
    fails(&job.finish(), 137, &["process 1 (b) failed: killed by signal 9 (SIGKILL)"]);
    let mut job = start();
    job.wait_until_running(2);
    signal(job.child.id(), "-TERM");
    fails(&job.finish(), 143, &["stopped by signal 15 (SIGTERM)"]);
    let mut job = start();
    job.wait_until_running(2);
    signal(job.child.id(), "-KILL");
    assert_eq!(job.finish().code, None);
}

#[test]
fn what_ssh_refuses_is_explained() {
    let Some(server) = SshServer::start("127.0.0.1", &[]) else { return };
    let run = |ssh: &str| plan(["devices", "--hosts", "localhost,b", "--ssh", ssh]).run();
    let outcome = run(&server.client("stranger", "known_hosts"));
    fails(&outcome, 3, &["error: host b: ", "Permission denied (publickey)", "ssh-copy-id b"]);
    let outcome = run(&server.client("user", "no_known_hosts"));
    fails(&outcome, 3, &["error: host b: ", "Host key verification failed", "accept its key: ssh b"]);
    let ssh = server.client("user", "known_hosts");
    drop(server);
    fails(&run(&ssh), 3, &["error: host b: ", "Connection refused", "no ssh server listens there"]);
}

#[test]
fn one_process_per_device() {
    let outcome = plan(["--per-chip", "hlo/tp_mlp.hlo", "--fill", "ones"]).run().success("one per device");
    assert!(outcome.stdout.contains("4 processes × 1 device"), "{}", outcome.stdout);
    let hosts = ["--per-chip", "hlo/tp_mlp.hlo", "--fill", "ones", "--hosts", "a,b"];
    let outcome = plan(hosts).run().success("one per device of two hosts");
    assert!(outcome.stdout.contains("4 processes × 1 device"), "{}", outcome.stdout);
    fails(
        &plan(["devices", "--per-chip"]).run(),
        2,
        &["--per-chip: how many devices there are cannot be told: give -n"],
    );
}

#[test]
fn chips_are_shared_with_nobody() {
    let shared = ["devices", "--plugin", "tpu", "-n", "2"];
    fails(&plan(shared).run(), 2, &["2 processes on one host would each open all its chips"]);
    let elsewhere = ["devices", "--plugin", "cuda12", "--per-chip", "--hosts", "a,b"];
    fails(&plan(elsewhere).run(), 2, &["say which chips each host has: --chips 0,1"]);
    let other = ["devices", "--plugin", "tpu", "--per-chip", "--chips", "0,1", "--hosts", "a,b", "-n", "2"];
    fails(&plan(other).run(), 2, &["-n 2: --per-chip makes 4 processes, one for each chip: leave -n out"]);
    fails(&plan(["devices", "--chips", "1,1"]).run(), 2, &["--chips: 1 is given twice"]);
}

#[test]
fn a_job_is_started_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let logs = folder.path().join("logs").to_str().expect("a name").to_owned();
    for hosts in [&["-n", "2"][..], &["--hosts", "a,b"]] {
        let mut job = plan(hosts.iter().chain(&["--max-restarts", "1", "--log-dir", &logs]).chain(&LONG)).start();
        let first = job.wait_until_running(2);
        signal(first[&1], "-KILL");
        let second = loop {
            let now = job.wait_until_running(2);
            if now.values().all(|pid| !first.values().any(|old| old == pid)) {
                break now;
            }
        };
        let value = |pid: u32, name: &str| {
            let all = variables(pid);
            all.into_iter().find_map(|variable| variable.strip_prefix(name).map(str::to_owned)).expect("a variable")
        };
        assert_eq!([0, 1].map(|index| value(second[&index], "SPMD_RESTART_COUNT=")), ["1", "1"]);
        signal(second[&0], "-KILL");
        let outcome = job.finish();
        let name = if hosts.len() == 2 && hosts[0] == "-n" { ["1", "0"] } else { ["1 (b)", "0 (a)"] };
        let again = format!("restart 1 of 1 because process {} failed: killed by signal 9 (SIGKILL)", name[0]);
        fails(&outcome, 137, &[&again, &format!("process {} failed: killed by signal 9", name[1])]);
    }
    let mut refused = plan(["--max-restarts", "3", "-n", "2", "hlo/tp_mlp.hlo", "--input", "/dev/null"]);
    refused.command.env("RUST_LOG", "info");
    let outcome = refused.run();
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("restart"), "{}", outcome.stderr);
}
