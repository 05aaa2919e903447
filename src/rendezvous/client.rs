//! A process's side of the rendezvous.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::channel::Identity;
use crate::trace::{self, ClockSample};

use super::connect::{JOIN_CALL, connect, own_address};
use super::coordinator::{Coordinator, CoordinatorOptions};
use super::error::{JoinError, RendezvousError};
use super::estate::Estate;
use super::handshake::Key;
use super::link::{Answer, Link, Started, lock};
use super::progress::Progress;
use super::report::Abort;
use super::wire::{MAX_NAME, Request, Response, split_contributions};
use super::{JobId, JoinOptions, MAX_VALUE_BYTES};

/// How much longer than its own limit a call waits for the coordinator to say that the limit is over.
const ANSWER_MARGIN: Duration = Duration::from_secs(10);
/// How long `abort` waits until everyone has been told.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// How often the coordinator is asked for the time; the fastest answer counts.
const PINGS: usize = 16;

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
        let (coordinator, address) = match options.host_coordinator.take() {
            None => (None, options.coordinator.clone()),
            Some(listener) => {
                let (coordinator, address) = host(&mut options, listener, identity.clone(), estate.clone())?;
                (Some(coordinator), address)
            }
        };
        let connection = connect(&options, identity.as_ref(), &address, deadline)?;
        let Started { link, reader, welcome } = Link::start(connection)?;
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
        let _ = self.link.exchange(&request, &[], ABORT_LIMIT, false);
        self.link.end(RendezvousError::Aborted(Abort { process_index: Some(this), reported: true, message }));
    }

    /// Has a function called once when the job is stopped by a failure, here or elsewhere; at once if it has been.
    ///
    /// It runs on the thread that reads from the coordinator, and should return soon.
    pub fn on_abort(&self, callback: impl FnOnce(&Abort) + Send + 'static) {
        self.link.on_abort(callback);
    }

    /// Has every sign of life of this process say how far it is, by this function. It is called on the thread that reads
    /// from the coordinator, and should return soon.
    pub fn report(&self, progress: impl Fn() -> Progress + Send + 'static) {
        self.link.report(progress);
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

    fn call(&self, request: Request, body: &[u8], wait: Duration) -> Result<Answer, RendezvousError> {
        if body.len() > MAX_VALUE_BYTES {
            return Err(too_long(body.len()));
        }
        self.link.exchange(&request, body, wait.saturating_add(ANSWER_MARGIN), false)
    }

    fn close(&self) {
        self.link.close();
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
        if !self.link.has_ended() {
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

/// Starts the coordinator in this process; returns the address at which this one reaches it, too.
fn host(
    options: &mut JoinOptions,
    listener: TcpListener,
    identity: Option<Identity>,
    estate: Arc<Estate>,
) -> Result<(Coordinator, String), JoinError> {
    let JoinOptions { process_index, process_count, .. } = *options;
    if process_index != 0 {
        return Err(JoinError::Options(format!(
            "process {process_index} cannot host the coordinator, only process 0 can"
        )));
    }
    let own = own_address(&listener)
        .map_err(|source| JoinError::Io { what: "find the coordinator's own address", source })?;
    let exposed = listener.local_addr().is_ok_and(|address| !address.ip().is_loopback());
    if options.token.is_none() && exposed {
        return Err(JoinError::TokenNeeded(options.coordinator.clone()));
    }
    let coordinator = CoordinatorOptions {
        key: Key::new(options.token.as_ref()),
        identity,
        job: JobId::of(options.token.as_ref()),
        process_count,
        version: options.version.clone(),
        heartbeat: options.heartbeat.among(process_count),
        expected_hosts: std::mem::take(&mut options.expected_hosts),
        metrics: options.metrics.take(),
        live: options.live,
        estate,
    };
    Ok((Coordinator::start(listener, coordinator)?, own.to_string()))
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
