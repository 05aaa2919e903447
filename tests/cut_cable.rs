//! A job over two hosts whose cable is pulled: network namespaces with a veth pair between them.

mod harness;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{finish, root};
use spmd_run::rendezvous::JobToken;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const COORDINATOR: &str = "10.77.77.1:4000";

/// Two namespaces with a cable, which are gone when this is dropped.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// `None` where this may not be done.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let hosts = Self { names: ["a", "b"].map(|side| format!("spmd-{side}{id}")) };
        let [a, b] = &hosts.names;
        let made = ip(&["netns", "add", a])
            && ip(&["netns", "add", b])
            && ip(&["-n", a, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b])
            && hosts.names.iter().zip(["10.77.77.1/24", "10.77.77.2/24"]).all(|(host, address)| {
                ip(&["-n", host, "addr", "add", address, "dev", "cable"])
                    && ip(&["-n", host, "link", "set", "lo", "up"])
                    && ip(&["-n", host, "link", "set", "cable", "up"])
            });
        if !made {
            eprintln!("skipped: network namespaces cannot be made here");
        }
        made.then_some(hosts)
    }

    fn command(&self, host: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host], env!("CARGO_BIN_EXE_spmd-run")]).args(arguments);
        command.env(JobToken::VARIABLE, TOKEN).current_dir(root());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn both_sides_of_a_cut_cable_end() {
    let Some(hosts) = Hosts::new() else { return };
    let process = |host, index| {
        let place = ["-n", "2", "--coordinator", COORDINATOR, "--process-id", index];
        let work = ["hlo/scan_layers.hlo", "--repeat", "1000000", "--timeout", "300"];
        hosts.command(host, &[&place[..], &work].concat()).spawn().expect("ip starts")
    };
    let jobs = [process(0, "0"), process(1, "1")];
    let start = Instant::now();
    loop {
        let status = hosts.command(1, &["status", "--coordinator", COORDINATOR]).output().expect("ip starts");
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        if status.contains("2 active") && !status.contains("step       0,") {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(100), "the job does not start: {status}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(ip(&["-n", &hosts.names[1], "link", "set", "cable", "down"]));
    let [first, second] = jobs.map(finish);
    assert_eq!((first.code, second.code), (Some(3), Some(3)), "{}{}", first.stderr, second.stderr);
    for (outcome, words) in [(first, "process 1 ("), (second, "lost the coordinator at 10.77.77.1:4000")] {
        let found = outcome.stderr.contains(words) && outcome.stderr.contains("host cannot be reached any more");
        assert!(found, "{}", outcome.stderr);
    }
}
