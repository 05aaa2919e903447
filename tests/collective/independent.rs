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
