//! What has come from one peer, and what is wanted from it.

mod matching;
#[cfg(test)]
mod tests;

use std::io;

use crate::bulk_copy;
use crate::transport::{Segment, Tag, TransportError, shm};

use super::frame::{HEADER_LEN, Header, Kind};
use super::stream::Stream;
use matching::{Incoming, Matching, Posted, lent_size, scatter, total};

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

    /// The peer has said that nothing more comes.
    fn expect_end(&mut self) {}
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
pub(in crate::transport) struct Inbox<S = Stream> {
    peer: u32,
    matching: Matching,
    /// The connection: all frames, or only the last ones where there is a ring. Or the lanes of a link.
    streams: Vec<Frames<S>>,
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
    /// The order and tag of the last header.
    begun: (u64, Tag),
    is_over: bool,
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
    pub fn new(peer: u32, streams: Vec<S>, ring: Option<shm::Reader>) -> Inbox<S> {
        Inbox {
            peer,
            matching: Matching::default(),
            streams: streams.into_iter().map(Frames::new).collect(),
            ring: ring.map(Frames::new),
            broken: None,
            watched: false,
            followers: 0,
        }
    }

    /// Where bytes come from without a ring: one of several sources.
    pub fn source(&mut self, index: usize) -> &mut S {
        &mut self.streams[index].source
    }

    /// Takes in what has come so far. With a ring, the connection is left to [`Inbox::receive_last_words`].
    pub fn receive(&mut self) {
        match &mut self.ring {
            Some(ring) => {
                let outcome = ring.receive(&mut self.matching);
                self.note_end(outcome);
            }
            None if self.broken.is_some() => {}
            None => self.receive_from_streams(),
        }
    }

    fn receive_from_streams(&mut self) {
        for index in 0..self.streams.len() {
            let stream = &mut self.streams[index];
            if !stream.is_over {
                let outcome = stream.receive(&mut self.matching);
                stream.is_over = outcome.is_err();
                self.note_end(outcome);
            }
        }
    }

    /// Takes in everything that is left when the peer has hung up. Gives its reason if it aborted the job.
    pub fn receive_last_words(&mut self) -> Option<String> {
        self.receive();
        self.receive_from_streams();
        self.matching.aborted.clone()
    }

    fn note_end(&mut self, outcome: Result<(), ReadError>) {
        let peer = self.peer;
        let error = match (outcome, &self.matching.aborted) {
            (_, Some(reason)) => TransportError::AbortedByPeer { peer, reason: reason.clone() },
            (Ok(()), None) => return,
            (Err(ReadError::Malformed(problem)), _) => TransportError::Protocol { peer, problem },
            (Err(ReadError::Io(_)), _) if self.matching.said_bye => {
                if self.streams.iter().any(|stream| !stream.is_over) {
                    return;
                }
                TransportError::Left { peer }
            }
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
        let streams = self.streams.iter_mut().map(|stream| &mut stream.incoming);
        for incoming in streams.chain(self.ring.as_mut().map(|ring| &mut ring.incoming)) {
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

    /// What came and was not asked for, if that has changed since `version`, and all that the peer sent before it has come.
    pub fn unmatched(&self, version: &mut Option<u64>) -> Vec<Tag> {
        if version.replace(self.matching.version) == Some(self.matching.version) {
            return Vec::new();
        }
        let Matching { early, lent, ready, notes, ahead, .. } = &self.matching;
        let all = early.keys().chain(lent.keys()).chain(ready).chain(notes);
        all.filter(|tag| !ahead.values().any(|early| early == *tag)).copied().collect()
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
        let wanted = Header { kind: Kind::Data, len: len as u64, tag: *tag, order: 0 };
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
    fn new(source: S) -> Frames<S> {
        Frames { source, incoming: None, begun: (0, Tag([0; 5])), is_over: false }
    }

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
            self.begun = (header.order, header.tag);
            if matches!(header.kind, Kind::Abort | Kind::Bye) {
                self.source.expect_end();
            }
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
        let (order, tag) = self.begun;
        if order > 0 {
            matching.note_order(order, tag).map_err(ReadError::Malformed)?;
        }
        Ok(true)
    }
}
