//! `spmd-run ray DIR`: what a job of Ray needs to use spmd-run from Python.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use spmd_run::launch::hosts::RAY_MODULE;

use super::Failure;
use super::report::print;

#[derive(Args)]
pub struct Options {
    /// The folder that `ray job submit --working-dir` gets; made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub fn main(options: Options) -> Result<u8, Failure> {
    let folder = &options.folder;
    let module = folder.join("spmd_ray.py");
    fs::create_dir_all(folder).with_context(|| folder.display().to_string()).map_err(Failure::program)?;
    fs::write(&module, RAY_MODULE).with_context(|| module.display().to_string()).map_err(Failure::program)?;
    let binary = copy_of_this_program(folder).map_err(Failure::program)?;
    print(&format!("{}\n{}\n", module.display(), binary.display()))?;
    Ok(0)
}

fn copy_of_this_program(folder: &Path) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("find this program's file")?;
    let copy = folder.join("spmd-run");
    // Copying a file onto itself would empty it, and one that runs cannot be written over.
    if !copy.canonicalize().is_ok_and(|copy| copy == program) {
        let _ = fs::remove_file(&copy);
        fs::copy(&program, &copy).with_context(|| copy.display().to_string())?;
    }
    Ok(copy)
}
