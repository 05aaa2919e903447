//! Messages and frames.
//!
//! A frame is two little-endian `u32` lengths, a header of the first length and a body of the second. The header is
//! postcard's encoding of a call number and a message; the body is raw bytes, so that large values are never copied
//! into a message. Lengths are checked against limits before anything is allocated, and memory grows only as bytes
//! arrive.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Heartbeat;
use super::progress::Progress;
use super::report::{Abort, Missing};

/// The version of handshake, messages and frames together.
pub const PROTOCOL: u16 = 3;
/// The most bytes a frame's body may have.
pub const MAX_BODY: usize = 1 << 30;
/// The most bytes a key or a name may have.
pub const MAX_NAME: usize = 1024;
/// The limits for a process that has joined.
pub const LIMITS: Limits = Limits { header: 1 << 20, body: MAX_BODY };
/// The limits for a peer that has proved its token but not joined.
pub const JOIN_LIMITS: Limits = Limits { header: 4096, body: 0 };

const LENGTHS: usize = 8;

/// A frame's body. Shared, because one value is often sent to many.
pub type Body = Arc<Vec<u8>>;

/// What a process asks. Each but `Heartbeat` is answered under its call number. A connection begins with `Join`, or with
/// `Status` from someone who only looks.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    Join(Join),
    /// Answered with the job's status as the body, after which the connection ends.
    Status,
    Heartbeat(Progress),
    /// The body is the value.
    Put {
        key: String,
    },
    Get {
        key: String,
        timeout: Duration,
    },
    TryGet {
        key: String,
    },
    Barrier {
        name: String,
        timeout: Duration,
    },
    /// The body is this process's contribution.
    AllGather {
        name: String,
        timeout: Duration,
    },
    Abort {
        reason: String,
    },
    Goodbye {
        timeout: Duration,
    },
    /// What the coordinator's clock says.
    Clock,
    /// The body is for process 0 to read in the end. It is taken also when the job has been stopped.
    Bequeath,
}

/// The first message of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Join {
    pub version: String,
    pub process_index: u32,
    pub process_count: u32,
    pub host: String,
    pub slice: u32,
    pub timeout: Duration,
}

/// What the coordinator says. `Heartbeat` and `Abort` come unasked, under call number 0.
#[derive(Debug, Serialize, Deserialize)]
pub enum Response {
    /// All have joined. The body is the hosts' names by process, encoded.
    Welcome,
    /// This process may not join.
    Refused(String),
    /// This process may join, and waits for the others.
    Accepted(Heartbeat),
    Heartbeat,
    Done,
    /// The body is the value.
    Value,
    Absent,
    /// The body is all contributions, see [`join_contributions`].
    Gathered,
    TimedOut(Missing),
    KeyMissing,
    Rejected(String),
    Abort(Abort),
    /// Nanoseconds of [`trace::now`](crate::trace::now).
    Clock(u64),
}

/// A message with its call number and body.
#[derive(Debug)]
pub struct Frame<M> {
    pub call: u64,
    pub message: M,
    pub body: Body,
}

impl<M: Serialize> Frame<M> {
    pub fn new(call: u64, message: M) -> Self {
        Self { call, message, body: Body::default() }
    }

    pub fn with_body(call: u64, message: M, body: Body) -> Self {
        Self { call, message, body }
    }

    /// The bytes that go before the body.
    pub fn head(&self) -> Result<Vec<u8>, WireError> {
        encode_head(self.call, &self.message, self.body.len())
    }
}

/// The bytes of a frame that go before its body.
pub fn encode_head<M: Serialize>(call: u64, message: &M, body: usize) -> Result<Vec<u8>, WireError> {
    let mut bytes = postcard::to_extend(&(call, message), vec![0; LENGTHS]).map_err(WireError::Encode)?;
    let header = bytes.len() - LENGTHS;
    LIMITS.check(header, body)?;
    bytes[..4].copy_from_slice(&(header as u32).to_le_bytes());
    bytes[4..LENGTHS].copy_from_slice(&(body as u32).to_le_bytes());
    Ok(bytes)
}

/// The bytes that say how long a contribution to an all-gather is.
pub const CONTRIBUTION_LENGTH: usize = size_of::<u64>();

/// All contributions to an all-gather in one: each after its length, a little-endian `u64`.
pub fn join_contributions<'a>(contributions: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
    let size = contributions.clone().map(|contribution| CONTRIBUTION_LENGTH + contribution.len()).sum();
    let mut all = Vec::with_capacity(size);
    for contribution in contributions {
        all.extend_from_slice(&(contribution.len() as u64).to_le_bytes());
        all.extend_from_slice(contribution);
    }
    all
}

/// What [`join_contributions`] has joined; `None` for other bytes.
pub fn split_contributions(mut all: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut contributions = Vec::new();
    while let Some((length, rest)) = all.split_first_chunk::<CONTRIBUTION_LENGTH>() {
        let (contribution, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        contributions.push(contribution.to_vec());
        all = rest;
    }
    all.is_empty().then_some(contributions)
}

/// The most bytes a reader accepts in one frame.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub header: usize,
    pub body: usize,
}

impl Limits {
    fn check(&self, header: usize, body: usize) -> Result<(), WireError> {
        if header > self.header {
            return Err(WireError::TooLong { what: "header", length: header, limit: self.header });
        }
        if body > self.body {
            return Err(WireError::TooLong { what: "body", length: body, limit: self.body });
        }
        Ok(())
    }
}

/// Bytes that are no frame.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("a message's {what} of {length} bytes exceeds the limit of {limit}")]
    TooLong { what: &'static str, length: usize, limit: usize },
    #[error("a message cannot be read: {0}")]
    Decode(postcard::Error),
    #[error("a message cannot be written: {0}")]
    Encode(postcard::Error),
}

/// Cuts a stream of bytes into frames.
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    pub limits: Limits,
}

impl Decoder {
    pub fn new(limits: Limits) -> Self {
        Self { bytes: Vec::new(), limits }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, when all its bytes are there. After an error the stream is of no further use.
    pub fn next<M: DeserializeOwned>(&mut self) -> Result<Option<Frame<M>>, WireError> {
        let Some(lengths) = self.bytes.first_chunk::<LENGTHS>() else { return Ok(None) };
        let [h0, h1, h2, h3, b0, b1, b2, b3] = *lengths;
        let header = u32::from_le_bytes([h0, h1, h2, h3]) as usize;
        let body = u32::from_le_bytes([b0, b1, b2, b3]) as usize;
        self.limits.check(header, body)?;
        let Some(head) = self.bytes.get(LENGTHS..LENGTHS + header) else { return Ok(None) };
        if self.bytes.len() < LENGTHS + header + body {
            return Ok(None);
        }
        let (call, message) = postcard::from_bytes(head).map_err(WireError::Decode)?;
        let rest = self.bytes.split_off(LENGTHS + header + body);
        let body = if body == 0 { Body::default() } else { Arc::new(self.bytes.split_off(LENGTHS + header)) };
        self.bytes = rest;
        Ok(Some(Frame { call, message, body }))
    }
}

/// See [`take_untrusted`](super::take_untrusted).
pub fn take_untrusted(bytes: &[u8]) {
    for limits in [JOIN_LIMITS, LIMITS] {
        let mut decoder = Decoder::new(limits);
        decoder.push(bytes);
        while let Ok(Some(_)) = decoder.next::<Request>() {}
    }
    let mut decoder = Decoder::new(LIMITS);
    decoder.push(bytes);
    while let Ok(Some(_)) = decoder.next::<Response>() {}
    let _ = split_contributions(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(frame: &Frame<Request>) -> Vec<u8> {
        [frame.head().unwrap(), frame.body.to_vec()].concat()
    }

    #[test]
    fn frames_survive_any_cut() {
        let frames = [
            Frame::with_body(7, Request::Put { key: "k".into() }, Arc::new(vec![1; 1000])),
            Frame::new(8, Request::Heartbeat(Progress::default())),
            Frame::new(9, Request::Get { key: "k".into(), timeout: Duration::MAX }),
        ];
        let bytes = frames.iter().flat_map(encode).collect::<Vec<_>>();
        for step in [1, 3, 100, bytes.len()] {
            let mut decoder = Decoder::new(LIMITS);
            let mut found = Vec::new();
            for chunk in bytes.chunks(step) {
                decoder.push(chunk);
                while let Some(frame) = decoder.next::<Request>().unwrap() {
                    found.push((frame.call, format!("{:?}", frame.message), frame.body.len()));
                }
            }
            let expected = frames.iter().map(|f| (f.call, format!("{:?}", f.message), f.body.len()));
            assert_eq!(found, expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn too_long_frames_are_refused_before_they_come() {
        let mut decoder = Decoder::new(JOIN_LIMITS);
        decoder.push(&[0, 0, 1, 0, 0, 0, 0, 0]);
        insta::assert_snapshot!(decoder.next::<Request>().unwrap_err(), @"a message's header of 65536 bytes exceeds the limit of 4096");
        let mut decoder = Decoder::new(LIMITS);
        decoder.push(&[1, 0, 0, 0, 255, 255, 255, 255]);
        insta::assert_snapshot!(decoder.next::<Request>().unwrap_err(), @"a message's body of 4294967295 bytes exceeds the limit of 1073741824");
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_or_incomplete(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::new(LIMITS);
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next::<Request>() {}
            let header = u32::try_from(bytes.len()).unwrap();
            let mut decoder = Decoder::new(LIMITS);
            decoder.push(&[&header.to_le_bytes()[..], &[0; 4], &bytes].concat());
            while let Ok(Some(_)) = decoder.next::<Response>() {}
        }
    }
}
