//! What recording costs: the time of one event, with the two readings of the clock that make it.
//!
//!     cargo bench --bench trace
//!
//! Times that by the events of a step, which the file of `--trace` has.

use std::hint::black_box;
use std::time::Instant;

use spmd_run::trace::{self, Event, Files};

/// Events of a batch, which fit into the ring.
const EVENTS: u32 = 10_000;
const BATCHES: usize = 1001;

fn main() {
    let files = Files { trace: Some("unused".into()), report: None };
    files.start_recording(0, 4);
    let recorder = trace::recorder().expect("it has been started");
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for run in 0..EVENTS {
                let start = trace::now();
                let event = Event::Call { device: 0, program: 0, key: 1, run: run.into(), start, end: trace::now() };
                recorder.push(black_box(&event));
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(EVENTS)
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    println!("ns per event: min {:.1}, median {:.1}", batches[0], batches[BATCHES / 2]);
}
