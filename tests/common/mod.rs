//! What the tests of the PJRT layer share.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod bridged;

use std::path::PathBuf;

use spmd_run::pjrt::{Client, CompileOptions, LoadedExecutable, Plugin, Program, ProgramFormat};

/// The plugin under test. Missing is a failure: these tests mean nothing without one.
pub fn plugin() -> Plugin {
    let path = std::env::var_os("PJRT_PLUGIN_LIBRARY_PATH").expect("set PJRT_PLUGIN_LIBRARY_PATH to a CPU plugin");
    Plugin::load(PathBuf::from(path)).unwrap()
}

/// The plugin under test and those of other versions in `SPMD_TEST_PLUGINS`.
pub fn plugins() -> Vec<Plugin> {
    let others = std::env::var_os("SPMD_TEST_PLUGINS").unwrap_or_default();
    let others = std::env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
    std::iter::once(plugin()).chain(others.map(|path| Plugin::load(path).unwrap())).collect()
}

pub fn client(plugin: &Plugin, devices: i64) -> Client {
    plugin.create_client(&[("cpu_device_count".to_owned(), devices.into())], None).unwrap()
}

pub fn compile_mlir(client: &Client, code: &str, options: &CompileOptions) -> LoadedExecutable {
    let program = Program { code: code.as_bytes(), format: ProgramFormat::Mlir };
    client.compile(&program, &options.encode()).unwrap()
}

pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|chunk| f32::from_ne_bytes(chunk.try_into().unwrap())).collect()
}
