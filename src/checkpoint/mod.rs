//! Checkpoints: what a job has reached, on the disk, so that it can go on from there.
//!
//! ```no_run
//! use spmd_run::checkpoint::{Checkpoints, Snapshot};
//! # use spmd_run::{mesh::NamedSharding, runtime::{Array, Runtime}};
//! # fn init(runtime: &Runtime) -> Result<Array, Box<dyn std::error::Error>> { unimplemented!() }
//! # fn train(w: &Array, row: u64) -> Result<(Array, u64), Box<dyn std::error::Error>> { unimplemented!() }
//! # fn part(runtime: &Runtime, sharding: &NamedSharding) -> Result<(), Box<dyn std::error::Error>> {
//!
//! let checkpoints = Checkpoints::new(runtime, "checkpoints").keep(3);
//! let (mut step, mut w, mut row) = match checkpoints.latest()? {
//!     Some(saved) => (saved.step(), saved.array("w", sharding)?, saved.value("row")?),
//!     None => (0, init(runtime)?, 0),
//! };
//! while step < 1000 {
//!     (w, row) = train(&w, row)?;
//!     step += 1;
//!     let leaves = runtime.reached_preemption_sync_point(step)?;
//!     if step % 100 == 0 || leaves {
//!         checkpoints.save(step, Snapshot::new().array("w", &w).value("row", row))?;
//!     }
//!     if leaves {
//!         break;
//!     }
//! }
//! checkpoints.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! A checkpoint is a folder `step-00000100`: a safetensors file of each process with the parts of arrays that it alone has or
//! has first, and `manifest.json`, which says what lies where. It appears when all of it is on the disk: a crash at any moment
//! leaves the one before. Arrays come back in any sharding, in jobs of any number of processes; each process reads the parts
//! for its own devices. The folder must be the same for all processes, on a file system that their hosts share.

mod error;
mod manifest;
mod restore;
mod write;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use serde::Serialize;
use serde_json::Value;

use crate::runtime::{Array, Runtime};

pub use error::CheckpointError;
pub use restore::Checkpoint;

use self::manifest::ArrayEntry;
use self::write::Writing;

type Saving = JoinHandle<Result<(), CheckpointError>>;

/// The checkpoints of a job, in one folder. Every process makes the same calls in the same order.
pub struct Checkpoints<'a> {
    runtime: &'a Runtime,
    folder: PathBuf,
    keep: usize,
    saving: Mutex<Option<Saving>>,
}

/// What is saved: arrays on the devices, and values of the host that are the same in all processes, each by a name.
#[derive(Default)]
pub struct Snapshot<'a> {
    arrays: Vec<(String, &'a Array)>,
    values: Vec<(String, serde_json::Result<Value>)>,
}

impl<'a> Snapshot<'a> {
    /// Nothing yet.
    pub fn new() -> Snapshot<'a> {
        Snapshot::default()
    }

    /// Saves an array under a name.
    pub fn array(mut self, name: impl Into<String>, array: &'a Array) -> Self {
        self.arrays.push((name.into(), array));
        self
    }

    /// Saves arrays under their names.
    pub fn arrays<N: Into<String>>(mut self, arrays: impl IntoIterator<Item = (N, &'a Array)>) -> Self {
        self.arrays.extend(arrays.into_iter().map(|(name, array)| (name.into(), array)));
        self
    }

    /// Saves a value under a name, as JSON in the manifest: a position in the input, a learning rate, a seed. It must be the
    /// same in all processes; floats come back bit by bit, but for NaN and the infinities, which JSON does not have.
    pub fn value(mut self, name: impl Into<String>, value: impl Serialize) -> Self {
        self.values.push((name.into(), serde_json::to_value(value)));
        self
    }
}

impl<'a> Checkpoints<'a> {
    /// Checkpoints in this folder, which is made when the first one is saved. All of them are kept. No two jobs save to one
    /// folder at a time.
    pub fn new(runtime: &'a Runtime, folder: impl Into<PathBuf>) -> Checkpoints<'a> {
        Checkpoints { runtime, folder: folder.into(), keep: usize::MAX, saving: Mutex::default() }
    }

    /// Removes all but the latest `count` checkpoints after each save; 0 is taken for 1.
    pub fn keep(mut self, count: usize) -> Self {
        self.keep = count.max(1);
        self
    }

    /// Saves what a job has reached after so many steps. It returns when the arrays are in host memory, from where a thread
    /// writes them: they can be donated to the next step. The save before is waited for.
    ///
    /// # Errors
    /// The save before has failed, an array was donated already, or two things have one name. What goes wrong in writing is
    /// the error of the next call, of [`wait`](Self::wait), or of [`Runtime::shutdown`].
    pub fn save(&self, step: u64, snapshot: Snapshot<'_>) -> Result<(), CheckpointError> {
        self.wait()?;
        let mut arrays = BTreeMap::new();
        let mut parts = Vec::new();
        let mut facts = vec![("step".to_owned(), step.to_string())];
        for (name, array) in snapshot.arrays {
            facts.push((format!("array '{name}'"), format!("{array:?}")));
            let mut entry = ArrayEntry::new(array);
            for part in array.owned_parts()? {
                parts.push((entry.add(&name, &part.index, self.runtime.process_index()), part.data));
            }
            if arrays.insert(name.clone(), entry).is_some() {
                return Err(CheckpointError::Twice { name });
            }
        }
        let mut values = serde_json::Map::new();
        for (name, value) in snapshot.values {
            let value = value.map_err(|source| CheckpointError::Value { name: name.clone(), source })?;
            facts.push((format!("value '{name}'"), value.to_string()));
            if values.insert(name.clone(), value).is_some() {
                return Err(CheckpointError::Twice { name });
            }
        }
        let writing = Writing {
            world: self.runtime.world().clone(),
            number: self.runtime.next_gathering(),
            folder: self.folder.clone(),
            keep: self.keep,
            step,
            facts,
            arrays,
            values,
            parts,
        };
        let thread = std::thread::Builder::new().name("checkpoint".to_owned()).spawn(move || writing.run());
        let thread = thread.map_err(|source| CheckpointError::Io { what: "start a thread".to_owned(), source })?;
        *self.saving.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Waits until what was saved last is on the disk.
    ///
    /// # Errors
    /// It could not be written, here or by another process; then the checkpoint before is the latest.
    pub fn wait(&self) -> Result<(), CheckpointError> {
        match self.saving.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(saving) => finish(saving),
            None => Ok(()),
        }
    }

    /// The steps of all checkpoints, in ascending order, as this process sees them.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        steps(&self.folder).map_err(|source| CheckpointError::of_path("read", &self.folder, source))
    }

    /// The latest checkpoint, the same one in all processes; `None` if there is none.
    ///
    /// # Errors
    /// As of [`open`](Self::open), or the folder cannot be read.
    pub fn latest(&self) -> Result<Option<Checkpoint<'a>>, CheckpointError> {
        self.open_one(|| Ok(self.steps()?.pop()))
    }

    /// The checkpoint after this step.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn open(&self, step: u64) -> Result<Checkpoint<'a>, CheckpointError> {
        let missing = || CheckpointError::NoCheckpoint { step, folder: self.folder.display().to_string() };
        self.open_one(|| Ok(Some(step).filter(|_| folder_of(&self.folder, step).exists())))?.ok_or_else(missing)
    }

    fn open_one(
        &self,
        step: impl FnOnce() -> Result<Option<u64>, CheckpointError>,
    ) -> Result<Option<Checkpoint<'a>>, CheckpointError> {
        self.wait()?;
        let name = format!("checkpoint/{}", self.runtime.next_gathering());
        let found = (self.runtime.process_index() == 0).then(|| {
            let manifest = |step| Ok((step, manifest::read(&self.folder, step)?));
            let found = step().and_then(|step| step.map(manifest).transpose());
            found.map_err(|error: CheckpointError| error.to_string())
        });
        let found = self.runtime.world().all_gather(&name, found)?.swap_remove(0);
        let found = found.unwrap_or(Ok(None)).map_err(|reason| CheckpointError::Process { process: 0, reason })?;
        let open = |(step, text): (u64, String)| Checkpoint::new(self.runtime, folder_of(&self.folder, step), &text);
        found.map(open).transpose()
    }
}

/// A save that nobody has waited for is finished before the job is left.
impl Drop for Checkpoints<'_> {
    fn drop(&mut self) {
        if let Some(saving) = self.saving.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.runtime.finish_before_shutdown(|| finish(saving).map_err(|error| error.to_string()));
        }
    }
}

fn finish(saving: Saving) -> Result<(), CheckpointError> {
    saving.join().unwrap_or(Err(CheckpointError::Panicked))
}

const PREFIX: &str = "step-";

fn folder_of(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("{PREFIX}{step:08}"))
}

/// The steps of the checkpoints in a folder, in ascending order.
fn steps(folder: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut steps = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|number| number.parse().ok());
        // What a user has renamed or copied is none of ours.
        steps.extend(step.filter(|&step| folder_of(folder, step).file_name() == Some(&name)));
    }
    steps.sort_unstable();
    Ok(steps)
}
