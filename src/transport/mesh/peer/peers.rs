use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::transport::shm;

use super::{MIXED_TICK, Peer};

/// All other processes of the job, by index; `None` for this one.
pub(in crate::transport::mesh) struct Peers(pub Vec<Option<Arc<Peer>>>);

impl Peers {
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.0.iter().flatten()
    }

    /// Takes in what has come from anyone.
    pub(super) fn receive_from_all(&self) {
        for peer in self.iter() {
            if let Ok(mut inbox) = peer.inbox.try_lock() {
                peer.receive(&mut inbox);
            }
        }
    }

    /// Takes in what has come through rings that are full, and gives what changes when another one is.
    pub(super) fn relieve_writers(&self) -> Vec<shm::Seen<'_>> {
        let rings = self.iter().filter_map(|peer| Some((peer, peer.ring.as_ref()?)));
        rings
            .map(|(peer, ring)| {
                let (naps, is_blocked) = ring.positions().writer_naps();
                if is_blocked {
                    peer.receive(&mut peer.lock());
                }
                naps
            })
            .collect()
    }

    /// How long a sleep may last that one kind of peers cannot end.
    pub(super) fn tick(&self, limit: Duration) -> Duration {
        let is_mixed = self.iter().any(|peer| peer.shares_memory()) && self.iter().any(|peer| !peer.shares_memory());
        if is_mixed { limit.min(MIXED_TICK) } else { limit }
    }

    /// Sleeps until the stream of `peer` is ready for `events`, `wake` is readable, or any other stream has bytes; takes in
    /// what there is.
    pub(super) fn sleep_on_streams(&self, peer: &Peer, events: PollFlags, wake: Option<&OwnedFd>, limit: Duration) {
        let mut sockets = Vec::new();
        peer.add_sockets(events, &mut sockets);
        let others = self.iter().filter(|other| !other.shares_memory() && other.index != peer.index);
        // A broken stream is always ready, and never has anything.
        let others = others.filter(|other| other.lock().broken.is_none());
        others.for_each(|other| other.add_sockets(PollFlags::IN, &mut sockets));
        let mut all: Vec<PollFd<'_>> = sockets.iter().map(|(socket, events)| PollFd::new(&**socket, *events)).collect();
        all.extend(wake.map(|wake| PollFd::new(wake, PollFlags::IN)));
        let _ = poll(&mut all, limit.try_into().ok().as_ref());
        self.receive_from_all();
    }
}
