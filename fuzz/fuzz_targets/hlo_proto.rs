//! Files of any content: no bytes may make the loader, the verifier or the passes behind it panic, hang or take much
//! memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spmd_run::hlo::{self, Program};
use spmd_run::lower::{self, Layout};
use spmd_run::partition;
use spmd_run_fuzz::within_bounds;

fuzz_target!(|bytes: &[u8]| {
    let Ok(program) = within_bounds(bytes.len(), || hlo::load(bytes, "fuzz")) else { return };
    let _ = partition::program_counts(&program);
    let _ = partition::uses_shardy(&program);
    let Program::Hlo(module) = program else { return };
    let _ = hlo::print(&module);
    if hlo::verify(&module, 2, 2).is_ok() {
        let _ = lower::lower(&module, &Layout { replicas: 2, partitions: 2, devices_per_process: vec![2, 2] });
    }
});
