use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::channel::{Channel, Identity};
use crate::transport::shm::{self, HostId};

use super::Mesh;
use super::handshake::{HANDSHAKE_LIMIT, Instance, Proven, Purpose, Setup, malformed, prepare, reason};
use super::link::REPAIR_LIMIT;

/// Why the processes of a job could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// Arguments that do not fit together.
    #[error("{0}")]
    Misuse(String),
    /// The process at this address has another job secret.
    #[error("process {peer} at {address} does not have this job's secret: does the address belong to another job?")]
    WrongSecret {
        /// The process that should be there.
        peer: u32,
        /// Where it was looked for.
        address: SocketAddr,
    },
    /// Shared memory was asked for and cannot be had.
    #[error("no shared memory with process {peer} at {address}: {reason}")]
    NoSharedMemory {
        /// The process that it should be shared with.
        peer: u32,
        /// Where that listens.
        address: SocketAddr,
        /// What stands against it.
        reason: String,
    },
    /// Not everyone was there in time.
    #[error("not all processes connected within {:.0} s: {}", timeout.as_secs_f64(), missing.join("; "))]
    Timeout {
        /// The limit.
        timeout: Duration,
        /// One entry per process, with what is known about it.
        missing: Vec<String>,
    },
    /// The operating system refused something.
    #[error("cannot connect to the other processes: {0}")]
    Io(#[from] io::Error),
}

/// What may carry the bytes between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Shared memory where two processes can have it, else TCP.
    Auto,
    /// TCP.
    Tcp,
    /// Shared memory; without it the processes do not connect.
    Shm,
}

/// How the processes of a job connect.
#[derive(Clone, Debug)]
pub struct MeshOptions {
    /// With an identity, which then all have, the connections are encrypted.
    pub identity: Option<Identity>,
    /// What may carry the bytes. Two processes share memory if they can and both may.
    pub choice: Choice,
    /// The slice of each process; empty where all are of one. Processes of different slices that share no memory have several
    /// connections, and make them again when they break.
    pub slices: Vec<u32>,
    /// How long the connecting may take, and at most how long that of a link that has broken.
    pub timeout: Duration,
}

/// An open way to another process.
pub(super) struct Connection {
    pub channel: Channel,
    pub host: HostId,
    pub instance: Instance,
    /// What both share, or why that is nothing.
    pub shared: Result<shm::Shared, String>,
    /// The further lanes, where this is the first one of a link between slices.
    pub lanes: Option<Vec<Channel>>,
}

impl Connection {
    /// Whether it is made again when it breaks.
    pub fn is_link(&self) -> bool {
        self.lanes.is_some()
    }

    /// Whether the other process runs on this host, as far as that can be told.
    pub fn is_local(&self) -> bool {
        let ends = (self.channel.socket().local_addr(), self.channel.socket().peer_addr());
        self.shared.is_ok() || matches!(ends, (Ok(here), Ok(there)) if here.ip() == there.ip())
    }
}

/// Lanes of a link between slices: as many as pay, if there are not too many processes. Each is an open file, of which many
/// systems allow 1024.
const LANES: u32 = 4;
const MANY_LANES: u32 = 512;

/// No more strangers than this many at a time.
const MAX_HANDSHAKES: usize = 1024;

const RETRY_PAUSE: Duration = Duration::from_millis(20);
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Word from the connecting threads.
enum News {
    Connected(u32, Connection),
    /// A further lane of the link to this process.
    Lane(u32, u32, Channel),
    /// Why the connection to this process is not there yet.
    Trouble(u32, String),
    /// A connection that did not become one of ours.
    Stranger(SocketAddr, String),
    WrongSecret(u32),
}

/// Connects every pair of processes: this one calls those with a lower index and is called by the others. `addresses`
/// holds every process' listening address, `listener` is ours. Both sides of each connection prove that they know
/// `secret`; whoever else connects is turned away.
pub fn connect_mesh(
    process_index: u32,
    listener: TcpListener,
    addresses: &[SocketAddr],
    secret: &[u8],
    options: MeshOptions,
) -> Result<Mesh, MeshError> {
    let process_count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    if process_index >= process_count {
        return Err(MeshError::Misuse(format!("process {process_index} of {process_count} does not exist")));
    }
    let MeshOptions { identity, choice, slices, timeout } = options;
    let setup = Arc::new(Setup {
        process_index,
        addresses: addresses.to_vec(),
        key: blake3::derive_key("spmd-run data plane handshake v1", secret),
        identity,
        choice,
        slices,
        host: if choice == Choice::Tcp { HostId::UNKNOWN } else { HostId::here().unwrap_or(HostId::UNKNOWN) },
        instance: Instance::new()?,
        deadline: Instant::now() + timeout.min(Duration::from_secs(365 * 24 * 60 * 60)),
        over: AtomicBool::new(false),
        mesh: OnceLock::new(),
    });
    let door = Door { setup: Arc::clone(&setup), listener: Arc::new(listener) };
    let (tell, news) = mpsc::channel();
    for peer in 0..process_index {
        let (setup, tell) = (Arc::clone(&setup), tell.clone());
        std::thread::Builder::new().name(format!("tcp-connect-{peer}")).spawn(move || setup.call(peer, &tell))?;
    }
    if process_index + 1 < process_count {
        door.listener.set_nonblocking(true)?;
        let (setup, listener) = (Arc::clone(&setup), Arc::clone(&door.listener));
        std::thread::Builder::new().name("tcp-accept".to_owned()).spawn(move || setup.accept(&listener, &tell))?;
    } else {
        drop(tell);
    }
    let connections = setup.gather(&news, timeout)?;
    let may_be_called = connections.iter().skip(process_index as usize).flatten().any(Connection::is_link);
    Ok(Mesh::new(&setup, may_be_called.then_some(door), timeout.min(REPAIR_LIMIT), connections)?)
}

/// The listening socket; nobody calls any more when it is dropped.
pub(super) struct Door {
    setup: Arc<Setup>,
    listener: Arc<TcpListener>,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.setup.over.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }
}

/// What has come so far.
#[derive(Default)]
struct Arrivals {
    connections: BTreeMap<u32, Connection>,
    lanes: BTreeMap<(u32, u32), Channel>,
}

impl Setup {
    /// Whether there is a link of several lanes between this process and another one, in a job of several slices.
    fn is_link(&self, peer: u32, connection: &Connection) -> bool {
        let slice = |process: u32| self.slices.get(process as usize);
        connection.shared.is_err() && slice(peer) != slice(self.process_index)
    }

    fn lanes(&self) -> u32 {
        (MANY_LANES / self.process_count()).clamp(1, LANES)
    }

    fn is_complete(&self, peer: u32, arrivals: &Arrivals) -> bool {
        arrivals.connections.get(&peer).is_some_and(|connection| {
            !self.is_link(peer, connection) || (1..self.lanes()).all(|lane| arrivals.lanes.contains_key(&(peer, lane)))
        })
    }

    fn take(&self, peer: u32, arrivals: &mut Arrivals) -> Option<Connection> {
        let mut connection = arrivals.connections.remove(&peer)?;
        connection.lanes = self
            .is_link(peer, &connection)
            .then(|| (1..self.lanes()).filter_map(|lane| arrivals.lanes.remove(&(peer, lane))).collect());
        Some(connection)
    }

    fn gather(&self, news: &mpsc::Receiver<News>, timeout: Duration) -> Result<Vec<Option<Connection>>, MeshError> {
        let mut arrivals = Arrivals::default();
        let mut troubles = BTreeMap::new();
        let mut strangers = BTreeMap::new();
        loop {
            let others = (0..self.process_count()).filter(|process| *process != self.process_index);
            let missing: Vec<u32> = others.filter(|process| !self.is_complete(*process, &arrivals)).collect();
            if missing.is_empty() {
                return Ok((0..self.process_count()).map(|peer| self.take(peer, &mut arrivals)).collect());
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            match news.recv_timeout(left) {
                Ok(News::Connected(peer, connection)) => {
                    prepare(connection.channel.socket())?;
                    if let (Choice::Shm, Err(reason), Some(&address)) =
                        (self.choice, &connection.shared, self.addresses.get(peer as usize))
                    {
                        return Err(MeshError::NoSharedMemory { peer, address, reason: reason.clone() });
                    }
                    arrivals.connections.insert(peer, connection);
                }
                Ok(News::Lane(peer, lane, channel)) => {
                    prepare(channel.socket())?;
                    arrivals.lanes.insert((peer, lane), channel);
                }
                Ok(News::Trouble(peer, trouble)) => {
                    troubles.insert(peer, trouble);
                }
                Ok(News::Stranger(address, problem)) => {
                    strangers.insert(address.ip(), problem);
                }
                Ok(News::WrongSecret(peer)) => {
                    let address = self.addresses.get(peer as usize).copied();
                    return Err(match address {
                        Some(address) => MeshError::WrongSecret { peer, address },
                        None => MeshError::Misuse(format!("process {peer} does not exist")),
                    });
                }
                Err(_) => {
                    let mut missing: Vec<String> = missing.iter().map(|&peer| self.missing(peer, &troubles)).collect();
                    missing.extend(strangers.iter().map(|(ip, problem)| format!("turned away {ip}: {problem}")));
                    return Err(MeshError::Timeout { timeout, missing });
                }
            }
        }
    }

    fn missing(&self, peer: u32, troubles: &BTreeMap<u32, String>) -> String {
        match (self.addresses.get(peer as usize), troubles.get(&peer)) {
            (Some(address), Some(trouble)) => format!("process {peer} at {address}: {trouble}"),
            (Some(address), None) if peer < self.process_index => format!("process {peer} at {address} did not answer"),
            _ => format!("process {peer} did not call"),
        }
    }

    /// Makes all connections to a process.
    fn call(&self, peer: u32, tell: &mpsc::Sender<News>) {
        let mut lanes = 1;
        let mut lane = 0;
        while lane < lanes && !self.over.load(Ordering::Relaxed) {
            let news = self.call_once(peer, lane).unwrap_or_else(|trouble| News::Trouble(peer, trouble));
            match &news {
                News::Trouble(..) => std::thread::sleep(RETRY_PAUSE),
                News::Connected(_, connection) if self.is_link(peer, connection) => (lane, lanes) = (1, self.lanes()),
                News::WrongSecret(_) => lanes = 0,
                _ => lane += 1,
            }
            if tell.send(news).is_err() || self.deadline <= Instant::now() {
                return;
            }
        }
    }

    fn call_once(&self, peer: u32, lane: u32) -> Result<News, String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let address = self.addresses.get(peer as usize).ok_or("it has no address")?;
        let stream = TcpStream::connect_timeout(address, left.min(CONNECT_LIMIT)).map_err(|error| error.to_string())?;
        let end = self.deadline.min(Instant::now() + HANDSHAKE_LIMIT);
        let proven = self.introduce(stream, peer, Purpose::Lane(lane), end);
        let news = proven.and_then(|proven| proven.map_or(Ok(News::WrongSecret(peer)), |it| self.admit(it, end)));
        news.map_err(|error| format!("the handshake failed: {}", reason(&error)))
    }

    /// What becomes of a connection of a process that has proved who it is.
    fn admit(&self, proven: Proven, end: Instant) -> io::Result<News> {
        let Proven { peer, purpose, instance, host, mut channel } = proven;
        match purpose {
            Purpose::Lane(0) => {
                let shared = self.share_memory(&mut channel, host, end)?;
                Ok(News::Connected(peer, Connection { channel, host, instance, shared, lanes: None }))
            }
            Purpose::Lane(lane) if lane < self.lanes() => Ok(News::Lane(peer, lane, channel)),
            _ => Err(malformed("a lane that nobody has")),
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener, tell: &mpsc::Sender<News>) {
        let busy = Arc::new(AtomicUsize::new(0));
        while !self.over.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, address)) => {
                    if busy.fetch_add(1, Ordering::Relaxed) >= MAX_HANDSHAKES {
                        busy.fetch_sub(1, Ordering::Relaxed);
                        continue;
                    }
                    let (setup, tell, still_busy) = (Arc::clone(self), tell.clone(), Arc::clone(&busy));
                    let spawned = std::thread::Builder::new().name("tcp-handshake".to_owned()).spawn(move || {
                        let news = setup.answer(stream).unwrap_or_else(|error| {
                            let problem = reason(&error);
                            tracing::warn!(%address, problem, "turned a connection away");
                            Some(News::Stranger(address, problem))
                        });
                        still_busy.fetch_sub(1, Ordering::Relaxed);
                        if let Some(news) = news {
                            // No one listens once everyone is there.
                            let _ = tell.send(news);
                        }
                    });
                    if spawned.is_err() {
                        busy.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], None);
                }
                // A connection that was gone again, or too many open files.
                Err(_) => std::thread::sleep(RETRY_PAUSE),
            }
        }
    }

    /// Says who called, unless that was for a lane that goes on.
    fn answer(&self, stream: TcpStream) -> io::Result<Option<News>> {
        let end = Instant::now() + HANDSHAKE_LIMIT;
        let proven = self.receive(stream, end)?;
        match proven.purpose {
            Purpose::Again(lane) => self.answer_again(proven, lane, end).map(|()| None),
            Purpose::Lane(_) => self.admit(proven, end).map(Some),
        }
    }
}
