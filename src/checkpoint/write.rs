//! Writing a checkpoint: every process its file, then process 0 the manifest.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::manifest::{self, ArrayEntry, Manifest, file_of};
use super::{CheckpointError, folder_of, steps};
use crate::host_array::{HostArray, safetensors};
use crate::runtime::{Fact, World};

/// What is not, or no longer, a checkpoint has a name that begins so.
const UNFINISHED: &str = ".unfinished-";

/// All that it takes to write a checkpoint, without the devices.
pub struct Writing {
    pub world: World,
    /// What no other checkpoint of the job has.
    pub number: u64,
    pub folder: PathBuf,
    pub keep: usize,
    pub step: u64,
    /// What is saved, to be compared with the other processes.
    pub facts: Vec<Fact>,
    pub arrays: BTreeMap<String, ArrayEntry>,
    pub values: Map<String, Value>,
    /// By their names in this process's file.
    pub parts: Vec<(String, HostArray)>,
}

/// What a process has written: its parts of arrays, and the length of its file if it has any.
type Written = (String, Option<u64>);

impl Writing {
    pub fn run(mut self) -> Result<(), CheckpointError> {
        self.world.agree(&self.name("state"), &self.facts)?;
        let place = self.of_first("place", |this| this.prepare())?;
        let written = self.write(Path::new(&place)).map_err(|error| error.to_string());
        let all: Vec<Result<Written, String>> = self.world.all_gather(&self.name("written"), written)?;
        let outcome = all.into_iter().enumerate().map(|(process, written)| {
            written.map_err(|reason| CheckpointError::Process { process: process as u32, reason })
        });
        match outcome.collect::<Result<Vec<Written>, _>>() {
            Ok(written) => self.of_first("done", |this| this.commit(Path::new(&place), written)),
            Err(error) => {
                if self.world.process_index() == 0 {
                    let _ = fs::remove_dir_all(place);
                }
                Err(error)
            }
        }
    }

    fn name(&self, what: &str) -> String {
        format!("checkpoint/{}/{what}", self.number)
    }

    /// Process 0 does something, and all learn how it went.
    fn of_first<T: serde::Serialize + serde::de::DeserializeOwned>(
        &mut self,
        what: &str,
        act: impl FnOnce(&mut Self) -> Result<T, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        let mut own = None;
        let outcome = (self.world.process_index() == 0).then(|| {
            act(self).map_err(|error| {
                let reason = error.to_string();
                own = Some(error);
                reason
            })
        });
        let outcome = self.world.all_gather(&self.name(what), outcome)?.swap_remove(0);
        let failed = |reason| own.unwrap_or(CheckpointError::Process { process: 0, reason });
        outcome.unwrap_or_else(|| Err("it has said nothing".to_owned())).map_err(failed)
    }

    /// Makes the folder in which a checkpoint is written, and removes what crashes have left.
    fn prepare(&mut self) -> Result<String, CheckpointError> {
        let failed = |what: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| CheckpointError::of_path(what, &path, source)
        };
        fs::create_dir_all(&self.folder).map_err(failed("make the folder", &self.folder))?;
        let done = folder_of(&self.folder, self.step);
        if done.exists() {
            return Err(CheckpointError::Exists { step: self.step, folder: done.display().to_string() });
        }
        remove_unfinished(&self.folder);
        let folder = fs::canonicalize(&self.folder).map_err(failed("find the folder", &self.folder))?;
        let place = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(&folder)
            .map_err(failed("make a folder in", &folder))?;
        Ok(place.keep().display().to_string())
    }

    /// Writes this process's file.
    fn write(&mut self, place: &Path) -> Result<Written, CheckpointError> {
        let path = place.join(file_of(self.world.process_index()));
        let parts = std::mem::take(&mut self.parts);
        if parts.is_empty() {
            return Ok(("{}".to_owned(), None));
        }
        safetensors::write(&path, &parts)?;
        let checksum = |(tensor, part): (String, HostArray)| (tensor, blake3::hash(part.data()).to_hex().to_string());
        let mut checksums: HashMap<String, String> = parts.into_iter().map(checksum).collect();
        for part in self.arrays.values_mut().flat_map(|array| &mut array.parts) {
            part.blake3 = checksums.remove(&part.tensor).unwrap_or_default();
        }
        let failed = |source| CheckpointError::of_path("write", &path, source);
        let length = fs::metadata(&path).and_then(|file| sync(place).map(|()| file.len())).map_err(failed)?;
        let arrays = serde_json::to_string(&self.arrays).map_err(|error| failed(error.into()))?;
        Ok((arrays, Some(length)))
    }

    /// Makes a checkpoint of what all have written.
    fn commit(&mut self, place: &Path, written: Vec<Written>) -> Result<(), CheckpointError> {
        let (mut arrays, mut files) = (std::mem::take(&mut self.arrays), BTreeMap::new());
        let failed = |source| CheckpointError::of_path("write", place, source);
        for (process, (theirs, length)) in written.into_iter().enumerate() {
            let (process, Some(length)) = (process as u32, length) else { continue };
            let file = place.join(file_of(process));
            let found = match fs::metadata(&file) {
                Ok(found) if found.len() == length => None,
                Ok(found) => Some(format!("sees {} bytes of {length}", found.len())),
                Err(error) => Some(format!("does not see it ({error})")),
            };
            if let Some(found) = found {
                return Err(CheckpointError::NotShared { process, file: file.display().to_string(), found });
            }
            files.insert(file_of(process), length);
            if process > 0 {
                let theirs: BTreeMap<String, ArrayEntry> =
                    serde_json::from_str(&theirs).map_err(|error| failed(error.into()))?;
                for (name, theirs) in theirs {
                    arrays.entry(name).and_modify(|array| array.parts.extend(theirs.parts));
                }
            }
        }
        let values = std::mem::take(&mut self.values);
        let manifest = Manifest::new(self.step, self.world.process_count(), values, arrays, files);
        self.publish(place, &manifest).map_err(failed)?;
        remove_old(&self.folder, self.keep);
        Ok(())
    }

    /// Gives a checkpoint its name once all of it is on the disk.
    fn publish(&self, place: &Path, manifest: &Manifest) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(manifest)?;
        text.push('\n');
        let mut file = File::create_new(place.join(manifest::FILE))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        sync(place)?;
        fs::rename(place, folder_of(&self.folder, self.step))?;
        sync(&self.folder)
    }
}

/// Brings the names in a folder to the disk.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Removes all but the latest checkpoints. One that cannot be removed is in nobody's way.
fn remove_old(folder: &Path, keep: usize) {
    let steps = steps(folder).unwrap_or_default();
    for &step in &steps[..steps.len().saturating_sub(keep)] {
        let old = folder_of(folder, step);
        // Half of a checkpoint must not look like one.
        let unfinished = folder.join(format!("{UNFINISHED}{step}"));
        let removed = fs::rename(&old, &unfinished).and_then(|()| fs::remove_dir_all(&unfinished));
        if let Err(error) = removed {
            tracing::warn!("cannot remove the old checkpoint {}: {error}", old.display());
        }
    }
}

fn remove_unfinished(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED)
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            tracing::warn!("cannot remove {}, which a crash has left: {error}", entry.path().display());
        }
    }
}
