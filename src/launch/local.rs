//! A job on this machine.

use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use super::controllers::{Controllers, Crew};
use super::job::{End, Job, LaunchError, failed};
use super::output::Output;
use super::printer::{Printer, tags};
use super::progress::{self, Place, Progress};
use super::watch::{Ended, Started};
use crate::rendezvous::JobToken;

/// The controllers and what they print.
pub struct Local {
    controllers: Controllers,
    output: Output,
    printer: Arc<Printer>,
    _progress: Progress,
}

impl Local {
    pub fn start(job: &Job, restarts: u32) -> Result<Self, LaunchError> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed("open a socket for the coordinator"))?;
        let address = listener.local_addr().map_err(failed("open a socket for the coordinator"))?;
        let token = JobToken::random().map_err(failed("make a job token"))?;
        let line = progress::line();
        // What process 0 printed past us would end up in the line.
        let shares_output = job.log_dir.is_none() && !(line.is_some() && io::stdout().is_terminal());
        let tags = tags((0..job.process_count as usize).map(|_| None));
        let mut printer = Printer::new(tags).above(line.clone());
        if let Some(folder) = &job.log_dir {
            printer.log_to(folder, restarts == 0)?;
        }
        let (controllers, pipes) = Controllers::start(&Crew {
            program: &job.program,
            args: &job.args,
            envs: &job.envs,
            directory: None,
            first: 0,
            count: job.process_count,
            process_count: job.process_count,
            chips: job.chips.as_deref(),
            coordinator: address.to_string(),
            listener: Some(&listener),
            token: &token,
            restarts,
            shares_input: true,
            shares_output,
        })?;
        let printer = Arc::new(printer);
        let output = {
            let printer = printer.clone();
            Output::start(pipes, move |process, stream, bytes| printer.take(process, stream, bytes))
        };
        let output = output.map_err(failed("copy the processes' output"))?;
        let watched = controllers.watched();
        let look = move || watched.iter().map(Place::of).collect();
        let progress = Progress::start(look, line).map_err(failed("start a thread"))?;
        Ok(Self { controllers, output, printer, _progress: progress })
    }
}

impl Started for Local {
    fn any_running(&self) -> bool {
        self.controllers.any_running()
    }

    fn signal(&mut self, signal: Signal) {
        self.controllers.signal(signal);
    }

    fn ended(&mut self) -> Result<Vec<Ended>, LaunchError> {
        let exits = self.controllers.reap()?.into_iter();
        let ended = exits.map(|exit| Ended {
            process_index: exit.process_index,
            end: End::Status(exit.status),
            phase: exit.phase,
        });
        Ok(ended.collect())
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn patience(&self) -> Option<Duration> {
        None
    }

    /// The system ends them as soon as it can.
    fn give_up(&mut self) {}

    fn printed(&mut self) -> Option<BorrowedFd<'_>> {
        self.output.stop();
        Some(self.output.done())
    }

    fn host_of(&self, _process_index: u32) -> Option<String> {
        None
    }

    fn last_words(&self, process_index: u32) -> Option<String> {
        self.printer.last_words(process_index)
    }
}
