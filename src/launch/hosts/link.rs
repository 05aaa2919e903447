//! The launcher's end of the connection to a helper.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof};
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::super::printer::Printer;
use super::super::signals::describe;
use super::Hosts;
use super::agent::{Binary, advice};
use super::ray::Obituaries;
use super::wire::{FileOffer, Letterbox, Order, PIECE, Patient, Ready, SILENCE, Word, read, write};

/// What the thread that listens to a helper tells the launcher's main thread.
pub enum Event {
    /// The helper has all it needs, and takes orders through this pipe from now on.
    Ready(File, Ready),
    Word(Word),
    /// Nothing more will come.
    Closed(io::Error),
}

/// What hosts get that lack it.
pub struct Sent {
    pub binary: Binary,
    /// BLAKE3 of the files of the job.
    pub hashes: Vec<[u8; 32]>,
}

/// What a listening thread needs.
pub struct Listening {
    /// The number of the host.
    pub host: usize,
    pub sent: Arc<Sent>,
    pub hosts: Arc<Hosts>,
    pub printer: Arc<Printer>,
    pub events: Letterbox<(usize, Event)>,
}

impl Listening {
    /// Starts a thread that prepares the helper and then listens to it.
    pub fn start(self, input: File, output: File) -> io::Result<()> {
        let listen = move || {
            let mut output = Patient { pipe: output, limit: self.hosts.start_limit };
            let cut = self.listen(input, &mut output).err();
            let cut = cut.unwrap_or_else(|| UnexpectedEof.into());
            self.events.put((self.host, Event::Closed(cut)));
        };
        std::thread::Builder::new().name("host".to_owned()).spawn(listen).map(drop)
    }

    fn listen(&self, mut input: File, output: &mut Patient<File>) -> io::Result<()> {
        let ready = self.prepare(&mut input, output)?;
        output.limit = SILENCE;
        self.events.put((self.host, Event::Ready(input, ready)));
        loop {
            match read(output)? {
                Word::Output { process, stream, bytes } => self.printer.take(process, stream, &bytes),
                word => {
                    if !self.events.put((self.host, Event::Word(word))) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Gives the helper the files that it lacks.
    fn prepare(&self, input: &mut File, output: &mut impl Read) -> io::Result<Ready> {
        self.sent.binary.bring(input, output)?;
        let offer = |(path, hash): (&PathBuf, &[u8; 32])| FileOffer { path: path.into(), hash: *hash };
        let offers = self.hosts.files.iter().zip(&self.sent.hashes).map(offer).collect();
        let directory = std::env::current_dir()
            .map_err(|error| io::Error::new(error.kind(), format!("the working directory of spmd-run: {error}")))?;
        write(input, &Order::Prepare { directory: directory.into(), files: offers })?;
        let ready = loop {
            match read(output)? {
                Word::Ready(ready) => break ready,
                Word::Failed(reason) => return Err(io::Error::other(reason)),
                _ => {}
            }
        };
        for &file in &ready.missing {
            let path = self.hosts.files.get(file as usize).ok_or_else(|| io::Error::other("no such file"))?;
            let mut contents = File::open(path)?;
            loop {
                let mut bytes = Vec::with_capacity(PIECE);
                contents.by_ref().take(PIECE as u64).read_to_end(&mut bytes)?;
                let is_last = bytes.len() < PIECE;
                write(input, &Order::Piece { file, bytes })?;
                if is_last {
                    break;
                }
            }
        }
        Ok(ready)
    }
}

/// What stands between the launcher and a helper.
pub enum Agent {
    /// A command such as ssh, or the shell that takes its place on this machine.
    Command(Child),
    /// An actor of Ray, of which the driver knows why it is gone.
    Actor(Arc<Obituaries>),
}

/// A host whose helper can be spoken to.
pub struct Reached {
    pub name: String,
    /// How many controllers it gets.
    pub processes: u32,
    /// Environment variables that only these get.
    pub envs: Vec<(OsString, OsString)>,
    pub agent: Agent,
    /// Where the helper reads.
    pub input: File,
    /// Where it writes.
    pub output: File,
}

/// A host of a running job.
pub struct Link {
    /// Its number.
    host: u32,
    pub name: String,
    /// The index of its first controller.
    pub first: u32,
    /// How many controllers it has.
    pub count: u32,
    /// Environment variables that only its controllers get.
    pub envs: Vec<(OsString, OsString)>,
    agent: Agent,
    /// Where orders go, while the helper takes some.
    orders: Option<File>,
    /// All its controllers have ended, and all that they printed has arrived.
    pub is_finished: bool,
    pub is_closed: bool,
    pub ready: Option<Ready>,
}

impl Link {
    /// Host `host`, whose controllers start with `first`, and the helper's input and output.
    pub fn new(host: u32, first: u32, reached: Reached) -> (Self, File, File) {
        let Reached { name, processes: count, envs, agent, input, output } = reached;
        let (orders, ready) = (None, None);
        (
            Self { host, name, first, count, envs, agent, orders, is_finished: false, is_closed: false, ready },
            input,
            output,
        )
    }

    pub fn open(&mut self, orders: File, ready: Ready) {
        self.orders = Some(orders);
        self.ready = Some(ready);
    }

    /// Gives an order. One that does not arrive is answered by the end of the connection.
    pub fn order(&mut self, order: &Order) {
        if let Some(orders) = &mut self.orders {
            let _ = write(orders, order);
        }
    }

    /// Lets the helper go, which ends what still runs there.
    pub fn close(&mut self) {
        if let Some(orders) = self.orders.take() {
            // Of a socket, the thread that listens holds the other direction. A pipe has none, and refuses.
            let _ = rustix::net::shutdown(&orders, rustix::net::Shutdown::Write);
        }
    }

    pub fn has(&self, process_index: u32) -> bool {
        (self.first..self.first + self.count).contains(&process_index)
    }

    /// Why the connection has ended, with what the agent said last and what to do.
    pub fn reason(&mut self, cut: &io::Error, agents: &Printer, with_advice: bool) -> String {
        if cut.kind() == TimedOut {
            return format!("{} does not answer", self.name);
        }
        if let Agent::Actor(obituaries) = &self.agent {
            let is_helpers_end = matches!(cut.kind(), UnexpectedEof | BrokenPipe | ConnectionReset);
            return if is_helpers_end { obituaries.of(self.host) } else { cut.to_string() };
        }
        let status = self.wait(Duration::from_secs(1));
        let words = || agents.last_words(self.host);
        // They come another way, and may come later.
        let last_words = words().or_else(|| {
            std::thread::sleep(Duration::from_millis(100));
            words()
        });
        let mut reason = match status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => format!("the connection has ended with exit code {code}"),
            Some((_, Some(signal))) => format!("the connection has been killed by {}", describe(signal)),
            _ => "the connection has ended".to_owned(),
        };
        if cut.kind() != UnexpectedEof && cut.kind() != BrokenPipe {
            reason = format!("{reason}: {cut}");
        }
        if let Some(words) = &last_words {
            reason = format!("{reason}: {}", words.trim_end_matches('.'));
        }
        if with_advice {
            let code = status.and_then(|status| status.code());
            let advice = advice(&self.name, code, last_words.as_deref().unwrap_or_default());
            reason = format!("{reason}: {advice}");
        }
        reason
    }

    /// Waits for the agent's end.
    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let Agent::Command(agent) = &mut self.agent else { return None };
        let deadline = Instant::now() + limit;
        loop {
            match agent.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    fn signal_agent(&mut self, signal: Signal) {
        let Agent::Command(agent) = &mut self.agent else { return };
        // Before it is collected its number, which is the group's too, cannot mean another process.
        if matches!(agent.try_wait(), Ok(None)) {
            let group = Pid::from_child(agent);
            let _ = kill_process_group(group, signal);
            let _ = kill_process_group(group, Signal::CONT);
        }
    }
}

/// Ends all agents: those whose helpers take orders first have time to end what they have started, and to tidy up.
pub fn end(links: &mut [Link]) {
    const TIME: Duration = Duration::from_secs(2);
    links.iter_mut().for_each(Link::close);
    for link in links.iter_mut().filter(|link| link.ready.is_none()) {
        link.signal_agent(Signal::TERM);
    }
    for signal in [Signal::TERM, Signal::KILL] {
        let deadline = Instant::now() + TIME;
        for link in links.iter_mut() {
            if link.wait(deadline.saturating_duration_since(Instant::now())).is_none() {
                link.signal_agent(signal);
            }
        }
    }
    for link in links {
        link.wait(TIME);
    }
}
