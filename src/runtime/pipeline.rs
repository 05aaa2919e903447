//! From a program to what plugins compile for its devices.

use std::time::Duration;

use buffa::Message;

use crate::hlo::{self, HloModule, ModuleConfig, Program, shape};
use crate::launch::phase;
use crate::library_calls::{self, UnknownTarget, count_targets, unknown_targets};
use crate::lower::{self, Layout, Lowered, replay};
use crate::partition::{self, GlobalArg, Partitioned};
use crate::pjrt::{self, Client, CompileOptions, LoadedExecutable, Plugin, ProgramFormat, Value};
use crate::proto::HloModuleProto;
use crate::proto::op_sharding::Type;
use crate::trace;

use super::{Plan, RuntimeError, bridge};

/// A program on its way to the plugin, at every stage.
///
/// A process that has all devices hands the program to the plugin as it is, unless it has been partitioned before or
/// needs a collective that the plugin does not have. Otherwise the program is partitioned, and its collectives become
/// calls to ours. What XLA compiled before is made compilable again first.
pub struct Pipeline {
    /// The program of one device, whose collectives name global devices.
    pub partitioned: Partitioned,
    /// The program that every process compiles for its own devices. An error counts only where the program does not
    /// run whole.
    pub lowered: Result<Lowered, lower::Error>,
    /// Whether the plugin gets the program as it is.
    pub runs_whole: bool,
    /// What the user should know of the way that the program takes.
    pub notes: Vec<String>,
    /// The targets of its custom calls, each once; CPU plugins get those that we have from us.
    pub library_calls: Vec<String>,
    /// The targets that a CPU plugin may not have.
    pub unknown: Vec<UnknownTarget>,
}

/// What [`Client::compile`] takes.
pub(super) struct CompilerInput {
    pub code: Vec<u8>,
    pub format: ProgramFormat,
    pub options: CompileOptions,
}

impl Pipeline {
    /// Verifies, partitions and lowers a program. It is brought into the form that plugins of every age take.
    pub fn new(plugin: &Plugin, program: &mut Program, layout: &Layout) -> Result<Pipeline, RuntimeError> {
        let mut notes = Vec::new();
        normalize(program, layout.replicas, layout.partitions, &mut notes)?;
        phase::enter(&match program {
            Program::Hlo(module) => format!("partitioning '{}'", module.proto.name),
            Program::Mlir(_) => "importing and partitioning the program".to_owned(),
        });
        let phase = trace::phase("partition");
        let mut partitioned = partition::partition(plugin, program, layout.replicas, layout.partitions)?;
        drop(phase);
        hlo::remove_dead_code(&mut partitioned.module.proto);
        let unknown = unknown_targets(&partitioned.module);
        let instructions =
            partitioned.module.proto.computations.iter().flat_map(|computation| &computation.instructions);
        let library_calls = count_targets(instructions).into_keys().map(str::to_owned).collect();
        let phase = trace::phase("lower");
        let lowered = lower::lower(&partitioned.module, layout);
        drop(phase);
        let was_partitioned = matches!(program, Program::Hlo(module) if partition::is_partitioned(module));
        if was_partitioned && layout.partitions > 1 {
            note(&mut notes, about_partitioned(&partitioned.results));
        }
        let alone = layout.devices_per_process.len() == 1;
        // Even where it moves nothing, no CPU plugin compiles one of these.
        let mut instructions =
            partitioned.module.proto.computations.iter().flat_map(|computation| &computation.instructions);
        let broadcasts = instructions.any(|instruction| instruction.opcode == "collective-broadcast");
        let needs_ours = lowered.as_ref().is_ok_and(|lowered| broadcasts || !lowered.collectives.is_empty());
        Ok(Pipeline {
            partitioned,
            lowered,
            runs_whole: alone && !was_partitioned && !needs_ours,
            notes,
            library_calls,
            unknown,
        })
    }

    /// Whether the program takes its arguments as one tuple.
    pub fn is_tupled(&self) -> bool {
        is_tupled(&self.partitioned.module.proto)
    }

    /// The arguments whose memory an execution may take, and the results that take it, in flattened order.
    pub fn donations(&self) -> Vec<(usize, Option<usize>)> {
        donations(&self.partitioned.module.proto)
    }

    /// Compiles what one process of the job compiles, on a client of `plan.devices_per_process` devices and with these
    /// XLA flags, which are named without dashes.
    ///
    /// # Errors
    /// The program cannot be lowered, or the plugin refuses it.
    pub fn compile(
        self,
        client: &Client,
        program: &Program,
        plan: Plan,
        flags: Vec<(String, Value)>,
    ) -> Result<LoadedExecutable, RuntimeError> {
        let tupled = self.is_tupled();
        phase::enter(&format!("compiling '{}'", self.partitioned.module.proto.name));
        let library_calls = self.library_calls;
        let mut input = if self.runs_whole {
            CompilerInput::whole(program, plan, tupled)
        } else {
            bridge::register(client.plugin())?;
            CompilerInput::lowered(self.lowered?.module.proto.encode_to_vec(), plan, Duration::MAX, tupled)
        };
        input.options.env_overrides.extend(flags);
        if client.platform_name()? == "cpu" {
            library_calls::register(client.plugin(), library_calls.iter().map(String::as_str))?;
        }
        Ok(input.compile(client)?)
    }
}

/// The program that each device runs, whose collectives name global devices.
///
/// # Errors
/// The program is not valid, or XLA cannot partition it.
pub fn program_of_one_device(
    plugin: &Plugin,
    mut program: Program,
    replicas: i64,
    partitions: i64,
) -> Result<HloModule, RuntimeError> {
    normalize(&mut program, replicas, partitions, &mut Vec::new())?;
    Ok(partition::partition(plugin, &program, replicas, partitions)?.module)
}

/// Verifies a program, and brings it into the form that plugins of every age take.
pub(super) fn normalize(
    program: &mut Program,
    replicas: i64,
    partitions: i64,
    notes: &mut Vec<String>,
) -> Result<(), RuntimeError> {
    let Program::Hlo(module) = program else { return Ok(()) };
    hlo::verify(module, replicas, partitions)?;
    if let Some(evidence) = replay::compiled_because(module) {
        note(
            notes,
            format!("compiled dump ({evidence}): schedule, layouts and fusions are undone before it is compiled again"),
        );
        replay::undo(module)?;
        module.source = None;
        hlo::verify(module, replicas, partitions)?;
    }
    if lower::flatten_entry(module) {
        note(notes, "tuples among the arguments or results are passed array by array, in order".to_owned());
        hlo::verify(module, replicas, partitions)?;
    }
    hlo::remove_dead_code(&mut module.proto);
    partition::shard_tuples(module, partitions);
    hlo::groups::expand_replica_groups(&mut module.proto).map_err(lower::Error::from)?;
    let program_shape = module.proto.host_program_shape.get_or_insert_default();
    // Arguments and results travel row-major, and plugins take the program's word for it.
    program_shape.parameters.iter_mut().for_each(|shape| shape::set_row_major(shape));
    shape::set_row_major(program_shape.result.get_or_insert_default());
    Ok(())
}

/// Whether a module takes its arguments as one tuple.
pub(super) fn is_tupled(module: &HloModuleProto) -> bool {
    matches!(&module.host_program_shape.parameters[..], [only] if shape::is_tuple(only))
}

/// As [`Pipeline::donations`].
pub(super) fn donations(module: &HloModuleProto) -> Vec<(usize, Option<usize>)> {
    let tupled = is_tupled(module);
    let argument =
        |parameter: i64, index: &[i64]| usize::try_from(if tupled { *index.first()? } else { parameter }).ok();
    let aliases = module.input_output_alias.entries.iter().filter_map(|entry| {
        let result = usize::try_from(entry.output_shape_index.first().copied().unwrap_or(0)).ok();
        Some((argument(entry.parameter_number, &entry.parameter_shape_index)?, result))
    });
    let donors = module.buffer_donor.entries.iter();
    let donors =
        donors.filter_map(|entry| Some((argument(entry.parameter_number, &entry.parameter_shape_index)?, None)));
    aliases.chain(donors).collect()
}

/// Tells at once, as what follows may fail, and keeps it for the report.
fn note(notes: &mut Vec<String>, note: String) {
    tracing::info!("{note}");
    notes.push(note);
}

fn about_partitioned(results: &[GlobalArg]) -> String {
    let without_sharding = results.iter().filter(|result| result.sharding.r#type == Type::MANUAL).count();
    let what = "partitioned before: each device runs the program as it is";
    match without_sharding {
        0 => what.to_owned(),
        _ => format!(
            "{what}; results without a sharding ({{manual}}) are per device, and those of partition 0 are given"
        ),
    }
}

impl CompilerInput {
    /// The program as it is, for a process that has all devices; whether it is `tupled` is as [`Pipeline::is_tupled`] says.
    pub fn whole(program: &Program, plan: Plan, tupled: bool) -> CompilerInput {
        let config = match program {
            Program::Hlo(module) => module.config.clone(),
            Program::Mlir(_) => ModuleConfig::default(),
        };
        let options = CompileOptions {
            num_replicas: plan.replicas.into(),
            num_partitions: plan.partitions.into(),
            use_spmd_partitioning: plan.partitions > 1,
            use_shardy_partitioner: partition::uses_shardy(program),
            allow_spmd_sharding_propagation_to_parameters: config.allow_spmd_sharding_propagation_to_parameters,
            allow_spmd_sharding_propagation_to_output: config.allow_spmd_sharding_propagation_to_output,
            parameter_is_tupled_arguments: tupled,
            ..CompileOptions::default()
        };
        let (code, format) = partition::program_bytes(program);
        CompilerInput { code, format, options }
    }

    /// A lowered module, for the devices of any one process. Processes wait `limit` for each other.
    pub fn lowered(module: Vec<u8>, plan: Plan, limit: Duration, tupled: bool) -> CompilerInput {
        let options = CompileOptions {
            parameter_is_tupled_arguments: tupled,
            ..bridge::compile_options(plan.devices_per_process, limit)
        };
        CompilerInput { code: module, format: ProgramFormat::Hlo, options }
    }

    pub fn compile(&self, client: &Client) -> pjrt::Result<LoadedExecutable> {
        client.compile(&pjrt::Program { code: &self.code, format: self.format }, &self.options.encode())
    }
}
