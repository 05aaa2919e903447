//! The modules that XLA dumps while it compiles.

use std::path::PathBuf;

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

impl Dump {
    /// Compiles the program on a client of its own, for as many devices as the options ask for.
    pub fn of_compilation(
        plugin: &Plugin,
        (code, format): &(Vec<u8>, ProgramFormat),
        mut options: CompileOptions,
    ) -> Result<Dump, Error> {
        let directory = tempfile::Builder::new().prefix("spmd-run-").tempdir()?;
        options.env_overrides.extend(dump_flags(directory.path().to_string_lossy().into_owned()));
        let devices = options.num_replicas.saturating_mul(options.num_partitions);
        let client = plugin.create_client(&[("cpu_device_count".to_owned(), devices.into())], None)?;
        let program = Program { code, format: *format };
        let error = plugin.without_code_generation(|| client.compile(&program, &options.encode())).err();
        Ok(Dump { directory, plugin: plugin.path().to_owned(), error })
    }

    /// The module in the file whose name holds `stage`.
    pub fn module(self, stage: &str, what: &'static str) -> Result<HloModuleProto, Error> {
        let mut found = None;
        for entry in std::fs::read_dir(self.directory.path())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            // Names begin with the module's and the pass's number: the last one wins.
            if name.contains(stage) && name.ends_with(".hlo.pb") && found.as_ref().is_none_or(|found| *found < name) {
                found = Some(name);
            }
        }
        let file = match (found, self.error) {
            (Some(file), _) => file,
            (None, Some(error)) => return Err(Error::Xla(error)),
            (None, None) => return Err(Error::NoDump { plugin: self.plugin.display().to_string(), what }),
        };
        let bytes = std::fs::read(self.directory.path().join(&file))?;
        let dump = decode::<HloProto>(&bytes).map_err(|source| Error::Decode { file, source })?;
        dump.hlo_module.into_option().ok_or_else(|| Error::Malformed("XLA's dump holds no module".to_owned()))
    }
}
