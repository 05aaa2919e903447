//! A product of matrices that no device holds as a whole. XLA divides the work by where the operands lie.
//!
//!     cargo build --examples && target/debug/spmd-run -n 4 -- target/debug/examples/sharded_matmul

use std::process::ExitCode;

use spmd_run::builder::Builder;
use spmd_run::dtype::DType::F32;
use spmd_run::host_array::HostArray;
use spmd_run::mesh::Mesh;
use spmd_run::runtime::{Array, Program};

const SIZE: i64 = 64;

fn main() -> ExitCode {
    spmd_run::run(|runtime| {
        let devices = runtime.device_count();
        let columns = if devices.is_multiple_of(2) { 2 } else { 1 };
        let mesh = Mesh::new(&[("rows", devices / columns), ("columns", columns)])?;
        let (of_left, of_right) = (mesh.sharding(("rows", None))?, mesh.sharding((None, "columns"))?);

        let b = Builder::new("matmul");
        let left = b.sharded_parameter("left", F32, &[SIZE, SIZE], &of_left);
        let right = b.sharded_parameter("right", F32, &[SIZE, SIZE], &of_right);
        let product = left.matmul(right).with_sharding(&mesh.sharding(("rows", "columns"))?);
        let program = Program::compile(runtime, b.build(&[product])?)?;

        let side = SIZE as usize;
        let element = |i: usize, j: usize| ((i * 7 + j * 3) % 11) as f32 - 5.0;
        let elements: Vec<f32> = (0..side * side).map(|place| element(place / side, place % side)).collect();
        let whole = HostArray::from_elements(&[side, side], &elements)?;
        let left = Array::from_host(runtime, &whole, &of_left)?;
        let right = Array::from_host(runtime, &whole, &of_right)?;
        let product = &program.run(&[&left, &right])?[0];

        // Each process checks what is on its own devices.
        for shard in product.addressable_shards()? {
            let (rows, columns) = (shard.index[0].clone(), shard.index[1].clone());
            let places = rows.flat_map(|i| columns.clone().map(move |j| (i as usize, j as usize)));
            for ((i, j), found) in places.zip(shard.data.to_elements::<f32>()?) {
                let expected: f32 = (0..side).map(|k| element(i, k) * element(k, j)).sum();
                if found != expected {
                    return Err(format!("device {}: ({i}, {j}) is {found} instead of {expected}", shard.device).into());
                }
            }
        }
        let sum: f32 = product.all_gather_to_host(runtime)?.to_elements::<f32>()?.iter().sum();
        if runtime.process_index() == 0 {
            println!("{SIZE} × {SIZE}: the elements' sum is {sum}");
        }
        Ok(())
    })
}
