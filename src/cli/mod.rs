//! The command line: one file per subcommand, each parsing its options and calling into the library.

mod bench;
mod control;
mod devices;
mod doctor;
mod exec;
mod failure;
mod inspect;
mod job;
mod launch;
mod memory;
mod mpi;
mod plugin;
mod program;
mod ray;
mod report;
mod run;
mod simulate;
mod status;

use std::ffi::OsString;
use std::io::IsTerminal;

use clap::{Parser, Subcommand, ValueEnum};
use spmd_run::runtime;
use tracing_subscriber::EnvFilter;

pub use failure::Failure;

/// Runs one SPMD program over many devices on many host processes, through any PJRT plugin.
#[derive(Parser)]
#[command(
    name = "spmd-run",
    version,
    about,
    override_usage = "spmd-run [-n N] [OPTIONS] PROGRAM\n       spmd-run [-n N] [OPTIONS] -- COMMAND ARGUMENTS\n       spmd-run COMMAND"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program (the default: `spmd-run -n 4 program.hlo`)
    Run(run::Options),
    /// Run a program that uses the library in every process (the default with `--`: `spmd-run -n 4 -- ./program`)
    Exec(exec::Options),
    /// Show the global device view: counts and a table of processes
    Devices(devices::Options),
    /// Show what a program is and what it will do, or the program itself at any stage; nothing is run
    Inspect(inspect::Options),
    /// Predict what a program would take on a cluster that is not there: time per step and collective, and what limits it
    Simulate(simulate::Options),
    /// Measure the job's collectives in the manner of nccl-tests, its start or its steps
    Bench(bench::Options),
    /// Show what this process sees of schedulers, plugins, chips, networks and limits, and what to change
    Doctor(doctor::Options),
    /// Show how running jobs are doing: processes, steps, bytes moved
    Status(status::Options),
    /// List known PJRT plugins, or install one
    Plugin(plugin::Options),
    /// Copy this program and its Python module spmd_ray into a folder, for `ray job submit`
    Ray(ray::Options),
    /// Start and watch a launcher's processes on this host
    #[command(name = HELPER, hide = true)]
    Helper(launch::HelperOptions),
}

/// How a command writes its results to standard output.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// What launchers start on each host.
const HELPER: &str = "__host";
const COMMANDS: [&str; 11] =
    ["run", "exec", "devices", "inspect", "simulate", "bench", "doctor", "status", "plugin", "ray", "help"];

/// Parses the arguments, runs the command and turns a failure into its message and exit code.
pub fn main() -> u8 {
    memory::keep_large_blocks();
    let arguments = match with_default_command(std::env::args_os().collect()) {
        Ok(arguments) => arguments,
        Err(failure) => return failure.report(),
    };
    runtime::quieten_plugins();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .init();
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let outcome = match cli.command {
        Command::Run(options) => run::main(options),
        Command::Exec(options) => exec::main(options),
        Command::Devices(options) => devices::main(options),
        Command::Inspect(options) => inspect::main(options),
        Command::Simulate(options) => simulate::main(options),
        Command::Bench(options) => bench::main(options),
        Command::Doctor(options) => doctor::main(&options),
        Command::Status(options) => status::main(options),
        Command::Plugin(options) => plugin::main(options),
        Command::Ray(options) => ray::main(options),
        Command::Helper(options) => launch::help(&options),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// Inserts `run`, or `exec` if a command of its own follows after `--`, where the first argument is neither a command nor a
/// question about the tool itself.
fn with_default_command(mut arguments: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let first = arguments.get(1).and_then(|argument| argument.to_str()).unwrap_or_default();
    let asks_about_tool = ["-h", "--help", "-V", "--version"].contains(&first);
    if let Some(command) = meant_command(first).filter(|command| *command != first) {
        return Err(Failure::usage(format!("'{first}' is neither a file nor a command: did you mean '{command}'?")));
    }
    if arguments.len() > 1 && !asks_about_tool && first != HELPER && !COMMANDS.contains(&first) {
        let has_command = arguments.iter().any(|argument| argument == "--");
        arguments.insert(1, if has_command { "exec" } else { "run" }.into());
    }
    Ok(arguments)
}

/// The command that a word probably means, if it is not a file.
fn meant_command(word: &str) -> Option<&'static str> {
    const ALIKE: f64 = 0.7;
    let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic());
    if !is_word || std::path::Path::new(word).exists() {
        return None;
    }
    let likeness = |command: &str| strsim::normalized_damerau_levenshtein(&word.to_lowercase(), command);
    let alike = COMMANDS.into_iter().map(|command| (likeness(command), command));
    alike.filter(|(likeness, _)| *likeness >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, command)| command)
}
