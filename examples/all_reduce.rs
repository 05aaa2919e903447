//! A collective by hand: every device brings a row, and all get the sum.
//!
//!     cargo build --examples && target/debug/spmd-run -n 4 -- target/debug/examples/all_reduce

use std::process::ExitCode;

use spmd_run::builder::Builder;
use spmd_run::dtype::DType::F32;
use spmd_run::host_array::HostArray;
use spmd_run::mesh::Mesh;
use spmd_run::runtime::{Array, Program};

fn main() -> ExitCode {
    spmd_run::run(|runtime| {
        let devices = runtime.device_count();
        let mesh = Mesh::new(&[("devices", devices)])?;
        let rows = mesh.sharding(("devices",))?;
        let dims = [devices as i64, 3];

        let b = Builder::new("all_reduce");
        let x = b.sharded_parameter("x", F32, &dims, &rows);
        let sum = b.shard_map(&mesh, &[(x, rows.spec().clone())], &[().into()], |row| vec![row[0].psum(&["devices"])]);
        let program = Program::compile(runtime, b.build(&sum)?)?;

        // Asked for the rows of this process's devices only.
        let x = Array::from_callback(runtime, F32, &dims, &rows, |index| {
            let row = index[0].start as f32 + 1.0;
            HostArray::from_elements(&[1, 3], &[row, 10.0 * row, 100.0 * row]).expect("three elements")
        })?;
        let sum = &program.run(&[&x])?[0];
        if runtime.process_index() == 0 {
            println!("{}", sum.to_host()?);
        }
        Ok(())
    })
}
