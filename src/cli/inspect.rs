//! `spmd-run inspect`: what a program is and what it will do. Nothing is run.

mod text;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use buffa::Message;
use clap::{Args, ValueEnum};
use serde::Serialize;
use spmd_run::hlo::{self, Form, HloModule, Program};
use spmd_run::inspect::{self, Inspection};
use spmd_run::launch::{ControllerEnv, phase};
use spmd_run::partition::{self, CountSource};
use spmd_run::pjrt::Plugin;
use spmd_run::runtime::Plan;

use super::job::{count_of_processes, slice_of};
use super::launch;
use super::program::{ProgramOptions, load_plugin};
use super::{Failure, Format};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    program: ProgramOptions,

    /// Controller processes of the layout that is reckoned with
    #[arg(short = 'n', long = "processes", value_name = "N", default_value_t = 1, value_parser = count_of_processes)]
    processes: u32,

    /// Devices of each process [default: the program's devices ÷ N]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=2048))]
    devices_per_process: Option<u32>,

    /// Slices that the processes are divided into, in order
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    slices: u32,

    /// Print the program in this form instead of the report [default with --stage: hlo]
    #[arg(long, value_enum)]
    emit: Option<Emit>,

    /// Print the program as it is at this stage instead of the report [default with --emit: global]
    #[arg(long, value_enum)]
    stage: Option<Stage>,

    /// Leave out the memory, which takes a compilation
    #[arg(long, conflicts_with_all = ["emit", "stage"])]
    no_compile: bool,

    /// Write to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// PJRT plugin: a known name or the path of a shared library
    #[arg(long, value_name = "NAME|PATH")]
    plugin: Option<String>,

    /// Form of the report
    #[arg(long, value_enum, default_value = "text", conflicts_with_all = ["emit", "stage"])]
    format: Format,
}

/// Forms of a program.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// HLO text
    Hlo,
    /// A serialized HloModuleProto
    Proto,
    /// StableHLO text
    Stablehlo,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// The program as it is
    Global,
    /// The program of one device, as XLA's partitioner leaves it
    Partitioned,
    /// What each process compiles, its collectives between processes turned into custom calls
    Lowered,
    /// What the plugin's compiler makes of what one process compiles
    Optimized,
}

impl From<Stage> for inspect::Stage {
    fn from(stage: Stage) -> inspect::Stage {
        match stage {
            Stage::Global => inspect::Stage::Global,
            Stage::Partitioned => inspect::Stage::Partitioned,
            Stage::Lowered => inspect::Stage::Lowered,
            Stage::Optimized => inspect::Stage::Optimized,
        }
    }
}

/// What tells how many replicas or partitions a program has.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CountedBy {
    Header,
    Shardings,
    Collectives,
    /// `--num-replicas` or `--num-partitions`.
    Option,
    /// Nothing: a program of one device runs on every one that there is.
    Layout,
    /// Nothing, which means one.
    Default,
}

/// The report.
#[derive(Serialize)]
struct Report {
    file: String,
    form: Form,
    num_replicas_from: CountedBy,
    num_partitions_from: CountedBy,
    #[serde(flatten)]
    inspection: Inspection,
}

pub fn main(options: Options) -> Result<u8, Failure> {
    slice_of(0, options.processes, options.slices)?;
    // As with a run of one process, a launcher tells the story when the plugin ends the process.
    if ControllerEnv::from_env().map_err(Failure::wrong_usage)?.is_none() {
        return launch::run(&launch::this_command(1)?, Some(&options.program.program));
    }
    let bytes = options.program.read()?;
    let (program, form) = options.program.load(&bytes)?;
    let plugin = || load_plugin(options.plugin.as_deref());
    let counts = options.program.counts(&program, &bytes, plugin)?;
    let plan = options.program.plan(&program, counts, options.processes, options.devices_per_process)?;
    let output = if options.emit.is_some() || options.stage.is_some() {
        options.module(&bytes, program, form, plan)?
    } else {
        let report = Report {
            file: options.program.name(),
            form,
            num_replicas_from: counted_by(options.program.num_replicas, counts.replicas, plan.replicas),
            num_partitions_from: counted_by(options.program.num_partitions, counts.partitions, plan.partitions),
            inspection: inspect::inspect(&plugin()?, program, plan, options.slices, !options.no_compile)
                .map_err(|error| options.program.failure(&bytes, error))?,
        };
        match options.format {
            Format::Text => text::report(&report).into_bytes(),
            Format::Json => {
                let mut json = serde_json::to_vec(&report).map_err(Failure::program)?;
                json.push(b'\n');
                json
            }
        }
    };
    options.write(&output)?;
    Ok(0)
}

fn counted_by(option: Option<u32>, found: Option<(i64, CountSource)>, count: u32) -> CountedBy {
    match (found, option) {
        (Some((_, CountSource::Header)), _) => CountedBy::Header,
        (_, Some(_)) => CountedBy::Option,
        (Some((_, CountSource::Shardings)), None) => CountedBy::Shardings,
        (Some((_, CountSource::Collectives)), None) => CountedBy::Collectives,
        (None, None) if count > 1 => CountedBy::Layout,
        (None, None) => CountedBy::Default,
    }
}

impl Options {
    /// The program in the form and at the stage that are asked for.
    fn module(&self, bytes: &[u8], program: Program, form: Form, plan: Plan) -> Result<Vec<u8>, Failure> {
        let emit = self.emit.unwrap_or(Emit::Hlo);
        let stage = self.stage.unwrap_or(Stage::Global);
        if emit == Emit::Proto && self.output.is_none() && std::io::stdout().is_terminal() {
            return Err(Failure::usage("--emit proto writes bytes, which a terminal cannot show: add -o FILE"));
        }
        if emit == Emit::Stablehlo {
            return self.stablehlo(bytes, program, form, stage, plan);
        }
        let module = match program {
            Program::Hlo(mut module) if stage == Stage::Global => {
                inspect::name_counts(&mut module, plan);
                module
            }
            program => inspect::module_at(stage.into(), &self.plugin()?, program, plan)
                .map_err(|error| self.program.failure(bytes, error))?,
        };
        Ok(match emit {
            Emit::Proto => module.proto.encode_to_vec(),
            Emit::Hlo | Emit::Stablehlo => hlo::print(&module).into_bytes(),
        })
    }

    fn stablehlo(
        &self,
        bytes: &[u8],
        program: Program,
        form: Form,
        stage: Stage,
        plan: Plan,
    ) -> Result<Vec<u8>, Failure> {
        const MEANING: &str = "StableHLO cannot say that a program is that of one device already";
        if stage != Stage::Global {
            return Err(Failure::usage(format!("--emit stablehlo goes with --stage global only: {MEANING}")));
        }
        let module: HloModule = match program {
            Program::Mlir(code) if form == Form::StablehloText => return Ok(code),
            Program::Hlo(module) if partition::is_partitioned(&module) => {
                return Err(Failure::program(anyhow!(
                    "{}: this program was partitioned before, and {MEANING}",
                    self.program.name()
                )));
            }
            program => inspect::module_at(inspect::Stage::Global, &self.plugin()?, program, plan)
                .map_err(|error| self.program.failure(bytes, error))?,
        };
        phase::enter(&format!("converting '{}' to StableHLO", module.proto.name));
        let text = partition::to_stablehlo(&self.plugin()?, &module, plan.replicas.into(), plan.partitions.into())
            .with_context(|| format!("{}: XLA cannot convert it to StableHLO", self.program.name()))
            .map_err(Failure::program)?;
        Ok(text.into_bytes())
    }

    fn plugin(&self) -> Result<Plugin, Failure> {
        load_plugin(self.plugin.as_deref())
    }

    /// Writes to the file that is named, else to standard output. Whoever reads that may have read enough.
    fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        let Some(path) = &self.output else { return super::report::print_bytes(bytes) };
        std::fs::File::create(path)
            .and_then(|mut file| file.write_all(bytes))
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::program)
    }
}
