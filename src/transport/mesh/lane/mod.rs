//! A stream of bytes in both directions that outlives its connections.
//!
//! Bytes travel in records: a header with their number, and with how many bytes of the other direction have been taken in.
//! What was written is kept until the other end has confirmed it in this way. When a connection breaks, both ends tell each
//! other over the next one how far they have come, and send again what the other one lacks: each byte is taken in
//! once, in its place.

mod reader;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::channel;

pub(super) use reader::Reader;

/// Bytes that are kept for the other end. When it has confirmed none of them, whoever writes has to wait.
const CAPACITY: usize = 4 << 20;

/// The other end is told after this many bytes, if nothing goes there by itself.
const CONFIRM_AFTER: u64 = 512 << 10;

/// Most bytes of a record. Longer ones would keep confirmations waiting.
const MAX_RECORD: usize = 256 << 10;

/// The length of a record, and the number of bytes taken in.
const HEADER_LEN: usize = 4 + 8;

/// One end of a stream. Its other half, the [`Reader`], belongs to whoever takes in what comes.
pub(super) struct Lane {
    outgoing: Mutex<Outgoing>,
    /// Bytes of the other direction that have been taken in.
    taken_in: AtomicU64,
    /// Notified when there is a connection again, or never will be.
    changed: Condvar,
    /// Readable when someone who waits to write should look again.
    room: OwnedFd,
    room_is_wanted: AtomicBool,
    /// Made readable when the connection breaks, and when there is another one.
    alarm: Arc<OwnedFd>,
}

struct Outgoing {
    state: State,
    /// What was written and not confirmed.
    kept: VecDeque<u8>,
    /// Bytes that the other end has confirmed: where `kept` begins.
    confirmed: u64,
    /// Up to where bytes have been given to this connection, or the last one.
    sent: u64,
    /// The record that is under way: its header, how much of it has been sent, and where its bytes end.
    header: [u8; HEADER_LEN],
    header_sent: usize,
    record_end: u64,
    /// How many bytes taken in the other end has been told of.
    told: u64,
    /// Nothing is written any more: the connection is to be closed towards the other end when all is sent.
    is_ending: bool,
    /// Whether the other end has said the same.
    is_left: bool,
}

enum State {
    Up { writer: channel::Writer, socket: Arc<TcpStream> },
    Down { outage: Outage, is_attended: bool },
    Closed,
}

/// Why and since when there is no connection.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    pub reason: String,
    pub since: Instant,
}

/// How far one end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// Bytes taken in.
    pub taken_in: u64,
    /// Bytes sent over the last connection or earlier ones.
    pub sent: u64,
}

impl Progress {
    pub const LEN: usize = 16;

    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip([self.taken_in, self.sent]) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Progress {
        let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        Progress { taken_in: words.next().unwrap_or(0), sent: words.next().unwrap_or(0) }
    }
}

impl Lane {
    /// A stream over its first connection, which does not block. `alarm` is an event counter.
    pub fn new(channel: channel::Channel, alarm: Arc<OwnedFd>) -> io::Result<(Arc<Lane>, Reader)> {
        let socket = Arc::clone(channel.socket());
        let (reader, writer) = channel.split();
        let lane = Arc::new(Lane {
            outgoing: Mutex::new(Outgoing {
                state: State::Up { writer, socket },
                kept: VecDeque::new(),
                confirmed: 0,
                sent: 0,
                header: [0; HEADER_LEN],
                header_sent: HEADER_LEN,
                record_end: 0,
                told: 0,
                is_ending: false,
                is_left: false,
            }),
            taken_in: AtomicU64::new(0),
            changed: Condvar::new(),
            room: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            room_is_wanted: AtomicBool::new(false),
            alarm,
        });
        let reader = Reader::new(Arc::clone(&lane), reader);
        Ok((lane, reader))
    }

    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes as many bytes as there is room for, and sends what it can. Fails where there is no room now, or the lane is
    /// closed.
    pub fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut outgoing = self.lock();
        if matches!(outgoing.state, State::Closed) && !slices.is_empty() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut count = 0;
        for slice in slices {
            let part = &slice[..slice.len().min(CAPACITY - outgoing.kept.len())];
            outgoing.kept.extend(part);
            count += part.len();
        }
        self.send(&mut outgoing);
        let is_full = count == 0 && !slices.is_empty();
        if is_full || !matches!(outgoing.state, State::Up { .. }) {
            self.room_is_wanted.store(true, Ordering::Relaxed);
        }
        if is_full { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    /// Whether everything that was written has been given to the system, or the other end has left and wants no more.
    pub fn is_flushed(&self) -> bool {
        let outgoing = self.lock();
        match &outgoing.state {
            State::Up { writer, .. } => {
                writer.is_flushed() && outgoing.header_sent == HEADER_LEN && outgoing.sent == outgoing.end()
            }
            State::Down { .. } => false,
            State::Closed => true,
        }
    }

    /// Sends what waits to be sent, unless someone else is about to write, who does so.
    pub fn go_on(&self) {
        if let Ok(mut outgoing) = self.outgoing.try_lock() {
            self.send(&mut outgoing);
        }
    }

    fn send(&self, outgoing: &mut Outgoing) {
        match outgoing.send(self.taken_in.load(Ordering::Relaxed)) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => self.take_down(outgoing, error.to_string()),
            _ => {}
        }
    }

    /// The socket, and whether something waits until it has room; nothing while there is no connection.
    pub fn socket(&self) -> Option<(Arc<TcpStream>, bool)> {
        let outgoing = self.lock();
        match &outgoing.state {
            State::Up { writer, socket } => {
                let waits = outgoing.is_pending(self.taken_in.load(Ordering::Relaxed)) || !writer.is_flushed();
                Some((Arc::clone(socket), waits))
            }
            _ => None,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.lock().state, State::Up { .. })
    }

    /// Readable when someone who could not write should try again.
    pub fn room(&self) -> &OwnedFd {
        &self.room
    }

    /// To be called before trying again.
    pub fn forget_room(&self) {
        // Fails where it is not readable.
        let _ = rustix::io::read(&self.room, &mut [0; 8]);
    }

    fn tell_of_room(&self) {
        if self.room_is_wanted.swap(false, Ordering::Relaxed) {
            // Full only if it is unread, which wakes just as well.
            let _ = rustix::io::write(&self.room, &1u64.to_ne_bytes());
        }
    }

    /// The other end has taken in this many bytes.
    fn confirm(&self, taken_in: u64) -> Result<(), String> {
        self.lock().confirm(taken_in)?;
        self.tell_of_room();
        Ok(())
    }

    /// Gives up the connection, if there is one.
    pub fn break_off(&self, reason: &str) {
        self.take_down(&mut self.lock(), reason.to_owned());
    }

    fn take_down(&self, outgoing: &mut Outgoing, reason: String) {
        if let State::Up { socket, .. } = &outgoing.state {
            let _ = socket.shutdown(Shutdown::Both);
            let outage = Outage { reason, since: Instant::now() };
            outgoing.state = State::Down { outage, is_attended: false };
            self.raise_alarm();
        }
    }

    fn raise_alarm(&self) {
        let _ = rustix::io::write(&*self.alarm, &1u64.to_ne_bytes());
    }

    /// Says that nothing more is written. Until the other end has everything ([`Lane::is_settled`]), connections are still
    /// made again.
    pub fn end(&self) {
        let mut outgoing = self.lock();
        outgoing.is_ending = true;
        self.send(&mut outgoing);
    }

    /// Whether nothing is left to be done for the other end: it has everything, or has left itself.
    pub fn is_settled(&self) -> bool {
        let outgoing = self.lock();
        outgoing.is_left || outgoing.kept.is_empty() || matches!(outgoing.state, State::Closed)
    }

    /// Whether this end has said that it writes nothing more, and the other one has everything.
    fn has_ended(&self) -> bool {
        let outgoing = self.lock();
        outgoing.is_ending && outgoing.kept.is_empty()
    }

    /// The other end writes nothing any more.
    fn note_end_of_other(&self) {
        self.lock().is_left = true;
    }

    /// All has been taken in that the other end ever writes: tells it so, if it can be told, and ends the stream.
    fn finish(&self) {
        let mut outgoing = self.lock();
        if !outgoing.is_ending && outgoing.is_between_records() {
            outgoing.begin_record(self.taken_in.load(Ordering::Relaxed));
            self.send(&mut outgoing);
        }
        drop(outgoing);
        self.close();
    }

    /// Ends the stream: no connection is made again.
    pub fn close(&self) {
        let before = std::mem::replace(&mut self.lock().state, State::Closed);
        if let State::Up { socket, .. } = before {
            let _ = socket.shutdown(Shutdown::Write);
        }
        self.changed.notify_all();
        self.tell_of_room();
    }

    /// The outage, if there is one that nobody has been told of.
    pub fn unattended_outage(&self) -> Option<Outage> {
        let State::Down { outage, is_attended } = &mut self.lock().state else { return None };
        (!std::mem::replace(is_attended, true)).then(|| outage.clone())
    }

    /// Waits until there is a connection, or never will be, for this long; whether there is.
    pub fn wait_until_up(&self, limit: Duration) -> bool {
        let is_down = |outgoing: &mut Outgoing| matches!(outgoing.state, State::Down { .. });
        let waited = self.changed.wait_timeout_while(self.lock(), limit, is_down);
        matches!(waited.unwrap_or_else(PoisonError::into_inner).0.state, State::Up { .. })
    }

    /// Goes on over a new connection. `theirs` is how far the other end has come. Returns how many bytes are sent again.
    fn resume(&self, writer: channel::Writer, socket: Arc<TcpStream>, theirs: Progress) -> Result<u64, String> {
        let mut outgoing = self.lock();
        if matches!(outgoing.state, State::Closed) {
            return Err("the link is closed".to_owned());
        }
        let before = outgoing.sent;
        outgoing.restart(theirs.taken_in, self.taken_in.load(Ordering::Relaxed))?;
        outgoing.state = State::Up { writer, socket };
        let again = before.saturating_sub(outgoing.sent);
        self.send(&mut outgoing);
        drop(outgoing);
        self.changed.notify_all();
        self.raise_alarm();
        self.tell_of_room();
        Ok(again)
    }
}

impl Outgoing {
    /// Up to where bytes have been written.
    fn end(&self) -> u64 {
        self.confirmed + self.kept.len() as u64
    }

    fn is_between_records(&self) -> bool {
        self.header_sent == HEADER_LEN && self.sent == self.record_end
    }

    /// Whether there is something to send.
    fn is_pending(&self, taken_in: u64) -> bool {
        let must_confirm = taken_in - self.told >= CONFIRM_AFTER && !self.is_ending;
        !self.is_between_records() || self.sent < self.end() || must_confirm
    }

    /// Sends until nothing is left or the system takes no more.
    fn send(&mut self, taken_in: u64) -> io::Result<()> {
        loop {
            let is_pending = self.is_pending(taken_in);
            if is_pending && self.is_between_records() {
                self.begin_record(taken_in);
            }
            let State::Up { writer, socket } = &mut self.state else { return Ok(()) };
            if !is_pending {
                writer.flush()?;
                return if self.is_ending { socket.shutdown(Shutdown::Write) } else { Ok(()) };
            }
            let rest = (self.sent - self.confirmed) as usize..(self.record_end - self.confirmed) as usize;
            let (front, back) = self.kept.as_slices();
            let middle = front.len();
            let front = &front[rest.start.min(middle)..rest.end.min(middle)];
            let back = &back[rest.start.max(middle) - middle..rest.end.max(middle) - middle];
            let slices = [&self.header[self.header_sent..], front, back].map(IoSlice::new);
            match writer.write_vectored(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    let of_header = count.min(HEADER_LEN - self.header_sent);
                    self.header_sent += of_header;
                    self.sent += (count - of_header) as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn begin_record(&mut self, taken_in: u64) {
        let len = (self.end() - self.sent).min(MAX_RECORD as u64);
        let (of_len, of_taken_in) = self.header.split_at_mut(4);
        of_len.copy_from_slice(&(len as u32).to_le_bytes());
        of_taken_in.copy_from_slice(&taken_in.to_le_bytes());
        (self.header_sent, self.record_end, self.told) = (0, self.sent + len, taken_in);
    }

    fn confirm(&mut self, taken_in: u64) -> Result<(), String> {
        if taken_in > self.sent {
            return Err(format!("it has {taken_in} bytes of {} that were sent", self.sent));
        }
        let count = taken_in.saturating_sub(self.confirmed);
        self.kept.drain(..count as usize);
        self.confirmed += count;
        Ok(())
    }

    /// Begins anew on another connection, where the other end has taken in so many bytes and knows how many this one has.
    fn restart(&mut self, theirs: u64, ours: u64) -> Result<(), String> {
        if theirs < self.confirmed {
            return Err(format!("it lacks bytes from {theirs} on, and had all up to {}", self.confirmed));
        }
        self.confirm(theirs)?;
        (self.sent, self.record_end, self.header_sent, self.told) = (theirs, theirs, HEADER_LEN, ours);
        Ok(())
    }
}
