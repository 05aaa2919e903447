use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::transport::{Segment, Tag, TransportError, Wait};

use super::frame::{HEADER_LEN, Header, Kind};

/// Larger messages wait until the receiver has posted their buffer.
pub(super) const EAGER_LIMIT: usize = 64 << 10;

/// A peer may be this far ahead of us, in bytes of small messages that we have not asked for yet. The collectives keep
/// far below: a device cannot come to its next call before all it sends to have come to this one.
const EARLY_LIMIT: usize = 64 << 20;

/// What an early message counts for beyond its bytes.
const EARLY_OVERHEAD: usize = 256;

/// A call that waits longer tells the peer what it waits for.
const GRACE: Duration = Duration::from_millis(50);

/// How often a blocked write looks whether it should give up; set as the socket's send timeout.
pub(super) const WRITE_TICK: Duration = Duration::from_millis(200);

/// Word of waits is kept for this many messages.
const NOTES_KEPT: usize = 1024;

const MAX_REASON: usize = 4096;

/// Most buffers that the system takes in one write.
const MAX_SLICES: usize = 1024;

/// The connection to one peer.
pub(super) struct Peer {
    pub index: u32,
    /// The same socket as the writer's, for reading and for shutting it down.
    stream: TcpStream,
    writer: Mutex<Writer>,
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

struct Writer {
    stream: TcpStream,
    /// A frame was written in part: nothing can follow.
    torn: bool,
}

#[derive(Default)]
struct Inbox {
    posted: HashMap<Tag, Posted>,
    early: HashMap<Tag, Vec<u8>>,
    early_bytes: usize,
    ready: HashSet<Tag>,
    notes: VecDeque<Tag>,
    /// Grows with every unmatched arrival.
    version: u64,
    broken: Option<TransportError>,
    reader_gone: bool,
}

enum Posted {
    Empty(Vec<Segment>),
    Filling,
    Full,
}

impl Inbox {
    fn unmatched(&self) -> Vec<Tag> {
        self.early.keys().chain(&self.ready).chain(&self.notes).copied().collect()
    }
}

/// How a connection ended, in the peer's words.
pub(super) enum Ending {
    /// The connection is broken or closed; the inbox says why.
    Broken,
    /// The peer aborted the job.
    Aborted(String),
}

impl Peer {
    /// A peer behind a connected socket with a send timeout of [`WRITE_TICK`].
    pub fn new(index: u32, stream: TcpStream) -> io::Result<Peer> {
        let writer = Mutex::new(Writer { stream: stream.try_clone()?, torn: false });
        Ok(Peer { index, stream, writer, inbox: Mutex::default(), changed: Condvar::new() })
    }

    pub fn send(&self, tag: Tag, data: &[IoSlice<'_>], wait: &Wait<'_>) -> Result<(), TransportError> {
        if data.iter().map(|slice| slice.len()).sum::<usize>() > EAGER_LIMIT {
            self.wait_until(&tag, wait, |inbox| {
                if inbox.ready.remove(&tag) { Some(Ok(())) } else { inbox.broken.clone().map(Err) }
            })?;
        }
        self.write(Kind::Data, tag, data, wait.deadline)
    }

    /// # Safety
    /// As for [`crate::transport::Transport::post`].
    pub unsafe fn post(&self, tag: Tag, into: Vec<Segment>, deadline: Instant) -> Result<(), TransportError> {
        let len: usize = into.iter().map(Segment::len).sum();
        {
            let mut inbox = self.lock();
            if inbox.posted.contains_key(&tag) {
                return Err(TransportError::Misuse(format!("message {tag:?} was posted twice")));
            }
            if let Some(message) = inbox.early.remove(&tag) {
                inbox.early_bytes -= message.len() + EARLY_OVERHEAD;
                if message.len() != len {
                    return Err(self.wrong_size(message.len() as u64, len));
                }
                // SAFETY: by the contract of `post`.
                unsafe { scatter(&message, &into) };
                inbox.posted.insert(tag, Posted::Full);
                return Ok(());
            }
            if let Some(error) = &inbox.broken {
                return Err(error.clone());
            }
            inbox.posted.insert(tag, Posted::Empty(into));
        }
        if len > EAGER_LIMIT {
            let sent = self.write(Kind::Ready, tag, &[], deadline);
            if sent.is_err() {
                self.settle(tag);
            }
            return sent;
        }
        Ok(())
    }

    pub fn complete(&self, tag: Tag, wait: &Wait<'_>) -> Result<(), TransportError> {
        let done = self.wait_until(&tag, wait, |inbox| match inbox.posted.get(&tag) {
            Some(Posted::Full) => Some(Ok(())),
            None => Some(Err(TransportError::Misuse(format!("message {tag:?} was not posted")))),
            _ => inbox.broken.clone().map(Err),
        });
        self.settle(tag);
        done
    }

    /// Forgets a posted receive; on return nothing writes to its memory any more.
    pub fn settle(&self, tag: Tag) {
        let mut inbox = self.lock();
        while matches!(inbox.posted.get(&tag), Some(Posted::Filling)) && !inbox.reader_gone {
            // Ends the read that fills the memory.
            let _ = self.stream.shutdown(Shutdown::Both);
            inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        inbox.posted.remove(&tag);
    }

    /// Lets every call that waits for this peer fail, now and later; the first reason stands.
    pub fn fail(&self, error: TransportError) {
        self.lock().broken.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Tells the peer something as the last thing, if it can be told soon, and closes our side.
    pub fn farewell(&self, kind: Kind, reason: &str) {
        let deadline = Instant::now() + 2 * WRITE_TICK;
        let mut end = MAX_REASON.min(reason.len());
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let mut writer = loop {
            match self.writer.try_lock() {
                Ok(writer) => break writer,
                Err(std::sync::TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(std::sync::TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(std::sync::TryLockError::WouldBlock) => {
                    let _ = self.stream.shutdown(Shutdown::Both);
                    return;
                }
            }
        };
        let header = Header { kind, len: end as u64, tag: Tag([0; 5]) }.to_bytes();
        if !writer.torn {
            // One attempt: a peer that takes nothing learns from the closed connection.
            let _ = writer.stream.write_vectored(&[IoSlice::new(&header), IoSlice::new(&reason.as_bytes()[..end])]);
        }
        writer.torn = true;
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Calls `attempt` until it has a result: at once, and whenever something arrived.
    fn wait_until(
        &self,
        tag: &Tag,
        wait: &Wait<'_>,
        mut attempt: impl FnMut(&mut Inbox) -> Option<Result<(), TransportError>>,
    ) -> Result<(), TransportError> {
        let mut inbox = self.lock();
        if let Some(result) = attempt(&mut inbox) {
            return result;
        }
        let start = Instant::now();
        let mut judged = None;
        let mut noted = false;
        loop {
            if let Some(result) = attempt(&mut inbox) {
                return result;
            }
            if judged != Some(inbox.version) {
                judged = Some(inbox.version);
                let unmatched = inbox.unmatched();
                if !unmatched.is_empty() {
                    drop(inbox);
                    if let Some(explanation) = unmatched.iter().find_map(wait.judge) {
                        return Err(TransportError::Mismatch { explanation });
                    }
                    inbox = self.lock();
                    continue;
                }
            }
            let waited = start.elapsed();
            let left = wait.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TransportError::Timeout { peer: self.index, waited });
            }
            if waited >= GRACE && !noted {
                noted = true;
                drop(inbox);
                self.write(Kind::Note, *tag, &[], wait.deadline)?;
                inbox = self.lock();
                continue;
            }
            let pause = if noted { left } else { left.min(GRACE.saturating_sub(waited)) };
            inbox = self.changed.wait_timeout(inbox, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn write(&self, kind: Kind, tag: Tag, data: &[IoSlice<'_>], deadline: Instant) -> Result<(), TransportError> {
        let len = data.iter().map(|slice| slice.len()).sum::<usize>() as u64;
        let header = Header { kind, len, tag }.to_bytes();
        let mut slices = Vec::with_capacity(1 + data.len());
        slices.push(IoSlice::new(&header));
        slices.extend(data.iter().filter(|slice| !slice.is_empty()).copied());
        let mut rest = &mut slices[..];
        let start = Instant::now();
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.torn {
            return Err(self.reason_or("the connection is closed"));
        }
        while !rest.is_empty() {
            let batch = rest.len().min(MAX_SLICES);
            let error = match writer.stream.write_vectored(&rest[..batch]) {
                Ok(written) => {
                    writer.torn = true;
                    IoSlice::advance_slices(&mut rest, written);
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    if let Some(error) = self.lock().broken.clone() {
                        return Err(error);
                    }
                    if Instant::now() >= deadline {
                        return Err(TransportError::Timeout { peer: self.index, waited: start.elapsed() });
                    }
                }
                _ => {
                    writer.torn = true;
                    return Err(self.reason_or(&error.to_string()));
                }
            }
        }
        writer.torn = false;
        Ok(())
    }

    /// Why the connection broke: what the reader finds in the peer's last words, else `reason`.
    fn reason_or(&self, reason: &str) -> TransportError {
        let waiting = |inbox: &mut Inbox| inbox.broken.is_none() && !inbox.reader_gone;
        let found = self.changed.wait_timeout_while(self.lock(), WRITE_TICK, waiting);
        let lost = || TransportError::Lost { peer: self.index, reason: reason.to_owned() };
        found.unwrap_or_else(PoisonError::into_inner).0.broken.clone().unwrap_or_else(lost)
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wrong_size(&self, len: u64, expected: usize) -> TransportError {
        let problem = format!("{len} bytes where {expected} were expected");
        TransportError::Protocol { peer: self.index, problem }
    }

    /// Takes in what the peer sends until the connection ends.
    pub fn read_all(&self) -> Ending {
        let mut reader = BufReader::with_capacity(EAGER_LIMIT, &self.stream);
        let mut said_bye = false;
        let ending = loop {
            match self.read_frame(&mut reader) {
                Ok(Word::Message) => {}
                Ok(Word::Bye) => said_bye = true,
                Ok(Word::Abort(reason)) => break Ending::Aborted(reason),
                Err(ReadError::Malformed(error)) => {
                    self.fail(error);
                    break Ending::Broken;
                }
                Err(ReadError::Io(_)) if said_bye => {
                    self.fail(TransportError::Left { peer: self.index });
                    break Ending::Broken;
                }
                Err(ReadError::Io(error)) => {
                    let reason = match error.kind() {
                        io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
                        _ => error.to_string(),
                    };
                    self.fail(TransportError::Lost { peer: self.index, reason });
                    break Ending::Broken;
                }
            }
        };
        self.lock().reader_gone = true;
        self.changed.notify_all();
        ending
    }

    fn read_frame(&self, reader: &mut BufReader<&TcpStream>) -> Result<Word, ReadError> {
        let malformed = |problem: String| TransportError::Protocol { peer: self.index, problem };
        let mut bytes = [0; HEADER_LEN];
        reader.read_exact(&mut bytes)?;
        let header = Header::from_bytes(&bytes).ok_or_else(|| malformed("not a frame header".to_owned()))?;
        if header.len > 0 && matches!(header.kind, Kind::Ready | Kind::Note | Kind::Bye) {
            return Err(malformed(format!("{:?} with {} bytes", header.kind, header.len)).into());
        }
        match header.kind {
            Kind::Data => self.read_message(reader, &header)?,
            Kind::Ready => {
                let mut inbox = self.lock();
                inbox.ready.insert(header.tag);
                inbox.version += 1;
                if inbox.ready.len() > EARLY_LIMIT / EARLY_OVERHEAD {
                    return Err(malformed("too many buffers posted".to_owned()).into());
                }
                drop(inbox);
                self.changed.notify_all();
            }
            Kind::Note => {
                let mut inbox = self.lock();
                if inbox.notes.len() == NOTES_KEPT {
                    inbox.notes.pop_front();
                }
                inbox.notes.push_back(header.tag);
                inbox.version += 1;
                drop(inbox);
                self.changed.notify_all();
            }
            Kind::Abort => {
                let mut reason = vec![0; header.len.min(MAX_REASON as u64) as usize];
                reader.read_exact(&mut reason)?;
                return Ok(Word::Abort(String::from_utf8_lossy(&reason).into_owned()));
            }
            Kind::Bye => return Ok(Word::Bye),
        }
        Ok(Word::Message)
    }

    fn read_message(&self, reader: &mut BufReader<&TcpStream>, header: &Header) -> Result<(), ReadError> {
        let segments = {
            let mut inbox = self.lock();
            match inbox.posted.get_mut(&header.tag) {
                Some(posted @ Posted::Empty(_)) => match std::mem::replace(posted, Posted::Filling) {
                    Posted::Empty(segments) => Some(segments),
                    _ => None,
                },
                Some(_) => {
                    let problem = "the same message twice".to_owned();
                    return Err(TransportError::Protocol { peer: self.index, problem }.into());
                }
                None => None,
            }
        };
        if let Some(segments) = segments {
            let expected: usize = segments.iter().map(Segment::len).sum();
            if header.len != expected as u64 {
                return Err(self.wrong_size(header.len, expected).into());
            }
            for segment in segments {
                // SAFETY: posted as valid and untouched until completed; that waits while the state is `Filling`.
                reader.read_exact(unsafe { segment.bytes_mut() })?;
            }
            self.lock().posted.insert(header.tag, Posted::Full);
        } else {
            self.read_early(reader, header)?;
        }
        self.changed.notify_all();
        Ok(())
    }

    fn read_early(&self, reader: &mut BufReader<&TcpStream>, header: &Header) -> Result<(), ReadError> {
        let malformed = |problem: String| TransportError::Protocol { peer: self.index, problem };
        let len = usize::try_from(header.len).unwrap_or(usize::MAX);
        if len > EAGER_LIMIT {
            return Err(malformed(format!("{len} bytes that nobody has asked for")).into());
        }
        let mut message = vec![0; len];
        reader.read_exact(&mut message)?;
        let mut inbox = self.lock();
        match inbox.posted.get(&header.tag) {
            Some(Posted::Empty(segments)) => {
                let expected: usize = segments.iter().map(Segment::len).sum();
                if len != expected {
                    return Err(self.wrong_size(header.len, expected).into());
                }
                // SAFETY: posted as valid and untouched until completed, which needs the lock that we hold.
                unsafe { scatter(&message, segments) };
                inbox.posted.insert(header.tag, Posted::Full);
            }
            Some(_) => return Err(malformed("the same message twice".to_owned()).into()),
            None => {
                inbox.early_bytes += len + EARLY_OVERHEAD;
                inbox.version += 1;
                if inbox.early_bytes > EARLY_LIMIT || inbox.early.insert(header.tag, message).is_some() {
                    return Err(malformed("more messages than anyone has asked for".to_owned()).into());
                }
            }
        }
        Ok(())
    }
}

/// What a frame was about.
enum Word {
    Message,
    Abort(String),
    Bye,
}

enum ReadError {
    Io(io::Error),
    Malformed(TransportError),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}

impl From<TransportError> for ReadError {
    fn from(error: TransportError) -> ReadError {
        ReadError::Malformed(error)
    }
}

/// Copies a message into its segments.
///
/// # Safety
/// The segments are valid, nothing else touches them, and they hold as many bytes as the message.
unsafe fn scatter(mut message: &[u8], segments: &[Segment]) {
    for segment in segments {
        let (head, tail) = message.split_at(segment.len());
        // SAFETY: by the contract of this function.
        unsafe { segment.bytes_mut() }.copy_from_slice(head);
        message = tail;
    }
}
