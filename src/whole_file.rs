//! Files that appear when they are complete.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Checks that a file can be written, before any work is done for it.
pub fn check(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if there.is_file() => File::options().append(true).open(path).map(drop),
        Ok(there) if there.is_dir() => Err(ErrorKind::IsADirectory.into()),
        // Opening a pipe would already be heard at its other end.
        Ok(_) => Ok(()),
        Err(_) => tempfile::tempfile_in(folder(path)).map(drop),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that appears, or takes the place of another, when it is complete: until then it has another name in the same
/// folder. Devices and pipes are written directly, as are files in folders that take no new ones.
pub enum WholeFile {
    /// Written directly, and no place to go back in.
    Stream(File),
    /// Written directly.
    InPlace(File),
    /// On its way to this path.
    New(NamedTempFile, PathBuf),
}

impl WholeFile {
    /// Begins a file.
    pub fn create(path: &Path) -> io::Result<WholeFile> {
        let there = fs::metadata(path).ok();
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            return File::options().write(true).open(path).map(WholeFile::Stream);
        }
        // A link stays one.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let permissions = there.as_ref().map_or(Permissions::from_mode(0o666), fs::Metadata::permissions);
        match tempfile::Builder::new().prefix(".spmd-run-").permissions(permissions).tempfile_in(folder(&target)) {
            Ok(new) => Ok(WholeFile::New(new, target)),
            Err(_) if there.is_some() => File::create(path).map(WholeFile::InPlace),
            Err(error) => Err(error),
        }
    }

    /// Where to write.
    pub fn file(&mut self) -> &mut File {
        match self {
            WholeFile::Stream(file) | WholeFile::InPlace(file) => file,
            WholeFile::New(file, _) => file.as_file_mut(),
        }
    }

    /// All has been written: the file appears.
    pub fn finish(self) -> io::Result<()> {
        match self {
            WholeFile::New(file, target) => Ok(file.persist(target).map(drop)?),
            WholeFile::Stream(_) | WholeFile::InPlace(_) => Ok(()),
        }
    }
}
