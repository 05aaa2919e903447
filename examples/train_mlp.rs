//! Training in Rust alone: a perceptron learns sin(3x), the batch cut over one axis of the mesh and the hidden layer over
//! the other. Parameters never leave the devices.
//!
//!     cargo build --examples && target/debug/spmd-run -n 4 -- target/debug/examples/train_mlp 500

use std::process::ExitCode;

use spmd_run::builder::{Builder, Op, random};
use spmd_run::dtype::DType::F32;
use spmd_run::host_array::HostArray;
use spmd_run::mesh::{Mesh, NamedSharding, SpecError};
use spmd_run::runtime::{Array, Program};

const BATCH: i64 = 64;
const HIDDEN: i64 = 32;
const RATE: f64 = 0.1;

/// A parameter of the network.
struct Layer {
    name: &'static str,
    dims: Vec<i64>,
    sharding: NamedSharding,
}

fn layers(mesh: &Mesh) -> Result<Vec<Layer>, SpecError> {
    let layer = |name, dims: &[i64], sharding| Layer { name, dims: dims.to_vec(), sharding };
    Ok(vec![
        layer("w1", &[1, HIDDEN], mesh.sharding((None, "model"))?),
        layer("b1", &[HIDDEN], mesh.sharding(("model",))?),
        layer("w2", &[HIDDEN, 1], mesh.sharding(("model", None))?),
        layer("b2", &[1], mesh.sharding(())?),
    ])
}

fn loss<'b>(parameters: &[Op<'b>], x: Op<'b>, y: Op<'b>) -> Op<'b> {
    let hidden = (x.matmul(parameters[0]) + parameters[1]).tanh();
    let error = hidden.matmul(parameters[2]) + parameters[3] - y;
    (error * error).mean(&[])
}

fn main() -> ExitCode {
    spmd_run::run(|runtime| {
        let steps: usize = std::env::args().nth(1).map_or(Ok(200), |steps| steps.parse())?;
        let devices = runtime.device_count();
        let model = if devices.is_multiple_of(2) { 2 } else { 1 };
        let mesh = Mesh::new(&[("data", devices / model), ("model", model)])?;
        let layers = layers(&mesh)?;
        let of_batch = mesh.sharding(("data", None))?;

        let b = Builder::new("init");
        let keys = random::split(random::key(&b, 0), layers.len());
        let made = layers.iter().zip(keys).map(|(layer, key)| {
            let scale = if layer.dims.len() == 2 { (2.0 / layer.dims[0] as f64).sqrt() } else { 0.1 };
            (random::normal(key, F32, &layer.dims) * scale).with_sharding(&layer.sharding)
        });
        let init = Program::compile(runtime, b.build(&made.collect::<Vec<_>>())?)?;

        let b = Builder::new("step");
        let parameter = |layer: &Layer| b.sharded_parameter(layer.name, F32, &layer.dims, &layer.sharding);
        let current: Vec<Op> = layers.iter().map(parameter).collect();
        let x = b.sharded_parameter("x", F32, &[BATCH, 1], &of_batch);
        let y = b.sharded_parameter("y", F32, &[BATCH, 1], &of_batch);
        let loss = loss(&current, x, y);
        let gradients = b.grad(loss, &current);
        let updates = current.iter().zip(gradients).zip(&layers);
        let mut results: Vec<Op> = updates
            .map(|((&value, gradient), layer)| (value - gradient * RATE).with_sharding(&layer.sharding))
            .collect();
        current.iter().for_each(|&value| b.donate(value));
        results.push(loss.with_sharding(&mesh.sharding(())?));
        let step = Program::compile(runtime, b.build(&results)?)?;

        let inputs: Vec<f32> = (0..BATCH).map(|row| row as f32 / (BATCH - 1) as f32 * 2.0 - 1.0).collect();
        let targets: Vec<f32> = inputs.iter().map(|x| (3.0 * x).sin()).collect();
        let load = |values: &[f32]| {
            Array::from_host(runtime, &HostArray::from_elements(&[BATCH as usize, 1], values)?, &of_batch)
        };
        let (x, y) = (load(&inputs)?, load(&targets)?);

        let mut values = init.run(&[])?;
        for number in 1..=steps {
            let arguments: Vec<&Array> = values.iter().chain([&x, &y]).collect();
            let mut results = step.run(&arguments)?;
            let loss = results.pop().ok_or("the step returns the loss last")?;
            values = results;
            if number % (steps / 4).max(1) == 0 && runtime.process_index() == 0 {
                println!("step {number}: loss {:.4}", loss.to_host()?.to_elements::<f32>()?[0]);
            }
        }
        Ok(())
    })
}
