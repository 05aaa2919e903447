//! NumPy's array files: `.npy`, one array, and `.npz`, a zip archive of them.
//!
//! NumPy has no `bf16`, `f8…`, `s4` and their like: they travel as raw elements (`V1`, `V2`) of their width, one byte
//! for types narrower than that, which is also what `numpy.save` makes of arrays of `ml_dtypes`.

mod array;
mod header;
mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use zip::ZipArchive;

pub use self::array::NpyArray;
use self::header::{Header, MAGIC};
pub use self::write::write_npz;

/// Deflate never makes more than this many bytes out of one.
const LARGEST_EXPANSION: u64 = 1032;
const SUFFIX: &str = ".npy";

/// A NumPy file that cannot be read or written, or that holds something else than the program has.
#[derive(Debug, thiserror::Error)]
pub enum NpyError {
    /// The operating system says no.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// What it says.
        source: io::Error,
    },
    /// The file is broken, or none that we read.
    #[error("{origin}: {problem}")]
    Malformed {
        /// The file, and the array in it.
        origin: String,
        /// What is wrong.
        problem: String,
    },
    /// The array is not the one that is asked for.
    #[error("{origin} is {found}, the program's is {expected}{advice}")]
    Mismatch {
        /// The file, and the array in it.
        origin: String,
        /// Shape of the array.
        found: String,
        /// Shape that is asked for.
        expected: String,
        /// What to do about it; begins with punctuation.
        advice: String,
    },
}

impl NpyError {
    fn malformed(origin: &str, problem: impl ToString) -> NpyError {
        NpyError::Malformed { origin: origin.to_owned(), problem: problem.to_string() }
    }
}

/// Reads the array of a `.npy` file.
pub fn read_npy(path: &Path) -> Result<NpyArray, NpyError> {
    let file = path.display().to_string();
    let failed = |source| NpyError::Io { file: file.clone(), source };
    let handle = File::open(path).map_err(failed)?;
    let metadata = handle.metadata().map_err(failed)?;
    let length = metadata.is_file().then_some(metadata.len());
    read_array(&mut BufReader::new(handle), length, &file)
}

/// Reads every array of a `.npz` file, by its name without `.npy`.
pub fn read_npz(path: &Path) -> Result<BTreeMap<String, NpyArray>, NpyError> {
    let file = path.display().to_string();
    let failed = |source| NpyError::Io { file: file.clone(), source };
    let handle = File::open(path).map_err(failed)?;
    let length = handle.metadata().map_err(failed)?.len();
    let mut start = Vec::new();
    (&handle).take(MAGIC.len() as u64).read_to_end(&mut start).map_err(failed)?;
    if start == MAGIC {
        return Err(NpyError::malformed(&file, "this is a single array (.npy), not an archive of them (.npz)"));
    }

    let not_an_archive =
        |error| NpyError::malformed(&file, format!("not an .npz archive, or not a whole one: {error}"));
    let mut archive = ZipArchive::new(BufReader::new(handle)).map_err(not_an_archive)?;
    if archive.has_duplicate_names() {
        return Err(NpyError::malformed(&file, "two arrays of the archive have the same name"));
    }
    if archive.has_overlapping_files().map_err(not_an_archive)? {
        return Err(NpyError::malformed(&file, "arrays of the archive overlap each other"));
    }
    let mut arrays = BTreeMap::new();
    for index in 0..archive.len() {
        let mut entry = archive
            .by_index(index)
            .map_err(|error| NpyError::malformed(&file, format!("entry {index} of the archive: {error}")))?;
        let full_name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        let name = full_name.strip_suffix(SUFFIX).unwrap_or(&full_name).to_owned();
        let origin = format!("{file}: {}", name.escape_debug());
        if !full_name.ends_with(SUFFIX) {
            return Err(NpyError::malformed(&origin, "not an array: its name does not end in .npy"));
        }
        if entry.size() > length.saturating_mul(LARGEST_EXPANSION) {
            return Err(NpyError::malformed(&origin, format!("{} bytes do not fit into this file", entry.size())));
        }
        let size = entry.size();
        let array = read_array(&mut entry, Some(size), &origin)?;
        arrays.insert(name, array);
    }
    Ok(arrays)
}

/// Reads one array, of which header and data take `length` bytes where that is known beforehand.
fn read_array(reader: &mut impl Read, length: Option<u64>, origin: &str) -> Result<NpyArray, NpyError> {
    let broken = |problem| NpyError::Malformed { origin: origin.to_owned(), problem };
    let (header, header_length) = Header::read(reader).map_err(broken)?;
    let wanted = header.data_length().ok_or_else(|| broken("an array larger than any memory".to_owned()))?;
    let mut data = Vec::new();
    if let Some(length) = length {
        let there = length.saturating_sub(header_length);
        if there != wanted as u64 {
            return Err(broken(wrong_length(wanted, there)));
        }
        data.try_reserve_exact(wanted).map_err(|_| broken("an array larger than the memory left".to_owned()))?;
    }
    // One byte more, to notice what follows the array and to let the archive check its checksum.
    let read = reader.take(wanted as u64 + 1).read_to_end(&mut data);
    read.map_err(|error| broken(format!("the data cannot be read: {error}")))?;
    if data.len() != wanted {
        return Err(broken(wrong_length(wanted, data.len() as u64)));
    }
    Ok(NpyArray::new(origin.to_owned(), header, data))
}

fn wrong_length(wanted: usize, there: u64) -> String {
    if there < wanted as u64 {
        format!("truncated: the array takes {wanted} bytes, {there} are there")
    } else {
        format!("the array takes {wanted} bytes, but more follow")
    }
}
