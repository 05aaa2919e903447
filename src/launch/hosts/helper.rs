//! The launcher's helper on a host, which is the parent of the controllers there.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use rustix::process::Signal;

use super::super::controllers::{Controllers, Crew};
use super::super::environment::{HOST_ADDRESS, SHIPPED_FILES};
use super::super::job::{LaunchError, failed};
use super::super::output::Output;
use super::super::progress::Place;
use super::super::signals::Signals;
use super::super::watch::wait_for;
use super::agent::HELPER_READY;
use super::files::{hash, place_in};
use super::wire::{BEAT, FileOffer, Inbox, Order, Patient, Ready, SILENCE, Start, Word, read, write};
use crate::cluster::host;
use crate::rendezvous::JobToken;

/// Messages that wait to be sent or handled.
const ROOM: usize = 64;
/// How long a job may be stopped: a month.
const LONG_SILENCE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Does what the launcher at the other end of standard input and output says, until the controllers have ended or the
/// connection is cut. Returns the exit code.
///
/// `folder` is a folder of its own for files.
pub fn serve(folder: &Path) -> Result<u8, LaunchError> {
    let signals = Signals::catch().map_err(failed("catch signals"))?;
    let ready = io::stdout().write_all(format!("{HELPER_READY}\n").as_bytes());
    ready.map_err(failed("speak to the launcher"))?;
    let orders = listen_to_launcher().map_err(failed("listen to the launcher"))?;
    let words = speak_to_launcher().map_err(failed("speak to the launcher"))?;
    Helper { folder, words, listener: None, offers: Vec::new(), crew: None, unsaid: VecDeque::new() }
        .run(orders, signals)
}

/// Reads orders on a thread of its own. `None` is the last: the connection is cut.
fn listen_to_launcher() -> io::Result<Inbox<Option<Order>>> {
    let (inbox, orders) = Inbox::new(ROOM)?;
    let mut input = Patient { pipe: io::stdin().as_fd().try_clone_to_owned().map(File::from)?, limit: SILENCE };
    std::thread::Builder::new().name("orders".to_owned()).spawn(move || {
        while let Ok(order) = read(&mut input) {
            // A job that is stopped has a launcher that is stopped.
            match order {
                Order::Signal(signal) if signal == Signal::STOP.as_raw() => input.limit = LONG_SILENCE,
                _ => input.limit = SILENCE,
            }
            if !orders.put(Some(order)) {
                return;
            }
        }
        orders.put(None);
    })?;
    Ok(inbox)
}

/// Writes messages on a thread of its own: a launcher that does not listen stops the output, and nothing else.
fn speak_to_launcher() -> io::Result<SyncSender<Word>> {
    let (sender, words) = sync_channel(ROOM);
    std::thread::Builder::new().name("words".to_owned()).spawn(move || {
        let mut output = io::stdout();
        while let Ok(word) = words.recv() {
            if write(&mut output, &word).is_err() {
                return;
            }
        }
    })?;
    Ok(sender)
}

struct Helper<'a> {
    folder: &'a Path,
    words: SyncSender<Word>,
    /// The coordinator's socket.
    listener: Option<TcpListener>,
    offers: Vec<FileOffer>,
    crew: Option<(Controllers, Option<Output>)>,
    /// What is to be said when there is room.
    unsaid: VecDeque<Word>,
}

impl Helper<'_> {
    fn run(mut self, orders: Inbox<Option<Order>>, mut signals: Signals) -> Result<u8, LaunchError> {
        let mut directory = PathBuf::new();
        loop {
            wait_for([signals.as_fd(), orders.wake()], Some(BEAT))?;
            if let Some(signal) = signals.take().first() {
                return Ok(128 + *signal as u8);
            }
            for order in orders.take() {
                let done = match order {
                    // What still runs is killed.
                    None => return Ok(0),
                    Some(Order::Alive) => Ok(()),
                    Some(Order::Signal(signal)) => {
                        self.signal(signal);
                        Ok(())
                    }
                    Some(Order::Prepare { directory: wanted, files }) => {
                        directory = wanted.into();
                        self.prepare(&mut directory, files);
                        Ok(())
                    }
                    Some(Order::Piece { file, bytes }) => self.keep(file, &bytes).map_err(|error| error.to_string()),
                    Some(Order::Listen { towards }) => self.listen(&towards).map_err(|error| error.to_string()),
                    Some(Order::Start(start)) => self.start(&start, &directory).map_err(|error| error.to_string()),
                };
                if let Err(reason) = done {
                    self.unsaid.push_back(Word::Failed(reason));
                }
            }
            self.reap()?;
            let places = self.crew.iter().flat_map(|(controllers, _)| controllers.watched());
            let alive = Word::Alive(places.map(|process| Place::of(&process)).collect());
            if let Err(TrySendError::Disconnected(_)) = self.words.try_send(alive) {
                return Ok(0);
            }
            self.speak();
        }
    }

    /// Says what there is room for.
    fn speak(&mut self) {
        while let Some(word) = self.unsaid.pop_front() {
            if let Err(TrySendError::Full(word) | TrySendError::Disconnected(word)) = self.words.try_send(word) {
                self.unsaid.push_front(word);
                return;
            }
        }
    }

    fn prepare(&mut self, directory: &mut PathBuf, files: Vec<FileOffer>) {
        if !directory.is_dir() {
            *directory = std::env::home_dir().unwrap_or_else(|| self.folder.to_owned());
        }
        let is_there = |file: &FileOffer| hash(&directory.join(&file.path)).is_ok_and(|hash| hash == file.hash);
        let missing = files.iter().enumerate().filter(|(_, file)| !is_there(file)).map(|(index, _)| index as u32);
        self.unsaid.push_back(Word::Ready(Ready {
            missing: missing.collect(),
            address: Self::own_address(),
            machine: machine(),
        }));
        self.offers = files;
    }

    /// Where other hosts reach this one: as Ray says, or as the launcher's ssh does.
    fn own_address() -> IpAddr {
        let connection = std::env::var("SSH_CONNECTION").ok();
        let by_ssh = || connection.as_deref()?.split(' ').nth(2).map(str::to_owned);
        let address = std::env::var(HOST_ADDRESS).ok().or_else(by_ssh);
        let address = address.and_then(|address| address.parse().ok());
        address.filter(|address: &IpAddr| !address.is_loopback()).unwrap_or_else(host::address_for_peers)
    }

    /// Writes the next bytes of a file.
    fn keep(&self, file: u32, bytes: &[u8]) -> io::Result<()> {
        let Some(offer) = self.offers.get(file as usize) else { return Ok(()) };
        let path = place_in(self.folder, &offer.path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        // One of the files may be the program itself.
        File::options().create(true).append(true).mode(0o700).open(path)?.write_all(bytes)
    }

    fn listen(&mut self, towards: &[IpAddr]) -> io::Result<()> {
        let listener = TcpListener::bind((address_towards(towards)?, 0))?;
        self.unsaid.push_back(Word::Listening(listener.local_addr()?));
        self.listener = Some(listener);
        Ok(())
    }

    fn start(&mut self, start: &Start, directory: &Path) -> Result<(), LaunchError> {
        let program = std::env::current_exe().map_err(failed("find this program's file"))?;
        let token: JobToken = start.token.parse().map_err(io::Error::other).map_err(failed("read the job token"))?;
        let mut envs = start.envs.clone();
        envs.push((SHIPPED_FILES.into(), self.folder.into()));
        // What a process that is killed leaves there goes with the folder.
        envs.push(("TMPDIR".into(), self.folder.into()));
        let (controllers, pipes) = Controllers::start(&Crew {
            program: &program,
            args: &start.args,
            envs: &envs,
            directory: Some(directory.to_owned()),
            first: start.first,
            count: start.count,
            process_count: start.process_count,
            chips: start.chips.as_deref(),
            coordinator: start.coordinator.clone(),
            listener: self.listener.as_ref(),
            token: &token,
            restarts: start.restarts,
            shares_input: false,
            shares_output: false,
        })?;
        let words = self.words.clone();
        let output = Output::start(pipes, move |process, stream, bytes| {
            let _ = words.send(Word::Output { process, stream, bytes: bytes.to_vec() });
        });
        self.crew = Some((controllers, Some(output.map_err(failed("copy the processes' output"))?)));
        Ok(())
    }

    fn signal(&mut self, signal: i32) {
        if let (Some((controllers, _)), Some(signal)) = (&self.crew, Signal::from_named_raw(signal)) {
            controllers.signal(signal);
        }
    }

    fn reap(&mut self) -> Result<(), LaunchError> {
        let Some((controllers, output)) = &mut self.crew else { return Ok(()) };
        let ended = controllers.reap()?.into_iter();
        self.unsaid.extend(ended.map(|exit| Word::Ended {
            process: exit.process_index,
            status: exit.status.into_raw(),
            phase: exit.phase,
        }));
        if !controllers.any_running()
            && let Some(output) = output.take()
        {
            let words = self.words.clone();
            // Handing on the output waits for the launcher, who may tell more meanwhile.
            std::thread::spawn(move || {
                output.finish();
                let _ = words.send(Word::Finished);
            });
        }
        Ok(())
    }
}

/// What two network namespaces of one machine do not share either.
fn machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), network.display())
}

/// This host's address on the way to the first of these; the loopback address if there are none.
fn address_towards(peers: &[IpAddr]) -> io::Result<IpAddr> {
    let Some(&peer) = peers.first() else { return Ok(Ipv4Addr::LOCALHOST.into()) };
    host::address_towards(SocketAddr::new(peer, 9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_a_peer_has_an_address() {
        assert_eq!(address_towards(&[]).unwrap(), Ipv4Addr::LOCALHOST);
        assert_eq!(address_towards(&[Ipv4Addr::new(127, 0, 0, 5).into()]).unwrap(), Ipv4Addr::LOCALHOST);
    }
}
