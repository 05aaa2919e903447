//! The rendezvous with threads as processes, and the strangers that come to its port.

#[path = "harness/relay.rs"]
mod relay;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use relay::{Relay, Weather};
use spmd_run::rendezvous::{
    Heartbeat, JobId, JobStatus, JobToken, JoinError, JoinOptions, ProcessState, Progress, Rendezvous, RendezvousError,
    listen, query_status,
};

/// Long enough for a loaded machine; reaching it means a hang.
const LONG: Duration = Duration::from_secs(60);
/// A wait that a test lets run out.
const SHORT: Duration = Duration::from_secs(1);

struct Job {
    address: String,
    listener: Option<TcpListener>,
    process_count: u32,
    token: Option<JobToken>,
}

impl Job {
    fn new(process_count: u32) -> Self {
        let listener = listen("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let token = Some(JobToken::random().unwrap());
        Self { address, listener: Some(listener), process_count, token }
    }

    fn options(&mut self, process_index: u32, timeout: Duration) -> JoinOptions {
        JoinOptions {
            host_coordinator: if process_index == 0 { self.listener.take() } else { None },
            token: self.token.clone(),
            host: format!("host-{}", ["a", "b", "c"][process_index as usize % 3]),
            ..JoinOptions::new(self.address.clone(), process_index, self.process_count, timeout)
        }
    }

    /// Asks for the job's status until it is as wanted.
    fn wait_until(&self, wanted: impl Fn(&JobStatus) -> bool) -> JobStatus {
        let deadline = Instant::now() + LONG;
        loop {
            let status = query_status(&self.address, self.token.as_ref(), None, LONG).unwrap();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "{status:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs a function on every process, each on its own thread, and returns the results by process.
    fn run<R: Send>(mut self, body: impl Fn(Rendezvous) -> R + Sync) -> Vec<R> {
        let options: Vec<_> = (0..self.process_count).map(|process| self.options(process, LONG)).collect();
        thread::scope(|scope| {
            let threads: Vec<_> =
                options.into_iter().map(|options| scope.spawn(|| body(Rendezvous::join(options).unwrap()))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

/// A message without what differs from run to run.
fn stable(message: impl ToString, job_address: &str) -> String {
    message.to_string().replace(job_address, "ADDRESS")
}

/// A message without the ids of jobs.
fn without_ids(message: &str) -> String {
    let is_id = |word: &str| word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = message.split(' ').map(|word| match word.trim_end_matches([',', ':']) {
        id if is_id(id) => word.replace(id, "ID"),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A message about a wait that ran out, without how long that took on this machine.
fn after_wait(message: &str) -> String {
    message.split_once(" at ").unwrap().1.to_owned()
}

/// What a process says that waits in a collective.
fn at(step: u64, collective: &str) -> Progress {
    Progress {
        step,
        collective: Some(collective.into()),
        waits: true,
        entered: step,
        sent_bytes: 100 * step,
        device_count: 2,
        ..Progress::default()
    }
}

#[test]
fn what_processes_leave_for_process_0_arrives_in_any_case() {
    let inherited = Job::new(4).run(|job| {
        let me = job.process_index();
        // Three dies without a word, two ends the job.
        if me == 3 {
            job.barrier("all are there", LONG).unwrap();
            return Vec::new();
        }
        let sample = job.compare_clocks().unwrap();
        assert!(sample.offset.unsigned_abs() <= sample.error, "threads have one clock: {sample:?}");
        job.barrier("all are there", LONG).unwrap();
        if me == 2 {
            job.abort("it was enough");
        }
        let ended = job.barrier("never", LONG).unwrap_err();
        assert!(matches!(ended, RendezvousError::Aborted(_)), "{ended}");
        match me {
            0 => job.inheritance(LONG),
            _ => {
                job.bequeath(&[me as u8; 3], LONG).unwrap();
                Vec::new()
            }
        }
    });
    assert_eq!(inherited[0], [[1; 3], [2; 3]]);
}

#[test]
fn processes_share_values_meet_and_leave() {
    let results = Job::new(4).run(|job| {
        let me = job.process_index();
        assert_eq!(job.process_count(), 4);
        assert_eq!(job.hosts(), ["host-a", "host-b", "host-c", "host-a"]);
        if me == 2 {
            job.put("key", b"value").unwrap();
        }
        assert_eq!(job.get("key", LONG).unwrap(), b"value");
        assert_eq!(job.try_get("key").unwrap().unwrap(), b"value");
        assert_eq!(job.try_get("nothing").unwrap(), None);
        for round in 0..3 {
            let mine = vec![me as u8; (me + round) as usize];
            let all = job.all_gather("sizes", &mine, LONG).unwrap();
            assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 2, 3].map(|size| size + round as usize));
            job.barrier("again", LONG).unwrap();
        }
        job.shutdown(LONG).unwrap();
        job.barrier("late", LONG).unwrap_err()
    });
    assert_eq!(results, vec![RendezvousError::Left; 4]);
}

#[test]
fn a_key_keeps_its_first_value() {
    let results = Job::new(1).run(|job| {
        job.put("key", b"one").unwrap();
        job.put("key", b"one").unwrap();
        let error = job.put("key", b"two").unwrap_err();
        assert_eq!(job.get("key", LONG).unwrap(), b"one");
        job.shutdown(LONG).unwrap();
        error
    });
    insta::assert_snapshot!(results[0], @"key 'key' has another value already");
}

#[test]
fn large_values_travel() {
    let value: Vec<u8> = (0..20_000_000_u32).map(|i| (i % 251) as u8).collect();
    Job::new(3).run(|job| {
        if job.process_index() == 0 {
            job.put("large", &value).unwrap();
        }
        assert!(job.get("large", LONG).unwrap() == value);
        let all = job.all_gather("large", &value[..5_000_000], LONG).unwrap();
        assert!(all.iter().all(|part| part[..] == value[..5_000_000]));
        job.shutdown(LONG).unwrap();
    });
}

#[test]
fn waiting_threads_do_not_block_each_other() {
    Job::new(2).run(|job| {
        thread::scope(|scope| {
            for key in 0..20 {
                let job = &job;
                scope.spawn(move || {
                    assert_eq!(job.get(&format!("key {key}"), LONG).unwrap(), [key]);
                    job.barrier(&format!("barrier {key}"), LONG).unwrap();
                });
            }
            for key in (0..20).rev().filter(|key| key % 2 == job.process_index() as u8) {
                job.put(&format!("key {key}"), &[key]).unwrap();
            }
        });
        job.shutdown(LONG).unwrap();
    });
}

/// `SPMD_TEST_SCALE` sets how many.
#[test]
fn many_processes_join_at_once() {
    let count: u32 = std::env::var("SPMD_TEST_SCALE").map_or(64, |count| count.parse().unwrap());
    let sums = Job::new(count).run(|job| {
        let all = job.all_gather("index", &job.process_index().to_le_bytes(), LONG).unwrap();
        job.barrier("here", LONG).unwrap();
        job.shutdown(LONG).unwrap();
        all.into_iter().map(|index| u64::from(u32::from_le_bytes(index.try_into().unwrap()))).sum::<u64>()
    });
    let count = u64::from(count);
    assert_eq!(sums, vec![(count - 1) * count / 2; count as usize]);
}

#[test]
fn a_late_process_is_waited_for() {
    let mut job = Job::new(2);
    let (first, second) = (job.options(0, LONG), job.options(1, LONG));
    let early = thread::spawn(move || Rendezvous::join(first).unwrap().shutdown(LONG).unwrap());
    thread::sleep(Duration::from_millis(300));
    Rendezvous::join(second).unwrap().shutdown(LONG).unwrap();
    early.join().unwrap();
}

#[test]
fn a_coordinator_that_starts_later_is_waited_for() {
    let mut job = Job::new(2);
    let (mut first, second) = (job.options(0, LONG), job.options(1, LONG));
    drop(first.host_coordinator.take());
    let early = thread::spawn(move || Rendezvous::join(second).unwrap().shutdown(LONG).unwrap());
    thread::sleep(Duration::from_millis(300));
    first.host_coordinator = Some(listen(&job.address).unwrap());
    Rendezvous::join(first).unwrap().shutdown(LONG).unwrap();
    early.join().unwrap();
}

#[test]
fn missing_processes_are_named_to_everyone() {
    let mut job = Job::new(4);
    let (first, second) = (job.options(0, SHORT), job.options(3, LONG));
    let other = thread::spawn(move || Rendezvous::join(second).unwrap_err());
    let own = Rendezvous::join(first).unwrap_err();
    let (own, other) = (own.to_string(), other.join().unwrap().to_string());
    insta::assert_snapshot!(after_wait(&own), @"the start of the job: missing 2 of 4: process 1, 2");
    assert!(other.starts_with("process 0 (host-a) gave up: waited "), "{other}");
    assert_eq!(after_wait(&other), after_wait(&own));
}

#[test]
fn barriers_say_who_is_missing_and_where_they_are() {
    let results = Job::new(4).run(|job| {
        let deadline = Instant::now() + LONG;
        let error = match job.process_index() {
            0 => loop {
                let error = job.barrier("compiled", SHORT).unwrap_err().to_string();
                if error.matches("waits at").count() == 3 || Instant::now() > deadline {
                    job.put("seen", b"").unwrap();
                    job.barrier("loaded", LONG).unwrap();
                    job.barrier("after", LONG).unwrap();
                    break after_wait(&error);
                }
            },
            1 => {
                job.barrier("loaded", LONG).unwrap();
                job.barrier("after", LONG).unwrap();
                String::new()
            }
            _ => thread::scope(|scope| {
                scope.spawn(|| job.barrier("after", LONG).unwrap());
                job.get("seen", LONG).unwrap();
                job.barrier("loaded", LONG).unwrap();
                String::new()
            }),
        };
        job.shutdown(LONG).unwrap();
        error
    });
    insta::assert_snapshot!(results[0], @"barrier 'compiled': missing 3 of 4: process 1 (host-b), 2 (host-c), 3 (host-a); process 1 waits at barrier 'loaded'; process 2 waits at barrier 'after'; process 3 waits at barrier 'after'");
}

#[test]
fn a_barrier_can_be_tried_again_after_a_timeout() {
    Job::new(2).run(|job| {
        if job.process_index() == 0 {
            assert!(matches!(job.barrier("b", Duration::from_millis(50)), Err(RendezvousError::TimedOut(_))));
            job.put("timed out", b"").unwrap();
        } else {
            job.get("timed out", LONG).unwrap();
        }
        job.barrier("b", LONG).unwrap();
        job.shutdown(LONG).unwrap();
    });
}

#[test]
fn a_missing_key_is_named() {
    let results = Job::new(1).run(|job| {
        let error = job.get("topology/0", SHORT).unwrap_err();
        job.shutdown(LONG).unwrap();
        error
    });
    insta::assert_snapshot!(results[0], @"waited 1 s for key 'topology/0': no process has put it");
}

#[test]
fn a_process_that_has_left_is_not_waited_for() {
    let results = Job::new(2).run(|job| {
        if job.process_index() == 1 {
            job.put("leaving", b"").unwrap();
            job.shutdown(LONG).unwrap();
            return None;
        }
        job.get("leaving", LONG).unwrap();
        let error = job.barrier("step", LONG).unwrap_err();
        job.shutdown(LONG).unwrap();
        Some(error)
    });
    insta::assert_snapshot!(results[0].as_ref().unwrap(), @"barrier 'step' cannot be met: process 1 (host-b) has left the job");
}

#[test]
fn processes_that_finish_at_different_times_all_end_well() {
    for last in 0..3 {
        Job::new(3).run(|job| {
            if job.process_index() == last {
                thread::sleep(Duration::from_millis(200));
            }
            job.shutdown(LONG).unwrap();
        });
    }
}

#[test]
fn a_shutdown_without_the_others_names_them() {
    let results = Job::new(2).run(|job| {
        if job.process_index() == 0 {
            let error = job.shutdown(SHORT).unwrap_err();
            job.put("told", b"").unwrap();
            job.shutdown(LONG).unwrap();
            return Some(error);
        }
        job.get("told", LONG).unwrap();
        job.shutdown(LONG).unwrap();
        None
    });
    let error = results[0].as_ref().unwrap().to_string();
    assert!(after_wait(&error).starts_with("the end of the job: missing 1 of 2: process 1 (host-b)"), "{error}");
}

#[test]
fn an_abort_reaches_every_wait_on_every_process_once() {
    for origin in [0, 2] {
        let calls = AtomicUsize::new(0);
        let messages = Job::new(3).run(|job| {
            let count = Arc::new(AtomicUsize::new(0));
            let counted = count.clone();
            job.on_abort(move |abort| {
                assert_eq!(abort.process_index, Some(origin));
                counted.fetch_add(1, Ordering::SeqCst);
            });
            job.barrier("ready", LONG).unwrap();
            let error = if job.process_index() == origin {
                job.abort("program.hlo:3:1: no such thing");
                job.abort("again");
                job.barrier("never", LONG).unwrap_err()
            } else {
                thread::scope(|scope| {
                    let others = [
                        scope.spawn(|| job.get("never", LONG).unwrap_err()),
                        scope.spawn(|| job.all_gather("never", b"", LONG).unwrap_err()),
                    ];
                    let error = job.barrier("never", LONG).unwrap_err();
                    for other in others {
                        assert_eq!(other.join().unwrap().to_string(), error.to_string());
                    }
                    error
                })
            };
            let counted = count.clone();
            job.on_abort(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
            });
            // Waits end before the callbacks have run; leaving waits for them.
            drop(job);
            calls.fetch_add(count.load(Ordering::SeqCst), Ordering::SeqCst);
            error.to_string()
        });
        assert_eq!(calls.into_inner(), 6, "each process's two callbacks run once");
        let host = ["host-a", "", "host-c"][origin as usize];
        assert_eq!(
            messages,
            vec![format!("process {origin} ({host}) failed: program.hlo:3:1: no such thing"); 3],
            "origin {origin}"
        );
    }
}

#[test]
fn a_process_that_drops_out_stops_the_others() {
    let messages = Job::new(3).run(|job| {
        if job.process_index() == 1 {
            job.barrier("ready", LONG).unwrap();
            return String::new();
        }
        job.barrier("ready", LONG).unwrap();
        job.barrier("never", LONG).unwrap_err().to_string()
    });
    let expected = "process 1 (host-b) failed: it ended before the job was done";
    assert_eq!(messages, [expected, "", expected]);
}

#[test]
fn when_process_0_drops_out_the_others_learn_why() {
    let messages = Job::new(3).run(|job| {
        job.barrier("ready", LONG).unwrap();
        if job.process_index() == 0 {
            return String::new();
        }
        job.barrier("never", LONG).unwrap_err().to_string()
    });
    let expected = "process 0 (host-a) failed: it ended before the job was done";
    assert_eq!(messages, ["", expected, expected]);
}

#[test]
fn a_cut_connection_and_a_silent_process_are_named_on_both_sides() {
    for cut in [true, false] {
        let mut job = Job::new(2);
        let (mut first, mut second) = (job.options(0, LONG), job.options(1, LONG));
        first.heartbeat = Heartbeat::within(SHORT);
        let relay = Relay::new(job.address.parse().unwrap(), Weather::default());
        let address = relay.address.to_string();
        second.coordinator = address.clone();
        let other = thread::spawn(move || {
            let job = Rendezvous::join(second).unwrap();
            job.report(|| at(5, "all-reduce.3"));
            job.barrier("never", LONG).unwrap_err()
        });
        let host = Rendezvous::join(first).unwrap();
        job.wait_until(|status| status.processes[1].step == 5);
        if cut {
            relay.hang_up();
        } else {
            relay.fall_silent();
        }
        let here = host.barrier("neither", LONG).unwrap_err().to_string();
        let there = stable(other.join().unwrap(), &address);
        if cut {
            insta::assert_snapshot!(here, @"process 1 (host-b) died: its connection closed without a goodbye, last in all-reduce.3, step 5");
            insta::assert_snapshot!(there, @"lost the coordinator at ADDRESS (in process 0): its connection closed");
        } else {
            insta::assert_snapshot!(here, @"no progress for 1 s (the limit is --stall-timeout): process 1 (host-b) has been silent for 1 s, last in all-reduce.3, step 5; process 0 (host-a) waits at barrier 'neither'");
            insta::assert_snapshot!(there, @"lost the coordinator at ADDRESS (in process 0): it has been silent for 1 s");
        }
    }
}

#[test]
fn a_process_that_does_not_get_on_is_named_with_where_the_others_wait() {
    let mut job = Job::new(3);
    let options: Vec<_> = (0..3)
        .map(|process| JoinOptions { heartbeat: Heartbeat::within(SHORT), ..job.options(process, LONG) })
        .collect();
    let join = |options: JoinOptions| {
        let index = options.process_index;
        let job = Rendezvous::join(options).unwrap();
        job.report(
            move || if index == 1 { Progress { waits: false, ..at(4, "all-reduce") } } else { at(5, "all-reduce.3") },
        );
        let (sender, told) = mpsc::channel();
        job.on_abort(move |abort| sender.send(abort.to_string()).unwrap());
        told.recv_timeout(LONG).unwrap()
    };
    let told: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = options.into_iter().map(|options| scope.spawn(move || join(options))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(told, vec![told[0].clone(); 3]);
    insta::assert_snapshot!(told[0], @"no progress for 1 s (the limit is --stall-timeout): process 1 (host-b) last entered step 4; process 0 (host-a), 2 (host-c) wait in all-reduce.3 of step 5");
}

#[test]
fn a_process_that_gets_on_slowly_is_left_alone() {
    let mut job = Job::new(2);
    let heartbeat = Heartbeat::within(2 * SHORT);
    let options = [0, 1].map(|process| JoinOptions { heartbeat, ..job.options(process, LONG) });
    let threads = options.map(|options| {
        thread::spawn(move || {
            let job = Rendezvous::join(options).unwrap();
            let start = Instant::now();
            job.report(move || at(start.elapsed().as_millis() as u64 / 400, "all-reduce"));
            thread::sleep(3 * SHORT);
            job.shutdown(LONG).unwrap();
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn the_status_tells_of_all_processes_and_only_to_those_with_the_token() {
    let mut job = Job::new(3);
    job.token = Some("0123456789abcdef0123456789abcdef".parse().unwrap());
    let metrics = listen("127.0.0.1:0").unwrap();
    let metrics_address = metrics.local_addr().unwrap();
    let first = JoinOptions {
        metrics: Some(metrics),
        expected_hosts: ["host-a", "host-b", "host-x"].map(str::to_owned).into(),
        ..job.options(0, LONG)
    };
    let second = JoinOptions { slice: 1, ..job.options(1, LONG) };
    let third = job.options(2, LONG);
    let member = |options: JoinOptions| {
        thread::spawn(move || {
            let job = Rendezvous::join(options).unwrap();
            job.report(|| at(7, "all-gather"));
            job.get("end", LONG).unwrap();
            job.shutdown(LONG).unwrap();
        })
    };
    let early = [member(first), member(second)];
    let status = job.wait_until(|status| status.count(ProcessState::Active) == 2);
    assert_eq!((status.count(ProcessState::Pending), &*status.processes[2].host), (1, "host-x"));

    let late = Rendezvous::join(third).unwrap();
    late.report(|| at(5, "all-gather"));
    let status = job.wait_until(|status| status.device_count == 6);
    assert_eq!(status.job, JobId::of(job.token.as_ref()).to_string());
    assert_eq!((status.step, status.slice_count, status.sent_bytes), (5, 2, 1900));
    let mut http = TcpStream::connect(metrics_address).unwrap();
    http.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    http.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    for line in ["spmd_run_step 5", "spmd_run_devices 6", "spmd_run_process_step{process=\"0\",host=\"host-a\"} 7"] {
        assert!(text.lines().any(|found| found == line), "no {line} in {text}");
    }

    let other = query_status(&job.address, Some(&JobToken::random().unwrap()), None, LONG).unwrap_err();
    insta::assert_snapshot!(stable(other, &job.address), @"the coordinator at ADDRESS has another job token: SPMD_JOB_TOKEN must be the same for every process of a job");
    late.put("end", b"").unwrap();
    late.shutdown(LONG).unwrap();
    early.into_iter().for_each(|member| member.join().unwrap());
}

#[test]
fn metrics_are_bounded() {
    let mut job = Job::new(1);
    let metrics = listen("127.0.0.1:0").unwrap();
    let address = metrics.local_addr().unwrap();
    let member = Rendezvous::join(JoinOptions { metrics: Some(metrics), ..job.options(0, LONG) }).unwrap();
    let ask = |request: &[u8]| {
        let mut http = TcpStream::connect(address).unwrap();
        let _ = http.write_all(request);
        let mut answer = Vec::new();
        let _ = http.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(ask(b"GET /other HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(ask(b"POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
    // What is left unread may reset the connection before the answer is read.
    assert!(["HTTP/1.1 431 Request Header Fields Too Large", ""].contains(&&*ask(&vec![b'x'; 1 << 20])));
    // More than are answered at once, none of which says anything.
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    drop(silent);
    assert_eq!(ask(b"GET /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
    member.shutdown(LONG).unwrap();
}

#[test]
fn a_coordinator_on_all_addresses_has_both_families() {
    let Ok(listener) = listen("[::]:0") else { return eprintln!("skipped: no IPv6") };
    let port = listener.local_addr().unwrap().port();
    let mut job = Job::new(3);
    job.listener = Some(listener);
    let mut options: Vec<_> = (0..3).map(|process| job.options(process, LONG)).collect();
    options[1].coordinator = format!("127.0.0.1:{port}");
    options[2].coordinator = format!("[::1]:{port}");
    let threads =
        options.into_iter().map(|options| thread::spawn(|| Rendezvous::join(options).unwrap().shutdown(LONG)));
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
}

#[test]
fn wrong_members_are_refused_and_the_right_ones_still_meet() {
    let mut job = Job::new(3);
    let address = job.address.clone();
    let (first, second, third) = (job.options(0, LONG), job.options(1, LONG), job.options(2, LONG));
    let members =
        [first, second].map(|options| thread::spawn(|| Rendezvous::join(options).unwrap().shutdown(LONG).unwrap()));

    let mut refused = |change: &dyn Fn(&mut JoinOptions)| {
        let mut options = job.options(2, LONG);
        change(&mut options);
        stable(Rendezvous::join(options).unwrap_err(), &address)
    };
    let token = refused(&|options| options.token = Some(JobToken::random().unwrap()));
    let token = without_ids(&token);
    insta::assert_snapshot!(token, @"the coordinator at ADDRESS is of job ID, this process belongs to job ID: another job has this port, or SPMD_JOB_TOKEN is not the same for every process");
    let token = refused(&|options| options.token = Some("a short password".parse().unwrap()));
    insta::assert_snapshot!(token, @"the coordinator at ADDRESS has another job token: SPMD_JOB_TOKEN must be the same for every process of a job");
    let token = refused(&|options| options.token = None);
    insta::assert_snapshot!(token, @"the coordinator at ADDRESS has another job token: this process has none, set SPMD_JOB_TOKEN to the one of the job");
    let count = refused(&|options| options.process_count = 8);
    insta::assert_snapshot!(count, @"this job has 3 processes, process 2 was started with -n 8");
    let version = refused(&|options| options.version = "9.9.9".into());
    insta::assert_snapshot!(version, @"process 2 (host-c) runs spmd-run 9.9.9, the coordinator 0.1.0: use the same version on every host");
    // Process 1 may still be on its way, and the first to come is the one who has the index.
    let deadline = Instant::now() + LONG;
    let twice = loop {
        let mut options = job.options(1, Duration::from_millis(500));
        options.process_count = 3;
        options.host = "host-x".into();
        match Rendezvous::join(options).unwrap_err() {
            JoinError::Refused(reason) => break reason,
            other => assert!(Instant::now() < deadline, "{other}"),
        }
    };
    assert!(twice.starts_with("process 1 has joined already (from host-b, 127.0.0.1:"), "{twice}");

    Rendezvous::join(third).unwrap().shutdown(LONG).unwrap();
    for member in members {
        member.join().unwrap();
    }
}

#[test]
fn strangers_do_no_harm() {
    let mut job = Job::new(2);
    let (first, second) = (job.options(0, LONG), job.options(1, LONG));
    let early = thread::spawn(move || Rendezvous::join(first).unwrap().shutdown(LONG).unwrap());

    let mut idle: Vec<_> = (0..400).map(|_| TcpStream::connect(&job.address).unwrap()).collect();
    let mut http = TcpStream::connect(&job.address).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\nHost: a-name-that-fills-the-hello\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = http.read_to_end(&mut answer);
    assert_eq!(answer, b"", "a stranger learns nothing");
    let mut zeros = TcpStream::connect(&job.address).unwrap();
    let _ = zeros.write_all(&vec![0; 1 << 20]);
    for stream in idle.iter_mut().step_by(7) {
        let _ = stream.write_all(b"spmd");
    }

    Rendezvous::join(second).unwrap().shutdown(LONG).unwrap();
    early.join().unwrap();
}

#[test]
fn a_port_where_nobody_listens_is_named() {
    let mut job = Job::new(2);
    let mut options = job.options(1, Duration::from_millis(200));
    drop(job.listener.take());
    let error = Rendezvous::join(options).unwrap_err();
    insta::assert_snapshot!(stable(error, &job.address), @"cannot reach ADDRESS: connection refused: the host is there, and nothing listens on this port: process 0 has not started or listens elsewhere; this address leads to this host itself, and to no other (tried for 200 ms)");

    options = job.options(1, Duration::from_secs(3));
    let address = job.address.replace("127.0.0.1", "localhost");
    options.coordinator = address.clone();
    let error = stable(stable(Rendezvous::join(options).unwrap_err(), &address), &job.address);
    assert!(error.starts_with("cannot reach ADDRESS ("), "{error}");
}

#[test]
fn an_unknown_host_is_named() {
    let mut job = Job::new(2);
    let mut options = job.options(1, Duration::from_millis(300));
    options.coordinator = "no-such-host.invalid:4000".into();
    let error = Rendezvous::join(options).unwrap_err().to_string();
    assert!(error.starts_with("cannot find the coordinator's host 'no-such-host.invalid': "), "{error}");
    for wrong in ["no-port", "host:", "host:65536", ":1", ""] {
        let mut options = job.options(1, LONG);
        options.coordinator = wrong.into();
        let error = Rendezvous::join(options).unwrap_err().to_string();
        assert_eq!(error, format!("the coordinator's address '{wrong}' is not HOST:PORT"));
    }
}

#[test]
fn another_server_is_not_taken_for_a_coordinator() {
    let listener = listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        stream
    });
    let error = Rendezvous::join(JoinOptions::new(address.clone(), 1, 2, LONG)).unwrap_err();
    insta::assert_snapshot!(stable(error, &address), @"ADDRESS is not a coordinator of spmd-run: another program listens there");
    drop(server.join().unwrap());
}

#[test]
fn a_server_that_does_not_answer_is_not_waited_for_too_long() {
    let listener = listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let error = Rendezvous::join(JoinOptions::new(address.clone(), 1, 2, Duration::from_millis(300))).unwrap_err();
    insta::assert_snapshot!(stable(error, &address), @"cannot reach ADDRESS: it accepts connections but does not answer, as if process 0 were stopped (tried for 300 ms)");
}

#[test]
fn without_a_token_only_loopback_is_allowed() {
    let listener = listen("0.0.0.0:0").unwrap();
    let options = JoinOptions { host_coordinator: Some(listener), ..JoinOptions::new("0.0.0.0:4000", 0, 2, SHORT) };
    let error = Rendezvous::join(options).unwrap_err();
    insta::assert_snapshot!(error, @"the coordinator 0.0.0.0:4000 can be reached from other machines and this job has no token: set SPMD_JOB_TOKEN to the same secret for every process, or use a loopback address");
    let error = Rendezvous::join(JoinOptions::new("192.0.2.1:4000", 1, 2, LONG)).unwrap_err();
    assert!(matches!(error, JoinError::TokenNeeded(_)));
    let mut job = Job::new(2);
    job.token = None;
    job.run(|job| job.shutdown(LONG).unwrap());
}

#[test]
fn a_port_in_use_is_named() {
    let taken = listen("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    insta::assert_snapshot!(stable(listen(&address).unwrap_err(), &address), @"cannot listen on ADDRESS: the port is in use, perhaps by another job: stop that one or choose another port");
    insta::assert_snapshot!(listen("192.0.2.1:4000").unwrap_err(), @"cannot listen on 192.0.2.1:4000: this is not an address of this machine: process 0 hosts the coordinator and must run there");
}

#[test]
fn contradictory_options_are_refused() {
    let error = Rendezvous::join(JoinOptions::new("127.0.0.1:1", 2, 2, LONG)).unwrap_err();
    insta::assert_snapshot!(error, @"there is no process 2 among 2: process indices start at 0");
    let mut job = Job::new(2);
    let mut options = job.options(1, LONG);
    options.host_coordinator = job.listener.take();
    insta::assert_snapshot!(Rendezvous::join(options).unwrap_err(), @"process 1 cannot host the coordinator, only process 0 can");
}
