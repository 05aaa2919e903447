//! What has come from one peer, and what is wanted from it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;

use crate::bulk_copy;
use crate::transport::{EAGER_LIMIT, Segment, Tag, TransportError, shm};

use super::frame::{HEADER_LEN, Header, Kind};
use super::stream::StreamReader;

/// A peer may be this far ahead of us, in bytes of small messages that we have not asked for yet. The collectives keep
/// far below: a device cannot come to its next call before all it sends to have come to this one.
const EARLY_LIMIT: usize = 64 << 20;

/// What an early message counts for beyond its bytes.
const EARLY_OVERHEAD: usize = 256;

/// Buffers of early messages that are kept for the next ones.
const SPARE_BUFFERS: usize = 8;

/// Word of waits is kept for this many messages.
const NOTES_KEPT: usize = 1024;

pub(in crate::transport) const MAX_REASON: usize = 4096;

/// Where a peer's bytes come from.
pub(in crate::transport) trait Source {
    /// The bytes that have arrived and were not consumed; looks for more if these are fewer than `wanted`. Does not
    /// wait. Fails once no more can come.
    fn available(&mut self, wanted: usize) -> io::Result<&[u8]>;

    /// Gives up `count` of the available bytes.
    fn consume(&mut self, count: usize);

    /// Takes bytes to where they belong, as many as have arrived; past the caches if that `is_large`.
    fn read(&mut self, into: &mut [u8], is_large: bool) -> io::Result<usize>;
}

impl Source for shm::Reader {
    fn available(&mut self, _wanted: usize) -> io::Result<&[u8]> {
        shm::Reader::available(self)
    }

    fn consume(&mut self, count: usize) {
        shm::Reader::consume(self, count);
    }

    fn read(&mut self, into: &mut [u8], is_large: bool) -> io::Result<usize> {
        let available = shm::Reader::available(self)?;
        let count = available.len().min(into.len());
        bulk_copy::copy(&mut into[..count], &available[..count], is_large);
        self.consume(count);
        Ok(count)
    }
}

/// Everything received from one peer.
pub(in crate::transport) struct Inbox<S = StreamReader> {
    peer: u32,
    matching: Matching,
    /// The connection: all frames, or only the last ones where there is a ring.
    stream: Frames<S>,
    /// The ring, where the peer shares our memory.
    ring: Option<Frames<shm::Reader>>,
    /// Why nothing can come from this peer, or go there, any more.
    pub broken: Option<TransportError>,
    /// Whether a thread waits for bytes to come, and how many others wait for that one.
    pub watched: bool,
    pub followers: usize,
}

/// A source of frames and the one that is half there.
struct Frames<S> {
    source: S,
    incoming: Option<Incoming>,
}

/// A message of which the header has come.
enum Incoming {
    Posted { tag: Tag, segments: Vec<Segment>, index: usize, offset: usize },
    Early { tag: Tag, bytes: Vec<u8>, filled: usize },
    Lent { tag: Tag, bytes: Vec<u8>, filled: usize },
    Reason { bytes: Vec<u8>, filled: usize },
    Unwanted { left: usize },
}

#[derive(Default)]
struct Matching {
    posted: HashMap<Tag, Posted, foldhash::fast::FixedState>,
    early: HashMap<Tag, Vec<u8>, foldhash::fast::FixedState>,
    early_bytes: usize,
    /// Where lent messages lie that were not asked for yet.
    lent: HashMap<Tag, Vec<shm::Run>, foldhash::fast::FixedState>,
    /// Messages of ours that the peer has read.
    taken: HashSet<Tag, foldhash::fast::FixedState>,
    spare: Vec<Vec<u8>>,
    ready: HashSet<Tag, foldhash::fast::FixedState>,
    notes: VecDeque<Tag>,
    /// Frames that have come.
    frames: u64,
    /// Grows with every unmatched arrival.
    version: u64,
    said_bye: bool,
    aborted: Option<String>,
}

enum Posted {
    Empty(Vec<Segment>),
    Filling,
    Full,
}

enum ReadError {
    Io(io::Error),
    Malformed(String),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}

impl<S: Source> Inbox<S> {
    pub fn new(peer: u32, stream: S, ring: Option<shm::Reader>) -> Inbox<S> {
        Inbox {
            peer,
            matching: Matching::default(),
            stream: Frames { source: stream, incoming: None },
            ring: ring.map(|source| Frames { source, incoming: None }),
            broken: None,
            watched: false,
            followers: 0,
        }
    }

    /// Where bytes come from without a ring.
    #[cfg(feature = "mpi")]
    pub fn source(&mut self) -> &mut S {
        &mut self.stream.source
    }

    /// Takes in what has come so far. With a ring, the connection is left to [`Inbox::receive_last_words`].
    pub fn receive(&mut self) {
        let outcome = match &mut self.ring {
            Some(ring) => ring.receive(&mut self.matching),
            None if self.broken.is_some() => return,
            None => self.stream.receive(&mut self.matching),
        };
        self.note_end(outcome);
    }

    /// Takes in everything that is left when the peer has hung up. Gives its reason if it aborted the job.
    pub fn receive_last_words(&mut self) -> Option<String> {
        self.receive();
        let outcome = self.stream.receive(&mut self.matching);
        self.note_end(outcome);
        self.matching.aborted.clone()
    }

    fn note_end(&mut self, outcome: Result<(), ReadError>) {
        let peer = self.peer;
        let error = match (outcome, &self.matching.aborted) {
            (_, Some(reason)) => TransportError::AbortedByPeer { peer, reason: reason.clone() },
            (Ok(()), None) => return,
            (Err(ReadError::Malformed(problem)), _) => TransportError::Protocol { peer, problem },
            (Err(ReadError::Io(_)), _) if self.matching.said_bye => TransportError::Left { peer },
            (Err(ReadError::Io(error)), _) => TransportError::Lost { peer, reason: error.to_string() },
        };
        self.broken.get_or_insert(error);
    }

    /// Registers the memory for a message; takes the message from the early ones if it has come.
    ///
    /// # Safety
    /// The segments are valid for writes and not touched until [`Inbox::settle`] has been called.
    pub unsafe fn post(&mut self, tag: Tag, into: Vec<Segment>) -> Result<(), TransportError> {
        if self.matching.posted.contains_key(&tag) {
            return Err(TransportError::Misuse(format!("message {tag:?} was posted twice")));
        }
        if let Some(message) = self.matching.take_early(&tag) {
            let expected = total(&into);
            if message.len() != expected {
                return Err(self.wrong_size(message.len(), expected));
            }
            // SAFETY: by the contract of this function.
            unsafe { scatter(&message, &into) };
            self.matching.recycle(message);
            self.matching.posted.insert(tag, Posted::Full);
            return Ok(());
        }
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        self.matching.posted.insert(tag, Posted::Empty(into));
        Ok(())
    }

    /// Whether a posted message is there.
    pub fn completed(&self, tag: &Tag) -> Option<Result<(), TransportError>> {
        match self.matching.posted.get(tag) {
            Some(Posted::Full) => Some(Ok(())),
            None => Some(Err(TransportError::Misuse(format!("message {tag:?} was not posted")))),
            _ => self.broken.clone().map(Err),
        }
    }

    /// Where a posted message lies in the peer's memory, if the peer has lent it, and what it goes to. The memory for it stays
    /// posted, to be settled once it is read.
    #[allow(clippy::type_complexity, reason = "a list of sources and one of targets")]
    pub fn take_lent(&mut self, tag: &Tag) -> Option<Result<(Vec<shm::Run>, Vec<Segment>), TransportError>> {
        let posted = self.matching.posted.get_mut(tag).filter(|posted| matches!(posted, Posted::Empty(_)))?;
        let runs = self.matching.lent.remove(tag)?;
        let Posted::Empty(segments) = std::mem::replace(posted, Posted::Filling) else { return None };
        self.matching.early_bytes -= lent_size(&runs);
        let (len, expected) = (runs.iter().fold(0, |len: u64, run| len.saturating_add(run.len)), total(&segments));
        if len == expected as u64 {
            return Some(Ok((runs, segments)));
        }
        Some(Err(TransportError::Protocol { peer: self.peer, problem: wrong_size(len, expected) }))
    }

    /// Whether the peer has read a lent message; once.
    pub fn take_taken(&mut self, tag: &Tag) -> Option<Result<(), TransportError>> {
        if self.matching.taken.remove(tag) { Some(Ok(())) } else { self.broken.clone().map(Err) }
    }

    /// Forgets a posted receive; nothing writes to its memory any more.
    pub fn settle(&mut self, tag: &Tag) {
        self.matching.posted.remove(tag);
        let ring = self.ring.as_mut().map(|ring| &mut ring.incoming);
        for incoming in [Some(&mut self.stream.incoming), ring].into_iter().flatten() {
            if let Some(Incoming::Posted { tag: coming, segments, index, offset }) = incoming
                && coming == tag
            {
                *incoming = Some(Incoming::Unwanted { left: total(&segments[*index..]) - *offset });
            }
        }
    }

    /// Whether the receiver of a large message has asked for it; once.
    pub fn take_ready(&mut self, tag: &Tag) -> Option<Result<(), TransportError>> {
        if self.matching.ready.remove(tag) { Some(Ok(())) } else { self.broken.clone().map(Err) }
    }

    /// Hands over a small message that was not posted, if it has come.
    pub fn take(&mut self, tag: &Tag, len: usize, with: &mut dyn FnMut(&[u8])) -> Option<Result<(), TransportError>> {
        match self.ring.as_mut().map(|ring| ring.take(tag, len, with, &mut self.matching)) {
            Some(Ok(true)) => return Some(Ok(())),
            Some(Ok(false)) => {}
            Some(Err(error)) => self.note_end(Err(error)),
            None => self.receive(),
        }
        let Some(message) = self.matching.take_early(tag) else { return self.broken.clone().map(Err) };
        if message.len() != len {
            return Some(Err(self.wrong_size(message.len(), len)));
        }
        with(&message);
        self.matching.recycle(message);
        Some(Ok(()))
    }

    /// Whether a small message that was not posted has come, or never can.
    pub fn has(&mut self, tag: &Tag) -> bool {
        if let Some(ring) = &mut self.ring
            && ring.incoming.is_none()
            && ring.source.available().is_ok_and(|bytes| header_of(bytes).is_some_and(|header| header.tag == *tag))
        {
            return true;
        }
        self.receive();
        self.matching.early.contains_key(tag) || self.broken.is_some()
    }

    /// What came and was not asked for, if that has changed since `version`.
    pub fn unmatched(&self, version: &mut Option<u64>) -> Vec<Tag> {
        if version.replace(self.matching.version) == Some(self.matching.version) {
            return Vec::new();
        }
        let Matching { early, lent, ready, notes, .. } = &self.matching;
        early.keys().chain(lent.keys()).chain(ready).chain(notes).copied().collect()
    }

    /// How many frames have been taken in.
    pub fn frames(&self) -> u64 {
        self.matching.frames
    }

    /// The ring that the peer's frames come through.
    pub fn ring(&self) -> Option<&shm::Segment> {
        self.ring.as_ref().map(|ring| ring.source.segment())
    }

    fn wrong_size(&self, len: usize, expected: usize) -> TransportError {
        TransportError::Protocol { peer: self.peer, problem: wrong_size(len as u64, expected) }
    }
}

fn wrong_size(len: u64, expected: usize) -> String {
    format!("{len} bytes where {expected} were expected")
}

fn header_of(bytes: &[u8]) -> Option<Header> {
    Header::from_bytes(bytes.first_chunk::<HEADER_LEN>()?)
}

impl Frames<shm::Reader> {
    /// Takes in what has come, up to the wanted message: hands that over where it lies. Whether it was there.
    fn take(
        &mut self,
        tag: &Tag,
        len: usize,
        with: &mut dyn FnMut(&[u8]),
        matching: &mut Matching,
    ) -> Result<bool, ReadError> {
        let wanted = Header { kind: Kind::Data, len: len as u64, tag: *tag };
        loop {
            let bytes = self.source.available()?;
            if self.incoming.is_none()
                && header_of(bytes) == Some(wanted)
                && let Some(message) = bytes.get(HEADER_LEN..HEADER_LEN + len)
            {
                with(message);
                self.source.consume(HEADER_LEN + len);
                return Ok(true);
            }
            if !self.receive_one(matching)? {
                return Ok(false);
            }
        }
    }
}

impl<S: Source> Frames<S> {
    fn receive(&mut self, matching: &mut Matching) -> Result<(), ReadError> {
        while self.receive_one(matching)? {}
        Ok(())
    }

    /// Takes in a frame, or the rest of one; `false` if not all of it has come.
    fn receive_one(&mut self, matching: &mut Matching) -> Result<bool, ReadError> {
        if self.incoming.is_none() {
            let available = self.source.available(HEADER_LEN)?;
            let Some(bytes) = available.first_chunk::<HEADER_LEN>() else { return Ok(false) };
            let header = Header::from_bytes(bytes);
            let header = header.ok_or_else(|| ReadError::Malformed("not a frame header".to_owned()))?;
            self.incoming = matching.begin(&header).map_err(ReadError::Malformed)?;
            self.source.consume(HEADER_LEN);
        }
        if let Some(incoming) = &mut self.incoming
            && !incoming.fill(&mut self.source)?
        {
            return Ok(false);
        }
        matching.frames += 1;
        if let Some(incoming) = self.incoming.take() {
            matching.finish(incoming).map_err(ReadError::Malformed)?;
        }
        Ok(true)
    }
}

impl Incoming {
    /// Takes in what there is; whether the message is whole.
    fn fill(&mut self, source: &mut impl Source) -> io::Result<bool> {
        loop {
            let count = match self {
                Incoming::Posted { segments, index, offset, .. } => {
                    let Some(segment) = segments.get(*index) else { return Ok(true) };
                    if *offset == segment.len() {
                        (*index, *offset) = (*index + 1, 0);
                        continue;
                    }
                    // SAFETY: posted as valid and untouched until settled, which changes this state.
                    let count = source.read(&mut unsafe { segment.bytes_mut() }[*offset..], segment.is_large())?;
                    *offset += count;
                    count
                }
                Incoming::Early { bytes, filled, .. }
                | Incoming::Lent { bytes, filled, .. }
                | Incoming::Reason { bytes, filled } => {
                    if *filled == bytes.len() {
                        return Ok(true);
                    }
                    let count = source.read(&mut bytes[*filled..], false)?;
                    *filled += count;
                    count
                }
                Incoming::Unwanted { left } => {
                    if *left == 0 {
                        return Ok(true);
                    }
                    let count = source.available(1)?.len().min(*left);
                    source.consume(count);
                    *left -= count;
                    count
                }
            };
            if count == 0 {
                return Ok(false);
            }
        }
    }
}

impl Matching {
    /// Takes note of a frame's header; where the bytes that follow go.
    fn begin(&mut self, header: &Header) -> Result<Option<Incoming>, String> {
        let Header { kind, len, tag } = *header;
        if len > 0 && matches!(kind, Kind::Ready | Kind::Note | Kind::Bye | Kind::Taken) {
            return Err(format!("{kind:?} with {len} bytes"));
        }
        match kind {
            Kind::Data => return self.begin_message(tag, len).map(Some),
            Kind::Ready => {
                self.ready.insert(tag);
                self.version += 1;
                if self.ready.len() > EARLY_LIMIT / EARLY_OVERHEAD {
                    return Err("too many buffers posted".to_owned());
                }
            }
            Kind::Note => {
                if self.notes.len() == NOTES_KEPT {
                    self.notes.pop_front();
                }
                self.notes.push_back(tag);
                self.version += 1;
            }
            Kind::Abort => {
                let bytes = vec![0; len.min(MAX_REASON as u64) as usize];
                return Ok(Some(Incoming::Reason { bytes, filled: 0 }));
            }
            Kind::Bye => self.said_bye = true,
            Kind::Lend if self.posted.get(&tag).is_some_and(|posted| !matches!(posted, Posted::Empty(_))) => {
                return Err("the same message twice".to_owned());
            }
            Kind::Lend => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                if len > EARLY_LIMIT || !len.is_multiple_of(shm::RUN_LEN) {
                    return Err(format!("a message lent in {len} bytes"));
                }
                return Ok(Some(Incoming::Lent { tag, bytes: vec![0; len], filled: 0 }));
            }
            Kind::Taken => {
                self.taken.insert(tag);
                if self.taken.len() > EARLY_LIMIT / EARLY_OVERHEAD {
                    return Err("more messages taken than were lent".to_owned());
                }
            }
        }
        Ok(None)
    }

    fn begin_message(&mut self, tag: Tag, len: u64) -> Result<Incoming, String> {
        match self.posted.get_mut(&tag) {
            Some(posted @ Posted::Empty(_)) => {
                let Posted::Empty(segments) = std::mem::replace(posted, Posted::Filling) else {
                    return Err("a message out of nowhere".to_owned());
                };
                let expected = total(&segments);
                if len != expected as u64 {
                    return Err(wrong_size(len, expected));
                }
                Ok(Incoming::Posted { tag, segments, index: 0, offset: 0 })
            }
            Some(_) => Err("the same message twice".to_owned()),
            None => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                if len > EAGER_LIMIT {
                    return Err(format!("{len} bytes that nobody has asked for"));
                }
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.resize(len, 0);
                Ok(Incoming::Early { tag, bytes, filled: 0 })
            }
        }
    }

    fn finish(&mut self, incoming: Incoming) -> Result<(), String> {
        match incoming {
            Incoming::Posted { tag, .. } => {
                self.posted.insert(tag, Posted::Full);
            }
            Incoming::Early { tag, bytes, .. } => match self.posted.get(&tag) {
                Some(Posted::Empty(segments)) => {
                    let expected = total(segments);
                    if bytes.len() != expected {
                        return Err(wrong_size(bytes.len() as u64, expected));
                    }
                    // SAFETY: posted as valid and untouched until settled, which removes this entry.
                    unsafe { scatter(&bytes, segments) };
                    self.posted.insert(tag, Posted::Full);
                    self.recycle(bytes);
                }
                Some(_) => return Err("the same message twice".to_owned()),
                None => {
                    self.early_bytes += bytes.len() + EARLY_OVERHEAD;
                    self.version += 1;
                    if self.early_bytes > EARLY_LIMIT || self.early.insert(tag, bytes).is_some() {
                        return Err("more messages than anyone has asked for".to_owned());
                    }
                }
            },
            Incoming::Lent { tag, bytes, .. } => {
                let runs: Vec<shm::Run> = bytes.as_chunks().0.iter().map(shm::Run::from_bytes).collect();
                self.early_bytes += lent_size(&runs);
                self.version += 1;
                if self.early_bytes > EARLY_LIMIT || self.lent.insert(tag, runs).is_some() {
                    return Err("more messages than anyone has asked for".to_owned());
                }
            }
            Incoming::Reason { bytes, .. } => self.aborted = Some(String::from_utf8_lossy(&bytes).into_owned()),
            Incoming::Unwanted { .. } => {}
        }
        Ok(())
    }

    fn take_early(&mut self, tag: &Tag) -> Option<Vec<u8>> {
        let message = self.early.remove(tag)?;
        self.early_bytes -= message.len() + EARLY_OVERHEAD;
        Some(message)
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS {
            self.spare.push(buffer);
        }
    }
}

/// What a lent message counts for until it is asked for.
fn lent_size(runs: &[shm::Run]) -> usize {
    runs.len() * shm::RUN_LEN + EARLY_OVERHEAD
}

fn total(segments: &[Segment]) -> usize {
    segments.iter().map(Segment::len).sum()
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
