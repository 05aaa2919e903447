use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::channel::{Channel, Identity, NEEDS_TLS, is_client_hello, reason_of_refusal, time_left};
use crate::transport::shm::{self, HOST_LEN, HostId, OFFER_LEN, Offer, Offered};

use super::Mesh;

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

/// An open way to another process.
pub(super) struct Connection {
    pub channel: Channel,
    pub host: HostId,
    /// What both share, or why that is nothing.
    pub shared: Result<shm::Shared, String>,
}

impl Connection {
    /// Whether the other process runs on this host, as far as that can be told.
    pub fn is_local(&self) -> bool {
        let ends = (self.channel.socket().local_addr(), self.channel.socket().peer_addr());
        self.shared.is_ok() || matches!(ends, (Ok(here), Ok(there)) if here.ip() == there.ip())
    }
}

/// Says what speaks on this port, and in which version.
const MAGIC: [u8; 8] = *b"spmdrun\x03";
const NONCE_LEN: usize = 32;
const MAC_LEN: usize = 32;
/// Magic, sender, receiver, number of processes, nonce, the sender's host.
const HELLO_LEN: usize = 8 + 3 * 4 + NONCE_LEN + HOST_LEN;
const ACCEPTED: u8 = 1;
/// The first byte of an offer of shared memory.
const OFFERED: u8 = 1;
/// Whether the offer could be opened, and whether the memory of the process that made it can be read, too.
const OPENED: u8 = 1;
const READABLE: u8 = 2;

/// A stranger on our port is given this long, and no more than this many at a time.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
const MAX_HANDSHAKES: usize = 1024;

const RETRY_PAUSE: Duration = Duration::from_millis(20);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Who we are, shared by the threads that make connections.
struct Setup {
    process_index: u32,
    process_count: u32,
    key: [u8; 32],
    identity: Option<Identity>,
    choice: Choice,
    /// Unknown to all if this process does not share memory.
    host: HostId,
    deadline: Instant,
    over: AtomicBool,
}

/// Word from the connecting threads.
enum News {
    Connected(u32, Connection),
    /// Why the connection to this process is not there yet.
    Trouble(u32, String),
    /// A connection that did not become one of ours.
    Stranger(SocketAddr, String),
    WrongSecret(u32),
}

/// Connects every pair of processes: this one calls those with a lower index and is called by the others. `addresses`
/// holds every process' listening address, `listener` is ours. Both sides of each connection prove that they know
/// `secret`; whoever else connects is turned away. With an identity, which then all have, the connections are encrypted. Two
/// processes share memory if they can and both may.
pub fn connect_mesh(
    process_index: u32,
    listener: TcpListener,
    addresses: &[SocketAddr],
    secret: &[u8],
    identity: Option<Identity>,
    choice: Choice,
    timeout: Duration,
) -> Result<Mesh, MeshError> {
    let process_count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    if process_index >= process_count {
        return Err(MeshError::Misuse(format!("process {process_index} of {process_count} does not exist")));
    }
    let setup = Arc::new(Setup {
        process_index,
        process_count,
        key: blake3::derive_key("spmd-run data plane handshake v1", secret),
        identity,
        choice,
        host: if choice == Choice::Tcp { HostId::UNKNOWN } else { HostId::here().unwrap_or(HostId::UNKNOWN) },
        deadline: Instant::now() + timeout.min(Duration::from_secs(365 * 24 * 60 * 60)),
        over: AtomicBool::new(false),
    });
    let (tell, news) = mpsc::channel();
    for (peer, &address) in (0..process_index).zip(addresses) {
        let (setup, tell) = (Arc::clone(&setup), tell.clone());
        std::thread::Builder::new()
            .name(format!("tcp-connect-{peer}"))
            .spawn(move || setup.call(peer, address, &tell))?;
    }
    let listener = Arc::new(listener);
    if process_index + 1 < process_count {
        listener.set_nonblocking(true)?;
        let (setup, listener) = (Arc::clone(&setup), Arc::clone(&listener));
        std::thread::Builder::new().name("tcp-accept".to_owned()).spawn(move || setup.accept(&listener, &tell))?;
    } else {
        drop(tell);
    }
    let connections = setup.gather(&news, addresses, timeout);
    setup.over.store(true, Ordering::Relaxed);
    // Wakes the accepting thread.
    let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
    Ok(Mesh::new(process_index, setup.host, connections?)?)
}

impl Setup {
    fn gather(
        &self,
        news: &mpsc::Receiver<News>,
        addresses: &[SocketAddr],
        timeout: Duration,
    ) -> Result<Vec<Option<Connection>>, MeshError> {
        let mut connections: Vec<Option<Connection>> = addresses.iter().map(|_| None).collect();
        let mut troubles = BTreeMap::new();
        let mut strangers = BTreeMap::new();
        loop {
            let missing: Vec<u32> = (0..self.process_count)
                .zip(&connections)
                .filter(|(process, connection)| *process != self.process_index && connection.is_none())
                .map(|(process, _)| process)
                .collect();
            if missing.is_empty() {
                return Ok(connections);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            match news.recv_timeout(left) {
                Ok(News::Connected(peer, connection)) => {
                    prepare(connection.channel.socket())?;
                    if let (Choice::Shm, Err(reason), Some(&address)) =
                        (self.choice, &connection.shared, addresses.get(peer as usize))
                    {
                        return Err(MeshError::NoSharedMemory { peer, address, reason: reason.clone() });
                    }
                    if let Some(place) = connections.get_mut(peer as usize) {
                        *place = Some(connection);
                    }
                }
                Ok(News::Trouble(peer, trouble)) => {
                    troubles.insert(peer, trouble);
                }
                Ok(News::Stranger(address, problem)) => {
                    tracing::warn!(%address, problem, "turned a connection away");
                    strangers.insert(address.ip(), problem);
                }
                Ok(News::WrongSecret(peer)) => {
                    let address = addresses.get(peer as usize).copied();
                    return Err(match address {
                        Some(address) => MeshError::WrongSecret { peer, address },
                        None => MeshError::Misuse(format!("process {peer} does not exist")),
                    });
                }
                Err(_) => {
                    let mut missing: Vec<String> =
                        missing.iter().map(|&peer| self.missing(peer, addresses, &troubles)).collect();
                    missing.extend(strangers.iter().map(|(ip, problem)| format!("turned away {ip}: {problem}")));
                    return Err(MeshError::Timeout { timeout, missing });
                }
            }
        }
    }

    fn missing(&self, peer: u32, addresses: &[SocketAddr], troubles: &BTreeMap<u32, String>) -> String {
        match (addresses.get(peer as usize), troubles.get(&peer)) {
            (Some(address), Some(trouble)) => format!("process {peer} at {address}: {trouble}"),
            (Some(address), None) if peer < self.process_index => format!("process {peer} at {address} did not answer"),
            _ => format!("process {peer} did not call"),
        }
    }

    fn call(&self, peer: u32, address: SocketAddr, tell: &mpsc::Sender<News>) {
        while !self.over.load(Ordering::Relaxed) {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let news = match TcpStream::connect_timeout(&address, left.min(CONNECT_LIMIT)) {
                Ok(stream) => match self.introduce(stream, peer) {
                    Ok(Some(connection)) => News::Connected(peer, connection),
                    Ok(None) => News::WrongSecret(peer),
                    Err(error) => News::Trouble(peer, format!("the handshake failed: {}", reason(&error))),
                },
                Err(error) => News::Trouble(peer, error.to_string()),
            };
            let retry = matches!(news, News::Trouble(..));
            if tell.send(news).is_err() || !retry {
                return;
            }
            std::thread::sleep(RETRY_PAUSE);
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
                        let news = match setup.receive(stream) {
                            Ok((peer, connection)) => News::Connected(peer, connection),
                            Err(error) => News::Stranger(address, reason(&error)),
                        };
                        still_busy.fetch_sub(1, Ordering::Relaxed);
                        // No one listens once everyone is there.
                        let _ = tell.send(news);
                    });
                    if spawned.is_err() {
                        busy.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = self.deadline.saturating_duration_since(Instant::now());
                    let Ok(limit) = Timespec::try_from(left) else { return };
                    if left.is_zero() || poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&limit)).is_err() {
                        return;
                    }
                }
                // A connection that was gone again, or too many open files.
                Err(_) if Instant::now() < self.deadline => std::thread::sleep(RETRY_PAUSE),
                Err(_) => return,
            }
        }
    }

    /// The caller's side of the handshake. `None` if the other side does not know the secret.
    fn introduce(&self, stream: TcpStream, peer: u32) -> io::Result<Option<Connection>> {
        let end = self.deadline.min(Instant::now() + HANDSHAKE_LIMIT);
        let mut channel = Channel::call(stream, self.identity.as_ref(), end)?;
        let hello = self.hello(peer)?;
        write_within(&mut channel, &hello, end)?;
        let mut answer = [0; HELLO_LEN + MAC_LEN];
        read_within(&mut channel, &mut answer, end)?;
        let (their_hello, their_mac) = answer.split_at(HELLO_LEN);
        let (_, host) = parse_hello(their_hello, self.process_index, self.process_count)?;
        let binding = channel.binding()?;
        if !matches(&self.mac("called", &hello, their_hello, binding), their_mac) {
            return Ok(None);
        }
        write_within(&mut channel, self.mac("caller", &hello, their_hello, binding).as_bytes(), end)?;
        let mut verdict = [0];
        read_within(&mut channel, &mut verdict, end)?;
        if verdict != [ACCEPTED] {
            return Err(malformed("it turned us away"));
        }
        let shared = self.share_memory(&mut channel, host, end)?;
        Ok(Some(Connection { channel, host, shared }))
    }

    /// The called side of the handshake; returns who called.
    fn receive(&self, stream: TcpStream) -> io::Result<(u32, Connection)> {
        stream.set_nonblocking(false)?;
        let end = self.deadline.min(Instant::now() + HANDSHAKE_LIMIT);
        let mut channel = Channel::answer(stream, self.identity.as_ref(), end)?;
        let mut their_hello = [0; HELLO_LEN];
        read_within(&mut channel, &mut their_hello, end)?;
        let (peer, host) = parse_hello(&their_hello, self.process_index, self.process_count)?;
        if peer <= self.process_index {
            return Err(malformed(&format!("process {peer} called, which should be called")));
        }
        let hello = self.hello(peer)?;
        let mut answer = hello.to_vec();
        let binding = channel.binding()?;
        answer.extend_from_slice(self.mac("called", &their_hello, &hello, binding).as_bytes());
        write_within(&mut channel, &answer, end)?;
        let mut their_mac = [0; MAC_LEN];
        read_within(&mut channel, &mut their_mac, end).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => malformed("it has another job secret"),
            _ => error,
        })?;
        if !matches(&self.mac("caller", &their_hello, &hello, binding), &their_mac) {
            return Err(malformed("it has another job secret"));
        }
        write_within(&mut channel, &[ACCEPTED], end)?;
        let shared = self.share_memory(&mut channel, host, end)?;
        Ok((peer, Connection { channel, host, shared }))
    }

    /// Both sides offer a ring and open the other's, and try to read from the other's memory. The rings are used if both
    /// could open them, else both know why not.
    fn share_memory(
        &self,
        channel: &mut Channel,
        their_host: HostId,
        end: Instant,
    ) -> io::Result<Result<shm::Shared, String>> {
        let offered = match self.choice {
            Choice::Tcp => Err("this process uses TCP only".to_owned()),
            Choice::Auto | Choice::Shm => Offered::new().map_err(|error| format!("cannot share memory: {error}")),
        };
        let mut ours = [0; 1 + OFFER_LEN];
        if let Ok(offered) = &offered {
            ours[0] = OFFERED;
            ours[1..].copy_from_slice(&offered.offer().to_bytes());
        }
        write_within(channel, &ours, end)?;
        let mut theirs = [0; 1 + OFFER_LEN];
        read_within(channel, &mut theirs, end)?;
        let [kind, theirs @ ..] = theirs;
        let opened = match (&offered, kind) {
            (Err(reason), _) => Err(reason.clone()),
            (Ok(_), OFFERED) if self.host.is_same(&their_host) => open(&Offer::from_bytes(&theirs)),
            (Ok(_), OFFERED) => Err("it runs on another host or in another container".to_owned()),
            (Ok(_), _) => Err("the other process does not share memory".to_owned()),
        };
        let verdict = opened.as_ref().map_or(0, |(_, memory)| if memory.is_some() { READABLE } else { OPENED });
        write_within(channel, &[verdict], end)?;
        let mut their_verdict = [0];
        read_within(channel, &mut their_verdict, end)?;
        Ok(match (opened, offered) {
            (Ok((theirs, memory)), Ok(ours)) if matches!(their_verdict, [OPENED | READABLE]) => Ok(shm::Shared {
                writer: shm::Writer::new(ours.into_segment()),
                reader: shm::Reader::new(theirs),
                memory,
                is_readable: their_verdict == [READABLE],
            }),
            (Ok(_), _) => Err("the other process cannot open this one's memory".to_owned()),
            (Err(reason), _) => Err(reason),
        })
    }

    fn hello(&self, to: u32) -> io::Result<[u8; HELLO_LEN]> {
        let mut nonce = [0; NONCE_LEN];
        File::open("/dev/urandom")?.read_exact(&mut nonce)?;
        let mut hello = [0; HELLO_LEN];
        let numbers = [self.process_index, to, self.process_count].map(u32::to_le_bytes);
        let host = self.host.to_bytes();
        let fields = [&MAGIC[..], numbers.as_flattened(), &nonce, &host];
        for (place, byte) in hello.iter_mut().zip(fields.into_iter().flatten()) {
            *place = *byte;
        }
        Ok(hello)
    }

    /// `binding` is that of the connection, so that nobody can pass the hash on to another one.
    fn mac(&self, role: &str, caller_hello: &[u8], called_hello: &[u8], binding: Option<[u8; 32]>) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(role.as_bytes()).update(caller_hello).update(called_hello);
        hasher.update(binding.as_ref().map_or(&[], |binding| &binding[..]));
        hasher.finalize()
    }
}

/// The ring of a process of this host, and its memory if that may be read.
fn open(offer: &Offer) -> Result<(shm::Segment, Option<shm::Memory>), String> {
    let ring = offer.open();
    let ring = ring.map_err(|error| format!("cannot open the memory of process id {}: {error}", offer.process))?;
    // The system may forbid it (Yama, seccomp); then all goes through the rings.
    let memory = offer.memory().inspect_err(|error| tracing::debug!(%error, offer.process, "its memory is not read"));
    Ok((ring, memory.ok()))
}

/// Compares in constant time.
fn matches(mac: &blake3::Hash, bytes: &[u8]) -> bool {
    blake3::Hash::from_slice(bytes).is_ok_and(|theirs| theirs == *mac)
}

/// Returns the sender of a hello that is meant for process `to`, and its host.
fn parse_hello(bytes: &[u8], to: u32, process_count: u32) -> io::Result<(u32, HostId)> {
    let (magic, rest) = bytes.split_at_checked(MAGIC.len()).ok_or_else(|| malformed("a short hello"))?;
    if is_client_hello(magic) {
        return Err(malformed(NEEDS_TLS));
    }
    if magic != MAGIC {
        return Err(malformed("it is not a process of a job, or runs another version"));
    }
    let mut fields = rest.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let (from, for_whom, count) = (fields.next(), fields.next(), fields.next());
    if count != Some(process_count) {
        return Err(malformed(&format!("its job has {} processes, ours has {process_count}", count.unwrap_or(0))));
    }
    if for_whom != Some(to) {
        return Err(malformed(&format!("it looks for process {}", for_whom.unwrap_or(0))));
    }
    let from = from.filter(|from| *from < process_count).ok_or_else(|| malformed("a process index out of range"))?;
    let host = bytes.last_chunk().copied().map(HostId::from_bytes).ok_or_else(|| malformed("a short hello"))?;
    Ok((from, host))
}

fn malformed(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_owned())
}

/// What went wrong in a handshake.
fn reason(error: &io::Error) -> String {
    reason_of_refusal(error).unwrap_or_else(|| error.to_string())
}

fn read_within(channel: &mut Channel, mut bytes: &mut [u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        channel.socket().set_read_timeout(Some(time_left(end)?))?;
        match channel.read(bytes) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_within(channel: &mut Channel, bytes: &[u8], end: Instant) -> io::Result<()> {
    channel.socket().set_write_timeout(Some(time_left(end)?))?;
    channel.write_all(bytes)?;
    channel.flush()
}

/// Sets a connection up for messages.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let keepalive =
        socket2::TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
