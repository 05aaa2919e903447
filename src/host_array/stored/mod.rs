//! Arrays in files, of which parts are read.

mod parts;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use zip::ZipArchive;

use super::npz::{Header, NpyArray};
use super::safetensors;
use super::{FileError, HostArray};
use crate::dtype::DType;

pub(super) use self::parts::Positioned;
use self::parts::{Forward, read_box};

/// An array in a file that is open. Parts of it are read without the rest: see [`open_npy`](super::npz::open_npy),
/// [`open_npz`](super::npz::open_npz) and [`safetensors::open`].
#[derive(Clone)]
pub struct StoredArray {
    /// The file, and the name of the array in it.
    origin: String,
    contents: Contents,
    place: Place,
}

/// What the elements are, and how they lie.
#[derive(Clone)]
pub(super) enum Contents {
    Npy(Header),
    Tensor { dtype: ::safetensors::Dtype, dims: Vec<usize> },
}

/// Where the elements begin.
#[derive(Clone)]
pub(super) enum Place {
    /// At this byte of the file.
    At { file: Arc<File>, offset: u64 },
    /// At this byte of an entry of a zip archive, once that is decompressed.
    Compressed { file: Arc<File>, index: usize, offset: u64 },
}

impl StoredArray {
    pub(super) fn new(origin: String, contents: Contents, place: Place) -> StoredArray {
        StoredArray { origin, contents, place }
    }

    /// The element type; `None` for raw elements of `.npy` files, which are of any type of their width that NumPy lacks, and
    /// for types that XLA does not have.
    pub fn dtype(&self) -> Option<DType> {
        match &self.contents {
            Contents::Npy(header) => header.dtype(),
            Contents::Tensor { dtype, .. } => safetensors::dtype(*dtype),
        }
    }

    /// Size of each dimension, as the file has them.
    pub fn dims(&self) -> &[usize] {
        match &self.contents {
            Contents::Npy(header) => &header.dims,
            Contents::Tensor { dims, .. } => dims,
        }
    }

    /// Checks that this is an array of this type and shape. Types that the kind of file lacks are raw elements in it.
    ///
    /// # Errors
    /// It is another one.
    pub fn check(&self, dtype: DType, dims: &[usize]) -> Result<(), FileError> {
        let fits = match &self.contents {
            Contents::Npy(header) => header.holds(dtype) && header.dims == dims,
            Contents::Tensor { dtype: found, dims: given } => {
                let (stored, raw) = safetensors::stored_form(dtype, dims);
                *found == stored && *given == raw
            }
        };
        if fits {
            return Ok(());
        }
        Err(FileError::Mismatch {
            origin: self.origin.clone(),
            found: self.to_string(),
            expected: super::shape_text(dtype, dims),
            advice: String::new(),
        })
    }

    /// Reads a part: the elements of these indices, a range for each dimension, of an array of `dtype` and `dims`.
    ///
    /// # Errors
    /// The array is another one, the ranges leave it, or the file cannot be read.
    pub fn read(&self, dtype: DType, dims: &[usize], ranges: &[Range<usize>]) -> Result<HostArray, FileError> {
        self.check(dtype, dims)?;
        let inside = ranges.iter().zip(dims).all(|(range, &dim)| range.start <= range.end && range.end <= dim);
        if !inside || ranges.len() != dims.len() {
            return Err(FileError::malformed(&self.origin, format!("{ranges:?} is no part of {self}")));
        }
        let start: Vec<usize> = ranges.iter().map(|range| range.start).collect();
        let extent: Vec<usize> = ranges.iter().map(|range| range.end - range.start).collect();
        let size = dtype.size();
        match &self.contents {
            Contents::Tensor { .. } => {
                let data = self.read_bytes(dims, &start, &extent, size)?;
                HostArray::new(dtype, extent, data).map_err(|error| FileError::malformed(&self.origin, error))
            }
            Contents::Npy(header) => {
                let in_order = |list: &[usize]| -> Vec<usize> {
                    if header.fortran_order { list.iter().rev().copied().collect() } else { list.to_vec() }
                };
                let data = self.read_bytes(&in_order(dims), &in_order(&start), &in_order(&extent), size)?;
                let part = Header { dims: extent.clone(), ..header.clone() };
                NpyArray::new(self.origin.clone(), part, data).into_host_array(dtype, &extent)
            }
        }
    }

    fn read_bytes(&self, dims: &[usize], start: &[usize], extent: &[usize], size: usize) -> Result<Vec<u8>, FileError> {
        let read = match &self.place {
            Place::At { file, offset } => read_box(&mut &**file, *offset, dims, start, extent, size),
            Place::Compressed { file, index, offset } => ZipArchive::new(Positioned::new(Arc::clone(file)))
                .and_then(|mut archive| {
                    let mut entry = Forward::new(archive.by_index(*index)?);
                    Ok(read_box(&mut entry, *offset, dims, start, extent, size)?)
                })
                .map_err(io::Error::other),
        };
        read.map_err(|source| FileError::Io { file: self.origin.clone(), source })
    }
}

/// Type and shape, as in `f32[8,4]`, or what the file says of them.
impl fmt::Display for StoredArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.contents, self.dtype()) {
            (_, Some(dtype)) => f.write_str(&super::shape_text(dtype, self.dims())),
            (Contents::Npy(header), None) => write!(f, "raw V{}{:?}", header.element_size(), self.dims()),
            (Contents::Tensor { dtype, .. }, None) => write!(f, "{dtype}{:?}", self.dims()),
        }
    }
}

/// The file with the array's name in it, type and shape.
impl fmt::Debug for StoredArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {self}", self.origin)
    }
}
