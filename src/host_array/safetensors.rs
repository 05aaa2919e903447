//! Files of the format safetensors: a header in JSON with the name, type, shape and place of each array, then their bytes.
//!
//! Types that the format lacks (`c128`, `s4`, some of `f8…`) are written as bytes: wider ones have one more dimension, with
//! the bytes of an element.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};

use super::stored::{Contents, Place, Positioned, StoredArray};
use super::{FileError, HostArray};
use crate::dtype::DType;

/// Bytes of the header's length, which every file begins with.
const PREFIX: usize = 8;
/// The longest header that readers of the format take.
const MAX_HEADER: u64 = 100_000_000;
/// Where arrays begin, all of them in multiples of their own element.
const ALIGNMENT: usize = 8;

/// Opens every array of a file, to read parts of them.
///
/// # Errors
/// The file cannot be read, or is not of the format.
pub fn open(path: &Path) -> Result<BTreeMap<String, StoredArray>, FileError> {
    let name = path.display().to_string();
    let failed = |source| FileError::Io { file: name.clone(), source };
    let broken =
        |problem: &str| FileError::malformed(&name, format!("not a safetensors file, or not whole: {problem}"));
    let file = Arc::new(File::open(path).map_err(failed)?);
    let length = file.metadata().map_err(failed)?.len();
    let mut reader = Positioned::new(Arc::clone(&file));
    let mut prefix = [0; PREFIX];
    reader.read_exact(&mut prefix).map_err(|_| broken("it ends in the length of its header"))?;
    let header_length = u64::from_le_bytes(prefix);
    if header_length > MAX_HEADER || header_length > length.saturating_sub(PREFIX as u64) {
        return Err(broken(&format!("a header of {header_length} bytes in a file of {length}")));
    }
    let mut header = vec![0; header_length as usize];
    reader.read_exact(&mut header).map_err(failed)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| broken(&error.to_string()))?;
    let data = PREFIX as u64 + header_length;
    if data + metadata.data_len() as u64 != length {
        return Err(broken(&format!(
            "its arrays end at byte {}, the file at {length}",
            data + metadata.data_len() as u64
        )));
    }
    let array = |(array, info): (String, &TensorInfo)| {
        let contents = Contents::Tensor { dtype: info.dtype, dims: info.shape.clone() };
        let place = Place::At { file: Arc::clone(&file), offset: data + info.data_offsets.0 as u64 };
        (array.clone(), StoredArray::new(format!("{name}: {}", array.escape_debug()), contents, place))
    };
    Ok(metadata.tensors().into_iter().map(array).collect())
}

/// Writes arrays by their names into a new file, and waits until they are on the disk.
///
/// # Errors
/// The file is there already or cannot be written, or two arrays have one name.
pub fn write(path: &Path, arrays: &[(String, HostArray)]) -> Result<(), FileError> {
    write_to(path, arrays).map_err(|source| FileError::Io { file: path.display().to_string(), source })
}

fn write_to(path: &Path, arrays: &[(String, HostArray)]) -> io::Result<()> {
    // What is aligned best goes first, as the format recommends: then all are aligned.
    let mut arrays: Vec<&(String, HostArray)> = arrays.iter().collect();
    let mut names = HashSet::new();
    if let Some((name, _)) = arrays.iter().find(|(name, _)| !names.insert(name)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("two arrays have the name '{name}'")));
    }
    arrays.sort_by_key(|(_, array)| std::cmp::Reverse(array.dtype().size()));
    let mut end = 0;
    let infos = arrays.iter().map(|(name, array)| {
        let start = end;
        end += array.size();
        let (dtype, shape) = stored_form(array.dtype(), array.dims());
        (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let invalid = |error: SafeTensorError| io::Error::new(io::ErrorKind::InvalidInput, error);
    let metadata = Metadata::new(None::<HashMap<_, _>>, infos.collect()).map_err(invalid)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');

    let mut file = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for (_, array) in arrays {
        file.write_all(array.data())?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

const TYPES: [(DType, Dtype); 19] = [
    (DType::Pred, Dtype::BOOL),
    (DType::S8, Dtype::I8),
    (DType::S16, Dtype::I16),
    (DType::S32, Dtype::I32),
    (DType::S64, Dtype::I64),
    (DType::U8, Dtype::U8),
    (DType::U16, Dtype::U16),
    (DType::U32, Dtype::U32),
    (DType::U64, Dtype::U64),
    (DType::F8E4M3FN, Dtype::F8_E4M3),
    (DType::F8E4M3FNUZ, Dtype::F8_E4M3FNUZ),
    (DType::F8E5M2, Dtype::F8_E5M2),
    (DType::F8E5M2FNUZ, Dtype::F8_E5M2FNUZ),
    (DType::F8E8M0FNU, Dtype::F8_E8M0),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::C64, Dtype::C64),
];

/// The element type that a file names so; the format has packed ones that XLA's buffers have not.
pub(super) fn dtype(stored: Dtype) -> Option<DType> {
    TYPES.iter().find(|row| row.1 == stored).map(|row| row.0)
}

/// How an array of this type and shape stands in a file.
pub(super) fn stored_form(dtype: DType, dims: &[usize]) -> (Dtype, Vec<usize>) {
    let mut dims = dims.to_vec();
    match TYPES.iter().find(|row| row.0 == dtype) {
        Some(row) => (row.1, dims),
        None => {
            dims.extend((dtype.size() > 1).then_some(dtype.size()));
            (Dtype::U8, dims)
        }
    }
}
