//! What all processes have recorded comes together on process 0, which writes the files that were asked for.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::rendezvous::Rendezvous;
use crate::report;
use crate::trace::{self, Files, ProcessTrace, Trace};
use crate::whole_file::{self, WholeFile};

/// How long a process that ends because the job has failed tries to hand over what it has, and how long process 0 waits
/// for that: less than the others have before they are ended.
const FAREWELL: Duration = Duration::from_millis(900);

/// A file that shows how the job went could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", .path.display())]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// What a process does in the end with what it has recorded.
#[derive(Debug)]
pub(super) struct Gathering {
    files: Files,
    is_over: Mutex<bool>,
}

impl Gathering {
    pub fn new(files: Files) -> Gathering {
        Gathering { files, is_over: Mutex::new(false) }
    }

    /// Hands over what this process has recorded, as long as the coordinator is there.
    pub fn hand_over(&self, rendezvous: &Rendezvous, limit: Duration) {
        let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_over, true) {
            return;
        }
        let Some(recorder) = trace::recorder() else { return };
        if let Ok(sample) = rendezvous.compare_clocks() {
            recorder.add_clock(sample);
        }
        let own = recorder.read();
        let bytes = postcard::to_stdvec(&own).unwrap_or_default();
        let Err(error) = rendezvous.bequeath(&bytes, limit) else { return };
        // Process 0 is gone. What this process knows may tell why.
        let index = rendezvous.process_index();
        let files = self.files.of_process(index);
        for path in files.paths() {
            let path = path.display();
            tracing::warn!("process 0 does not take what this process has recorded, it goes to {path}: {error}");
        }
        let process_count = rendezvous.process_count();
        if let Err(error) = write(&files, &Trace::new(vec![own], process_count)) {
            tracing::warn!("{error}");
        }
    }

    /// Writes what the processes have handed over, those that are still connected within this time.
    pub fn write(&self, rendezvous: Option<&Rendezvous>, limit: Duration) -> Result<(), WriteError> {
        let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_over, true) {
            return Ok(());
        }
        let Some(recorder) = trace::recorder() else { return Ok(()) };
        let others = rendezvous.map(|rendezvous| rendezvous.inheritance(limit)).unwrap_or_default();
        let others = others.iter().filter_map(|bytes| postcard::from_bytes::<ProcessTrace>(bytes).ok());
        let processes = std::iter::once(recorder.read()).chain(others).collect();
        write(&self.files, &Trace::new(processes, rendezvous.map_or(1, Rendezvous::process_count)))
    }

    /// As [`Gathering::hand_over`] or [`Gathering::write`], in a job that has failed.
    pub fn save(&self, rendezvous: Option<&Rendezvous>) {
        match rendezvous {
            Some(rendezvous) if rendezvous.process_index() != 0 => self.hand_over(rendezvous, FAREWELL),
            _ => {
                if let Err(error) = self.write(rendezvous, FAREWELL) {
                    tracing::warn!("{error}");
                }
            }
        }
    }
}

/// Whether a file can be written, before any work is done for it.
pub(super) fn check(path: &Path) -> Result<(), WriteError> {
    whole_file::check(path).map_err(|source| WriteError { path: path.to_owned(), source })
}

fn write(files: &Files, trace: &Trace) -> Result<(), WriteError> {
    if let Some(path) = &files.trace {
        write_file(path, |out| trace::write_json(trace, out))?;
    }
    if let Some(path) = &files.report {
        write_file(path, |out| report::write_html(trace, out))?;
    }
    Ok(())
}

fn write_file(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut std::fs::File>) -> io::Result<()>,
) -> Result<(), WriteError> {
    let write = || {
        let mut whole = WholeFile::create(path)?;
        let mut out = BufWriter::new(whole.file());
        fill(&mut out)?;
        out.flush()?;
        drop(out);
        whole.finish()
    };
    write().map_err(|source| WriteError { path: path.to_owned(), source })
}
