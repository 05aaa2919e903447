//! Whether two modules are the same but for the numbers that stand for their parts.

use std::collections::HashMap;
use std::fmt::Debug;

use buffa::{Message, MessageField};
use spmd_run::proto::{HloModuleProto, OpMetadata};

/// Compares modules; the error names the first thing that differs.
///
/// Ids count for nothing, and neither does metadata where one module has none: the short form of text leaves it out.
pub fn modules(left: &HloModuleProto, right: &HloModuleProto) -> Result<(), String> {
    let (mut left, mut right) = (numbered(left)?, numbered(right)?);
    if !has_metadata(&left) || !has_metadata(&right) {
        without_metadata(&mut left);
        without_metadata(&mut right);
    }
    if left.computations.len() != right.computations.len() {
        return Err(format!("{} computations became {}", right.computations.len(), left.computations.len()));
    }
    for (left, right) in left.computations.iter().zip(&right.computations) {
        for (left, right) in left.instructions.iter().zip(&right.instructions) {
            same(left, right).map_err(|difference| format!("{}: {difference}", right.name))?;
        }
        same(left, right).map_err(|difference| format!("{}: {difference}", right.name))?;
    }
    left.computations.clear();
    right.computations.clear();
    same(&left, &right)
}

/// Compares messages, as bytes because NaNs do not equal themselves.
fn same<M: Message + Debug>(left: &M, right: &M) -> Result<(), String> {
    if left.encode_to_vec() == right.encode_to_vec() {
        return Ok(());
    }
    let (left, right) = (format!("{left:#?}"), format!("{right:#?}"));
    let difference = left.lines().zip(right.lines()).find(|(left, right)| left != right);
    Err(difference.map_or("other unknown fields".to_owned(), |(left, right)| {
        format!("{} instead of {}", left.trim(), right.trim())
    }))
}

/// The module with every id replaced by the position of what it stands for.
fn numbered(module: &HloModuleProto) -> Result<HloModuleProto, String> {
    let mut module = module.clone();
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let instructions: HashMap<i64, i64> = (0..).zip(instructions).map(|(place, it)| (it.id, place)).collect();
    let computations: HashMap<i64, i64> = (0..).zip(&module.computations).map(|(place, it)| (it.id, place)).collect();
    let replace = |id: &mut i64, places: &HashMap<i64, i64>| {
        *id = *places.get(id).ok_or_else(|| format!("nothing has the id {id}"))?;
        Ok::<(), String>(())
    };
    module.id = 0;
    unset_if_empty(&mut module.input_output_alias);
    unset_if_empty(&mut module.buffer_donor);
    unset_if_empty(&mut module.frontend_attributes);
    replace(&mut module.entry_computation_id, &computations)?;
    for computation in &mut module.computations {
        replace(&mut computation.id, &computations)?;
        replace(&mut computation.root_id, &instructions)?;
        for instruction in &mut computation.instructions {
            replace(&mut instruction.id, &instructions)?;
            unset_if_empty(&mut instruction.metadata);
            unset_if_empty(&mut instruction.frontend_attributes);
            // Only the newest XLA tells whether it is stable, and takes silence for yes.
            let is_stable = instruction.opcode == "topk";
            let details = instruction.details_mut();
            unset_if_empty(&mut details.statistics_viz);
            unset_if_empty(&mut details.sparsity_config);
            details.is_stable |= is_stable;
            for id in &mut instruction.operand_ids {
                replace(id, &instructions)?;
            }
            for id in &mut instruction.control_predecessor_ids {
                replace(id, &instructions)?;
            }
            for id in &mut instruction.called_computation_ids {
                replace(id, &computations)?;
            }
        }
    }
    Ok(module)
}

/// JAX's protos hold messages without content, which mean nothing.
fn unset_if_empty<M: Message + Default>(message: &mut MessageField<M>) {
    if message.as_option().is_some_and(|message| message.encode_to_vec().is_empty()) {
        *message = None.into();
    }
}

fn has_metadata(module: &HloModuleProto) -> bool {
    let mut instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    instructions.any(|instruction| instruction.metadata.is_set())
}

fn without_metadata(module: &mut HloModuleProto) {
    module.stack_frame_index = None.into();
    for instruction in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        instruction.metadata = None::<OpMetadata>.into();
    }
}
