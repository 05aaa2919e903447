//! `spmd-run -n N -- PROGRAM ARGUMENTS`: runs a program that uses the library in every process of a job.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

use super::Failure;
use super::job::JobOptions;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    job: JobOptions,

    /// A program that joins the job by itself (`Runtime::init` of the library), and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

pub fn main(options: Options) -> Result<u8, Failure> {
    let environment = options.job.environment_of_program()?;
    if !options.job.is_member()? {
        return options.job.launch_programs();
    }
    let (program, arguments) = options.command.split_first().ok_or_else(|| Failure::usage("there is no program"))?;
    // The program takes this process's place, with all that the launcher left for it.
    let error = Command::new(program).args(arguments).envs(environment).exec();
    Err(Failure::program(anyhow::Error::new(error).context(program.display().to_string())))
}
