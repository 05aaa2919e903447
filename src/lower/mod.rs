//! Makes a per-device program one that every process can compile for its own devices alone.
//!
//! Collectives whose groups span processes become typed custom calls ([`COLLECTIVE_TARGET`]), `partition-id` and
//! `replica-id` become [`LOGICAL_ID_TARGET`], and the groups of collectives that stay inside a process are renamed to
//! local replica ids. The result is compiled with one partition and as many replicas as a process has devices, and is
//! the same on every process: what differs (the device's global id) comes from the runtime.

mod call_sites;
mod custom_call;
mod desync;
mod flatten;
mod module;
mod order;
mod plan;
mod reduction;
pub mod replay;
mod strip;
mod transposes;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::collective::CollectiveSpec;
use crate::hlo::HloModule;
use crate::hlo::groups::GroupError;
pub use flatten::flatten_entry;
use plan::Plan;

/// The custom call that stands for a collective; its attribute `key` is [`CollectiveSpec::key`].
///
/// It has one more operand and one more result than the collective, the last ones: `u32[]`s without a meaning, which
/// keep the collectives of a device in order.
pub const COLLECTIVE_TARGET: &str = "spmd_run.collective";

/// The custom call that returns a device's replica or partition id; its attribute `kind` says which of the two.
pub const LOGICAL_ID_TARGET: &str = "spmd_run.logical_id";

/// The custom calls at the end of a program that do nothing, so that a device goes on while it waits for a collective.
pub const MARKER_TARGET: &str = "spmd_run.end";

/// How the devices of a program are spread over processes.
///
/// The device with global id `replica × partitions + partition` runs that replica and partition; a process has the
/// next `devices_per_process[process_index]` devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Replicas of the program.
    pub replicas: i64,
    /// Partitions of the program.
    pub partitions: i64,
    /// Devices of each process, in the order of process indices.
    pub devices_per_process: Vec<u32>,
}

/// A program for the devices of one process, whichever process that is.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// To be compiled with one replica for each local device and one partition.
    pub module: HloModule,
    /// What the custom calls do, in the order of their keys, which count from zero.
    pub collectives: Vec<CollectiveSpec>,
}

/// Why a program cannot run over several processes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Replicas × partitions is not the number of devices.
    #[error(
        "the program needs {needed} device(s) ({replicas} replica(s) × {partitions} partition(s)), the processes have \
         {found}"
    )]
    DeviceCount {
        /// Devices that the program needs.
        needed: i64,
        /// Replicas of the program.
        replicas: i64,
        /// Partitions of the program.
        partitions: i64,
        /// Devices of all processes together.
        found: i64,
    },
    /// One compiled program for all needs equal numbers of replicas.
    #[error(
        "process {process} has {devices} device(s), process 0 has {expected}: a program that spans processes needs the \
         same number of devices on each"
    )]
    UnevenDevices {
        /// The first process with another number of devices.
        process: usize,
        /// Its devices.
        devices: u32,
        /// The devices of process 0.
        expected: u32,
    },
    /// The participants of a collective cannot be told.
    #[error(transparent)]
    Groups(#[from] GroupError),
    /// A reduction that is none of the known ones.
    #[error(
        "{instruction}: its computation '{computation}' is none of sum, product, min, max, and, or, xor of its two \
         parameters: such a reduction cannot run over several processes"
    )]
    Reduction {
        /// The collective's name.
        instruction: String,
        /// The name of its `to_apply` computation.
        computation: String,
    },
    /// Instructions that have no meaning over several processes.
    #[error("the program cannot run over several processes: {}", .0.join("; "))]
    Unsupported(Vec<String>),
    /// The module contradicts itself.
    #[error("{instruction}: {what}")]
    Malformed {
        /// The instruction's name.
        instruction: String,
        /// What is wrong.
        what: String,
    },
}

impl Error {
    fn malformed(instruction: &str, what: impl Into<String>) -> Error {
        Error::Malformed { instruction: instruction.to_owned(), what: what.into() }
    }
}

impl Layout {
    /// The number of devices that every process has.
    fn devices_of_each(&self) -> Result<u32, Error> {
        let found = self.devices_per_process.iter().map(|&devices| i64::from(devices)).sum();
        let needed = self.replicas.saturating_mul(self.partitions);
        if needed != found || self.replicas < 1 || self.partitions < 1 {
            let (replicas, partitions) = (self.replicas, self.partitions);
            return Err(Error::DeviceCount { needed, replicas, partitions, found });
        }
        let expected = self.devices_per_process.first().copied().unwrap_or(0);
        match self.devices_per_process.iter().position(|&devices| devices != expected) {
            Some(process) => {
                let devices = self.devices_per_process[process];
                Err(Error::UnevenDevices { process, devices, expected })
            }
            None => Ok(expected),
        }
    }
}

/// Lowers a per-device program (see [`crate::partition`]) for processes that each compile it for their own devices.
pub fn lower(module: &HloModule, layout: &Layout) -> Result<Lowered, Error> {
    let local_devices = layout.devices_of_each()?;
    let mut lowered = HloModule { proto: module.proto.clone(), ..Default::default() };
    let proto = &mut lowered.proto;
    plan::refuse_unsupported(proto)?;
    strip::strip(proto);
    desync::desync(proto)?;
    transposes::before_reductions(proto);

    let mut bridged = HashMap::new();
    for at in 0..proto.computations.len() {
        let shapes = module::shapes(&proto.computations[at]);
        for position in 0..proto.computations[at].instructions.len() {
            let instruction = &proto.computations[at].instructions[position];
            let Some(plan) = plan::plan(instruction, &shapes, proto, layout, local_devices)? else { continue };
            let instruction = &mut proto.computations[at].instructions[position];
            match plan {
                Plan::Forward => custom_call::make_copy(instruction),
                Plan::Local(participants) => custom_call::make_local(instruction, participants),
                Plan::Zero => custom_call::make_zero_id(instruction),
                Plan::LogicalId(kind) => custom_call::make_logical_id(instruction, kind),
                Plan::Bridge(spec) => {
                    custom_call::make_collective(instruction, &shapes);
                    bridged.insert(instruction.id, *spec);
                }
            }
        }
    }
    let mut fresh = module::Fresh::new(proto);
    let members = call_sites::separate(proto, &mut bridged, &mut fresh)?;
    order::thread(proto, &members, &mut bridged, &mut fresh);

    let mut collectives = Vec::with_capacity(bridged.len());
    for instruction in proto.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        if let Some(mut spec) = bridged.remove(&instruction.id) {
            spec.key = collectives.len() as u32;
            spec.name = instruction.name.to_string();
            custom_call::set_key(instruction, spec.key);
            collectives.push(spec);
        }
    }
    Ok(Lowered { module: lowered, collectives })
}
