//! HLO text: no text may make the parser, the verifier or the printer panic, hang or take much memory, and what parses must
//! read the same again after printing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spmd_run::hlo;
use spmd_run_fuzz::within_bounds;

fuzz_target!(|text: &str| {
    let Ok(module) = within_bounds(text.len(), || hlo::parse(text, "fuzz")) else { return };
    let _ = hlo::verify(&module, 2, 4);
    let printed = hlo::print(&module);
    match hlo::parse(&printed, "printed") {
        Ok(again) => assert_eq!(hlo::print(&again), printed),
        Err(error) => panic!("{error}\n{printed}"),
    }
});
