use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

use super::buffer::{Input, Output};
use super::engine::ProgramCollectives;
use super::error::CollectiveError;
use super::spec::ArraySpec;

/// What a collective that was repeated took and gave.
#[derive(Clone, Debug)]
pub struct Repeated {
    /// Time of each call on the first local device.
    pub times: Vec<Duration>,
    /// The results of the last call: `[local device][result]`, row-major.
    pub results: Vec<Vec<Vec<u8>>>,
}

/// A cache line of a buffer: aligned as plugins align theirs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

type Outcome = Result<(), CollectiveError>;

struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

impl Buffer {
    fn new(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeros(bytes.len());
        for (line, bytes) in buffer.lines.iter_mut().zip(bytes.chunks(64)) {
            line.0[..bytes.len()].copy_from_slice(bytes);
        }
        buffer
    }

    fn zeros(len: usize) -> Buffer {
        // Not all zeros, so that no page is left out.
        Buffer { lines: vec![Line([1; 64]); len.div_ceil(64)], len }
    }

    fn into_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.lines.len() * 64);
        self.lines.iter().for_each(|line| bytes.extend_from_slice(&line.0));
        bytes.truncate(self.len);
        bytes
    }
}

impl ProgramCollectives {
    /// Calls the collective `key` `calls` times in a row, all within run `run`, on every local device with these
    /// operands (`[local device][operand]`), as a program's devices would: without the plugin. Every process of the job
    /// does the same. For benchmarks.
    pub fn repeat(
        &self,
        run: u64,
        key: u32,
        calls: usize,
        operands: &[Vec<Vec<u8>>],
    ) -> Result<Repeated, CollectiveError> {
        let spec = self.specs().find(|spec| spec.key == key).ok_or(CollectiveError::UnknownKey { key })?;
        let sizes: Vec<usize> = spec.results.iter().map(|array| ArraySpec::size(array).unwrap_or(0)).collect();
        let on_device = |local_device: u32, operands: &[Vec<u8>]| {
            let operands: Vec<Buffer> = operands.iter().map(|bytes| Buffer::new(bytes)).collect();
            let mut results: Vec<Buffer> = sizes.iter().map(|size| Buffer::zeros(*size)).collect();
            let mut times = Vec::with_capacity(calls);
            let end = mpsc::sync_channel(1);
            for _ in 0..calls {
                let start = Instant::now();
                self.call(run, key, local_device, &operands, &mut results, &end)?;
                times.push(start.elapsed());
            }
            Ok((times, results.into_iter().map(Buffer::into_bytes).collect()))
        };
        let outcomes: Vec<Result<_, CollectiveError>> = std::thread::scope(|scope| {
            let devices = (0..).zip(operands);
            let threads: Vec<_> =
                devices.map(|(device, operands)| scope.spawn(move || on_device(device, operands))).collect();
            let panicked = || CollectiveError::Internal { instruction: spec.name.clone(), problem: "panic".to_owned() };
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
        });
        let mut repeated = Repeated { times: Vec::new(), results: Vec::with_capacity(operands.len()) };
        for outcome in outcomes {
            let (times, results) = outcome?;
            if repeated.results.is_empty() {
                repeated.times = times;
            }
            repeated.results.push(results);
        }
        Ok(repeated)
    }

    /// Enters a collective and waits until `end` tells that it is done.
    fn call(
        &self,
        run: u64,
        key: u32,
        local_device: u32,
        operands: &[Buffer],
        results: &mut [Buffer],
        end: &(SyncSender<Outcome>, Receiver<Outcome>),
    ) -> Outcome {
        // SAFETY: the buffers outlive the call, which is over when this function returns.
        let inputs = operands.iter().map(|buffer| unsafe { Input::new(buffer.lines.as_ptr().cast(), buffer.len) });
        let inputs = inputs.collect();
        // SAFETY: as above.
        let outputs = results.iter_mut().map(|buffer| unsafe {
            let start = buffer.lines.as_mut_ptr().cast();
            Output::new(start, buffer.len)
        });
        let outputs = outputs.collect();
        let (tell, done) = (end.0.clone(), &end.1);
        self.enter(run, key, local_device, inputs, outputs, move |outcome| {
            // The receiver waits below.
            let _ = tell.send(outcome);
        });
        done.recv().unwrap_or(Err(CollectiveError::Closed))
    }
}
