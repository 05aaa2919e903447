//! What controllers print, line by line on standard error.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::last_words::{LastWords, is_unnamed_frame};

/// A line longer than this is printed in pieces.
const LONGEST_LINE: usize = 1 << 20;
const CHUNK: usize = 64 << 10;

/// A thread that copies controllers' output until all of it is there.
pub struct Output {
    /// Closed to say that all controllers have ended.
    stop: Option<PipeWriter>,
    /// Closed by the thread when it has printed everything.
    done: PipeReader,
    thread: JoinHandle<HashMap<u32, String>>,
}

impl Output {
    /// Starts copying pipes, each with its process index, which its lines are tagged with if so asked.
    pub fn start(pipes: Vec<(u32, OwnedFd)>, tagged: bool) -> io::Result<Self> {
        let mut sources = Vec::new();
        for (process, pipe) in pipes {
            fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
            sources.push(Source { process, pipe: File::from(pipe), lines: Lines::new(tagged.then_some(process)) });
        }
        let (stopped, stop) = io::pipe()?;
        let (done, printed) = io::pipe()?;
        let thread = std::thread::Builder::new().name("output".to_owned()).spawn(move || {
            let last_words = copy_all(sources, &stopped);
            drop(printed);
            last_words
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

    /// Waits until everything has been printed; returns what each process said in the end.
    pub fn last_words(self) -> HashMap<u32, String> {
        self.thread.join().unwrap_or_default()
    }
}

struct Source {
    process: u32,
    pipe: File,
    lines: Lines,
}

fn copy_all(mut sources: Vec<Source>, stopped: &PipeReader) -> HashMap<u32, String> {
    let mut last_words = HashMap::new();
    let mut chunk = vec![0; CHUNK];
    let mut stopping = false;
    while !sources.is_empty() {
        if !stopping {
            let pipes = sources.iter().map(|source| source.pipe.as_fd()).chain([stopped.as_fd()]);
            let mut polled: Vec<_> = pipes.map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN)).collect();
            match poll(&mut polled, None) {
                Ok(_) => stopping = polled.last().is_some_and(|stop| !stop.revents().is_empty()),
                Err(Errno::INTR) => {}
                Err(_) => return last_words,
            }
        }
        let mut text = Vec::new();
        sources.retain_mut(|Source { process, pipe, lines }| {
            match pipe.read(&mut chunk) {
                Ok(count @ 1..) => lines.push(&chunk[..count], &mut text),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !stopping => {}
                // The end, also when a stray grandchild still holds the pipe open.
                Ok(0) | Err(_) => {
                    lines.finish(&mut text);
                    last_words.extend(lines.last_words.text().map(|words| (*process, words)));
                    return false;
                }
            }
            true
        });
        // Nobody can be told that standard error is closed.
        let _ = io::stderr().lock().write_all(&text);
    }
    last_words
}

/// Cuts what a process prints into tagged lines.
struct Lines {
    tag: String,
    partial: Vec<u8>,
    last_words: LastWords,
}

impl Lines {
    fn new(process: Option<u32>) -> Self {
        let tag = process.map_or(String::new(), |process| format!("[{process}] "));
        Self { tag, partial: Vec::new(), last_words: LastWords::default() }
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
        self.last_words.hear(&self.partial);
        if is_unnamed_frame(&self.partial) {
            self.partial.clear();
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
        let mut lines = Lines::new(Some(2));
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
        let mut lines = Lines::new(None);
        for _ in 0..40 {
            lines.push(&[b'x'; CHUNK], &mut text);
        }
        assert!(lines.partial.len() <= LONGEST_LINE + CHUNK);
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 2);
    }
}
