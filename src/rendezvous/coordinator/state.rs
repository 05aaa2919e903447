//! What the coordinator knows, and what it does with each message. No sockets and no clock of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::super::Heartbeat;
use super::super::report::{Abort, Missing, MissingProcess, Place, ProcessList, Seconds};
use super::super::wire::{Body, Frame, Join, MAX_BODY, MAX_NAME, Request, Response};

/// The most bytes that all values of the store may have together.
const MAX_STORE: usize = 4 << 30;
/// How long process 0 waits for the others' connections to close after all have finished.
const LAST_CLOSE: Duration = Duration::from_secs(5);
/// The process that hosts the coordinator.
const HOST: u32 = 0;

/// What goes to a connection's writer.
pub enum Outgoing {
    Frame(Frame<Response>),
    /// To be told when all before has been written.
    Mark(oneshot::Sender<()>),
}

pub type Outbox = mpsc::UnboundedSender<Outgoing>;

/// Why a connection ended.
pub enum Loss {
    Closed,
    Silent(Duration),
    Garbled(String),
}

struct Peer {
    outbox: Outbox,
    address: SocketAddr,
}

struct Arrival {
    call: u64,
    since: Instant,
    deadline: Instant,
    body: Body,
}

struct KeyWait {
    process: u32,
    call: u64,
    key: String,
    deadline: Instant,
}

/// The coordinator's whole memory.
pub struct State {
    process_count: u32,
    version: String,
    heartbeat: Heartbeat,
    /// Everyone who is connected.
    peers: BTreeMap<u32, Peer>,
    /// The host of everyone who ever joined.
    hosts: BTreeMap<u32, String>,
    /// Everyone who said goodbye.
    left: BTreeSet<u32>,
    meetings: HashMap<Place, BTreeMap<u32, Arrival>>,
    store: HashMap<String, Body>,
    store_bytes: usize,
    key_waits: Vec<KeyWait>,
    abort: Option<Abort>,
    /// Process 0's call that waits for all other connections to close, and how long.
    last: Option<(u64, Instant)>,
    /// What process 0 learns once all others know it: it might end at once, and the coordinator with it.
    last_words: Option<LastWords>,
}

/// A message for process 0 that has to wait until the others' messages are written.
pub struct LastWords {
    pub others: Vec<oneshot::Receiver<()>>,
    outbox: Option<Outbox>,
    frame: Frame<Response>,
}

impl LastWords {
    pub fn say(self) {
        if let Some(outbox) = self.outbox {
            send(&outbox, self.frame);
        }
    }
}

fn send(outbox: &Outbox, frame: Frame<Response>) {
    // A writer that is gone has lost its connection, which its reader reports.
    let _ = outbox.send(Outgoing::Frame(frame));
}

impl State {
    pub fn new(process_count: u32, version: String, heartbeat: Heartbeat) -> Self {
        Self {
            process_count,
            version,
            heartbeat,
            peers: BTreeMap::new(),
            hosts: BTreeMap::new(),
            left: BTreeSet::new(),
            meetings: HashMap::new(),
            store: HashMap::new(),
            store_bytes: 0,
            key_waits: Vec::new(),
            abort: None,
            last: None,
            last_words: None,
        }
    }

    /// Takes a process in, or says why not.
    pub fn join(
        &mut self,
        now: Instant,
        call: u64,
        join: &Join,
        outbox: Outbox,
        address: SocketAddr,
    ) -> Result<(), String> {
        let process = join.process_index;
        if let Some(abort) = &self.abort {
            return Err(format!("the job has been stopped: {abort}"));
        }
        if join.version != self.version {
            return Err(format!(
                "process {process} ({}) runs spmd-run {}, the coordinator {}: use the same version on every host",
                join.host, join.version, self.version
            ));
        }
        if join.process_count != self.process_count {
            return Err(format!(
                "this job has {}, process {process} was started with -n {}",
                processes(self.process_count),
                join.process_count
            ));
        }
        if process >= self.process_count {
            return Err(format!(
                "this job has {}, 0 to {}: there is no process {process}",
                processes(self.process_count),
                self.process_count.saturating_sub(1)
            ));
        }
        if let Some(host) = self.hosts.get(&process) {
            let from = self.peers.get(&process).map(|peer| format!(", {}", peer.address)).unwrap_or_default();
            return Err(format!(
                "process {process} has joined already (from {host}{from}): every process needs its own process index"
            ));
        }
        send(&outbox, Frame::new(call, Response::Accepted(self.heartbeat)));
        self.hosts.insert(process, join.host.clone());
        self.peers.insert(process, Peer { outbox, address });
        self.arrive(now, process, call, Place::Join, join.timeout, Body::default());
        Ok(())
    }

    /// Does what a process asks.
    pub fn handle(&mut self, now: Instant, process: u32, frame: Frame<Request>) {
        let Frame { call, message, body } = frame;
        if self.abort.is_some() {
            return;
        }
        match message {
            Request::Heartbeat => {}
            Request::Join(_) => self.reject(process, call, format!("process {process} has joined already")),
            Request::Put { key } => {
                let response = match self.put(key, body) {
                    Ok(()) => Response::Done,
                    Err(reason) => Response::Rejected(reason),
                };
                self.answer(process, call, response, Body::default());
            }
            Request::Get { key, timeout } => match self.store.get(&key) {
                Some(value) => self.answer(process, call, Response::Value, value.clone()),
                None => self.key_waits.push(KeyWait { process, call, key, deadline: later(now, timeout) }),
            },
            Request::TryGet { key } => match self.store.get(&key) {
                Some(value) => self.answer(process, call, Response::Value, value.clone()),
                None => self.answer(process, call, Response::Absent, Body::default()),
            },
            Request::Barrier { name, timeout } => {
                self.arrive(now, process, call, Place::Barrier(name), timeout, Body::default());
            }
            Request::AllGather { name, timeout } => {
                self.arrive(now, process, call, Place::AllGather(name), timeout, body);
            }
            Request::Abort { reason } => {
                let message = format!("{} failed: {reason}", self.name(process));
                self.abort(Abort { process_index: Some(process), reported: true, message });
            }
            Request::Goodbye { timeout } => {
                self.left.insert(process);
                self.forsake(process);
                self.arrive(now, process, call, Place::Shutdown, timeout, Body::default());
            }
        }
    }

    /// Takes note that a process's connection has ended.
    pub fn lost(&mut self, process: u32, loss: Loss) {
        self.peers.remove(&process);
        if self.left.contains(&process) {
            self.close_if_last();
            return;
        }
        let name = self.name(process);
        let message = match loss {
            Loss::Closed => format!("{name} died: its connection closed without a goodbye"),
            Loss::Silent(limit) => format!("{name} died: no heartbeat for {}", Seconds(limit)),
            Loss::Garbled(what) => format!("{name} was cut off: {what}"),
        };
        self.abort(Abort { process_index: Some(process), reported: false, message });
    }

    /// Ends the job for everyone. The first reason counts.
    pub fn abort(&mut self, abort: Abort) {
        if self.abort.is_some() {
            return;
        }
        tracing::debug!("{abort}");
        let mut others = Vec::new();
        for (_, peer) in self.peers.iter().filter(|(process, _)| **process != HOST) {
            send(&peer.outbox, Frame::new(0, Response::Abort(abort.clone())));
            let (mark, written) = oneshot::channel();
            if peer.outbox.send(Outgoing::Mark(mark)).is_ok() {
                others.push(written);
            }
        }
        self.last_words = Some(LastWords {
            others,
            outbox: self.peers.get(&HOST).map(|peer| peer.outbox.clone()),
            frame: Frame::new(0, Response::Abort(abort.clone())),
        });
        self.abort = Some(abort);
        self.meetings.clear();
        self.key_waits.clear();
    }

    /// What process 0 has to be told after the others, once.
    pub fn take_last_words(&mut self) -> Option<LastWords> {
        self.last_words.take()
    }

    /// Sends everyone a sign of life.
    pub fn beat(&self) {
        for peer in self.peers.values() {
            send(&peer.outbox, Frame::new(0, Response::Heartbeat));
        }
    }

    /// When `expire` should be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let arrivals = self.meetings.values().flat_map(|arrivals| arrivals.values().map(|arrival| arrival.deadline));
        let key_waits = self.key_waits.iter().map(|wait| wait.deadline);
        arrivals.chain(key_waits).chain(self.last.map(|(_, deadline)| deadline)).min()
    }

    /// Ends the waits that have run out.
    pub fn expire(&mut self, now: Instant) {
        let (expired, waiting) = std::mem::take(&mut self.key_waits).into_iter().partition(|wait| wait.deadline <= now);
        self.key_waits = waiting;
        for KeyWait { process, call, .. } in expired {
            self.answer(process, call, Response::KeyMissing, Body::default());
        }

        let mut expired = Vec::new();
        for (place, arrivals) in &self.meetings {
            let over = arrivals.iter().filter(|(_, arrival)| arrival.deadline <= now);
            expired.extend(over.map(|(process, arrival)| (*process, arrival.call, self.missing(now, place, arrival))));
        }
        for (process, _, missing) in &expired {
            if let Some(arrivals) = self.meetings.get_mut(&missing.place) {
                arrivals.remove(process);
            }
        }
        let gave_up = expired.iter().find(|(_, _, missing)| missing.place == Place::Join);
        let gave_up = gave_up.map(|(process, _, missing)| (*process, missing.to_string()));
        for (process, call, missing) in expired {
            self.answer(process, call, Response::TimedOut(missing), Body::default());
        }
        if let Some((process, missing)) = gave_up {
            let message = format!("{} gave up: {missing}", self.name(process));
            self.abort(Abort { process_index: None, reported: false, message });
        }

        if let Some((call, deadline)) = self.last
            && deadline <= now
        {
            self.last = None;
            self.answer(HOST, call, Response::Done, Body::default());
        }
    }

    /// `waiting 3/4, missing process 2`, until all have joined.
    pub fn waiting_line(&self) -> Option<String> {
        let absent: Vec<_> = (0..self.process_count)
            .filter(|process| !self.hosts.contains_key(process))
            .map(|process_index| MissingProcess { process_index, host: None, waits_at: None })
            .collect();
        let joined = self.hosts.len();
        let waiting = self.abort.is_none() && !absent.is_empty();
        waiting.then(|| format!("waiting {joined}/{}, missing {}", self.process_count, ProcessList(&absent)))
    }

    /// Ends all connections once what is queued for them is written.
    pub fn close(&mut self) {
        self.peers.clear();
        self.last_words = None;
    }

    fn name(&self, process: u32) -> String {
        match self.hosts.get(&process) {
            Some(host) if !host.is_empty() => format!("process {process} ({host})"),
            _ => format!("process {process}"),
        }
    }

    fn answer(&self, process: u32, call: u64, response: Response, body: Body) {
        if let Some(peer) = self.peers.get(&process) {
            send(&peer.outbox, Frame::with_body(call, response, body));
        }
    }

    fn reject(&self, process: u32, call: u64, reason: String) {
        self.answer(process, call, Response::Rejected(reason), Body::default());
    }

    /// A key is put once, so that a `get` always means the same value. The same value again is no harm.
    fn put(&mut self, key: String, value: Body) -> Result<(), String> {
        check_name("key", &key)?;
        if let Some(old) = self.store.get(&key) {
            return if *old == value { Ok(()) } else { Err(format!("key '{key}' has another value already")) };
        }
        self.store_bytes += key.len() + value.len();
        if self.store_bytes > MAX_STORE {
            self.store_bytes -= key.len() + value.len();
            return Err(format!("no room for key '{key}': the store is limited to {MAX_STORE} bytes"));
        }
        let (found, waiting) = std::mem::take(&mut self.key_waits).into_iter().partition(|wait| wait.key == key);
        self.key_waits = waiting;
        for KeyWait { process, call, .. } in found {
            self.answer(process, call, Response::Value, value.clone());
        }
        self.store.insert(key, value);
        Ok(())
    }

    fn arrive(&mut self, now: Instant, process: u32, call: u64, place: Place, timeout: Duration, body: Body) {
        if let Place::Barrier(name) | Place::AllGather(name) = &place {
            let gone = self.left.first();
            let reason = match check_name("name", name) {
                Err(reason) => Some(reason),
                Ok(()) => gone.map(|gone| format!("{place} cannot be met: {} has left the job", self.name(*gone))),
            };
            if let Some(reason) = reason {
                return self.reject(process, call, reason);
            }
        }
        let arrivals = self.meetings.entry(place.clone()).or_default();
        if arrivals.contains_key(&process) {
            return self.reject(process, call, format!("process {process} is already at {place}"));
        }
        let gathered = arrivals.values().map(|arrival| arrival.body.len()).sum::<usize>() + body.len();
        if gathered > MAX_BODY {
            return self.reject(process, call, format!("{place} would have more than {MAX_BODY} bytes"));
        }
        arrivals.insert(process, Arrival { call, since: now, deadline: later(now, timeout), body });
        if arrivals.len() == self.process_count as usize {
            let arrivals = self.meetings.remove(&place).unwrap_or_default();
            self.complete(now, &place, arrivals);
        }
    }

    fn complete(&mut self, now: Instant, place: &Place, arrivals: BTreeMap<u32, Arrival>) {
        match place {
            Place::Join => {
                let hosts: Vec<_> = self.hosts.values().cloned().collect();
                for (process, arrival) in arrivals {
                    let welcome = Response::Welcome { hosts: hosts.clone() };
                    self.answer(process, arrival.call, welcome, Body::default());
                }
            }
            Place::Barrier(_) => {
                for (process, arrival) in arrivals {
                    self.answer(process, arrival.call, Response::Done, Body::default());
                }
            }
            Place::AllGather(_) => {
                let lengths: Vec<_> = arrivals.values().map(|arrival| arrival.body.len() as u64).collect();
                let mut all = Vec::with_capacity(arrivals.values().map(|arrival| arrival.body.len()).sum());
                arrivals.values().for_each(|arrival| all.extend_from_slice(&arrival.body));
                let all = Arc::new(all);
                for (process, arrival) in arrivals {
                    let gathered = Response::Gathered { lengths: lengths.clone() };
                    self.answer(process, arrival.call, gathered, all.clone());
                }
            }
            Place::Shutdown => {
                for (process, arrival) in arrivals {
                    if process == HOST {
                        self.last = Some((arrival.call, now + LAST_CLOSE));
                    } else {
                        self.answer(process, arrival.call, Response::Done, Body::default());
                    }
                }
                self.close_if_last();
            }
        }
    }

    /// Lets process 0 go when all other connections have ended.
    fn close_if_last(&mut self) {
        if self.peers.keys().all(|process| *process == HOST)
            && let Some((call, _)) = self.last.take()
        {
            self.answer(HOST, call, Response::Done, Body::default());
        }
    }

    /// Ends the meetings that cannot happen any more because a process has left.
    fn forsake(&mut self, process: u32) {
        let name = self.name(process);
        for (place, arrivals) in std::mem::take(&mut self.meetings) {
            if place == Place::Shutdown {
                self.meetings.insert(place, arrivals);
                continue;
            }
            for (waiting, arrival) in arrivals {
                self.reject(waiting, arrival.call, format!("{place} cannot be met: {name} has left the job"));
            }
        }
    }

    fn missing(&self, now: Instant, place: &Place, arrival: &Arrival) -> Missing {
        let here = self.meetings.get(place);
        let absent = (0..self.process_count).filter(|process| here.is_none_or(|here| !here.contains_key(process)));
        let processes = absent.map(|process_index| MissingProcess {
            process_index,
            host: self.hosts.get(&process_index).cloned(),
            waits_at: self
                .meetings
                .iter()
                .filter(|(_, arrivals)| arrivals.contains_key(&process_index))
                .map(|(place, _)| place.clone())
                .min(),
        });
        Missing {
            place: place.clone(),
            waited: now.saturating_duration_since(arrival.since),
            process_count: self.process_count,
            processes: processes.collect(),
        }
    }
}

/// An instant that a timeout ends at; far away when the timeout is too long to count.
fn later(now: Instant, timeout: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    now + timeout.min(FAR)
}

fn processes(count: u32) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.len() > MAX_NAME {
        return Err(format!("a {what} of {} bytes is too long: the limit is {MAX_NAME}", name.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
