//! A program that is compiled for a job's devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;

use crate::collective::ProgramCollectives;
use crate::hlo::Program;
use crate::host_array::HostArray;
use crate::launch::phase;
use crate::pjrt::{Buffer, Device, ExecuteOptions, LoadedExecutable};
use crate::trace;

use super::arrays::{self, Arguments, GlobalArray, JobLayout, Place};
use super::device_list::DeviceList;
use super::flight::Flight;
use super::prepared::{Loaded, PreparedModule, prepare};
use super::{Plan, Runtime, RuntimeError, bridge};

/// A program compiled for the devices of a job. Every process holds one, and all call it in the same order.
pub struct Executable<'a> {
    runtime: &'a Runtime,
    /// The same on every process.
    id: u64,
    layout: JobLayout,
    /// The number in the program of each of this process's devices.
    logical_ids: Arc<[u32]>,
    /// Which of this process's devices run the program, in the order of `devices`.
    local_devices: Arc<[u32]>,
    name: String,
    notes: Vec<String>,
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

impl Results {
    /// Copies the results of this process's devices to host memory: `[device][result]`, row-major.
    pub fn to_host(&self) -> Result<Vec<Vec<Vec<u8>>>, RuntimeError> {
        let of_device = |buffers: &Vec<Buffer>| buffers.iter().map(|buffer| Ok(buffer.to_host()?)).collect();
        self.buffers.iter().map(of_device).collect()
    }
}

/// How long the steps of a run took, each until its last process was done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepTimes {
    /// Steps that were timed.
    pub steps: usize,
    /// Seconds of the fastest one.
    #[serde(rename = "min_seconds")]
    pub min: f64,
    /// Seconds of the median one.
    #[serde(rename = "median_seconds")]
    pub median: f64,
    /// Seconds that 99 of 100 steps did not exceed.
    #[serde(rename = "p99_seconds")]
    pub p99: f64,
}

impl<'a> Executable<'a> {
    /// Compiles a program for all devices of the job. Process 0 gives the program.
    pub fn compile(runtime: &'a Runtime, plan: Plan, program: Option<Program>) -> Result<Self, RuntimeError> {
        Executable::compile_on(runtime, Arc::clone(&runtime.devices), plan, program)
    }

    /// As [`compile`](Self::compile), for some devices. Only processes that have some of them call it, and the first of these
    /// gives the program.
    pub(super) fn compile_on(
        runtime: &'a Runtime,
        devices: Arc<DeviceList>,
        plan: Plan,
        mut program: Option<Program>,
    ) -> Result<Self, RuntimeError> {
        let id = devices.next_program();
        let world = devices.world();
        let start = Instant::now();
        let is_first = runtime.process_index() == world.first();
        let phase = trace::phase(if is_first { "prepare" } else { "wait for the first process to prepare" });
        let prepared = world.from_first(&format!("program/{id}"), || {
            prepare(runtime, &devices, plan, program.as_mut().ok_or(RuntimeError::NoProgram)?)
        })?;
        drop(phase);
        let prepared_after = start.elapsed();
        if let Some(recorder) = trace::recorder() {
            recorder.name_program(id as u32, &prepared.name);
        }
        let phase = trace::phase("compile");
        let Loaded { executable: mut loaded, parameters, results, donated } =
            prepared.load(runtime, &devices, id, plan, program.as_ref())?;
        drop(phase);
        phase::enter(&format!("running '{}'", prepared.name));
        let phase = trace::phase("wait until all have compiled");
        world.barrier(&format!("compiled/{id}"))?;
        drop(phase);
        tracing::debug!(
            "prepared in {prepared_after:?}, compiled everywhere {:?} later",
            start.elapsed() - prepared_after
        );
        let shards: Vec<Vec<i64>> = parameters
            .iter()
            .map(|parameter| parameter.sharding.shard_shape(&parameter.dims))
            .collect::<Result<_, _>>()?;
        loaded.declare_parameters(parameters.iter().map(|it| it.dtype).zip(shards.iter().map(Vec::as_slice)))?;
        let collectives = match prepared.module {
            PreparedModule::Whole | PreparedModule::Global(_) => None,
            PreparedModule::Lowered(_) => Some(runtime.communicator.program(id, devices.of_job(prepared.collectives))?),
        };
        let (replicas, partitions) = (plan.replicas as usize, plan.partitions as usize);
        let Here { devices: of_program, local_devices, logical_ids } = here(runtime, &devices, &loaded, partitions)?;
        Ok(Executable {
            runtime,
            id,
            layout: JobLayout {
                replicas,
                partitions,
                device_list: devices,
                process_index: runtime.world.process_index(),
            },
            logical_ids,
            local_devices,
            name: prepared.name,
            notes: prepared.notes,
            parameters,
            results,
            donated,
            loaded,
            devices: of_program,
            collectives,
            runs: AtomicU64::new(0),
            gatherings: AtomicU64::new(0),
        })
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the user should know of how the program was taken, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
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

    /// The runtime that it was compiled by.
    pub(super) fn runtime(&self) -> &'a Runtime {
        self.runtime
    }

    /// Global ids of this process's devices, in the order in which they take arguments.
    pub(super) fn device_ids(&self) -> Vec<usize> {
        let ids = self.layout.device_list.ids();
        let places = self.devices.iter().map(|(_, place)| self.layout.number(*place));
        places.filter_map(|number| ids.get(number)).map(|&id| id as usize).collect()
    }

    /// The devices of all processes that it runs on.
    pub(super) fn device_list(&self) -> &Arc<DeviceList> {
        &self.layout.device_list
    }

    /// Cuts global arrays into shards and loads those of this process's devices. In a program of several replicas, an
    /// array may have a leading dimension with the array of each replica; without one, all replicas get the same.
    pub fn load(&self, arrays: &[HostArray]) -> Result<Arguments, RuntimeError> {
        let replicas = self.layout.replicas;
        let _phase = trace::phase("load arguments");
        Arguments::load(&self.runtime.client, &self.devices, &self.parameters, &self.donated, replicas, arrays)
    }

    /// Loads the shards of this process's devices, `[device][argument]` in the order of
    /// [`Runtime::local_device_ids`], without the global arrays that they are of.
    pub fn load_shards(&self, shards: &[Vec<HostArray>]) -> Result<Arguments, RuntimeError> {
        let _phase = trace::phase("load arguments");
        Arguments::load_shards(&self.runtime.client, &self.devices, &self.parameters, &self.donated, shards)
    }

    /// Runs the program once and waits until this process's devices are done.
    pub fn run(&self, arguments: &Arguments) -> Result<Results, RuntimeError> {
        let (flight, buffers) = self.begin(&arguments.by_device())?;
        flight.finish()?;
        Ok(Results { buffers })
    }

    /// Starts the program once on these buffers, `[device][argument]`, and returns those of its results, `[device][result]`,
    /// which carry what goes wrong later.
    pub(super) fn start(&self, arguments: &[Vec<&Buffer>]) -> Result<Vec<Vec<Buffer>>, RuntimeError> {
        let (flight, buffers) = self.begin(arguments)?;
        self.runtime.flights.add(flight);
        Ok(buffers)
    }

    fn begin(&self, arguments: &[Vec<&Buffer>]) -> Result<(Flight, Vec<Vec<Buffer>>), RuntimeError> {
        self.runtime.flights.make_way(&self.local_devices, self.collectives.is_some())?;
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        phase::step(run + 1);
        let bound = self.collectives.as_ref().map(|collectives| {
            bridge::Run::begin(bridge::RunContext {
                collectives: Arc::clone(collectives),
                run,
                logical_ids: Arc::clone(&self.logical_ids),
                partitions: self.layout.partitions as u32,
            })
        });
        let launch_id = bound.as_ref().map_or(run as i32, bridge::Run::launch_id);
        let options = ExecuteOptions { launch_id, ..ExecuteOptions::default() };
        let start = trace::recorder().map(|recorder| (recorder, trace::now()));
        let mut execution = self.loaded.execute(arguments, &options)?;
        let flight = Flight::new(&mut execution, Arc::clone(&self.local_devices), bound, (self.id as u32, run), start)?;
        Ok((flight, execution.outputs))
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

    /// Puts the global results together on process 0, or the first one that takes part; other processes get none. In a
    /// program of several replicas, each result has a leading dimension with the array of each replica.
    pub fn gather(&self, results: &Results) -> Result<Vec<HostArray>, RuntimeError> {
        let _phase = trace::phase("gather results");
        let gathering = self.gatherings.fetch_add(1, Ordering::Relaxed);
        let mut arrays = Vec::new();
        for (index, result) in self.results.iter().enumerate() {
            let of_devices = results.buffers.iter().filter_map(|buffers| buffers.get(index));
            let shards: Vec<(Place, &Buffer)> = self.devices.iter().map(|(_, place)| *place).zip(of_devices).collect();
            arrays.extend(arrays::gather(self.runtime, (gathering, index), result, &shards, &self.layout)?);
        }
        Ok(arrays)
    }
}

/// The devices of this process in a program, as the fields of [`Executable`] of these names.
struct Here {
    devices: Vec<(Device, Place)>,
    local_devices: Arc<[u32]>,
    logical_ids: Arc<[u32]>,
}

fn here(
    runtime: &Runtime,
    list: &DeviceList,
    loaded: &LoadedExecutable,
    partitions: usize,
) -> Result<Here, RuntimeError> {
    let local = runtime.local_device_ids();
    let (mut devices, mut local_devices) = (Vec::new(), Vec::new());
    for device in loaded.addressable_devices() {
        let id = runtime.global_id(device).ok_or(RuntimeError::OtherRuntime)?;
        let number = list.partition_of(id).ok_or(RuntimeError::OtherRuntime)?;
        devices.push((device.clone(), Place { replica: number / partitions, partition: number % partitions }));
        local_devices.extend(local.iter().position(|own| *own == id).map(|place| place as u32));
    }
    let logical_ids = local.iter().map(|id| list.partition_of(*id).unwrap_or_default() as u32).collect();
    Ok(Here { devices, local_devices: local_devices.into(), logical_ids })
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
