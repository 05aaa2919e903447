//! The program that a command is about, and the devices that it needs.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use spmd_run::hlo::{self, Form, ParseError, Program};
use spmd_run::launch::{self, phase};
use spmd_run::partition::{self, CountSource, Found};
use spmd_run::pjrt::Plugin;
use spmd_run::plugins;
use spmd_run::runtime::{Plan, Request, RuntimeError};

use super::{Failure, meant_command};

/// What plugins say of MLIR bytecode that they cannot read.
const UNREADABLE_BYTECODE: &str = "Failed to parse using StableHLO";
const BYTECODE_ADVICE: &str =
    ": this MLIR bytecode is cut short, damaged or too new for the plugin; write it again, or try a newer --plugin";

#[derive(Args)]
pub struct ProgramOptions {
    /// HLO text, HloModuleProto, HloProto, StableHLO text or MLIR bytecode; told apart by content
    pub program: PathBuf,

    /// Partitions of the program, where it does not say
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub num_partitions: Option<u32>,

    /// Replicas of the program, where it does not say
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub num_replicas: Option<u32>,
}

impl ProgramOptions {
    /// The file's name, for messages.
    pub fn name(&self) -> String {
        self.program.display().to_string()
    }

    pub fn read(&self) -> Result<Vec<u8>, Failure> {
        let program = std::fs::read(launch::shipped(&self.program)).with_context(|| self.name());
        program.map_err(|error| match meant_command(&self.name()) {
            Some(command) => Failure::usage(format!(
                "{}: there is no such file; if the command is meant, put it first: spmd-run {command}",
                self.name()
            )),
            None => Failure::program(error),
        })
    }

    /// Why a program does not compile, with its file and with the place in it where that is known.
    pub fn failure(&self, bytes: &[u8], error: RuntimeError) -> Failure {
        if error.is_of_peer() {
            return error.into();
        }
        match ParseError::from_mlir_diagnostic(&self.name(), bytes, &error.to_string()) {
            Some(error) => Failure::program(error),
            None => {
                let unreadable = error.to_string().contains(UNREADABLE_BYTECODE);
                let advice = if unreadable { BYTECODE_ADVICE } else { "" };
                Failure::program(anyhow::Error::new(error).context(self.name() + advice))
            }
        }
    }

    pub fn load(&self, bytes: &[u8]) -> Result<(Program, Form), Failure> {
        hlo::load_with_form(bytes, &self.name()).map_err(Failure::program)
    }

    /// Checks all that can be told without a plugin.
    pub fn check(&self, processes: u32, devices_per_process: Option<u32>) -> Result<(), Failure> {
        let (program, _) = self.load(&self.read()?)?;
        let counts = partition::find_counts(&program);
        if needs_import(&program, counts) {
            return Ok(());
        }
        self.plan(&program, counts, processes, devices_per_process).map(drop)
    }

    /// How many devices the program needs, if it tells without a plugin.
    pub fn devices(&self) -> Result<Option<u32>, Failure> {
        let (program, _) = self.load(&self.read()?)?;
        let counts = partition::find_counts(&program);
        if needs_import(&program, counts) {
            return Ok(None);
        }
        let replicas = self.num_replicas.map(u64::from).or(count(counts.replicas)).unwrap_or(1);
        let partitions = self.num_partitions.map(u64::from).or(count(counts.partitions)).unwrap_or(1);
        Ok(u32::try_from(replicas.saturating_mul(partitions)).ok())
    }

    /// What the program tells of its replicas and partitions. Some programs only XLA can read.
    pub fn counts(
        &self,
        program: &Program,
        bytes: &[u8],
        plugin: impl FnOnce() -> Result<Plugin, Failure>,
    ) -> Result<Found, Failure> {
        let counts = partition::find_counts(program);
        if !needs_import(program, counts) {
            return Ok(counts);
        }
        let plugin = plugin()?;
        phase::enter("importing the program");
        let module = partition::import(&plugin, program).map_err(|error| self.failure(bytes, error.into()))?;
        Ok(partition::find_counts(&Program::Hlo(module)))
    }

    /// Matches program and devices, and verifies the program for them. Options may not contradict the program's header,
    /// and count more than `counts` that are only concluded from its shardings and collectives.
    pub fn plan(
        &self,
        program: &Program,
        counts: Found,
        processes: u32,
        devices_per_process: Option<u32>,
    ) -> Result<Plan, Failure> {
        let stated = |found: Option<(i64, CountSource)>| count(found.filter(|(_, by)| *by == CountSource::Header));
        let request = Request {
            program_replicas: stated(counts.replicas),
            program_partitions: stated(counts.partitions),
            replicas: self.num_replicas.map(u64::from).or(count(counts.replicas)),
            partitions: self.num_partitions.map(u64::from).or(count(counts.partitions)),
            processes,
            devices_per_process,
        };
        let plan = Plan::new(&request).map_err(Failure::program)?;
        if let Program::Hlo(module) = program {
            hlo::verify(module, plan.replicas.into(), plan.partitions.into()).map_err(|error| {
                // A position names the file as well.
                let is_placed = error.position.is_some();
                let error = anyhow::Error::new(error);
                Failure::program(if is_placed { error } else { error.context(self.name()) })
            })?;
        }
        Ok(plan)
    }
}

/// Finds and loads the plugin that `--plugin` names.
pub fn load_plugin(requested: Option<&str>) -> Result<Plugin, Failure> {
    Plugin::load(plugins::find(requested)?.path).map_err(Failure::program)
}

/// MLIR bytecode tells its counts to XLA only.
fn needs_import(program: &Program, counts: Found) -> bool {
    matches!(program, Program::Mlir(_)) && counts == Found::default()
}

/// A count that a program states; one below 1 is the verifier's to refuse.
fn count(found: Option<(i64, CountSource)>) -> Option<u64> {
    found.map(|(number, _)| u64::try_from(number).unwrap_or_default().max(1))
}
