//! Training that survives: a perceptron saves a checkpoint every few steps, and goes on from the latest one when it is started
//! again. Whatever is killed, and however often, the last loss is bit by bit that of an undisturbed run.
//!
//!     cargo build --examples && target/debug/spmd-run -n 4 --max-restarts 3 -- \
//!         target/debug/examples/resume_after_kill /tmp/checkpoints 2000
//!
//! and meanwhile `kill -9` one of its processes, or all of them, and start it again. SIGTERM has it save at once and end.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use spmd_run::builder::{Builder, Op, random};
use spmd_run::checkpoint::{Checkpoints, Snapshot};
use spmd_run::dtype::DType::{F32, U32};
use spmd_run::host_array::HostArray;
use spmd_run::mesh::{Mesh, NamedSharding, SpecError};
use spmd_run::runtime::{Array, Program, Runtime};

const BATCH: i64 = 64;
const HIDDEN: i64 = 32;
const RATE: f64 = 0.1;
/// Steps from one checkpoint to the next.
const EVERY: u64 = 10;

/// What a step takes over from the one before.
struct Variable {
    name: &'static str,
    dims: Vec<i64>,
    sharding: NamedSharding,
}

/// The network's parameters, the outermost layer last.
fn parameters(mesh: &Mesh) -> Result<Vec<Variable>, SpecError> {
    let variable = |name, dims: &[i64], sharding| Variable { name, dims: dims.to_vec(), sharding };
    Ok(vec![
        variable("w1", &[1, HIDDEN], mesh.sharding((None, "model"))?),
        variable("b1", &[HIDDEN], mesh.sharding(("model",))?),
        variable("w2", &[HIDDEN, 1], mesh.sharding(("model", None))?),
        variable("b2", &[1], mesh.sharding(())?),
    ])
}

/// A stream of examples, and how far it has been read: each step takes the next batch.
#[derive(Serialize, Deserialize)]
struct Input {
    seed: u64,
    examples: u64,
}

impl Input {
    fn next_batch(&mut self) -> (Vec<f32>, Vec<f32>) {
        let inputs: Vec<f32> = (0..BATCH)
            .map(|_| {
                // Knuth's generator of 64 bits.
                self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (self.seed >> 40) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect();
        self.examples += inputs.len() as u64;
        let targets = inputs.iter().map(|x| (3.0 * x).sin()).collect();
        (inputs, targets)
    }
}

/// Makes the first parameters, and the key of the noise.
fn init(
    runtime: &Runtime,
    parameters: &[Variable],
    whole: &NamedSharding,
) -> Result<Vec<Array>, Box<dyn std::error::Error>> {
    let b = Builder::new("init");
    let keys = random::split(random::key(&b, 0), parameters.len() + 1);
    let made = parameters
        .iter()
        .zip(&keys)
        .map(|(parameter, &key)| (random::normal(key, F32, &parameter.dims) * 0.5).with_sharding(&parameter.sharding));
    let made: Vec<Op> = made.chain([keys[parameters.len()].with_sharding(whole)]).collect();
    Ok(Program::compile(runtime, b.build(&made)?)?.run(&[])?)
}

fn main() -> ExitCode {
    spmd_run::run(|runtime| {
        let mut arguments = std::env::args().skip(1);
        let folder = arguments.next().ok_or("give a folder for checkpoints, and the number of steps")?;
        let steps: u64 = arguments.next().map_or(Ok(200), |steps| steps.parse())?;
        let devices = runtime.device_count();
        let model = if devices.is_multiple_of(2) { 2 } else { 1 };
        let mesh = Mesh::new(&[("data", devices / model), ("model", model)])?;
        let (parameters, of_batch, whole) = (parameters(&mesh)?, mesh.sharding(("data", None))?, mesh.sharding(())?);

        let b = Builder::new("step");
        let current: Vec<Op> = parameters
            .iter()
            .map(|parameter| b.sharded_parameter(parameter.name, F32, &parameter.dims, &parameter.sharding))
            .collect();
        let key = b.sharded_parameter("key", U32, &[2], &whole);
        let x = b.sharded_parameter("x", F32, &[BATCH, 1], &of_batch);
        let y = b.sharded_parameter("y", F32, &[BATCH, 1], &of_batch);
        let keys = random::split(key, 2);
        let noise = random::normal(keys[1], F32, &[BATCH, 1]) * 0.01;
        let hidden = ((x + noise).matmul(current[0]) + current[1]).tanh();
        let error = hidden.matmul(current[2]) + current[3] - y;
        let loss = (error * error).mean(&[]);
        let gradients = b.grad(loss, &current);
        let mut results: Vec<Op> = current
            .iter()
            .zip(gradients)
            .zip(&parameters)
            .map(|((&value, gradient), parameter)| (value - gradient * RATE).with_sharding(&parameter.sharding))
            .collect();
        current.iter().for_each(|&value| b.donate(value));
        results.extend([keys[0].with_sharding(&whole), loss.with_sharding(&whole)]);
        let train = Program::compile(runtime, b.build(&results)?)?;

        let checkpoints = Checkpoints::new(runtime, folder).keep(3);
        let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name).chain(["key"]).collect();
        let (mut step, mut values, mut input) = match checkpoints.latest()? {
            Some(saved) => {
                let shardings = parameters.iter().map(|parameter| &parameter.sharding).chain([&whole]);
                let values = names.iter().zip(shardings).map(|(name, sharding)| saved.array(name, sharding));
                (saved.step(), values.collect::<Result<_, _>>()?, saved.value("input")?)
            }
            None => (0, init(runtime, &parameters, &whole)?, Input { seed: 0, examples: 0 }),
        };
        let is_first = runtime.process_index() == 0;
        if is_first {
            println!("from step {step}");
        }
        while step < steps {
            let (inputs, targets) = input.next_batch();
            let load = |values: &[f32]| {
                Array::from_host(runtime, &HostArray::from_elements(&[BATCH as usize, 1], values)?, &of_batch)
            };
            let (x, y) = (load(&inputs)?, load(&targets)?);
            let arguments: Vec<&Array> = values.iter().chain([&x, &y]).collect();
            let mut results = train.run(&arguments)?;
            let loss = results.pop().ok_or("the step returns the loss last")?.to_host()?.to_elements::<f32>()?[0];
            values = results;
            step += 1;
            if is_first && (step % EVERY == 0 || step == steps) {
                println!("step {step}: loss {loss:.6} ({:#010x})", loss.to_bits());
            }
            let leaves = runtime.reached_preemption_sync_point(step)?;
            if step % EVERY == 0 || step == steps || leaves {
                let state = Snapshot::new().arrays(names.iter().copied().zip(&values)).value("input", &input);
                checkpoints.save(step, state)?;
            }
            if leaves {
                break;
            }
        }
        Ok(checkpoints.wait()?)
    })
}
