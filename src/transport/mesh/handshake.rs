//! What two processes say to each other first over every connection between them: who they are, that both know the job's
//! secret, and what the connection is for.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::channel::{Channel, Identity, NEEDS_TLS, is_client_hello, reason_of_refusal, time_left};
use crate::transport::shm::{self, HOST_LEN, HostId, OFFER_LEN, Offer, Offered};

use super::Shared;
use super::connect::Choice;
use super::lane::Progress;

/// Says what speaks on this port, and in which version.
const MAGIC: [u8; 8] = *b"spmdrun\x04";
const NONCE_LEN: usize = 32;
const MAC_LEN: usize = 32;
const INSTANCE_LEN: usize = 16;
/// Magic, sender, receiver, number of processes, purpose, nonce, the sender's instance and host.
const HELLO_LEN: usize = 8 + 4 * 4 + NONCE_LEN + INSTANCE_LEN + HOST_LEN;
const ACCEPTED: u8 = 1;
/// The first byte of an offer of shared memory.
const OFFERED: u8 = 1;
/// Whether the offer could be opened, and whether the memory of the process that made it can be read, too.
const OPENED: u8 = 1;
const READABLE: u8 = 2;

/// A stranger on our port is given this long.
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// In a purpose: the lane lost its connection.
const AGAIN: u32 = 1 << 31;

/// Who we are, shared by the threads that make connections.
pub(super) struct Setup {
    pub process_index: u32,
    pub addresses: Vec<SocketAddr>,
    pub key: [u8; 32],
    pub identity: Option<Identity>,
    pub choice: Choice,
    /// The slice of each process; empty where there is one.
    pub slices: Vec<u32>,
    /// Unknown to all if this process does not share memory.
    pub host: HostId,
    pub instance: Instance,
    pub deadline: Instant,
    pub over: AtomicBool,
    /// The mesh, once all are connected.
    pub mesh: OnceLock<Weak<Shared>>,
}

/// A number that a process draws when it joins its job. Another one that came in its place has another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Instance([u8; INSTANCE_LEN]);

impl Instance {
    pub fn new() -> io::Result<Instance> {
        Ok(Instance(random()?))
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The first connection of this lane. Lane 0 is that of all processes; others have only links between slices.
    Lane(u32),
    /// A lane that has lost its connection.
    Again(u32),
}

/// A connection whose other end has proved to be this process.
pub(super) struct Proven {
    pub peer: u32,
    pub purpose: Purpose,
    pub instance: Instance,
    pub host: HostId,
    pub channel: Channel,
}

/// What the called process answers to one that calls again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    GoesOn(Progress),
    /// It is not done with its first connections.
    NotYet,
    UnknownLink,
}

const GOES_ON: u8 = 1;
const NOT_YET: u8 = 2;
const UNKNOWN_LINK: u8 = 3;

/// What a process says when it calls again: whose lane it is at the other end, and how far it has come.
pub(super) struct Request {
    pub instance: Instance,
    pub progress: Progress,
}

impl Purpose {
    fn to_word(self) -> u32 {
        match self {
            Purpose::Lane(lane) => lane,
            Purpose::Again(lane) => lane | AGAIN,
        }
    }

    fn from_word(word: u32) -> Purpose {
        if word & AGAIN == 0 { Purpose::Lane(word) } else { Purpose::Again(word & !AGAIN) }
    }
}

impl Request {
    pub fn send(self, channel: &mut Channel, end: Instant) -> io::Result<Answer> {
        write_within(channel, &[&self.instance.0[..], &self.progress.to_bytes()].concat(), end)?;
        let mut answer = [0; 1 + Progress::LEN];
        read_within(channel, &mut answer, end)?;
        let [kind, progress @ ..] = answer;
        match kind {
            GOES_ON => Ok(Answer::GoesOn(Progress::from_bytes(&progress))),
            NOT_YET => Ok(Answer::NotYet),
            UNKNOWN_LINK => Ok(Answer::UnknownLink),
            _ => Err(malformed("an answer that means nothing")),
        }
    }

    pub fn receive(channel: &mut Channel, end: Instant) -> io::Result<Request> {
        let (mut instance, mut progress) = ([0; INSTANCE_LEN], [0; Progress::LEN]);
        read_within(channel, &mut instance, end)?;
        read_within(channel, &mut progress, end)?;
        Ok(Request { instance: Instance(instance), progress: Progress::from_bytes(&progress) })
    }
}

impl Answer {
    pub fn send(self, channel: &mut Channel, end: Instant) -> io::Result<()> {
        let (kind, progress) = match self {
            Answer::GoesOn(progress) => (GOES_ON, progress.to_bytes()),
            Answer::NotYet => (NOT_YET, [0; Progress::LEN]),
            Answer::UnknownLink => (UNKNOWN_LINK, [0; Progress::LEN]),
        };
        write_within(channel, &[&[kind][..], &progress].concat(), end)
    }
}

impl Setup {
    pub fn process_count(&self) -> u32 {
        self.addresses.len() as u32
    }

    /// The caller's side of the handshake. `None` if the other side does not know the secret.
    pub fn introduce(
        &self,
        stream: TcpStream,
        peer: u32,
        purpose: Purpose,
        end: Instant,
    ) -> io::Result<Option<Proven>> {
        let mut channel = Channel::call(stream, self.identity.as_ref(), end)?;
        let hello = self.hello(peer, purpose)?;
        write_within(&mut channel, &hello, end)?;
        let mut answer = [0; HELLO_LEN + MAC_LEN];
        read_within(&mut channel, &mut answer, end)?;
        let (their_hello, their_mac) = answer.split_at(HELLO_LEN);
        let theirs = Hello::parse(their_hello, self.process_index, self.process_count())?;
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
        Ok(Some(theirs.proven(channel)))
    }

    /// The called side of the handshake.
    pub fn receive(&self, stream: TcpStream, end: Instant) -> io::Result<Proven> {
        stream.set_nonblocking(false)?;
        let mut channel = Channel::answer(stream, self.identity.as_ref(), end)?;
        let mut their_hello = [0; HELLO_LEN];
        read_within(&mut channel, &mut their_hello, end)?;
        let theirs = Hello::parse(&their_hello, self.process_index, self.process_count())?;
        if theirs.from <= self.process_index {
            return Err(malformed(&format!("process {} called, which should be called", theirs.from)));
        }
        let hello = self.hello(theirs.from, theirs.purpose)?;
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
        Ok(theirs.proven(channel))
    }

    /// Both sides offer a ring and open the other's, and try to read from the other's memory. The rings are used if both
    /// could open them, else both know why not.
    pub fn share_memory(
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

    fn hello(&self, to: u32, purpose: Purpose) -> io::Result<[u8; HELLO_LEN]> {
        let nonce: [u8; NONCE_LEN] = random()?;
        let mut hello = [0; HELLO_LEN];
        let numbers = [self.process_index, to, self.process_count(), purpose.to_word()].map(u32::to_le_bytes);
        let host = self.host.to_bytes();
        let fields = [&MAGIC[..], numbers.as_flattened(), &nonce, &self.instance.0, &host];
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

fn random<const LEN: usize>() -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What a process says of itself.
struct Hello {
    from: u32,
    purpose: Purpose,
    instance: Instance,
    host: HostId,
}

impl Hello {
    /// Reads a hello that is meant for process `to`.
    fn parse(bytes: &[u8], to: u32, process_count: u32) -> io::Result<Hello> {
        let (magic, rest) = bytes.split_at_checked(MAGIC.len()).ok_or_else(|| malformed("a short hello"))?;
        if is_client_hello(magic) {
            return Err(malformed(NEEDS_TLS));
        }
        if magic != MAGIC {
            return Err(malformed("it is not a process of a job, or runs another version"));
        }
        let mut fields = rest.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let (from, for_whom, count, purpose) = (fields.next(), fields.next(), fields.next(), fields.next());
        if count != Some(process_count) {
            return Err(malformed(&format!("its job has {} processes, ours has {process_count}", count.unwrap_or(0))));
        }
        if for_whom != Some(to) {
            return Err(malformed(&format!("it looks for process {}", for_whom.unwrap_or(0))));
        }
        let from =
            from.filter(|from| *from < process_count).ok_or_else(|| malformed("a process index out of range"))?;
        let short = || malformed("a short hello");
        let (rest, host) = bytes.split_last_chunk().ok_or_else(short)?;
        let instance = Instance(*rest.last_chunk().ok_or_else(short)?);
        let purpose = Purpose::from_word(purpose.ok_or_else(short)?);
        Ok(Hello { from, purpose, instance, host: HostId::from_bytes(*host) })
    }

    fn proven(self, channel: Channel) -> Proven {
        let Hello { from: peer, purpose, instance, host } = self;
        Proven { peer, purpose, instance, host, channel }
    }
}

pub(super) fn malformed(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_owned())
}

/// What went wrong in a handshake.
pub(super) fn reason(error: &io::Error) -> String {
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
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let keepalive =
        socket2::TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
