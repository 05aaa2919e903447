//! What controllers print, line by line and tagged with their process index, on standard error.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// A line longer than this is printed in pieces.
const LONGEST_LINE: usize = 1 << 20;
const CHUNK: usize = 64 << 10;

/// A thread that copies controllers' output until all of it is there.
pub struct Output {
    /// Closed to say that all controllers have ended.
    stop: Option<PipeWriter>,
    /// Closed by the thread when it has printed everything.
    done: PipeReader,
    thread: JoinHandle<()>,
}

impl Output {
    /// Starts copying pipes, each with the process index that its lines are tagged with.
    pub fn start(pipes: Vec<(u32, OwnedFd)>) -> io::Result<Self> {
        let mut sources = Vec::new();
        for (process, pipe) in pipes {
            fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
            sources.push(Source { pipe: File::from(pipe), lines: Lines::new(process) });
        }
        let (stopped, stop) = io::pipe()?;
        let (done, printed) = io::pipe()?;
        let thread = std::thread::Builder::new().name("output".to_owned()).spawn(move || {
            copy_all(sources, &stopped);
            drop(printed);
        })?;
        Ok(Self { stop: Some(stop), done, thread })
    }

    /// Says that all controllers have ended: what they printed is copied, and nothing more is waited for.
    pub fn stop(&mut self) {
        self.stop = None;
    }

    /// Becomes readable when everything has been printed.
    pub fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    /// Waits until everything has been printed.
    pub fn join(self) {
        let _ = self.thread.join();
    }
}

struct Source {
    pipe: File,
    lines: Lines,
}

fn copy_all(mut sources: Vec<Source>, stopped: &PipeReader) {
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
        let mut text = Vec::new();
        sources.retain_mut(|source| match source.pipe.read(&mut chunk) {
            Ok(count @ 1..) => {
                source.lines.push(&chunk[..count], &mut text);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !stopping => true,
            // The end, also when a stray grandchild still holds the pipe open.
            Ok(0) | Err(_) => {
                source.lines.finish(&mut text);
                false
            }
        });
        // Nobody can be told that standard error is closed.
        let _ = io::stderr().lock().write_all(&text);
    }
}

/// Cuts what a process prints into tagged lines.
struct Lines {
    tag: String,
    partial: Vec<u8>,
}

impl Lines {
    fn new(process: u32) -> Self {
        Self { tag: format!("[{process}] "), partial: Vec::new() }
    }

    fn push(&mut self, bytes: &[u8], text: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() > LONGEST_LINE {
                self.finish(text);
            }
        }
    }

    fn finish(&mut self, text: &mut Vec<u8>) {
        if self.partial.is_empty() {
            return;
        }
        text.extend_from_slice(self.tag.as_bytes());
        text.append(&mut self.partial);
        if !text.ends_with(b"\n") {
            text.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_tagged() {
        let mut text = Vec::new();
        let mut lines = Lines::new(2);
        for piece in ["one\ntw", "o\n\nth", "ree"] {
            lines.push(piece.as_bytes(), &mut text);
        }
        lines.finish(&mut text);
        lines.finish(&mut text);
        assert_eq!(String::from_utf8(text).unwrap(), "[2] one\n[2] two\n[2] \n[2] three\n");
    }

    #[test]
    fn endless_lines_are_cut() {
        let mut text = Vec::new();
        let mut lines = Lines::new(0);
        for _ in 0..40 {
            lines.push(&[b'x'; CHUNK], &mut text);
        }
        assert!(lines.partial.len() <= LONGEST_LINE + CHUNK);
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 2);
    }
}
