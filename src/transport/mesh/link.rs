//! The way to a process of another slice: several lanes, whose connections are made again when they break.
//!
//! The process with the higher index calls, as it did at first; the other one waits for that. Both give up after some time,
//! or when the job ends for another reason.

use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::transport::TransportError;

use super::Shared;
use super::connect::CONNECT_LIMIT;
use super::handshake::{
    Answer, HANDSHAKE_LIMIT, Instance, Proven, Purpose, Request, Setup, malformed, prepare, reason,
};
use super::lane::{Lane, Outage};
use super::peer::Peer;

/// How long both ends try to connect again.
pub(super) const REPAIR_LIMIT: Duration = Duration::from_secs(30);

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How often whoever waits looks whether the job has ended.
const TICK: Duration = Duration::from_millis(100);

pub(super) struct Link {
    pub lanes: Vec<Arc<Lane>>,
    /// Who is at the other end.
    pub instance: Instance,
    frames: AtomicU64,
    turn: AtomicUsize,
    outages: Mutex<Outages>,
}

/// The lanes that are down or were so lately, told of in one line.
#[derive(Default)]
struct Outages {
    first: Option<Outage>,
    down: usize,
    dropped: usize,
    resent: u64,
}

impl Link {
    pub fn new(lanes: Vec<Arc<Lane>>, instance: Instance) -> Link {
        Link { lanes, instance, frames: AtomicU64::new(0), turn: AtomicUsize::new(0), outages: Mutex::default() }
    }

    /// The place of the next frame among all that go to the peer, from 1.
    pub fn next_order(&self) -> u64 {
        1 + self.frames.fetch_add(1, Ordering::Relaxed)
    }

    /// The lanes in the order in which the next frame tries them.
    pub fn next_turn(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (first, count) = (self.turn.fetch_add(1, Ordering::Relaxed), self.lanes.len());
        (0..count).map(move |index| first.wrapping_add(index) % count)
    }

    fn note_outage(&self, outage: &Outage) {
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        outages.first.get_or_insert_with(|| outage.clone());
        outages.down += 1;
        outages.dropped += 1;
    }

    /// A lane is up again. What there is to tell if it is the last one.
    fn note_repair(&self, resent: u64) -> Option<String> {
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        outages.down -= 1;
        outages.resent += resent;
        if outages.down > 0 {
            return None;
        }
        let Outages { first, dropped, resent, .. } = std::mem::take(&mut *outages);
        let Outage { reason, since } = first?;
        Some(format!(
            "dropped ({dropped} of {} streams): {reason}; reconnected after {} ms, resent {resent} bytes",
            self.lanes.len(),
            since.elapsed().as_millis()
        ))
    }
}

/// How an attempt to connect again ended, if it did not fail.
enum Attempt {
    /// So many bytes are sent again, by both ends.
    Connected(u64),
    UnknownLink,
}

impl Shared {
    /// Starts the repair of all lanes that have lost their connections since the last call.
    pub fn repair_lanes(self: &Arc<Self>) {
        for peer in self.peers.iter() {
            for (index, lane) in peer.lanes().iter().enumerate() {
                let Some(outage) = lane.unattended_outage() else { continue };
                let (shared, broken) = (Arc::clone(self), Arc::clone(peer));
                let repair = std::thread::Builder::new().name(format!("link-repair-{}", peer.index));
                if let Err(error) = repair.spawn(move || shared.repair(&broken, index, &outage)) {
                    peer.fail(TransportError::Lost { peer: peer.index, reason: error.to_string() });
                }
            }
        }
    }

    fn repair(&self, peer: &Peer, index: usize, outage: &Outage) {
        let Some(link) = peer.link() else { return };
        link.note_outage(outage);
        let is_caller = peer.index < self.process_index;
        let resent = match is_caller {
            true => self.call_until_connected(peer, link, index, outage),
            false => self.wait_for_call(peer, &link.lanes[index], outage),
        };
        match resent {
            Ok(resent) => match link.note_repair(resent) {
                Some(story) if is_caller => tracing::warn!("link to process {} {story}", peer.index),
                Some(story) => tracing::debug!("link to process {} {story}", peer.index),
                None => {}
            },
            Err(error) => peer.fail(error),
        }
        if is_caller {
            deliver(peer, &link.lanes[index]);
        }
    }

    /// Returns how many bytes are sent again.
    fn call_until_connected(
        &self,
        peer: &Peer,
        link: &Link,
        index: usize,
        outage: &Outage,
    ) -> Result<u64, TransportError> {
        let lost = |why: String| TransportError::Lost { peer: peer.index, reason: format!("{}; {why}", outage.reason) };
        let (mut pause, mut tries) = (FIRST_PAUSE, 0);
        loop {
            peer.check()?;
            tries += 1;
            let trouble = match self.setup.call_again(peer, link, index) {
                Ok(Attempt::Connected(resent)) => return Ok(resent),
                Ok(Attempt::UnknownLink) => {
                    return Err(lost(format!("it was called again {tries} time(s) and says that it has no such link")));
                }
                Err(trouble) => trouble,
            };
            if outage.since.elapsed() >= self.repair_limit {
                let limit = self.repair_limit.as_secs_f64();
                return Err(lost(format!(
                    "it was called again {tries} time(s) in {limit:.0} s, the last time in vain because: {trouble}"
                )));
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    fn wait_for_call(&self, peer: &Peer, lane: &Lane, outage: &Outage) -> Result<u64, TransportError> {
        while !lane.wait_until_up(TICK) {
            peer.check()?;
            if outage.since.elapsed() >= self.repair_limit {
                let limit = self.repair_limit.as_secs_f64();
                let reason = format!("{}; it did not call again within {limit:.0} s", outage.reason);
                return Err(TransportError::Lost { peer: peer.index, reason });
            }
        }
        Ok(0)
    }
}

impl Setup {
    fn call_again(&self, peer: &Peer, link: &Link, index: usize) -> Result<Attempt, String> {
        let attempt = || {
            let end = Instant::now() + HANDSHAKE_LIMIT;
            let address = self.addresses.get(peer.index as usize).ok_or_else(|| malformed("it has no address"))?;
            let stream = TcpStream::connect_timeout(address, CONNECT_LIMIT)?;
            let proven = self.introduce(stream, peer.index, Purpose::Again(index as u32), end)?;
            let Some(Proven { mut channel, .. }) = proven else { return Ok(Attempt::UnknownLink) };
            let progress = peer.suspend(index, "called again");
            let theirs = match (Request { instance: link.instance, progress }).send(&mut channel, end)? {
                Answer::GoesOn(theirs) => theirs,
                Answer::NotYet => return Err(malformed("it is not done with its first connections")),
                Answer::UnknownLink => return Ok(Attempt::UnknownLink),
            };
            prepare(channel.socket())?;
            let ours = peer.resume(index, channel, theirs).map_err(|problem| malformed(&problem))?;
            Ok(Attempt::Connected(ours + theirs.sent.saturating_sub(progress.taken_in)))
        };
        attempt().map_err(|error: io::Error| reason(&error))
    }

    /// Answers a process that calls again: the lane goes on over this connection.
    pub fn answer_again(&self, proven: Proven, index: u32, end: Instant) -> io::Result<()> {
        let Proven { peer, instance, mut channel, .. } = proven;
        let request = Request::receive(&mut channel, end)?;
        let Some(mesh) = self.mesh.get() else { return Answer::NotYet.send(&mut channel, end) };
        let shared = mesh.upgrade();
        let peer = shared.as_ref().and_then(|shared| shared.peers.0.get(peer as usize)?.as_deref());
        let is_known = |link: &Link| link.instance == instance && self.instance == request.instance;
        let lane =
            peer.and_then(Peer::link).filter(|link| is_known(link)).and_then(|link| link.lanes.get(index as usize));
        let (Some(peer), Some(lane)) = (peer.filter(|peer| peer.check().is_ok()), lane) else {
            return Answer::UnknownLink.send(&mut channel, end);
        };
        let progress = peer.suspend(index as usize, "it called again");
        Answer::GoesOn(progress).send(&mut channel, end)?;
        prepare(channel.socket())?;
        peer.resume(index as usize, channel, request.progress).map_err(|problem| malformed(&problem))?;
        deliver(peer, lane);
        Ok(())
    }
}

/// Sends what a new connection has to send first: who wrote it may wait for nothing any more.
fn deliver(peer: &Peer, lane: &Lane) {
    while !lane.is_flushed() && peer.check().is_ok() {
        let Some((socket, waits)) = lane.socket() else { return };
        let events = if waits { PollFlags::OUT } else { PollFlags::empty() };
        let _ = poll(&mut [PollFd::new(&*socket, events)], TICK.try_into().ok().as_ref());
        lane.go_on();
    }
}

/// The mesh that handshakes find lanes in.
pub(super) fn register(setup: &Setup, shared: &Arc<Shared>) {
    let _: Result<(), Weak<Shared>> = setup.mesh.set(Arc::downgrade(shared));
}
