//! A GPT learns to write like Shakespeare, character by character, in Rust alone: the batch is cut over one axis of the mesh,
//! heads and hidden units over the other, and weights, moments and the text never leave the devices.
//!
//!     cargo build --release --examples && target/release/spmd-run -n 4 -- target/release/examples/train_gpt --plot loss.svg

#[path = "gpt/curve.rs"]
mod curve;
#[path = "gpt/model.rs"]
mod model;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use model::{Alphabet, Gpt, Weight};
use spmd_run::builder::{Builder, Op, random};
use spmd_run::checkpoint::{Checkpoints, Snapshot};
use spmd_run::dtype::DType::{F32, S32};
use spmd_run::hlo::HloModule;
use spmd_run::host_array::HostArray;
use spmd_run::mesh::{Mesh, NamedSharding};
use spmd_run::runtime::{Array, Program};

/// "As You Like It", in the public domain.
const TEXT: &[u8] = include_bytes!("data/as_you_like_it.txt");
const BATCH: i64 = 16;

/// Trains a GPT on a text.
#[derive(Parser)]
struct Options {
    #[arg(long, default_value_t = 300)]
    steps: i64,
    /// Where the weights and the choice of what is read begin
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// Show the loss of every so manyth step
    #[arg(long, default_value_t = 10)]
    every: usize,
    /// Another text to learn
    #[arg(long)]
    text: Option<PathBuf>,
    /// Draw the losses to this SVG file
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Save the weights in this folder
    #[arg(long)]
    save: Option<PathBuf>,
}

/// What is trained, and how.
struct Training {
    gpt: Gpt,
    weights: Vec<Weight>,
    mesh: Mesh,
    /// Where each of the weights lies.
    shardings: Vec<NamedSharding>,
    /// Where lies what all devices have.
    everywhere: NamedSharding,
    steps: i64,
    seed: u64,
}

impl Training {
    /// The program that makes the first state: the number of steps that are done, weights, and the means and variances of
    /// their gradients.
    fn init(&self) -> Result<HloModule, Box<dyn Error>> {
        let b = Builder::new("init");
        let keys = random::split(self.keys(&b)[0], self.weights.len());
        let mut state = vec![b.scalar(S32, 0).with_sharding(&self.everywhere)];
        for ((weight, key), sharding) in self.weights.iter().zip(keys).zip(&self.shardings) {
            let value = match weight.deviation {
                Some(deviation) => random::normal(key, F32, &weight.dims) * deviation,
                None => b.ones(F32, &weight.dims),
            };
            state.push(value.with_sharding(sharding));
        }
        for _ in ["means", "variances"] {
            let zeros = self.weights.iter().zip(&self.shardings);
            state.extend(zeros.map(|(weight, sharding)| b.zeros(F32, &weight.dims).with_sharding(sharding)));
        }
        Ok(b.build(&state)?)
    }

    /// The keys of the weights and of what is read.
    fn keys<'b>(&self, b: &'b Builder) -> Vec<Op<'b>> {
        random::split(random::key(b, self.seed), 2)
    }

    /// The program of one step: from a state and the text to the next state and the loss.
    fn step(&self, length: i64) -> Result<HloModule, Box<dyn Error>> {
        let b = Builder::new("step");
        let done = b.sharded_parameter("done", S32, &[], &self.everywhere);
        let [weights, means, variances] = ["", "mean.", "variance."].map(|kind| {
            let parameter = |(weight, sharding): (&Weight, _)| {
                b.sharded_parameter(&format!("{kind}{}", weight.name), F32, &weight.dims, sharding)
            };
            self.weights.iter().zip(&self.shardings).map(parameter).collect::<Vec<Op>>()
        });
        [&[done], &weights[..], &means[..], &variances[..]].concat().iter().for_each(|&value| b.donate(value));
        let text = b.sharded_parameter("text", S32, &[length], &self.everywhere);

        let windows = self.batch(text, random::fold_in(self.keys(&b)[1], done));
        let windows = windows.with_sharding(&self.mesh.sharding(("data", None))?);
        let loss = self.loss(&weights, windows);
        let gradients = clipped(&b.grad(loss, &weights));

        let done = done + 1;
        let optimizer = AdamW { rate: self.rate(done), step: done.convert(F32) };
        let mut next = vec![Vec::new(), Vec::new(), Vec::new()];
        for (index, sharding) in self.shardings.iter().enumerate() {
            let updated = optimizer.update(weights[index], gradients[index], means[index], variances[index]);
            next.iter_mut().zip(updated).for_each(|(next, value)| next.push(value.with_sharding(sharding)));
        }
        let [done, loss] = [done, loss].map(|value| value.with_sharding(&self.everywhere));
        Ok(b.build(&[vec![done], next.concat(), vec![loss]].concat())?)
    }

    /// Pieces of the text from random places, one character longer than the context: `s32[batch, context + 1]`.
    fn batch<'b>(&self, text: Op<'b>, key: Op<'b>) -> Op<'b> {
        let size = self.gpt.context + 1;
        let places = random::uniform(key, F32, &[BATCH, 1]) * (text.dim(0) - size) as f64;
        text.take(places.convert(S32) + text.builder().arange(S32, size), 0)
    }

    /// How surprising each character is after those before it, on average, in nats.
    fn loss<'b>(&self, weights: &[Op<'b>], windows: Op<'b>) -> Op<'b> {
        let context = self.gpt.context;
        let (inputs, targets) = (windows.slice(1, 0..context), windows.slice(1, 1..context + 1));
        let probabilities = self.gpt.logits(weights, inputs).log_softmax(-1);
        -(probabilities * targets.one_hot(F32, self.gpt.vocabulary)).sum(&[-1]).mean(&[])
    }

    /// The learning rate: it rises over 20 steps, then falls along a cosine to a tenth.
    fn rate<'b>(&self, step: Op<'b>) -> Op<'b> {
        let step = step.convert(F32);
        let cosine = (step * (std::f64::consts::PI / self.steps as f64)).cos();
        3e-3 * (step / 20.0).min(1) * (0.55 + 0.45 * cosine)
    }
}

/// The gradients, made shorter if together they are longer than 1.
fn clipped<'b>(gradients: &[Op<'b>]) -> Vec<Op<'b>> {
    let squares = gradients.iter().map(|&gradient| (gradient * gradient).sum(&[]));
    let norm = squares.reduce(|sum, square| sum + square).expect("there are weights").sqrt();
    gradients.iter().map(|&gradient| gradient / norm.max(1)).collect()
}

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
struct AdamW<'b> {
    rate: Op<'b>,
    /// From 1.
    step: Op<'b>,
}

impl<'b> AdamW<'b> {
    /// The weight after the step, and the mean and variance of its gradient.
    fn update(&self, weight: Op<'b>, gradient: Op<'b>, mean: Op<'b>, variance: Op<'b>) -> [Op<'b>; 3] {
        const BETA1: f64 = 0.9;
        const BETA2: f64 = 0.99;
        let mean = BETA1 * mean + (1.0 - BETA1) * gradient;
        let variance = BETA2 * variance + (1.0 - BETA2) * gradient * gradient;
        // Both began as zeros; this takes out what is left of that.
        let [bias1, bias2] = [BETA1, BETA2].map(|beta| 1.0 - (self.step * beta.ln()).exp());
        let direction = (mean / bias1) / ((variance / bias2).sqrt() + 1e-8);
        // Norms are left to find their own scale.
        let decay = if weight.rank() > 1 { 0.1 } else { 0.0 };
        [weight - self.rate * (direction + decay * weight), mean, variance]
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    spmd_run::run(|runtime| {
        let started = Instant::now();
        let text = options.text.as_deref().map(std::fs::read).transpose()?.unwrap_or(TEXT.to_vec());
        let alphabet = Alphabet::of(&text);
        let gpt = Gpt { vocabulary: alphabet.len(), context: 64, width: 128, heads: 4, layers: options.layers };

        let devices = runtime.device_count();
        let model = if devices.is_multiple_of(2) { 2 } else { 1 };
        let mesh = Mesh::new(&[("data", devices / model), ("model", model)])?;
        let weights = gpt.weights();
        let shardings = weights.iter().map(|weight| mesh.sharding(&weight.spec)).collect::<Result<_, _>>()?;
        let everywhere = mesh.sharding(())?;
        let Options { steps, seed, .. } = options;
        let training = Training { gpt, weights, mesh, shardings, everywhere, steps, seed };

        let tokens = alphabet.encode(&text);
        let tokens = Array::replicated(runtime, &HostArray::from_elements(&[tokens.len()], &tokens)?)?;
        let step = Program::compile(runtime, training.step(tokens.dims()[0])?)?;
        let mut state = Program::compile(runtime, training.init()?)?.run(&[])?;
        let compiled = Instant::now();

        let mut losses = Vec::new();
        for number in 1..=steps as usize {
            let arguments: Vec<&Array> = state.iter().chain([&tokens]).collect();
            let mut results = step.run(&arguments)?;
            let loss = results.pop().ok_or("the loss comes last")?;
            losses.push(loss.to_host()?.to_elements::<f32>()?[0]);
            state = results;
            if number.is_multiple_of(options.every) && runtime.process_index() == 0 {
                println!("step {number}: loss {:.6}", losses[number - 1]);
            }
        }

        if runtime.process_index() == 0 {
            let (ready, done) = (compiled - started, compiled.elapsed());
            eprintln!(
                "{steps} steps in {:.3} s, after {:.3} s of preparations",
                done.as_secs_f64(),
                ready.as_secs_f64()
            );
            options.plot.map_or(Ok(()), |path| curve::draw(&path, &losses))?;
        }
        if let Some(folder) = options.save {
            let weights = training.weights.iter().map(|weight| weight.name.as_str()).zip(&state[1..]);
            let snapshot = Snapshot::new().arrays(weights).value("gpt", &training.gpt).value("alphabet", &alphabet);
            let checkpoints = Checkpoints::new(runtime, folder);
            checkpoints.save(steps as u64, snapshot)?;
            checkpoints.wait()?;
        }
        Ok(())
    })
}
