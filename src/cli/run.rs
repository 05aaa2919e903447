//! `spmd-run run`: runs a program.

mod inputs;
mod outputs;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use spmd_run::hlo::{HloModule, Program};
use spmd_run::host_array::Fill;
use spmd_run::launch::{self, phase};
use spmd_run::runtime::{DataPlaneOptions, Executable, Plan, RuntimeError, StepTimes, World};
use spmd_run::trace;

use super::job::JobOptions;
use super::program::{ProgramOptions, load_plugin};
use super::report::check_writable;
use super::{Failure, Format};
use outputs::Report;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    program: ProgramOptions,

    #[command(flatten)]
    job: JobOptions,

    /// Form of the results on standard output
    #[arg(long, value_enum, default_value = "text")]
    format: Format,

    /// Global arguments arg0, arg1, … in flattened order
    #[arg(long, value_name = "FILE.npz")]
    input: Option<PathBuf>,

    /// Global argument I from a file (may be repeated)
    #[arg(long = "arg", value_name = "I=FILE.npy", value_parser = indexed_file, allow_hyphen_values = true)]
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
    #[arg(long, value_name = "R", default_value_t = 0.0, requires = "expect", value_parser = tolerance,
        allow_negative_numbers = true)]
    rtol: f64,

    /// Absolute difference that --expect allows
    #[arg(long, value_name = "A", default_value_t = 0.0, requires = "expect", value_parser = tolerance,
        allow_negative_numbers = true)]
    atol: f64,

    /// Steps to time
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    repeat: u32,

    /// Steps to run before those that are timed
    #[arg(long, value_name = "W", default_value_t = 0, allow_negative_numbers = true)]
    warmup: u32,

    /// Parse, verify, partition and compile, but do not run
    #[arg(long, conflicts_with_all = ["output", "print", "expect", "repeat", "warmup"])]
    check: bool,
}

/// How a program is run.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Steps {
    check: bool,
    warmup: u32,
    repeat: u32,
    /// The global results are wanted.
    gather: bool,
}

/// A finite number that is not negative.
fn tolerance(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err("must be finite and not negative".to_owned()) }
}

/// `I=FILE`
fn indexed_file(text: &str) -> Result<(usize, PathBuf), String> {
    let (index, file) = text.split_once('=').ok_or("not of the form I=FILE.npy")?;
    let index = index.parse().map_err(|_| format!("'{index}' is not an argument's number"))?;
    Ok((index, file.into()))
}

pub fn main(options: Options) -> Result<u8, Failure> {
    options.check_usage()?;
    let check = |processes| {
        options.program.check(processes, options.job.devices_per_process())?;
        options.check_files()
    };
    options.job.run(
        &options.files(),
        || options.program.devices(),
        check,
        |world, data_plane| {
            let bytes = options.program.read()?;
            options.same_job(&world, &bytes)?;
            let mine = match world.process_index() {
                0 => {
                    options.check_files()?;
                    Some(options.prepare(&bytes, world.process_count())?)
                }
                _ => None,
            };
            options.run(world, data_plane, &bytes, mine)
        },
    )
}

impl Options {
    fn check_usage(&self) -> Result<(), Failure> {
        let stdout = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].map(Path::new);
        match &self.output {
            Some(path) if stdout.contains(&path.as_path()) => Err(Failure::usage(
                "--output: standard output carries the report: give a file, or print the results with --print",
            )),
            _ => Ok(()),
        }
    }

    /// The files to read, first the program.
    fn files(&self) -> Vec<&Path> {
        let args = self.args.iter().map(|(_, path)| path);
        let all = [&self.program.program].into_iter().chain(&self.input).chain(args).chain(&self.expect);
        all.map(PathBuf::as_path).collect()
    }

    /// Checks that all processes were given the same program, and the same options of those that count on each.
    fn same_job(&self, world: &World, program: &[u8]) -> Result<(), Failure> {
        const PROGRAM: &str = "program";
        let hash = blake3::hash(program).to_hex();
        let mut facts = vec![(PROGRAM.to_owned(), format!("{} bytes, BLAKE3 {}", program.len(), &hash[..16]))];
        facts.extend(self.job.facts());
        let disagreement = match world.agree("job", &facts) {
            Err(RuntimeError::Disagreement(disagreement)) => disagreement,
            outcome => return Ok(outcome?),
        };
        if !disagreement.facts.iter().any(|fact| fact == PROGRAM) {
            return Err(Failure::peer(disagreement));
        }
        let difference = world.program_difference("job", &disagreement, program).map_err(RuntimeError::from)?;
        Err(Failure::peer(anyhow::anyhow!("{disagreement}\n{difference}")))
    }

    /// Checks that files can be read and written, before any work is done for them.
    fn check_files(&self) -> Result<(), Failure> {
        for path in &self.files()[1..] {
            File::open(launch::shipped(path)).with_context(|| path.display().to_string()).map_err(Failure::program)?;
        }
        if let Some(path) = &self.output {
            check_writable(path)?;
        }
        Ok(())
    }

    /// The program, and the job that it makes.
    fn prepare(&self, bytes: &[u8], processes: u32) -> Result<(Plan, Program), Failure> {
        let (program, _) = {
            let _phase = trace::phase("parse");
            self.program.load(bytes)?
        };
        let counts = self.program.counts(&program, bytes, || load_plugin(self.job.plugin.as_deref()))?;
        let plan = self.program.plan(&program, counts, processes, self.job.devices_per_process())?;
        if let Program::Hlo(HloModule { elided_constants, .. }) = &program
            && let Some(name) = elided_constants.first()
        {
            let others = match elided_constants.len() {
                1 => String::new(),
                count => format!(" and {} more constants", count - 1),
            };
            tracing::warn!(
                "{}: the text leaves out the values of '{name}'{others} ({{...}}), so results mean nothing; they are filled as \
                 XLA's parser fills them. Print it with large constants (XLA's print_large_constants), or as a proto",
                self.program.name()
            );
        }
        Ok((plan, program))
    }

    /// What all processes must do alike, whatever their own options say.
    fn steps(&self) -> Steps {
        let gather = self.output.is_some() || self.expect.is_some() || self.print;
        Steps { check: self.check, warmup: self.warmup, repeat: self.repeat, gather }
    }

    /// One controller's part. Process 0 brings the plan and the program, and its options count.
    fn run(
        &self,
        world: World,
        data_plane: DataPlaneOptions,
        bytes: &[u8],
        mine: Option<(Plan, Program)>,
    ) -> Result<u8, Failure> {
        let (plan, program) = mine.unzip();
        let (plan, steps) =
            world.from_first("plan", || Ok::<_, RuntimeError>((plan.ok_or(RuntimeError::NoProgram)?, self.steps())))?;
        let runtime = self.job.open(world, data_plane, Some(plan.devices_per_process))?;
        let executable =
            Executable::compile(&runtime, plan, program).map_err(|error| self.program.failure(bytes, error))?;
        let is_first = runtime.world().process_index() == 0;
        let mut report = Report::new(&runtime, &executable, plan, self.format);
        if steps.check {
            if is_first {
                report.print()?;
            }
            return Ok(0);
        }

        let (arrays, facts) = self.inputs(executable.parameters(), plan.replicas as usize)?;
        runtime.world().agree("arguments", &facts)?;
        let mut arguments = executable.load(&arrays)?;
        drop(arrays);
        phase::expect_steps(u64::from(steps.warmup) + u64::from(steps.repeat));
        executable.run_steps(&mut arguments, steps.warmup as usize)?;
        let (results, seconds) = executable.run_steps(&mut arguments, steps.repeat as usize)?;
        report.steps =
            StepTimes::of_slowest(&runtime.world().all_gather("step times", seconds).map_err(RuntimeError::from)?);

        let mut matches = true;
        if steps.gather {
            let arrays = executable.gather(&results)?;
            if is_first {
                matches = self.deliver(&arrays, plan.replicas as usize, &mut report)?;
            }
        }
        if is_first {
            report.print()?;
        }
        if let (Some(expected), false) = (&self.expect, matches) {
            eprintln!("error: the results differ from {}", expected.display());
            return Ok(1);
        }
        Ok(0)
    }
}
