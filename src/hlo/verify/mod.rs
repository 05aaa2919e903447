//! Checks before a module reaches a plugin.
//!
//! XLA trusts its input in many places and aborts the process on a bad one. What passes here keeps the promises that it
//! takes for granted: references resolve and point backwards, every instruction has the shape that follows from its
//! operands, computations take what they are given, collectives and shardings name the devices that are there. The rules
//! are those of XLA's shape inference and its own verifier; layouts and the dynamic sizes within bounds are left to it.

mod algebra;
mod calls;
mod collectives;
mod contraction;
mod dims;
mod elementwise;
mod error;
mod gather;
mod module;
mod movement;
mod opcodes;
mod reduction;
mod sharding;
mod site;
mod structure;
#[cfg(test)]
mod tests;
mod transfers;
mod types;

use std::collections::{HashMap, HashSet};

pub use error::VerifyError;
use site::Site;

use super::HloModule;
use super::opcode::Opcode;
use crate::proto::{HloComputationProto, HloInstructionProto, ShapeProto};

/// A broken rule; the caller adds where.
type Check = Result<(), String>;

/// Instructions by their ids.
type Instructions<'m> = HashMap<i64, &'m HloInstructionProto, foldhash::fast::RandomState>;

/// Leaves the function with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
use ensure;

/// What a checked computation takes and gives.
struct Signature<'a> {
    computation: &'a HloComputationProto,
    /// In the order of their numbers.
    parameters: Vec<&'a HloInstructionProto>,
    result: &'a ShapeProto,
    /// A parameter that an instruction is ordered after by a control dependency.
    control_parameter: Option<&'a HloInstructionProto>,
}

/// Checks that a module may be handed to a plugin, to be run by `replicas` × `partitions` devices.
///
/// Computations must stand before their callers and instructions before their users, as XLA itself writes them. What
/// an opcode that this project does not know makes of its operands is not checked.
///
/// # Errors
/// The first rule that the module breaks, and where.
pub fn verify(module: &HloModule, replicas: i64, partitions: i64) -> Result<(), VerifyError> {
    let proto = &module.proto;
    let source = module.source.as_deref();
    let is_scheduled = module.config.is_scheduled || proto.schedule.is_set();
    let mut done: HashMap<i64, Signature> = HashMap::new();
    let mut names = HashSet::with_hasher(foldhash::fast::RandomState::default());
    for computation in &proto.computations {
        let of_computation = |message| VerifyError::of_computation(source, computation, message);
        let mut seen = Instructions::with_capacity_and_hasher(computation.instructions.len(), Default::default());
        // XLA counts with the lower half of an id.
        let mut local_ids = HashSet::with_capacity_and_hasher(seen.capacity(), foldhash::fast::RandomState::default());
        for instruction in &computation.instructions {
            let at = |message| VerifyError::of_instruction(source, computation, instruction, message);
            let site = Site::resolve(computation, instruction, &seen, &done).map_err(at)?;
            opcodes::check(&site, replicas, partitions).map_err(at)?;
            if !is_scheduled {
                opcodes::check_order(&site).map_err(at)?;
            }
            if !names.insert(instruction.name.as_str()) {
                return Err(at("its name belongs to another instruction too".to_owned()));
            }
            if !local_ids.insert(instruction.id as i32) {
                return Err(at(format!("the id {} belongs to another instruction too", instruction.id)));
            }
            seen.insert(instruction.id, instruction);
        }
        let signature = module::signature(computation, &seen).map_err(of_computation)?;
        if done.insert(computation.id, signature).is_some() {
            return Err(of_computation(format!("the id {} belongs to another computation too", computation.id)));
        }
    }
    module::check(proto, &done, partitions).map_err(VerifyError::of_module)
}

/// Checks one instruction by the rules of [`verify`], given what its ids refer to.
///
/// # Errors
/// The rule that it breaks.
pub(crate) fn verify_instruction<'m>(
    instruction: &'m HloInstructionProto,
    operands: Vec<&'m HloInstructionProto>,
    called: &[&'m HloComputationProto],
    partitions: i64,
) -> Check {
    let signatures = called.iter().map(|computation| {
        let ids = computation.instructions.iter().map(|instruction| (instruction.id, instruction));
        module::signature(computation, &ids.collect())
    });
    let signatures: Vec<Signature> = signatures.collect::<Result<_, _>>()?;
    let opcode = Opcode::from_name(&instruction.opcode);
    let called = signatures.iter().collect();
    let site = Site { instruction, opcode, operands, control_predecessors: Vec::new(), called };
    opcodes::check(&site, 1, partitions)
}
