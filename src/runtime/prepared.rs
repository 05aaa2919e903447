//! What the first process prepares for all, and what each one makes of it.

use buffa::Message;
use serde::{Deserialize, Serialize};

use crate::collective::CollectiveSpec;
use crate::dtype::DType;
use crate::hlo::{Program, shape};
use crate::launch::phase;
use crate::library_calls::{self, Availability, UnknownTarget};
use crate::lower;
use crate::mesh::HloSharding;
use crate::partition;
use crate::pjrt::{ErrorCode, LoadedExecutable};
use crate::proto;

use super::arrays::GlobalArray;
use super::device_list::DeviceList;
use super::native::{self, GlobalProgram};
use super::pipeline::{CompilerInput, Pipeline};
use super::{Plan, Runtime, RuntimeError, bridge, compilation};

/// What process 0 prepares for all.
#[derive(Serialize, Deserialize)]
pub struct Prepared {
    pub name: String,
    pub notes: Vec<String>,
    pub module: PreparedModule,
    pub collectives: Vec<CollectiveSpec>,
    /// The targets of custom calls that the plugin gets from us.
    library_calls: Vec<String>,
    /// Those that it may not have.
    unknown: Vec<UnknownTarget>,
    /// The program takes its arguments as one tuple.
    tupled: bool,
    /// Arguments whose memory results take. A plugin that partitions by itself tells this later, as what follows.
    donated: Vec<usize>,
    parameters: Vec<PreparedArray>,
    results: Vec<PreparedArray>,
}

#[derive(Serialize, Deserialize)]
pub enum PreparedModule {
    /// The program as it is, for a process that has all devices.
    Whole,
    /// A serialized module for the devices of any one process.
    Lowered(Vec<u8>),
    /// The program as it is, for a plugin that sees the devices of all processes.
    Global(GlobalProgram),
}

#[derive(Serialize, Deserialize)]
pub struct PreparedArray {
    dtype: DType,
    dims: Vec<i64>,
    /// A serialized `OpSharding`.
    sharding: Vec<u8>,
}

/// Decides on the first process how a program is run, and makes what all processes need for it.
pub fn prepare(
    runtime: &Runtime,
    devices: &DeviceList,
    plan: Plan,
    program: &mut Program,
) -> Result<Prepared, RuntimeError> {
    let layout = lower::Layout {
        replicas: plan.replicas.into(),
        partitions: plan.partitions.into(),
        devices_per_process: vec![plan.devices_per_process; devices.processes().len()],
    };
    if runtime.is_native {
        return prepare_native(runtime, devices, plan, program);
    }
    let pipeline = Pipeline::new(runtime.client.plugin(), program, &layout)?;
    let is_cpu = runtime.client.platform_name()? == "cpu";
    if is_cpu && pipeline.unknown.iter().any(|target| target.on_cpu == Availability::Never) {
        return Err(RuntimeError::CustomCalls(pipeline.unknown));
    }
    let tupled = pipeline.is_tupled();
    let donated = donated(pipeline.donations());
    let Pipeline { partitioned, lowered, runs_whole, notes, library_calls, unknown } = pipeline;
    let library_calls = if is_cpu { library_calls } else { Vec::new() };
    let (module, collectives) = if runs_whole {
        (PreparedModule::Whole, Vec::new())
    } else {
        let lowered = lowered?;
        (PreparedModule::Lowered(lowered.module.proto.encode_to_vec()), lowered.collectives)
    };
    Ok(Prepared {
        name: partitioned.module.proto.name.clone(),
        notes,
        module,
        collectives,
        library_calls,
        unknown,
        tupled,
        donated,
        parameters: partitioned.parameters.iter().map(PreparedArray::encode).collect::<Result<_, _>>()?,
        results: partitioned.results.iter().map(PreparedArray::encode).collect::<Result<_, _>>()?,
    })
}

/// For a plugin that sees all devices, which partitions the program itself.
fn prepare_native(
    runtime: &Runtime,
    devices: &DeviceList,
    plan: Plan,
    program: &mut Program,
) -> Result<Prepared, RuntimeError> {
    let (global, name, notes) = native::prepare_program(program, plan, devices, &runtime.topology)?;
    Ok(Prepared {
        name,
        notes,
        module: PreparedModule::Global(global),
        collectives: Vec::new(),
        library_calls: Vec::new(),
        unknown: Vec::new(),
        tupled: false,
        donated: Vec::new(),
        parameters: Vec::new(),
        results: Vec::new(),
    })
}

/// The arguments among donations, each once.
fn donated(donations: Vec<(usize, Option<usize>)>) -> Vec<usize> {
    let mut donated: Vec<usize> = donations.into_iter().map(|(argument, _)| argument).collect();
    donated.sort_unstable();
    donated.dedup();
    donated
}

/// A program on this process's devices.
pub struct Loaded {
    pub executable: LoadedExecutable,
    pub parameters: Vec<GlobalArray>,
    pub results: Vec<GlobalArray>,
    pub donated: Vec<usize>,
}

impl Prepared {
    /// Compiles for this process's devices, as the job's `id`-th program.
    pub fn load(
        &self,
        runtime: &Runtime,
        devices: &DeviceList,
        id: u64,
        plan: Plan,
        program: Option<&Program>,
    ) -> Result<Loaded, RuntimeError> {
        let plugin = runtime.client.plugin();
        phase::enter(&format!("compiling '{}'", self.name));
        let mut input = match (&self.module, program) {
            (PreparedModule::Global(global), _) => {
                let native::Compiled { executable, signature, donations } = global.compile(&runtime.client, plan)?;
                let arrays = |arrays: &[partition::GlobalArg]| -> Result<Vec<GlobalArray>, RuntimeError> {
                    arrays.iter().map(|array| PreparedArray::encode(array)?.decode()).collect()
                };
                return Ok(Loaded {
                    executable,
                    parameters: arrays(&signature.parameters)?,
                    results: arrays(&signature.results)?,
                    donated: donated(donations),
                });
            }
            (PreparedModule::Whole, Some(program)) => CompilerInput::whole(program, plan, self.tupled),
            (PreparedModule::Whole, None) => return Err(RuntimeError::NoProgram),
            (PreparedModule::Lowered(module), _) => {
                bridge::register(plugin)?;
                CompilerInput::lowered(module.clone(), plan, runtime.world.limit(), self.tupled)
            }
        };
        input.options.device_assignment = devices.assignment_on(runtime, input.options.num_partitions);
        library_calls::register(plugin, self.library_calls.iter().map(String::as_str))?;
        let executable =
            compilation::compile(runtime, devices, id, &self.name, input).map_err(|error| match error {
                RuntimeError::Pjrt(source)
                    if matches!(source.code(), Some(ErrorCode::NotFound | ErrorCode::Unimplemented))
                        && !self.unknown.is_empty() =>
                {
                    RuntimeError::CustomCallRefused { source: Box::new(source), unknown: self.unknown.clone() }
                }
                error => error,
            })?;
        let arrays = |arrays: &[PreparedArray]| arrays.iter().map(PreparedArray::decode).collect::<Result<_, _>>();
        Ok(Loaded {
            executable,
            parameters: arrays(&self.parameters)?,
            results: arrays(&self.results)?,
            donated: self.donated.clone(),
        })
    }
}

impl PreparedArray {
    fn encode(array: &partition::GlobalArg) -> Result<PreparedArray, RuntimeError> {
        let dtype = shape::dtype(&array.shape).ok_or_else(|| RuntimeError::ArrayType(shape::text(&array.shape)))?;
        Ok(PreparedArray { dtype, dims: array.shape.dimensions.clone(), sharding: array.sharding.encode_to_vec() })
    }

    fn decode(&self) -> Result<GlobalArray, RuntimeError> {
        let sharding = proto::OpSharding::decode_from_slice(&self.sharding)
            .map_err(|source| RuntimeError::Malformed { what: "a sharding", source })?;
        Ok(GlobalArray { dtype: self.dtype, dims: self.dims.clone(), sharding: HloSharding::from_proto(&sharding)? })
    }
}
