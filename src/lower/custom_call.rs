//! Turns instructions into what stands for them in the lowered program.

use std::collections::HashMap;

use super::plan::{LogicalId, Participants};
use super::{COLLECTIVE_TARGET, LOGICAL_ID_TARGET, MARKER_TARGET};
use crate::dtype::DType;
use crate::hlo::{groups, shape};
use crate::proto::{
    CustomCallApiVersion, HloInstructionCommon, HloInstructionProto, InlineList, LiteralProto, ShapeProto, SharedShape,
    SourceTarget,
};

/// A collective of groups of one: the operands themselves.
pub(super) fn make_copy(instruction: &mut HloInstructionProto) {
    let is_tuple = shape::is_tuple(&instruction.shape);
    *instruction = bare(instruction, if is_tuple { "tuple" } else { "copy" });
}

/// A collective inside a process, between local replicas.
pub(super) fn make_local(instruction: &mut HloInstructionProto, participants: Participants) {
    instruction.channel_id = 0;
    instruction.details_mut().use_global_device_ids = false;
    match participants {
        Participants::Groups(groups) => groups::set_replica_groups(instruction, groups),
        Participants::Pairs(pairs) => {
            let pairs = pairs.into_iter();
            instruction.details_mut().source_target_pairs =
                pairs.map(|(source, target)| SourceTarget { source, target, ..Default::default() }).collect();
        }
    }
}

/// The id of the only replica or partition.
pub(super) fn make_zero_id(instruction: &mut HloInstructionProto) {
    *instruction = bare(instruction, "constant");
    let shape = shape::scalar(DType::U32);
    instruction.literal = LiteralProto { shape: shape.clone().into(), u32s: vec![0], ..Default::default() }.into();
    instruction.shape = shape.into();
}

/// A custom call that returns an id; it may be shared, as it has no effect.
pub(super) fn make_logical_id(instruction: &mut HloInstructionProto, kind: LogicalId) {
    let kind = match kind {
        LogicalId::Replica => "replica",
        LogicalId::Partition => "partition",
    };
    make_custom_call(instruction, LOGICAL_ID_TARGET, Vec::new());
    instruction.shape = shape::scalar(DType::U32).into();
    instruction.details_mut().backend_config = format!("{{kind = \"{kind}\"}}").into_bytes();
}

/// A custom call that does a collective. Its key is still to be set.
pub(super) fn make_collective(instruction: &mut HloInstructionProto, shapes: &HashMap<i64, SharedShape>) {
    let operands =
        instruction.operand_ids.iter().filter_map(|id| shapes.get(id)).map(|shape| (**shape).clone()).collect();
    make_custom_call(instruction, COLLECTIVE_TARGET, operands);
    instruction.details_mut().custom_call_has_side_effect = true;
}

/// A custom call that does nothing with its operands but need them.
pub(super) fn make_marker(operand_ids: InlineList<i64>) -> HloInstructionProto {
    let mut marker = HloInstructionProto::default();
    marker.opcode = "custom-call".into();
    marker.shape = shape::scalar(DType::U32).into();
    marker.operand_ids = operand_ids;
    marker.details_mut().custom_call_target = MARKER_TARGET.to_owned();
    marker.details_mut().custom_call_api_version = CustomCallApiVersion::API_VERSION_TYPED_FFI.into();
    marker.details_mut().custom_call_has_side_effect = true;
    marker
}

/// Tells a collective's custom call which collective it is.
pub(super) fn set_key(instruction: &mut HloInstructionProto, key: u32) {
    instruction.details_mut().backend_config = format!("{{key = {key} : i64}}").into_bytes();
}

fn make_custom_call(instruction: &mut HloInstructionProto, target: &str, mut operands: Vec<ShapeProto>) {
    let mut call = bare(instruction, "custom-call");
    operands.iter_mut().for_each(shape::set_row_major);
    shape::set_row_major(call.shape.get_or_insert_default());
    call.details_mut().custom_call_target = target.to_owned();
    call.details_mut().custom_call_api_version = CustomCallApiVersion::API_VERSION_TYPED_FFI.into();
    call.details_mut().constrain_layout = true;
    call.details_mut().operand_shapes_with_layout = operands;
    *instruction = call;
}

/// What every instruction has, without anything that belongs to the old opcode.
fn bare(instruction: &mut HloInstructionProto, opcode: &str) -> HloInstructionProto {
    let mut old = std::mem::take(instruction);
    let original_value = old.details_mut().original_value.take();
    let common = std::mem::take(&mut *old);
    let new = HloInstructionCommon {
        name: common.name,
        id: common.id,
        opcode: opcode.into(),
        shape: common.shape,
        metadata: common.metadata,
        operand_ids: common.operand_ids,
        control_predecessor_ids: common.control_predecessor_ids,
        frontend_attributes: common.frontend_attributes,
        ..Default::default()
    };
    let mut new = HloInstructionProto::from(new);
    if original_value.is_some() {
        new.details_mut().original_value = original_value.into();
    }
    new
}
