//! Moves bytes between the processes of a job.
//!
//! A transport carries tagged messages between pairs of processes, in the manner of MPI's point-to-point calls: the
//! receiver posts a buffer for a tag, the sender sends to it, both know the size beforehand. Small messages travel at
//! once, whether or not the buffer is posted yet; large ones wait for it, so that they land where they belong and a
//! process never holds more of its peers' data than it asked for: their sender waits, or lends them to the receiver, which
//! reads them from where they lie. Messages are matched by tag alone, never by arrival.
//!
//! Post every receive of a step before the sends of that step: a large send waits for the peer's buffer.
//!
//! Threads of their own move nothing: bytes come in while someone waits for any of them.

pub mod mesh;
#[cfg(feature = "mpi")]
pub mod mpi;
mod shm;

use std::io::IoSlice;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// What carries the data of a job between its processes.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// Connections between all pairs of processes.
    Mesh(mesh::Choice),
    /// MPI.
    #[cfg(feature = "mpi")]
    Mpi(mpi::Session),
}

/// The size in bytes up to which messages travel at once.
pub const EAGER_LIMIT: usize = 128 << 10;

/// The name of one message between two processes. A tag is used once per direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub [u64; 5]);

/// A piece of memory that a message is received into.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    start: *mut u8,
    len: usize,
    is_large: bool,
}

// SAFETY: a segment is only an address; whoever writes through it answers for it (see `Transport::post`).
unsafe impl Send for Segment {}

impl Segment {
    /// The memory of `bytes`.
    pub fn new(bytes: &mut [u8]) -> Segment {
        Segment { start: bytes.as_mut_ptr(), len: bytes.len(), is_large: false }
    }

    /// The same, as part of an array that does not stay in the caches, or does.
    pub fn part_of_large(self, is_large: bool) -> Segment {
        Segment { is_large, ..self }
    }

    /// Whether it is part of an array that does not stay in the caches.
    pub fn is_large(&self) -> bool {
        self.is_large
    }

    /// Its first byte.
    pub(in crate::transport) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    ///
    /// # Safety
    /// The memory is valid, and nothing else touches it while the slice lives.
    pub unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: by the contract of this function; the address came from a slice of this length.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// How long a blocking call waits, and what ends it early.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// When to give up with [`TransportError::Timeout`].
    pub deadline: Instant,
    /// Asked about each message, or word of one, that came from the awaited peer while the awaited one did not. An
    /// answer ends the wait with [`TransportError::Mismatch`].
    pub judge: &'a dyn Fn(&Tag) -> Option<String>,
}

/// Called once, with the reason, when a peer ends the job for everyone.
pub type AbortCallback = Box<dyn FnOnce(TransportError) + Send>;

/// Tagged messages between the processes of a job; all methods may be called from several threads at once.
pub trait Transport: Send + Sync {
    /// What carries the bytes: `tcp`, `shm`, both of them for different peers, or `mpi`.
    fn name(&self) -> &'static str;

    /// Which process this is.
    fn process_index(&self) -> u32;

    /// Number of processes, this one included.
    fn process_count(&self) -> u32;

    /// For each process the first one that runs on the same host, as far as that matters: where processes share memory, or
    /// could. The same on every process.
    fn hosts(&self) -> Vec<u32> {
        (0..self.process_count()).collect()
    }

    /// Sends the concatenation of `data` and returns when the memory may be changed again. For more than [`EAGER_LIMIT`]
    /// bytes that can be as late as when the peer completes the receive: [`Transport::lend`] them where processes could wait
    /// for each other in a circle.
    fn send(&self, to: u32, tag: Tag, data: &[IoSlice<'_>], wait: &Wait<'_>) -> Result<(), TransportError>;

    /// As [`Transport::send`], but may return, with `true`, while the peer has yet to read the bytes from where they lie. The
    /// memory stays as it is until [`Transport::reclaim`] has returned; whoever cannot wait for that calls
    /// [`Transport::withdraw`] before changing it, and the peer's receive fails.
    fn lend(&self, to: u32, tag: Tag, data: &[IoSlice<'_>], wait: &Wait<'_>) -> Result<bool, TransportError> {
        self.send(to, tag, data, wait).map(|()| false)
    }

    /// Waits until a lent message has been read; once. After an error it counts as withdrawn.
    fn reclaim(&self, to: u32, tag: Tag, wait: &Wait<'_>) -> Result<(), TransportError> {
        let _ = (to, tag, wait);
        Ok(())
    }

    /// Takes a lent message back that was not reclaimed. The job cannot go on after that.
    fn withdraw(&self, to: u32, tag: Tag) {
        let _ = (to, tag);
    }

    /// Provides the memory that the message `tag` from `from` goes to. The message has the segments' total size. Every
    /// posted receive is ended by [`Transport::complete`] or [`Transport::cancel`]. Does not wait for the peer, but may
    /// have to tell it, which can take until `deadline`.
    ///
    /// # Safety
    /// The segments are valid for writes and not touched until `complete` or `cancel` has returned.
    unsafe fn post(&self, from: u32, tag: Tag, into: Vec<Segment>, deadline: Instant) -> Result<(), TransportError>;

    /// Waits until the posted message is there. After an error the memory is left alone.
    fn complete(&self, from: u32, tag: Tag, wait: &Wait<'_>) -> Result<(), TransportError>;

    /// Takes a posted receive back.
    fn cancel(&self, from: u32, tag: Tag);

    /// Waits for a message of `len` bytes, at most [`EAGER_LIMIT`], that was not posted, and shows it to `with`. That
    /// must not call the transport.
    fn take(
        &self,
        from: u32,
        tag: Tag,
        len: usize,
        wait: &Wait<'_>,
        with: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TransportError>;

    /// Waits for a few moments until [`Transport::take`] would return at once; whether that is so.
    fn arrives_soon(&self, from: u32, tag: Tag) -> bool;

    /// How many messages of up to [`EAGER_LIMIT`] bytes keep the way to a process busy while neither side has a moment for
    /// them, at least 1.
    fn depth(&self, to: u32) -> usize {
        let _ = to;
        1
    }

    /// Ends the job: tells every peer why, as far as they can be reached, and fails every pending and future call here.
    fn abort(&self, reason: &str);

    /// Sets what happens when a peer aborts. Called at once if one has.
    fn on_abort(&self, callback: AbortCallback);
}

/// A posted receive. Taken back when dropped, so that its memory is never written to afterwards.
pub struct Receive<'a> {
    transport: &'a dyn Transport,
    from: u32,
    tag: Tag,
    open: bool,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Receive<'a> {
    /// Posts `into` for the message `tag` from process `from`.
    ///
    /// # Safety
    /// The segments are valid for writes and not touched until the result has been finished or dropped. It must not be
    /// forgotten.
    pub unsafe fn post(
        transport: &'a dyn Transport,
        from: u32,
        tag: Tag,
        into: Vec<Segment>,
        deadline: Instant,
    ) -> Result<Receive<'a>, TransportError> {
        // SAFETY: handed on to our caller; `finish` and `drop` end the receive.
        unsafe { transport.post(from, tag, into, deadline)? };
        Ok(Receive { transport, from, tag, open: true, memory: PhantomData })
    }

    /// Waits for the message.
    pub fn finish(mut self, wait: &Wait<'_>) -> Result<(), TransportError> {
        self.open = false;
        self.transport.complete(self.from, self.tag, wait)
    }
}

impl Drop for Receive<'_> {
    fn drop(&mut self) {
        if self.open {
            self.transport.cancel(self.from, self.tag);
        }
    }
}

/// A message that its receiver may read from where it lies. Withdrawn when dropped, so declare it after what holds the
/// bytes.
pub struct Loan<'a> {
    transport: &'a dyn Transport,
    to: u32,
    tag: Tag,
    open: bool,
}

impl<'a> Loan<'a> {
    /// Sends `data`, which stays as it is until the result is finished or dropped.
    pub fn new(
        transport: &'a dyn Transport,
        to: u32,
        tag: Tag,
        data: &[IoSlice<'_>],
        wait: &Wait<'_>,
    ) -> Result<Loan<'a>, TransportError> {
        Ok(Loan { transport, to, tag, open: transport.lend(to, tag, data, wait)? })
    }

    /// Waits until the bytes are no longer needed.
    pub fn finish(mut self, wait: &Wait<'_>) -> Result<(), TransportError> {
        if std::mem::take(&mut self.open) { self.transport.reclaim(self.to, self.tag, wait) } else { Ok(()) }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if self.open {
            self.transport.withdraw(self.to, self.tag);
        }
    }
}

/// Why a message could not be sent or received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The connection broke.
    #[error("lost the connection to process {peer}: {reason}")]
    Lost {
        /// The process at the other end.
        peer: u32,
        /// The operating system's word for it.
        reason: String,
    },
    /// The peer finished and left the job in good order.
    #[error("process {peer} has left the job")]
    Left {
        /// The process that left.
        peer: u32,
    },
    /// The peer sent something that no process of this job sends.
    #[error("process {peer} sent a malformed message: {problem}")]
    Protocol {
        /// The process at the other end.
        peer: u32,
        /// What was wrong with it.
        problem: String,
    },
    /// A peer ended the job.
    #[error("process {peer} reported: {reason}")]
    AbortedByPeer {
        /// The process that ended it.
        peer: u32,
        /// Its reason.
        reason: String,
    },
    /// This process ended the job.
    #[error("{reason}")]
    Aborted {
        /// The reason given to [`Transport::abort`].
        reason: String,
    },
    /// The deadline passed.
    #[error("waited {:.1} s for process {peer}", waited.as_secs_f64())]
    Timeout {
        /// The process that was waited for.
        peer: u32,
        /// How long this call waited.
        waited: Duration,
    },
    /// [`Wait::judge`] ended the wait.
    #[error("{explanation}")]
    Mismatch {
        /// What the judge said.
        explanation: String,
    },
    /// Wrong use of the transport.
    #[error("{0}")]
    Misuse(String),
}
