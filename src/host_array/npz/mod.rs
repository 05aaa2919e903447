//! NumPy's array files: `.npy`, one array, and `.npz`, a zip archive of them.
//!
//! NumPy has no `bf16`, `f8…`, `s4` and their like: they travel as raw elements (`V1`, `V2`) of their width, one byte
//! for types narrower than that, which is also what `numpy.save` makes of arrays of `ml_dtypes`.

mod array;
mod header;
mod open;
mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use zip::ZipArchive;

pub use self::array::NpyArray;
pub(super) use self::header::Header;
use self::header::MAGIC;
pub use self::open::{open_npy, open_npz};
pub use self::write::write_npz;
use super::FileError;

const SUFFIX: &str = ".npy";

/// Reads the array of a `.npy` file.
pub fn read_npy(path: &Path) -> Result<NpyArray, FileError> {
    let file = path.display().to_string();
    let failed = |source| FileError::Io { file: file.clone(), source };
    let handle = File::open(path).map_err(failed)?;
    let metadata = handle.metadata().map_err(failed)?;
    read_npy_from(BufReader::new(handle), metadata.is_file().then_some(metadata.len()), &file)
}

/// Reads the array of a `.npy` file of so many bytes, if that is known; `file` is what messages call it.
pub fn read_npy_from(mut reader: impl Read, length: Option<u64>, file: &str) -> Result<NpyArray, FileError> {
    read_array(&mut reader, Size { whole: length, there: length.unwrap_or(0) }, file)
}

/// Reads every array of a `.npz` file, by its name without `.npy`.
pub fn read_npz(path: &Path) -> Result<BTreeMap<String, NpyArray>, FileError> {
    let file = path.display().to_string();
    let handle = File::open(path).map_err(|source| FileError::Io { file: file.clone(), source })?;
    read_npz_from(BufReader::new(handle), &file)
}

/// Reads every array of a `.npz` archive, by its name without `.npy`; `file` is what messages call it.
///
/// Takes no more memory than a small multiple of what the archive holds, whatever sizes it states.
pub fn read_npz_from(mut reader: impl Read + Seek, file: &str) -> Result<BTreeMap<String, NpyArray>, FileError> {
    let failed = |source| FileError::Io { file: file.to_owned(), source };
    let mut start = Vec::new();
    reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start).map_err(failed)?;
    let length = reader.seek(SeekFrom::End(0)).map_err(failed)?;
    if length == 0 {
        return Err(FileError::malformed(file, "the file is empty"));
    }
    if start == MAGIC {
        return Err(FileError::malformed(file, "this is a single array (.npy), not an archive of them (.npz)"));
    }

    let not_an_archive =
        |error| FileError::malformed(file, format!("not an .npz archive, or not a whole one: {error}"));
    let mut archive = ZipArchive::new(reader).map_err(not_an_archive)?;
    if archive.has_duplicate_names() {
        return Err(FileError::malformed(file, "two arrays of the archive have the same name"));
    }
    if archive.has_overlapping_files().map_err(not_an_archive)? {
        return Err(FileError::malformed(file, "arrays of the archive overlap each other"));
    }
    let mut arrays = BTreeMap::new();
    for index in 0..archive.len() {
        let mut entry = archive
            .by_index(index)
            .map_err(|error| FileError::malformed(file, format!("entry {index} of the archive: {error}")))?;
        let full_name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        let name = full_name.strip_suffix(SUFFIX).unwrap_or(&full_name).to_owned();
        let origin = format!("{file}: {}", name.escape_debug());
        if !full_name.ends_with(SUFFIX) {
            return Err(FileError::malformed(&origin, "not an array: its name does not end in .npy"));
        }
        let size = Size { whole: Some(entry.size()), there: entry.compressed_size().min(length) };
        let array = read_array(&mut entry, size, &origin)?;
        arrays.insert(name, array);
    }
    Ok(arrays)
}

/// What is known of an array's size, header included, before it is read, in bytes.
struct Size {
    /// Of all of it.
    whole: Option<u64>,
    /// Of what is surely there, compressed maybe: no more memory than this is taken on trust.
    there: u64,
}

fn read_array(reader: &mut impl Read, size: Size, origin: &str) -> Result<NpyArray, FileError> {
    let broken = |problem| FileError::Malformed { origin: origin.to_owned(), problem };
    let (header, header_length) = Header::read(reader).map_err(broken)?;
    let wanted = header.data_length().ok_or_else(|| broken("an array larger than any memory".to_owned()))?;
    let mut data = Vec::new();
    if let Some(whole) = size.whole {
        let there = whole.saturating_sub(header_length);
        if there != wanted as u64 {
            return Err(broken(wrong_length(wanted, there)));
        }
    }
    let trusted = size.there.min(wanted as u64) as usize;
    data.try_reserve_exact(trusted).map_err(|_| broken("an array larger than the memory left".to_owned()))?;
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
