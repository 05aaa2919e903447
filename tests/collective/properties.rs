use std::time::Duration;

use proptest::prelude::*;
use spmd_run::collective::{ArraySpec, CollectiveKind, CollectiveSpec, Link, Links, ReduceOp};
use spmd_run::dtype::DType;

use crate::generate::{KINDS, OPS, Values, make_operands, make_spec};
use crate::harness::{ALL_PATHS, Job, Paths};
use crate::reference::{self, Order};

/// Runs instructions on a layout and compares with the reference.
fn check(devices_per_process: &[u32], paths: Paths, kinds: &[(usize, bool)], seed: u64) {
    let islands = paths.islands(devices_per_process.len());
    check_job(&Job::new(devices_per_process, paths, Duration::from_secs(30)), &islands, kinds, seed);
}

/// The same for a job whose processes are in these islands, which may combine inside first.
fn check_job(job: &Job, islands: &[u32], kinds: &[(usize, bool)], seed: u64) {
    let mut values = Values(seed);
    let devices_per_process = &job.devices_per_process;
    let devices = job.device_count() as usize;
    let specs: Vec<CollectiveSpec> = kinds
        .iter()
        .enumerate()
        .map(|(key, &(kind, large))| make_spec(key as u32, kind, devices, large, &mut values))
        .collect();
    let programs = job.program(7, &specs);
    let process_of: Vec<usize> = job.places().into_iter().map(|(process, _)| process).collect();
    let island_of = process_of.iter().map(|&process| islands[process] as usize).collect();
    let flat = Order::of_processes(process_of.clone());
    let by_islands = Order { island_of, process_of };
    for run in [1, 1, 2] {
        for spec in &specs {
            let operands = make_operands(spec, devices, &mut values);
            let mut expected = reference::results(spec, &flat, &operands);
            let mut reduced = vec![];
            for (device, found) in job.run(&programs, run, spec, &operands).into_iter().enumerate() {
                reduced.push(found.unwrap_or_else(|error| panic!("device {device}: {error} in {spec:?}")));
            }
            let wrong = |expected: &[Vec<Vec<u8>>]| {
                let devices = reduced.iter().zip(expected).enumerate();
                let arrays = devices.flat_map(|(device, (found, expected))| {
                    let arrays = spec.results.iter().zip(found).zip(expected);
                    arrays.map(move |((array, found), expected)| (device, array, found, expected))
                });
                let mut wrong =
                    arrays.filter(|(_, array, found, expected)| !reference::agree(array.dtype, found, expected));
                wrong.next().map(|(device, array, ..)| format!("device {device}: {array}"))
            };
            if wrong(&expected).is_some() && by_islands.island_of != flat.island_of {
                expected = reference::results(spec, &by_islands, &operands);
            }
            if let Some(wrong) = wrong(&expected) {
                panic!("{wrong} is not as expected on {devices_per_process:?}, islands {islands:?}, in {spec:?}");
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

/// Products of floats round differently in each order: processes of an island come first, wherever they are.
#[test]
fn processes_that_share_memory_combine_first() {
    check(&[1, 2, 3], Paths::MixedTls, &[(0, false); 3], 11_553_568_302_733_073_014);
}

/// All kinds with messages that take the way of large ones, on layouts of every sort.
#[test]
fn large_arrays() {
    let layouts = [&[1, 1][..], &[1, 1], &[2, 1, 1], &[3, 1, 2], &[1, 2, 1, 1], &[1, 1]];
    let paths = [Paths::Tcp, Paths::Shm, Paths::Rings, Paths::Mixed, Paths::Shm, Paths::Tls];
    for (seed, (layout, paths)) in layouts.into_iter().zip(paths).enumerate() {
        let kinds: Vec<(usize, bool)> = (0..KINDS).map(|kind| (kind, true)).collect();
        check(layout, paths, &kinds, seed as u64);
    }
}

/// Large arrays between slices of several processes, of which some share memory.
#[test]
fn large_arrays_between_slices() {
    type Case<'a> = (&'a [u32], &'a [u32], Paths);
    let cases: [Case; 5] = [
        (&[1, 1, 1, 1], &[0, 0, 2, 2], Paths::Shm),
        (&[1, 2, 1], &[0, 1, 0], Paths::Mixed),
        (&[2, 1, 1, 2, 1], &[0, 0, 2, 2, 2], Paths::Tcp),
        (&[1, 1, 1, 1, 1, 1], &[0, 1, 2, 0, 1, 2], Paths::Rings),
        (&[1, 1, 1, 1], &[0, 0, 0, 3], Paths::Mixed),
    ];
    for (seed, (layout, slices, paths)) in cases.into_iter().enumerate() {
        let kinds: Vec<(usize, bool)> = [0, 1, 2, 5].into_iter().map(|kind| (kind, true)).collect();
        check_job(&Job::in_slices(layout, paths, slices, Duration::from_secs(30)), slices, &kinds, seed as u64);
    }
}

/// What the links carry decides about the algorithm, and not about any bit of the results.
#[test]
fn results_do_not_depend_on_the_links() {
    let link = |bytes_per_second| Link { bytes_per_second, latency_seconds: 0.0 };
    let (slow, fast) = (link(1e6), link(1e12));
    let cases = [(&[1, 1, 1, 1][..], &[0, 0, 1, 1][..]), (&[2, 1, 1, 2, 1], &[0, 1, 0, 1, 1])];
    let (mut sent, mut depends_on_order) = ([0, 0], false);
    for (layout, slices) in cases {
        let links = [Links { ici: slow, dcn: fast }, Links { ici: fast, dcn: slow }];
        let [flat, by_islands] = links.map(|links| Job::with_links(layout, slices, links, Duration::from_secs(30)));
        let in_order = Job::new(layout, Paths::Tcp, Duration::from_secs(30));
        let jobs = [flat, by_islands, in_order];
        let devices = jobs[0].device_count() as usize;
        let mut values = Values(3);
        let mut specs: Vec<CollectiveSpec> = (0..32)
            .map(|key| make_spec(key, [0, 1, 2, 5][key as usize % 4], devices, key >= 28, &mut values))
            .collect();
        for (index, spec) in specs.iter_mut().enumerate() {
            if let CollectiveKind::AllReduce { op } | CollectiveKind::ReduceScatter { op, .. } = &mut spec.kind {
                *op = ReduceOp::Sum;
                let dtype = if index < 16 { DType::F32 } else { DType::BF16 };
                spec.operands.iter_mut().chain(&mut spec.results).for_each(|array| array.dtype = dtype);
            }
        }
        let programs = jobs.each_ref().map(|job| job.program(7, &specs));
        for spec in &specs {
            let operands = make_operands(spec, devices, &mut values);
            let results = |index: usize| {
                let results = jobs[index].run(&programs[index], 1, spec, &operands);
                results.into_iter().map(Result::unwrap).collect::<Vec<_>>()
            };
            let flat = results(0);
            assert!(flat == results(1), "on {layout:?}, {slices:?} in {spec:?}");
            depends_on_order |= flat != results(2);
        }
        for (sent, job) in sent.iter_mut().zip(&jobs) {
            *sent += job.communicators.iter().map(|it| it.position().sent_bytes).sum::<u64>();
        }
    }
    assert_ne!(sent[0], sent[1], "the algorithms differ");
    assert!(depends_on_order, "there are sums that the order of combining makes a difference to");
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
        let expected = reference::results(spec, &Order::of_processes(vec![0, 0, 1, 2]), &operands);
        for (found, expected) in job.run(&programs, 0, spec, &operands).into_iter().zip(expected) {
            let found = found.unwrap();
            assert!(reference::agree(spec.results[0].dtype, &found[0], &expected[0]), "{}", spec.name);
        }
    }
}
