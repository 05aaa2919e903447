//! A job over several hosts.
//!
//! For each host the launcher starts a helper, which is this same binary: on other hosts through an agent, ssh, which
//! brings the binary and the input files where they are not there already, and on this machine without. The helper is the
//! parent of the controllers there. Orders to it, the job's secret among them, travel over the agent's standard input; what
//! the controllers print, and how they end, over its standard output. A helper whose connection is cut ends its
//! controllers. On a Ray cluster an actor takes the agent's place, and the cluster decides which hosts there are.

mod agent;
mod files;
mod helper;
mod link;
mod list;
mod ray;
mod wire;

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use rustix::process::Signal;
use signal_hook::consts::SIGTSTP;

use super::job::{End, Job, LaunchError, Outcome, failed};
use super::output::{Output, Pipe};
use super::printer::{Printer, Stream, tags};
use super::progress::{self, Place, Progress};
use super::signals::Signals;
use super::watch::{Ended, Started, wait_for, watch};
use crate::rendezvous::JobToken;

pub use agent::SSH_COMMAND;
pub use files::shipped;
pub use helper::serve;
pub use list::{HostListError, Share, Slots, parse, parse_file, share};
pub use ray::{MODULE as RAY_MODULE, RayCluster, RayError};

use agent::Binary;
use link::{Agent, Event, Link, Listening, Reached, Sent};
use ray::{Driver, Placed};
use wire::{BEAT, Inbox, Order, Start, Word};

/// Where the controllers of a job run.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// How they are reached.
    pub by: By,
    /// Input files that the controllers' arguments name.
    pub files: Vec<PathBuf>,
    /// How long a host may take until its helper is ready.
    pub start_limit: Duration,
}

/// How hosts are reached.
#[derive(Clone, Debug)]
pub enum By {
    /// By a command, hosts that are known beforehand.
    Ssh {
        /// The hosts in the order of their processes.
        shares: Vec<Share>,
        /// The command that runs a command on another host, [`SSH_COMMAND`] or the like: words, to which the host and the
        /// command are added.
        agent: String,
    },
    /// By Ray, hosts that it gives.
    Ray(RayCluster),
}

/// How often to tell which hosts are not ready yet.
const WAITING_LINE: Duration = Duration::from_secs(10);

/// A host on which no controller can be started.
#[derive(Debug, thiserror::Error)]
#[error("host {host}: {reason}")]
pub struct HostError {
    /// Its name.
    pub host: String,
    /// Why.
    pub reason: String,
}

/// Whether this program is the one with this hash.
pub fn is_this_program(hash: &str) -> bool {
    std::env::current_exe()
        .and_then(|path| files::hash(&path))
        .is_ok_and(|own| blake3::Hash::from(own).to_hex() == *hash)
}

/// Runs a job over hosts to its end.
pub(super) fn run(job: &Job, hosts: &Hosts, restarts: u32, signals: &mut Signals) -> Result<Outcome, LaunchError> {
    let binary = Binary::at(&job.program).map_err(failed("read this program's file"))?;
    let hashes = hosts.files.iter().map(|path| files::hash(path)).collect::<Result<_, _>>();
    let sent = Sent { binary, hashes: hashes.map_err(failed("read an input file"))? };
    let mut job = job.clone();
    // After the helpers, which it carries.
    let driver;
    let (reached, agent_output) = match &hosts.by {
        By::Ssh { shares, agent } => reach_by_command(shares, agent, &sent.binary)?,
        By::Ray(cluster) => {
            match Driver::start(cluster, job.process_count, hosts.start_limit, &sent.binary, signals)? {
                Placed::Hosts(running, reached) => {
                    driver = running;
                    job.chips = driver.chips();
                    (reached, Vec::new())
                }
                Placed::Stopped { signal } => return Ok(Outcome::Stopped { signal }),
            }
        }
    };
    let line = progress::line();
    let mut helpers = Helpers::start(&job, hosts, sent, reached, agent_output, restarts, line.as_ref())?;
    if let Some(signal) = helpers.prepare(&job, hosts, restarts, signals)? {
        return Ok(Outcome::Stopped { signal });
    }
    let places = helpers.places.clone();
    let look = move || places.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let _progress = Progress::start(look, line).map_err(failed("start a thread"))?;
    watch(&job, &mut helpers, signals)
}

/// Starts an agent for each host. What the agents themselves say comes out of the pipes.
fn reach_by_command(shares: &[Share], agent: &str, binary: &Binary) -> Result<(Vec<Reached>, Vec<Pipe>), LaunchError> {
    let (mut all, mut pipes) = (Vec::new(), Vec::new());
    for (host, share) in shares.iter().enumerate() {
        let unusable = |reason: String| HostError { host: share.host.clone(), reason };
        let mut command = binary.helper_on(&share.host, agent).map_err(failed("name a folder"))?;
        let mut agent = command
            .spawn()
            .map_err(|error| unusable(format!("cannot run {}: {error}", command.get_program().to_string_lossy())))?;
        let stderr = agent.stderr.take().map(OwnedFd::from);
        pipes.extend(stderr.map(|fd| Pipe { process: host as u32, stream: Stream::Err, fd }));
        if let (Some(input), Some(output)) = (agent.stdin.take(), agent.stdout.take()) {
            all.push(Reached {
                name: share.host.clone(),
                processes: share.processes,
                envs: Vec::new(),
                agent: Agent::Command(agent),
                input: File::from(OwnedFd::from(input)),
                output: File::from(OwnedFd::from(output)),
            });
        }
    }
    Ok((all, pipes))
}

/// The helpers of a job. Dropping them ends all that runs.
struct Helpers {
    links: Vec<Link>,
    /// Controllers that have been started and have not ended.
    running: Vec<bool>,
    events: Inbox<(usize, Event)>,
    printer: Arc<Printer>,
    /// What the agents themselves say.
    agents: Arc<Printer>,
    /// Hands that on, as long as it is there.
    agent_output: Option<Output>,
    /// How far all processes were when their helpers last gave a sign of life.
    places: Arc<Mutex<Vec<Place>>>,
    last_beat: Instant,
}

impl Helpers {
    /// Starts a thread for each host that listens to it.
    fn start(
        job: &Job,
        hosts: &Hosts,
        sent: Sent,
        reached: Vec<Reached>,
        agent_output: Vec<Pipe>,
        restarts: u32,
        line: Option<&ProgressBar>,
    ) -> Result<Self, LaunchError> {
        let of_processes = reached.iter().flat_map(|host| vec![Some(host.name.clone()); host.processes as usize]);
        let tags = tags(of_processes.collect::<Vec<_>>().into_iter());
        let mut printer = Printer::new(tags).above(line.cloned());
        if let Some(folder) = &job.log_dir {
            printer.log_to(folder, restarts == 0)?;
        }
        let (events, letterbox) = Inbox::new(1024).map_err(failed("make a channel"))?;
        let names = reached.iter().map(|host| format!("[{}] ", host.name));
        let mut helpers = Self {
            links: Vec::new(),
            running: vec![false; job.process_count as usize],
            events,
            printer: Arc::new(printer),
            agents: Arc::new(Printer::new(names).without_results().above(line.cloned())),
            agent_output: None,
            places: Arc::new(Mutex::new(vec![Place::default(); job.process_count as usize])),
            last_beat: Instant::now(),
        };
        let (sent, hosts) = (Arc::new(sent), Arc::new(hosts.clone()));
        let mut first = 0;
        for (host, reached) in reached.into_iter().enumerate() {
            let (link, input, output) = Link::new(host as u32, first, reached);
            first += link.count;
            helpers.links.push(link);
            let events = letterbox.another().map_err(failed("make a channel"))?;
            let (sent, hosts) = (sent.clone(), hosts.clone());
            Listening { host, sent, hosts, printer: helpers.printer.clone(), events }
                .start(input, output)
                .map_err(failed("start a thread"))?;
        }
        let agents = helpers.agents.clone();
        let output = Output::start(agent_output, move |host, stream, bytes| agents.take(host, stream, bytes));
        helpers.agent_output = Some(output.map_err(failed("copy the hosts' output"))?);
        Ok(helpers)
    }

    /// Waits until all helpers are ready, and has them start the controllers. Returns the signal that ended the wait, if
    /// one did.
    fn prepare(
        &mut self,
        job: &Job,
        hosts: &Hosts,
        restarts: u32,
        signals: &mut Signals,
    ) -> Result<Option<i32>, LaunchError> {
        let deadline = Instant::now() + hosts.start_limit;
        let mut next_line = Instant::now() + WAITING_LINE;
        let mut coordinator = None;
        while coordinator.is_none() {
            wait_for([signals.as_fd(), self.events.wake()], Some(BEAT))?;
            if let Some(signal) = signals.take().into_iter().find(|signal| *signal != SIGTSTP) {
                return Ok(Some(signal));
            }
            self.beat();
            if Instant::now() >= next_line {
                next_line += WAITING_LINE;
                let missing = self.links.iter().filter(|link| link.ready.is_none()).map(|link| &*link.name);
                tracing::info!("waiting for {}", missing.collect::<Vec<_>>().join(", "));
            }
            for (host, event) in self.events.take() {
                match event {
                    Event::Ready(orders, ready) => {
                        self.links[host].open(orders, ready);
                        if self.links.iter().all(|link| link.ready.is_some()) {
                            let towards = self.peers_of_first()?;
                            self.links[0].order(&Order::Listen { towards });
                        }
                    }
                    Event::Word(Word::Listening(address)) => coordinator = Some(self.reachable(address)?),
                    Event::Word(Word::Failed(reason)) => return Err(self.unusable(host, reason).into()),
                    Event::Word(_) => {}
                    Event::Closed(cut) => {
                        let reason = match cut.kind() {
                            io::ErrorKind::TimedOut => too_late(hosts.start_limit),
                            _ => self.links[host].reason(&cut, &self.agents, true),
                        };
                        return Err(self.unusable(host, reason).into());
                    }
                }
            }
            if Instant::now() >= deadline
                && let Some(host) = self.links.iter().position(|link| link.ready.is_none())
            {
                return Err(self.unusable(host, too_late(hosts.start_limit)).into());
            }
        }
        let token = JobToken::random().map_err(failed("make a job token"))?;
        for link in &mut self.links {
            let start = Start {
                first: link.first,
                count: link.count,
                process_count: job.process_count,
                chips: job.chips.clone(),
                coordinator: coordinator.clone().unwrap_or_default(),
                token: token.reveal().to_owned(),
                args: job.args.clone(),
                envs: job.envs.iter().chain(&link.envs).cloned().collect(),
                restarts,
            };
            link.order(&Order::Start(start));
        }
        self.running.fill(true);
        Ok(None)
    }

    fn unusable(&self, host: usize, reason: String) -> HostError {
        HostError { host: self.links[host].name.clone(), reason }
    }

    /// Addresses of the machines other than that of the first host, where process 0 will be.
    fn peers_of_first(&self) -> Result<Vec<IpAddr>, HostError> {
        let ready = |link: &Link| link.ready.as_ref().map(|ready| (ready.machine.clone(), ready.address));
        let first = self.links.first().and_then(ready).map(|(machine, _)| machine);
        let mut peers = Vec::new();
        for (host, link) in self.links.iter().enumerate() {
            match ready(link) {
                Some((machine, address)) if Some(&machine) != first.as_ref() => {
                    if address.is_loopback() {
                        let reason = "it has no network interface that leads to other hosts".to_owned();
                        return Err(self.unusable(host, reason));
                    }
                    peers.push(address);
                }
                _ => {}
            }
        }
        Ok(peers)
    }

    /// Refuses a coordinator that other machines cannot reach.
    fn reachable(&self, coordinator: SocketAddr) -> Result<String, HostError> {
        if coordinator.ip().is_loopback() && !self.peers_of_first()?.is_empty() {
            return Err(self.unusable(0, "it has no network interface that leads to the other hosts".to_owned()));
        }
        Ok(coordinator.to_string())
    }

    /// Gives the helpers a sign of life when it is time for one.
    fn beat(&mut self) {
        if self.last_beat.elapsed() >= BEAT {
            self.last_beat = Instant::now();
            self.links.iter_mut().for_each(|link| link.order(&Order::Alive));
        }
    }

    /// Takes note of how far a host's processes are.
    fn note(&self, host: usize, new: Vec<Place>) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, new) in places.iter_mut().skip(self.links[host].first as usize).zip(new) {
            *place = new;
        }
    }

    /// Takes note of the end of a connection, and of the controllers that are gone with it.
    fn lose(&mut self, host: usize, reason: &str) -> Vec<Ended> {
        let link = &mut self.links[host];
        link.close();
        link.is_closed = true;
        let processes = link.first..link.first + link.count;
        let lost = processes.filter(|&process| std::mem::take(&mut self.running[process as usize]));
        lost.map(|process_index| Ended { process_index, end: End::Lost(reason.to_owned()), phase: None }).collect()
    }
}

fn too_late(limit: Duration) -> String {
    format!("it was not ready within {} s", limit.as_secs_f64())
}

impl Started for Helpers {
    fn any_running(&self) -> bool {
        self.links.iter().any(|link| !link.is_closed)
    }

    fn signal(&mut self, signal: Signal) {
        self.links.iter_mut().for_each(|link| link.order(&Order::Signal(signal.as_raw())));
    }

    fn ended(&mut self) -> Result<Vec<Ended>, LaunchError> {
        self.beat();
        let mut ended = Vec::new();
        for (host, event) in self.events.take() {
            match event {
                Event::Word(Word::Ended { process, status, phase }) => {
                    if let Some(running) = self.running.get_mut(process as usize) {
                        *running = false;
                        let end = End::Status(std::os::unix::process::ExitStatusExt::from_raw(status));
                        ended.push(Ended { process_index: process, end, phase });
                    }
                }
                Event::Word(Word::Alive(places)) => self.note(host, places),
                Event::Word(Word::Finished) => self.links[host].is_finished = true,
                Event::Word(Word::Failed(reason)) => return Err(self.unusable(host, reason).into()),
                Event::Closed(cut) if !self.links[host].is_closed => {
                    let reason = self.links[host].reason(&cut, &self.agents, false);
                    ended.extend(self.lose(host, &reason));
                }
                _ => {}
            }
        }
        for link in &mut self.links {
            let mut running = link.first..link.first + link.count;
            if link.is_finished && !running.any(|process| self.running[process as usize]) {
                link.close();
            }
        }
        Ok(ended)
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.wake())
    }

    fn patience(&self) -> Option<Duration> {
        Some(BEAT)
    }

    fn give_up(&mut self) {
        for host in 0..self.links.len() {
            if !self.links[host].is_closed {
                tracing::warn!("{} does not answer: what still runs there ends when it notices", self.links[host].name);
                self.lose(host, "");
            }
        }
    }

    /// All has been printed when the connections have been closed.
    fn printed(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn host_of(&self, process_index: u32) -> Option<String> {
        self.links.iter().find(|link| link.has(process_index)).map(|link| link.name.clone())
    }

    fn last_words(&self, process_index: u32) -> Option<String> {
        self.printer.last_words(process_index)
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        link::end(&mut self.links);
        if let Some(output) = self.agent_output.take() {
            output.finish();
        }
    }
}
