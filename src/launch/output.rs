//! The pipes into which controllers print.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::printer::Stream;

const CHUNK: usize = 64 << 10;

/// The reading end of a pipe into which a process prints.
pub struct Pipe {
    pub process: u32,
    pub stream: Stream,
    pub fd: OwnedFd,
}

/// A thread that hands on what processes print until all of it is there.
pub struct Output {
    /// Closed to say that all processes have ended.
    stop: Option<PipeWriter>,
    /// Closed by the thread when it has handed on everything.
    done: PipeReader,
    thread: JoinHandle<()>,
}

impl Output {
    /// Starts handing on what comes out of the pipes, and nothing at the end of each.
    pub fn start(pipes: Vec<Pipe>, take: impl Fn(u32, Stream, &[u8]) + Send + 'static) -> io::Result<Self> {
        let mut sources = Vec::new();
        for Pipe { process, stream, fd } in pipes {
            fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
            sources.push(Source { process, stream, pipe: File::from(fd) });
        }
        let (stopped, stop) = io::pipe()?;
        let (done, finished) = io::pipe()?;
        let thread = std::thread::Builder::new().name("output".to_owned()).spawn(move || {
            hand_on_all(sources, &stopped, take);
            drop(finished);
        })?;
        Ok(Self { stop: Some(stop), done, thread })
    }

    /// Says that all processes have ended: what they printed is handed on, and nothing more is waited for.
    pub fn stop(&mut self) {
        self.stop = None;
    }

    /// Becomes readable when everything has been handed on.
    pub fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    /// Waits until everything has been handed on.
    pub fn finish(mut self) {
        self.stop();
        let _ = self.thread.join();
    }
}

struct Source {
    process: u32,
    stream: Stream,
    pipe: File,
}

fn hand_on_all(mut sources: Vec<Source>, stopped: &PipeReader, take: impl Fn(u32, Stream, &[u8])) {
    let mut chunk = vec![0; CHUNK];
    let mut stopping = false;
    while !sources.is_empty() {
        if !stopping {
            let pipes = sources.iter().map(|source| source.pipe.as_fd()).chain([stopped.as_fd()]);
            let mut polled: Vec<_> = pipes.map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN)).collect();
            match poll(&mut polled, None) {
                Ok(_) => stopping = polled.last().is_some_and(|stop| !stop.revents().is_empty()),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
        sources.retain_mut(|Source { process, stream, pipe }| {
            match pipe.read(&mut chunk) {
                Ok(count @ 1..) => take(*process, *stream, &chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !stopping => {}
                // The end, also when a stray grandchild still holds the pipe open.
                Ok(0) | Err(_) => {
                    take(*process, *stream, &[]);
                    return false;
                }
            }
            true
        });
    }
}
