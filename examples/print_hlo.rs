//! Reads an HLO module in any form (text, `HloModuleProto`, `HloProto`) and prints it as text that XLA reads.
//!
//!     cargo run --example print_hlo -- hlo/tp_mlp.hlo

use std::process::ExitCode;

use spmd_run::hlo::{self, Program};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let Some(file) = std::env::args().nth(1) else {
        eprintln!("usage: print_hlo FILE");
        return Ok(ExitCode::from(2));
    };
    match hlo::load(&std::fs::read(&file)?, &file)? {
        Program::Hlo(module) => print!("{}", hlo::print(&module)),
        Program::Mlir(_) => {
            return Err(format!("{file}: StableHLO becomes HLO in a plugin, see partition::import").into());
        }
    }
    Ok(ExitCode::SUCCESS)
}
