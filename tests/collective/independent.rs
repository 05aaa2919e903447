use std::sync::Arc;

use spmd_run::collective::{ArraySpec, CollectiveKind, CollectiveSpec, ReduceOp};
use spmd_run::dtype::DType;

use crate::harness::{ALL_PATHS, Job, PATIENCE, Paths, Pending};

const PROCESSES: usize = 4;
const LOCAL: usize = 8;
const DEVICES: usize = PROCESSES * LOCAL;

fn sum(key: u32, groups: Vec<Vec<u32>>, len: usize) -> CollectiveSpec {
    let arrays = vec![ArraySpec::new(DType::F32, [len])];
    let kind = CollectiveKind::AllReduce { op: ReduceOp::Sum };
    CollectiveSpec { key, name: format!("all-reduce.{key}"), kind, groups, operands: arrays.clone(), results: arrays }
}

/// The devices cut into groups of those whose ids agree in `of(id)`.
fn groups(of: impl Fn(usize) -> usize) -> Vec<Vec<u32>> {
    let mut groups = vec![vec![]; DEVICES];
    (0..DEVICES).for_each(|device| groups[of(device)].push(device as u32));
    groups.retain(|group| !group.is_empty());
    groups
}

/// 8 devices on each of 4 processes go through collectives of many groups at their own pace.
#[test]
fn many_groups_do_not_block_each_other() {
    ALL_PATHS.into_iter().for_each(run_many_groups);
}

fn run_many_groups(paths: Paths) {
    let job = Job::new(&[LOCAL as u32; PROCESSES], paths, PATIENCE);
    let specs = [
        // Pairs of neighbours' processes, columns across all processes, rows within each, pairs across, everyone.
        sum(0, groups(|device| device % LOCAL + device / (2 * LOCAL) * LOCAL), 300),
        sum(1, groups(|device| device % LOCAL), 30_000),
        sum(2, groups(|device| device / LOCAL), 1),
        sum(3, groups(|device| device % (DEVICES / 2)), 70_000),
        sum(4, vec![], 1000),
        sum(5, groups(|device| device), 5),
    ];
    let programs = job.program(1, &specs);
    let specs = Arc::new(specs);
    let threads: Vec<_> = job
        .places()
        .into_iter()
        .enumerate()
        .map(|(device, (process, local))| {
            let (program, specs) = (Arc::clone(&programs[process]), Arc::clone(&specs));
            std::thread::spawn(move || {
                for run in 1..=5 {
                    for spec in specs.iter() {
                        let len = spec.operands[0].dims[0];
                        let operand = (device as f32).to_le_bytes().repeat(len);
                        let results = Pending::enter(&program, run, spec, local, vec![operand]).wait().unwrap();
                        let members = match spec.groups.iter().find(|group| group.contains(&(device as u32))) {
                            Some(group) => group.clone(),
                            None => (0..DEVICES as u32).collect(),
                        };
                        let expected = members.iter().sum::<u32>() as f32;
                        assert!(results[0] == expected.to_le_bytes().repeat(len), "{}", spec.name);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Messages that fill every buffer on their way go around in circles. A process that waits for its next neighbour takes in
/// what the one before it sends, or these wait for each other for ever.
#[test]
fn large_messages_in_a_circle_do_not_block_each_other() {
    const BYTES: usize = 12 << 20;
    let circle = |step: u32| {
        let pairs = (0..PROCESSES as u32).map(|device| (device, (device + step) % PROCESSES as u32)).collect();
        CollectiveSpec { kind: CollectiveKind::CollectivePermute { pairs }, ..sum(step, vec![], BYTES / 4) }
    };
    let specs = Arc::new([circle(1), circle(3)]);
    for paths in ALL_PATHS {
        let job = Job::new(&[1; PROCESSES], paths, PATIENCE);
        let programs = job.program(1, &*specs);
        let run_device = |device: usize| {
            let (program, specs) = (Arc::clone(&programs[device]), Arc::clone(&specs));
            move || {
                let mut operand = vec![device as u8; BYTES];
                for run in 1..=4 {
                    for spec in specs.iter() {
                        let results = Pending::enter(&program, run, spec, 0, vec![operand]).wait().unwrap();
                        operand = results.into_iter().next().unwrap();
                    }
                }
                assert!(operand == vec![device as u8; BYTES], "device {device}");
            }
        };
        let threads: Vec<_> = (0..PROCESSES).map(|device| std::thread::spawn(run_device(device))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// One thread brings the devices of all processes, one after the other: whoever waited in it for a process that has yet
/// to come would wait for ever. What a process exchanges with some of the others says nothing of the rest.
#[test]
fn a_devices_thread_does_not_wait_for_who_has_yet_to_come() {
    let ring = (0..PROCESSES as u32).map(|device| (device, (device + 1) % PROCESSES as u32)).collect();
    let kinds = [CollectiveKind::CollectiveBroadcast, CollectiveKind::CollectivePermute { pairs: ring }];
    let lens = [100, 100_000, 1_000_000];
    let specs = lens.iter().flat_map(|&len| kinds.iter().map(move |kind| (len, kind)));
    let specs: Vec<CollectiveSpec> = specs
        .zip(0..)
        .map(|((len, kind), key)| CollectiveSpec { kind: kind.clone(), ..sum(key, vec![], len) })
        .collect();
    for paths in ALL_PATHS {
        let job = Job::new(&[1; PROCESSES], paths, PATIENCE);
        let programs = job.program(1, &specs);
        for spec in &specs {
            let operands =
                (0..PROCESSES).map(|device| vec![(device as f32).to_le_bytes().repeat(spec.operands[0].dims[0])]);
            let operands: Vec<Vec<Vec<u8>>> = operands.collect();
            for (device, found) in job.run(&programs, 1, spec, &operands).into_iter().enumerate() {
                let source = match spec.kind {
                    CollectiveKind::CollectiveBroadcast => 0,
                    _ => (device + PROCESSES - 1) % PROCESSES,
                };
                assert!(found.unwrap() == operands[source], "device {device}: {spec}");
            }
        }
    }
}

/// The messages between two processes of an all-to-all grow with the devices of both: what is small for one pair is not
/// for another one, and still all processes must go about it in the same way.
#[test]
fn processes_of_different_sizes_agree_on_how_to_exchange() {
    let layout = [3, 3, 1];
    let specs: Vec<CollectiveSpec> = (0..3)
        .map(|key| {
            // 12, 24 and 48 KiB from device to device.
            let len = 7 * (3 << 10 << key);
            CollectiveSpec { kind: CollectiveKind::AllToAll { split_dim: Some(0) }, ..sum(key, vec![], len) }
        })
        .collect();
    for paths in ALL_PATHS {
        let job = Job::new(&layout, paths, PATIENCE);
        let programs = job.program(1, &specs);
        for spec in &specs {
            let part = spec.operands[0].dims[0] / 7;
            let operands: Vec<Vec<Vec<u8>>> = (0..7)
                .map(|device| {
                    vec![(0..7).flat_map(|to| ((10 * device + to) as f32).to_le_bytes().repeat(part)).collect()]
                })
                .collect();
            for (device, found) in job.run(&programs, 1, spec, &operands).into_iter().enumerate() {
                let expected: Vec<u8> =
                    (0..7).flat_map(|from| ((10 * from + device) as f32).to_le_bytes().repeat(part)).collect();
                assert!(found.unwrap() == [expected], "device {device}: {spec}");
            }
        }
    }
}
