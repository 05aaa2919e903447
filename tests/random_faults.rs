//! Faults at random moments of jobs on this machine and over hosts. `SPMD_TEST_FAULT_RUNS` says how many, and
//! `SPMD_TEST_FAULT_SEED` repeats those of an earlier run.

mod harness;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime};

use harness::Outcome;
use harness::job::{Job, plan, signal, words};

/// A job that runs for minutes when nothing happens to it.
const LONG: [&str; 7] =
    ["hlo/scan_layers.hlo", "--repeat", "1000000", "--stall-timeout", "3", "--rendezvous-timeout", "30"];
const PROCESSES: u32 = 4;
const HOSTS: [(&str, std::ops::Range<u32>); 3] = [("a", 0..1), ("localhost", 1..3), ("b", 3..4)];
/// By then a job of a debug build is in its steps, also on a busy machine.
const MOMENTS_MS: u64 = 4000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    KilledController,
    StoppedController,
    KilledLauncher,
    InterruptedLauncher,
    KilledHelper,
    StoppedHelper,
    /// A helper and its controllers die together.
    LostHost,
}

const FAULTS: [Fault; 7] = [
    Fault::KilledController,
    Fault::StoppedController,
    Fault::KilledLauncher,
    Fault::InterruptedLauncher,
    Fault::KilledHelper,
    Fault::StoppedHelper,
    Fault::LostHost,
];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// What a fault does to a job.
struct Run {
    fault: Fault,
    over_hosts: bool,
    is_encrypted: bool,
    /// The process that it hits, and the host of that.
    victim: u32,
    host: usize,
    moment: Duration,
}

impl Run {
    fn random(number: usize, random: &mut Random) -> Run {
        let fault = FAULTS[number % FAULTS.len()];
        let needs_hosts = matches!(fault, Fault::KilledHelper | Fault::StoppedHelper | Fault::LostHost);
        let victim = random.below(PROCESSES.into()) as u32;
        let host = HOSTS.iter().position(|(_, processes)| processes.contains(&victim)).expect("all have a host");
        let moment = Duration::from_millis(random.below(MOMENTS_MS));
        let over_hosts = needs_hosts || random.below(2) == 0;
        Run { fault, over_hosts, is_encrypted: random.below(2) == 0, victim, host, moment }
    }

    fn name(&self) -> String {
        let Run { fault, over_hosts, is_encrypted, victim, moment, .. } = self;
        let place = if *over_hosts { "over hosts" } else { "on this machine" };
        let tls = if *is_encrypted { " in TLS" } else { "" };
        format!("{fault:?} {place}{tls}, process {victim}, after {moment:?}")
    }

    /// Runs the job, and returns how long it took after the fault, or all that was wrong.
    fn run(&self) -> Result<Duration, String> {
        let names: Vec<String> = HOSTS.iter().map(|(host, share)| format!("{host}:{}", share.len())).collect();
        let count = PROCESSES.to_string();
        let place = if self.over_hosts { ["--hosts".to_owned(), names.join(",")] } else { ["-n".to_owned(), count] };
        let tls: &[&str] = if self.is_encrypted { &["--tls"] } else { &[] };
        let job = plan(place.iter().map(|word| &**word).chain(LONG).chain(tls.iter().copied())).start();
        std::thread::sleep(self.moment);
        let stopped = self.strike(&job);
        let struck = Instant::now();
        // Nobody ends a helper that stands still on a host that the launcher cannot reach. And nobody tidies up after a host
        // that is gone, or after a launcher and a process in which XLA writes dumps for the partitioner.
        let is_excused = |left: &str| match self.fault {
            Fault::LostHost => left.contains("/spmd-run."),
            Fault::StoppedHelper => stopped.iter().any(|pid| left.starts_with(&format!("process {pid} "))),
            Fault::KilledLauncher => left.contains("/spmd-run-"),
            _ => false,
        };
        let (outcome, left) = job.finish_and_look(is_excused);
        let took = struck.elapsed();
        let mut wrong = String::new();
        self.check(&outcome, &mut wrong);
        if !left.is_empty() {
            let _ = writeln!(wrong, "left behind: {left:?}");
        }
        if wrong.is_empty() { Ok(took) } else { Err(format!("{}: {wrong}{}", self.name(), outcome.stderr)) }
    }

    /// Does it, once there is something to do it to. Returns the processes that are left standing still.
    fn strike(&self, job: &Job) -> Vec<u32> {
        match self.fault {
            Fault::KilledLauncher => signal(job.child.id(), "-KILL"),
            Fault::InterruptedLauncher => signal(job.child.id(), "-INT"),
            Fault::KilledController => signal(self.controller(job), "-KILL"),
            Fault::StoppedController => signal(self.controller(job), "-STOP"),
            Fault::KilledHelper => signal(self.helper(job), "-KILL"),
            Fault::StoppedHelper => {
                let helper = self.helper(job);
                signal(helper, "-STOP");
                return vec![helper];
            }
            Fault::LostHost => {
                let helper = self.helper(job);
                let children = std::fs::read_to_string(format!("/proc/{helper}/task/{helper}/children"));
                let children = children.unwrap_or_default();
                let own = helper.to_string();
                let shell = parent(helper).map(|pid| pid.to_string());
                let all: Vec<&str> = shell.iter().map(|pid| &**pid).chain([&*own]).chain(children.split(' ')).collect();
                let mut kill = std::process::Command::new("kill");
                let _ = kill.arg("-KILL").args(all.iter().filter(|pid| !pid.trim().is_empty())).output();
            }
        }
        Vec::new()
    }

    fn controller(&self, job: &Job) -> u32 {
        wait_for(|| job.controllers().get(&self.victim).copied())
    }

    fn helper(&self, job: &Job) -> u32 {
        wait_for(|| {
            let is_of_host = |helper: &u32| {
                // Above the helper is the shell that keeps its folder, and above that the agent, if there is one.
                let agent = parent(*helper).and_then(parent).map(words).unwrap_or_default();
                agent.iter().find(|word| HOSTS.iter().any(|(host, _)| host == word)).map_or("localhost", |word| word)
                    == HOSTS[self.host].0
            };
            job.helpers().into_iter().find(is_of_host)
        })
    }

    fn check(&self, outcome: &Outcome, wrong: &mut String) {
        let Run { victim, .. } = self;
        let host = HOSTS[self.host].0;
        let process = if self.over_hosts { format!("process {victim} ({host})") } else { format!("process {victim}") };
        let first = HOSTS[self.host].1.start;
        let (codes, parts) = match self.fault {
            Fault::KilledLauncher => (vec![None], vec![String::new()]),
            // It may be struck before it catches signals.
            Fault::InterruptedLauncher => (vec![Some(130), None], vec![String::new()]),
            Fault::KilledController => {
                (vec![Some(137)], vec![format!("{process} failed: killed by signal 9 (SIGKILL)")])
            }
            Fault::StoppedController => (vec![Some(3)], vec![format!("process {victim}")]),
            Fault::KilledHelper | Fault::StoppedHelper => (
                vec![Some(3)],
                vec![
                    format!("process {first} ({host}) was lost"),
                    format!("host {host}: "),
                    format!("process {first} "),
                ],
            ),
            // One of its controllers may have been reported before.
            Fault::LostHost => (
                vec![Some(3), Some(137)],
                HOSTS[self.host]
                    .1
                    .clone()
                    .map(|process| format!("process {process} ({host}) "))
                    .chain([format!("host {host}: ")])
                    .collect(),
            ),
        };
        if !codes.contains(&outcome.code) {
            let _ = writeln!(wrong, "exit code {:?} instead of {codes:?}", outcome.code);
        }
        if !parts.iter().any(|part| outcome.stderr.contains(part)) {
            let _ = writeln!(wrong, "none of {parts:?} in the messages");
        }
    }
}

fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the job does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_fault_ends_the_whole_job_and_is_named() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let runs = number("SPMD_TEST_FAULT_RUNS").unwrap_or(FAULTS.len() as u64) as usize;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970");
    let seed = number("SPMD_TEST_FAULT_SEED").unwrap_or(now.as_millis() as u64);
    let mut random = Random(seed);
    let mut times: BTreeMap<Fault, Vec<Duration>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for run in (0..runs).map(|number| Run::random(number, &mut random)).collect::<Vec<_>>() {
        match run.run() {
            Ok(took) => {
                eprintln!("{}: ended {took:?} later", run.name());
                times.entry(run.fault).or_default().push(took);
            }
            Err(what) => {
                eprintln!("wrong: {what}");
                wrong.push(what);
            }
        }
    }
    for (fault, mut times) in times {
        times.sort();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        eprintln!("{fault:?}: {} runs, ended {median:?} later in the median, {most:?} at most", times.len());
    }
    assert!(wrong.is_empty(), "{} of {runs} runs with seed {seed} went wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}
