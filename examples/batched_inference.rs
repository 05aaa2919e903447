//! Answers requests from standard input, a line each, in order, with a GPT that `train_gpt --save` has trained. What is there
//! when the devices are free goes through them as one batch; process 0 reads, and tells the others.
//!
//!     cargo build --release --examples
//!     target/release/spmd-run -n 4 -- target/release/examples/train_gpt --save /tmp/gpt
//!     printf 'ORLANDO\tWhat\nShall we\n' | target/release/spmd-run -n 4 -- target/release/examples/batched_inference /tmp/gpt

#[path = "gpt/model.rs"]
mod model;

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};

use model::{Alphabet, Gpt};
use spmd_run::builder::Builder;
use spmd_run::checkpoint::Checkpoints;
use spmd_run::dtype::DType::{F32, S32};
use spmd_run::hlo::HloModule;
use spmd_run::host_array::HostArray;
use spmd_run::mesh::Mesh;
use spmd_run::runtime::multihost::broadcast_one_to_all;
use spmd_run::runtime::{Array, Program};

/// Requests that are answered at once.
const BATCH: usize = 8;
/// Characters of an answer.
const ANSWER: i64 = 32;

/// The program that goes on with texts, `s32[BATCH, context]`, of which so many characters are known: it appends the most
/// likely character, again and again.
fn answer(gpt: &Gpt, mesh: &Mesh) -> Result<HloModule, Box<dyn Error>> {
    let b = Builder::new("answer");
    let rows = mesh.sharding(("data",))?;
    let batch = BATCH as i64;
    let mut weights = Vec::new();
    for weight in gpt.weights() {
        weights.push(b.sharded_parameter(&weight.name, F32, &weight.dims, &mesh.sharding(&weight.spec)?));
    }
    let texts = b.sharded_parameter("texts", S32, &[batch, gpt.context], &rows);
    let lengths = b.sharded_parameter("lengths", S32, &[batch], &rows);
    let places = b.iota(S32, &[batch, gpt.context], 1);
    let ends = b.fori_loop(0, ANSWER as i32, &[texts, lengths], |_, state| {
        let [texts, lengths] = state[..] else { unreachable!("the state is two arrays") };
        let last = (lengths - 1).one_hot(F32, gpt.context);
        let next = b.einsum("bt,btv->bv", last, gpt.logits(&weights, texts)).argmax(-1);
        let is_end = places.eq(lengths.expand_dims(1));
        vec![is_end.select(next.expand_dims(1), texts), lengths + 1]
    });
    let everywhere = mesh.sharding(())?;
    Ok(b.build(&[ends[0].with_sharding(&everywhere)])?)
}

/// The lines of standard input, as they come.
fn requests() -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::sync_channel(BATCH);
    std::thread::spawn(move || {
        for line in io::stdin().lock().split(b'\n') {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// What waits to be answered, at least one request; none when the input is over.
fn next_batch(requests: &Receiver<io::Result<Vec<u8>>>) -> io::Result<Vec<Vec<u8>>> {
    let first = requests.recv().into_iter();
    first.chain(requests.try_iter()).take(BATCH).collect()
}

fn main() -> ExitCode {
    spmd_run::run(|runtime| {
        let folder = std::env::args().nth(1).ok_or("give the folder in which train_gpt saved its weights")?;
        let checkpoints = Checkpoints::new(runtime, folder);
        let checkpoint = checkpoints.latest()?.ok_or("there is no checkpoint in the folder")?;
        let gpt: Gpt = checkpoint.value("gpt")?;
        let alphabet: Alphabet = checkpoint.value("alphabet")?;

        let devices = runtime.device_count();
        let model = if devices.is_multiple_of(2) { 2 } else { 1 };
        let mesh = Mesh::new(&[("data", devices / model), ("model", model)])?;
        let rows = mesh.sharding(("data",))?;
        let program = Program::compile(runtime, answer(&gpt, &mesh)?)?;
        let mut weights = Vec::new();
        for weight in gpt.weights() {
            weights.push(checkpoint.array(&weight.name, &mesh.sharding(&weight.spec)?)?);
        }

        let context = gpt.context as usize;
        let requests = (runtime.process_index() == 0).then(requests);
        loop {
            let waiting = requests.as_ref().map(next_batch).transpose()?.unwrap_or_default();
            // Each row has the end of a request, and how long that is; 0 where there is none.
            let mut texts = vec![0; BATCH * context];
            let mut lengths = vec![0; BATCH];
            for ((text, length), request) in texts.chunks_mut(context).zip(&mut lengths).zip(&waiting) {
                let request = if request.is_empty() { b"\n" } else { &request[..] };
                let end = alphabet.encode(&request[request.len().saturating_sub(context - ANSWER as usize)..]);
                text[..end.len()].copy_from_slice(&end);
                *length = end.len() as i32;
            }
            let texts = broadcast_one_to_all(runtime, &HostArray::from_elements(&[BATCH, context], &texts)?)?;
            let lengths = broadcast_one_to_all(runtime, &HostArray::from_elements(&[BATCH], &lengths)?)?;
            let known = lengths.to_elements::<i32>()?;
            if known.iter().all(|&length| length == 0) {
                return Ok(());
            }
            let [texts, lengths] = [&texts, &lengths].map(|array| Array::from_host(runtime, array, &rows));
            let (texts, lengths) = (texts?, lengths?);
            let arguments: Vec<&Array> = weights.iter().chain([&texts, &lengths]).collect();
            let answers = program.run(&arguments)?[0].to_host()?.to_elements::<i32>()?;

            let mut out = io::stdout().lock();
            for ((answer, length), _) in answers.chunks(context).zip(known).zip(&waiting) {
                let start = length as usize;
                let text = alphabet.decode(&answer[start..start + ANSWER as usize]);
                writeln!(out, "{}", serde_json::to_string(&text)?)?;
            }
            out.flush()?;
        }
    })
}
