//! A training step that was written in JAX and exported (`examples/data/export_step.py`) trains here: StableHLO or HLO in any
//! form, with JAX's own shardings. Its first results are the next values of its first arguments, its last one is the loss.
//!
//!     cargo build --examples && target/debug/spmd-run -n 4 -- target/debug/examples/train_exported_step \
//!         examples/data/train_step.mlirbc examples/data/train_step.npz 40

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use spmd_run::hlo;
use spmd_run::host_array::npz::read_npz;
use spmd_run::runtime::{Array, Program};

fn main() -> ExitCode {
    spmd_run::run(|runtime| {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [program, values, steps] = &arguments[..] else {
            return Err("usage: train_exported_step PROGRAM ARGUMENTS.npz STEPS".into());
        };
        let steps: usize = steps.parse().map_err(|error| format!("{steps}: {error}"))?;
        let step = Program::from_source(runtime, hlo::load(&std::fs::read(program)?, program)?)?;

        let mut values = read_npz(Path::new(values))?;
        let parameters = step.executable().parameters().iter().enumerate();
        let first = parameters.map(|(index, parameter)| {
            let value = values.remove(&format!("arg{index}")).ok_or_else(|| format!("there is no arg{index}"))?;
            Ok(step.argument(index, &value.into_host_array(parameter.dtype, &parameter.dims_usize())?)?)
        });
        let mut state: Vec<Array> = first.collect::<Result<_, Box<dyn Error>>>()?;

        for number in 1..=steps {
            let mut results = step.run(&state.iter().collect::<Vec<_>>())?;
            let loss = results.pop().ok_or("the step has no results")?.to_host()?.to_elements::<f32>()?[0];
            // What the step does not return, such as the batch, stays as it is.
            state.splice(..results.len(), results);
            if number % (steps / 4).max(1) == 0 && runtime.process_index() == 0 {
                println!("step {number}: loss {loss:.6}");
            }
        }
        Ok(())
    })
}
