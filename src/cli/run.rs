//! `spmd-run run`: the options of a run.

use std::path::PathBuf;

use clap::Args;

use super::job::JobOptions;

#[derive(Args)]
pub struct Options {
    /// HLO text, HloModuleProto, HloProto, StableHLO text or MLIR bytecode; told apart by content
    program: PathBuf,

    #[command(flatten)]
    job: JobOptions,

    /// Partitions of the program, where it does not say
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
    num_partitions: Option<u32>,

    /// Replicas of the program, where it does not say
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..))]
    num_replicas: Option<u32>,

    /// Global arguments arg0, arg1, … in flattened order
    #[arg(long, value_name = "FILE.npz")]
    input: Option<PathBuf>,

    /// Global argument I from a file (may be repeated)
    #[arg(long = "arg", value_name = "I=FILE.npy", value_parser = indexed_file)]
    args: Vec<(usize, PathBuf)>,

    /// Contents of the arguments that no file gives: zeros, ones, iota or random[:SEED] [default: random:0 without
    /// --input and --arg]
    #[arg(long, value_name = "FILL")]
    fill: Option<Fill>,

    /// Write the global results out0, out1, … to a file
    #[arg(long, value_name = "FILE.npz")]
    output: Option<PathBuf>,

    /// Print the global results
    #[arg(long)]
    print: bool,

    /// Compare the global results with those of a file; a difference is a failure
    #[arg(long, value_name = "FILE.npz")]
    expect: Option<PathBuf>,

    /// Relative difference that --expect allows
    #[arg(long, value_name = "R", default_value_t = 0.0, requires = "expect")]
    rtol: f64,

    /// Absolute difference that --expect allows
    #[arg(long, value_name = "A", default_value_t = 0.0, requires = "expect")]
    atol: f64,

    /// Steps to time
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,

    /// Steps to run before those that are timed
    #[arg(long, value_name = "W", default_value_t = 0)]
    warmup: u32,

    /// Parse, verify, partition and compile, but do not run
    #[arg(long)]
    check: bool,
}

/// `I=FILE`
fn indexed_file(text: &str) -> Result<(usize, PathBuf), String> {
    let (index, file) = text.split_once('=').ok_or("not of the form I=FILE.npy")?;
    let index = index.parse().map_err(|_| format!("'{index}' is not an argument's number"))?;
    Ok((index, file.into()))
}
