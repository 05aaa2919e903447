//! A program that is compiled for a job's devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use buffa::Message;
use serde::{Deserialize, Serialize};

use crate::collective::{CollectiveSpec, ProgramCollectives};
use crate::dtype::DType;
use crate::hlo::{self, ModuleConfig, Program, shape};
use crate::host_array::HostArray;
use crate::library_calls::{self, Availability, UnknownTarget, custom_call_targets, unknown_targets};
use crate::mesh::HloSharding;
use crate::partition;
use crate::pjrt::{Buffer, CompileOptions, Device, ErrorCode, ExecuteOptions, LoadedExecutable, ProgramFormat};
use crate::proto;
use crate::{lower, pjrt};

use super::arrays::{self, Arguments, GlobalArray, JobLayout, Place};
use super::{Plan, Runtime, RuntimeError, bridge};

/// A program compiled for the devices of a job. Every process holds one, and all call it in the same order.
pub struct Executable<'a> {
    runtime: &'a Runtime,
    layout: JobLayout,
    /// Global id of this process's first device.
    first_device: u32,
    name: String,
    parameters: Vec<GlobalArray>,
    results: Vec<GlobalArray>,
    donated: Vec<usize>,
    loaded: LoadedExecutable,
    /// In the order in which `loaded` takes arguments.
    devices: Vec<(Device, Place)>,
    /// `None` where the plugin runs the collectives.
    collectives: Option<Arc<ProgramCollectives>>,
    runs: AtomicU64,
    gatherings: AtomicU64,
}

/// The results of one execution, on this process's devices.
pub struct Results {
    /// `[device][result]`
    buffers: Vec<Vec<Buffer>>,
}

/// How long the steps of a run took, each until its last process was done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepTimes {
    /// Steps that were timed.
    pub steps: usize,
    /// Seconds of the fastest one.
    pub min: f64,
    /// Seconds of the median one.
    pub median: f64,
    /// Seconds that 99 of 100 steps did not exceed.
    pub p99: f64,
}

/// What process 0 prepares for all.
#[derive(Serialize, Deserialize)]
struct Prepared {
    name: String,
    module: PreparedModule,
    collectives: Vec<CollectiveSpec>,
    /// The targets of custom calls that the plugin gets from us.
    library_calls: Vec<String>,
    /// Those that it may not have.
    unknown: Vec<UnknownTarget>,
    /// The program takes its arguments as one tuple.
    tupled: bool,
    /// Arguments whose memory results take.
    donated: Vec<usize>,
    parameters: Vec<PreparedArray>,
    results: Vec<PreparedArray>,
}

#[derive(Serialize, Deserialize)]
enum PreparedModule {
    /// The program as it is, for a process that has all devices.
    Whole,
    /// A serialized module for the devices of any one process.
    Lowered(Vec<u8>),
}

#[derive(Serialize, Deserialize)]
struct PreparedArray {
    dtype: DType,
    dims: Vec<i64>,
    /// A serialized `OpSharding`.
    sharding: Vec<u8>,
}

impl<'a> Executable<'a> {
    /// Compiles a program for all devices of the job. Process 0 gives the program.
    pub fn compile(runtime: &'a Runtime, plan: Plan, mut program: Option<Program>) -> Result<Self, RuntimeError> {
        let id = runtime.next_program();
        let start = Instant::now();
        let prepared = runtime.world.from_first(&format!("program/{id}"), || {
            prepare(runtime, plan, program.as_mut().ok_or(RuntimeError::NoProgram)?)
        })?;
        let prepared_after = start.elapsed();
        let (code, format, options) = match (&prepared.module, &program) {
            (PreparedModule::Whole, Some(program)) => {
                let (code, format) = match program {
                    Program::Hlo(module) => (module.proto.encode_to_vec(), ProgramFormat::Hlo),
                    Program::Mlir(code) => (code.clone(), ProgramFormat::Mlir),
                };
                (code, format, whole_options(plan, program))
            }
            (PreparedModule::Whole, None) => return Err(RuntimeError::NoProgram),
            (PreparedModule::Lowered(module), _) => {
                let options = bridge::compile_options(plan.devices_per_process, runtime.world.limit());
                (module.clone(), ProgramFormat::Hlo, options)
            }
        };
        let options = CompileOptions { parameter_is_tupled_arguments: prepared.tupled, ..options };
        if let PreparedModule::Lowered(_) = prepared.module {
            bridge::register(runtime.client.plugin())?;
        }
        library_calls::register(runtime.client.plugin(), prepared.library_calls.iter().map(String::as_str))?;
        let compiled = runtime.client.compile(&pjrt::Program { code: &code, format }, &options.encode());
        let mut loaded = compiled.map_err(|source| match source.code() {
            Some(ErrorCode::NotFound | ErrorCode::Unimplemented) if !prepared.unknown.is_empty() => {
                RuntimeError::CustomCallRefused { source, unknown: prepared.unknown.clone() }
            }
            _ => source.into(),
        })?;
        runtime.world.barrier(&format!("compiled/{id}"))?;
        tracing::debug!(
            "prepared in {prepared_after:?}, compiled everywhere {:?} later",
            start.elapsed() - prepared_after
        );
        let parameters: Vec<GlobalArray> =
            prepared.parameters.into_iter().map(PreparedArray::decode).collect::<Result<_, _>>()?;
        let shards: Vec<Vec<i64>> = parameters
            .iter()
            .map(|parameter| parameter.sharding.shard_shape(&parameter.dims))
            .collect::<Result<_, _>>()?;
        loaded.declare_parameters(parameters.iter().map(|it| it.dtype).zip(shards.iter().map(Vec::as_slice)))?;
        let collectives = match prepared.module {
            PreparedModule::Whole => None,
            PreparedModule::Lowered(_) => Some(runtime.communicator.program(id, prepared.collectives)?),
        };
        let (replicas, partitions) = (plan.replicas as usize, plan.partitions as usize);
        let global_ids = runtime.local_device_ids();
        let places = global_ids
            .iter()
            .map(|&id| id as usize)
            .map(|id| Place { replica: id / partitions, partition: id % partitions });
        let devices = loaded.addressable_devices().iter().cloned().zip(places).collect();
        Ok(Executable {
            runtime,
            layout: JobLayout {
                replicas,
                partitions,
                devices_per_process: plan.devices_per_process as usize,
                process_index: runtime.world.process_index(),
            },
            first_device: global_ids.first().copied().unwrap_or(0),
            name: prepared.name,
            parameters,
            results: prepared.results.into_iter().map(PreparedArray::decode).collect::<Result<_, _>>()?,
            donated: prepared.donated,
            loaded,
            devices,
            collectives,
            runs: AtomicU64::new(0),
            gatherings: AtomicU64::new(0),
        })
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The program's global arguments, in flattened order.
    pub fn parameters(&self) -> &[GlobalArray] {
        &self.parameters
    }

    /// The program's global results, in flattened order.
    pub fn results(&self) -> &[GlobalArray] {
        &self.results
    }

    /// The program as the plugin holds it.
    pub fn loaded(&self) -> &LoadedExecutable {
        &self.loaded
    }

    /// Cuts global arrays into shards and loads those of this process's devices. In a program of several replicas, an
    /// array may have a leading dimension with the array of each replica; without one, all replicas get the same.
    pub fn load(&self, arrays: &[HostArray]) -> Result<Arguments, RuntimeError> {
        let replicas = self.layout.replicas;
        Arguments::load(&self.runtime.client, &self.devices, &self.parameters, &self.donated, replicas, arrays)
    }

    /// Runs the program once and waits until this process's devices are done.
    pub fn run(&self, arguments: &Arguments) -> Result<Results, RuntimeError> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let bound = self.collectives.as_ref().map(|collectives| {
            bridge::Run::begin(bridge::RunContext {
                collectives: Arc::clone(collectives),
                run,
                first_device: self.first_device,
                partitions: self.layout.partitions as u32,
            })
        });
        let launch_id = bound.as_ref().map_or(run as i32, bridge::Run::launch_id);
        let options = ExecuteOptions { launch_id, ..ExecuteOptions::default() };
        let execution = self.loaded.execute(&arguments.by_device(), &options)?;
        execution.wait()?;
        Ok(Results { buffers: execution.outputs })
    }

    /// Runs the program `steps` times and returns the last results, with the seconds that each step took here.
    pub fn run_steps(&self, arguments: &mut Arguments, steps: usize) -> Result<(Results, Vec<f64>), RuntimeError> {
        let mut seconds = Vec::with_capacity(steps);
        let mut results = Results { buffers: Vec::new() };
        for _ in 0..steps {
            arguments.renew_donated(&self.runtime.client, &self.devices)?;
            let start = Instant::now();
            results = self.run(arguments)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok((results, seconds))
    }

    /// Puts the global results together on process 0; other processes get none. In a program of several replicas,
    /// each result has a leading dimension with the array of each replica.
    pub fn gather(&self, results: &Results) -> Result<Vec<HostArray>, RuntimeError> {
        let gathering = self.gatherings.fetch_add(1, Ordering::Relaxed);
        let mut arrays = Vec::new();
        for (index, result) in self.results.iter().enumerate() {
            let of_devices = results.buffers.iter().filter_map(|buffers| buffers.get(index));
            let shards: Vec<(Place, &Buffer)> = self.devices.iter().map(|(_, place)| *place).zip(of_devices).collect();
            arrays.extend(arrays::gather(self.runtime, (gathering, index), result, &shards, self.layout)?);
        }
        Ok(arrays)
    }
}

impl StepTimes {
    /// From each process's seconds per step; `None` without steps. A step ends when its last process is done.
    pub fn of_slowest(processes: &[Vec<f64>]) -> Option<StepTimes> {
        let steps = processes.iter().map(Vec::len).min()?;
        let slowest =
            |step: usize| processes.iter().filter_map(|seconds| seconds.get(step)).copied().fold(0.0, f64::max);
        let mut seconds: Vec<f64> = (0..steps).map(slowest).collect();
        seconds.sort_by(f64::total_cmp);
        let quantile = |part: f64| seconds.get(((steps as f64 * part).ceil() as usize).max(1) - 1).copied();
        Some(StepTimes { steps, min: *seconds.first()?, median: quantile(0.5)?, p99: quantile(0.99)? })
    }
}

/// How the plugin is to compile a program for all devices of this process.
fn whole_options(plan: Plan, program: &Program) -> CompileOptions {
    let config = match program {
        Program::Hlo(module) => module.config.clone(),
        Program::Mlir(_) => ModuleConfig::default(),
    };
    CompileOptions {
        num_replicas: plan.replicas.into(),
        num_partitions: plan.partitions.into(),
        use_spmd_partitioning: plan.partitions > 1,
        use_shardy_partitioner: partition::uses_shardy(program),
        allow_spmd_sharding_propagation_to_parameters: config.allow_spmd_sharding_propagation_to_parameters,
        allow_spmd_sharding_propagation_to_output: config.allow_spmd_sharding_propagation_to_output,
        ..CompileOptions::default()
    }
}

/// Decides on process 0 how a program is run, and makes what all processes need for it.
///
/// A process that has all devices hands the program to the plugin as it is, unless it has been partitioned before or
/// needs a collective that the plugin does not have. Otherwise the program is partitioned, and its collectives become
/// calls to ours.
fn prepare(runtime: &Runtime, plan: Plan, program: &mut Program) -> Result<Prepared, RuntimeError> {
    let (replicas, partitions) = (i64::from(plan.replicas), i64::from(plan.partitions));
    if let Program::Hlo(module) = program {
        hlo::verify(module, replicas, partitions)?;
        hlo::remove_dead_code(&mut module.proto);
        hlo::groups::expand_replica_groups(&mut module.proto).map_err(lower::Error::from)?;
        let program_shape = module.proto.host_program_shape.get_or_insert_default();
        // Arguments and results travel row-major, and plugins take the program's word for it.
        program_shape.parameters.iter_mut().for_each(shape::set_row_major);
        shape::set_row_major(program_shape.result.get_or_insert_default());
    }
    let mut partitioned = partition::partition(runtime.client.plugin(), program, replicas, partitions)?;
    hlo::remove_dead_code(&mut partitioned.module.proto);
    let unknown = unknown_targets(&partitioned.module);
    let is_cpu = runtime.client.platform_name()? == "cpu";
    if is_cpu && unknown.iter().any(|target| target.on_cpu == Availability::Never) {
        return Err(RuntimeError::CustomCalls(unknown));
    }
    let mut library_calls: Vec<String> =
        custom_call_targets(&partitioned.module).filter(|_| is_cpu).map(str::to_owned).collect();
    library_calls.sort_unstable();
    library_calls.dedup();
    let devices_per_process = runtime.topology.devices_per_process();
    let lowered = lower::lower(&partitioned.module, &lower::Layout { replicas, partitions, devices_per_process });
    let was_partitioned = matches!(program, Program::Hlo(module) if partition::is_partitioned(module));
    let alone = runtime.world.process_count() == 1;
    let needs_ours = lowered.as_ref().is_ok_and(|lowered| !lowered.collectives.is_empty());
    let (module, collectives) = if alone && !was_partitioned && !needs_ours {
        (PreparedModule::Whole, Vec::new())
    } else {
        let lowered = lowered?;
        (PreparedModule::Lowered(lowered.module.proto.encode_to_vec()), lowered.collectives)
    };
    let parameters = &partitioned.module.proto.host_program_shape.parameters;
    let tupled = matches!(&parameters[..], [only] if shape::is_tuple(only));
    Ok(Prepared {
        name: partitioned.module.proto.name.clone(),
        module,
        collectives,
        library_calls,
        unknown,
        tupled,
        donated: donated_parameters(&partitioned.module.proto, tupled),
        parameters: partitioned.parameters.iter().map(PreparedArray::encode).collect::<Result<_, _>>()?,
        results: partitioned.results.iter().map(PreparedArray::encode).collect::<Result<_, _>>()?,
    })
}

/// The arguments, in flattened order, whose memory an execution may take.
fn donated_parameters(module: &proto::HloModuleProto, tupled: bool) -> Vec<usize> {
    let aliased = module.input_output_alias.entries.iter();
    let aliased = aliased.map(|entry| (entry.parameter_number, &entry.parameter_shape_index));
    let donors = module.buffer_donor.entries.iter();
    let donors = donors.map(|entry| (entry.parameter_number, &entry.parameter_shape_index));
    let mut donated: Vec<usize> = aliased
        .chain(donors)
        .filter_map(|(parameter, index)| usize::try_from(if tupled { *index.first()? } else { parameter }).ok())
        .collect();
    donated.sort_unstable();
    donated.dedup();
    donated
}

impl PreparedArray {
    fn encode(array: &partition::GlobalArg) -> Result<PreparedArray, RuntimeError> {
        let dtype = shape::dtype(&array.shape).ok_or_else(|| RuntimeError::ArrayType(shape::text(&array.shape)))?;
        Ok(PreparedArray { dtype, dims: array.shape.dimensions.clone(), sharding: array.sharding.encode_to_vec() })
    }

    fn decode(self) -> Result<GlobalArray, RuntimeError> {
        let sharding = proto::OpSharding::decode_from_slice(&self.sharding)
            .map_err(|source| RuntimeError::Malformed { what: "a sharding", source })?;
        Ok(GlobalArray { dtype: self.dtype, dims: self.dims, sharding: HloSharding::from_proto(&sharding)? })
    }
}
