//! The coordinator: one thread with a tokio runtime, which serves every process of the job.

mod connection;
mod meetings;
mod members;
mod observers;
mod state;
mod store;
mod stream;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use super::estate::Estate;
use super::handshake::Key;
use super::report::{Abort, Seconds};
use super::{Heartbeat, JobId, JoinError};
use crate::channel::Identity;
use state::State;

/// How long a peer may take to prove its token and to join.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How many peers beyond the job's processes may be connected at once; the oldest are dropped for newer ones.
const SPARE_HANDSHAKES: usize = 128;
/// Descriptors that process 0 needs beside those of the coordinator's connections.
const OTHER_DESCRIPTORS: u64 = 256;
/// How many connections the kernel keeps until they are accepted.
const BACKLOG: i32 = 4096;
/// The time between two lines that say who is missing.
const WAITING_LINE: Duration = Duration::from_secs(10);
/// The same when someone watches and another process has joined.
const LIVE_WAITING_LINE: Duration = Duration::from_secs(1);
/// How long the last messages to processes that do not read may take.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// What a coordinator must know of its job.
pub struct CoordinatorOptions {
    pub key: Key,
    pub identity: Option<Identity>,
    pub job: JobId,
    pub process_count: u32,
    pub version: String,
    pub heartbeat: Heartbeat,
    /// The processes' hosts as far as they are known before they join.
    pub expected_hosts: Vec<String>,
    /// Where to serve metrics, if anywhere.
    pub metrics: Option<TcpListener>,
    /// Whether someone watches: every change in who is missing is told at once.
    pub live: bool,
    /// Where what processes bequeath goes.
    pub estate: Arc<Estate>,
}

/// A running coordinator. It stops when dropped; processes still connected are told.
pub struct Coordinator {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Coordinator {
    /// Starts serving on a socket.
    pub fn start(listener: TcpListener, mut options: CoordinatorOptions) -> Result<Self, JoinError> {
        let failed = |what| move |source| JoinError::Io { what, source };
        listener.set_nonblocking(true).map_err(failed("prepare the coordinator's socket"))?;
        // Listening again only changes the backlog, which the standard library leaves too short for large jobs.
        rustix::net::listen(&listener, BACKLOG)
            .map_err(|error| failed("prepare the coordinator's socket")(error.into()))?;
        make_room(options.process_count)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed("start the coordinator's runtime"))?;
        let (listener, metrics) = {
            let _inside = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener);
            let metrics = options.metrics.take().map(|metrics| {
                metrics.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(metrics)
            });
            (
                listener.map_err(failed("prepare the coordinator's socket"))?,
                metrics.transpose().map_err(failed("prepare the socket for metrics"))?,
            )
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("coordinator".to_owned())
            .spawn(move || LocalSet::new().block_on(&runtime, serve(listener, metrics, options, stopped)))
            .map_err(failed("start the coordinator's thread"))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the coordinator's tasks share.
struct Shared {
    state: RefCell<State>,
    /// Told whenever the state may have a new deadline or last words.
    changed: Notify,
    key: Key,
    identity: Option<Identity>,
    job: JobId,
    heartbeat: Heartbeat,
    /// Peers that had not joined when they were last looked at, oldest first.
    strangers: RefCell<VecDeque<Stranger>>,
    max_strangers: usize,
    writers: RefCell<Vec<tokio::task::JoinHandle<()>>>,
}

/// Raises this process's limit on open files as far as it may, so that all processes of the job can connect.
fn make_room(process_count: u32) -> Result<(), JoinError> {
    let needed = u64::from(process_count) + SPARE_HANDSHAKES as u64 + OTHER_DESCRIPTORS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(current) = current.filter(|current| *current < needed) else { return Ok(()) };
    let raised = maximum.map_or(needed, |maximum| maximum.min(needed));
    let limit = match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
        Ok(()) => raised,
        Err(_) => current,
    };
    if limit < needed {
        return Err(JoinError::OpenFiles { process_count, needed, limit });
    }
    Ok(())
}

async fn serve(
    listener: tokio::net::TcpListener,
    metrics: Option<tokio::net::TcpListener>,
    options: CoordinatorOptions,
    stopped: oneshot::Receiver<()>,
) {
    let CoordinatorOptions {
        key,
        identity,
        job,
        process_count,
        version,
        heartbeat,
        expected_hosts,
        metrics: _,
        live,
        estate,
    } = options;
    let state = State::new(Instant::now(), job, process_count, version, heartbeat, expected_hosts, estate);
    let shared = Rc::new(Shared {
        state: RefCell::new(state),
        changed: Notify::new(),
        key,
        identity,
        job,
        heartbeat,
        strangers: RefCell::default(),
        max_strangers: SPARE_HANDSHAKES + process_count as usize,
        writers: RefCell::default(),
    });
    tokio::select! {
        _ = stopped => {}
        () = accept(&listener, &shared) => {}
        () = keep_time(&shared, live) => {}
        () = observers::serve_metrics(metrics, &shared) => {}
        () = observers::serve_local(&shared) => {}
    }
    shared.state.borrow_mut().abort(Abort {
        process_index: Some(0),
        reported: false,
        message: "process 0 ended the job's coordinator before the job was done".to_owned(),
    });
    shared.state.borrow_mut().close();
    let writers = shared.writers.take();
    let _ = timeout(FLUSH_LIMIT, async {
        for writer in writers {
            let _ = writer.await;
        }
    })
    .await;
}

/// A peer from its first moment on.
struct Stranger {
    task: AbortHandle,
    has_joined: Rc<Cell<bool>>,
}

async fn accept(listener: &tokio::net::TcpListener, shared: &Rc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let mut strangers = shared.strangers.borrow_mut();
                if strangers.len() >= shared.max_strangers {
                    strangers.retain(|stranger| !stranger.has_joined.get() && !stranger.task.is_finished());
                }
                if strangers.len() >= shared.max_strangers
                    && let Some(oldest) = strangers.pop_front()
                {
                    oldest.task.abort();
                }
                let has_joined = Rc::new(Cell::new(false));
                let served = connection::serve(stream, address, shared.clone(), has_joined.clone());
                let task = tokio::task::spawn_local(served).abort_handle();
                strangers.push_back(Stranger { task, has_joined });
            }
            Err(error) => {
                tracing::debug!("the coordinator cannot accept a connection: {error}");
                // Out of file descriptors, most likely: accepting again at once would spin.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Ends waits in time, sends heartbeats and the waiting line, and has last words said.
async fn keep_time(shared: &Shared, live: bool) {
    let mut beat = interval(shared.heartbeat.interval.max(Duration::from_millis(1)));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut line = WaitingLine { since: Instant::now(), last: Instant::now(), joined: None, live };
    loop {
        let last_words = shared.state.borrow_mut().take_last_words();
        if let Some(mut last_words) = last_words {
            let others = std::mem::take(&mut last_words.others);
            let _ = timeout(FLUSH_LIMIT, async {
                for written in others {
                    let _ = written.await;
                }
            })
            .await;
            last_words.say();
        }
        let deadline = shared.state.borrow().next_deadline();
        let deadline_passed = async {
            match deadline {
                Some(deadline) => sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.changed.notified() => {}
            () = deadline_passed => shared.state.borrow_mut().expire(Instant::now()),
            _ = beat.tick() => {
                let now = Instant::now();
                shared.state.borrow_mut().beat(now);
                line.tell(now, &shared.state.borrow());
            }
        }
    }
}

/// Tells from time to time who has not joined yet.
struct WaitingLine {
    since: Instant,
    last: Instant,
    /// How many had joined when it was told; `None` before it was.
    joined: Option<usize>,
    live: bool,
}

impl WaitingLine {
    fn tell(&mut self, now: Instant, state: &State) {
        let pause = if self.live && self.joined != Some(state.joined()) { LIVE_WAITING_LINE } else { WAITING_LINE };
        match state.waiting_line() {
            Some(line) if now.duration_since(self.last) >= pause => {
                tracing::info!("{line}");
                self.last = now;
                self.joined = Some(state.joined());
            }
            None if self.joined.take().is_some() => {
                tracing::info!("all processes have joined, after {}", Seconds(now.duration_since(self.since)));
            }
            _ => {}
        }
    }
}

/// See [`take_untrusted`](super::take_untrusted).
pub fn take_untrusted(bytes: &[u8]) {
    state::take_untrusted(bytes);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::connect::connect;
    use super::super::{JoinOptions, Rendezvous, RendezvousError, listen};
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// What the others are told when process 1, which has joined properly, then sends these bytes.
    fn told_after(bytes: &[u8]) -> String {
        let listener = listen("127.0.0.1:0").unwrap();
        let options = |index| JoinOptions { host: "host".into(), ..JoinOptions::new("127.0.0.1:0", index, 2, LONG) };
        let address = listener.local_addr().unwrap().to_string();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut connection = connect(&options(1), None, &address, Instant::now() + LONG).unwrap();
                connection.channel.write_all(bytes).unwrap();
                let _ = std::io::copy(&mut connection.channel, &mut std::io::sink());
            });
            let joined = Rendezvous::join(JoinOptions { host_coordinator: Some(listener), ..options(0) });
            let told = joined.map(|host| match host.barrier("never", LONG) {
                Err(RendezvousError::Aborted(abort)) => abort.to_string(),
                other => format!("{other:?}"),
            });
            let told = told.unwrap_or_else(|error| error.to_string());
            // What process 0 reads when it joins only afterwards.
            told.trim_start_matches("the job has been stopped: ").to_owned()
        })
    }

    #[test]
    fn a_member_that_sends_nonsense_is_cut_off() {
        insta::assert_snapshot!(told_after(&[255; 64]), @"process 1 (host) was cut off: a message's header of 4294967295 bytes exceeds the limit of 1048576");
        insta::assert_snapshot!(told_after(&[3, 0, 0, 0, 0, 0, 0, 0, 1, 200, 200]), @"process 1 (host) was cut off: a message cannot be read: Hit the end of buffer, expected more data");
    }
}
