//! Messages over one TCP connection per pair of processes.
//!
//! Each connection has a thread that reads: straight into the posted buffer if there is one, else into memory. Writes
//! happen on the caller's thread. The reading threads never write, so the two ends cannot block each other.

mod frame;
mod mesh;
mod peer;

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::{AbortCallback, Segment, Tag, Transport, TransportError, Wait};

use frame::Kind;
use peer::{Ending, Peer};

pub use mesh::{MeshError, connect_mesh};

/// Connections to every other process of the job. Made by [`connect_mesh`]; dropping it leaves the job.
pub struct TcpTransport {
    shared: Arc<Shared>,
}

struct Shared {
    process_index: u32,
    /// By process; `None` for this one.
    peers: Vec<Option<Arc<Peer>>>,
    end: Mutex<End>,
}

#[derive(Default)]
struct End {
    /// Why the job ended, if it did.
    reason: Option<TransportError>,
    callback: Option<AbortCallback>,
}

impl TcpTransport {
    fn new(process_index: u32, streams: Vec<Option<TcpStream>>) -> io::Result<TcpTransport> {
        let mut peers = Vec::with_capacity(streams.len());
        for (index, stream) in streams.into_iter().enumerate() {
            peers.push(stream.map(|stream| Peer::new(index as u32, stream).map(Arc::new)).transpose()?);
        }
        let transport = TcpTransport { shared: Arc::new(Shared { process_index, peers, end: Mutex::default() }) };
        for peer in transport.shared.peers.iter().flatten() {
            let (shared, peer) = (Arc::clone(&transport.shared), Arc::clone(peer));
            let name = format!("tcp-read-{}", peer.index);
            std::thread::Builder::new().name(name).spawn(move || {
                if let Ending::Aborted(reason) = peer.read_all() {
                    shared.aborted_by(&peer, reason);
                }
            })?;
        }
        Ok(transport)
    }

    fn peer(&self, process: u32) -> Result<&Peer, TransportError> {
        let peer = self.shared.peers.get(process as usize).and_then(Option::as_deref);
        peer.ok_or_else(|| TransportError::Misuse(format!("process {process} is not a peer")))
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn process_index(&self) -> u32 {
        self.shared.process_index
    }

    fn process_count(&self) -> u32 {
        self.shared.peers.len() as u32
    }

    fn send(&self, to: u32, tag: Tag, data: &[IoSlice<'_>], wait: &Wait<'_>) -> Result<(), TransportError> {
        self.peer(to)?.send(tag, data, wait)
    }

    unsafe fn post(&self, from: u32, tag: Tag, into: Vec<Segment>, deadline: Instant) -> Result<(), TransportError> {
        // SAFETY: the same contract.
        unsafe { self.peer(from)?.post(tag, into, deadline) }
    }

    fn complete(&self, from: u32, tag: Tag, wait: &Wait<'_>) -> Result<(), TransportError> {
        self.peer(from)?.complete(tag, wait)
    }

    fn cancel(&self, from: u32, tag: Tag) {
        if let Ok(peer) = self.peer(from) {
            peer.settle(tag);
        }
    }

    fn abort(&self, reason: &str) {
        // Also where a peer has ended the job: its own word may not reach everyone before ours breaks off.
        let _ = self.shared.end(TransportError::Aborted { reason: reason.to_owned() });
        for peer in self.shared.peers.iter().flatten() {
            peer.farewell(Kind::Abort, reason);
        }
    }

    fn on_abort(&self, callback: AbortCallback) {
        let mut end = self.shared.end.lock().unwrap_or_else(PoisonError::into_inner);
        match &end.reason {
            Some(error @ TransportError::AbortedByPeer { .. }) => {
                let error = error.clone();
                drop(end);
                callback(error);
            }
            _ => end.callback = Some(callback),
        }
    }
}

impl Shared {
    /// Fails all calls with `error`; gives it back if the job has ended before.
    fn end(&self, error: TransportError) -> Result<Option<AbortCallback>, TransportError> {
        let callback = {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            if end.reason.is_some() {
                return Err(error);
            }
            end.reason = Some(error.clone());
            end.callback.take()
        };
        for peer in self.peers.iter().flatten() {
            peer.fail(error.clone());
        }
        Ok(callback)
    }

    fn aborted_by(&self, peer: &Peer, reason: String) {
        let error = TransportError::AbortedByPeer { peer: peer.index, reason };
        match self.end(error.clone()) {
            Ok(Some(callback)) => callback(error),
            Ok(None) => {}
            Err(error) => peer.fail(error),
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        let ended = self.shared.end(TransportError::Aborted { reason: "the transport is closed".to_owned() }).is_err();
        for peer in self.shared.peers.iter().flatten() {
            if !ended {
                peer.farewell(Kind::Bye, "");
            }
            peer.hang_up();
        }
    }
}
