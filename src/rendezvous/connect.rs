//! From `HOST:PORT` to a connection that the coordinator has accepted.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::channel::{Channel, Identity, NEEDS_TLS, is_alert, reason_of_refusal};

use super::handshake::{HELLO_LENGTH, Hellos, Key, MARK_LENGTH, VERDICT_LENGTH, hello, is_marked, job, version};
use super::report::Seconds;
use super::status::JobStatus;
use super::wire::{Decoder, Frame, Join, LIMITS, PROTOCOL, Request, Response};
use super::{Heartbeat, JobId, JobToken, JoinError, JoinOptions, Tls};

/// The call number of the first request, which is answered when all have joined.
pub const JOIN_CALL: u64 = 1;

const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// When processes start together, some come before the coordinator, which is no news.
const FIRST_LINE: Duration = Duration::from_secs(1);
const WAITING_LINE: Duration = Duration::from_secs(5);
const LISTEN_RESOLVE_LIMIT: Duration = Duration::from_secs(10);
const MAX_HOST: usize = 255;
/// As many bytes tell an alert of TLS from the mark.
const ALERT_MARK_LENGTH: usize = 2;

/// Opens the socket for a coordinator at `HOST:PORT`; port 0 takes a free one.
///
/// The error says what to do when the port is in use or the address is another machine's.
pub fn listen(address: &str) -> Result<TcpListener, JoinError> {
    check_address(address)?;
    let started = Instant::now();
    let resolved = resolve(address, LISTEN_RESOLVE_LIMIT)
        .map_err(|reason| Passing::Unresolved { reason }.into_error(address, started.elapsed()))?;
    TcpListener::bind(&*resolved).map_err(|source| JoinError::Listen { address: address.to_owned(), source })
}

/// Where process 0 reaches the coordinator that it hosts itself.
pub fn own_address(listener: &TcpListener) -> io::Result<SocketAddr> {
    let mut address = listener.local_addr()?;
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Ok(address)
}

/// A connection on which this process has been accepted.
pub struct Connection {
    pub channel: Channel,
    pub decoder: Decoder,
    pub heartbeat: Heartbeat,
    pub address: String,
}

/// Connects, proves the token and joins; tries again while the coordinator may not be there yet.
pub fn connect(
    options: &JoinOptions,
    identity: Option<&Identity>,
    address: &str,
    deadline: Instant,
) -> Result<Connection, JoinError> {
    let dial = Dial {
        address,
        token: options.token.as_ref(),
        identity,
        job: JobId::of(options.token.as_ref()),
        timeout: options.timeout,
        deadline,
        is_patient: true,
    };
    let join = || {
        Request::Join(Join {
            version: options.version.clone(),
            process_index: options.process_index,
            process_count: options.process_count,
            host: options.host.chars().take(MAX_HOST).collect(),
            slice: options.slice,
            timeout: dial.left(),
        })
    };
    let Answered { channel, decoder, answer } = dial.call(&join)?;
    match answer.message {
        Response::Accepted(heartbeat) => Ok(Connection { channel, decoder, heartbeat, address: address.to_owned() }),
        Response::Refused(reason) => Err(JoinError::Refused(reason)),
        _ => Err(JoinError::NotACoordinator(address.to_owned())),
    }
}

/// Asks a coordinator how its job is doing.
///
/// `token` and `tls` are the job's; without a token only a loopback address is allowed. Nothing is tried again.
pub fn query_status(
    address: &str,
    token: Option<&JobToken>,
    tls: Option<&Tls>,
    timeout: Duration,
) -> Result<JobStatus, JoinError> {
    let deadline = Instant::now() + timeout.min(Duration::from_secs(3600));
    let identity = tls.map(|tls| tls.identity(token)).transpose()?;
    let dial = Dial {
        address,
        token,
        identity: identity.as_ref(),
        job: JobId::default(),
        timeout,
        deadline,
        is_patient: false,
    };
    let Answered { answer, .. } = dial.call(&|| Request::Status)?;
    match answer.message {
        Response::Value => postcard::from_bytes(&answer.body).ok(),
        _ => None,
    }
    .ok_or_else(|| JoinError::NotACoordinator(address.to_owned()))
}

/// How a coordinator is reached.
struct Dial<'a> {
    address: &'a str,
    token: Option<&'a JobToken>,
    identity: Option<&'a Identity>,
    job: JobId,
    /// What the deadline was made of, for messages.
    timeout: Duration,
    deadline: Instant,
    /// Whether it is tried again while the coordinator may not be there yet.
    is_patient: bool,
}

/// A coordinator that knows the token, and its answer to the first request.
struct Answered {
    channel: Channel,
    decoder: Decoder,
    answer: Frame<Response>,
}

enum Failure {
    Final(JoinError),
    Passing(Passing),
}

/// What may be otherwise a moment later.
enum Passing {
    Unresolved { reason: String },
    Unreachable { at: Option<SocketAddr>, reason: String },
}

impl Passing {
    fn text(&self, address: &str) -> String {
        match self {
            Self::Unresolved { reason } => {
                let host = host_of(address);
                format!("waiting for the coordinator: the name '{host}' has no address yet ({reason})")
            }
            Self::Unreachable { at, reason } => {
                format!("waiting for the coordinator: nobody answers at {} yet ({reason})", shown(address, *at))
            }
        }
    }

    fn into_error(self, address: &str, waited: Duration) -> JoinError {
        match self {
            Self::Unresolved { reason } => JoinError::Resolve { host: host_of(address).to_owned(), reason, waited },
            Self::Unreachable { at, reason } => JoinError::Unreachable { address: shown(address, at), reason, waited },
        }
    }
}

fn check_address(address: &str) -> Result<(), JoinError> {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(JoinError::Options(format!("the coordinator's address '{address}' is not HOST:PORT"))),
    }?;
    let host = host_of(address);
    if may_be_host(host) {
        return Ok(());
    }
    Err(JoinError::Options(format!("the coordinator's host '{host}' is neither a host name nor an IP address")))
}

/// Whether a name might have an address, now or later. No name ends in a label of digits, which only IP addresses have.
fn may_be_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[') {
        return address.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    let is_label = |label: &str| {
        let characters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || !byte.is_ascii();
        (1..=63).contains(&label.len()) && label.bytes().all(characters)
    };
    let mut labels = host.strip_suffix('.').unwrap_or(host).split('.');
    let is_name = host.len() <= 253 && labels.clone().all(is_label);
    let is_number = labels.next_back().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    is_name && !is_number || host.parse::<Ipv4Addr>().is_ok()
}

/// The address as given, and as resolved when that says more.
fn shown(address: &str, at: Option<SocketAddr>) -> String {
    match at {
        Some(at) if at.to_string() != address => format!("{address} ({at})"),
        _ => address.to_owned(),
    }
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

impl Dial<'_> {
    /// Connects, proves the token, and sends the first request.
    fn call(&self, request: &dyn Fn() -> Request) -> Result<Answered, JoinError> {
        check_address(self.address)?;
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut next_line = started + FIRST_LINE;
        loop {
            let failure = match self.attempt(request) {
                Ok(answered) => return Ok(answered),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(failure)) => failure,
            };
            let now = Instant::now();
            if !self.is_patient {
                return Err(failure.into_error(self.address, started.elapsed()));
            }
            if now + pause >= self.deadline {
                return Err(failure.into_error(self.address, self.timeout));
            }
            if now >= next_line {
                let left = Duration::from_secs((self.deadline - now).as_secs());
                tracing::info!("{}, trying for {} more", failure.text(self.address), Seconds(left));
                next_line = now + WAITING_LINE;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    fn attempt(&self, request: &dyn Fn() -> Request) -> Result<Answered, Failure> {
        let resolved =
            resolve(self.address, self.left()).map_err(|reason| Failure::Passing(Passing::Unresolved { reason }))?;
        if self.token.is_none() && resolved.iter().any(|address| !address.ip().is_loopback()) {
            return Err(Failure::Final(JoinError::TokenNeeded(self.address.to_owned())));
        }
        let mut failure = Passing::Unresolved { reason: "it has no address".to_owned() };
        for at in resolved {
            let passing = |error: io::Error| Passing::Unreachable { at: Some(at), reason: plain_reason(&error, at) };
            match TcpStream::connect_timeout(&at, self.left().min(ATTEMPT_LIMIT)) {
                Err(error) => failure = passing(error),
                Ok(stream) => match self.enter(stream, request) {
                    Ok(answered) => return Ok(answered),
                    Err(EnterError::Io(error)) => match reason_of_refusal(&error) {
                        Some(reason) => {
                            let address = shown(self.address, Some(at));
                            return Err(Failure::Final(JoinError::Tls { address, reason }));
                        }
                        None => failure = passing(error),
                    },
                    Err(EnterError::Final(error)) => return Err(Failure::Final(error)),
                },
            }
        }
        Err(Failure::Passing(failure))
    }

    fn enter(&self, stream: TcpStream, request: &dyn Fn() -> Request) -> Result<Answered, EnterError> {
        stream.set_nodelay(true)?;
        let mut channel = Channel::call(stream, self.identity, self.deadline)?;
        channel.socket().set_write_timeout(Some(self.left()))?;
        channel.socket().set_read_timeout(Some(self.left()))?;
        self.prove(&mut channel)?;
        channel.write_all(&Frame::new(JOIN_CALL, request()).head().map_err(io::Error::other)?)?;
        channel.flush()?;
        let mut decoder = Decoder::new(LIMITS);
        let mut chunk = [0; 4096];
        loop {
            if let Some(answer) = decoder.next().map_err(io::Error::other)? {
                return Ok(Answered { channel, decoder, answer });
            }
            match channel.read(&mut chunk)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                count => decoder.push(&chunk[..count]),
            }
        }
    }

    /// The handshake.
    fn prove(&self, channel: &mut Channel) -> Result<(), EnterError> {
        let address = || self.address.to_owned();
        let peer = hello(self.job)?;
        channel.write_all(&peer)?;
        channel.flush()?;
        let mut coordinator = [0; HELLO_LENGTH];
        let (mark, rest) = coordinator.split_at_mut(MARK_LENGTH);
        let (first, others) = mark.split_at_mut(ALERT_MARK_LENGTH);
        channel.read_exact(first)?;
        if is_alert(first) {
            let reason = NEEDS_TLS.to_owned();
            return Err(EnterError::Final(JoinError::Tls { address: address(), reason }));
        }
        channel.read_exact(others)?;
        if !is_marked(mark) {
            return Err(EnterError::Final(JoinError::NotACoordinator(address())));
        }
        channel.read_exact(rest)?;
        let theirs = version(&coordinator);
        if theirs != PROTOCOL {
            return Err(EnterError::Final(JoinError::Protocol { address: address(), ours: PROTOCOL, theirs }));
        }
        let (ours, theirs) = (self.job, job(&coordinator));
        if ours.differs_from(theirs) {
            return Err(EnterError::Final(JoinError::OtherJob { address: address(), ours, theirs }));
        }
        let key = Key::new(self.token);
        let hellos = Hellos { peer, coordinator, binding: channel.binding()? };
        channel.write_all(&key.peer_proof(&hellos))?;
        channel.flush()?;
        let mut verdict = [0; VERDICT_LENGTH];
        channel.read_exact(&mut verdict)?;
        if !key.accepts_coordinator(&hellos, verdict) {
            return Err(EnterError::Final(JoinError::Token { address: address(), had_token: self.token.is_some() }));
        }
        Ok(())
    }
}

/// Resolves a name without waiting longer than a limit, which the system's resolver cannot promise.
fn resolve(address: &str, limit: Duration) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let (sender, receiver) = mpsc::channel();
    let name = address.to_owned();
    let resolver = std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
        let _ = sender.send(name.to_socket_addrs().map(Vec::from_iter));
    });
    if let Err(error) = resolver {
        return Err(error.to_string());
    }
    match receiver.recv_timeout(limit) {
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(error)) => {
            let text = error.to_string();
            Err(text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).to_owned())
        }
        Err(_) => Err("the name service does not answer".to_owned()),
    }
}

fn plain_reason(error: &io::Error, at: SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            let refused = "connection refused: the host is there, and nothing listens on this port: process 0 has not started or \
                           listens elsewhere";
            let to_itself = "; this address leads to this host itself, and to no other";
            return if at.ip().is_loopback() { format!("{refused}{to_itself}") } else { refused.to_owned() };
        }
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            "it closed the connection"
        }
        io::ErrorKind::TimedOut => "no answer at all: the address is wrong, the host is down or a firewall is in between",
        io::ErrorKind::WouldBlock => "it accepts connections but does not answer, as if process 0 were stopped",
        _ => return error.to_string(),
    }
    .to_owned()
}

enum EnterError {
    Io(io::Error),
    Final(JoinError),
}

impl From<io::Error> for EnterError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_host_is_no_matter_of_waiting() {
        for host in ["host", "host-a.example.org", "job_0.svc.", "127.0.0.1", "[::1]", "xn--bcher-kva.ch", "bücher.ch"]
        {
            assert!(may_be_host(host), "{host}");
        }
        for host in ["10.0.0.256", "10.0.0", "[::1", "::1", "[x]", "a..b", ".", "a b", "http://host", &"a.".repeat(200)]
        {
            assert!(!may_be_host(host), "{host}");
        }
        let error = listen("http://host:1234").unwrap_err();
        insta::assert_snapshot!(error, @"the coordinator's host 'http://host' is neither a host name nor an IP address");
    }
}
