//! A real job whose port is found by strangers, before all of its processes have joined and while it runs.

mod harness;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{command, finish};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spmd_run::rendezvous::{JobToken, JoinError, JoinOptions, Rendezvous, query_status};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const LONG: Duration = Duration::from_secs(60);

fn process(address: &str, index: &str) -> Child {
    let mut command: Command = command([
        "-n",
        "2",
        "--coordinator",
        address,
        "--process-id",
        index,
        "hlo/scan_layers.hlo",
        "--repeat",
        "300",
        "--metrics",
        "127.0.0.1:0",
    ]);
    command.env(JobToken::VARIABLE, TOKEN).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("spmd-run starts")
}

/// As many connections as are asked for (`SPMD_TEST_STRANGERS`) and this process may have.
fn crowd() -> usize {
    let asked = std::env::var("SPMD_TEST_STRANGERS").map_or(500, |count| count.parse().expect("a number"));
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = asked as u64 + 200;
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted)).max(current.unwrap_or(wanted));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    asked.min(raised as usize - 200)
}

/// Connections that say nothing, a little, or too much.
fn come(address: &str, crowd: usize) -> Vec<TcpStream> {
    let mut strangers = Vec::new();
    for index in 0..crowd {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let _ = match index % 5 {
            0 => Ok(()),
            1 => stream.write_all(b"spmd"),
            2 => stream.write_all(&[index as u8; 4096]),
            3 => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: coordinator\r\n\r\n"),
            _ => stream.shutdown(Shutdown::Write),
        };
        strangers.push(stream);
    }
    strangers
}

/// Sends a byte on each connection now and then, as long as `work` lasts.
fn drip<R>(strangers: &mut [TcpStream], work: impl FnOnce() -> R + Send) -> R
where
    R: Send,
{
    std::thread::scope(|scope| {
        let work = scope.spawn(work);
        while !work.is_finished() {
            for stranger in strangers.iter_mut() {
                let _ = stranger.write(b"s");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        work.join().expect("it does not panic")
    })
}

fn wrong_token(address: &str) {
    let token = Some(JobToken::random().expect("random bytes"));
    let error = Rendezvous::join(JoinOptions { token, ..JoinOptions::new(address, 1, 2, LONG) }).expect_err("refused");
    assert!(matches!(error, JoinError::OtherJob { .. }), "{error}");
    let error = Rendezvous::join(JoinOptions::new(address, 1, 2, LONG)).expect_err("refused");
    assert!(matches!(error, JoinError::Token { had_token: false, .. }), "{error}");
    assert!(matches!(query_status(address, None, LONG), Err(JoinError::Token { .. })));
}

#[test]
fn a_job_does_not_mind_strangers() {
    let address = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").to_string();
    let first = process(&address, "0");
    let start = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(start.elapsed() < LONG, "the coordinator does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut early = come(&address, crowd());
    wrong_token(&address);
    let second = process(&address, "1");
    let outcomes = drip(&mut early, || {
        let mut late = come(&address, crowd());
        wrong_token(&address);
        drip(&mut late, || [first, second].map(finish))
    });
    for outcome in outcomes {
        outcome.success("the job");
    }
    // Nobody was told anything that is not for everyone.
    for mut stranger in early {
        let _ = stranger.set_read_timeout(Some(LONG));
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
}
