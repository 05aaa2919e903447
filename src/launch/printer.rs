//! What controllers print, line by line on standard error.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use super::job::LaunchError;
use super::last_words::{LastWords, is_unnamed_frame};

/// A line longer than this is printed in pieces.
const LONGEST_LINE: usize = 1 << 20;

/// One of a process's two ways to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    Out,
    Err,
}

impl Stream {
    const BOTH: [Self; 2] = [Self::Out, Self::Err];
}

/// Prints what processes print, each line with the tag of its process, and remembers what each said last.
///
/// What process 0 prints to its standard output are the job's results, which go to standard output as they are.
pub struct Printer {
    voices: Vec<Mutex<[Voice; 2]>>,
    has_results: bool,
    /// The line that what is printed has to go around.
    line: Option<ProgressBar>,
}

impl Printer {
    /// For processes with these tags, which are empty for lines without.
    pub fn new(tags: impl IntoIterator<Item = String>) -> Self {
        let voice = |tag: String| Mutex::new(Stream::BOTH.map(|_| Voice { lines: Lines::new(tag.clone()), log: None }));
        Self { voices: tags.into_iter().map(voice).collect(), has_results: true, line: None }
    }

    /// For processes none of which has results to print.
    pub fn without_results(self) -> Self {
        Self { has_results: false, ..self }
    }

    /// For a terminal that has this line below what is printed.
    pub fn above(self, line: Option<ProgressBar>) -> Self {
        Self { line, ..self }
    }

    /// Prints something while the line is away.
    fn print(&self, print: impl FnOnce()) {
        match &self.line {
            Some(line) => line.suspend(print),
            None => print(),
        }
    }

    /// Writes what each process prints to files of its own as well, behind what they have already unless `anew`.
    pub fn log_to(&mut self, folder: &Path, anew: bool) -> Result<(), LaunchError> {
        let failed = |path: &Path, source| LaunchError::Log { path: path.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
        for (index, voices) in self.voices.iter().enumerate() {
            for (voice, ending) in lock(voices).iter_mut().zip(["out", "err"]) {
                let path = folder.join(format!("process-{index}.{ending}"));
                let mut options = File::options();
                let options = if anew { options.write(true).truncate(true) } else { options.append(true) };
                voice.log = Some(options.create(true).open(&path).map_err(|source| failed(&path, source))?);
            }
        }
        Ok(())
    }

    /// Takes in what a process has printed. Nothing means that it prints no more.
    pub fn take(&self, process: u32, stream: Stream, bytes: &[u8]) {
        let Some(voices) = self.voices.get(process as usize) else { return };
        let voice = &mut lock(voices)[stream as usize];
        // Nobody can be told that standard error is closed, or that a disk is full.
        if let Some(log) = &mut voice.log {
            let _ = log.write_all(bytes);
        }
        if self.has_results && process == 0 && stream == Stream::Out {
            return self.print(|| {
                let mut stdout = io::stdout().lock();
                let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
            });
        }
        let mut text = Vec::new();
        if bytes.is_empty() {
            voice.lines.finish(&mut text);
        } else {
            voice.lines.push(bytes, &mut text);
        }
        if !text.is_empty() {
            self.print(|| {
                let _ = io::stderr().lock().write_all(&text);
            });
        }
    }

    /// What a process said in the end, if anything.
    pub fn last_words(&self, process: u32) -> Option<String> {
        let [out, err] = &*lock(self.voices.get(process as usize)?);
        err.lines.last_words.text().or_else(|| out.lines.last_words.text())
    }
}

/// Tags for processes; there are none when there is only one process.
pub fn tags(hosts: impl ExactSizeIterator<Item = Option<String>>) -> Vec<String> {
    let is_tagged = hosts.len() > 1;
    let tag = |(process, host): (usize, Option<String>)| match host {
        _ if !is_tagged => String::new(),
        Some(host) => format!("[{process} {host}] "),
        None => format!("[{process}] "),
    };
    hosts.enumerate().map(tag).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Voice {
    lines: Lines,
    log: Option<File>,
}

/// Cuts what a process prints into tagged lines.
struct Lines {
    tag: String,
    partial: Vec<u8>,
    last_words: LastWords,
}

impl Lines {
    fn new(tag: String) -> Self {
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
        let mut lines = Lines::new("[2] ".to_owned());
        for piece in ["one\ntw", "o\n\nth", "ree"] {
            lines.push(piece.as_bytes(), &mut text);
        }
        lines.finish(&mut text);
        lines.finish(&mut text);
        assert_eq!(String::from_utf8(text).unwrap(), "[2] one\n[2] two\n[2] \n[2] three\n");
    }

    #[test]
    fn endless_lines_are_cut() {
        const CHUNK: usize = 64 << 10;
        let mut text = Vec::new();
        let mut lines = Lines::new(String::new());
        for _ in 0..40 {
            lines.push(&[b'x'; CHUNK], &mut text);
        }
        assert!(lines.partial.len() <= LONGEST_LINE + CHUNK);
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 2);
    }

    #[test]
    fn tags_tell_what_is_not_known() {
        assert_eq!(tags([None].into_iter()), [""]);
        assert_eq!(tags([None, None].into_iter()), ["[0] ", "[1] "]);
        assert_eq!(tags([Some("a".into()), Some("b".into())].into_iter()), ["[0 a] ", "[1 b] "]);
    }
}
