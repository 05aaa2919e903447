//! Every pair of processes has a TCP connection, and a ring in each direction where both share memory. Processes of different
//! slices that do not have a link: several connections, which are made again when they break.
//!
//! Frames go through the ring if there is one, else over the connection. Nobody reads but the threads that wait for
//! something: what comes for others they leave where these find it. One thread watches all connections for peers that
//! hang up, after their last words or without.

mod connect;
pub(super) mod frame;
mod handshake;
pub(super) mod inbox;
mod lane;
mod link;
mod peer;
pub(super) mod spin;
mod stream;

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::shm::HostId;
use super::{AbortCallback, Segment, Tag, Transport, TransportError, Wait};

use connect::{Connection, Door};
use frame::Kind;
use handshake::Setup;
use peer::{Peer, Peers};
use spin::Spin;

pub use connect::{Choice, MeshError, MeshOptions, connect_mesh};

/// How long a process that leaves waits for peers to have what it has sent them.
const LINGER: Duration = Duration::from_secs(2);

/// The way to every other process of the job. Made by [`connect_mesh`]; dropping it leaves the job.
pub struct Mesh {
    shared: Arc<Shared>,
    /// Where peers call again.
    door: Option<Door>,
}

struct Shared {
    process_index: u32,
    hosts: Vec<u32>,
    peers: Peers,
    end: Mutex<End>,
    /// Readable when the watching thread should look: a lane has lost its connection or has a new one, or the thread has to
    /// go.
    alarm: Arc<OwnedFd>,
    closing: AtomicBool,
    setup: Arc<Setup>,
    /// How long lanes that have lost their connections are repaired.
    repair_limit: Duration,
}

#[derive(Default)]
struct End {
    /// Why the job ended, if it did.
    reason: Option<TransportError>,
    callback: Option<AbortCallback>,
}

impl Mesh {
    fn new(
        setup: &Arc<Setup>,
        door: Option<Door>,
        repair_limit: Duration,
        connections: Vec<Option<Connection>>,
    ) -> io::Result<Mesh> {
        let host_of =
            |connection: &Option<Connection>| connection.as_ref().map_or(setup.host, |connection| connection.host);
        let ids: Vec<HostId> = connections.iter().map(host_of).collect();
        let first_of = |(index, id): (usize, &HostId)| ids.iter().position(|other| other.is_same(id)).unwrap_or(index);
        let hosts = ids.iter().enumerate().map(first_of).map(|first| first as u32).collect();
        let here = 1 + connections.iter().flatten().filter(|connection| connection.is_local()).count();
        let spin = Spin::new(here);
        let alarm = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut peers = Vec::with_capacity(connections.len());
        for (index, connection) in (0..).zip(connections) {
            let peer = |connection| Peer::new(setup.process_index, index, connection, spin, &alarm);
            peers.push(connection.map(peer).transpose()?.map(Arc::new));
        }
        let shared = Arc::new(Shared {
            process_index: setup.process_index,
            hosts,
            peers: Peers(peers),
            end: Mutex::default(),
            alarm,
            closing: AtomicBool::new(false),
            setup: Arc::clone(setup),
            repair_limit,
        });
        link::register(setup, &shared);
        let watched = Arc::clone(&shared);
        std::thread::Builder::new().name("transport-watch".to_owned()).spawn(move || watched.watch())?;
        Ok(Mesh { shared, door })
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
    fn watch(self: &Arc<Self>) {
        let mut there: Vec<&Arc<Peer>> = self.peers.iter().collect();
        while !self.closing.load(Ordering::Acquire) {
            self.repair_lanes();
            let sockets: Vec<Vec<Arc<TcpStream>>> = there.iter().map(|peer| peer.watched_sockets()).collect();
            let of_peers = sockets.iter().flatten().map(|socket| PollFd::new(&**socket, PollFlags::RDHUP));
            let alarm = PollFd::new(&self.alarm, PollFlags::IN);
            let mut watched: Vec<PollFd<'_>> = std::iter::once(alarm).chain(of_peers).collect();
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let mut has_happened = watched.iter().map(|watch| !watch.revents().is_empty());
            if has_happened.next() == Some(true) {
                let _ = rustix::io::read(&self.alarm, &mut [0; 8]);
            }
            let hung_up = |sockets: &Vec<_>| has_happened.by_ref().take(sockets.len()).filter(|it| *it).count() > 0;
            let hung_up: Vec<bool> = sockets.iter().map(hung_up).collect();
            let (gone, rest): (Vec<_>, Vec<_>) = there.iter().zip(hung_up).partition(|(_, hung_up)| *hung_up);
            let gone: Vec<&Arc<Peer>> = gone.into_iter().map(|(peer, _)| *peer).collect();
            let rest = rest.into_iter().map(|(peer, _)| *peer);
            for peer in &gone {
                if let Some(reason) = peer.receive_last_words() {
                    self.aborted_by(peer, reason);
                }
            }
            // What is left of a link is watched on.
            let may_go_on = |peer: &&Arc<Peer>| peer.link().is_some() && !peer.is_broken();
            there = rest.chain(gone.into_iter().filter(may_go_on)).collect();
        }
    }

    /// Waits until the peers of links have what was written to them. What a connection had yet to bring is lost if it is
    /// closed while something comes that nobody reads.
    fn settle_links(&self) {
        let deadline = Instant::now() + LINGER;
        while !self.peers.iter().all(|peer| peer.is_settled()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
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
        let has_ended = self.shared.end.lock().unwrap_or_else(PoisonError::into_inner).reason.is_some();
        if !has_ended {
            self.shared.peers.iter().for_each(|peer| peer.farewell(Kind::Bye, ""));
            self.shared.settle_links();
        }
        let _ = self.shared.end(TransportError::Aborted { reason: "the transport is closed".to_owned() });
        self.shared.closing.store(true, Ordering::Release);
        // Only fails when it is readable already.
        let _ = rustix::io::write(&*self.shared.alarm, &1u64.to_ne_bytes());
        drop(self.door.take());
        for peer in self.shared.peers.iter() {
            peer.hang_up();
        }
    }
}
