//! `spmd-run bench`: measures the job.

mod collectives;
mod dispatch;
mod plot;
mod rows;
mod startup;

use clap::{Args, Subcommand};

use super::Failure;

#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Time and check collectives of growing size, in compiled programs and on the engine alone
    #[command(after_help = collectives::NOTES)]
    Collectives(collectives::Options),
    /// Time the start of jobs, from the launch until every process knows the device count
    Startup(startup::Options),
    /// Time steps of small programs, and of the plugin alone
    Dispatch(dispatch::Options),
}

pub fn main(options: Options) -> Result<u8, Failure> {
    match options.what {
        What::Collectives(options) => collectives::main(options),
        What::Startup(options) => startup::main(options),
        What::Dispatch(options) => dispatch::main(options),
    }
}
