//! The transport over MPI, between real processes of `mpirun`. This test program runs itself again as these processes.

mod harness;

#[allow(dead_code, reason = "jobs here have one process of their own")]
#[path = "collective/generate.rs"]
mod generate;
#[allow(dead_code, reason = "not all of it is compared here")]
#[path = "collective/reference.rs"]
mod reference;

use std::io::IoSlice;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use generate::{KINDS, Values, make_operands, make_spec};
use harness::mpirun::mpirun;
use harness::{Outcome, command, run};
use spmd_run::collective::{CollectiveSpec, Communicator, Input, Limits, Output, World};
use spmd_run::transport::mpi::{MpiTransport, Session};
use spmd_run::transport::{Receive, Segment, Tag, Transport, TransportError, Wait};

const ROLE: &str = "SPMD_TEST_ROLE";
const PROCESSES: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(60);
const SPMD_RUN: &str = env!("CARGO_BIN_EXE_spmd-run");

/// Runs this program as four processes that play a role.
fn play(role: &str) -> Option<Outcome> {
    let this = std::env::current_exe().expect("this program has a path");
    let this = this.to_str().expect("its path is text");
    let mut mpirun = mpirun(PROCESSES, [this, "--exact", "process_of_mpirun", "--nocapture"])?;
    mpirun.env(ROLE, role);
    Some(run(mpirun))
}

/// Not a test of its own: a process that other tests start.
#[test]
fn process_of_mpirun() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let number = |name| std::env::var(name).expect("mpirun sets it").parse().expect("a number");
    let session = Session::start(number("OMPI_COMM_WORLD_RANK"), number("OMPI_COMM_WORLD_SIZE")).expect("MPI");
    let transport = Arc::new(MpiTransport::new(&session, PROCESSES as usize).expect("a thread"));
    match &*role {
        "collectives" => collectives(&transport),
        "large" => large_messages(&*transport),
        "small" => small_messages(&*transport),
        "late" => late(&transport),
        "disagree" => disagree(&transport),
        "abort" => abort(&transport),
        _ => panic!("no such role: {role}"),
    }
    let rank = session.rank();
    // A process that leaves is still heard by the others.
    drop(transport);
    session.finish();
    println!("process {rank} is done");
}

#[track_caller]
fn all_done(role: &str) {
    let Some(outcome) = play(role) else { return };
    let outcome = outcome.success(role);
    for rank in 0..PROCESSES {
        assert!(outcome.stdout.contains(&format!("process {rank} is done")), "{outcome:?}");
    }
}

#[test]
fn collectives_are_as_defined() {
    all_done("collectives");
}

#[test]
fn large_messages_cross() {
    all_done("large");
}

#[test]
fn small_messages_need_no_receiver() {
    all_done("small");
}

#[test]
fn a_process_that_does_not_come_is_an_error() {
    all_done("late");
}

#[test]
fn processes_that_disagree_get_an_error() {
    all_done("disagree");
}

#[test]
fn an_abort_reaches_all() {
    all_done("abort");
}

const LAYOUT: [u32; PROCESSES as usize] = [2, 1, 1, 2];

fn communicator(transport: &Arc<MpiTransport>, timeout: Duration) -> Communicator {
    let process_index = transport.process_index();
    let world = World { process_index, devices_per_process: LAYOUT.to_vec(), slices: vec![] };
    Communicator::new(world, Some(Arc::clone(transport) as Arc<dyn Transport>), Limits { timeout }).expect("it fits")
}

/// The results of this process's devices for one instruction.
fn enter(
    program: &spmd_run::collective::ProgramCollectives,
    run: u64,
    spec: &CollectiveSpec,
    operands: &[Vec<Vec<u8>>],
) -> Result<Vec<Vec<Vec<u8>>>, String> {
    let mut results: Vec<Vec<Vec<u8>>> = operands
        .iter()
        .map(|_| spec.results.iter().map(|array| vec![0xa5; array.size().expect("small")]).collect())
        .collect();
    let (tell, done) = mpsc::channel();
    for (local, (operands, results)) in operands.iter().zip(&mut results).enumerate() {
        // SAFETY: the buffers stay until the call below has waited for all devices.
        let inputs = operands.iter().map(|bytes| unsafe { Input::new(bytes.as_ptr(), bytes.len()) }).collect();
        // SAFETY: as above.
        let outputs = results.iter_mut().map(|bytes| unsafe { Output::new(bytes.as_mut_ptr(), bytes.len()) }).collect();
        let tell = tell.clone();
        program.enter(run, spec.key, local as u32, inputs, outputs, move |outcome| {
            let _ = tell.send(outcome);
        });
    }
    let outcomes: Vec<_> =
        operands.iter().map(|_| done.recv_timeout(PATIENCE).expect("the collective hangs")).collect();
    match outcomes.into_iter().find_map(Result::err) {
        Some(error) => Err(error.to_string()),
        None => Ok(results),
    }
}

/// Every process makes the same instructions and operands, runs its devices' part, and compares with the reference.
fn collectives(transport: &Arc<MpiTransport>) {
    let communicator = communicator(transport, PATIENCE);
    let process = transport.process_index() as usize;
    let devices: usize = LAYOUT.iter().sum::<u32>() as usize;
    let process_of: Vec<usize> =
        LAYOUT.iter().enumerate().flat_map(|(process, &devices)| vec![process; devices as usize]).collect();
    let mine: Vec<usize> = (0..devices).filter(|&device| process_of[device] == process).collect();
    let order = reference::Order::of_processes(process_of);
    for seed in 0..3 {
        let mut values = Values(seed);
        let specs: Vec<CollectiveSpec> =
            (0..KINDS).map(|kind| make_spec(kind as u32, kind, devices, seed == 2, &mut values)).collect();
        let program = communicator.program(seed, specs.clone()).expect("the instructions are right");
        for run in 0..2 {
            for spec in &specs {
                let operands = make_operands(spec, devices, &mut values);
                let expected = reference::results(spec, &order, &operands);
                let own: Vec<_> = mine.iter().map(|&device| operands[device].clone()).collect();
                let found = enter(&program, run, spec, &own).unwrap_or_else(|error| panic!("{error} in {spec:?}"));
                for (found, &device) in found.iter().zip(&mine) {
                    for ((array, found), expected) in spec.results.iter().zip(found).zip(&expected[device]) {
                        assert!(reference::agree(array.dtype, found, expected), "device {device}: {array} in {spec:?}");
                    }
                }
            }
        }
    }
}

fn patient() -> Wait<'static> {
    Wait { deadline: Instant::now() + PATIENCE, judge: &|_| None }
}

fn peers(transport: &dyn Transport) -> impl Iterator<Item = u32> {
    let this = transport.process_index();
    (0..transport.process_count()).filter(move |peer| *peer != this)
}

/// All send several MiB to all at once, in uneven pieces on both sides.
fn large_messages(transport: &dyn Transport) {
    const LEN: usize = 5 << 20;
    let pattern = |from: u32, to: u32| -> Vec<u8> {
        (0..LEN).map(|index| (index.wrapping_mul(31) >> 3) as u8 ^ (from * 16 + to) as u8).collect()
    };
    let this = transport.process_index();
    let tag = |from: u32, to: u32| Tag([7, from.into(), to.into(), 0, 0]);
    let mut received: Vec<Vec<u8>> = vec![vec![0; LEN]; transport.process_count() as usize];
    let deadline = Instant::now() + PATIENCE;
    let mut receives = Vec::new();
    for peer in peers(transport) {
        let (head, rest) = received[peer as usize].split_at_mut(1);
        let (middle, tail) = rest.split_at_mut(3_000_001);
        let segments = [head, middle, tail].map(Segment::new).into();
        // SAFETY: the memory is not touched before the receive is finished below.
        receives.push(unsafe { Receive::post(transport, peer, tag(peer, this), segments, deadline) }.expect("posted"));
    }
    std::thread::scope(|scope| {
        for peer in peers(transport) {
            scope.spawn(move || {
                let data = pattern(this, peer);
                let (head, tail) = data.split_at(1_234_567);
                let slices = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)];
                transport.send(peer, tag(this, peer), &slices, &patient()).expect("sent");
            });
        }
        for receive in receives {
            receive.finish(&patient()).expect("received");
        }
    });
    for peer in peers(transport) {
        assert!(received[peer as usize] == pattern(peer, this), "from {peer}");
    }
}

/// Everyone first sends all, then takes it in another order.
fn small_messages(transport: &dyn Transport) {
    const COUNT: u64 = 300;
    let this = transport.process_index();
    let text = |from: u32, number: u64| format!("message {number} of process {from}");
    for number in 0..COUNT {
        for peer in peers(transport) {
            let text = text(this, number);
            transport
                .send(peer, Tag([number, 0, 0, 0, 1]), &[IoSlice::new(text.as_bytes())], &patient())
                .expect("sent");
        }
    }
    for peer in peers(transport) {
        for number in (0..COUNT).rev() {
            let expected = text(peer, number);
            let mut found = Vec::new();
            transport
                .take(peer, Tag([number, 0, 0, 0, 1]), expected.len(), &patient(), &mut |bytes| found = bytes.to_vec())
                .expect("received");
            assert_eq!(found, expected.as_bytes());
        }
    }
}

fn sum(key: u32, name: &str) -> CollectiveSpec {
    let mut spec = make_spec(key, 0, LAYOUT.iter().sum::<u32>() as usize, false, &mut Values(5));
    spec.groups = vec![];
    name.clone_into(&mut spec.name);
    spec
}

/// The operands of this process's devices.
fn own_operands(transport: &MpiTransport, spec: &CollectiveSpec) -> Vec<Vec<Vec<u8>>> {
    make_operands(spec, LAYOUT[transport.process_index() as usize] as usize, &mut Values(1))
}

/// Process 3 stays away.
fn late(transport: &Arc<MpiTransport>) {
    let spec = sum(0, "all-reduce.1");
    let communicator = communicator(transport, Duration::from_secs(1));
    let program = communicator.program(1, vec![spec.clone()]).expect("right");
    if transport.process_index() != 3 {
        let error = enter(&program, 0, &spec, &own_operands(transport, &spec)).expect_err("process 3 is not there");
        assert!(error.contains("all-reduce.1"), "{error}");
    } else {
        std::thread::sleep(Duration::from_secs(3));
    }
}

/// Process 1 is elsewhere in the program.
fn disagree(transport: &Arc<MpiTransport>) {
    let specs = vec![sum(0, "all-reduce.1"), sum(1, "all-reduce.2")];
    let communicator = communicator(transport, PATIENCE);
    let program = communicator.program(1, specs.clone()).expect("right");
    let spec = &specs[usize::from(transport.process_index() == 1)];
    let error = enter(&program, 0, spec, &own_operands(transport, spec)).expect_err("they disagree");
    assert!(error.contains("all-reduce.1") || error.contains("all-reduce.2"), "{error}");
}

fn abort(transport: &Arc<MpiTransport>) {
    let (tell, told) = mpsc::channel();
    transport.on_abort(Box::new(move |error| drop(tell.send(error))));
    if transport.process_index() == 2 {
        transport.abort("out of coffee");
        return;
    }
    let waiting = transport.take(2, Tag([0; 5]), 1, &patient(), &mut |_| ()).expect_err("process 2 ends the job");
    let expected = TransportError::AbortedByPeer { peer: 2, reason: "out of coffee".to_owned() };
    assert_eq!((waiting, told.recv_timeout(PATIENCE)), (expected.clone(), Ok(expected)));
}

const DATA: [&str; 8] = [
    "--input",
    "hlo/data/dp_tp_mlp_step.in.npz",
    "--expect",
    "hlo/data/dp_tp_mlp_step.out.npz",
    "--rtol",
    "1e-5",
    "--atol",
    "1e-5",
];

#[test]
fn a_sample_runs_over_mpi() {
    for (transport, name) in [("mpi", "mpi"), ("auto", "shm")] {
        let arguments = [&[SPMD_RUN, "--transport", transport, "hlo/dp_tp_mlp_step.hlo"], &DATA[..]].concat();
        let Some(outcome) = mpirun(PROCESSES, arguments).map(run) else { return };
        let outcome = outcome.success(transport);
        assert!(outcome.stdout.contains(&format!("4 processes × 2 devices, over {name}")), "{outcome:?}");
    }
}

#[test]
fn collectives_are_timed_over_mpi() {
    let arguments = "bench collectives all_reduce,all_gather -b 1K -e 1M -f 1024 --iters 2 --json --transport mpi";
    let arguments = std::iter::once(SPMD_RUN).chain(arguments.split(' '));
    let Some(outcome) = mpirun(PROCESSES, arguments).map(run) else { return };
    let outcome = outcome.success("bench");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one JSON document");
    let rows = report["rows"].as_array().expect("rows");
    // Two sizes of two collectives, each in a program and on the engine alone.
    assert_eq!(rows.len(), 8, "{report}");
    assert!(rows.iter().all(|row| row["wrong"] == 0 && row["median_seconds"].as_f64() > Some(0.0)), "{report}");
}

/// Nobody waits for ever for a process that stands still: heartbeats are missed, the others end, and mpirun ends it.
#[test]
fn a_process_that_stands_still_ends_the_job() {
    let script = format!(
        "[ $OMPI_COMM_WORLD_RANK = 2 ] && (sleep 2; kill -STOP $$) & \
         exec {SPMD_RUN} --transport mpi --stall-timeout 2 hlo/dp_mlp_step.hlo --repeat 1000000"
    );
    let Some(outcome) = mpirun(PROCESSES, ["sh", "-c", &script]).map(run) else { return };
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("process 2"), "{outcome:?}");
}

#[test]
fn mpi_needs_its_process_manager() {
    let outcome = run(command(["-n", "2", "--transport", "mpi", "hlo/dp_mlp_step.hlo"]));
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("MPI did not start this process: mpirun -n 2 spmd-run"), "{outcome:?}");
}
