//! What can be said of a program before it runs: its arrays, its collectives and the bytes that they move, its work and
//! its memory.
//!
//! Nothing is run, but the plugin partitions and compiles the program as it would for a run. Figures are those of one
//! execution on one device.

mod collectives;
mod cost;
mod custom_calls;
mod graph;
mod participants;
pub mod simulate;
mod stage;
mod traffic;
mod trip_count;

use serde::Serialize;

pub use collectives::{Collective, Totals};
pub use cost::Cost;
pub use custom_calls::CustomCall;
pub use graph::{Loop, Runs};
pub use participants::{Participants, explain_id_mode};
pub use stage::{Stage, module_at, name_counts};
pub use traffic::LinkBytes;
use traffic::Places;

use crate::hlo::{Program, shape};
use crate::mesh::HloSharding;
use crate::partition::{self, GlobalArg};
use crate::pjrt::{Plugin, Value};
use crate::runtime::{Pipeline, Plan, RuntimeError, create_client};
use graph::Graph;

/// What can be said of a program for a layout of processes and devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// The module's name.
    pub name: String,
    /// Replicas of the program.
    pub num_replicas: u32,
    /// Partitions of the program.
    pub num_partitions: u32,
    /// Controller processes.
    pub process_count: u32,
    /// Devices of each process.
    pub devices_per_process: u32,
    /// Slices that the processes are divided into, in order.
    pub slice_count: u32,
    /// Who makes the program of one device.
    pub partitioner: Partitioner,
    /// The instructions have an order already: the program has been compiled before.
    pub is_scheduled: bool,
    /// The plugin gets the program as it is; otherwise it gets the lowered one.
    pub runs_whole: bool,
    /// What is special about the way that the program takes.
    pub notes: Vec<String>,
    /// Collectives that are done by this tool instead of the plugin.
    pub bridged_collectives: usize,
    /// Computations of the program of one device.
    pub computations: usize,
    /// Instructions of the program of one device.
    pub instructions: usize,
    /// The global arguments, tuples flattened.
    pub arguments: Vec<Array>,
    /// The global results, tuples flattened.
    pub results: Vec<Array>,
    /// The loops of the program of one device, in program order.
    pub loops: Vec<Loop>,
    /// The collectives of the program of one device, in program order.
    pub collectives: Vec<Collective>,
    /// What all collectives of one execution move.
    pub collective_totals: Totals,
    /// The library functions that the program calls.
    pub custom_calls: Vec<CustomCall>,
    /// The work of one execution on each device, estimated from the program before optimizations.
    pub cost: Cost,
    /// The memory of one device, as the plugin's compiler reckons it.
    pub memory: Option<Memory>,
    /// Why the plugin does not compile the program, or cannot tell the memory.
    pub memory_error: Option<String>,
}

/// Who makes the program of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Partitioner {
    /// Nobody: there is one partition.
    None,
    /// It was partitioned before.
    AlreadyPartitioned,
    /// XLA's GSPMD.
    Gspmd,
    /// XLA's Shardy.
    Shardy,
}

/// An argument or result of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Array {
    /// `arg0`, `arg1`, … and `out0`, `out1`, …
    pub name: String,
    /// The whole array, as in `f32[32,64]`.
    pub shape: String,
    /// XLA's name of its element type; `None` for what is no array.
    pub dtype: Option<&'static str>,
    /// Dimensions of the whole array.
    pub dims: Vec<i64>,
    /// Bytes of the whole array.
    pub bytes: Option<u64>,
    /// How it lies on the partitions of a replica.
    pub sharding: String,
    /// What each device has of it, padding included.
    pub dims_per_device: Option<Vec<i64>>,
    /// Bytes of that.
    pub bytes_per_device: Option<u64>,
    /// Of an argument: the program may use its memory for something else.
    pub is_donated: bool,
    /// Of an argument the result that takes its memory; of a result the argument whose memory it takes.
    pub aliased_with: Option<String>,
}

/// The memory of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// More is not in use at any time: arguments, results and temporaries, what they share counted once.
    pub bytes_at_most: i64,
    /// The plugin's own word on the peak; older plugins do not tell, and CPU plugins leave temporaries out.
    pub plugin_peak_bytes: Option<i64>,
    /// Arguments.
    pub argument_bytes: i64,
    /// Results.
    pub output_bytes: i64,
    /// Results that take their arguments' memory; counted in both.
    pub alias_bytes: i64,
    /// Intermediate values.
    pub temporary_bytes: i64,
}

/// Inspects a program for a layout. The plan's numbers of replicas and partitions are those of the program; its processes
/// are divided evenly into `slices`. Its memory is left open unless `with_memory` is set, since that takes a compilation.
///
/// # Errors
/// The program is not valid, or XLA cannot partition it. What goes wrong later is part of the result.
pub fn inspect(
    plugin: &Plugin,
    mut program: Program,
    plan: Plan,
    slices: u32,
    with_memory: bool,
) -> Result<Inspection, RuntimeError> {
    let layout = stage::layout(plan);
    let was_partitioned = matches!(&program, Program::Hlo(module) if partition::is_partitioned(module));
    let is_scheduled = matches!(&program, Program::Hlo(module) if module.config.is_scheduled);
    let partitioner = match () {
        () if was_partitioned => Partitioner::AlreadyPartitioned,
        () if plan.partitions == 1 => Partitioner::None,
        () if partition::uses_shardy(&program) => Partitioner::Shardy,
        () => Partitioner::Gspmd,
    };
    let pipeline = Pipeline::new(plugin, &mut program, &layout)?;
    let module = &pipeline.partitioned.module.proto;
    let graph = Graph::new(module);
    let walk = graph.walk();
    let devices_per_slice = (plan.processes / slices.max(1)).saturating_mul(plan.devices_per_process);
    let places = Places { devices_per_process: plan.devices_per_process, devices_per_slice };
    let (collectives, collective_totals) =
        collectives::collectives(&graph, &walk, &layout, places).map_err(crate::lower::Error::from)?;
    let (arguments, results) = arrays(&pipeline);
    let mut inspection = Inspection {
        name: module.name.clone(),
        num_replicas: plan.replicas,
        num_partitions: plan.partitions,
        process_count: plan.processes,
        devices_per_process: plan.devices_per_process,
        slice_count: slices,
        partitioner,
        is_scheduled,
        runs_whole: pipeline.runs_whole,
        notes: pipeline.notes.clone(),
        bridged_collectives: match &pipeline.lowered {
            Ok(lowered) if !pipeline.runs_whole => lowered.collectives.len(),
            _ => 0,
        },
        computations: module.computations.len(),
        instructions: module.computations.iter().map(|computation| computation.instructions.len()).sum(),
        arguments,
        results,
        cost: cost::cost(&graph, &walk),
        loops: walk.loops,
        collectives,
        collective_totals,
        custom_calls: custom_calls::custom_calls(walk.order.into_iter().map(|(_, instruction)| instruction)),
        memory: None,
        memory_error: None,
    };
    if with_memory {
        match memory(plugin, pipeline, &program, plan) {
            Ok(memory) => inspection.memory = Some(memory),
            Err(error) => inspection.memory_error = Some(error.to_string()),
        }
    }
    Ok(inspection)
}

fn memory(plugin: &Plugin, pipeline: Pipeline, program: &Program, plan: Plan) -> Result<Memory, RuntimeError> {
    let client = create_client(plugin, plan.devices_per_process)?;
    // The machine code is thrown away; buffers have their places before it is made.
    let flags = vec![("xla_backend_optimization_level".to_owned(), Value::Int(0))];
    let stats = pipeline.compile(&client, program, plan, flags)?.memory_stats()?;
    let sum = [stats.outputs, stats.temporaries].into_iter().fold(stats.arguments, i64::saturating_add);
    Ok(Memory {
        bytes_at_most: sum.saturating_sub(stats.aliased).max(stats.peak.unwrap_or(0)),
        plugin_peak_bytes: stats.peak,
        argument_bytes: stats.arguments,
        output_bytes: stats.outputs,
        alias_bytes: stats.aliased,
        temporary_bytes: stats.temporaries,
    })
}

/// Arguments and results, with the memory that they share.
fn arrays(pipeline: &Pipeline) -> (Vec<Array>, Vec<Array>) {
    let described = |prefix: &str, globals: &[GlobalArg]| {
        let arrays = globals.iter().enumerate().map(|(index, global)| array(format!("{prefix}{index}"), global));
        arrays.collect::<Vec<_>>()
    };
    let mut arguments = described("arg", &pipeline.partitioned.parameters);
    let mut results = described("out", &pipeline.partitioned.results);
    for (argument, result) in pipeline.donations() {
        let result = result.and_then(|result| results.get_mut(result));
        if let Some(argument) = arguments.get_mut(argument) {
            argument.is_donated = true;
            if let Some(result) = result {
                argument.aliased_with = Some(result.name.clone());
                result.aliased_with = Some(argument.name.clone());
            }
        }
    }
    (arguments, results)
}

fn array(name: String, global: &GlobalArg) -> Array {
    let sharding = HloSharding::from_proto(&global.sharding);
    let dims_per_device =
        sharding.as_ref().ok().and_then(|sharding| sharding.shard_shape(&global.shape.dimensions).ok());
    let dtype = shape::dtype(&global.shape);
    let shard = dtype.zip(dims_per_device.as_ref()).map(|(dtype, dims)| shape::array(dtype, dims));
    Array {
        name,
        shape: shape::text_without_layout(&global.shape),
        dtype: dtype.map(|dtype| dtype.name()),
        dims: global.shape.dimensions.clone(),
        bytes: shape::byte_size(&global.shape),
        sharding: sharding.map_or_else(|error| error.to_string(), |sharding| sharding.to_string()),
        dims_per_device,
        bytes_per_device: shard.as_ref().and_then(shape::byte_size),
        is_donated: false,
        aliased_with: None,
    }
}
