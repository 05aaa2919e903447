//! A program at each stage on its way to the plugin.

use crate::hlo::{self, HloModule, Program};
use crate::lower::Layout;
use crate::partition;
use crate::pjrt::Plugin;
use crate::runtime::{Pipeline, Plan, RuntimeError, create_client};

/// A stage on the way of a program to the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The program as it is, in HLO.
    Global,
    /// The program of one device, as XLA's partitioner leaves it.
    Partitioned,
    /// The program that each process compiles, its collectives between processes turned into custom calls.
    Lowered,
    /// What the plugin's compiler makes of what one process compiles.
    Optimized,
}

/// How a plan spreads the program's devices over processes.
pub fn layout(plan: Plan) -> Layout {
    Layout {
        replicas: plan.replicas.into(),
        partitions: plan.partitions.into(),
        devices_per_process: vec![plan.devices_per_process; plan.processes as usize],
    }
}

/// The program at a stage. Nothing is run.
///
/// # Errors
/// The program cannot be brought to that stage; of optimized programs also: the plugin does not show them.
pub fn module_at(stage: Stage, plugin: &Plugin, mut program: Program, plan: Plan) -> Result<HloModule, RuntimeError> {
    if stage == Stage::Global {
        let mut module = partition::import(plugin, &program)?;
        name_counts(&mut module, plan);
        return Ok(module);
    }
    let pipeline = Pipeline::new(plugin, &mut program, &layout(plan))?;
    match stage {
        Stage::Global | Stage::Partitioned => Ok(pipeline.partitioned.module),
        Stage::Lowered => {
            let mut module = pipeline.lowered?.module;
            module.config.replica_count = Some(plan.devices_per_process.into());
            module.config.num_partitions = Some(1);
            Ok(module)
        }
        Stage::Optimized => {
            let client = create_client(plugin, plan.devices_per_process)?;
            let (code, format) = pipeline.compile(&client, &program, plan, Vec::new())?.optimized_program()?;
            match hlo::load(&code, &format) {
                Ok(Program::Hlo(module)) => Ok(module),
                Ok(Program::Mlir(_)) => Err(RuntimeError::OptimizedForm(format)),
                Err(error) => Err(RuntimeError::OptimizedForm(format!("{format}: {error}"))),
            }
        }
    }
}

/// Has the header say what it leaves open: text without counts means one device.
pub fn name_counts(module: &mut HloModule, plan: Plan) {
    if plan.replicas > 1 {
        module.config.replica_count.get_or_insert(plan.replicas.into());
    }
    if plan.partitions > 1 {
        module.config.num_partitions.get_or_insert(plan.partitions.into());
    }
}
