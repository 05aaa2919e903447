//! Writing `.npz` archives.

use std::io::{self, BufWriter, Seek, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::{SUFFIX, header};
use crate::host_array::element::canonical;
use crate::host_array::{FileError, HostArray};
use crate::whole_file::WholeFile;

/// Writes arrays by their names into a `.npz` file, as `numpy.savez` does.
///
/// The file appears, or takes the place of another, when it is complete: until then it has another name in the same
/// folder. Devices and pipes are written directly, as are files in folders that take no new ones.
pub fn write_npz<'a>(path: &Path, arrays: impl IntoIterator<Item = (String, &'a HostArray)>) -> Result<(), FileError> {
    write(path, arrays).map_err(|source| FileError::Io { file: path.display().to_string(), source })
}

fn write<'a>(path: &Path, arrays: impl IntoIterator<Item = (String, &'a HostArray)>) -> io::Result<()> {
    let mut whole = WholeFile::create(path)?;
    if let WholeFile::Stream(file) = &mut whole {
        return fill(ZipWriter::new_stream(BufWriter::new(file)), arrays)?.into_inner().flush();
    }
    fill(ZipWriter::new(BufWriter::new(whole.file())), arrays)?.flush()?;
    whole.finish()
}

fn fill<'a, W: Write + Seek>(
    mut archive: ZipWriter<W>,
    arrays: impl IntoIterator<Item = (String, &'a HostArray)>,
) -> io::Result<W> {
    for (name, array) in arrays {
        let header = header::text(array.dtype(), array.dims());
        let zip64 = (header.len() + array.size()) as u64 >= u64::from(u32::MAX);
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(zip64);
        archive.start_file(name + SUFFIX, options)?;
        archive.write_all(&header)?;
        if array.dtype().bits() < 8 {
            let bytes: Vec<u8> = array.data().iter().map(|&byte| canonical(array.dtype(), byte)).collect();
            archive.write_all(&bytes)?;
        } else {
            archive.write_all(array.data())?;
        }
    }
    Ok(archive.finish()?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::read_npz;
    use super::*;
    use crate::dtype::DType;

    fn save(path: &Path) -> Result<(), FileError> {
        write_npz(path, [("a".to_owned(), &HostArray::zeros(DType::F32, &[3]).unwrap())])
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_when_the_new_one_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("out.npz"), folder.path().join("link.npz"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        symlink("out.npz", &link).unwrap();
        save(&link).unwrap();
        assert_eq!(read_npz(&file).unwrap().len(), 1);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(names(folder.path()), ["link.npz", "out.npz"]);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn devices_and_pipes_are_written_directly() {
        save(Path::new("/dev/null")).unwrap();
        insta::assert_snapshot!(save(Path::new("/dev/full")).unwrap_err(), @"/dev/full: No space left on device (os error 28)");
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let reader = {
            let pipe = pipe.clone();
            std::thread::spawn(move || fs::read(pipe).unwrap())
        };
        save(&pipe).unwrap();
        let copy = folder.path().join("copy.npz");
        fs::write(&copy, reader.join().unwrap()).unwrap();
        assert_eq!(read_npz(&copy).unwrap().len(), 1);
    }
}
