//! Messages over MPI, for clusters whose fabric is reached best, or only, that way.
//!
//! The frames are those of the mesh; MPI carries them as a stream of bytes for each ordered pair of processes. What MPI
//! sends from or receives into belongs to the transport, so that a call which gives up can return its caller's memory at
//! once. MPI has no descriptor to wait on and moves bytes only while it is called: whoever waits calls it again and
//! again, less often as time goes on, and one thread does so for a process that is busy elsewhere.
//!
//! MPI itself cannot tell that a process is gone. The rendezvous can, and `mpirun` ends a job of which a process has died.

mod link;
mod session;

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::mesh::frame::{Header, Kind};
use super::mesh::inbox::{Inbox, MAX_REASON};
use super::mesh::spin::{Spin, Spinning};
use super::{AbortCallback, EAGER_LIMIT, Segment, Tag, Transport, TransportError, Wait};

use link::{Link, PIECE, Received};

pub use session::{Session, SessionError};

/// A call that waits longer tells the peer what it waits for.
const GRACE: Duration = Duration::from_millis(50);

/// How long a thread that waits sleeps between two looks, at first and later.
const FIRST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// How long last words may take to leave.
const LAST_WORDS: Duration = Duration::from_millis(400);

/// Bytes that may be under way to one peer.
const WINDOW: usize = 8 * PIECE;

/// The way to every other process of the job by MPI. Dropping it leaves the job.
pub struct MpiTransport {
    shared: Arc<Shared>,
    mover: Option<JoinHandle<()>>,
}

struct Shared {
    process_index: u32,
    state: Mutex<State>,
    /// One for each peer: whether a frame was written in part, so that nothing can follow.
    writers: Vec<Mutex<bool>>,
    spin: Spin,
    closing: AtomicBool,
}

struct State {
    link: Link,
    inboxes: Vec<Inbox<Received>>,
    /// Why the job ended, if it did.
    reason: Option<TransportError>,
    callback: Option<AbortCallback>,
}

impl MpiTransport {
    /// Takes over the messages of a session; `processes_here` of its processes share this host. All processes of the
    /// job make this call.
    pub fn new(session: &Session, processes_here: usize) -> io::Result<MpiTransport> {
        let link = Link::new(session);
        let inboxes = (0..session.size()).map(|peer| Inbox::new(peer, vec![Received::default()], None)).collect();
        let shared = Arc::new(Shared {
            process_index: session.rank(),
            state: Mutex::new(State { link, inboxes, reason: None, callback: None }),
            writers: (0..session.size()).map(|_| Mutex::new(false)).collect(),
            spin: Spin::new(processes_here),
            closing: AtomicBool::new(false),
        });
        let moving = Arc::clone(&shared);
        let mover = std::thread::Builder::new().name("mpi".to_owned()).spawn(move || moving.keep_moving())?;
        Ok(MpiTransport { shared, mover: Some(mover) })
    }

    fn check(&self, peer: u32) -> Result<(), TransportError> {
        if peer == self.shared.process_index || peer as usize >= self.shared.writers.len() {
            return Err(TransportError::Misuse(format!("process {peer} is not a peer")));
        }
        Ok(())
    }
}

impl Transport for MpiTransport {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn process_index(&self) -> u32 {
        self.shared.process_index
    }

    fn process_count(&self) -> u32 {
        self.shared.writers.len() as u32
    }

    fn send(&self, to: u32, tag: Tag, data: &[IoSlice<'_>], wait: &Wait<'_>) -> Result<(), TransportError> {
        self.check(to)?;
        if data.iter().map(|slice| slice.len()).sum::<usize>() > EAGER_LIMIT {
            self.shared.wait_until(to, &tag, wait, |inbox| inbox.take_ready(&tag))?;
        }
        self.shared.write(to, Kind::Data, tag, data, wait.deadline)
    }

    unsafe fn post(&self, from: u32, tag: Tag, into: Vec<Segment>, deadline: Instant) -> Result<(), TransportError> {
        self.check(from)?;
        let len: usize = into.iter().map(Segment::len).sum();
        // SAFETY: by the contract of this function; settled by `complete` and `cancel`.
        unsafe { self.shared.lock().inbox(from).post(tag, into)? };
        if len > EAGER_LIMIT {
            let sent = self.shared.write(from, Kind::Ready, tag, &[], deadline);
            if sent.is_err() {
                self.cancel(from, tag);
            }
            return sent;
        }
        Ok(())
    }

    fn complete(&self, from: u32, tag: Tag, wait: &Wait<'_>) -> Result<(), TransportError> {
        self.check(from)?;
        let done = self.shared.wait_until(from, &tag, wait, |inbox| inbox.completed(&tag));
        self.cancel(from, tag);
        done
    }

    fn cancel(&self, from: u32, tag: Tag) {
        if self.check(from).is_ok() {
            self.shared.lock().inbox(from).settle(&tag);
        }
    }

    fn take(
        &self,
        from: u32,
        tag: Tag,
        len: usize,
        wait: &Wait<'_>,
        with: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TransportError> {
        self.check(from)?;
        self.shared.wait_until(from, &tag, wait, |inbox| inbox.take(&tag, len, with))
    }

    fn arrives_soon(&self, from: u32, tag: Tag) -> bool {
        if self.check(from).is_err() {
            return false;
        }
        let mut spinning = self.shared.spin.begin();
        loop {
            let here = self.shared.advance().0.inbox(from).has(&tag);
            if here || !spinning.pause(|| false, || false) {
                return here;
            }
        }
    }

    fn abort(&self, reason: &str) {
        // Also where a peer has ended the job, as not everyone may have heard of it.
        drop(self.shared.lock().end(TransportError::Aborted { reason: reason.to_owned() }));
        self.shared.farewell(Kind::Abort, reason);
    }

    fn on_abort(&self, callback: AbortCallback) {
        let mut state = self.shared.lock();
        match &state.reason {
            Some(error @ TransportError::AbortedByPeer { .. }) => {
                let error = error.clone();
                drop(state);
                callback(error);
            }
            _ => state.callback = Some(callback),
        }
    }
}

impl State {
    fn inbox(&mut self, peer: u32) -> &mut Inbox<Received> {
        &mut self.inboxes[peer as usize]
    }

    /// Fails all calls with `error`, now and later; the first reason stands. Returns whom to tell.
    fn end(&mut self, error: TransportError) -> Option<AbortCallback> {
        for inbox in &mut self.inboxes {
            inbox.broken.get_or_insert_with(|| error.clone());
        }
        if self.reason.is_some() {
            return None;
        }
        self.reason = Some(error);
        self.callback.take()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets MPI do what can be done now, and takes in what has come. Returns whether that was anything.
    fn advance(&self) -> (MutexGuard<'_, State>, bool) {
        let mut state = self.lock();
        let State { link, inboxes, .. } = &mut *state;
        let mut aborted = Vec::new();
        let moved = link.advance(|from, bytes| {
            let Some(inbox) = inboxes.get_mut(from as usize) else { return };
            inbox.source(0).push(bytes);
            inbox.receive();
            if inbox.source(0).has_ended()
                && let Some(reason) = inbox.receive_last_words()
            {
                aborted.push(TransportError::AbortedByPeer { peer: from, reason });
            }
        });
        for error in aborted {
            if let Some(callback) = state.end(error.clone()) {
                drop(state);
                callback(error);
                state = self.lock();
            }
        }
        (state, moved)
    }

    /// Calls `attempt` until it has a result.
    fn wait_until(
        &self,
        peer: u32,
        tag: &Tag,
        wait: &Wait<'_>,
        mut attempt: impl FnMut(&mut Inbox<Received>) -> Option<Result<(), TransportError>>,
    ) -> Result<(), TransportError> {
        let (mut pause, mut noted, mut judged) = (Pause::new(self.spin), false, None);
        loop {
            let (mut state, moved) = self.advance();
            let inbox = state.inbox(peer);
            if let Some(result) = attempt(inbox) {
                return result;
            }
            let unmatched = inbox.unmatched(&mut judged);
            drop(state);
            if let Some(explanation) = unmatched.iter().find_map(wait.judge) {
                return Err(TransportError::Mismatch { explanation });
            }
            let waited = pause.since.elapsed();
            if Instant::now() >= wait.deadline {
                return Err(TransportError::Timeout { peer, waited });
            }
            if waited >= GRACE && !noted {
                noted = true;
                self.write(peer, Kind::Note, *tag, &[], wait.deadline)?;
            } else if !moved {
                pause.rest();
            }
        }
    }

    fn write(
        &self,
        to: u32,
        kind: Kind,
        tag: Tag,
        data: &[IoSlice<'_>],
        deadline: Instant,
    ) -> Result<(), TransportError> {
        let len = data.iter().map(|slice| slice.len()).sum::<usize>() as u64;
        let header = Header { kind, len, tag, order: 0 }.to_bytes();
        let mut torn = self.writers[to as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if *torn {
            let broken = self.lock().inbox(to).broken.clone();
            return Err(broken.unwrap_or_else(|| lost(to)));
        }
        // A header never lies in two pieces: it begins one, and is shorter.
        let slices = [&header[..]].into_iter().chain(data.iter().map(|slice| &**slice));
        let mut rest = slices.flat_map(|bytes| bytes.chunks(PIECE));
        let mut next = rest.next();
        while next.is_some() {
            let mut piece = self.room_for_piece(to, deadline)?;
            while let Some(bytes) = next.filter(|bytes| piece.len() + bytes.len() <= PIECE) {
                piece.extend_from_slice(bytes);
                next = rest.next();
            }
            *torn = next.is_some();
            self.lock().link.send(to, piece);
        }
        Ok(())
    }

    /// Waits until a piece may be sent; returns an empty buffer for it.
    fn room_for_piece(&self, to: u32, deadline: Instant) -> Result<Vec<u8>, TransportError> {
        let mut pause = Pause::new(self.spin);
        loop {
            let (mut state, moved) = self.advance();
            if let Some(error) = state.inbox(to).broken.clone() {
                return Err(error);
            }
            if state.link.under_way(to) < WINDOW {
                return Ok(state.link.buffer());
            }
            drop(state);
            if Instant::now() >= deadline {
                return Err(TransportError::Timeout { peer: to, waited: pause.since.elapsed() });
            }
            if !moved {
                pause.rest();
            }
        }
    }

    /// Tells every peer something as the last thing, as far as that takes moments.
    fn farewell(&self, kind: Kind, reason: &str) {
        let deadline = Instant::now() + LAST_WORDS;
        let mut end = MAX_REASON.min(reason.len());
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let header = Header { kind, len: end as u64, tag: Tag([0; 5]), order: 0 }.to_bytes();
        for (peer, writer) in (0..).zip(&self.writers) {
            if peer == self.process_index {
                continue;
            }
            let mut torn = loop {
                match writer.try_lock() {
                    Ok(torn) => break torn,
                    Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Err(TryLockError::WouldBlock) => return,
                }
            };
            let mut state = self.lock();
            if !*torn {
                let mut piece = state.link.buffer();
                piece.extend_from_slice(&header);
                piece.extend_from_slice(&reason.as_bytes()[..end]);
                state.link.send(peer, piece);
            }
            // Nothing can follow what is empty.
            let last = state.link.buffer();
            state.link.send(peer, last);
            *torn = true;
        }
        let mut pause = Pause::new(self.spin);
        while Instant::now() < deadline {
            let (state, _) = self.advance();
            if state.link.is_idle() {
                return;
            }
            drop(state);
            pause.rest();
        }
    }

    /// Lets MPI move bytes while nobody waits for any.
    fn keep_moving(&self) {
        while !self.closing.load(Ordering::Relaxed) {
            let (state, moved) = self.advance();
            let busy = moved || !state.link.is_idle();
            drop(state);
            std::thread::sleep(if busy { FIRST_NAP } else { LONGEST_NAP });
        }
    }
}

impl Drop for MpiTransport {
    fn drop(&mut self) {
        let ended = {
            let mut state = self.shared.lock();
            let ended = state.reason.is_some();
            drop(state.end(TransportError::Aborted { reason: "the transport is closed".to_owned() }));
            ended
        };
        if !ended {
            self.shared.farewell(Kind::Bye, "");
        }
        self.shared.closing.store(true, Ordering::Relaxed);
        if let Some(mover) = self.mover.take() {
            let _ = mover.join();
        }
    }
}

/// A wait: looks again and again at first, then now and then.
struct Pause {
    since: Instant,
    spinning: Spinning,
    nap: Duration,
}

impl Pause {
    fn new(spin: Spin) -> Pause {
        Pause { since: Instant::now(), spinning: spin.begin(), nap: FIRST_NAP }
    }

    fn rest(&mut self) {
        if !self.spinning.pause(|| false, || false) {
            std::thread::sleep(self.nap);
            self.nap = (self.nap * 2).min(LONGEST_NAP);
        }
    }
}

fn lost(peer: u32) -> TransportError {
    TransportError::Lost { peer, reason: "a message to it was not sent to its end".to_owned() }
}
