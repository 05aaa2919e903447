//! Makes what XLA has compiled compilable again.
//!
//! A compiled module (`compiled.as_text()`, the dumps `*.after_optimizations.*`) holds what its compilation decided:
//! layouts, bitcasts between them, fusions, a schedule, wrappers and settings for one backend's code generator. XLA
//! refuses many of them in a new compilation, or ends the process. All of it can be undone, because layouts change
//! where elements lie and never what they are.

mod bitcast;
mod inline;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use super::module::{self, Fresh};
use super::{Error, desync};
use crate::hlo::{HloModule, groups, literal, shape};
use crate::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto, SharedShape};

/// What tells that XLA has compiled the module, in words: a schedule, or instructions that only compilers write. `None`
/// if nothing does.
pub fn compiled_because(module: &HloModule) -> Option<&'static str> {
    if module.config.is_scheduled || module.proto.schedule.is_set() {
        return Some("is_scheduled=true");
    }
    let mut opcodes = instructions(&module.proto).map(|instruction| instruction.opcode.as_str());
    opcodes.find_map(|opcode| match opcode {
        "bitcast" => Some("it has bitcasts"),
        "fusion" => Some("it has fusions"),
        "async-start" | "all-gather-start" | "all-reduce-start" | "collective-permute-start" | "copy-start" => {
            Some("it has asynchronous operations")
        }
        _ => None,
    })
}

/// Undoes schedule, layouts, bitcasts, fusions, asynchronous pairs and backend settings of a verified module.
///
/// Custom calls keep the layouts they were compiled with, as what they call sees the bytes. `config.is_scheduled` stays
/// as it is: it tells that the module was partitioned.
///
/// # Errors
/// [`Error::Malformed`] for what cannot be undone.
pub fn undo(module: &mut HloModule) -> Result<(), Error> {
    let proto = &mut module.proto;
    proto.schedule = None.into();
    desync::desync(proto)?;
    let mut fresh = Fresh::new(proto);
    let mut unfused = HashSet::new();
    for computation in &mut proto.computations {
        undo_computation(computation, &mut fresh, &mut unfused)?;
    }
    for computation in proto.computations.iter_mut().filter(|computation| unfused.contains(&computation.id)) {
        computation.is_fusion_computation = false;
    }
    let programs = proto.computations.iter_mut().map(|computation| &mut computation.program_shape);
    for program in programs.chain([&mut proto.host_program_shape]).filter_map(|program| program.as_option_mut()) {
        program.parameters.iter_mut().for_each(|shape| shape::set_row_major(shape));
        shape::set_row_major(program.result.get_or_insert_default());
    }
    inline::inline(proto, unfused, &mut fresh);
    Ok(())
}

fn undo_computation(
    computation: &mut HloComputationProto,
    fresh: &mut Fresh,
    unfused: &mut HashSet<i64>,
) -> Result<(), Error> {
    let shapes = module::shapes(computation);
    let is_ordered = |it: &HloInstructionProto| it.opcode == "custom-call" || groups::is_collective(it);
    let ordered: HashSet<i64> = computation.instructions.iter().filter(|it| is_ordered(it)).map(|it| it.id).collect();
    let mut instructions = Vec::with_capacity(computation.instructions.len());
    for mut instruction in std::mem::take(&mut computation.instructions) {
        // The order that the compiler gave to reads and writes of one buffer goes with its buffers.
        let is_ordered = ordered.contains(&instruction.id);
        instruction.control_predecessor_ids.retain(|id| is_ordered && ordered.contains(id));
        match instruction.opcode.as_str() {
            "bitcast" => bitcast::undo(instruction, &shapes, computation.id, fresh, &mut instructions)?,
            "custom-call" => {
                keep_layouts(&mut instruction, &shapes);
                instructions.push(instruction);
            }
            "fusion" => {
                unfused.extend(&instruction.called_computation_ids);
                instruction.opcode = "call".into();
                instruction.details_mut().fusion_kind.clear();
                instruction.details_mut().output_operand_aliasing.clear();
                undo_instruction(&mut instruction)?;
                instructions.push(instruction);
            }
            _ => {
                undo_instruction(&mut instruction)?;
                instructions.push(instruction);
            }
        }
    }
    computation.instructions = instructions;
    Ok(())
}

/// Takes layouts and the settings of the code generator off an instruction.
fn undo_instruction(instruction: &mut HloInstructionProto) -> Result<(), Error> {
    shape::set_row_major(instruction.shape.get_or_insert_default());
    if let Some(constant) = instruction.literal.as_option_mut() {
        literal::set_row_major(constant)
            .map_err(|error| Error::malformed(&instruction.name, format!("its value is damaged: {error}")))?;
    }
    if let Some(details) = instruction.existing_details_mut() {
        details.constrain_layout = false;
        details.backend_config.clear();
        details.backend_config_payload = None.into();
    }
    instruction.frontend_attributes = None.into();
    Ok(())
}

/// Has a custom call compiled with the layouts that it has, tiles and memory spaces aside.
fn keep_layouts(call: &mut HloInstructionProto, shapes: &HashMap<i64, SharedShape>) {
    if !call.details().constrain_layout {
        let operands = call.operand_ids.iter().filter_map(|id| shapes.get(id)).map(|shape| (**shape).clone()).collect();
        let details = call.details_mut();
        details.operand_shapes_with_layout = operands;
        details.constrain_layout = true;
    }
    call.details_mut().operand_shapes_with_layout.iter_mut().for_each(keep_only_order);
    call.shape.as_option_mut().into_iter().for_each(|shape| keep_only_order(shape));
}

/// Keeps nothing of a shape's layouts but the order of dimensions.
fn keep_only_order(shape: &mut ShapeProto) {
    shape.tuple_shapes.iter_mut().for_each(keep_only_order);
    if shape::dtype(shape).is_some() {
        let rank = shape.dimensions.len();
        let mut layout = shape::row_major(rank);
        if shape::is_permutation(&shape.layout.minor_to_major, rank) {
            layout.minor_to_major.clone_from(&shape.layout.minor_to_major);
        }
        shape.layout = Some(layout).into();
    }
}

fn instructions(module: &HloModuleProto) -> impl Iterator<Item = &HloInstructionProto> {
    module.computations.iter().flat_map(|computation| &computation.instructions)
}
