//! What the coordinator knows, and what it does with each message. No sockets, and no clock but the one it is asked for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::super::estate::Estate;
use super::super::report::{Abort, Missing, MissingProcess, Place, ProcessList, Seconds, named};
use super::super::status::{JobStatus, ProcessState};
use super::super::wire::{Body, Decoder, Frame, Join, LIMITS, Request, Response, join_contributions};
use super::super::{Heartbeat, JobId};
use super::meetings::{Arrival, Arrivals, Meetings};
use super::members::Members;
use super::store::{KeyWait, Store, check_name};
use crate::trace;

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
    CutOff,
    Garbled(String),
}

/// The coordinator's whole memory.
pub struct State {
    job: JobId,
    started: Instant,
    process_count: u32,
    version: String,
    heartbeat: Heartbeat,
    /// Everyone who is connected.
    peers: BTreeMap<u32, Outbox>,
    members: Members,
    /// All have joined.
    complete: bool,
    /// Half of the time that a stall may last is over, and that has been told.
    warned: bool,
    meetings: Meetings,
    store: Store,
    /// No wait ends before this. Those that are over are not looked for, as that would take longer the more there are.
    deadline: Option<Instant>,
    abort: Option<Abort>,
    /// Process 0's call that waits for all other connections to close, and how long.
    last: Option<(u64, Instant)>,
    /// What process 0 learns once all others know it: it might end at once, and the coordinator with it.
    last_words: Option<LastWords>,
    estate: Arc<Estate>,
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
    pub fn new(
        now: Instant,
        job: JobId,
        process_count: u32,
        version: String,
        heartbeat: Heartbeat,
        expected_hosts: Vec<String>,
        estate: Arc<Estate>,
    ) -> Self {
        Self {
            job,
            started: now,
            process_count,
            version,
            heartbeat,
            peers: BTreeMap::new(),
            members: Members::new(expected_hosts),
            complete: false,
            warned: false,
            meetings: Meetings::new(process_count),
            store: Store::default(),
            deadline: None,
            abort: None,
            last: None,
            last_words: None,
            estate,
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
        if let Some(member) = self.members.get(process) {
            return Err(format!(
                "process {process} has joined already (from {}, {}): every process needs its own process index",
                member.host, member.address
            ));
        }
        send(&outbox, Frame::new(call, Response::Accepted(self.heartbeat)));
        self.members.insert(join, address);
        self.peers.insert(process, outbox);
        self.estate.expect(process);
        self.arrive(now, process, call, Place::Join, join.timeout, Body::default());
        Ok(())
    }

    /// Does what a process asks.
    pub fn handle(&mut self, now: Instant, process: u32, frame: Frame<Request>) {
        let Frame { call, message, body } = frame;
        if matches!(message, Request::Bequeath) {
            return self.inherit(process, call, body);
        }
        if self.abort.is_some() {
            return;
        }
        self.members.hear(process, None);
        match message {
            Request::Heartbeat(progress) => self.members.hear(process, Some(progress)),
            Request::Join(_) | Request::Status | Request::Bequeath => {
                self.reject(process, call, format!("process {process} has joined already"))
            }
            Request::Clock => self.answer(process, call, Response::Clock(trace::now()), Body::default()),
            Request::Put { key } => {
                let response = match self.store.put(key, &body) {
                    Ok(waiting) => {
                        for wait in waiting {
                            self.answer(wait.process, wait.call, Response::Value, body.clone());
                        }
                        Response::Done
                    }
                    Err(reason) => Response::Rejected(reason),
                };
                self.answer(process, call, response, Body::default());
            }
            Request::Get { key, timeout } => match self.store.get(&key) {
                Some(value) => self.answer(process, call, Response::Value, value.clone()),
                None => {
                    let deadline = later(now, timeout);
                    self.wake_by(deadline);
                    self.store.wait(KeyWait { process, call, key, deadline });
                }
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
                let message = format!("{} failed: {reason}", self.members.name(process));
                self.members.set_state(process, ProcessState::Failed);
                self.abort(Abort { process_index: Some(process), reported: true, message });
            }
            Request::Goodbye { timeout } => {
                self.members.set_state(process, ProcessState::Done);
                self.forsake(process);
                self.arrive(now, process, call, Place::Shutdown, timeout, Body::default());
            }
        }
    }

    /// Takes note that a process's connection has ended.
    pub fn lost(&mut self, process: u32, loss: Loss) {
        self.peers.remove(&process);
        self.estate.expect_no_more(process);
        if self.members.get(process).is_some_and(|member| member.state == ProcessState::Done) {
            self.close_if_last();
            return;
        }
        self.members.set_state(process, ProcessState::Failed);
        let name = self.members.name(process);
        let last_seen = self.members.last_seen(process).map(|seen| format!(", {seen}")).unwrap_or_default();
        let message = match loss {
            Loss::Closed => format!("{name} died: its connection closed without a goodbye{last_seen}"),
            Loss::CutOff => format!("{name} died: its host cannot be reached any more{last_seen}"),
            Loss::Garbled(what) => format!("{name} was cut off: {what}"),
        };
        self.abort(Abort { process_index: Some(process), reported: false, message });
    }

    /// Keeps what a process leaves for process 0.
    fn inherit(&mut self, process: u32, call: u64, body: Body) {
        let response = match self.store.take_room(body.len()) {
            Ok(()) => {
                self.estate.receive(process, body);
                Response::Done
            }
            Err(limit) => Response::Rejected(format!("no room: {limit}")),
        };
        self.answer(process, call, response, Body::default());
    }

    /// Ends the job for everyone. The first reason counts.
    pub fn abort(&mut self, abort: Abort) {
        if self.abort.is_some() {
            return;
        }
        tracing::debug!("{abort}");
        let mut others = Vec::new();
        for (_, outbox) in self.peers.iter().filter(|(process, _)| **process != HOST) {
            send(outbox, Frame::new(0, Response::Abort(abort.clone())));
            let (mark, written) = oneshot::channel();
            if outbox.send(Outgoing::Mark(mark)).is_ok() {
                others.push(written);
            }
        }
        self.last_words = Some(LastWords {
            others,
            outbox: self.peers.get(&HOST).cloned(),
            frame: Frame::new(0, Response::Abort(abort.clone())),
        });
        self.abort = Some(abort);
        self.meetings.end();
        self.store.end_waits();
    }

    /// What process 0 has to be told after the others, once.
    pub fn take_last_words(&mut self) -> Option<LastWords> {
        self.last_words.take()
    }

    /// Sends everyone a sign of life, and judges theirs.
    pub fn beat(&mut self, now: Instant) {
        for outbox in self.peers.values() {
            send(outbox, Frame::new(0, Response::Heartbeat));
        }
        self.members.beat(now);
        if !self.complete || self.abort.is_some() {
            return;
        }
        self.warn_of_waits(now);
        let limit = self.heartbeat.beats();
        let Some(stall) = self.members.stall(limit.div_ceil(2), self.heartbeat, || self.places()) else {
            self.warned = false;
            return;
        };
        let waited = Seconds(self.heartbeat.interval.saturating_mul(stall.beats));
        if stall.beats >= limit {
            let message = format!("no progress for {waited} (the limit is --stall-timeout): {}", stall.text);
            self.abort(Abort { process_index: stall.culprit, reported: false, message });
        } else if !std::mem::replace(&mut self.warned, true) {
            let limit = Seconds(self.heartbeat.limit);
            tracing::warn!("no progress for {waited}, the job ends after {limit}: {}", stall.text);
        }
    }

    /// Tells of meetings for which half the time is over.
    fn warn_of_waits(&mut self, now: Instant) {
        for (place, since) in self.meetings.take_late(now) {
            tracing::warn!("{}", self.missing(now, &place, since));
        }
    }

    /// How the job is doing.
    pub fn status(&self, now: Instant) -> JobStatus {
        let processes = self.members.status(self.process_count, self.heartbeat, &self.places());
        let joined = || processes.iter().filter(|process| process.state != ProcessState::Pending);
        let mut slices: Vec<u32> = joined().map(|process| process.slice).collect();
        slices.sort_unstable();
        slices.dedup();
        JobStatus {
            job: if self.job == JobId::default() { String::new() } else { self.job.to_string() },
            uptime_seconds: now.saturating_duration_since(self.started).as_secs_f64(),
            process_count: self.process_count,
            device_count: joined().map(|process| process.device_count).sum(),
            slice_count: slices.len() as u32,
            step: self.members.step(),
            steps_per_second: self.members.step_rate(),
            sent_bytes: joined().map(|process| process.sent_bytes).sum(),
            failure: self.abort.as_ref().map(|abort| abort.message.clone()),
            processes,
        }
    }

    /// When `expire` should be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.last.map(|(_, deadline)| deadline)).min()
    }

    fn wake_by(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Ends the waits that have run out.
    pub fn expire(&mut self, now: Instant) {
        for KeyWait { process, call, .. } in self.store.expire(now) {
            self.answer(process, call, Response::KeyMissing, Body::default());
        }

        let overdue = self.meetings.arrivals().filter(|(.., arrival)| arrival.deadline <= now);
        let expired: Vec<(u32, u64, Missing)> = overdue
            .map(|(place, process, arrival)| (process, arrival.call, self.missing(now, place, arrival.since)))
            .collect();
        for (process, _, missing) in &expired {
            self.meetings.leave(*process, &missing.place);
        }
        let deadlines = self.meetings.arrivals().map(|(.., arrival)| arrival.deadline);
        self.deadline = deadlines.chain(self.store.waits().iter().map(|wait| wait.deadline)).min();
        let gave_up = expired.iter().find(|(_, _, missing)| missing.place == Place::Join);
        let gave_up = gave_up.map(|(process, _, missing)| (*process, missing.to_string()));
        for (process, call, missing) in expired {
            self.answer(process, call, Response::TimedOut(missing), Body::default());
        }
        if let Some((process, missing)) = gave_up {
            let message = format!("{} gave up: {missing}", self.members.name(process));
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
        if self.complete || self.abort.is_some() {
            return None;
        }
        let absent = (0..self.process_count).filter(|process| self.members.get(*process).is_none());
        let absent: Vec<_> = absent.map(|process| self.members.missing(process)).collect();
        Some(format!("waiting {}/{}, missing {}", self.members.len(), self.process_count, ProcessList(&named(&absent))))
    }

    /// How many processes have joined.
    pub fn joined(&self) -> usize {
        self.members.len()
    }

    /// Ends all connections once what is queued for them is written.
    pub fn close(&mut self) {
        self.peers.clear();
        self.last_words = None;
    }

    fn answer(&self, process: u32, call: u64, response: Response, body: Body) {
        if let Some(outbox) = self.peers.get(&process) {
            send(outbox, Frame::with_body(call, response, body));
        }
    }

    fn reject(&self, process: u32, call: u64, reason: String) {
        self.answer(process, call, Response::Rejected(reason), Body::default());
    }

    fn arrive(&mut self, now: Instant, process: u32, call: u64, place: Place, timeout: Duration, body: Body) {
        if let Place::Barrier(name) | Place::AllGather(name) = &place {
            let gone = self.members.first_gone();
            let reason = match check_name("name", name) {
                Err(reason) => Some(reason),
                Ok(()) => {
                    gone.map(|gone| format!("{place} cannot be met: {} has left the job", self.members.name(gone)))
                }
            };
            if let Some(reason) = reason {
                return self.reject(process, call, reason);
            }
        }
        let deadline = later(now, timeout);
        match self.meetings.arrive(process, &place, Arrival { call, since: now, deadline, body, warned: false }) {
            Ok(Some(arrivals)) => self.complete(now, &place, arrivals),
            Ok(None) => self.wake_by(deadline),
            Err(reason) => self.reject(process, call, reason),
        }
    }

    fn complete(&mut self, now: Instant, place: &Place, arrivals: Arrivals) {
        match place {
            Place::Join => {
                self.complete = true;
                let hosts = Arc::new(postcard::to_stdvec(&self.members.hosts()).unwrap_or_default());
                for (process, arrival) in arrivals {
                    self.answer(process, arrival.call, Response::Welcome, hosts.clone());
                }
            }
            Place::Barrier(_) => {
                for (process, arrival) in arrivals {
                    self.answer(process, arrival.call, Response::Done, Body::default());
                }
            }
            Place::AllGather(_) => {
                let all = Arc::new(join_contributions(arrivals.values().map(|arrival| &arrival.body[..])));
                for (process, arrival) in arrivals {
                    self.answer(process, arrival.call, Response::Gathered, all.clone());
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
            // Nobody meets at a key.
            Place::Key(_) => {}
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
        let name = self.members.name(process);
        for (place, arrivals) in self.meetings.forsake() {
            for (waiting, arrival) in arrivals {
                self.reject(waiting, arrival.call, format!("{place} cannot be met: {name} has left the job"));
            }
        }
    }

    /// Where processes wait, the first place of each.
    fn places(&self) -> BTreeMap<u32, Place> {
        let waits = self.store.waits().iter().map(|wait| (wait.process, Place::Key(wait.key.clone())));
        let mut places: BTreeMap<u32, Place> = waits.collect();
        for (place, process, _) in self.meetings.arrivals() {
            let first = places.entry(process).or_insert_with(|| place.clone());
            if *place < *first {
                *first = place.clone();
            }
        }
        places
    }

    /// Who is missing at a place where someone waits since then.
    fn missing(&self, now: Instant, place: &Place, since: Instant) -> Missing {
        let mut places = self.places();
        let absent = self.meetings.absent(place).into_iter();
        let processes =
            absent.map(|process| MissingProcess { waits_at: places.remove(&process), ..self.members.missing(process) });
        Missing {
            place: place.clone(),
            waited: now.saturating_duration_since(since),
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

/// See [`take_untrusted`](super::super::take_untrusted): the messages of two processes that have joined.
pub fn take_untrusted(bytes: &[u8]) {
    let now = Instant::now();
    let mut state =
        State::new(now, JobId::default(), 2, String::new(), Heartbeat::default(), Vec::new(), Arc::default());
    let (outbox, _sent) = mpsc::unbounded_channel();
    for process_index in 0..2 {
        let timeout = Duration::MAX;
        let (version, host) = (String::new(), String::new());
        let join = Join { version, process_index, process_count: 2, host, slice: 0, timeout };
        let _ = state.join(now, 1, &join, outbox.clone(), ([127, 0, 0, 1], 1).into());
    }
    let mut decoder = Decoder::new(LIMITS);
    decoder.push(bytes);
    while let Ok(Some(frame)) = decoder.next::<Request>() {
        state.handle(now, (frame.call % 2) as u32, frame);
        state.beat(now);
        state.expire(now);
        state.status(now).to_prometheus();
    }
}

#[cfg(test)]
mod tests;
