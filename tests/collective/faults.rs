//! What goes wrong ends in an error that says so, on every process, and never in a wrong result.

use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use spmd_run::collective::{
    ArraySpec, CollectiveKind, CollectiveSpec, Communicator, Input, Limits, Output, ReduceOp, World,
};
use spmd_run::dtype::DType;
use spmd_run::transport::mesh::{Choice, MeshError, MeshOptions, connect_mesh};
use spmd_run::transport::{EAGER_LIMIT, Loan, Receive, Segment, Tag, Wait};

use crate::harness::{Job, PATIENCE, Paths, Pending, SECRET, connect, listen};

pub fn all_reduce(key: u32, dtype: DType, len: usize) -> CollectiveSpec {
    let arrays = vec![ArraySpec::new(dtype, [len])];
    let kind = CollectiveKind::AllReduce { op: ReduceOp::Sum };
    let name = format!("all-reduce.{key}");
    CollectiveSpec { key, name, kind, groups: vec![], operands: arrays.clone(), results: arrays }
}

fn broadcast(key: u32, len: usize, groups: Vec<Vec<u32>>) -> CollectiveSpec {
    let kind = CollectiveKind::CollectiveBroadcast;
    CollectiveSpec { kind, groups, name: format!("collective-broadcast.{key}"), ..all_reduce(key, DType::F32, len) }
}

fn zeros(spec: &CollectiveSpec) -> Vec<Vec<u8>> {
    spec.operands.iter().map(|array| vec![0; array.size().unwrap()]).collect()
}

fn assert_mentions(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "'{error}' does not mention '{word}'");
    }
}

/// A way for connections that can be cut, and that can slip bytes in.
struct Proxy {
    address: SocketAddr,
    orders: mpsc::Sender<Order>,
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    Cut,
    Stall,
}

enum Order {
    Cut,
    Inject(Vec<u8>),
}

impl Proxy {
    /// Carries one connection to `target`; cuts it after `budget` bytes towards the target, or carries no more.
    fn new(target: SocketAddr, budget: usize, then: Then) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (orders, received) = mpsc::channel();
        std::thread::spawn(move || {
            let (caller, _) = listener.accept().unwrap();
            let called = TcpStream::connect(target).unwrap();
            let forward = |mut from: TcpStream, mut to: TcpStream, mut budget: usize| {
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 4096];
                    while let Ok(count) = from.read(&mut bytes) {
                        let passed = count.min(budget);
                        let written = to.write_all(&bytes[..passed]);
                        budget -= passed;
                        if budget == 0 && then == Then::Stall {
                            std::thread::sleep(PATIENCE);
                        }
                        if count == 0 || budget == 0 || written.is_err() {
                            break;
                        }
                    }
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                });
            };
            forward(caller.try_clone().unwrap(), called.try_clone().unwrap(), budget);
            forward(called.try_clone().unwrap(), caller.try_clone().unwrap(), usize::MAX);
            while let Ok(order) = received.recv() {
                match order {
                    Order::Cut => {
                        let _ = caller.shutdown(Shutdown::Both);
                        let _ = called.shutdown(Shutdown::Both);
                    }
                    Order::Inject(bytes) => (&called).write_all(&bytes).unwrap(),
                }
            }
        });
        Proxy { address, orders }
    }
}

/// Two processes; the second reaches the first through a proxy.
fn job_through_proxy(paths: Paths, budget: usize, then: Then, timeout: Duration) -> (Job, Proxy) {
    let (listeners, addresses) = listen(2);
    let proxy = Proxy::new(addresses[0], budget, then);
    let (direct, through) = (addresses.clone(), vec![proxy.address, addresses[1]]);
    let transports = connect(listeners, paths, |process| if process == 1 { through.clone() } else { direct.clone() });
    (Job::over(&[1, 1], transports, timeout), proxy)
}

#[test]
fn a_cut_connection_names_the_process() {
    for paths in [Paths::Tcp, Paths::Tls] {
        let (job, proxy) = job_through_proxy(paths, usize::MAX, Then::Cut, PATIENCE);
        let spec = all_reduce(0, DType::F32, 10);
        let programs = job.program(1, std::slice::from_ref(&spec));
        let waiting = Pending::enter(&programs[0], 1, &spec, 0, zeros(&spec));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_done());
        proxy.orders.send(Order::Cut).unwrap();
        assert_mentions(&waiting.error(), &["all-reduce.0", "lost the connection to process 1"]);
        // So does everything after it.
        let next = Pending::enter(&programs[0], 1, &spec, 0, zeros(&spec));
        assert_mentions(&next.error(), &["process 1"]);
    }
}

#[test]
fn a_connection_cut_inside_a_message_fails_both_sides() {
    for paths in [Paths::Tcp, Paths::Tls] {
        let (job, _proxy) = job_through_proxy(paths, 100_000, Then::Cut, PATIENCE);
        let spec = all_reduce(0, DType::F32, 1 << 20);
        let programs = job.program(1, std::slice::from_ref(&spec));
        let both: Vec<Pending> =
            programs.iter().map(|program| Pending::enter(program, 1, &spec, 0, zeros(&spec))).collect();
        for (pending, other) in both.into_iter().zip(["process 1", "process 0"]) {
            assert_mentions(&pending.error(), &[other]);
        }
    }
}

#[test]
fn a_message_that_stops_half_way_times_out() {
    let (job, _proxy) = job_through_proxy(Paths::Tcp, 100_000, Then::Stall, Duration::from_millis(300));
    let spec = all_reduce(0, DType::F32, 1 << 20);
    let programs = job.program(1, std::slice::from_ref(&spec));
    let both: Vec<Pending> =
        programs.iter().map(|program| Pending::enter(program, 1, &spec, 0, zeros(&spec))).collect();
    for (pending, other) in both.into_iter().zip(["process 1", "process 0"]) {
        assert_mentions(&pending.error(), &[other]);
    }
}

#[test]
fn garbage_inside_the_connection_is_an_error() {
    let said = ["process 1 sent a malformed message", "lost the connection to process 1: received corrupt message"];
    for (paths, words) in [Paths::Tcp, Paths::Tls].into_iter().zip(said) {
        let (job, proxy) = job_through_proxy(paths, usize::MAX, Then::Cut, PATIENCE);
        let spec = all_reduce(0, DType::F32, 10);
        let programs = job.program(1, std::slice::from_ref(&spec));
        let waiting = Pending::enter(&programs[0], 1, &spec, 0, zeros(&spec));
        proxy.orders.send(Order::Inject(vec![0xff; 100])).unwrap();
        assert_mentions(&waiting.error(), &[words]);
    }
}

#[test]
fn a_frame_larger_than_asked_for_is_refused() {
    let (job, proxy) = job_through_proxy(Paths::Tcp, usize::MAX, Then::Cut, PATIENCE);
    let spec = all_reduce(0, DType::F32, 10);
    let programs = job.program(1, std::slice::from_ref(&spec));
    let waiting = Pending::enter(&programs[0], 1, &spec, 0, zeros(&spec));
    let mut frame = vec![0; 64];
    frame[0] = 1;
    frame[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    proxy.orders.send(Order::Inject(frame)).unwrap();
    assert_mentions(&waiting.error(), &["process 1", "nobody has asked for"]);
}

#[test]
fn a_process_that_leaves_is_named() {
    for paths in [Paths::Tcp, Paths::Tls, Paths::Shm] {
        let mut job = Job::new(&[1, 1], paths, PATIENCE);
        let spec = all_reduce(0, DType::F32, 10);
        let mut programs = job.program(1, std::slice::from_ref(&spec));
        let waiting = Pending::enter(&programs[0], 1, &spec, 0, zeros(&spec));
        programs.pop();
        job.communicators.pop();
        assert_mentions(&waiting.error(), &["process 1 has left the job"]);
    }
}

#[test]
fn abort_fails_calls_everywhere() {
    for paths in [Paths::Tcp, Paths::Tls, Paths::Shm] {
        let job = Job::new(&[1, 1, 2], paths, PATIENCE);
        let spec = all_reduce(0, DType::F32, 10);
        let programs = job.program(1, std::slice::from_ref(&spec));
        let waiting = Pending::enter(&programs[0], 1, &spec, 0, zeros(&spec));
        // Its neighbour on process 2 never comes, so no thread waits for this one.
        let gathering = Pending::enter(&programs[2], 1, &spec, 1, zeros(&spec));
        std::thread::sleep(Duration::from_millis(50));
        job.communicators[1].abort("the program crashed");
        assert_mentions(&waiting.error(), &["process 1 failed", "the program crashed"]);
        assert_mentions(&gathering.error(), &["failed", "the program crashed"]);
        let later = Pending::enter(&programs[1], 1, &spec, 0, zeros(&spec));
        assert_mentions(&later.error(), &["aborted: the program crashed"]);
    }
}

#[test]
fn a_message_that_was_taken_back_does_not_arrive() {
    let (listeners, addresses) = listen(2);
    let meshes = connect(listeners, Paths::Shm, |_| addresses.clone());
    let deadline = Instant::now() + PATIENCE;
    let wait = || Wait { deadline, judge: &|_| None };
    let bytes = vec![7; EAGER_LIMIT + 1];
    let mut received = vec![0; bytes.len()];
    let mut receive = |tag: Tag, and_then: &dyn Fn()| {
        let into = vec![Segment::new(&mut received)];
        // SAFETY: the memory is not touched before the receive is finished.
        let receive = unsafe { Receive::post(&*meshes[1], 0, tag, into, deadline) }.unwrap();
        and_then();
        receive.finish(&wait())
    };
    let (kept, taken_back) = (Tag([1; 5]), Tag([2; 5]));
    let lend = |tag| Loan::new(&*meshes[0], 1, tag, &[IoSlice::new(&bytes)], &wait()).unwrap();
    std::thread::scope(|scope| {
        let lender = scope.spawn(|| lend(kept).finish(&wait()));
        receive(kept, &|| ()).unwrap();
        lender.join().unwrap().unwrap();
        assert_mentions(&receive(taken_back, &|| drop(lend(taken_back))).unwrap_err().to_string(), &["process 0"]);
    });
    assert!(received == bytes);
}

#[test]
fn large_arrays_of_different_sizes_are_an_error() {
    for paths in [Paths::Tcp, Paths::Tls, Paths::Shm, Paths::Rings] {
        let (small, large) = (broadcast(0, 100_000, vec![]), broadcast(0, 200_000, vec![]));
        let job = Job::new(&[1, 1], paths, PATIENCE);
        let program =
            |process: usize, spec: &CollectiveSpec| job.communicators[process].program(1, vec![spec.clone()]).unwrap();
        let (here, there) = (program(0, &small), program(1, &large));
        let (sends, waits) =
            (Pending::enter(&here, 1, &small, 0, zeros(&small)), Pending::enter(&there, 1, &large, 0, zeros(&large)));
        assert_mentions(&waits.error(), &["broadcast"]);
        assert_mentions(&sends.error(), &["broadcast"]);
    }
}

/// Two processes that come to different calls.
fn diverge(
    first: (&CollectiveSpec, u64),
    second: (&CollectiveSpec, u64),
    specs: &[CollectiveSpec],
    paths: Paths,
) -> [String; 2] {
    let job = Job::new(&[1, 1], paths, PATIENCE);
    let programs = job.program(1, specs);
    let start = Instant::now();
    let here = Pending::enter(&programs[0], first.1, first.0, 0, zeros(first.0));
    let there = Pending::enter(&programs[1], second.1, second.0, 0, zeros(second.0));
    let errors = [here.error(), there.error()];
    assert!(start.elapsed() < PATIENCE / 2, "it took the timeout");
    errors
}

#[test]
fn different_collectives_are_told_from_each_other() {
    for paths in [Paths::Tcp, Paths::Tls, Paths::Shm] {
        for len in [4, 1 << 20] {
            let specs = [all_reduce(0, DType::F32, len), all_reduce(1, DType::F32, len), broadcast(2, len, vec![])];
            for (first, second) in [(0, 1), (0, 2), (2, 0)] {
                for error in diverge((&specs[first], 1), (&specs[second], 1), &specs, paths) {
                    assert_mentions(&error, &[&specs[first].name, &specs[second].name]);
                }
            }
        }
    }
}

#[test]
fn two_that_only_receive_are_told_from_each_other() {
    for paths in [Paths::Tcp, Paths::Shm] {
        for len in [4, 1 << 20] {
            let specs = [broadcast(0, len, vec![vec![0, 1]]), broadcast(1, len, vec![vec![1, 0]])];
            for (first, second) in [(0, 1), (1, 0)] {
                for error in diverge((&specs[first], 1), (&specs[second], 1), &specs, paths) {
                    assert_mentions(&error, &[&specs[0].name, &specs[1].name]);
                }
            }
        }
    }
}

#[test]
fn different_runs_are_told_from_each_other() {
    for paths in [Paths::Tcp, Paths::Shm] {
        let specs = [all_reduce(0, DType::F32, 10)];
        for error in diverge((&specs[0], 1), (&specs[0], 2), &specs, paths) {
            assert_mentions(&error, &["all-reduce.0", "run 1", "run 2"]);
        }
    }
}

#[test]
fn different_operands_are_an_error() {
    for paths in [Paths::Tcp, Paths::Shm] {
        let job = Job::new(&[1, 1], paths, PATIENCE);
        for (program, other) in [all_reduce(3, DType::S32, 10), all_reduce(3, DType::F32, 11)].into_iter().enumerate() {
            let job = if program == 0 { &job } else { &Job::new(&[1, 1], paths, PATIENCE) };
            let ours = all_reduce(3, DType::F32, 10);
            let program = program as u64;
            let here = job.communicators[0].program(program, vec![ours.clone()]).unwrap();
            let there = job.communicators[1].program(program, vec![other.clone()]).unwrap();
            let here = Pending::enter(&here, 1, &ours, 0, zeros(&ours));
            let there = Pending::enter(&there, 1, &other, 0, zeros(&other));
            for error in [here.error(), there.error()] {
                assert_mentions(&error, &["all-reduce.3", "different instruction"]);
            }
        }
    }
}

#[test]
fn local_devices_in_different_collectives_are_an_error() {
    let job = Job::new(&[2], Paths::Tcp, PATIENCE);
    let specs = [all_reduce(0, DType::F32, 10), all_reduce(1, DType::F32, 10)];
    let programs = job.program(1, &specs);
    let first = Pending::enter(&programs[0], 1, &specs[0], 0, zeros(&specs[0]));
    let second = Pending::enter(&programs[0], 1, &specs[1], 1, zeros(&specs[1]));
    for error in [first.error(), second.error()] {
        assert_mentions(&error, &["all-reduce.0", "all-reduce.1", "device 0", "device 1"]);
    }
}

#[test]
fn whoever_is_missing_is_named() {
    for paths in [Paths::Tcp, Paths::Tls, Paths::Shm] {
        let job = Job::new(&[1, 1], paths, Duration::from_millis(200));
        let spec = all_reduce(0, DType::F32, 10);
        let programs = job.program(1, std::slice::from_ref(&spec));
        let waiting = Pending::enter(&programs[0], 1, &spec, 0, zeros(&spec));
        assert_mentions(&waiting.error(), &["all-reduce.0", "process 1 did not arrive"]);

        let job = Job::new(&[3], paths, Duration::from_millis(200));
        let programs = job.program(1, std::slice::from_ref(&spec));
        let waiting = Pending::enter(&programs[0], 1, &spec, 1, zeros(&spec));
        assert_mentions(&waiting.error(), &["all-reduce.0", "device 0, device 2 of process 0 did not arrive"]);
    }
}

#[test]
fn arriving_late_is_no_error() {
    for paths in [Paths::Tcp, Paths::Shm] {
        let job = Job::new(&[1, 1], paths, PATIENCE);
        for (id, len) in [(1, 10), (2, 1 << 20)] {
            let spec = all_reduce(0, DType::F32, len);
            let programs = job.program(id, std::slice::from_ref(&spec));
            let early = Pending::enter(&programs[0], 1, &spec, 0, zeros(&spec));
            std::thread::sleep(Duration::from_millis(300));
            assert!(!early.is_done());
            let late = Pending::enter(&programs[1], 1, &spec, 0, zeros(&spec));
            early.wait().unwrap();
            late.wait().unwrap();
        }
    }
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let spec = all_reduce(0, DType::F32, 10);
    let call = |key: u32, device: u32, bytes: usize, runs: &[u64]| {
        let job = Job::new(&[2], Paths::Tcp, PATIENCE);
        let groups = vec![vec![0], vec![1]];
        let programs = job.program(1, &[CollectiveSpec { groups, ..spec.clone() }]);
        let mut last = Ok(vec![]);
        for run in runs {
            last = Pending::enter(
                &programs[0],
                *run,
                &CollectiveSpec { key, ..spec.clone() },
                device,
                vec![vec![0; bytes]],
            )
            .wait();
        }
        last.unwrap_err().to_string()
    };
    assert_mentions(&call(9, 0, 40, &[1]), &["no collective with key 9"]);
    assert_mentions(&call(0, 2, 40, &[1]), &["all-reduce.0", "local device 2"]);
    assert_mentions(&call(0, 0, 44, &[1]), &["[44] bytes instead of [40]"]);
    assert_mentions(&call(0, 0, 40, &[2, 1]), &["from run 2 back to run 1"]);

    let job = Job::new(&[2], Paths::Tcp, PATIENCE);
    let programs = job.program(1, std::slice::from_ref(&spec));
    let first = Pending::enter(&programs[0], 1, &spec, 0, zeros(&spec));
    let again = Pending::enter(&programs[0], 1, &spec, 0, zeros(&spec));
    assert_mentions(&again.error(), &["local device 0 has not returned from all-reduce.0"]);
    assert_mentions(&first.error(), &["has not returned"]);
}

#[test]
fn specs_that_mean_nothing_are_refused() {
    let job = Job::new(&[2, 2], Paths::Tcp, PATIENCE);
    let problem = |spec: CollectiveSpec| job.communicators[0].program(1, vec![spec]).err().unwrap().to_string();
    let plain = all_reduce(5, DType::F32, 6);
    let with_groups = |groups| CollectiveSpec { groups, ..plain.clone() };
    assert_mentions(&problem(with_groups(vec![vec![0, 4]])), &["all-reduce.5", "device 4", "4 devices"]);
    assert_mentions(&problem(with_groups(vec![vec![0, 1], vec![1]])), &["device 1 twice"]);
    assert_mentions(&problem(with_groups(vec![vec![]])), &["empty"]);
    let kind = |kind| CollectiveSpec { kind, ..plain.clone() };
    assert_mentions(&problem(kind(CollectiveKind::AllReduce { op: ReduceOp::Xor })), &["xor is not defined for f32"]);
    assert_mentions(&problem(kind(CollectiveKind::AllGather { dim: 0 })), &["f32[6]"]);
    assert_mentions(&problem(kind(CollectiveKind::AllGather { dim: 3 })), &["f32[6]"]);
    let scatter = CollectiveKind::ReduceScatter { op: ReduceOp::Sum, dim: 0 };
    assert_mentions(&problem(kind(scatter)), &["f32[6]"]);
    let pairs = |pairs| kind(CollectiveKind::CollectivePermute { pairs });
    assert_mentions(&problem(pairs(vec![(0, 1), (2, 1)])), &["device 1 is the target of two"]);
    assert_mentions(&problem(pairs(vec![(0, 9)])), &["{0,9}"]);
    assert_mentions(&problem(kind(CollectiveKind::RaggedAllToAll)), &["six operands"]);
    let huge = ArraySpec::new(DType::F32, [usize::MAX, 2]);
    assert_mentions(
        &problem(CollectiveSpec { operands: vec![huge.clone()], results: vec![huge], ..plain.clone() }),
        &["larger than memory"],
    );
    job.communicators[0].program(2, vec![plain.clone()]).unwrap();
    assert!(job.communicators[0].program(2, vec![plain]).err().unwrap().to_string().contains("program id 2"));
}

#[test]
fn ragged_numbers_that_do_not_fit_are_an_error() {
    let rows = ArraySpec::new(DType::F32, [4, 2]);
    let numbers = ArraySpec::new(DType::S32, [2]);
    let mut operands = vec![rows.clone(), rows.clone()];
    operands.extend(vec![numbers; 4]);
    let spec = CollectiveSpec {
        kind: CollectiveKind::RaggedAllToAll,
        name: "ragged-all-to-all.1".to_owned(),
        operands,
        results: vec![rows],
        ..all_reduce(0, DType::F32, 1)
    };
    let list = |numbers: [i32; 2]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    // Input offsets, send sizes, output offsets, receive sizes of both devices.
    let cases = [
        ([[0, 3], [1, 2], [0, 0], [1, 2]], "2 rows from offset 3 of its input, which has 4"),
        ([[0, 0], [1, 2], [0, 3], [1, 2]], "2 rows to offset 3 of device 1, whose output has 4"),
        ([[0, 0], [1, 2], [0, 0], [1, 1]], "recv_sizes say 1"),
        ([[0, 0], [1, -2], [0, 0], [1, 2]], "negative number"),
    ];
    for layout in [&[1, 1][..], &[2]] {
        for (lists, words) in cases {
            let job = Job::new(layout, Paths::Tcp, PATIENCE);
            let programs = job.program(1, std::slice::from_ref(&spec));
            let mut good = vec![vec![0; 32], vec![0; 32]];
            good.extend([[0, 0], [2, 1], [0, 0], [2, 1]].map(list));
            let mut bad = vec![vec![0; 32], vec![0; 32]];
            bad.extend(lists.map(list));
            let errors: Vec<String> = job
                .run(&programs, 1, &spec, &[bad, good])
                .into_iter()
                .map(|outcome| outcome.unwrap_err().to_string())
                .collect();
            for error in errors {
                assert_mentions(&error, &["ragged-all-to-all.1", words]);
            }
        }
    }
}

fn within(timeout: Duration) -> MeshOptions {
    MeshOptions { identity: None, choice: Choice::Auto, slices: Vec::new(), timeout }
}

#[test]
fn another_jobs_process_is_turned_away() {
    let (mut listeners, addresses) = listen(2);
    let (second, first) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    let at = addresses.clone();
    let first = std::thread::spawn(move || connect_mesh(0, first, &at, SECRET, within(Duration::from_millis(500))));
    let error = connect_mesh(1, second, &addresses, b"another secret", within(PATIENCE)).err().unwrap();
    assert!(matches!(error, MeshError::WrongSecret { peer: 0, .. }), "{error}");
    assert_mentions(&error.to_string(), &["process 0", &addresses[0].to_string(), "secret"]);
    let error = first.join().unwrap().err().unwrap().to_string();
    assert_mentions(&error, &["process 1 did not call", "turned away 127.0.0.1", "another job secret"]);
}

#[test]
fn processes_that_do_not_connect_are_named() {
    let (mut listeners, addresses) = listen(4);
    // Nobody listens at the first one; the second one listens and says nothing.
    drop(listeners.remove(0));
    let third = listeners.remove(1);
    let error =
        connect_mesh(2, third, &addresses, SECRET, within(Duration::from_millis(300))).err().unwrap().to_string();
    assert_mentions(&error, &["process 0 at", "refused", "process 1 at", "process 3 did not call"]);
}

#[test]
fn garbage_on_the_port_does_no_harm() {
    let (listeners, addresses) = listen(2);
    let target = addresses[0];
    let strangers: Vec<TcpStream> = (0..20u8)
        .map(|index| {
            let mut stranger = TcpStream::connect(target).unwrap();
            stranger.write_all(&vec![index.wrapping_mul(37); usize::from(index) * 20]).unwrap();
            stranger
        })
        .collect();
    let job = Job::over(&[1, 1], connect(listeners, Paths::Tcp, |_| addresses.clone()), PATIENCE);
    let spec = all_reduce(0, DType::F32, 10);
    let programs = job.program(1, std::slice::from_ref(&spec));
    for outcome in job.run(&programs, 1, &spec, &[zeros(&spec), zeros(&spec)]) {
        outcome.unwrap();
    }
    drop(strangers);
}

#[test]
fn a_single_process_needs_no_transport() {
    let world = World { process_index: 0, devices_per_process: vec![1], slices: vec![] };
    let alone = Communicator::new(world, None, Limits::default()).unwrap();
    let spec = all_reduce(0, DType::F32, 0);
    let program = alone.program(1, vec![spec]).unwrap();
    let (tell, done) = mpsc::channel();
    // SAFETY: buffers without bytes.
    let (input, output) = unsafe { (Input::new(std::ptr::null(), 0), Output::new(std::ptr::null_mut(), 0)) };
    program.enter(1, 0, 0, vec![input], vec![output], move |outcome| tell.send(outcome).unwrap());
    done.recv_timeout(PATIENCE).unwrap().unwrap();
    drop(alone);
    // SAFETY: as above.
    let (input, output) = unsafe { (Input::new(std::ptr::null(), 0), Output::new(std::ptr::null_mut(), 0)) };
    let (tell, done) = mpsc::channel();
    program.enter(2, 0, 0, vec![input], vec![output], move |outcome| tell.send(outcome).unwrap());
    assert_mentions(&done.recv_timeout(PATIENCE).unwrap().unwrap_err().to_string(), &["closed"]);

    let world = World { process_index: 1, devices_per_process: vec![1, 1], slices: vec![] };
    let error = Communicator::new(world, None, Limits::default()).err().unwrap().to_string();
    assert_mentions(&error, &["process 1 of 2"]);
}
