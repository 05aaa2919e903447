//! Puts the computations of fusions back to where they came from.

use std::collections::{HashMap, HashSet};

use crate::lower::module::Fresh;
use crate::proto::{HloComputationProto, HloInstructionCommon, HloInstructionProto, HloModuleProto, InlineList};

/// Replaces the calls of these computations by what they compute, where each has one call only, as compilers leave it.
/// The module must be verified: callees stand before their callers. It never grows.
///
/// XLA's passes trust scalar computations, such as that of `map`, to hold no calls.
pub(super) fn inline(module: &mut HloModuleProto, mut callees: HashSet<i64>, fresh: &mut Fresh) {
    let mut called = HashSet::new();
    for callee in module.computations.iter().flat_map(|it| &it.instructions).flat_map(|it| &it.called_computation_ids) {
        if !called.insert(*callee) {
            callees.remove(callee);
        }
    }
    let mut bodies: HashMap<i64, HloComputationProto> = HashMap::new();
    for mut computation in std::mem::take(&mut module.computations) {
        let id = computation.id;
        for instruction in std::mem::take(&mut computation.instructions) {
            let body = instruction.called_computation_ids.first().and_then(|callee| bodies.remove(callee));
            match body {
                Some(body) => splice(instruction, body, id, fresh, &mut computation.instructions),
                None => computation.instructions.push(instruction),
            }
        }
        if callees.contains(&id) {
            bodies.insert(id, computation);
        } else {
            module.computations.push(computation);
        }
    }
}

/// Appends the instructions of a called computation; its root takes the place of the call.
fn splice(
    call: HloInstructionProto,
    body: HloComputationProto,
    computation: i64,
    fresh: &mut Fresh,
    to: &mut Vec<HloInstructionProto>,
) {
    let mut renamed: HashMap<i64, i64> = HashMap::with_capacity(body.instructions.len());
    let operand = |parameter: &HloInstructionProto| {
        usize::try_from(parameter.parameter_number).ok().and_then(|number| call.operand_ids.get(number)).copied()
    };
    for mut instruction in body.instructions {
        let is_root = instruction.id == body.root_id;
        let argument = if instruction.opcode == "parameter" { operand(&instruction) } else { None };
        if let Some(argument) = argument {
            renamed.insert(instruction.id, argument);
            if is_root {
                let mut copy = call.clone();
                copy.opcode = "copy".into();
                copy.operand_ids = [argument].into();
                copy.called_computation_ids = InlineList::default();
                to.push(copy);
            }
            continue;
        }
        let id = if is_root { call.id } else { fresh.instruction(computation) };
        renamed.insert(std::mem::replace(&mut instruction.id, id), id);
        let HloInstructionCommon { operand_ids, control_predecessor_ids, .. } = &mut *instruction;
        let references = operand_ids.iter_mut().chain(control_predecessor_ids);
        references.for_each(|id| *id = *renamed.get(id).unwrap_or(id));
        if is_root {
            instruction.name.clone_from(&call.name);
            instruction.control_predecessor_ids.extend(&call.control_predecessor_ids);
        }
        to.push(instruction);
    }
}
