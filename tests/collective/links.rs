//! Collectives between slices whose connections break.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spmd_run::dtype::DType;

use crate::faults::all_reduce;
use crate::harness::{Job, PATIENCE, Paths, Pending, connect_slices, listen};
use crate::relay::{Relay, Weather};

/// Two slices of a process each; the second reaches the first through a relay.
fn job_through(paths: Paths, weather: Weather, limit: Duration) -> (Job, Relay) {
    let (listeners, addresses) = listen(2);
    let relay = Relay::new(addresses[0], weather);
    let through: Vec<SocketAddr> = vec![relay.address, addresses[1]];
    let meshes = connect_slices(listeners, paths, &[0, 1], limit, |process| {
        if process == 1 { through.clone() } else { addresses.clone() }
    });
    (Job::between(&[1, 1], &[0, 1], meshes, PATIENCE), relay)
}

fn operands(len: usize) -> Vec<Vec<Vec<u8>>> {
    let operand = |seed: u32| {
        let values = (0..len as u32).map(|index| (index.wrapping_mul(2_654_435_761) ^ seed) as f32 / 1e9);
        vec![values.flat_map(f32::to_le_bytes).collect()]
    };
    vec![operand(1), operand(2)]
}

/// The results of some collectives while the connections are cut again and again, whenever so many bytes have gone by, if
/// they are cut; how often that was.
fn results(paths: Paths, weather: Weather, is_cut: bool) -> (Vec<Vec<Vec<Vec<u8>>>>, usize) {
    const ROUNDS: u64 = 8;
    const BYTES: usize = 3_000_000;
    let (job, relay) = job_through(paths, weather, PATIENCE);
    let lens = [10, 30_000, 1_000_000];
    let specs: Vec<_> = (0..).zip(lens).map(|(key, len)| all_reduce(key, DType::F32, len)).collect();
    let programs = job.program(1, &specs);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            let (mut cuts, mut seen) = (0, 0);
            while is_cut && !is_done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                if relay.traffic() > seen + BYTES {
                    seen = relay.traffic();
                    cuts += usize::from(relay.hang_up() > 0);
                }
            }
            cuts
        });
        let mut results = Vec::new();
        for run in 0..ROUNDS {
            for (spec, len) in specs.iter().zip(lens) {
                let outcomes = job.run(&programs, run, spec, &operands(len));
                results.push(outcomes.into_iter().map(Result::unwrap).collect());
            }
        }
        is_done.store(true, Ordering::Relaxed);
        (results, cutter.join().unwrap())
    })
}

#[test]
fn connections_that_break_change_nothing() {
    let (undisturbed, _) = results(Paths::Tcp, Weather::default(), false);
    let bad = Weather { delay: Duration::from_millis(1), loss: Some(200) };
    for (paths, weather) in [(Paths::Tcp, Weather::default()), (Paths::Tcp, bad), (Paths::Tls, Weather::default())] {
        let (disturbed, cuts) = results(paths, weather, true);
        assert!(cuts > 3, "{cuts} cuts");
        assert!(undisturbed == disturbed, "another result after {cuts} cuts");
    }
}

/// What the processes say when they cannot connect again.
fn errors(job: &Job, relay: &Relay) -> Vec<String> {
    let spec = all_reduce(0, DType::F32, 10);
    let programs = job.program(1, std::slice::from_ref(&spec));
    let operands = operands(10);
    job.run(&programs, 1, &spec, &operands).into_iter().for_each(|outcome| drop(outcome.unwrap()));
    assert_eq!(relay.hang_up(), 4, "lanes");
    let both = programs.iter().zip(operands).map(|(program, operands)| Pending::enter(program, 2, &spec, 0, operands));
    both.collect::<Vec<_>>().into_iter().map(Pending::error).collect()
}

#[test]
fn whoever_cannot_be_reached_again_is_named() {
    let (job, relay) = job_through(Paths::Tcp, Weather::default(), Duration::from_secs(2));
    relay.close();
    let [first, second] = &errors(&job, &relay)[..] else { panic!("two processes") };
    assert!(
        first.contains("lost the connection to process 1: ") && first.contains("not call again within 2 s"),
        "{first}"
    );
    let words = ["lost the connection to process 0: ", "called again", "in 2 s, the last time in vain because: "];
    assert!(words.iter().all(|words| second.contains(words)), "{second}");
}

#[test]
fn another_process_in_its_place_is_not_taken_for_it() {
    let (job, relay) = job_through(Paths::Tcp, Weather::default(), Duration::from_secs(2));
    let (listeners, addresses) = listen(2);
    relay.lead_to(addresses[0]);
    let _other = connect_slices(listeners, Paths::Tcp, &[0, 1], PATIENCE, |_| addresses.clone());
    let second = errors(&job, &relay).pop().unwrap();
    assert!(second.contains("process 0") && second.contains("says that it has no such link"), "{second}");
}
