//! Reading a checkpoint.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;

use super::CheckpointError;
use super::manifest::{self, ArrayEntry, Manifest, Part};
use crate::host_array::{HostArray, StoredArray, safetensors};
use crate::mesh::NamedSharding;
use crate::runtime::{Array, Runtime};

type Tensors = Arc<BTreeMap<String, StoredArray>>;

/// A checkpoint that is to be restored, in whole or in part.
pub struct Checkpoint<'a> {
    runtime: &'a Runtime,
    folder: PathBuf,
    manifest: Manifest,
    /// The files that are open.
    files: Mutex<HashMap<String, Tensors>>,
}

impl<'a> Checkpoint<'a> {
    /// The checkpoint in this folder, whose manifest reads so.
    pub(super) fn new(runtime: &'a Runtime, folder: PathBuf, text: &str) -> Result<Checkpoint<'a>, CheckpointError> {
        let manifest = Manifest::parse(text).map_err(|problem| damaged(&folder.join(manifest::FILE), &problem))?;
        Ok(Checkpoint { runtime, folder, manifest, files: Mutex::default() })
    }

    /// How many steps the job had done.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// The names of its arrays, with type and shape as in `f32[8,4]`.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, String)> {
        self.manifest.arrays.iter().map(|(name, array)| (name.as_str(), array.shape.text()))
    }

    /// Brings an array to the devices, in a sharding that may be another than the one it was saved in. Each process reads the
    /// parts for its own devices. All processes call it in the same order.
    ///
    /// # Errors
    /// The checkpoint has no such array or is damaged, or the sharding does not fit.
    pub fn array(&self, name: &str, sharding: &NamedSharding) -> Result<Array, CheckpointError> {
        let arrays = &self.manifest.arrays;
        let entry = arrays.get(name).ok_or_else(|| self.no_entry("array", name, arrays.keys()))?;
        Array::from_ranges(self.runtime, entry.shape.dtype, &entry.shape.dims, sharding, |index| {
            self.read(entry, index)
        })
    }

    /// A value of the host.
    ///
    /// # Errors
    /// The checkpoint has no such value, or one of another type.
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T, CheckpointError> {
        let values = &self.manifest.values;
        let value = values.get(name).ok_or_else(|| self.no_entry("value", name, values.keys()))?;
        let other = |source| CheckpointError::OtherValue { name: name.to_owned(), step: self.step(), source };
        serde_json::from_value(value.clone()).map_err(other)
    }

    /// Reads every array and compares it with its checksum; one process does, for all of the checkpoint.
    ///
    /// # Errors
    /// Something is missing or has changed.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        for entry in self.manifest.arrays.values() {
            let dims = entry.shape.dims.iter().map(|&dim| 0..dim).collect::<Vec<_>>();
            self.read(entry, &dims)?;
        }
        Ok(())
    }

    fn no_entry<'n>(&self, what: &'static str, name: &str, known: impl Iterator<Item = &'n String>) -> CheckpointError {
        let known: Vec<String> = known.map(|known| format!("'{known}'")).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        CheckpointError::NoEntry { step: self.step(), what, name: name.to_owned(), known }
    }

    /// Reads some elements of an array, from whichever files have them.
    fn read(&self, entry: &ArrayEntry, index: &[Range<i64>]) -> Result<HostArray, CheckpointError> {
        let extent: Vec<usize> = index.iter().map(|range| (range.end - range.start) as usize).collect();
        let mut whole = HostArray::zeros(entry.shape.dtype, &extent).map_err(crate::runtime::ArrayError::from)?;
        let mut there = 0;
        for part in &entry.parts {
            let overlap: Vec<Range<i64>> = index
                .iter()
                .zip(&part.index.0)
                .map(|(wanted, has)| wanted.start.max(has.start)..wanted.end.min(has.end))
                .collect();
            if overlap.iter().any(|range| range.start >= range.end) {
                continue;
            }
            let read = self.read_part(entry, part, &overlap)?;
            there += read.num_elements();
            if read.dims() == extent {
                return Ok(read);
            }
            let start: Vec<usize> =
                overlap.iter().zip(index).map(|(overlap, wanted)| (overlap.start - wanted.start) as usize).collect();
            whole.set_part(&start, &read);
        }
        if there == whole.num_elements() {
            return Ok(whole);
        }
        let wanted = manifest::Index(index.to_vec()).text();
        let problem = format!("its parts do not make up [{wanted}] of an array {}", entry.shape.text());
        Err(damaged(&self.folder.join(manifest::FILE), &problem))
    }

    /// Reads some elements of a part, and compares them with its checksum if they are all of it.
    fn read_part(&self, entry: &ArrayEntry, part: &Part, index: &[Range<i64>]) -> Result<HostArray, CheckpointError> {
        let damaged = |problem: &str| damaged(&self.folder.join(&part.file), problem);
        let tensors = self.file(&part.file)?;
        let missing = || damaged(&format!("it has no tensor '{}'", part.tensor));
        let stored = tensors.get(&part.tensor).ok_or_else(missing)?;
        let ranges: Vec<Range<usize>> = index
            .iter()
            .zip(&part.index.0)
            .map(|(wanted, has)| (wanted.start - has.start) as usize..(wanted.end - has.start) as usize)
            .collect();
        let read = stored.read(entry.shape.dtype, &part.index.lengths(), &ranges);
        let read = read.map_err(|error| CheckpointError::Damaged { problem: error.to_string() })?;
        if index == part.index.0 && *blake3::hash(read.data()).to_hex() != *part.blake3 {
            return Err(damaged(&format!("the tensor '{}' has changed since it was written", part.tensor)));
        }
        Ok(read)
    }

    fn file(&self, name: &str) -> Result<Tensors, CheckpointError> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensors) = files.get(name) {
            return Ok(Arc::clone(tensors));
        }
        let tensors = safetensors::open(&self.folder.join(name))
            .map(Arc::new)
            .map_err(|error| CheckpointError::Damaged { problem: error.to_string() })?;
        files.insert(name.to_owned(), Arc::clone(&tensors));
        Ok(tensors)
    }
}

fn damaged(file: &Path, problem: &str) -> CheckpointError {
    CheckpointError::Damaged { problem: format!("{}: {problem}", file.display()) }
}
