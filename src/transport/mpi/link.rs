//! Buffers on their way through MPI.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::mem::ManuallyDrop;

use mpi::ffi::MPI_Request;
use mpi::request::{Request, StaticScope};
use mpi::traits::{Communicator, Destination, Equivalence, Source as _};

use crate::bulk_copy;
use crate::transport::EAGER_LIMIT;
use crate::transport::mesh::frame::HEADER_LEN;
use crate::transport::mesh::inbox::Source;

use super::session::Session;

/// Most bytes of one MPI message: a frame with a message that travels at once.
pub(super) const PIECE: usize = HEADER_LEN + EAGER_LIMIT;

/// Messages that are taken from MPI at a time.
const BATCH: usize = 64;

/// Buffers that are kept for the next pieces.
const SPARE_BUFFERS: usize = 32;

const TAG: i32 = 0;

pub(super) struct Link {
    session: Session,
    outgoing: Vec<InFlight>,
    /// Bytes and messages on their way to each peer.
    under_way: Vec<usize>,
    /// In the order in which they were sent, for each sender.
    incoming: VecDeque<InFlight>,
    spare: Vec<Vec<u8>>,
}

/// A buffer that MPI uses. It stays where it is until MPI is done with it, and is lost if that never happens.
struct InFlight {
    peer: u32,
    request: MPI_Request,
    /// A vector's pointer, length and capacity, so that nothing else refers to its bytes.
    buffer: (*mut u8, usize, usize),
}

// SAFETY: as for `Mpi` of the session: calls with the request are made under the session's lock. The buffer is owned.
unsafe impl Send for InFlight {}

type Started = Request<'static, [u8], StaticScope>;

impl InFlight {
    fn start(peer: u32, bytes: Vec<u8>, start: impl FnOnce(&'static mut [u8]) -> Started) -> InFlight {
        let mut bytes = ManuallyDrop::new(bytes);
        let buffer = (bytes.as_mut_ptr(), bytes.len(), bytes.capacity());
        // SAFETY: the vector is not dropped or touched before the request is done, and never if it is not.
        let request = start(unsafe { std::slice::from_raw_parts_mut(buffer.0, buffer.1) });
        // SAFETY: the request is asked about in `finish`, or forgotten together with its buffer.
        let (request, ..) = unsafe { request.into_raw() };
        InFlight { peer, request, buffer }
    }

    /// The buffer, if MPI is done with it.
    fn finish(self) -> Result<Vec<u8>, InFlight> {
        let InFlight { peer, request, buffer } = self;
        let (start, len, capacity) = buffer;
        // SAFETY: the request is not done, and these are its bytes.
        let request: Started =
            unsafe { Request::from_raw(request, std::slice::from_raw_parts(start, len), StaticScope) };
        match request.test() {
            // SAFETY: these are the parts of a vector that was not dropped, and the request no longer refers to it.
            Ok(_) => Ok(unsafe { Vec::from_raw_parts(start, len, capacity) }),
            Err(request) => {
                // SAFETY: as in `start`.
                let (request, ..) = unsafe { request.into_raw() };
                Err(InFlight { peer, request, buffer })
            }
        }
    }
}

impl Link {
    pub fn new(session: &Session) -> Link {
        Link {
            session: session.clone(),
            outgoing: Vec::new(),
            under_way: vec![0; session.size() as usize],
            incoming: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// An empty buffer for a piece.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Whether everything sent is out of our hands.
    pub fn is_idle(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Bytes on their way to a peer.
    pub fn under_way(&self, to: u32) -> usize {
        self.under_way[to as usize]
    }

    /// Sends a piece of at most [`PIECE`] bytes. One that comes after MPI's end has nobody to go to.
    pub fn send(&mut self, to: u32, piece: Vec<u8>) {
        let mpi = self.session.lock();
        let Some(communicator) = mpi.communicator() else { return };
        self.under_way[to as usize] += piece.len();
        let process = communicator.process_at_rank(to as i32);
        self.outgoing
            .push(InFlight::start(to, piece, |bytes| process.immediate_send_with_tag(StaticScope, &*bytes, TAG)));
    }

    /// Lets MPI go on, and hands over what has come, in the order in which each peer sent it. Whether there was anything.
    pub fn advance(&mut self, mut deliver: impl FnMut(u32, Vec<u8>)) -> bool {
        let session = self.session.clone();
        let mpi = session.lock();
        let Some(communicator) = mpi.communicator() else { return false };
        let mut moved = false;
        for sent in std::mem::take(&mut self.outgoing) {
            let peer = sent.peer;
            match sent.finish() {
                Ok(piece) => {
                    moved = true;
                    self.under_way[peer as usize] -= piece.len();
                    self.recycle(piece);
                }
                Err(sent) => self.outgoing.push(sent),
            }
        }
        let anyone = communicator.any_process();
        for _ in 0..BATCH {
            let Some((message, status)) = anyone.immediate_matched_probe_with_tag(TAG) else { break };
            let mut piece = self.buffer();
            // A count that MPI gives is not negative.
            piece.resize(status.count(u8::equivalent_datatype()) as usize, 0);
            self.incoming.push_back(InFlight::start(status.source_rank() as u32, piece, |bytes| {
                message.immediate_matched_receive_into(StaticScope, bytes)
            }));
        }
        // What is not there yet holds up what its sender sent later.
        let mut late = BTreeSet::new();
        for received in std::mem::take(&mut self.incoming) {
            let peer = received.peer;
            match if late.contains(&peer) { Err(received) } else { received.finish() } {
                Ok(piece) => {
                    moved = true;
                    deliver(peer, piece);
                }
                Err(received) => {
                    late.insert(peer);
                    self.incoming.push_back(received);
                }
            }
        }
        moved
    }

    fn recycle(&mut self, mut piece: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS {
            piece.clear();
            self.spare.push(piece);
        }
    }
}

/// What has come from one peer and was not taken in yet.
#[derive(Default)]
pub(super) struct Received {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that are consumed.
    consumed: usize,
    ended: bool,
}

impl Received {
    /// Adds a piece; an empty one is the last.
    pub fn push(&mut self, piece: Vec<u8>) {
        if piece.is_empty() {
            self.ended = true;
        } else if !self.ended {
            self.pieces.push_back(piece);
        }
    }

    /// Whether no more can come.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

impl Source for Received {
    fn available(&mut self, _wanted: usize) -> io::Result<&[u8]> {
        while self.pieces.front().is_some_and(|piece| piece.len() == self.consumed) {
            self.pieces.pop_front();
            self.consumed = 0;
        }
        match self.pieces.front() {
            Some(piece) => Ok(&piece[self.consumed..]),
            None if self.ended => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it left")),
            None => Ok(&[]),
        }
    }

    fn consume(&mut self, count: usize) {
        self.consumed += count;
    }

    fn read(&mut self, into: &mut [u8], is_large: bool) -> io::Result<usize> {
        let available = self.available(1)?;
        let count = available.len().min(into.len());
        bulk_copy::copy(&mut into[..count], &available[..count], is_large);
        self.consume(count);
        Ok(count)
    }
}
