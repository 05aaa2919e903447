//! Jobs of two slices whose links break, in network namespaces.

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use harness::by_hand::{self, TOKEN, free_address};
use harness::fails;
use harness::job::{self, Job, Plan, plan};
use harness::namespaces::Namespaces;
use spmd_run::rendezvous::JobToken;

/// Writes a program that sums arrays of 4 MiB over this many devices.
fn write_program(folder: &Path, replicas: usize) -> String {
    let members: Vec<String> = (0..replicas).map(|replica| replica.to_string()).collect();
    let text = format!(
        "HloModule links, replica_count={replicas}

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}

ENTRY main {{
  x = f32[1048576] parameter(0)
  ROOT y = f32[1048576] all-reduce(x), replica_groups={{{{{}}}}}, to_apply=add
}}
",
        members.join(",")
    );
    let path = folder.join("links.hlo");
    fs::write(&path, text).expect("a program");
    path.display().to_string()
}

/// Four processes in two slices, which repeat the program so many times.
fn two_slices(namespaces: &Namespaces, folder: &Path, output: &str, repeat: &str) -> Plan {
    let (program, output) = (write_program(folder, 4), folder.join(output).display().to_string());
    let job = ["-n", "4", "--slices", "2", "--devices-per-process", "1", "--transport", "tcp"];
    let work = [&program, "--fill", "random:3", "--output", &output, "--repeat", repeat];
    plan(job.iter().chain(&work)).behind(&namespaces.on(0))
}

/// The two ports of each connection between processes of different slices.
fn links(namespaces: &Namespaces, controllers: &BTreeMap<u32, u32>) -> Vec<[String; 2]> {
    let coordinator = controllers.values().find_map(|pid| {
        let variables = job::variables(*pid);
        let address = variables.iter().find_map(|variable| variable.strip_prefix("SPMD_COORDINATOR="))?;
        Some(address.rsplit(':').next()?.to_owned())
    });
    let output = namespaces.output(0, &["ss", "-tnpH", "state", "established"]);
    let sockets = output.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let port = |word: &str| word.rsplit(':').next().map(str::to_owned);
        let pid = line.split_once("pid=")?.1.split_once(',')?.0.parse::<u32>().ok()?;
        let process = controllers.iter().find(|(_, controller)| **controller == pid)?.0;
        Some(([port(words[2])?, port(words[3])?], process / 2))
    });
    let sockets: BTreeMap<[String; 2], u32> = sockets.collect();
    let is_link = |([here, there], slice): &(&[String; 2], &u32)| {
        let other = sockets.get(&[there.clone(), here.clone()]);
        **slice == 0 && other == Some(&1) && ![here, there].iter().any(|port| Some(*port) == coordinator.as_ref())
    };
    sockets.iter().filter(is_link).map(|(ports, _)| ports.clone()).collect()
}

/// Ends these connections at once; how many of them there still were.
fn cut(namespaces: &Namespaces, links: &[[String; 2]]) -> usize {
    let filters: Vec<String> =
        links.iter().map(|[here, there]| format!("( sport = :{here} and dport = :{there} )")).collect();
    namespaces.output(0, &["ss", "-K", "-tnH", &filters.join(" or ")]).lines().count()
}

/// Cuts all links several times while the job runs; how many connections that were.
fn cut_links(namespaces: &Namespaces, job: &mut Job, times: usize) -> usize {
    let controllers = job.wait_until_running(4);
    let mut count = 0;
    for _ in 0..times {
        std::thread::sleep(Duration::from_millis(300));
        count += cut(namespaces, &links(namespaces, &controllers));
    }
    count
}

#[test]
fn links_that_are_cut_change_nothing() {
    let Some(namespaces) = Namespaces::new("cut", 1) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    two_slices(&namespaces, folder.path(), "undisturbed.npz", "1").run().success("undisturbed");
    // So that bytes are on their way whenever something is cut.
    let is_slow = namespaces.limit("lo", 1000);
    let mut job = two_slices(&namespaces, folder.path(), "cut.npz", "20").start();
    let cuts = cut_links(&namespaces, &mut job, 5);
    let outcome = job.finish();
    if cuts == 0 && outcome.code == Some(0) {
        eprintln!("skipped: ss cannot end connections here");
        return;
    }
    assert!(cuts > 16, "{cuts} connections were cut");
    let outcome = outcome.success("a job whose links were cut");
    let told = |words: &str| outcome.stderr.matches(words).count();
    assert!(told("WARN") > 0 && told("link to process") > 0 && told("; reconnected after ") > 0, "{}", outcome.stderr);
    let resent = outcome.stderr.split("resent ").skip(1).any(|rest| !rest.starts_with("0 "));
    assert!(resent || !is_slow, "nothing was under way: {}", outcome.stderr);
    let [undisturbed, disturbed] =
        ["undisturbed.npz", "cut.npz"].map(|name| fs::read(folder.path().join(name)).unwrap());
    assert!(undisturbed == disturbed, "another result after {cuts} cuts");
}

/// Process `index` of four in two slices, started by hand.
fn by_hand(coordinator: &str, folder: &Path, index: usize) -> Job {
    let program = write_program(folder, 4);
    let work = ["--slices", "2", "--transport", "tcp", &program, "--fill", "random:3", "--repeat", "1000000"];
    let mut plan = plan(by_hand::place(coordinator, index, 4));
    plan.command.args(work).env(JobToken::VARIABLE, TOKEN);
    plan.start()
}

#[test]
fn a_killed_process_ends_a_job_of_two_slices_at_once() {
    for victim in [1, 3] {
        let folder = tempfile::tempdir().expect("a folder");
        let coordinator = free_address();
        let mut jobs: Vec<Job> = (0..4).map(|index| by_hand(&coordinator, folder.path(), index)).collect();
        by_hand::wait_for_steps(|| by_hand::status(&coordinator), 4);
        let killed = jobs.remove(victim);
        job::signal(killed.child.id(), "-KILL");
        for job in jobs {
            let outcome = job.finish();
            fails(&outcome, 3, &[&format!("process {victim}")]);
            // That would be found out much later.
            assert!(!outcome.stderr.contains("call again"), "{}", outcome.stderr);
            assert!(!outcome.stderr.contains("called again"), "{}", outcome.stderr);
        }
        assert_eq!(killed.finish().code, None, "it was killed");
    }
}

/// Process `index` of three, each a slice. The first and the second are on one host, the third on another, which the data of
/// the second goes to by a cable of its own.
fn over_cables(namespaces: &Namespaces, folder: &Path, index: usize) -> Plan {
    let program = write_program(folder, 3);
    let work = ["--slices", "3", "--transport", "tcp", &program, "--fill", "random:3", "--repeat", "40"];
    let bind = [&[][..], &["--bind", "10.78.1.1"], &["--bind", "10.78.1.2"]][index];
    let mut plan = plan(by_hand::place("10.78.0.1:47000", index, 3));
    plan.command.args(work).args(bind).env(JobToken::VARIABLE, TOKEN);
    plan.behind(&namespaces.on(index / 2))
}

#[test]
fn a_cable_that_is_pulled_for_a_while_does_no_harm() {
    let Some(namespaces) = Namespaces::new("pull", 2) else { return };
    if !namespaces.lay_cable("control", 0) || !namespaces.lay_cable("data", 1) {
        eprintln!("skipped: cables between network namespaces cannot be laid here");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let jobs = [0, 1, 2].map(|index| over_cables(&namespaces, folder.path(), index).start());
    let received = || namespaces.bytes(1, "data", "rx");
    let start = Instant::now();
    while received() < 10_000_000 {
        assert!(start.elapsed() < Duration::from_secs(60), "the job does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    namespaces.set_cable("data", "down");
    std::thread::sleep(Duration::from_secs(1));
    let before = received();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(received(), before, "the cable is not pulled");
    namespaces.set_cable("data", "up");
    for job in jobs {
        job.finish().success("a process");
    }
    assert!(received() > before, "the job was done before the cable was pulled");
}
