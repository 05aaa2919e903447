//! Input files that the launcher's host has and another one may lack.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::super::environment::SHIPPED_FILES;

/// Where to read an input file: what the launcher has put here in its place, or the file itself.
pub fn shipped(path: &Path) -> Cow<'_, Path> {
    let Some(folder) = std::env::var_os(SHIPPED_FILES) else { return path.into() };
    let shipped = place_in(Path::new(&folder), path.as_os_str());
    if shipped.exists() { shipped.into() } else { path.into() }
}

/// Where in the helper's folder a file of this name is kept, under a name that still ends like the file's own.
pub fn place_in(folder: &Path, path: &OsStr) -> PathBuf {
    let id = blake3::hash(path.as_bytes()).to_hex();
    folder.join(&id.as_str()[..16]).join(Path::new(path).file_name().unwrap_or_default())
}

/// BLAKE3 of a file's contents.
pub fn hash(path: &Path) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize().into())
}
