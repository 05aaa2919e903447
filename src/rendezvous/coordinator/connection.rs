//! One connection to the coordinator, from the handshake to its end.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::handshake::{HELLO_LENGTH, Hellos, PROOF_LENGTH, REFUSAL, hello, is_marked, job, version};
use super::super::wire::{Decoder, Frame, JOIN_LIMITS, LIMITS, PROTOCOL, Request, Response};
use super::state::{Loss, Outgoing};
use super::stream::{Stream, turn_away};
use super::{HANDSHAKE_LIMIT, Shared};
use crate::channel::{NEEDS_TLS, is_client_hello};

const CHUNK: usize = 16 << 10;

pub async fn serve(socket: TcpStream, address: SocketAddr, shared: Rc<Shared>, has_joined: Rc<Cell<bool>>) {
    let _ = socket.set_nodelay(true);
    let admitted = timeout(HANDSHAKE_LIMIT, async {
        let mut stream = Stream::accept(socket, address, shared.identity.as_ref()).await?;
        let admitted = admit(&mut stream, address, &shared).await?;
        Ok::<_, String>((stream, admitted))
    });
    let (mut stream, call, join, decoder) = match admitted.await {
        Ok(Ok((stream, (call, Request::Join(join), decoder)))) => (stream, call, join, decoder),
        Ok(Ok((mut stream, (call, Request::Status, _)))) => {
            let _ = timeout(HANDSHAKE_LIMIT, tell_status(&mut stream, call, &shared)).await;
            return;
        }
        Ok(Ok(_)) => return tracing::debug!("refused a connection from {address}: it did not join first"),
        Ok(Err(reason)) => return tracing::debug!("refused a connection from {address}: {reason}"),
        Err(_) => return tracing::debug!("refused a connection from {address}: it did not join in time"),
    };
    let (outbox, outgoing) = mpsc::unbounded_channel();
    let joined = shared.state.borrow_mut().join(Instant::now(), call, &join, outbox, address);
    if let Err(reason) = joined {
        tracing::warn!("refused a connection from {address}: {reason}");
        if let Ok(refusal) = Frame::new(call, Response::Refused(reason)).head() {
            let _ = timeout(HANDSHAKE_LIMIT, send(&mut stream, &refusal)).await;
        }
        return;
    }
    tracing::debug!("process {} ({}) has joined from {address}", join.process_index, join.host);
    has_joined.set(true);
    let writer = tokio::task::spawn_local(write_all(stream.clone(), outgoing));
    shared.writers.borrow_mut().push(writer);
    shared.changed.notify_one();
    let loss = read_all(stream, decoder, join.process_index, &shared).await;
    shared.state.borrow_mut().lost(join.process_index, loss);
    shared.changed.notify_one();
}

/// Lets the peer prove itself, then reads its first message.
async fn admit(stream: &mut Stream, address: SocketAddr, shared: &Shared) -> Result<(u64, Request, Decoder), String> {
    let failed = |error: io::Error| error.to_string();
    let ours = hello(shared.job).map_err(failed)?;
    let mut peer = [0; HELLO_LENGTH];
    stream.read_exact(&mut peer).await.map_err(failed)?;
    if is_client_hello(&peer) {
        tracing::warn!("refused a process from {address}: {NEEDS_TLS}");
        turn_away(stream).await;
        return Err(NEEDS_TLS.to_owned());
    }
    if !is_marked(&peer) {
        return Err("it is not spmd-run".to_owned());
    }
    send(stream, &ours).await.map_err(failed)?;
    if version(&peer) != PROTOCOL {
        return Err(format!("it speaks rendezvous protocol {}, this coordinator {PROTOCOL}", version(&peer)));
    }
    if job(&peer).differs_from(shared.job) {
        tracing::warn!(
            "refused a process from {address}: it belongs to job {}, this is job {}",
            job(&peer),
            shared.job
        );
        return Err("it belongs to another job".to_owned());
    }
    let hellos = Hellos { peer, coordinator: ours, binding: stream.binding().map_err(failed)? };
    let mut proof = [0; PROOF_LENGTH];
    stream.read_exact(&mut proof).await.map_err(failed)?;
    if !shared.key.accepts_peer(&hellos, proof) {
        tracing::warn!("refused a process from {address}: it has another job token");
        send(stream, &REFUSAL).await.map_err(failed)?;
        return Err("it has another job token".to_owned());
    }
    send(stream, &shared.key.verdict(&hellos)).await.map_err(failed)?;

    let mut decoder = Decoder::new(JOIN_LIMITS);
    let mut chunk = [0; 1024];
    loop {
        if let Some(frame) = decoder.next::<Request>().map_err(|error| error.to_string())? {
            decoder.limits = LIMITS;
            return Ok((frame.call, frame.message, decoder));
        }
        match stream.read(&mut chunk).await.map_err(failed)? {
            0 => return Err("it closed the connection".to_owned()),
            count => decoder.push(&chunk[..count]),
        }
    }
}

async fn tell_status(stream: &mut Stream, call: u64, shared: &Shared) -> io::Result<()> {
    let status = postcard::to_stdvec(&shared.state.borrow().status(Instant::now())).map_err(io::Error::other)?;
    let answer = Frame::with_body(call, Response::Value, Arc::new(status));
    stream.write_all(&answer.head().map_err(io::Error::other)?).await?;
    stream.write_all(&answer.body).await?;
    stream.shutdown().await
}

async fn read_all(mut stream: Stream, mut decoder: Decoder, process: u32, shared: &Shared) -> Loss {
    let mut chunk = vec![0; CHUNK];
    loop {
        loop {
            match decoder.next::<Request>() {
                Ok(Some(frame)) => shared.state.borrow_mut().handle(Instant::now(), process, frame),
                Ok(None) => break,
                Err(error) => return Loss::Garbled(error.to_string()),
            }
            shared.changed.notify_one();
        }
        match timeout(shared.heartbeat.interval, stream.read(&mut chunk)).await {
            Err(_) if stream.is_cut_off() => return Loss::CutOff,
            // It may be stopped for a while, or busy. For how long is the state's to judge.
            Err(_) => {}
            Ok(Ok(0) | Err(_)) => return Loss::Closed,
            Ok(Ok(count)) => decoder.push(&chunk[..count]),
        }
    }
}

/// Writes until the state lets go of the connection or it breaks, which the reader notices too.
async fn write_all(mut stream: Stream, mut outgoing: mpsc::UnboundedReceiver<Outgoing>) {
    while let Some(item) = outgoing.recv().await {
        let written = match item {
            Outgoing::Frame(frame) => write_frame(&mut stream, frame).await,
            Outgoing::Mark(mark) => {
                let _ = mark.send(());
                Ok(())
            }
        };
        if let Err(error) = written {
            return tracing::debug!("cannot write to a process: {error}");
        }
    }
    let _ = stream.shutdown().await;
}

async fn write_frame(stream: &mut Stream, frame: Frame<Response>) -> io::Result<()> {
    stream.write_all(&frame.head().map_err(io::Error::other)?).await?;
    send(stream, &frame.body).await
}

async fn send(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}
