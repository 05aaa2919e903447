//! The connection to the coordinator, as calls with answers.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::channel::{Reader, Writer};

use super::Heartbeat;
use super::connect::{Connection, JOIN_CALL};
use super::error::{JoinError, RendezvousError};
use super::progress::Progress;
use super::reach::is_cut_off;
use super::report::{Abort, Seconds};
use super::wire::{Body, Decoder, Request, Response, encode_head};

const CHUNK: usize = 64 << 10;

pub type Answer = (Response, Body);
type Callback = Box<dyn FnOnce(&Abort) + Send>;

/// The connection to the coordinator.
pub struct Link {
    writer: Mutex<Writer>,
    /// The same socket, to shut down without the writer's lock.
    closer: Arc<TcpStream>,
    /// What signs of life tell.
    report: Mutex<Box<dyn Fn() -> Progress + Send>>,
    calls: Mutex<Calls>,
}

struct Calls {
    next: u64,
    waiting: HashMap<u64, SyncSender<Answer>>,
    callbacks: Vec<Callback>,
    /// Why no more calls can be made.
    ended: Option<RendezvousError>,
}

/// A link whose answers are being read, and where that to the request to join will arrive.
pub struct Started {
    pub link: Arc<Link>,
    pub reader: JoinHandle<()>,
    pub welcome: Receiver<Answer>,
}

impl Link {
    /// Reads what the coordinator sends from now on.
    pub fn start(connection: Connection) -> Result<Started, JoinError> {
        let Connection { channel, decoder, heartbeat, address } = connection;
        let failed = |source| JoinError::Io { what: "use the connection to the coordinator", source };
        let closer = Arc::clone(channel.socket());
        closer.set_read_timeout(Some(heartbeat.interval.max(Duration::from_millis(1)))).map_err(failed)?;
        closer.set_write_timeout(Some(heartbeat.limit.max(Duration::from_millis(1)))).map_err(failed)?;
        let (reader, writer) = channel.split();
        let (sender, welcome) = sync_channel(1);
        let link = Arc::new(Link {
            writer: Mutex::new(writer),
            closer,
            report: Mutex::new(Box::new(Progress::default)),
            calls: Mutex::new(Calls {
                next: JOIN_CALL + 1,
                waiting: HashMap::from([(JOIN_CALL, sender)]),
                callbacks: Vec::new(),
                ended: None,
            }),
        });
        let reading = link.clone();
        let reader = std::thread::Builder::new()
            .name("rendezvous".to_owned())
            .spawn(move || reading.read_all(reader, decoder, heartbeat, &address))
            .map_err(|source| JoinError::Io { what: "start the rendezvous thread", source })?;
        Ok(Started { link, reader, welcome })
    }

    /// Has every sign of life tell this.
    pub fn report(&self, progress: impl Fn() -> Progress + Send + 'static) {
        *lock(&self.report) = Box::new(progress);
    }

    /// Has a function called once when the job is stopped by a failure, at once if it has been.
    pub fn on_abort(&self, callback: impl FnOnce(&Abort) + Send + 'static) {
        let mut calls = self.calls();
        match &calls.ended {
            None => calls.callbacks.push(Box::new(callback)),
            Some(RendezvousError::Aborted(abort)) => {
                let abort = abort.clone();
                drop(calls);
                callback(&abort);
            }
            Some(_) => {}
        }
    }

    /// Whether no more calls can be made.
    pub fn has_ended(&self) -> bool {
        self.calls().ended.is_some()
    }

    /// Ends the connection in order.
    pub fn close(&self) {
        self.end(RendezvousError::Left);
        let _ = self.closer.shutdown(Shutdown::Both);
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.calls)
    }

    /// One call, which waits so long for its answer, if none has failed before or else `in_any_case`.
    pub fn exchange(
        &self,
        request: &Request,
        body: &[u8],
        limit: Duration,
        in_any_case: bool,
    ) -> Result<Answer, RendezvousError> {
        let (sender, receiver) = sync_channel(1);
        let call = {
            let mut calls = self.calls();
            if let Some(ended) = calls.ended.as_ref().filter(|_| !in_any_case) {
                return Err(ended.clone());
            }
            let call = calls.next;
            calls.next += 1;
            calls.waiting.insert(call, sender);
            call
        };
        let head = encode_head(call, request, body.len()).map_err(|error| {
            self.calls().waiting.remove(&call);
            RendezvousError::Rejected(error.to_string())
        })?;
        let mut writer = lock(&self.writer);
        let written = write(&mut writer, &[&head, body]);
        drop(writer);
        if let Err(error) = written {
            tracing::debug!("cannot write to the coordinator: {error}");
            // A frame cut short ends the connection. The reader finds out, and also what the coordinator said last.
            let _ = self.closer.shutdown(Shutdown::Both);
            let mut calls = self.calls();
            if let Some(ended) = calls.ended.clone() {
                calls.waiting.remove(&call);
                return Err(ended);
            }
        }
        self.answer(call, &receiver, limit)
    }

    pub fn answer(&self, call: u64, receiver: &Receiver<Answer>, limit: Duration) -> Result<Answer, RendezvousError> {
        match receiver.recv_timeout(limit) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => {
                self.calls().waiting.remove(&call);
                Err(RendezvousError::NoAnswer { waited: limit })
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.calls().ended.clone().unwrap_or(RendezvousError::Left)),
        }
    }

    /// Ends all calls, now and later. The first reason counts.
    pub fn end(&self, reason: RendezvousError) {
        let callbacks = {
            let mut calls = self.calls();
            if calls.ended.is_some() {
                return;
            }
            calls.ended = Some(reason.clone());
            calls.waiting.clear();
            std::mem::take(&mut calls.callbacks)
        };
        if let RendezvousError::Aborted(abort) = &reason {
            callbacks.into_iter().for_each(|callback| callback(abort));
        }
    }

    /// Hands answers to their callers and sends signs of life, until the connection ends.
    fn read_all(&self, mut stream: Reader, mut decoder: Decoder, heartbeat: Heartbeat, address: &str) {
        let silences = heartbeat.beats();
        let mut silent = 0;
        let mut last_beat = Instant::now();
        let mut chunk = vec![0; CHUNK];
        let how = loop {
            loop {
                match decoder.next::<Response>() {
                    Ok(Some(frame)) => self.take(frame.call, frame.message, frame.body),
                    Ok(None) => break,
                    Err(error) => return self.lost(address, &error.to_string()),
                }
            }
            if last_beat.elapsed() >= heartbeat.interval {
                let progress = lock(&self.report)();
                let beat = encode_head(0, &Request::Heartbeat(progress), 0).unwrap_or_default();
                // Whoever holds the lock is writing, which is a sign of life as well.
                if let Ok(mut writer) = self.writer.try_lock()
                    && write(&mut writer, &[&beat]).is_err()
                {
                    tracing::debug!("cannot write to the coordinator");
                }
                last_beat = Instant::now();
            }
            match stream.read(&mut chunk) {
                Ok(0) => break "its connection closed".to_owned(),
                Ok(count) => {
                    silent = 0;
                    decoder.push(&chunk[..count]);
                }
                // Silence is counted in whole reads, not by the clock: a process that was itself stopped for a while
                // must not take that for the coordinator's silence.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    silent += 1;
                    if is_cut_off(stream.socket().as_fd()) {
                        break "its host cannot be reached any more".to_owned();
                    }
                    if silent == silences.div_ceil(2) {
                        let waited = Seconds(heartbeat.interval.saturating_mul(silent));
                        tracing::warn!("process 0, which hosts the coordinator, has been silent for {waited}");
                    }
                    if silent >= silences {
                        break format!("it has been silent for {}", Seconds(heartbeat.limit));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break "its connection closed".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        self.lost(address, &how);
    }

    fn lost(&self, address: &str, how: &str) {
        let message = format!("lost the coordinator at {address} (in process 0): {how}");
        self.end(RendezvousError::Aborted(Abort { process_index: Some(0), reported: false, message }));
        let _ = self.closer.shutdown(Shutdown::Both);
    }

    fn take(&self, call: u64, response: Response, body: Body) {
        match response {
            Response::Heartbeat => {}
            Response::Abort(abort) => self.end(RendezvousError::Aborted(abort)),
            response => {
                let waiting = self.calls().waiting.remove(&call);
                if let Some(sender) = waiting {
                    // A caller that gave up a moment ago is gone.
                    let _ = sender.try_send((response, body));
                }
            }
        }
    }
}

fn write(writer: &mut Writer, parts: &[&[u8]]) -> io::Result<()> {
    parts.iter().try_for_each(|part| writer.write_all(part))?;
    writer.flush()
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
