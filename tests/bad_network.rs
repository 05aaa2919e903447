//! Jobs of real processes, started by hand, of which one reaches the coordinator over a bad network.

mod harness;

use std::process::{Child, Command};
use std::time::Duration;

use harness::by_hand::{self, free_address};
use harness::relay::{Relay, Weather};
use harness::{fails, finish, run, start};

const ENDLESS: [&str; 5] = ["hlo/scan_layers.hlo", "--repeat", "1000000", "--stall-timeout", "3"];

struct Job {
    address: String,
    relay: Relay,
    first: Child,
}

impl Job {
    /// Starts process 0 of two.
    fn start(weather: Weather, arguments: &[&str]) -> Job {
        let address = free_address();
        let relay = Relay::new(address.parse().expect("an address"), weather);
        Job { relay, first: start(by_hand::process(&address, 0, arguments)), address }
    }

    /// Process 1, behind the relay.
    fn second(&self, arguments: &[&str]) -> Command {
        by_hand::process(&self.relay.address.to_string(), 1, arguments)
    }

    fn wait_until_running(&self) {
        by_hand::wait_for_steps(|| by_hand::status(&self.address), 2);
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
    let job = Job::start(Weather::default(), &ENDLESS);
    let second = start(job.second(&ENDLESS));
    job.wait_until_running();
    job.relay.hang_up();
    fails(&finish(second), 3, &["lost the coordinator at 127.0.0.1:", "its connection closed"]);
    fails(
        &finish(job.first),
        3,
        &["process 1 (", ") died: its connection closed without a goodbye, last in all-reduce."],
    );
}

#[test]
fn a_connection_that_falls_silent_is_named_on_both_sides() {
    let job = Job::start(Weather::default(), &ENDLESS);
    let second = start(job.second(&ENDLESS));
    job.wait_until_running();
    job.relay.fall_silent();
    let (second, first) = (finish(second), finish(job.first));
    // Who notices first tells the other by the connection for data, which is whole.
    for outcome in [&second, &first] {
        fails(outcome, 3, &["silent for 3"]);
    }
    assert!(first.stderr.contains("process 1 (") || first.stderr.contains("lost the coordinator"), "{}", first.stderr);
}
