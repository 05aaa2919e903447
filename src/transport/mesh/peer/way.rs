//! What a peer is reached by over the network: a connection, or the lanes of a link.

use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::channel::{self, Channel};
use crate::transport::mesh::frame::{Header, Kind};
use crate::transport::mesh::inbox::MAX_REASON;
use crate::transport::mesh::lane::{Lane, Progress};
use crate::transport::mesh::link::Link;
use crate::transport::mesh::stream::Stream;
use crate::transport::{Tag, TransportError, shm};

use super::{LAST_WORDS, Peer};

/// How a process is reached over the network.
pub(super) enum Way {
    /// By one connection, which does not block.
    Connection(Arc<TcpStream>),
    Link(Link),
}

pub(super) struct Writer {
    /// `None` if frames go to the stream.
    pub ring: Option<shm::Writer>,
    pub stream: Outlet,
    /// A frame was written in part: nothing can follow.
    pub torn: bool,
}

/// Where the bytes of a connection or a lane are written to.
pub(super) enum Outlet {
    Connection(channel::Writer),
    Lane(Arc<Lane>),
}

impl Outlet {
    pub fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Outlet::Connection(writer) => writer.write_vectored(slices),
            Outlet::Lane(lane) => lane.write(slices),
        }
    }

    pub fn is_flushed(&self) -> bool {
        match self {
            Outlet::Connection(writer) => writer.is_flushed(),
            Outlet::Lane(lane) => lane.is_flushed(),
        }
    }

    pub fn is_up(&self) -> bool {
        match self {
            Outlet::Connection(_) => true,
            Outlet::Lane(lane) => lane.is_up(),
        }
    }
}

impl Peer {
    /// The lanes, where this is a process of another slice and shares no memory.
    pub fn link(&self) -> Option<&Link> {
        match &self.way {
            Way::Link(link) => Some(link),
            Way::Connection(_) => None,
        }
    }

    pub fn lanes(&self) -> &[Arc<Lane>] {
        self.link().map_or(&[], |link| &link.lanes)
    }

    /// Adds the sockets that are there, and what to wait for: these events, or what lets the lanes go on.
    pub(super) fn add_sockets(&self, events: PollFlags, sockets: &mut Vec<(Arc<TcpStream>, PollFlags)>) {
        match &self.way {
            Way::Connection(socket) => sockets.push((Arc::clone(socket), events)),
            Way::Link(link) => {
                let events = |waits| if waits { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                let of_lanes = link.lanes.iter().filter_map(|lane| lane.socket());
                sockets.extend(of_lanes.map(|(socket, waits)| (socket, events(waits))));
            }
        }
    }

    /// All sockets, to be watched for their ends.
    pub fn watched_sockets(&self) -> Vec<Arc<TcpStream>> {
        let mut sockets = Vec::new();
        self.add_sockets(PollFlags::empty(), &mut sockets);
        sockets.into_iter().map(|(socket, _)| socket).collect()
    }

    /// Gives up the connection of a lane; how far it has come.
    pub fn suspend(&self, lane: usize, reason: &str) -> Progress {
        match self.lock().source(lane) {
            Stream::Lane(reader) => reader.source.suspend(reason),
            Stream::Connection(_) => Progress { taken_in: 0, sent: 0 },
        }
    }

    /// Goes on with a lane over this connection. Returns how many bytes are sent again.
    pub fn resume(&self, lane: usize, channel: Channel, theirs: Progress) -> Result<u64, String> {
        let resumed = match self.lock().source(lane) {
            Stream::Lane(reader) => reader.source.resume(channel, theirs),
            Stream::Connection(_) => Err("it is no lane".to_owned()),
        };
        self.wake_all();
        resumed
    }

    /// Whether nothing can come from this peer, or go there, any more.
    pub fn is_broken(&self) -> bool {
        self.lock().broken.is_some()
    }

    /// Fails when no connection of a lane should be made again, with the reason.
    pub fn check(&self) -> Result<(), TransportError> {
        self.lock().broken.clone().map_or(Ok(()), Err)
    }

    /// Lets lanes go on; whether the peer has everything that was written to them, or will not get it.
    pub fn is_settled(&self) -> bool {
        if !self.lanes().is_empty() {
            self.lock().receive();
        }
        self.is_broken() || self.lanes().iter().all(|lane| lane.is_settled())
    }

    /// Tells the peer something as the last thing, if it can be told soon, and closes our side. With [`Kind::Bye`] what was
    /// written before to lanes still reaches the peer, as far as [`Peer::is_settled`] is waited for.
    pub fn farewell(&self, kind: Kind, reason: &str) {
        let deadline = Instant::now() + LAST_WORDS;
        let mut end = MAX_REASON.min(reason.len());
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        for (index, writer) in self.writers.iter().enumerate() {
            let mut writer = loop {
                match writer.try_lock() {
                    Ok(writer) => break writer,
                    Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Err(TryLockError::WouldBlock) => {
                        self.hang_up();
                        return;
                    }
                }
            };
            let order = self.link().map_or(0, Link::next_order);
            let header = Header { kind, len: end as u64, tag: Tag([0; 5]), order }.to_bytes();
            if writer.ring.is_some() || !writer.torn {
                // One attempt: a peer that takes nothing learns from the closed connection.
                let _ = writer.stream.write_vectored(&[IoSlice::new(&header), IoSlice::new(&reason.as_bytes()[..end])]);
            }
            writer.torn = true;
            match &self.way {
                Way::Connection(socket) => drop(socket.shutdown(Shutdown::Write)),
                Way::Link(link) if kind == Kind::Bye => link.lanes[index].end(),
                Way::Link(link) => link.lanes[index].close(),
            }
        }
    }

    pub fn hang_up(&self) {
        match &self.way {
            Way::Connection(socket) => drop(socket.shutdown(Shutdown::Both)),
            Way::Link(link) => link.lanes.iter().for_each(|lane| lane.close()),
        }
    }

    /// The writer: where there are lanes, that of one which has a connection and is not busy, or else is not busy.
    pub(super) fn writer(&self) -> MutexGuard<'_, Writer> {
        let turn = self.link().map(Link::next_turn);
        for may_be_down in [false, true] {
            for lane in turn.clone().into_iter().flatten() {
                if let Ok(writer) = self.writers[lane].try_lock()
                    && (may_be_down || writer.stream.is_up())
                {
                    return writer;
                }
            }
        }
        let first = turn.and_then(|mut turn| turn.next()).unwrap_or(0);
        self.writers[first].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
