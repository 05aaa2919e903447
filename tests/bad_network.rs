//! Jobs of real processes, started by hand, of which one reaches the coordinator over a bad network.

mod harness;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::relay::{Relay, Weather};
use harness::{Outcome, command, finish, run};
use spmd_run::rendezvous::JobToken;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const ENDLESS: [&str; 5] = ["hlo/scan_layers.hlo", "--repeat", "1000000", "--stall-timeout", "3"];

struct Job {
    address: String,
    relay: Relay,
    first: Child,
}

impl Job {
    /// Starts process 0 of two.
    fn start(weather: Weather, arguments: &[&str]) -> Job {
        let address = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its address");
        let relay = Relay::new(address, weather);
        Job { relay, first: start(process(&address.to_string(), "0", arguments)), address: address.to_string() }
    }

    /// Process 1, behind the relay.
    fn second(&self, arguments: &[&str]) -> Command {
        process(&self.relay.address.to_string(), "1", arguments)
    }

    fn wait_until_running(&mut self) {
        let begin = Instant::now();
        loop {
            let mut status = command(["status", "--coordinator", &self.address]);
            status.env(JobToken::VARIABLE, TOKEN);
            let status = run(status).stdout;
            if status.contains("2 active") && !status.contains("step       0,") {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "the job does not start: {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn process(address: &str, index: &str, arguments: &[&str]) -> Command {
    let mut command = command(["-n", "2", "--coordinator", address, "--process-id", index].iter().chain(arguments));
    command.env(JobToken::VARIABLE, TOKEN);
    command
}

fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spmd-run starts")
}

#[track_caller]
fn says(outcome: &Outcome, parts: &[&str]) {
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    for part in parts {
        assert!(outcome.stderr.contains(part), "no {part:?} in:\n{}", outcome.stderr);
    }
}

#[test]
fn delay_and_loss_change_nothing_but_the_time() {
    let weather = Weather { delay: Duration::from_millis(200), loss: Some(5) };
    for tls in [&[][..], &["--tls"]] {
        let arguments =
            [&["hlo/tp_mlp.hlo", "--fill", "ones", "--repeat", "20", "--stall-timeout", "20"], tls].concat();
        let job = Job::start(weather, &arguments);
        let second = run(job.second(&arguments));
        let first = finish(job.first).success("process 0");
        second.success("process 1");
        assert!(first.stdout.contains("2 processes × 2 devices"), "{}", first.stdout);
        assert!(!first.stderr.contains("silent"), "{}", first.stderr);
    }
}

#[test]
fn a_connection_that_ends_is_named_on_both_sides() {
    let mut job = Job::start(Weather::default(), &ENDLESS);
    let second = start(job.second(&ENDLESS));
    job.wait_until_running();
    job.relay.hang_up();
    says(&finish(second), &["lost the coordinator at 127.0.0.1:", "its connection closed"]);
    says(&finish(job.first), &["process 1 (", ") died: its connection closed without a goodbye, last in all-reduce."]);
}

#[test]
fn a_connection_that_falls_silent_is_named_on_both_sides() {
    let mut job = Job::start(Weather::default(), &ENDLESS);
    let second = start(job.second(&ENDLESS));
    job.wait_until_running();
    job.relay.fall_silent();
    let (second, first) = (finish(second), finish(job.first));
    // Who notices first tells the other by the connection for data, which is whole.
    for outcome in [&second, &first] {
        says(outcome, &["silent for 3"]);
    }
    assert!(first.stderr.contains("process 1 (") || first.stderr.contains("lost the coordinator"), "{}", first.stderr);
}
