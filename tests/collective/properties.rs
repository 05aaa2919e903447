use std::time::Duration;

use proptest::prelude::*;
use spmd_run::collective::{ArraySpec, CollectiveKind, CollectiveSpec};
use spmd_run::dtype::DType;

use crate::generate::{KINDS, OPS, Values, make_operands, make_spec};
use crate::harness::{ALL_PATHS, Job, Paths};
use crate::reference;

/// Runs instructions on a layout and compares with the reference.
fn check(devices_per_process: &[u32], paths: Paths, kinds: &[(usize, bool)], seed: u64) {
    let mut values = Values(seed);
    let job = Job::new(devices_per_process, paths, Duration::from_secs(30));
    let devices = job.device_count() as usize;
    let specs: Vec<CollectiveSpec> = kinds
        .iter()
        .enumerate()
        .map(|(key, &(kind, large))| make_spec(key as u32, kind, devices, large, &mut values))
        .collect();
    let programs = job.program(7, &specs);
    let process_of: Vec<usize> = job.places().into_iter().map(|(process, _)| process).collect();
    for run in [1, 1, 2] {
        for spec in &specs {
            let operands = make_operands(spec, devices, &mut values);
            let expected = reference::results(spec, &process_of, &operands);
            let found = job.run(&programs, run, spec, &operands);
            let mut reduced = vec![];
            for (device, (found, expected)) in found.into_iter().zip(&expected).enumerate() {
                let found = found.unwrap_or_else(|error| panic!("device {device}: {error} in {spec:?}"));
                for ((array, found), expected) in spec.results.iter().zip(&found).zip(expected) {
                    assert!(
                        reference::agree(array.dtype, found, expected),
                        "device {device} of {devices_per_process:?}: {array} is not as expected in {spec:?}"
                    );
                }
                reduced.push(found);
            }
            if let CollectiveKind::AllReduce { .. } = spec.kind {
                for group in reference::groups(spec, devices) {
                    let first = &reduced[group[0] as usize];
                    assert!(group.iter().all(|&device| reduced[device as usize] == *first), "{spec:?}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_collective_is_as_defined(
        devices_per_process in prop::collection::vec(1u32..=3, 1..=4),
        kinds in prop::collection::vec((0..KINDS, prop::bool::weighted(0.1)), 1..=6),
        paths in prop::sample::select(&ALL_PATHS),
        seed: u64,
    ) {
        check(&devices_per_process, paths, &kinds, seed);
    }
}

/// All kinds with messages that take the way of large ones, on layouts of every sort.
#[test]
fn large_arrays() {
    let layouts = [&[1, 1][..], &[1, 1], &[2, 1, 1], &[3, 1, 2], &[1, 2, 1, 1]];
    let paths = [Paths::Tcp, Paths::Shm, Paths::Rings, Paths::Mixed, Paths::Shm];
    for (seed, (layout, paths)) in layouts.into_iter().zip(paths).enumerate() {
        let kinds: Vec<(usize, bool)> = (0..KINDS).map(|kind| (kind, true)).collect();
        check(layout, paths, &kinds, seed as u64);
    }
}

/// Every element type with every operation that it has.
#[test]
fn every_type_and_operation() {
    let layout = [2, 1, 1];
    let job = Job::new(&layout, Paths::Shm, Duration::from_secs(30));
    let mut values = Values(1);
    let mut specs = vec![];
    for dtype in DType::all() {
        for op in OPS.into_iter().filter(|op| op.supports(dtype)) {
            let array = ArraySpec::new(dtype, [5, 67]);
            let key = specs.len() as u32;
            let name = format!("{dtype}.{op}");
            let kind = CollectiveKind::AllReduce { op };
            let arrays = vec![array];
            specs.push(CollectiveSpec { key, name, kind, groups: vec![], operands: arrays.clone(), results: arrays });
        }
    }
    let programs = job.program(1, &specs);
    for spec in &specs {
        let operands = make_operands(spec, 4, &mut values);
        let expected = reference::results(spec, &[0, 0, 1, 2], &operands);
        for (found, expected) in job.run(&programs, 0, spec, &operands).into_iter().zip(expected) {
            let found = found.unwrap();
            assert!(reference::agree(spec.results[0].dtype, &found[0], &expected[0]), "{}", spec.name);
        }
    }
}
