//! What a checkpoint's manifest says.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{CheckpointError, folder_of};
use crate::dtype::DType;
use crate::runtime::Array;

pub const FILE: &str = "manifest.json";
const FORMAT: &str = "spmd-run checkpoint 1";
/// Longer than the manifest of any job.
const MAX_LENGTH: u64 = 1 << 30;

/// The whole of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    format: String,
    /// How many steps the job has done.
    pub step: u64,
    /// How many processes have written it.
    processes: u32,
    pub values: Map<String, Value>,
    pub arrays: BTreeMap<String, ArrayEntry>,
    /// The length of each file in bytes.
    pub files: BTreeMap<String, u64>,
}

/// An array, and where its parts lie.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ArrayEntry {
    pub shape: Shape,
    /// How it lay on the devices, for readers.
    sharding: String,
    pub parts: Vec<Part>,
}

/// A part of an array, which is a tensor of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    pub index: Index,
    pub file: String,
    pub tensor: String,
    /// BLAKE3 of the elements' bytes, in hexadecimal digits; computed when the part is written.
    pub blake3: String,
}

/// As in `f32[8,4]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub dtype: DType,
    pub dims: Vec<i64>,
}

/// The elements of a part, a range for each dimension; as in `0:4, 8:16`.
#[derive(Clone, Debug, PartialEq)]
pub struct Index(pub Vec<Range<i64>>);

impl Manifest {
    pub fn new(
        step: u64,
        processes: u32,
        values: Map<String, Value>,
        arrays: BTreeMap<String, ArrayEntry>,
        files: BTreeMap<String, u64>,
    ) -> Manifest {
        Manifest { format: FORMAT.to_owned(), step, processes, values, arrays, files }
    }

    pub fn parse(text: &str) -> Result<Manifest, String> {
        let manifest: Manifest = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!("its format is '{}', this version reads '{FORMAT}'", manifest.format));
        }
        for (name, array) in &manifest.arrays {
            let dims = &array.shape.dims;
            let fits = |part: &Part| {
                let inside = |(range, &dim): (&Range<i64>, &i64)| {
                    0 <= range.start && range.start <= range.end && range.end <= dim
                };
                part.index.0.len() == dims.len() && part.index.0.iter().zip(dims).all(inside)
            };
            if let Some(part) = array.parts.iter().find(|part| !fits(part)) {
                return Err(format!("[{}] is no part of '{name}', {}", part.index.text(), array.shape.text()));
            }
        }
        Ok(manifest)
    }
}

/// The text of a checkpoint's manifest.
pub fn read(folder: &Path, step: u64) -> Result<String, CheckpointError> {
    let path = folder_of(folder, step).join(FILE);
    let mut text = String::new();
    let read = fs::File::open(&path).and_then(|file| file.take(MAX_LENGTH).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(error) => Err(CheckpointError::Damaged { problem: format!("{}: {error}", path.display()) }),
    }
}

/// The name of a process's file.
pub fn file_of(process: u32) -> String {
    format!("process-{process:05}.safetensors")
}

impl ArrayEntry {
    pub fn new(array: &Array) -> ArrayEntry {
        let shape = Shape { dtype: array.dtype(), dims: array.dims().to_vec() };
        ArrayEntry { shape, sharding: array.sharding().to_string(), parts: Vec::new() }
    }

    /// Notes a part that a process writes, and returns its name in that process's file.
    pub fn add(&mut self, name: &str, index: &[Range<i64>], process: u32) -> String {
        let is_whole = index.iter().zip(&self.shape.dims).all(|(range, &dim)| *range == (0..dim));
        let index = Index(index.to_vec());
        let tensor = if is_whole { name.to_owned() } else { format!("{name}[{}]", index.text()) };
        self.parts.push(Part { index, file: file_of(process), tensor: tensor.clone(), blake3: String::new() });
        tensor
    }
}

impl Shape {
    pub fn dims_usize(&self) -> Vec<usize> {
        self.dims.iter().map(|&dim| dim as usize).collect()
    }

    pub fn text(&self) -> String {
        crate::host_array::shape_text(self.dtype, &self.dims_usize())
    }

    fn parse(text: &str) -> Option<Shape> {
        let (dtype, dims) = text.strip_suffix(']')?.split_once('[')?;
        let number = |dim: &str| dim.parse().ok().filter(|&dim: &i64| dim >= 0);
        let dims = if dims.is_empty() { Some(Vec::new()) } else { dims.split(',').map(number).collect() };
        Some(Shape { dtype: dtype.parse().ok()?, dims: dims? })
    }
}

impl Index {
    pub fn text(&self) -> String {
        let ranges: Vec<String> = self.0.iter().map(|range| format!("{}:{}", range.start, range.end)).collect();
        ranges.join(", ")
    }

    fn parse(text: &str) -> Option<Index> {
        if text.is_empty() {
            return Some(Index(Vec::new()));
        }
        let range = |range: &str| {
            let (start, end) = range.trim().split_once(':')?;
            Some(start.parse().ok()?..end.parse().ok()?)
        };
        text.split(',').map(range).collect::<Option<_>>().map(Index)
    }

    pub fn lengths(&self) -> Vec<usize> {
        self.0.iter().map(|range| (range.end - range.start) as usize).collect()
    }
}

impl Serialize for Shape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        let text = String::deserialize(deserializer)?;
        Shape::parse(&text).ok_or_else(|| D::Error::custom(format!("'{text}' is no shape, as f32[8,4]")))
    }
}

impl Serialize for Index {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Index, D::Error> {
        let text = String::deserialize(deserializer)?;
        Index::parse(&text).ok_or_else(|| D::Error::custom(format!("'{text}' are no ranges, as 0:4, 8:16")))
    }
}
