//! The modules that XLA dumps while it compiles.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Error, dump_flags};
use crate::hlo::decode;
use crate::pjrt::{self, CompileOptions, Plugin, Program, ProgramFormat};
use crate::proto::{HloModuleProto, HloProto};

/// The dumps of one compilation, deleted with it.
pub(super) struct Dump {
    directory: tempfile::TempDir,
    plugin: PathBuf,
    /// Why the compilation failed. That is an error only if it failed before the dump that is wanted.
    error: Option<pjrt::Error>,
}

/// How the names of the folders of a process's dumps begin.
fn prefix(pid: u32) -> String {
    format!("spmd-run-{pid}-")
}

/// Deletes what a process that was killed while it compiled has left in the folder for temporary files.
pub fn delete_dumps_of(pid: u32) {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix(pid))) {
        // Whoever sees it there later can delete it as well.
        let _ = std::fs::remove_dir_all(entry.path());
    }
}

impl Dump {
    /// Compiles the program on a client of its own, for as many devices as the options ask for. Dumped are the module
    /// before all passes, and those around the passes whose names hold `pass`.
    pub fn of_compilation(
        plugin: &Plugin,
        (code, format): &(Vec<u8>, ProgramFormat),
        mut options: CompileOptions,
        pass: &str,
    ) -> Result<Dump, Error> {
        let directory = tempfile::Builder::new().prefix(&prefix(std::process::id())).tempdir()?;
        options.env_overrides.extend(dump_flags(directory.path().to_string_lossy().into_owned(), pass));
        let devices = options.num_replicas.saturating_mul(options.num_partitions);
        let client = plugin.create_client(&[("cpu_device_count".to_owned(), devices.into())], None)?;
        let program = Program { code, format: *format };
        let error = plugin.without_code_generation(|| client.compile(&program, &options.encode())).err();
        Ok(Dump { directory, plugin: plugin.path().to_owned(), error })
    }

    /// Why the compilation failed.
    pub fn error(&self) -> Option<&pjrt::Error> {
        self.error.as_ref()
    }

    /// The module in the file whose name holds `stage`.
    pub fn module(self, stage: &str, what: &'static str) -> Result<HloModuleProto, Error> {
        let file = self.find(self.directory.path(), |name| name.contains(stage) && name.ends_with(".hlo.pb"))?;
        let file = self.required(file, what)?;
        let dump = decode::<HloProto>(&std::fs::read(&file)?);
        let dump = dump.map_err(|source| Error::Decode { file: file.display().to_string(), source })?;
        dump.hlo_module.into_option().ok_or_else(|| Error::Malformed("XLA's dump holds no module".to_owned()))
    }

    /// The text that the Shardy pass writes into a folder of its own, in the file whose name ends like this.
    pub fn shardy_text(self, end: &str, what: &'static str) -> Result<String, Error> {
        let folder = self.find(&self.directory.path().join("shardy"), |_| true)?;
        let file = folder.map(|folder| self.find(&folder, |name| name.ends_with(end))).transpose()?;
        let file = self.required(file.flatten(), what)?;
        Ok(std::fs::read_to_string(file)?)
    }

    /// The last of a folder's entries with such a name; their names begin with the module's and the pass's number.
    fn find(&self, folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Option<PathBuf>, Error> {
        let entries = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            entries => entries?,
        };
        let mut found = None;
        for entry in entries {
            let entry = entry?;
            if wanted(&entry.file_name().to_string_lossy()) {
                found = found.max(Some(entry.path()));
            }
        }
        Ok(found)
    }

    fn required(&self, file: Option<PathBuf>, what: &'static str) -> Result<PathBuf, Error> {
        match (file, &self.error) {
            (Some(file), _) => Ok(file),
            (None, Some(error)) => Err(Error::Xla(error.clone())),
            (None, None) => Err(Error::NoDump { plugin: self.plugin.display().to_string(), what }),
        }
    }
}
