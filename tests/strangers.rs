//! A real job whose port is found by strangers, before all of its processes have joined and while it runs.

mod harness;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Child;
use std::time::{Duration, Instant};

use harness::by_hand::{self, TOKEN, free_address};
use harness::{finish, start};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spmd_run::rendezvous::{JobToken, JoinError, JoinOptions, Rendezvous, Tls, query_status};

const LONG: Duration = Duration::from_secs(60);

fn process(address: &str, index: usize, options: &[&str]) -> Child {
    let job = ["hlo/scan_layers.hlo", "--repeat", "300", "--metrics", "127.0.0.1:0"];
    start(by_hand::process(address, index, &[&job[..], options].concat()))
}

/// As many connections as are asked for (`SPMD_TEST_STRANGERS`) and this process may have, twice.
fn crowd() -> usize {
    let asked = std::env::var("SPMD_TEST_STRANGERS").map_or(500, |count| count.parse().expect("a number"));
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = 2 * asked as u64 + 200;
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted)).max(current.unwrap_or(wanted));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    asked.min((raised as usize - 200) / 2)
}

/// Connections that say nothing, a little, or too much.
fn come(address: &str, crowd: usize) -> Vec<TcpStream> {
    let mut strangers = Vec::new();
    for index in 0..crowd {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let _ = match index % 6 {
            0 => Ok(()),
            // How TLS begins.
            5 => stream.write_all(&[22, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3]),
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

fn wrong_token(address: &str, tls: Option<Tls>) {
    let token = Some(JobToken::random().expect("random bytes"));
    let join = |token, tls| Rendezvous::join(JoinOptions { token, tls, ..JoinOptions::new(address, 1, 2, LONG) });
    if tls.is_some() {
        for (token, tls) in [(token, tls), (Some(TOKEN.parse().expect("a token")), None), (None, None)] {
            let error = join(token, tls).expect_err("refused");
            assert!(matches!(error, JoinError::Tls { .. }), "{error}");
        }
        assert!(matches!(query_status(address, None, None, LONG), Err(JoinError::Tls { .. })));
        return;
    }
    let error = join(token, None).expect_err("refused");
    assert!(matches!(error, JoinError::OtherJob { .. }), "{error}");
    let error = join(None, None).expect_err("refused");
    assert!(matches!(error, JoinError::Token { had_token: false, .. }), "{error}");
    assert!(matches!(query_status(address, None, None, LONG), Err(JoinError::Token { .. })));
}

#[test]
fn a_job_does_not_mind_strangers() {
    let strangers = visit(&[], None);
    // Nobody was told anything that is not for everyone.
    for mut stranger in strangers {
        let _ = stranger.set_read_timeout(Some(LONG));
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer == NO_COMMON_VERSION, "{answer:?}");
    }
}

/// The alert with which a process without TLS answers one that begins with it.
const NO_COMMON_VERSION: [u8; 7] = [21, 3, 3, 0, 2, 2, 70];

#[test]
fn an_encrypted_job_does_not_mind_strangers() {
    for mut stranger in visit(&["--tls"], Some(Tls::OfToken)) {
        let _ = stranger.set_read_timeout(Some(LONG));
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        // Nobody came as far as to see a certificate.
        assert!(answer.is_empty() || answer.starts_with(&[21, 3]) && answer.len() == 7, "{answer:?}");
    }
}

/// Has strangers come to a job before all of its processes have joined and while it runs; returns the first of them.
fn visit(options: &[&str], tls: Option<Tls>) -> Vec<TcpStream> {
    let address = free_address();
    let first = process(&address, 0, options);
    let begin = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(begin.elapsed() < LONG, "the coordinator does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut early = come(&address, crowd());
    wrong_token(&address, tls.clone());
    let second = process(&address, 1, options);
    let outcomes = drip(&mut early, || {
        let mut late = come(&address, crowd());
        wrong_token(&address, tls.clone());
        drip(&mut late, || [first, second].map(finish))
    });
    for outcome in outcomes {
        outcome.success("the job");
    }
    early
}
