mod peers;
mod way;

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::net::sockopt::socket_incoming_cpu;
use rustix::thread::sched_getcpu;

use crate::transport::{EAGER_LIMIT, Segment, Tag, TransportError, Wait, shm};

use super::connect::Connection;
use super::frame::{Header, Kind};
use super::inbox::Inbox;
use super::lane::Lane;
use super::link::Link;
use super::spin::{Spin, Spinning};
use super::stream::{Buffered, Stream};
use way::{Outlet, Way, Writer};

pub(super) use peers::Peers;

/// A call that waits longer tells the peer what it waits for.
const GRACE: Duration = Duration::from_millis(50);

/// How often whoever sleeps looks whether it should give up.
const TICK: Duration = Duration::from_millis(50);

/// The same where some peers have rings and others have not: nothing wakes for both.
const MIXED_TICK: Duration = Duration::from_millis(2);

/// How long a farewell waits for a write that is under way, and a failed write for the peer's last words.
const LAST_WORDS: Duration = Duration::from_millis(400);

/// Most buffers that the system takes in one write.
const MAX_SLICES: usize = 1024;

/// Buffers of one message for which no list is allocated.
const FEW_SLICES: usize = 8;

/// The way to one peer.
pub(super) struct Peer {
    pub index: u32,
    way: Way,
    /// One, or one for each lane.
    writers: Vec<Mutex<Writer>>,
    inbox: Mutex<Inbox>,
    changed: Condvar,
    /// Wakes whoever sleeps until the stream has bytes.
    kick: OwnedFd,
    /// The ring that the peer writes to, if there is one.
    ring: Option<shm::Segment>,
    /// The ring that goes to the peer.
    own_ring: Option<shm::Segment>,
    /// The peer's memory, if it may be read: then the peer lends large messages.
    memory: Option<shm::Memory>,
    /// Whether the peer may read our memory.
    is_readable: bool,
    spin: Spin,
    /// Whether the peer runs on this host.
    is_local: bool,
    /// Whether it is this process, of the two, that leaves a core on which both find themselves.
    makes_room: bool,
}

impl Peer {
    /// Process `here`'s peer `index`, behind connections that do not block and, where both share memory, a ring for each
    /// direction. `alarm` becomes readable when a lane of a link loses its connection.
    pub fn new(here: u32, index: u32, connection: Connection, spin: Spin, alarm: &Arc<OwnedFd>) -> io::Result<Peer> {
        let is_local = connection.is_local();
        let Connection { channel, instance, shared, lanes, .. } = connection;
        let shared = shared.ok();
        let is_blind = shared.is_none();
        let memory = shared.as_ref().and_then(|shared| shared.memory);
        let is_readable = shared.as_ref().is_some_and(|shared| shared.is_readable);
        let (writer, reader) = shared.map(|shared| (shared.writer, shared.reader)).unzip();
        let own_ring = writer.as_ref().map(|writer: &shm::Writer| writer.segment().clone());
        let (way, streams, outlets) = match lanes {
            None => {
                let socket = Arc::clone(channel.socket());
                let (reader, writer) = channel.split();
                let stream = Stream::Connection(Buffered::new(reader));
                (Way::Connection(socket), vec![stream], vec![Outlet::Connection(writer)])
            }
            Some(lanes) => {
                let channels = std::iter::once(channel).chain(lanes);
                let lanes: io::Result<Vec<_>> = channels.map(|channel| Lane::new(channel, Arc::clone(alarm))).collect();
                let (lanes, readers): (Vec<_>, Vec<_>) = lanes?.into_iter().unzip();
                let outlets = lanes.iter().map(|lane| Outlet::Lane(Arc::clone(lane))).collect();
                let streams = readers.into_iter().map(|reader| Stream::Lane(Buffered::new(reader)));
                (Way::Link(Link::new(lanes, instance)), streams.collect(), outlets)
            }
        };
        let inbox = Inbox::new(index, streams, reader);
        let mut ring = writer;
        let writer = |stream| Mutex::new(Writer { ring: ring.take(), stream, torn: false });
        Ok(Peer {
            index,
            way,
            writers: outlets.into_iter().map(writer).collect(),
            own_ring,
            memory,
            is_readable,
            ring: inbox.ring().cloned(),
            inbox: Mutex::new(inbox),
            changed: Condvar::new(),
            kick: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            spin: if is_blind { spin.blind() } else { spin },
            is_local,
            makes_room: here > index,
        })
    }

    /// Whether bytes go through shared memory.
    pub fn shares_memory(&self) -> bool {
        self.ring.is_some()
    }

    pub fn send(&self, peers: &Peers, tag: Tag, data: &[IoSlice<'_>], wait: &Wait<'_>) -> Result<(), TransportError> {
        if self.lend(peers, tag, data, wait)? { self.reclaim(peers, tag, wait) } else { Ok(()) }
    }

    /// Sends a message, or lets the peer read it from where it lies: then it has to stay until it is reclaimed.
    pub fn lend(&self, peers: &Peers, tag: Tag, data: &[IoSlice<'_>], wait: &Wait<'_>) -> Result<bool, TransportError> {
        let is_large = data.iter().map(|slice| slice.len()).sum::<usize>() > EAGER_LIMIT;
        if is_large && self.is_readable {
            let run = |slice: &IoSlice<'_>| shm::Run { address: slice.as_ptr() as u64, len: slice.len() as u64 };
            let runs: Vec<_> = data.iter().map(|slice| run(slice).to_bytes()).collect();
            self.write(peers, Kind::Lend, tag, &[IoSlice::new(runs.as_flattened())], wait.deadline)?;
            return Ok(true);
        }
        if is_large {
            self.wait_until(peers, &tag, wait, |inbox| {
                inbox.receive();
                inbox.take_ready(&tag)
            })?;
        }
        self.write(peers, Kind::Data, tag, data, wait.deadline)?;
        Ok(false)
    }

    /// Waits until the peer has read a lent message.
    pub fn reclaim(&self, peers: &Peers, tag: Tag, wait: &Wait<'_>) -> Result<(), TransportError> {
        let done = self.wait_until(peers, &tag, wait, |inbox| {
            inbox.receive();
            inbox.take_taken(&tag)
        });
        if done.is_err() {
            self.withdraw();
        }
        done
    }

    /// Takes memory back that was lent: whatever the peer reads of it afterwards, it discards. Nothing can be lent again.
    pub fn withdraw(&self) {
        if let Some(ring) = &self.own_ring {
            ring.positions().withdraw();
        }
    }

    /// # Safety
    /// As for [`crate::transport::Transport::post`].
    pub unsafe fn post(
        &self,
        peers: &Peers,
        tag: Tag,
        into: Vec<Segment>,
        deadline: Instant,
    ) -> Result<(), TransportError> {
        let len: usize = into.iter().map(Segment::len).sum();
        // SAFETY: by the contract of this function; settled by `complete` and `cancel`.
        unsafe { self.lock().post(tag, into)? };
        if len > EAGER_LIMIT && self.memory.is_none() {
            let sent = self.write(peers, Kind::Ready, tag, &[], deadline);
            if sent.is_err() {
                self.cancel(tag);
            }
            return sent;
        }
        Ok(())
    }

    pub fn complete(&self, peers: &Peers, tag: Tag, wait: &Wait<'_>) -> Result<(), TransportError> {
        let mut lent = None;
        let mut done = self.wait_until(peers, &tag, wait, |inbox| {
            inbox.receive();
            match inbox.take_lent(&tag) {
                Some(Ok(found)) => lent = Some(found),
                Some(Err(error)) => return Some(Err(error)),
                None => return inbox.completed(&tag),
            }
            Some(Ok(()))
        });
        if let Some((runs, segments)) = lent {
            done = self.read(&runs, &segments).and_then(|()| self.write(peers, Kind::Taken, tag, &[], wait.deadline));
        }
        self.cancel(tag);
        done
    }

    /// Reads a lent message into posted memory, which is the caller's until it settles it.
    fn read(&self, runs: &[shm::Run], segments: &[Segment]) -> Result<(), TransportError> {
        enum Stop {
            Broken(TransportError),
            Io(io::Error),
        }
        impl From<io::Error> for Stop {
            fn from(error: io::Error) -> Stop {
                Stop::Io(error)
            }
        }
        let (Some(memory), Some(ring)) = (self.memory, &self.ring) else {
            let problem = "a message lent to a process that cannot read it".to_owned();
            return Err(TransportError::Protocol { peer: self.index, problem });
        };
        let go_on = || self.lock().broken.clone().map_or(Ok(()), |error| Err(Stop::Broken(error)));
        // SAFETY: posted as valid and untouched until settled, which comes after this.
        match unsafe { memory.read(runs, segments, go_on) } {
            Err(Stop::Broken(error)) => Err(error),
            Err(Stop::Io(error)) => Err(self.reason_or(&format!("cannot read its memory: {error}"))),
            Ok(()) if ring.positions().is_withdrawn() => Err(self.reason_or("it took back what it had lent")),
            Ok(()) => Ok(()),
        }
    }

    /// Forgets a posted receive; on return nothing writes to its memory any more.
    pub fn cancel(&self, tag: Tag) {
        self.lock().settle(&tag);
    }

    pub fn take(
        &self,
        peers: &Peers,
        tag: Tag,
        len: usize,
        wait: &Wait<'_>,
        with: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TransportError> {
        self.wait_until(peers, &tag, wait, |inbox| inbox.take(&tag, len, with))
    }

    /// Whether a small message that was not posted has come or does so within moments.
    pub fn arrives_soon(&self, tag: &Tag) -> bool {
        let mut spinning = self.spin.begin();
        loop {
            let seen = self.tail();
            let mut inbox = self.lock();
            let before = inbox.frames();
            let here = inbox.has(tag);
            self.tell_others(&inbox, before);
            drop(inbox);
            if here || !self.pause(&mut spinning, || self.tail() != seen) {
                return here;
            }
        }
    }

    /// Lets every call that waits for this peer fail, now and later; the first reason stands.
    pub fn fail(&self, error: TransportError) {
        self.lock().broken.get_or_insert(error);
        self.wake_all();
    }

    /// Takes in what the peer sent before it hung up. Gives its reason if it aborted the job.
    pub fn receive_last_words(&self) -> Option<String> {
        let reason = self.lock().receive_last_words();
        self.wake_all();
        reason
    }

    /// Calls `attempt` until it has a result: at once, and whenever something arrived.
    fn wait_until(
        &self,
        peers: &Peers,
        tag: &Tag,
        wait: &Wait<'_>,
        mut attempt: impl FnMut(&mut Inbox) -> Option<Result<(), TransportError>>,
    ) -> Result<(), TransportError> {
        let mut spinning = self.spin.begin();
        let (mut start, mut noted, mut judged) = (None, false, None);
        loop {
            let seen = self.tail();
            let mut inbox = self.lock();
            let before = inbox.frames();
            let outcome = attempt(&mut inbox);
            self.tell_others(&inbox, before);
            if let Some(result) = outcome {
                return result;
            }
            let start = *start.get_or_insert_with(Instant::now);
            let unmatched = inbox.unmatched(&mut judged);
            if !unmatched.is_empty() {
                drop(inbox);
                if let Some(explanation) = unmatched.iter().find_map(wait.judge) {
                    return Err(TransportError::Mismatch { explanation });
                }
                continue;
            }
            if spinning.goes_on() {
                drop(inbox);
                self.pause(&mut spinning, || self.tail() != seen);
                continue;
            }
            let waited = start.elapsed();
            let left = wait.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TransportError::Timeout { peer: self.index, waited });
            }
            if waited >= GRACE && !noted {
                noted = true;
                drop(inbox);
                // A peer that has left takes no word any more, and what it sent before may have come since.
                let _ = self.write(peers, Kind::Note, *tag, &[], wait.deadline);
                continue;
            }
            self.sleep(peers, inbox, seen, left.min(TICK));
        }
    }

    /// Sleeps until something may have come, or another thread took in what did. Meanwhile nobody waits in vain for us to
    /// take in what others send: those may wait for each other in a circle.
    fn sleep(&self, peers: &Peers, mut inbox: MutexGuard<'_, Inbox>, seen: u32, limit: Duration) {
        if inbox.watched {
            inbox.followers += 1;
            inbox = self.changed.wait_timeout(inbox, limit).unwrap_or_else(PoisonError::into_inner).0;
            inbox.followers -= 1;
            return;
        }
        inbox.watched = true;
        drop(inbox);
        match &self.ring {
            Some(ring) => {
                let writers = peers.relieve_writers();
                ring.positions().sleep_until_data(seen, &writers, peers.tick(limit));
                if peers.tick(limit) < limit {
                    peers.receive_from_all();
                }
            }
            None => {
                peers.sleep_on_streams(self, PollFlags::IN, Some(&self.kick), peers.tick(limit));
                let _ = rustix::io::read(&self.kick, &mut [0; 8]);
            }
        }
        let mut inbox = self.lock();
        inbox.watched = false;
        if inbox.followers > 0 {
            self.changed.notify_all();
        }
    }

    fn receive(&self, inbox: &mut Inbox) {
        let before = inbox.frames();
        inbox.receive();
        self.tell_others(inbox, before);
    }

    /// Wakes the other threads if this one took in something that may be for them.
    fn tell_others(&self, inbox: &Inbox, before: u64) {
        if inbox.frames() != before && (inbox.watched || inbox.followers > 0) {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        self.changed.notify_all();
        match &self.ring {
            Some(ring) => ring.positions().wake_reader(),
            // Full only if it is unread, which wakes just as well.
            None => drop(rustix::io::write(&self.kick, &1u64.to_ne_bytes())),
        }
    }

    fn pause(&self, spinning: &mut Spinning, has_news: impl Fn() -> bool) -> bool {
        let shares_core = || match (&self.own_ring, &self.ring) {
            (Some(own), Some(theirs)) => own.positions().shares_core(theirs.positions()),
            // On one host it is the sender's core that takes a packet in.
            _ => match &self.way {
                Way::Connection(socket) if self.is_local => socket_incoming_cpu(socket) == Ok(sched_getcpu() as u32),
                _ => false,
            },
        };
        spinning.pause(has_news, || shares_core() && self.makes_room)
    }

    /// Where the peer is in its ring.
    fn tail(&self) -> u32 {
        self.ring.as_ref().map_or(0, |ring| ring.positions().tail())
    }

    fn write(
        &self,
        peers: &Peers,
        kind: Kind,
        tag: Tag,
        data: &[IoSlice<'_>],
        deadline: Instant,
    ) -> Result<(), TransportError> {
        let len = data.iter().map(|slice| slice.len()).sum::<usize>() as u64;
        let order = self.link().map_or(0, Link::next_order);
        let header = Header { kind, len, tag, order }.to_bytes();
        let (mut few, mut many) = ([IoSlice::new(&[]); 1 + FEW_SLICES], Vec::new());
        let slices = if data.len() <= FEW_SLICES {
            &mut few[..1 + data.len()]
        } else {
            many.resize(1 + data.len(), IoSlice::new(&[]));
            &mut many[..]
        };
        slices[0] = IoSlice::new(&header);
        slices[1..].copy_from_slice(data);
        let mut writer = self.writer();
        if writer.torn {
            return Err(self.reason_or("the connection is closed"));
        }
        let outcome = self.write_all(peers, &mut writer, slices, deadline);
        writer.torn = outcome.is_err();
        outcome
    }

    fn write_all(
        &self,
        peers: &Peers,
        writer: &mut Writer,
        mut rest: &mut [IoSlice<'_>],
        deadline: Instant,
    ) -> Result<(), TransportError> {
        let mut blocked = None;
        loop {
            let written = match &mut writer.ring {
                Some(ring) => ring.write(rest),
                None => writer.stream.write_vectored(&rest[..rest.len().min(MAX_SLICES)]),
            };
            match written {
                Ok(count) => {
                    // Also skips empty buffers.
                    IoSlice::advance_slices(&mut rest, count);
                    if rest.is_empty() && writer.stream.is_flushed() {
                        return Ok(());
                    }
                    if count > 0 {
                        continue;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(self.reason_or(&error.to_string())),
            }
            let (since, spinning) = blocked.get_or_insert_with(|| (Instant::now(), self.spin.begin()));
            if let Some(error) = self.lock().broken.clone() {
                return Err(error);
            }
            if Instant::now() >= deadline {
                return Err(TransportError::Timeout { peer: self.index, waited: since.elapsed() });
            }
            match &writer.ring {
                Some(ring) => {
                    let seen = ring.seen();
                    peers.receive_from_all();
                    if ring.seen() == seen && !self.pause(spinning, || ring.seen() != seen) {
                        ring.sleep(seen, &peers.relieve_writers(), peers.tick(TICK));
                    }
                }
                None => {
                    let lane = match &writer.stream {
                        Outlet::Connection(_) => None,
                        Outlet::Lane(lane) => Some(lane),
                    };
                    let room = lane.map(|lane| lane.room());
                    peers.sleep_on_streams(self, PollFlags::IN | PollFlags::OUT, room, peers.tick(TICK));
                    lane.inspect(|lane| lane.forget_room());
                }
            }
        }
    }

    /// Why the connection broke: what is found in the peer's last words, else `reason`.
    fn reason_or(&self, reason: &str) -> TransportError {
        let deadline = Instant::now() + LAST_WORDS;
        loop {
            let mut inbox = self.lock();
            self.receive(&mut inbox);
            if let Some(error) = &inbox.broken {
                return error.clone();
            }
            if Instant::now() >= deadline {
                return TransportError::Lost { peer: self.index, reason: reason.to_owned() };
            }
            drop(inbox);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
