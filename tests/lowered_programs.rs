//! Programs partitioned, lowered and run over several clients give what they give on one.

mod common;

use buffa::Message;
use common::bridged::Case;
use spmd_run::hlo::{HloModule, Program};
use spmd_run::host_array::Fill;
use spmd_run::proto::HloModuleProto;

#[test]
fn dev() {
    let Ok(dir) = std::env::var("LW_DIR") else { return };
    let filter = std::env::var("LW_FILTER").unwrap_or_default();
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let mut failed = 0;
    for path in names {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.contains(&filter) || name.starts_with("c_") || name.starts_with("stop") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let program = if name.ends_with(".pb") {
            Program::Hlo(HloModule { proto: HloModuleProto::decode_from_slice(&bytes).unwrap(), ..Default::default() })
        } else if name.ends_with(".mlir") {
            Program::Mlir(bytes)
        } else {
            continue;
        };
        let result = std::panic::catch_unwind(|| {
            let case =
                Case { plugin: common::plugin(), program, replicas: 1, partitions: 8, fill: Fill::Random { seed: 1 } };
            let partitioned = case.partition();
            let arguments = case.arguments(&partitioned.parameters);
            let start = std::time::Instant::now();
            let alone = case.run_alone(&arguments);
            println!("alone {:?}", start.elapsed());
            for processes in [1, 2, 4, 8] {
                let lowered = case.lower(&partitioned.module, processes);
                let start = std::time::Instant::now();
                let bridged = case.run_bridged(&lowered, processes, &arguments, 2);
                let f = |r: &common::bridged::Results| -> Vec<f32> {
                    r.iter().flatten().flat_map(|b| common::floats_of(b)).collect()
                };
                let diff = f(&alone)
                    .iter()
                    .zip(f(&bridged))
                    .map(|(a, b)| (a - b).abs() / a.abs().max(1.0))
                    .fold(0f32, f32::max);
                println!(
                    "{name} {processes}: {} collectives, same: {} {diff} {:?}",
                    lowered.collectives.len(),
                    alone == bridged,
                    start.elapsed()
                );
            }
        });
        failed += i32::from(result.is_err());
        println!("{name}: {}", if result.is_ok() { "ok" } else { "FAILED" });
    }
    assert_eq!(failed, 0);
}
