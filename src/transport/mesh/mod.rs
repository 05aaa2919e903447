//! Every pair of processes has a TCP connection, and a ring in each direction where both share memory.
//!
//! Frames go through the ring if there is one, else over the connection. Nobody reads but the threads that wait for
//! something: what comes for others they leave where these find it. One thread watches all connections for peers that
//! hang up, after their last words or without.

mod connect;
pub(super) mod frame;
pub(super) mod inbox;
mod peer;
pub(super) mod spin;
mod stream;

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::shm::HostId;
use super::{AbortCallback, Segment, Tag, Transport, TransportError, Wait};

use connect::Connection;
use frame::Kind;
use peer::{Peer, Peers};
use spin::Spin;

pub use connect::{Choice, MeshError, connect_mesh};

/// The way to every other process of the job. Made by [`connect_mesh`]; dropping it leaves the job.
pub struct Mesh {
    shared: Arc<Shared>,
}

struct Shared {
    process_index: u32,
    hosts: Vec<u32>,
    peers: Peers,
    end: Mutex<End>,
    /// Readable when the watching thread has to go.
    closing: OwnedFd,
}

#[derive(Default)]
struct End {
    /// Why the job ended, if it did.
    reason: Option<TransportError>,
    callback: Option<AbortCallback>,
}

impl Mesh {
    fn new(process_index: u32, host: HostId, connections: Vec<Option<Connection>>) -> io::Result<Mesh> {
        let host_of = |connection: &Option<Connection>| connection.as_ref().map_or(host, |connection| connection.host);
        let ids: Vec<HostId> = connections.iter().map(host_of).collect();
        let first_of = |(index, id): (usize, &HostId)| ids.iter().position(|other| other.is_same(id)).unwrap_or(index);
        let hosts = ids.iter().enumerate().map(first_of).map(|first| first as u32).collect();
        let here = 1 + connections.iter().flatten().filter(|connection| connection.is_local()).count();
        let spin = Spin::new(here);
        let mut peers = Vec::with_capacity(connections.len());
        for (index, connection) in connections.into_iter().enumerate() {
            let peer = connection.map(|connection| Peer::new(index as u32, connection, spin));
            peers.push(peer.transpose()?.map(Arc::new));
        }
        let shared = Arc::new(Shared {
            process_index,
            hosts,
            peers: Peers(peers),
            end: Mutex::default(),
            closing: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let watched = Arc::clone(&shared);
        std::thread::Builder::new().name("transport-watch".to_owned()).spawn(move || watched.watch())?;
        Ok(Mesh { shared })
    }

    fn peer(&self, process: u32) -> Result<&Peer, TransportError> {
        let peer = self.shared.peers.0.get(process as usize).and_then(Option::as_deref);
        peer.ok_or_else(|| TransportError::Misuse(format!("process {process} is not a peer")))
    }
}

impl Transport for Mesh {
    fn name(&self) -> &'static str {
        let shared = self.shared.peers.iter().filter(|peer| peer.shares_memory()).count();
        match shared {
            0 => "tcp",
            _ if shared == self.shared.peers.iter().count() => "shm",
            _ => "shm and tcp",
        }
    }

    fn process_index(&self) -> u32 {
        self.shared.process_index
    }

    fn process_count(&self) -> u32 {
        self.shared.peers.0.len() as u32
    }

    fn hosts(&self) -> Vec<u32> {
        self.shared.hosts.clone()
    }

    fn send(&self, to: u32, tag: Tag, data: &[IoSlice<'_>], wait: &Wait<'_>) -> Result<(), TransportError> {
        self.peer(to)?.send(&self.shared.peers, tag, data, wait)
    }

    fn lend(&self, to: u32, tag: Tag, data: &[IoSlice<'_>], wait: &Wait<'_>) -> Result<bool, TransportError> {
        self.peer(to)?.lend(&self.shared.peers, tag, data, wait)
    }

    fn reclaim(&self, to: u32, tag: Tag, wait: &Wait<'_>) -> Result<(), TransportError> {
        self.peer(to)?.reclaim(&self.shared.peers, tag, wait)
    }

    fn withdraw(&self, to: u32, _tag: Tag) {
        if let Ok(peer) = self.peer(to) {
            peer.withdraw();
        }
    }

    unsafe fn post(&self, from: u32, tag: Tag, into: Vec<Segment>, deadline: Instant) -> Result<(), TransportError> {
        // SAFETY: the same contract.
        unsafe { self.peer(from)?.post(&self.shared.peers, tag, into, deadline) }
    }

    fn complete(&self, from: u32, tag: Tag, wait: &Wait<'_>) -> Result<(), TransportError> {
        self.peer(from)?.complete(&self.shared.peers, tag, wait)
    }

    fn cancel(&self, from: u32, tag: Tag) {
        if let Ok(peer) = self.peer(from) {
            peer.cancel(tag);
        }
    }

    fn take(
        &self,
        from: u32,
        tag: Tag,
        len: usize,
        wait: &Wait<'_>,
        with: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TransportError> {
        self.peer(from)?.take(&self.shared.peers, tag, len, wait, with)
    }

    fn arrives_soon(&self, from: u32, tag: Tag) -> bool {
        self.peer(from).is_ok_and(|peer| peer.arrives_soon(&tag))
    }

    fn depth(&self, to: u32) -> usize {
        // A ring is best reread while it is in the cache; the system's buffers take some MiB.
        if self.peer(to).is_ok_and(Peer::shares_memory) { 1 } else { 8 }
    }

    fn abort(&self, reason: &str) {
        // Also where a peer has ended the job: its own word may not reach everyone before ours breaks off.
        let _ = self.shared.end(TransportError::Aborted { reason: reason.to_owned() });
        for peer in self.shared.peers.iter() {
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
    /// Waits for peers that hang up, until this process leaves.
    fn watch(&self) {
        let mut there: Vec<&Arc<Peer>> = self.peers.iter().collect();
        loop {
            let mut watched: Vec<PollFd> = there.iter().map(|peer| PollFd::new(&***peer, PollFlags::RDHUP)).collect();
            watched.push(PollFd::new(&self.closing, PollFlags::IN));
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let mut gone: Vec<bool> = watched.iter().map(|watch| !watch.revents().is_empty()).collect();
            if gone.pop() == Some(true) {
                return;
            }
            let hung_up: Vec<&Arc<Peer>> =
                there.iter().zip(&gone).filter(|(_, gone)| **gone).map(|(peer, _)| *peer).collect();
            there.retain(|peer| !hung_up.iter().any(|other| other.index == peer.index));
            for peer in hung_up {
                if let Some(reason) = peer.receive_last_words() {
                    self.aborted_by(peer, reason);
                }
            }
        }
    }

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
        for peer in self.peers.iter() {
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

impl Drop for Mesh {
    fn drop(&mut self) {
        let ended = self.shared.end(TransportError::Aborted { reason: "the transport is closed".to_owned() }).is_err();
        // Only fails when it is readable already.
        let _ = rustix::io::write(&self.shared.closing, &1u64.to_ne_bytes());
        for peer in self.shared.peers.iter() {
            if !ended {
                peer.farewell(Kind::Bye, "");
            }
            peer.hang_up();
        }
    }
}
