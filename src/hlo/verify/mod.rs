//! Checks before a module reaches a plugin.
//!
//! XLA trusts its input in many places and aborts the process on a bad one. What passes here keeps the promises that it
//! takes for granted: references resolve and point backwards, counts and shapes agree, collectives name devices that are
//! there. It is no full verifier: what XLA itself refuses with an error may pass.

mod calls;
mod collectives;
mod dims;
mod shapes;
mod structure;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::HloModule;
use crate::proto::{HloComputationProto, HloInstructionProto, ShapeProto};

/// A rule of HLO that a module breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", place(.computation, .instruction))]
pub struct VerifyError {
    /// The computation, empty if the module as a whole is meant.
    pub computation: String,
    /// The instruction, empty if the computation as a whole is meant.
    pub instruction: String,
    /// What is wrong.
    pub message: String,
}

fn place(computation: &str, instruction: &str) -> String {
    match (computation, instruction) {
        ("", _) => String::new(),
        (computation, "") => format!("computation '{computation}': "),
        (computation, instruction) => format!("instruction '{instruction}' of '{computation}': "),
    }
}

/// A broken rule; the caller adds where.
type Check = Result<(), String>;

/// Leaves the function with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
use ensure;

/// Checks that a module may be handed to a plugin, to be run by `replicas` × `partitions` devices.
///
/// # Errors
/// The first rule that the module breaks, and where.
pub fn verify(module: &HloModule, replicas: i64, partitions: i64) -> Result<(), VerifyError> {
    let error = |computation: &str, instruction: &str, message| VerifyError {
        computation: computation.to_owned(),
        instruction: instruction.to_owned(),
        message,
    };
    let proto = &module.proto;
    let mut done: HashMap<i64, Signature> = HashMap::new();
    for computation in &proto.computations {
        let name = computation.name.as_str();
        let mut seen = HashMap::with_capacity(computation.instructions.len());
        for instruction in &computation.instructions {
            let site = Site::resolve(computation, instruction, &seen, &done)
                .map_err(|message| error(name, &instruction.name, message))?;
            site.check(replicas, partitions).map_err(|message| error(name, &instruction.name, message))?;
            if seen.insert(instruction.id, instruction).is_some() {
                let message = format!("the id {} belongs to another instruction too", instruction.id);
                return Err(error(name, &instruction.name, message));
            }
        }
        let signature = structure::signature(computation, &seen).map_err(|message| error(name, "", message))?;
        if done.insert(computation.id, signature).is_some() {
            return Err(error(name, "", format!("the id {} belongs to another computation too", computation.id)));
        }
    }
    structure::check_module(proto, &done).map_err(|message| error("", "", message))
}

/// What a checked computation takes and gives.
struct Signature<'a> {
    computation: &'a HloComputationProto,
    /// In the order of their numbers.
    parameters: Vec<&'a HloInstructionProto>,
    result: &'a ShapeProto,
}

/// An instruction and what it refers to.
struct Site<'a, 'm> {
    instruction: &'m HloInstructionProto,
    operands: Vec<&'m HloInstructionProto>,
    called: Vec<&'a Signature<'m>>,
}

impl<'a, 'm> Site<'a, 'm> {
    /// Looks up what the instruction refers to among the instructions before it and the computations before its own,
    /// so that nothing that resolves can be part of a cycle.
    fn resolve(
        computation: &'m HloComputationProto,
        instruction: &'m HloInstructionProto,
        seen: &HashMap<i64, &'m HloInstructionProto>,
        done: &'a HashMap<i64, Signature<'m>>,
    ) -> Result<Site<'a, 'm>, String> {
        let find = |what: &str, id: &i64| {
            seen.get(id).copied().ok_or_else(|| {
                match computation.instructions.iter().find(|instruction| instruction.id == *id) {
                    Some(other) => format!("its {what} '{}' stands after it", other.name),
                    None => format!("its {what} has the id {id}, which no instruction of the computation has"),
                }
            })
        };
        let operands = instruction.operand_ids.iter().map(|id| find("operand", id)).collect::<Result<_, _>>()?;
        instruction.control_predecessor_ids.iter().try_for_each(|id| find("control predecessor", id).map(drop))?;
        let called = instruction.called_computation_ids.iter().map(|id| {
            done.get(id).ok_or_else(|| match *id == computation.id {
                true => "it calls its own computation, and XLA has no recursion".to_owned(),
                false => format!("it calls the computation with the id {id}, which does not stand before this one"),
            })
        });
        Ok(Site { instruction, operands, called: called.collect::<Result<_, _>>()? })
    }

    fn check(&self, replicas: i64, partitions: i64) -> Check {
        structure::check_instruction(self)?;
        shapes::check(self)?;
        collectives::check(self, replicas, partitions)
    }

    fn shape(&self) -> &'m ShapeProto {
        &self.instruction.shape
    }

    /// The shape of an operand; [`structure::check_instruction`] has seen that there are enough of them, so a missing
    /// one reads as an empty shape.
    fn operand(&self, index: usize) -> &'m ShapeProto {
        static NONE: std::sync::LazyLock<ShapeProto> = std::sync::LazyLock::new(ShapeProto::default);
        self.operands.get(index).map_or(&NONE, |operand| &operand.shape)
    }
}
