//! Controllers on this machine: their start, signals to them and their end.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group, waitid};

use super::chips::{self, Change};
use super::environment::{COORDINATOR, COORDINATOR_FD, PHASE_FD, PROCESS_COUNT, PROCESS_INDEX, RESTART_COUNT};
use super::job::{LaunchError, failed};
use super::limits;
use super::output::Pipe;
use super::phase::{Memory, Watched};
use super::printer::Stream;
use crate::partition::delete_dumps_of;
use crate::rendezvous::JobToken;

/// The controllers of a job that run on this machine.
pub struct Crew<'a> {
    pub program: &'a Path,
    pub args: &'a [OsString],
    pub envs: &'a [(OsString, OsString)],
    /// Where they run; where this process does unless given.
    pub directory: Option<PathBuf>,
    /// The index of the first.
    pub first: u32,
    /// How many there are.
    pub count: u32,
    /// How many the whole job has.
    pub process_count: u32,
    /// Chips of this machine to divide among them.
    pub chips: Option<&'a [u32]>,
    /// Where the coordinator listens, as `HOST:PORT`.
    pub coordinator: String,
    /// The coordinator's socket, if process 0 is among them.
    pub listener: Option<&'a TcpListener>,
    pub token: &'a JobToken,
    /// How often the job has been started before.
    pub restarts: u32,
    /// Process 0 reads this process's standard input.
    pub shares_input: bool,
    /// Process 0 writes to this process's standard output.
    pub shares_output: bool,
}

/// A controller that has ended.
pub struct Exit {
    pub process_index: u32,
    pub status: ExitStatus,
    /// What it was doing.
    pub phase: Option<String>,
}

struct Controller {
    process_index: u32,
    child: Child,
    running: bool,
    phase: Memory,
}

/// The started controllers. Dropping them kills those that still run.
#[derive(Default)]
pub struct Controllers(Vec<Controller>);

impl Controllers {
    /// Starts them and returns the pipes into which they print.
    ///
    /// Each is a process group of its own, dies when the thread that calls this function dies, and finds in its environment
    /// what [`ControllerEnv`](super::ControllerEnv) reads.
    pub fn start(crew: &Crew<'_>) -> Result<(Self, Vec<Pipe>), LaunchError> {
        limits::check(crew.count)?;
        let chips = crew.chips.map(|chips| chips::divide(chips, crew.count)).transpose()?;
        let mut chips = chips.into_iter().flatten();
        let mut controllers = Self::default();
        let mut pipes = Vec::new();
        for process_index in crew.first..crew.first + crew.count {
            let phase = Memory::create().map_err(failed("make memory for a process's phase"))?;
            let mut command = Command::new(crew.program);
            command
                .args(crew.args)
                .envs(crew.envs.iter().map(|(name, value)| (name, value)))
                .env(COORDINATOR, &crew.coordinator)
                .env(PROCESS_INDEX, process_index.to_string())
                .env(PROCESS_COUNT, crew.process_count.to_string())
                .env(RESTART_COUNT, crew.restarts.to_string())
                .env(PHASE_FD, phase.as_fd().as_raw_fd().to_string())
                .env(JobToken::VARIABLE, crew.token.reveal())
                .env_remove(COORDINATOR_FD)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0);
            if let Some(Change { set, remove }) = chips.next() {
                for name in remove {
                    command.env_remove(name);
                }
                command.envs(set);
            }
            if let Some(directory) = &crew.directory {
                command.current_dir(directory);
            }
            let mut inherited = vec![phase.as_fd()];
            if process_index == 0 {
                if let Some(listener) = crew.listener {
                    command.env(COORDINATOR_FD, listener.as_raw_fd().to_string());
                    inherited.push(listener.as_fd());
                }
                if crew.shares_output {
                    command.stdout(Stdio::inherit());
                }
                // In a process group of its own it would be stopped for reading a terminal.
                if crew.shares_input && !io::stdin().is_terminal() {
                    command.stdin(Stdio::inherit());
                }
            }
            tie_to_this_process(&mut command, &inherited);
            let mut child = command.spawn().map_err(|source| LaunchError::Spawn {
                process_index,
                program: crew.program.to_owned(),
                source,
            })?;
            let streams = [
                (Stream::Out, child.stdout.take().map(OwnedFd::from)),
                (Stream::Err, child.stderr.take().map(OwnedFd::from)),
            ];
            let opened = streams.into_iter().filter_map(|(stream, fd)| Some((stream, fd?)));
            pipes.extend(opened.map(|(stream, fd)| Pipe { process: process_index, stream, fd }));
            controllers.0.push(Controller { process_index, child, running: true, phase });
        }
        Ok((controllers, pipes))
    }

    /// How far each is, to be looked at also when they are gone.
    pub fn watched(&self) -> Vec<Watched> {
        self.0.iter().map(|controller| controller.phase.watched()).collect()
    }

    pub fn any_running(&self) -> bool {
        self.0.iter().any(|controller| controller.running)
    }

    /// Sends a signal to the process groups of all that still run.
    pub fn signal(&self, signal: Signal) {
        for controller in self.0.iter().filter(|controller| controller.running) {
            // A controller that has just ended is no longer there to be told.
            let group = Pid::from_child(&controller.child);
            let _ = kill_process_group(group, signal);
            if signal != Signal::STOP {
                // A process that is stopped acts on no other signal until then.
                let _ = kill_process_group(group, Signal::CONT);
            }
        }
    }

    /// Collects the controllers that have ended, and kills what they left behind in their process groups.
    pub fn reap(&mut self) -> Result<Vec<Exit>, LaunchError> {
        let mut ended = Vec::new();
        for controller in self.0.iter_mut().filter(|controller| controller.running) {
            let pid = Pid::from_child(&controller.child);
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if waitid(WaitId::Pid(pid), options).map_err(failed("wait for a process"))?.is_some() {
                // Before the child is collected its number, which is the group's too, cannot mean another process.
                let _ = kill_process_group(pid, Signal::KILL);
                controller.running = false;
                let status = controller.child.wait().map_err(failed("wait for a process"))?;
                if !status.success() {
                    delete_dumps_of(controller.child.id());
                }
                let phase = controller.phase.read();
                ended.push(Exit { process_index: controller.process_index, status, phase });
            }
        }
        Ok(ended)
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for controller in self.0.iter_mut().filter(|controller| controller.running) {
            let _ = controller.child.wait();
        }
    }
}

/// Lets a child die with this thread, and keep these descriptors.
pub fn tie_to_this_process(command: &mut Command, inherited: &[BorrowedFd<'_>]) {
    let parent = getpid();
    let inherited: Vec<_> = inherited.iter().map(|fd| fd.as_raw_fd()).collect();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        for &fd in &inherited {
            // SAFETY: the parent keeps the descriptor open until the child has been started.
            fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes a few system calls and neither allocates nor locks.
    unsafe { command.pre_exec(prepare) };
}
