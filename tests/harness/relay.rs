//! A bad network between processes: connections to a relay lead to another address, slowly, with hiccups, or not any more.

#![allow(dead_code, reason = "no test uses all of it")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// What a network does to bytes.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    /// How long they are under way, in each direction.
    pub delay: Duration,
    /// Every so many pieces one takes 200 ms longer, as if it had been lost and sent again. What comes after it waits.
    pub loss: Option<u64>,
}

/// The least time after which Linux sends again what was lost.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// Carries connections until it is told otherwise.
pub struct Relay {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    is_silent: AtomicBool,
    is_closed: AtomicBool,
    to: Mutex<SocketAddr>,
    streams: Mutex<Vec<TcpStream>>,
    seen: Mutex<Vec<u8>>,
}

impl Relay {
    /// A relay to an address where someone listens now or later.
    pub fn new(to: SocketAddr, weather: Weather) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            is_silent: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            to: Mutex::new(to),
            streams: Mutex::default(),
            seen: Mutex::default(),
        });
        let relay = Relay { address, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if shared.is_closed.load(Ordering::SeqCst) {
                    continue;
                }
                let to = *shared.to.lock().expect("no panic");
                // Nobody is there yet: the caller sees its connection end, and tries again.
                let Ok(far) = TcpStream::connect(to) else { continue };
                let both = || Some((near.try_clone().ok()?, far.try_clone().ok()?));
                let (Some(forth), Some(back)) = (both(), both()) else { continue };
                let mut streams = shared.streams.lock().expect("no panic");
                streams.extend([near, far]);
                carry(forth.0, forth.1, weather, &shared);
                carry(back.1, back.0, weather, &shared);
            }
        });
        relay
    }

    /// Carries nothing more, of which nobody hears.
    pub fn fall_silent(&self) {
        self.shared.is_silent.store(true, Ordering::SeqCst);
    }

    /// Ends all connections; how many there were.
    pub fn hang_up(&self) -> usize {
        let streams = std::mem::take(&mut *self.shared.streams.lock().expect("no panic"));
        for stream in &streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        streams.len() / 2
    }

    /// Ends all connections that come from now on.
    pub fn close(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
    }

    /// Carries new connections to another address.
    pub fn lead_to(&self, to: SocketAddr) {
        *self.shared.to.lock().expect("no panic") = to;
    }

    /// Whether these bytes went by, in one piece.
    pub fn has_seen(&self, bytes: &[u8]) -> bool {
        self.shared.seen.lock().expect("no panic").windows(bytes.len()).any(|window| window == bytes)
    }

    /// How many bytes went by.
    pub fn traffic(&self) -> usize {
        self.shared.seen.lock().expect("no panic").len()
    }
}

/// Takes bytes from one end to the other, on a thread that reads and one that waits until it is time for them.
fn carry(mut from: TcpStream, mut to: TcpStream, weather: Weather, shared: &Arc<Shared>) {
    let (put, pieces) = mpsc::channel::<(Instant, Vec<u8>)>();
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let mut chunk = [0; 16 << 10];
        while let Ok(count) = from.read(&mut chunk) {
            if put.send((Instant::now() + weather.delay, chunk[..count].to_vec())).is_err() || count == 0 {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (number, (due, bytes)) in (1..).zip(pieces) {
            let is_lost = weather.loss.is_some_and(|every: u64| number % every == 0);
            thread::sleep(
                due.saturating_duration_since(Instant::now()) + if is_lost { RETRANSMISSION } else { Duration::ZERO },
            );
            if shared.is_silent.load(Ordering::SeqCst) {
                continue;
            }
            shared.seen.lock().expect("no panic").extend_from_slice(&bytes);
            if bytes.is_empty() || to.write_all(&bytes).is_err() {
                break;
            }
        }
        if !shared.is_silent.load(Ordering::SeqCst) {
            let _ = to.shutdown(Shutdown::Write);
        }
    });
}
