//! Runs return before their results are there. Each test starts itself again in all processes of a job.

mod harness;

use std::path::Path;

use spmd_run::builder::Builder;
use spmd_run::dtype::DType::{F32, S32};
use spmd_run::host_array::HostArray;
use spmd_run::mesh::Mesh;
use spmd_run::runtime::{Array, Program, Runtime};

use harness::itself::{job, on, wait_for};

/// Columns of the arrays, which hold the same each: enough work that the plugin does not do it before it returns.
const WIDTH: usize = 64;

/// The sum over a column of `x`, which has a row on each device, and `x` plus that sum, which takes its memory.
fn step<'a>(runtime: &'a Runtime, mesh: &Mesh) -> Program<'a> {
    let rows = mesh.sharding(("x",)).unwrap();
    let b = Builder::new("step");
    let x = b.sharded_parameter("x", F32, &[4, WIDTH as i64], &rows);
    b.donate(x);
    let square = [WIDTH as i64; 2];
    let same = b.iota(S32, &square, 0).eq(b.iota(S32, &square, 1)).convert(F32);
    let sum = (x.matmul(same).sum(&[]) / WIDTH as f64).with_sharding(&mesh.sharding(()).unwrap());
    Program::compile(runtime, b.build(&[(x + sum).with_sharding(&rows), sum]).unwrap()).unwrap()
}

fn start(runtime: &Runtime, mesh: &Mesh) -> Array {
    let elements: Vec<f32> = (0..4 * WIDTH).map(|place| (place / WIDTH + 1) as f32).collect();
    let whole = HostArray::from_elements(&[4, WIDTH], &elements).unwrap();
    Array::from_host(runtime, &whole, &mesh.sharding(("x",)).unwrap()).unwrap()
}

/// Process 0 runs what cannot be done before process 1 runs it too, and that does so only when it has returned here.
#[test]
fn a_run_returns_before_others_have_begun_theirs() {
    let test = "a_run_returns_before_others_have_begun_theirs";
    for (part, layout) in [("two processes", (2, 2)), ("four processes", (4, 1))] {
        on(test, part, layout, Path::new(""), |runtime, _| {
            let mesh = Mesh::new(&[("x", 4)]).unwrap();
            let program = step(runtime, &mesh);
            let mut x = start(runtime, &mesh);
            let (mut sum, mut sums) = (10.0, Vec::new());
            for number in 0..5 {
                let notice = format!("{number} has returned");
                if runtime.process_index() != 0 {
                    wait_for(runtime, &notice);
                }
                let mut results = program.run(&[&x]).unwrap();
                if runtime.process_index() == 0 {
                    runtime.world().post(&notice).unwrap();
                }
                assert!(x.is_donated().unwrap());
                sums.push((results.pop().unwrap(), sum));
                x = results.pop().unwrap();
                sum += 4.0 * sum;
            }
            x.block_until_ready().unwrap();
            for (found, expected) in &sums {
                assert_eq!(found.to_host().unwrap().to_elements::<f32>().unwrap(), [*expected]);
            }
            // What nobody reads is finished before the process leaves.
            program.run(&[&x]).unwrap();
        });
    }
}

/// Steps whose results nobody waits for, of two programs by turns.
#[test]
fn many_runs_are_under_way() {
    on("many_runs_are_under_way", "all", (2, 2), Path::new(""), |runtime, _| {
        let mesh = Mesh::new(&[("x", 4)]).unwrap();
        let programs = [step(runtime, &mesh), step(runtime, &mesh)];
        let (mut x, mut sum) = (start(runtime, &mesh), 10f32);
        for number in 0..40 {
            let mut results = programs[number % 2].run(&[&x]).unwrap();
            x = results.swap_remove(0);
            sum += 4.0 * sum;
        }
        let last = programs[0].run(&[&x]).unwrap().remove(1);
        drop(programs);
        let found = last.to_host().unwrap().to_elements::<f32>().unwrap()[0];
        assert!((found / sum - 1.0).abs() < 1e-5, "{found} instead of {sum}");
    });
}

/// A process that fails while another one's run is under way: who reads its results is told.
#[test]
fn what_fails_later_is_told_to_who_reads() {
    let test = "what_fails_later_is_told_to_who_reads";
    let outcome = job(test, "all", (2, 1), Path::new(""), |runtime, _| {
        let mesh = Mesh::new(&[("x", 2)]).unwrap();
        let program = step(runtime, &mesh);
        let (x, again) = (start(runtime, &mesh), start(runtime, &mesh));
        if runtime.process_index() == 1 {
            wait_for(runtime, "has returned");
            runtime.world().abort("it gives up");
            return;
        }
        let results = program.run(&[&x]).unwrap();
        runtime.world().post("has returned").unwrap();
        let told = results[0].to_host().unwrap_err();
        assert_eq!(results[0].block_until_ready().unwrap_err().to_string(), told.to_string());
        let next = program.run(&[&again]).map(drop).unwrap_err();
        assert_eq!(next.to_string(), told.to_string());
        eprintln!("was told: {told}");
    });
    if let Some(outcome) = outcome {
        assert_ne!(outcome.code, Some(0));
        assert!(outcome.stderr.contains("was told: ") && outcome.stderr.contains("it gives up"), "{}", outcome.stderr);
    }
}
