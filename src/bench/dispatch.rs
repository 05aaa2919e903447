//! What a step costs on top of what the plugin takes for it.

use super::collectives::BenchError;
use crate::hlo;
use crate::host_array::{Fill, HostArray};
use crate::runtime::{Executable, Plan, Runtime, RuntimeError, StepTimes};

/// The steps of one program.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// The program's name.
    pub program: &'static str,
    /// Steps of the C function alone, on prepared arguments.
    pub bare: StepTimes,
    /// Steps as users run them.
    pub step: StepTimes,
}

impl Dispatch {
    /// Seconds that a step takes on top of the plugin's, by the medians.
    pub fn overhead(&self) -> f64 {
        self.step.median - self.bare.median
    }
}

/// Programs without collectives, a replica for each device; `COUNT` is the number of devices.
const PROGRAMS: [(&str, &str); 2] = [
    ("empty", "HloModule empty, replica_count=COUNT\n\nENTRY main {\n  ROOT x = f32[] parameter(0)\n}\n"),
    (
        "small",
        "HloModule small, replica_count=COUNT\n\nENTRY main {\n  x = f32[32,32] parameter(0)\n  y = f32[32,32] dot(x, x), \
         lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  ROOT z = f32[32,32] add(x, y)\n}\n",
    ),
];

/// Bare steps and steps take turns of so many, so that both see the same moments of a busy machine.
const TURN: usize = 50;

/// Times `steps` steps of an empty and of a small program, after `warmup` ones. Every process gets the same figures.
pub fn dispatch(runtime: &Runtime, warmup: usize, steps: usize) -> Result<Vec<Dispatch>, BenchError> {
    let processes = runtime.world().process_count();
    let devices = runtime.topology().device_count() as u32;
    let plan = Plan { replicas: devices, partitions: 1, processes, devices_per_process: devices / processes };
    let of_program = |(name, text): (&'static str, &str)| {
        let program = hlo::load(text.replace("COUNT", &devices.to_string()).as_bytes(), name)?;
        let executable = Executable::compile(runtime, plan, Some(program))?;
        let fill = |parameter: &crate::runtime::GlobalArray| {
            HostArray::filled(Fill::Ones, 0, parameter.dtype, &parameter.dims_usize())
                .map_err(|source| RuntimeError::Argument { index: 0, source: source.into() })
        };
        let arrays: Vec<HostArray> = executable.parameters().iter().map(fill).collect::<Result<_, _>>()?;
        let mut arguments = executable.load(&arrays)?;
        executable.run_steps(&mut arguments, warmup)?;
        let (mut bare, mut step) = (Vec::with_capacity(steps), Vec::with_capacity(steps));
        while step.len() < steps {
            let turn = TURN.min(steps - step.len());
            let times = executable.loaded().time_bare(&arguments.by_device(), turn).map_err(RuntimeError::from)?;
            bare.extend(times.iter().map(|time| time.as_secs_f64()));
            step.extend(executable.run_steps(&mut arguments, turn)?.1);
        }
        let all = runtime.world().all_gather(&format!("dispatch/{name}"), (bare, step))?;
        let (bare, step): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        Ok(Dispatch {
            program: name,
            bare: StepTimes::of_slowest(&bare).ok_or(BenchError::NoSteps)?,
            step: StepTimes::of_slowest(&step).ok_or(BenchError::NoSteps)?,
        })
    };
    PROGRAMS.into_iter().map(of_program).collect()
}
