//! Which message belongs to which buffer.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;

use crate::transport::{EAGER_LIMIT, Segment, Tag, shm};

use super::{MAX_REASON, Source, wrong_size};
use crate::transport::mesh::frame::{Header, Kind};

/// A peer may be this far ahead of us, in bytes of small messages that we have not asked for yet. The collectives keep
/// far below: a device cannot come to its next call before all it sends to have come to this one.
const EARLY_LIMIT: usize = 64 << 20;

/// What an early message counts for beyond its bytes.
const EARLY_OVERHEAD: usize = 256;

/// Buffers of early messages that are kept for the next ones.
const SPARE_BUFFERS: usize = 8;

/// Word of waits is kept for this many messages.
const NOTES_KEPT: usize = 1024;

/// A message of which the header has come.
pub(super) enum Incoming {
    Posted { tag: Tag, segments: Vec<Segment>, index: usize, offset: usize },
    Early { tag: Tag, bytes: Vec<u8>, filled: usize },
    Lent { tag: Tag, bytes: Vec<u8>, filled: usize },
    Reason { bytes: Vec<u8>, filled: usize },
    Unwanted { left: usize },
}

#[derive(Default)]
pub(super) struct Matching {
    pub posted: HashMap<Tag, Posted, foldhash::fast::FixedState>,
    pub early: HashMap<Tag, Vec<u8>, foldhash::fast::FixedState>,
    pub early_bytes: usize,
    /// Where lent messages lie that were not asked for yet.
    pub lent: HashMap<Tag, Vec<shm::Run>, foldhash::fast::FixedState>,
    /// Messages of ours that the peer has read.
    pub taken: HashSet<Tag, foldhash::fast::FixedState>,
    pub spare: Vec<Vec<u8>>,
    pub ready: HashSet<Tag, foldhash::fast::FixedState>,
    pub notes: VecDeque<Tag>,
    /// Frames that have come.
    pub frames: u64,
    /// Up to which of the peer's frames all have come, and those of later ones that have.
    pub complete: u64,
    pub ahead: BTreeMap<u64, Tag>,
    /// Grows with every unmatched arrival.
    pub version: u64,
    pub said_bye: bool,
    pub aborted: Option<String>,
}

pub(super) enum Posted {
    Empty(Vec<Segment>),
    Filling,
    Full,
}

impl Incoming {
    /// Takes in what there is; whether the message is whole.
    pub fn fill(&mut self, source: &mut impl Source) -> io::Result<bool> {
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
    pub fn begin(&mut self, header: &Header) -> Result<Option<Incoming>, String> {
        let Header { kind, len, tag, .. } = *header;
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

    pub fn finish(&mut self, incoming: Incoming) -> Result<(), String> {
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

    /// Takes note of a frame that has come, maybe before others that the peer sent earlier.
    pub fn note_order(&mut self, order: u64, tag: Tag) -> Result<(), String> {
        if self.ahead.is_empty() && order == self.complete + 1 {
            self.complete = order;
            return Ok(());
        }
        self.ahead.insert(order, tag);
        while self.ahead.remove(&(self.complete + 1)).is_some() {
            self.complete += 1;
            self.version += 1;
        }
        if self.ahead.len() > EARLY_LIMIT / EARLY_OVERHEAD {
            return Err("too many frames that overtake others".to_owned());
        }
        Ok(())
    }

    pub fn take_early(&mut self, tag: &Tag) -> Option<Vec<u8>> {
        let message = self.early.remove(tag)?;
        self.early_bytes -= message.len() + EARLY_OVERHEAD;
        Some(message)
    }

    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS {
            self.spare.push(buffer);
        }
    }
}

/// What a lent message counts for until it is asked for.
pub(super) fn lent_size(runs: &[shm::Run]) -> usize {
    runs.len() * shm::RUN_LEN + EARLY_OVERHEAD
}

pub(super) fn total(segments: &[Segment]) -> usize {
    segments.iter().map(Segment::len).sum()
}

/// Copies a message into its segments.
///
/// # Safety
/// The segments are valid, nothing else touches them, and they hold as many bytes as the message.
pub(super) unsafe fn scatter(mut message: &[u8], segments: &[Segment]) {
    for segment in segments {
        let (head, tail) = message.split_at(segment.len());
        // SAFETY: by the contract of this function.
        unsafe { segment.bytes_mut() }.copy_from_slice(head);
        message = tail;
    }
}
