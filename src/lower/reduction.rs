//! Recognises what the computation of an all-reduce or reduce-scatter does.

use crate::collective::ReduceOp;
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{HloComputationProto, HloInstructionProto};

/// The operation, if the computation combines its two scalar parameters by a known one.
///
/// Copies are looked through, and so are conversions to a wider float type and back: reductions of narrow floats are
/// accumulated in f32.
pub(super) fn recognise(computation: &HloComputationProto, dtype: DType) -> Option<ReduceOp> {
    let find = |id: i64| computation.instructions.iter().find(|instruction| instruction.id == id);
    let through_conversions = |id: i64| {
        let mut instruction = find(id)?;
        for _ in 0..computation.instructions.len() {
            if !matches!(instruction.opcode.as_str(), "convert" | "copy") {
                break;
            }
            let inner = find(*instruction.operand_ids.first()?)?;
            if instruction.opcode == "convert" && !(is_float(instruction) && is_float(inner)) {
                break;
            }
            instruction = inner;
        }
        Some(instruction)
    };
    let root = through_conversions(computation.root_id)?;
    let [left, right] = root.operand_ids[..] else { return None };
    let parameter = |id| through_conversions(id).filter(|it| it.opcode == "parameter").map(|it| it.parameter_number);
    let parameters = (parameter(left)?, parameter(right)?);
    if parameters != (0, 1) && parameters != (1, 0) {
        return None;
    }
    let pred = dtype == DType::Pred;
    match root.opcode.as_str() {
        "add" if pred => Some(ReduceOp::Or),
        "maximum" if pred => Some(ReduceOp::Or),
        "multiply" | "minimum" if pred => Some(ReduceOp::And),
        "add" => Some(ReduceOp::Sum),
        "multiply" => Some(ReduceOp::Product),
        "minimum" => Some(ReduceOp::Min),
        "maximum" => Some(ReduceOp::Max),
        "and" => Some(ReduceOp::And),
        "or" => Some(ReduceOp::Or),
        "xor" => Some(ReduceOp::Xor),
        _ => None,
    }
}

fn is_float(instruction: &HloInstructionProto) -> bool {
    use DType::*;
    let dtype = instruction.shape.as_option().and_then(|shape| shape::dtype(shape));
    !matches!(
        dtype,
        None | Some(Pred | S1 | S2 | S4 | S8 | S16 | S32 | S64 | U1 | U2 | U4 | U8 | U16 | U32 | U64 | C64 | C128)
    )
}
