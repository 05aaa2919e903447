//! Those who only look: monitoring systems over HTTP, and this user's own `spmd-run status` on this machine.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::getuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::local::socket_name;
use super::Shared;

/// The most connections at once; one of them must end before another is answered.
const CONNECTIONS: usize = 16;
/// How long a request and its answer may take.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest request.
const REQUEST: usize = 8 << 10;

/// Answers whoever comes, a few at a time and none for long.
async fn serve<S>(
    mut accept: impl AsyncFnMut() -> io::Result<S>,
    answer: impl AsyncFn(S, &Shared) -> io::Result<()> + Copy + 'static,
    shared: &Rc<Shared>,
) where
    S: 'static,
{
    let mut requests = JoinSet::new();
    loop {
        while requests.len() >= CONNECTIONS {
            requests.join_next().await;
        }
        match accept().await {
            Ok(stream) => {
                let shared = shared.clone();
                requests.spawn_local(async move {
                    let _ = timeout(LIMIT, answer(stream, &shared)).await;
                });
            }
            // Out of file descriptors, most likely: accepting again at once would spin.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
        while requests.try_join_next().is_some() {}
    }
}

/// The job's status over HTTP, in the text format of Prometheus; waits for ever where there is nothing to listen on.
pub async fn serve_metrics(listener: Option<TcpListener>, shared: &Rc<Shared>) {
    let Some(listener) = listener else { return std::future::pending().await };
    serve(async || Ok(listener.accept().await?.0), answer_http, shared).await;
}

/// The job's status for this user's processes on this machine; see [`local`](super::super::local).
pub async fn serve_local(shared: &Rc<Shared>) {
    let listener = SocketAddr::from_abstract_name(socket_name(std::process::id()))
        .and_then(|address| std::os::unix::net::UnixListener::bind_addr(&address))
        .and_then(|listener| {
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        });
    match listener {
        Ok(listener) => serve(async || Ok(listener.accept().await?.0), answer_local, shared).await,
        // A process that hosts several coordinators, as tests do, has one name for them.
        Err(error) => {
            tracing::debug!("spmd-run status will not find this job by itself: {error}");
            std::future::pending().await
        }
    }
}

async fn answer_local(mut stream: UnixStream, shared: &Shared) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    if user != getuid().as_raw() && user != 0 {
        return Ok(());
    }
    let status = postcard::to_stdvec(&shared.state.borrow().status(Instant::now())).map_err(io::Error::other)?;
    stream.write_all(&status).await
}

async fn answer_http(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut chunk).await? {
            0 => return Ok(()),
            count => request.extend_from_slice(&chunk[..count]),
        }
        if request.len() > REQUEST {
            return respond(&mut stream, "431 Request Header Fields Too Large", "").await;
        }
    }
    let mut words = request.split(u8::is_ascii_whitespace);
    match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics" | b"/")) => {
            let text = shared.state.borrow().status(Instant::now()).to_prometheus();
            respond(&mut stream, "200 OK", &text).await
        }
        (Some(b"GET"), _) => respond(&mut stream, "404 Not Found", "the metrics are at /metrics\n").await,
        _ => respond(&mut stream, "405 Method Not Allowed", "").await,
    }
}

async fn respond(stream: &mut TcpStream, status: &str, text: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}
