//! The order of a computation's instructions.

use crate::proto::{HloComputationProto, HloInstructionProto};

/// The place of the instruction with this id in its computation.
pub(super) fn index_of(id: i64) -> usize {
    (id & i64::from(u32::MAX)) as usize
}

/// Leaves the instructions that the result needs, and the parameters, operands before who uses them: what is saved for
/// derivatives makes earlier instructions use later ones. Else they stay in the order in which they were added.
pub(super) fn put_in_order(computation: &mut HloComputationProto) {
    let instructions = std::mem::take(&mut computation.instructions);
    let order =
        ordered(&instructions, &[index_of(computation.root_id)], |instruction| instruction.opcode == "parameter");
    let mut ids = vec![0; instructions.len()];
    for (place, &index) in order.iter().enumerate() {
        ids[index] = computation.id << 32 | place as i64;
    }
    let mut instructions: Vec<Option<HloInstructionProto>> = instructions.into_iter().map(Some).collect();
    for index in order {
        let Some(mut instruction) = instructions[index].take() else { continue };
        instruction.id = ids[index];
        for operand in &mut instruction.operand_ids {
            *operand = ids[index_of(*operand)];
        }
        computation.instructions.push(instruction);
    }
    computation.root_id = ids[index_of(computation.root_id)];
    let result = computation.instructions.iter().find(|instruction| instruction.id == computation.root_id);
    if let Some(result) = result.map(|root| (*root.shape).clone()) {
        computation.program_shape = Some(super::program_shape(&computation.instructions, result)).into();
    }
}

/// The instructions that the roots need, and those that are kept in any case, operands first.
pub(super) fn ordered(
    instructions: &[HloInstructionProto],
    roots: &[usize],
    is_kept: impl Fn(&HloInstructionProto) -> bool,
) -> Vec<usize> {
    let operands = |index: usize| instructions[index].operand_ids.iter().map(|&id| index_of(id));
    let kept = instructions.iter().enumerate().filter(|(_, instruction)| is_kept(instruction));
    let mut stack: Vec<usize> = kept.map(|(index, _)| index).chain(roots.iter().copied()).collect();
    let mut is_needed = vec![false; instructions.len()];
    while let Some(index) = stack.pop() {
        if !std::mem::replace(&mut is_needed[index], true) {
            stack.extend(operands(index));
        }
    }
    let mut order = Vec::new();
    let mut is_placed = vec![false; instructions.len()];
    for first in (0..instructions.len()).filter(|&index| is_needed[index]) {
        stack.push(first);
        while let Some(&index) = stack.last() {
            let missing = operands(index).find(|&operand| !is_placed[operand]);
            match missing {
                Some(operand) if !is_placed[index] => stack.push(operand),
                _ => {
                    stack.pop();
                    if !std::mem::replace(&mut is_placed[index], true) {
                        order.push(index);
                    }
                }
            }
        }
    }
    order
}
