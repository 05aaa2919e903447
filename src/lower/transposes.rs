//! Moves transposes of reduced arrays to before the reduction.
//!
//! A gradient is often a dot that is reduced over the devices and then transposed. XLA writes a dot transposed at no cost,
//! but an array that a custom call wrote in rows has to be copied across them.

use std::collections::HashMap;

use crate::hlo::shape;
use crate::proto::{HloComputationProto, HloInstructionProto, HloModuleProto};

/// Turns `transpose(all-reduce(x))` into `all-reduce(transpose(x))`, which has the same bits, where nothing else uses the
/// all-reduce.
pub(super) fn before_reductions(module: &mut HloModuleProto) {
    for computation in &mut module.computations {
        let transposed = transposed_reductions(computation);
        if !transposed.is_empty() {
            exchange(computation, &transposed);
        }
    }
}

/// The all-reduces of one array that nothing but a transpose uses, by id, and where that stands.
fn transposed_reductions(computation: &HloComputationProto) -> HashMap<i64, usize> {
    let is_reduction = |it: &&HloInstructionProto| {
        it.opcode == "all-reduce" && it.operand_ids.len() == 1 && it.id != computation.root_id
    };
    let reductions = computation.instructions.iter().filter(is_reduction);
    let mut users: HashMap<i64, Vec<usize>> = reductions.map(|it| (it.id, vec![])).collect();
    for (position, instruction) in computation.instructions.iter().enumerate() {
        for operand in &instruction.operand_ids {
            users.entry(*operand).and_modify(|users| users.push(position));
        }
    }
    let only_transpose = |(id, users): (i64, Vec<usize>)| match users[..] {
        [user] => {
            let user_is = &computation.instructions[user];
            (user_is.opcode == "transpose" && user_is.control_predecessor_ids.is_empty()).then_some((id, user))
        }
        _ => None,
    };
    users.into_iter().filter_map(only_transpose).collect()
}

/// Puts each of these transposes before its all-reduce, which its users use instead.
fn exchange(computation: &mut HloComputationProto, transposed: &HashMap<i64, usize>) {
    let mut old: Vec<_> = std::mem::take(&mut computation.instructions).into_iter().map(Some).collect();
    let instead: HashMap<i64, i64> = transposed
        .iter()
        .filter_map(|(&reduction, &position)| old[position].as_ref().map(|transpose| (transpose.id, reduction)))
        .collect();
    let forward = |id: &mut i64| *id = *instead.get(id).unwrap_or(id);
    forward(&mut computation.root_id);
    for position in 0..old.len() {
        let Some(mut instruction) = old[position].take() else { continue };
        instruction.operand_ids.iter_mut().for_each(forward);
        if let Some(mut transpose) = transposed.get(&instruction.id).and_then(|&at| old[at].take()) {
            shape::set_row_major(transpose.shape.get_or_insert_default());
            transpose.operand_ids = std::mem::replace(&mut instruction.operand_ids, [transpose.id].into());
            instruction.shape = transpose.shape.clone();
            if let Some(details) = instruction.existing_details_mut() {
                details.original_value = None.into();
            }
            computation.instructions.push(transpose);
        }
        computation.instructions.push(instruction);
    }
}
