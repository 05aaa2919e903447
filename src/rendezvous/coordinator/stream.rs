//! A connection to a process, in TLS or not.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy, sink};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::super::handshake::is_marked;
use super::super::reach::is_cut_off;
use crate::channel::{GARBAGE, Identity, LACKS_TLS, PLAIN_ONLY, binding_of, reason_of_refusal};

/// Clones are the same connection, for a task that reads and one that writes. What was written is sent with a flush.
#[derive(Clone)]
pub struct Stream(Rc<RefCell<Inner>>);

enum Inner {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// The called side of a connection. With an identity the other end has to show that it is of the job; the error says why
    /// it was turned away.
    pub async fn accept(
        mut socket: TcpStream,
        address: SocketAddr,
        identity: Option<&Identity>,
    ) -> Result<Stream, String> {
        let Some(identity) = identity else { return Ok(Stream::of(Inner::Plain(socket))) };
        let mut first = [0; 8];
        let count = socket.peek(&mut first).await.map_err(|error| error.to_string())?;
        if is_marked(&first[..count]) {
            tracing::warn!("refused a process from {address}: {LACKS_TLS}");
            turn_away(&mut socket).await;
            return Err(LACKS_TLS.to_owned());
        }
        match TlsAcceptor::from(identity.server()).accept(socket).await {
            Ok(stream) => Ok(Stream::of(Inner::Tls(stream.into()))),
            Err(error) => {
                let reason = reason_of_refusal(&error);
                if let Some(reason) = reason.as_ref().filter(|reason| *reason != GARBAGE) {
                    tracing::warn!("refused a process from {address}: {reason}");
                }
                Err(reason.unwrap_or_else(|| error.to_string()))
            }
        }
    }

    fn of(inner: Inner) -> Stream {
        Stream(Rc::new(RefCell::new(inner)))
    }

    /// What only the two ends know; nothing without TLS.
    pub fn binding(&self) -> io::Result<Option<[u8; 32]>> {
        match &*self.0.borrow() {
            Inner::Plain(_) => Ok(None),
            Inner::Tls(stream) => binding_of(stream.get_ref().1).map(Some),
        }
    }

    /// Whether the other end's host cannot be reached any more.
    pub fn is_cut_off(&self) -> bool {
        match &*self.0.borrow() {
            Inner::Plain(stream) => is_cut_off(stream.as_fd()),
            Inner::Tls(stream) => is_cut_off(stream.get_ref().0.as_fd()),
        }
    }
}

/// Tells a process that has TLS where this one has not, or the other way round, and lets it read that: the system would drop
/// the word together with a connection on which something is unread.
pub async fn turn_away(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    if stream.write_all(&PLAIN_ONLY).await.is_ok() && stream.shutdown().await.is_ok() {
        let _ = copy(stream, &mut sink()).await;
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self.0.borrow_mut() {
            Inner::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Inner::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self.0.borrow_mut() {
            Inner::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Inner::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.0.borrow_mut() {
            Inner::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Inner::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.0.borrow_mut() {
            Inner::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Inner::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
