//! Opening NumPy's files without reading their arrays.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use zip::{CompressionMethod, ZipArchive};

use super::{SUFFIX, header::Header, wrong_length};
use crate::host_array::FileError;
use crate::host_array::stored::{Contents, Place, Positioned, StoredArray};

/// Opens the array of a `.npy` file, to read parts of it.
///
/// # Errors
/// The file cannot be read, or is no `.npy` file.
pub fn open_npy(path: &Path) -> Result<StoredArray, FileError> {
    let origin = path.display().to_string();
    let failed = |source| FileError::Io { file: origin.clone(), source };
    let file = Arc::new(File::open(path).map_err(failed)?);
    let length = file.metadata().map_err(failed)?.len();
    let broken = |problem| FileError::Malformed { origin: origin.clone(), problem };
    let (header, start) = Header::read(&mut Positioned::new(Arc::clone(&file))).map_err(broken)?;
    check_length(&header, length.saturating_sub(start)).map_err(broken)?;
    Ok(StoredArray::new(origin, Contents::Npy(header), Place::At { file, offset: start }))
}

/// Opens every array of a `.npz` file, by its name without `.npy`, to read parts of them.
///
/// Of an array that was stored (`numpy.savez`), only what is asked for is read; a compressed one (`savez_compressed`) is
/// decompressed from its beginning up to there, and what is not asked for is not kept.
///
/// # Errors
/// The file cannot be read, or is no `.npz` file.
pub fn open_npz(path: &Path) -> Result<BTreeMap<String, StoredArray>, FileError> {
    let name = path.display().to_string();
    let file = Arc::new(File::open(path).map_err(|source| FileError::Io { file: name.clone(), source })?);
    let not_an_archive =
        |error| FileError::malformed(&name, format!("not an .npz archive, or not a whole one: {error}"));
    let mut archive = ZipArchive::new(Positioned::new(Arc::clone(&file))).map_err(not_an_archive)?;
    let mut arrays = BTreeMap::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(not_an_archive)?;
        let full_name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        let array = full_name.strip_suffix(SUFFIX);
        let origin = format!("{name}: {}", array.unwrap_or(&full_name).escape_debug());
        let broken = |problem| FileError::Malformed { origin: origin.clone(), problem };
        let array =
            array.map(str::to_owned).ok_or_else(|| broken("not an array: its name does not end in .npy".to_owned()))?;
        let (header, start) = Header::read(&mut entry).map_err(broken)?;
        check_length(&header, entry.size().saturating_sub(start)).map_err(broken)?;
        let place = match (entry.compression(), entry.data_start()) {
            (CompressionMethod::Stored, Some(data)) => Place::At { file: Arc::clone(&file), offset: data + start },
            _ => Place::Compressed { file: Arc::clone(&file), index, offset: start },
        };
        if arrays.insert(array, StoredArray::new(origin, Contents::Npy(header), place)).is_some() {
            return Err(FileError::malformed(&name, "two arrays of the archive have the same name"));
        }
    }
    Ok(arrays)
}

fn check_length(header: &Header, there: u64) -> Result<(), String> {
    let wanted = header.data_length().ok_or_else(|| "an array larger than any memory".to_owned())?;
    if there == wanted as u64 { Ok(()) } else { Err(wrong_length(wanted, there)) }
}
