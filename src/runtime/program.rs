//! Programs that are compiled once and run on arrays that stay on the devices.

use std::sync::Arc;

use buffa::Message;

use crate::hlo::{HloModule, Program as Source};
use crate::host_array::HostArray;
use crate::partition;
use crate::pjrt::Buffer;

use super::device_list::DeviceList;
use super::{Array, ArrayError, Executable, Plan, Request, Runtime, RuntimeError, StepError};

/// A program for the devices of its mesh, as what `jax.jit` compiles. The processes that have some of them compile and run
/// the same programs in the same order; a program without a mesh runs on all devices of the job.
pub struct Program<'a> {
    executable: Executable<'a>,
}

impl<'a> Program<'a> {
    /// Compiles a program that was built ([`Builder::build`](crate::builder::Builder::build)) or parsed
    /// ([`hlo::parse`](crate::hlo::parse())).
    ///
    /// # Errors
    /// This process has no device of its mesh, others have more or fewer of them, the processes have different programs, or XLA
    /// refuses it.
    pub fn compile(runtime: &'a Runtime, module: HloModule) -> Result<Program<'a>, RuntimeError> {
        Program::from_source(runtime, Source::Hlo(module))
    }

    /// Compiles what [`hlo::load`](crate::hlo::load()) read, HLO or StableHLO, for all devices of the job.
    ///
    /// # Errors
    /// As of [`Program::compile`].
    pub fn from_source(runtime: &'a Runtime, mut source: Source) -> Result<Program<'a>, RuntimeError> {
        let devices = devices_of(runtime, &mut source)?;
        same_everywhere(&devices, &source)?;
        let counts = partition::program_counts(&source);
        let count = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok());
        let plan = Plan::new(&Request {
            program_replicas: count(counts.replicas),
            program_partitions: count(counts.partitions),
            processes: devices.processes().len() as u32,
            devices_per_process: Some(devices.per_process()?),
            ..Request::default()
        })?;
        if plan.replicas > 1 {
            return Err(RuntimeError::Replicas(plan.replicas));
        }
        Ok(Program { executable: Executable::compile_on(runtime, devices, plan, Some(source))? })
    }

    /// The compiled program, with the shapes and shardings of its arguments and results.
    pub fn executable(&self) -> &Executable<'a> {
        &self.executable
    }

    /// The array `whole`, which every process has, cut as the program's parameter `index` is: for programs that come with
    /// shardings of their own.
    ///
    /// # Errors
    /// There is no such parameter, the array is of another type or shape, or the devices have no room.
    pub fn argument(&self, index: usize, whole: &HostArray) -> Result<Array, ArrayError> {
        let parameters = self.executable.parameters();
        let parameter = parameters
            .get(index)
            .ok_or(RuntimeError::ArgumentCount { expected: parameters.len(), given: index + 1 })?;
        if (whole.dtype(), &whole.dims_i64()) != (parameter.dtype, &parameter.dims) {
            let (given, expected) = (whole.shape_text(), parameter.shape_text());
            return Err(RuntimeError::Step { index, source: StepError::Shape { given, expected } }.into());
        }
        let devices = Arc::clone(self.executable.device_list());
        Array::cut(self.executable.runtime(), whole, parameter.sharding.clone(), devices)
    }

    /// Starts the program and returns its results, which need not be there yet: the process can do something else until it reads
    /// them ([`Array::to_host`], [`Array::block_until_ready`]), or run a program on them. Where the collectives are ours, as on
    /// CPUs over several processes, the run before it on the same devices is waited for. What takes microseconds the CPU plugin
    /// computes before it returns.
    ///
    /// Arguments lie on the devices as the program's parameters do; those that it was built to take over
    /// ([`Builder::donate`](crate::builder::Builder::donate)) cannot be used again.
    ///
    /// # Errors
    /// An argument is of another shape or sharding than the parameter or was given away before. When a device or another process
    /// fails later, whoever reads the results is told, or the next run that waits, or [`Runtime::shutdown`].
    pub fn run(&self, arguments: &[&Array]) -> Result<Vec<Array>, RuntimeError> {
        let parameters = self.executable.parameters();
        if arguments.len() != parameters.len() {
            return Err(RuntimeError::ArgumentCount { expected: parameters.len(), given: arguments.len() });
        }
        let list = self.executable.device_list();
        for (index, (argument, parameter)) in arguments.iter().zip(parameters).enumerate() {
            let wrong = |source| RuntimeError::Step { index, source };
            if (argument.dtype(), argument.dims()) != (parameter.dtype, &parameter.dims) {
                return Err(wrong(StepError::Shape { given: argument.shape_text(), expected: parameter.shape_text() }));
            }
            if argument.devices() != list.ids() {
                let (given, expected) = (argument.devices().to_vec(), list.ids().to_vec());
                return Err(wrong(StepError::Devices { given, expected }));
            }
            if *argument.sharding() != parameter.sharding {
                let (given, expected) = (argument.sharding().to_string(), parameter.sharding.to_string());
                return Err(wrong(StepError::Sharding { given, expected }));
            }
            if argument.is_donated()? {
                return Err(wrong(StepError::Donated));
            }
        }
        let devices = self.executable.device_ids();
        let on_device = |&device: &usize| arguments.iter().map(|argument| argument.buffer(device)).collect();
        let buffers: Option<Vec<Vec<&Buffer>>> = devices.iter().map(on_device).collect();
        let buffers = buffers.ok_or(RuntimeError::OtherRuntime)?;
        let results = self.executable.start(&buffers)?;
        let mut shards: Vec<Vec<(usize, Buffer)>> = self.executable.results().iter().map(|_| Vec::new()).collect();
        for (device, buffers) in devices.into_iter().zip(results) {
            for (shards, buffer) in shards.iter_mut().zip(buffers) {
                shards.push((device, buffer));
            }
        }
        let arrays = self.executable.results().iter().zip(shards);
        let array = |result: &super::GlobalArray, shards| {
            Array::of_result(result.dtype, result.dims.clone(), result.sharding.clone(), Arc::clone(list), shards)
        };
        Ok(arrays.map(|(result, shards)| array(result, shards)).collect())
    }
}

/// The devices that a program is for: those of its assignment, which is then taken out, or all.
fn devices_of(runtime: &Runtime, source: &mut Source) -> Result<Arc<DeviceList>, RuntimeError> {
    let Source::Hlo(module) = source else { return Ok(Arc::clone(&runtime.devices)) };
    let Some(assignment) = module.proto.device_assignment.take() else { return Ok(Arc::clone(&runtime.devices)) };
    let assigned = assignment.computation_devices.iter().flat_map(|partition| &partition.replica_device_ids);
    let mut ids: Vec<u32> = assigned.filter_map(|&id| u32::try_from(id).ok()).collect();
    ids.sort_unstable();
    runtime.device_list(&ids)
}

/// Checks that every process has the same program.
fn same_everywhere(devices: &DeviceList, source: &Source) -> Result<(), RuntimeError> {
    let world = devices.world();
    if devices.processes().len() == 1 {
        return Ok(());
    }
    let bytes = match source {
        Source::Hlo(module) => module.proto.encode_to_vec(),
        Source::Mlir(bytes) => bytes.clone(),
    };
    let hash = blake3::hash(&bytes).to_hex();
    let fact = format!("{} bytes, BLAKE3 {}", bytes.len(), &hash[..16]);
    let number = devices.coming_program();
    let name = format!("program/{number}/same");
    match world.agree(&name, &[(format!("program {number}"), fact)]) {
        Err(RuntimeError::Disagreement(disagreement)) => {
            let difference = world.program_difference(&name, &disagreement, &bytes)?;
            Err(RuntimeError::OtherProgram(format!("{disagreement}\n{difference}")))
        }
        outcome => outcome,
    }
}
