//! Collectives between processes whose network is slow and loses things, or is listened to.

use std::net::SocketAddr;
use std::time::Duration;

use spmd_run::dtype::DType;

use crate::faults::all_reduce;
use crate::harness::{Job, PATIENCE, Paths, Pending, connect, listen};
use crate::relay::{Relay, Weather};

/// Two processes; the second reaches the first through a relay.
fn job_through(paths: Paths, weather: Weather, timeout: Duration) -> (Job, Relay) {
    let (listeners, addresses) = listen(2);
    let relay = Relay::new(addresses[0], weather);
    let through: Vec<SocketAddr> = vec![relay.address, addresses[1]];
    let transports =
        connect(listeners, paths, |process| if process == 1 { through.clone() } else { addresses.clone() });
    (Job::over(&[1, 1], transports, timeout), relay)
}

fn ones(len: usize) -> Vec<Vec<u8>> {
    vec![1f32.to_le_bytes().repeat(len)]
}

/// Some round trips to Australia, with losses.
#[test]
fn delay_and_loss_change_nothing_but_the_time() {
    let weather = Weather { delay: Duration::from_millis(200), loss: Some(7) };
    for paths in [Paths::Tcp, Paths::Tls] {
        let (job, _relay) = job_through(paths, weather, PATIENCE);
        let specs = [all_reduce(0, DType::F32, 10), all_reduce(1, DType::F32, 100_000)];
        let programs = job.program(1, &specs);
        for (spec, len) in specs.iter().zip([10, 100_000]) {
            for outcome in job.run(&programs, 1, spec, &[ones(len), ones(len)]) {
                assert_eq!(outcome.unwrap(), vec![2f32.to_le_bytes().repeat(len)]);
            }
        }
    }
}

#[test]
fn a_connection_that_falls_silent_is_named_and_not_waited_for_for_ever() {
    for paths in [Paths::Tcp, Paths::Tls] {
        let (job, relay) = job_through(paths, Weather::default(), Duration::from_millis(500));
        let spec = all_reduce(0, DType::F32, 10);
        let programs = job.program(1, std::slice::from_ref(&spec));
        job.run(&programs, 1, &spec, &[ones(10), ones(10)]).into_iter().for_each(|outcome| drop(outcome.unwrap()));
        relay.fall_silent();
        let both = programs.iter().map(|program| Pending::enter(program, 2, &spec, 0, ones(10)));
        for (pending, other) in both.collect::<Vec<_>>().into_iter().zip(["process 1", "process 0"]) {
            let error = pending.error();
            assert!(error.contains(other) && error.contains("all-reduce.0"), "{error}");
        }
    }
}

#[test]
fn who_listens_reads_nothing_with_tls() {
    for (paths, is_read) in [(Paths::Tcp, true), (Paths::Tls, false)] {
        let (job, relay) = job_through(paths, Weather::default(), PATIENCE);
        for (key, len) in [(0, 100), (1, 100_000)] {
            let spec = all_reduce(key, DType::F32, len);
            let programs = job.program(u64::from(key), std::slice::from_ref(&spec));
            let before = relay.traffic();
            let operands = vec![1234.5f32.to_le_bytes().repeat(len)];
            for outcome in job.run(&programs, 1, &spec, &[operands.clone(), operands]) {
                assert_eq!(outcome.unwrap(), vec![2469f32.to_le_bytes().repeat(len)]);
            }
            assert!(relay.traffic() >= before + 4 * len, "it did not go through the relay");
        }
        assert_eq!(relay.has_seen(&1234.5f32.to_le_bytes().repeat(4)), is_read, "{paths:?}");
    }
}
