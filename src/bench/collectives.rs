//! Collectives of growing size, inside compiled programs and on the engine alone.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::data::Numbers;
use super::op::{Case, Op};
use super::split::{Split, SplitError};
use crate::collective::ReduceOp;
use crate::dtype::DType;
use crate::hlo;
use crate::host_array::HostArray;
use crate::runtime::{Executable, Plan, Runtime, RuntimeError, StepTimes, WorldError};

/// What is measured; the same on every process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The collectives, one after the other.
    pub ops: Vec<Op>,
    /// The first size in bytes.
    pub begin: usize,
    /// No size is larger than this.
    pub end: usize,
    /// Each size is this many times the one before it.
    pub factor: usize,
    /// The element type.
    pub dtype: DType,
    /// How operands are combined.
    pub reduction: ReduceOp,
    /// Timed steps of each case; by default as many as its size leaves time for.
    pub iterations: Option<usize>,
    /// Steps before those that are timed.
    pub warmup: usize,
    /// Whether results are compared with what they must be.
    pub check: bool,
    /// Which devices form groups.
    pub split: Split,
    /// How each case is measured.
    pub ways: Vec<Way>,
}

/// What carries a collective out when it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// A compiled program that the plugin runs: what users get.
    Program,
    /// Calls of the engine by threads that stand for devices, without the plugin.
    Engine,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Program => "program",
            Way::Engine => "engine",
        })
    }
}

/// Settings that make no sense.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SettingsError {
    #[error("the first size, {begin} bytes, is larger than the last one, {end}")]
    Order { begin: usize, end: usize },
    #[error("{size} bytes are no whole number of {dtype} elements, of {} bytes each", dtype.size())]
    PartOfElement { size: usize, dtype: DType },
    #[error("{0} collectives are not measured: take a type that has whole numbers and fills bytes")]
    DType(DType),
    #[error("{reduction} is not defined for {dtype}")]
    Reduction { reduction: ReduceOp, dtype: DType },
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error("{size} bytes on each of {devices} devices need about {needed} bytes of memory, this host has {memory}")]
    Memory { size: usize, devices: u32, needed: u128, memory: u64 },
}

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BenchError {
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error("the program that is measured cannot be read: {0}")]
    Program(#[from] hlo::LoadError),
    #[error("no step was timed")]
    NoSteps,
}

impl From<WorldError> for BenchError {
    fn from(error: WorldError) -> BenchError {
        BenchError::Runtime(error.into())
    }
}

/// What a case took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// How it was measured.
    pub way: Way,
    /// The time of one step, each until the last process is done.
    pub times: StepTimes,
    /// Bytes per second: size over median time.
    pub algbw: f64,
    /// `algbw` times [`busbw_factor`](crate::collective::CollectiveKind::busbw_factor).
    pub busbw: f64,
    /// Elements of all ranks' results in the last step that are not what they must be; `None` if not checked.
    pub wrong: Option<u64>,
}

/// What an operand and a result take, in multiples of the larger one: both, a result of the step before, and a copy.
const COPIES: u128 = 4;

impl Settings {
    /// Checks that the settings fit a job of `devices` devices, of which this host has `local_devices`.
    pub fn check(&self, devices: u32, local_devices: u32) -> Result<(), SettingsError> {
        let &Settings { begin, end, dtype, reduction, .. } = self;
        if !Numbers::supports(dtype) {
            return Err(SettingsError::DType(dtype));
        }
        if self.ops.iter().any(|op| op.reduces()) && !reduction.supports(dtype) {
            return Err(SettingsError::Reduction { reduction, dtype });
        }
        if begin > end {
            return Err(SettingsError::Order { begin, end });
        }
        if !begin.is_multiple_of(dtype.size()) || begin == 0 {
            return Err(SettingsError::PartOfElement { size: begin, dtype });
        }
        self.split.groups(devices)?;
        let largest = self.sizes().last().unwrap_or(begin);
        let needed = largest as u128 * u128::from(local_devices) * COPIES;
        let memory = rustix::system::sysinfo();
        let memory = (memory.totalram as u64).saturating_mul(memory.mem_unit.into());
        if needed > memory.into() {
            return Err(SettingsError::Memory { size: largest, devices: local_devices, needed, memory });
        }
        Ok(())
    }

    /// Sizes in bytes, growing.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let (factor, end) = (self.factor.max(2), self.end);
        std::iter::successors(Some(self.begin.max(1)), move |size| size.checked_mul(factor))
            .take_while(move |&size| size <= end)
    }

    /// One collective in all sizes.
    ///
    /// # Errors
    /// The split does not fit the devices.
    pub fn cases(&self, op: Op, devices: u32) -> Result<Vec<Case>, SplitError> {
        let groups = self.split.groups(devices)?;
        Ok(self.sizes().map(|size| Case::new(op, self.dtype, self.reduction, size, groups.clone())).collect())
    }

    /// Timed steps of a case: 20 as in nccl-tests, and more of small ones, whose times vary most.
    pub fn iterations(&self, case: &Case) -> usize {
        self.iterations.unwrap_or_else(|| ((256 << 20) / case.size()).clamp(20, 1000))
    }
}

/// Measures cases on the devices of a job. Every process measures the same ones in the same order.
pub struct Collectives<'a> {
    runtime: &'a Runtime,
    settings: &'a Settings,
    measured: usize,
}

impl<'a> Collectives<'a> {
    /// Measurements with these settings.
    pub fn new(runtime: &'a Runtime, settings: &'a Settings) -> Collectives<'a> {
        Collectives { runtime, settings, measured: 0 }
    }

    /// Measures one case in one way; every process gets the same.
    pub fn measure(&mut self, case: &Case, way: Way) -> Result<Measurement, BenchError> {
        let index = self.measured;
        self.measured += 1;
        let (seconds, results) = match way {
            Way::Program => self.in_program(case)?,
            Way::Engine => self.on_engine(case)?,
        };
        let wrong = self.settings.check.then(|| {
            let found = self.runtime.local_device_ids().into_iter().zip(&results);
            found.map(|(device, result)| case.count_wrong(device, result)).sum()
        });
        let all = self.runtime.world().all_gather(&format!("measured/{index}"), (seconds, wrong))?;
        let (seconds, wrong): (Vec<Vec<f64>>, Vec<Option<u64>>) = all.into_iter().unzip();
        let times = StepTimes::of_slowest(&seconds).ok_or(BenchError::NoSteps)?;
        let algbw = case.size() as f64 / times.median;
        let busbw = algbw * case.spec().kind.busbw_factor(case.ranks());
        Ok(Measurement { way, times, algbw, busbw, wrong: wrong.into_iter().sum() })
    }

    /// What each local device puts in.
    fn operands(&self, case: &Case) -> Result<Vec<HostArray>, RuntimeError> {
        let operand =
            |device| case.operand(device).map_err(|source| RuntimeError::Argument { index: 0, source: source.into() });
        self.runtime.local_device_ids().into_iter().map(operand).collect()
    }

    fn in_program(&self, case: &Case) -> Result<(Vec<f64>, Vec<Vec<u8>>), BenchError> {
        let (world, devices) = (self.runtime.world(), self.runtime.local_device_ids().len());
        let plan = Plan {
            replicas: case.devices() as u32,
            partitions: 1,
            processes: world.process_count(),
            devices_per_process: devices as u32,
        };
        let program = hlo::load(case.program().as_bytes(), case.op.name())?;
        let executable = Executable::compile(self.runtime, plan, Some(program))?;
        let shards: Vec<Vec<HostArray>> = self.operands(case)?.into_iter().map(|operand| vec![operand]).collect();
        let mut arguments = executable.load_shards(&shards)?;
        drop(shards);
        executable.run_steps(&mut arguments, self.settings.warmup)?;
        let (results, seconds) = executable.run_steps(&mut arguments, self.settings.iterations(case))?;
        let results = if self.settings.check { results.to_host()? } else { Vec::new() };
        Ok((seconds, results.into_iter().flatten().collect()))
    }

    fn on_engine(&self, case: &Case) -> Result<(Vec<f64>, Vec<Vec<u8>>), RuntimeError> {
        const RUN: u64 = 0;
        let spec = case.spec();
        let key = spec.key;
        let collectives = self.runtime.collectives(vec![spec])?;
        let operands = self.operands(case)?.into_iter().map(|operand| vec![operand.into_data()]).collect::<Vec<_>>();
        let warmup = self.settings.warmup;
        let repeated = collectives.repeat(RUN, key, warmup + self.settings.iterations(case), &operands)?;
        let seconds = repeated.times.iter().skip(warmup).map(|time| time.as_secs_f64()).collect();
        Ok((seconds, repeated.results.into_iter().flatten().collect()))
    }
}
