//! Executables that need not be compiled: another process of the same host has done so, or an earlier job.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::pjrt::{Client, LoadedExecutable};

use super::device_list::DeviceList;
use super::pipeline::CompilerInput;
use super::{Runtime, RuntimeError};

/// How much of either end of a plugin's file stands for the whole: these hold its build id, tables and sizes.
const PLUGIN_ENDS: u64 = 1 << 20;

/// Executables above this many bytes are compiled by every process rather than sent.
const LARGEST_SHARED: usize = 32 << 20;

/// A folder with executables of earlier jobs, as JAX's `jax_compilation_cache_dir`.
///
/// A file is named after the program and the hash of all that the compiler's output depends on: the program as the plugin
/// gets it, the options, `XLA_FLAGS`, the plugin, the devices and, for CPUs, the processor. Files may be deleted at any time.
#[derive(Debug)]
pub(super) struct CompilationCache {
    folder: PathBuf,
}

impl CompilationCache {
    /// The cache in this folder, which is made if there is none: for this user alone, as what is in it is executed.
    pub fn open(folder: &Path) -> io::Result<CompilationCache> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // It is told now rather than after a long compilation.
        tempfile::tempfile_in(folder)?;
        Ok(CompilationCache { folder: folder.to_owned() })
    }

    fn path(&self, name: &str, key: &blake3::Hash) -> PathBuf {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(100).collect();
        self.folder.join(format!("{name}-{}", key.to_hex()))
    }

    /// What an earlier job left, if it is whole.
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        match bytes.split_first_chunk() {
            Some((hash, executable)) if blake3::hash(executable) == *hash => Ok(Some(executable.to_vec())),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it is damaged")),
        }
    }

    /// Loads what an earlier job left; the error is a sentence.
    fn recall(&self, client: &Client, path: &Path) -> Result<Option<(LoadedExecutable, Vec<u8>)>, String> {
        let Some(bytes) = self.read(path).map_err(|error| error.to_string())? else { return Ok(None) };
        let loaded = client.load(&bytes).map_err(|error| error.to_string())?;
        Ok(Some((loaded, bytes)))
    }

    /// Leaves an executable to later jobs. Other processes may do the same at the same time.
    fn write(&self, path: &Path, executable: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(blake3::hash(executable).as_bytes())?;
        file.write_all(executable)?;
        file.persist(path)?;
        Ok(())
    }
}

/// Compiles a program with this `id` and `name`. On each host the first process that takes part does so, or finds the
/// executable in the cache; the others load what it has, unless each compiles for other ones of its devices.
pub(super) fn compile(
    runtime: &Runtime,
    devices: &DeviceList,
    id: u64,
    name: &str,
    input: CompilerInput,
) -> Result<LoadedExecutable, RuntimeError> {
    let client = &runtime.client;
    let hosts = runtime.transport.as_ref().map(|transport| transport.hosts()).unwrap_or_default();
    let here = runtime.world.process_index();
    let host = |process: u32| hosts.get(process as usize).copied().unwrap_or(process);
    let neighbours = || devices.processes().iter().copied().filter(|&process| host(process) == host(here));
    let first = neighbours().next().unwrap_or(here);
    let is_shared = neighbours().count() > 1 && input.options.device_assignment.is_none();
    if !is_shared && runtime.compilation_cache.get().is_none() {
        return Ok(input.compile(client)?);
    }
    let key = key(client, &input)?;
    if !is_shared {
        return Ok(recall_or_compile(runtime, name, &key, &input)?.0);
    }
    let mut own = None;
    let shared = runtime.world.from_process(first, &format!("executable/{id}/{first}"), || {
        let (loaded, serialized) = recall_or_compile(runtime, name, &key, &input)?;
        own = Some(loaded);
        let serialized = serialized.filter(|bytes| bytes.len() <= LARGEST_SHARED);
        Ok::<Option<([u8; 32], Vec<u8>)>, RuntimeError>(serialized.map(|bytes| (key.into(), bytes)))
    })?;
    match (own, shared) {
        (Some(loaded), _) => Ok(loaded),
        // Another plugin may have made it.
        (None, Some((of, bytes))) if key == of => client.load(&bytes).or_else(|_| Ok(input.compile(client)?)),
        (None, _) => Ok(input.compile(client)?),
    }
}

/// An executable, and what was or can be loaded in its stead, for the cache or other processes: what XLA has loaded, it does
/// not serialize whole.
fn recall_or_compile(
    runtime: &Runtime,
    name: &str,
    key: &blake3::Hash,
    input: &CompilerInput,
) -> Result<(LoadedExecutable, Option<Vec<u8>>), RuntimeError> {
    let client = &runtime.client;
    let cache = runtime.compilation_cache.get().map(|cache| (cache, cache.path(name, key)));
    if let Some((cache, path)) = &cache {
        match cache.recall(client, path) {
            Ok(Some((loaded, serialized))) => {
                tracing::info!("'{name}' was compiled before: {}", path.display());
                return Ok((loaded, Some(serialized)));
            }
            Ok(None) => {}
            Err(problem) => tracing::warn!("{}: {problem}; the program is compiled again", path.display()),
        }
    }
    let loaded = input.compile(client)?;
    let serialized = loaded.serialize();
    if let Some((cache, path)) = &cache {
        let kept = serialized.as_ref().map_err(ToString::to_string);
        let kept = kept.and_then(|bytes| cache.write(path, bytes).map_err(|error| error.to_string()));
        if let Err(problem) = kept {
            tracing::warn!("{}: the executable cannot be kept: {problem}", path.display());
        }
    }
    Ok((loaded, serialized.ok()))
}

/// The hash of all that the compiler's output depends on.
fn key(client: &Client, input: &CompilerInput) -> Result<blake3::Hash, RuntimeError> {
    let plugin = client.plugin();
    let version = plugin.api_version();
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &[u8]| {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    };
    add(env!("CARGO_PKG_VERSION").as_bytes());
    add(client.platform_name()?.as_bytes());
    add(client.platform_version()?.as_bytes());
    add(format!("{}.{}", version.major, version.minor).as_bytes());
    add(&ends(plugin.path()).unwrap_or_else(|_| plugin.path().as_os_str().as_bytes().to_vec()));
    add(std::env::var_os("XLA_FLAGS").unwrap_or_default().as_bytes());
    add(processor().as_bytes());
    for device in client.addressable_devices() {
        add(format!("{} {} of process {}", device.kind()?, device.id(), device.process_index()).as_bytes());
    }
    add(input.format.name().as_bytes());
    add(&input.options.encode());
    add(&input.code);
    Ok(hasher.finalize())
}

/// Both ends of a file, and its length.
fn ends(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut bytes = len.to_le_bytes().to_vec();
    (&file).take(PLUGIN_ENDS).read_to_end(&mut bytes)?;
    file.seek(SeekFrom::Start(len.saturating_sub(PLUGIN_ENDS)))?;
    file.take(PLUGIN_ENDS).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What machine code for this processor depends on: its model, and the instructions that it has.
fn processor() -> String {
    let all = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = all.split("\n\n").next().unwrap_or_default();
    let names = ["model name", "flags", "Features", "CPU implementer", "CPU part"];
    let lines = first.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_again_unless_they_are_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CompilationCache::open(&folder.path().join("a/b")).unwrap();
        let path = cache.path("jit(f)", &blake3::hash(b"program"));
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("jit_f_-"));
        assert_eq!(cache.read(&path).unwrap(), None);
        cache.write(&path, b"code").unwrap();
        cache.write(&path, b"code").unwrap();
        assert_eq!(cache.read(&path).unwrap().as_deref(), Some(&b"code"[..]));
        fs::write(&path, &fs::read(&path).unwrap()[..33]).unwrap();
        assert!(cache.read(&path).is_err());
        fs::write(&path, b"").unwrap();
        assert!(cache.read(&path).is_err());
    }

    #[test]
    fn a_folder_that_cannot_be_one_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(CompilationCache::open(file.path()).is_err());
        assert!(CompilationCache::open(&file.path().join("below")).is_err());
    }
}
