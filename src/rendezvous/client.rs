//! A process's side of the rendezvous.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::channel::{Identity, Reader, Writer};

use super::connect::{Connection, JOIN_CALL, connect, own_address};
use super::coordinator::{Coordinator, CoordinatorOptions};
use super::error::{JoinError, RendezvousError};
use super::estate::Estate;
use super::handshake::Key;
use super::progress::Progress;
use super::reach::is_cut_off;
use super::report::{Abort, Seconds};
use super::wire::{Body, Decoder, MAX_NAME, Request, Response, encode_head, split_contributions};
use super::{Heartbeat, JobId, JoinOptions, MAX_VALUE_BYTES};
use crate::trace::{self, ClockSample};

/// How much longer than its own limit a call waits for the coordinator to say that the limit is over.
const ANSWER_MARGIN: Duration = Duration::from_secs(10);
/// How long `abort` waits until everyone has been told.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// How often the coordinator is asked for the time; the fastest answer counts.
const PINGS: usize = 16;
const CHUNK: usize = 64 << 10;

/// A process's membership in its job. All methods can be called from many threads at once; waits do not disturb each
/// other.
///
/// Dropping it before [`shutdown`](Self::shutdown) has succeeded stops the job on all processes.
pub struct Rendezvous {
    process_index: u32,
    process_count: u32,
    hosts: Vec<String>,
    slice: u32,
    identity: Option<Identity>,
    link: Arc<Link>,
    reader: Mutex<Option<JoinHandle<()>>>,
    coordinator: Mutex<Option<Coordinator>>,
    estate: Arc<Estate>,
}

impl Rendezvous {
    /// Joins the job, and returns when all processes have joined.
    ///
    /// While the coordinator cannot be reached it is tried again, until the timeout is over.
    pub fn join(mut options: JoinOptions) -> Result<Self, JoinError> {
        let deadline = Instant::now() + options.timeout.min(Duration::from_secs(365 * 24 * 3600));
        let JoinOptions { process_index, process_count, .. } = options;
        if process_index >= process_count {
            return Err(JoinError::Options(format!(
                "there is no process {process_index} among {process_count}: process indices start at 0"
            )));
        }
        let identity = options.tls.as_ref().map(|tls| tls.identity(options.token.as_ref())).transpose()?;
        let estate = Arc::new(Estate::default());
        let mut address = options.coordinator.clone();
        let coordinator = match options.host_coordinator.take() {
            None => None,
            Some(_) if process_index != 0 => {
                return Err(JoinError::Options(format!(
                    "process {process_index} cannot host the coordinator, only process 0 can"
                )));
            }
            Some(listener) => {
                let own = own_address(&listener)
                    .map_err(|source| JoinError::Io { what: "find the coordinator's own address", source })?;
                let exposed = listener.local_addr().is_ok_and(|address| !address.ip().is_loopback());
                if options.token.is_none() && exposed {
                    return Err(JoinError::TokenNeeded(address));
                }
                address = own.to_string();
                Some(Coordinator::start(
                    listener,
                    CoordinatorOptions {
                        key: Key::new(options.token.as_ref()),
                        identity: identity.clone(),
                        job: JobId::of(options.token.as_ref()),
                        process_count,
                        version: options.version.clone(),
                        heartbeat: options.heartbeat.among(process_count),
                        expected_hosts: std::mem::take(&mut options.expected_hosts),
                        metrics: options.metrics.take(),
                        live: options.live,
                        estate: estate.clone(),
                    },
                )?)
            }
        };

        let Connection { channel, decoder, heartbeat, address } =
            connect(&options, identity.as_ref(), &address, deadline)?;
        let failed = |source| JoinError::Io { what: "use the connection to the coordinator", source };
        let closer = Arc::clone(channel.socket());
        closer.set_read_timeout(Some(heartbeat.interval.max(Duration::from_millis(1)))).map_err(failed)?;
        closer.set_write_timeout(Some(heartbeat.limit.max(Duration::from_millis(1)))).map_err(failed)?;
        let (reader, writer) = channel.split();
        let link = Arc::new(Link {
            writer: Mutex::new(writer),
            closer,
            report: Mutex::new(Box::new(Progress::default)),
            calls: Mutex::new(Calls {
                next: JOIN_CALL + 1,
                waiting: HashMap::new(),
                callbacks: Vec::new(),
                ended: None,
            }),
        });
        let (sender, welcome) = sync_channel(1);
        link.calls().waiting.insert(JOIN_CALL, sender);
        let reader = std::thread::Builder::new()
            .name("rendezvous".to_owned())
            .spawn({
                let link = link.clone();
                move || link.read_all(reader, decoder, heartbeat, &address)
            })
            .map_err(|source| JoinError::Io { what: "start the rendezvous thread", source })?;
        let mut rendezvous = Self {
            process_index,
            process_count,
            hosts: Vec::new(),
            slice: options.slice,
            identity,
            link,
            reader: Mutex::new(Some(reader)),
            coordinator: Mutex::new(coordinator),
            estate,
        };
        let left = deadline.saturating_duration_since(Instant::now()) + ANSWER_MARGIN;
        match rendezvous.link.answer(JOIN_CALL, &welcome, left) {
            Ok((Response::Welcome, hosts)) => {
                rendezvous.hosts =
                    postcard::from_bytes(&hosts).map_err(|_| JoinError::Refused(OUT_OF_TURN.to_owned()))?;
                Ok(rendezvous)
            }
            Ok((Response::TimedOut(missing), _)) => Err(JoinError::TimedOut(missing)),
            Ok((Response::Rejected(reason), _)) => Err(JoinError::Refused(reason)),
            Ok(_) => Err(JoinError::Refused(OUT_OF_TURN.to_owned())),
            Err(RendezvousError::Aborted(abort)) => Err(JoinError::Aborted(abort)),
            Err(error) => Err(JoinError::Refused(error.to_string())),
        }
    }

    /// This process, from 0.
    pub fn process_index(&self) -> u32 {
        self.process_index
    }

    /// How many processes the job has.
    pub fn process_count(&self) -> u32 {
        self.process_count
    }

    /// The names of all processes' hosts, by process index.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The slice that this process said it belongs to.
    pub fn slice_index(&self) -> u32 {
        self.slice
    }

    /// What the job's connections are encrypted with, if they are.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Stores a value under a key for all processes. A key keeps its first value; another one is an error.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<(), RendezvousError> {
        match self.call(Request::Put { key: named("key", key)? }, value, Duration::ZERO)? {
            (Response::Done, _) => Ok(()),
            (other, _) => Err(unmet(other)),
        }
    }

    /// The value of a key, as soon as some process has put it.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, RendezvousError> {
        match self.call(Request::Get { key: named("key", key)?, timeout }, &[], timeout)? {
            (Response::Value, value) => Ok(Arc::unwrap_or_clone(value)),
            (Response::KeyMissing, _) => Err(RendezvousError::KeyMissing { key: key.to_owned(), waited: timeout }),
            (other, _) => Err(unmet(other)),
        }
    }

    /// The value of a key, if some process has put it already.
    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, RendezvousError> {
        match self.call(Request::TryGet { key: named("key", key)? }, &[], Duration::ZERO)? {
            (Response::Value, value) => Ok(Some(Arc::unwrap_or_clone(value))),
            (Response::Absent, _) => Ok(None),
            (other, _) => Err(unmet(other)),
        }
    }

    /// Waits until all processes are at the barrier of this name. A name can be used again after that.
    pub fn barrier(&self, name: &str, timeout: Duration) -> Result<(), RendezvousError> {
        match self.call(Request::Barrier { name: named("name", name)?, timeout }, &[], timeout)? {
            (Response::Done, _) => Ok(()),
            (other, _) => Err(unmet(other)),
        }
    }

    /// Waits until all processes have contributed under this name, and returns all contributions by process index.
    pub fn all_gather(&self, name: &str, value: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>, RendezvousError> {
        match self.call(Request::AllGather { name: named("name", name)?, timeout }, value, timeout)? {
            (Response::Gathered, all) => split_contributions(&all).ok_or_else(out_of_turn),
            (other, _) => Err(unmet(other)),
        }
    }

    /// How this process's clock ([`trace::now`]) relates to the coordinator's, which is that of process 0.
    pub fn compare_clocks(&self) -> Result<ClockSample, RendezvousError> {
        let ping = || {
            let asked = trace::now();
            match self.call(Request::Clock, &[], Duration::ZERO)? {
                (Response::Clock(theirs), _) => Ok(ClockSample::of_ping(asked, trace::now(), theirs)),
                (other, _) => Err(unmet(other)),
            }
        };
        let mut best = ping()?;
        for _ in 1..PINGS {
            best = Some(ping()?).filter(|next| next.error < best.error).unwrap_or(best);
        }
        Ok(best)
    }

    /// Leaves something for process 0 to read with [`inheritance`](Self::inheritance), also when the job has been stopped.
    /// Returns when the coordinator has it, or after this time with an error.
    pub fn bequeath(&self, value: &[u8], limit: Duration) -> Result<(), RendezvousError> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(too_long(value.len()));
        }
        match self.link.exchange(&Request::Bequeath, value, limit, true)? {
            (Response::Done, _) => Ok(()),
            (other, _) => Err(unmet(other)),
        }
    }

    /// What the other processes have left, on process 0, once all that are connected have left something or this time is
    /// over.
    pub fn inheritance(&self, limit: Duration) -> Vec<Vec<u8>> {
        self.estate.take(limit).into_iter().map(Arc::unwrap_or_clone).collect()
    }

    /// Stops the job on all processes: every wait ends with this reason. Returns when they have been told, or after
    /// two seconds.
    pub fn abort(&self, reason: &str) {
        let this = self.process_index;
        let message = match self.hosts.get(this as usize) {
            Some(host) if !host.is_empty() => format!("process {this} ({host}) failed: {reason}"),
            _ => format!("process {this} failed: {reason}"),
        };
        let request = Request::Abort { reason: reason.to_owned() };
        // The answer is the coordinator's own broadcast, after which this call fails with the reason that counts.
        let _ = self.link.call_within(&request, &[], ABORT_LIMIT);
        self.link.end(RendezvousError::Aborted(Abort { process_index: Some(this), reported: true, message }));
    }

    /// Has a function called once when the job is stopped by a failure, here or elsewhere; at once if it has been.
    ///
    /// It runs on the thread that reads from the coordinator, and should return soon.
    pub fn on_abort(&self, callback: impl FnOnce(&Abort) + Send + 'static) {
        let mut calls = self.link.calls();
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

    /// Has every sign of life of this process say how far it is, by this function. It is called on the thread that reads
    /// from the coordinator, and should return soon.
    pub fn report(&self, progress: impl Fn() -> Progress + Send + 'static) {
        *lock(&self.link.report) = Box::new(progress);
    }

    /// Leaves the job in order: waits until all processes are done; process 0 leaves last.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), RendezvousError> {
        match self.call(Request::Goodbye { timeout }, &[], timeout)? {
            (Response::Done, _) => {
                self.close();
                Ok(())
            }
            (other, _) => Err(unmet(other)),
        }
    }

    fn call(&self, request: Request, body: &[u8], wait: Duration) -> Result<(Response, Body), RendezvousError> {
        if body.len() > MAX_VALUE_BYTES {
            return Err(too_long(body.len()));
        }
        self.link.call_within(&request, body, wait.saturating_add(ANSWER_MARGIN))
    }

    fn close(&self) {
        self.link.end(RendezvousError::Left);
        let _ = self.link.closer.shutdown(Shutdown::Both);
        if let Some(reader) = lock(&self.reader).take()
            && reader.thread().id() != std::thread::current().id()
        {
            let _ = reader.join();
        }
        drop(lock(&self.coordinator).take());
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        if self.link.calls().ended.is_none() {
            self.abort(if std::thread::panicking() { "it panicked" } else { "it ended before the job was done" });
        }
        self.close();
    }
}

impl std::fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rendezvous")
            .field("process_index", &self.process_index)
            .field("process_count", &self.process_count)
            .finish_non_exhaustive()
    }
}

type Answer = (Response, Body);
type Callback = Box<dyn FnOnce(&Abort) + Send>;

/// The connection to the coordinator.
struct Link {
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

impl Link {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.calls)
    }

    fn call_within(&self, request: &Request, body: &[u8], limit: Duration) -> Result<Answer, RendezvousError> {
        self.exchange(request, body, limit, false)
    }

    /// One call, if none has failed before or else `in_any_case`.
    fn exchange(
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

    fn answer(
        &self,
        call: u64,
        receiver: &std::sync::mpsc::Receiver<Answer>,
        limit: Duration,
    ) -> Result<Answer, RendezvousError> {
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
    fn end(&self, reason: RendezvousError) {
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

const OUT_OF_TURN: &str = "the coordinator answered something else than what was asked";

fn out_of_turn() -> RendezvousError {
    RendezvousError::Rejected(OUT_OF_TURN.to_owned())
}

/// What an answer other than the one hoped for means.
fn unmet(response: Response) -> RendezvousError {
    match response {
        Response::TimedOut(missing) => RendezvousError::TimedOut(missing),
        Response::Rejected(reason) => RendezvousError::Rejected(reason),
        _ => out_of_turn(),
    }
}

fn too_long(bytes: usize) -> RendezvousError {
    RendezvousError::Rejected(format!("a value of {bytes} bytes is too long: the limit is {MAX_VALUE_BYTES}"))
}

fn named(what: &str, name: &str) -> Result<String, RendezvousError> {
    if name.len() > MAX_NAME {
        let length = name.len();
        return Err(RendezvousError::Rejected(format!(
            "a {what} of {length} bytes is too long: the limit is {MAX_NAME}"
        )));
    }
    Ok(name.to_owned())
}

fn write(writer: &mut Writer, parts: &[&[u8]]) -> io::Result<()> {
    parts.iter().try_for_each(|part| writer.write_all(part))?;
    writer.flush()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
