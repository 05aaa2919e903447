//! TCP connections between the processes of a job, in TLS where the job asks for it.
//!
//! Both ends show a certificate of the job's own authority ([`Identity`]), so that nobody else comes past the handshake.
//! Whether a certificate names the host that shows it does not matter: processes prove the job's secret over every
//! connection as well, and what they prove it with is bound to the connection, so that whoever
//! stands in between cannot pass it on.

mod identity;
mod refusal;
mod session;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, Connection, ServerConnection};

pub use identity::{Identity, IdentityError};
pub(crate) use refusal::{GARBAGE, LACKS_TLS, NEEDS_TLS, PLAIN_ONLY, is_alert, is_client_hello, reason_of_refusal};
use session::Session;
pub(crate) use session::binding_of;

/// Bytes that are taken in at a time, some records of TLS.
const RECORDS_LEN: usize = 64 << 10;

/// Both halves of a connection.
pub(crate) struct Channel {
    reader: Reader,
    writer: Writer,
}

/// What comes in. Reads as its socket does: blocking or not, with a limit or without.
pub(crate) struct Reader {
    socket: Arc<TcpStream>,
    tls: Option<Opener>,
}

struct Opener {
    session: Arc<Session>,
    /// What has come and was not opened yet.
    records: Box<[u8]>,
    start: usize,
    end: usize,
}

/// What goes out. Bytes that were written may wait for room in a socket that does not block: see [`Writer::is_flushed`].
pub(crate) struct Writer {
    socket: Arc<TcpStream>,
    tls: Option<Sealer>,
}

struct Sealer {
    session: Arc<Session>,
    /// What was sealed and not sent yet, from `sent` on.
    records: Vec<u8>,
    sent: usize,
}

impl Channel {
    /// The calling side of a connection whose socket blocks. Without an identity it is plain, else the handshake has to end
    /// in time.
    pub fn call(socket: TcpStream, identity: Option<&Identity>, end: Instant) -> io::Result<Channel> {
        let connection = identity.map(|identity| {
            ClientConnection::new(identity.client(), Identity::name()).map_err(io::Error::other).map(Connection::from)
        });
        Channel::new(socket, connection.transpose()?, end)
    }

    /// The called side.
    pub fn answer(socket: TcpStream, identity: Option<&Identity>, end: Instant) -> io::Result<Channel> {
        let connection = identity
            .map(|identity| ServerConnection::new(identity.server()).map_err(io::Error::other).map(Connection::from));
        Channel::new(socket, connection.transpose()?, end)
    }

    fn new(socket: TcpStream, connection: Option<Connection>, end: Instant) -> io::Result<Channel> {
        let session = match connection {
            Some(mut connection) => {
                // Each call may end early, as sockets with a limit seem not to be ready when it is over.
                while connection.is_handshaking() || connection.wants_write() {
                    connection.complete_io(&mut Limited { socket: &socket, end })?;
                }
                Some(Arc::new(Session::new(connection)))
            }
            None => None,
        };
        let socket = Arc::new(socket);
        let opener = |session: Arc<Session>| Opener {
            session,
            records: vec![0; RECORDS_LEN].into_boxed_slice(),
            start: 0,
            end: 0,
        };
        let sealer = |session: Arc<Session>| Sealer { session, records: Vec::new(), sent: 0 };
        Ok(Channel {
            reader: Reader { socket: Arc::clone(&socket), tls: session.clone().map(opener) },
            writer: Writer { socket, tls: session.map(sealer) },
        })
    }

    /// What only the two ends of this connection know; nothing where it is plain.
    pub fn binding(&self) -> io::Result<Option<[u8; 32]>> {
        self.reader.tls.as_ref().map(|opener| opener.session.binding()).transpose()
    }

    /// The socket, to be set up or shut down.
    pub fn socket(&self) -> &Arc<TcpStream> {
        &self.reader.socket
    }

    /// Its halves, for two threads.
    pub fn split(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }
}

impl Read for Channel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into)
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Reader {
    pub fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(Opener { session, records, start, end }) = &mut self.tls else { return (&*self.socket).read(into) };
        loop {
            let mut rest = &records[*start..*end];
            let opened = session.open(&mut rest, into);
            *start = *end - rest.len();
            match opened? {
                Some(count) => return Ok(count),
                None => (*start, *end) = (0, (&*self.socket).read(records)?),
            }
            // Frames say where they end and when there are no more: that nothing was cut off needs no word of TLS.
            if *end == 0 {
                return Ok(0);
            }
        }
    }
}

impl Writer {
    /// Whether everything that was written has been given to the system.
    pub fn is_flushed(&self) -> bool {
        self.tls.as_ref().is_none_or(|sealer| sealer.records.is_empty())
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(sealer) = &mut self.tls else { return (&*self.socket).write_vectored(slices) };
        sealer.send(&self.socket)?;
        let count = sealer.session.seal(slices, &mut sealer.records)?;
        match sealer.send(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tls.as_mut().map_or(Ok(()), |sealer| sealer.send(&self.socket))
    }
}

impl Sealer {
    fn send(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while self.sent < self.records.len() {
            match socket.write(&self.records[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.records.clear();
        self.sent = 0;
        Ok(())
    }
}

/// A socket that is used until some time only.
struct Limited<'a> {
    socket: &'a TcpStream,
    end: Instant,
}

impl Read for Limited<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(time_left(self.end)?))?;
        self.socket.read(into)
    }
}

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// An alert goes out with what comes before it: rustls tries once.
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(time_left(self.end)?))?;
        self.socket.write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The time until then, or an error if there is none.
pub(crate) fn time_left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
