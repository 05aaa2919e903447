//! What holds for every instruction: counts, and shapes that can be built.

use super::{Check, Site, ensure};
use crate::hlo::{literal, shape};
use crate::proto::{HloInstructionProto, PrimitiveType, ShapeProto};

/// Tuples within tuples: deeper ones overflow XLA's stack.
const MAX_TUPLE_DEPTH: usize = 32;

/// More dimensions than any backend takes.
const MAX_RANK: usize = 64;

/// Bytes of a module's largest array: what is larger, XLA's own sums of sizes overflow.
const MAX_BYTES: u64 = 1 << 60;

pub(super) fn check_instruction(site: &Site) -> Check {
    let instruction = site.instruction;
    ensure!(!instruction.opcode.is_empty(), "it has no opcode");
    ensure!(!instruction.name.is_empty(), "it has no name");
    ensure!(instruction.shape.is_set(), "it has no shape");
    check_shape(&instruction.shape)?;
    ensure!(has_layouts(&instruction.shape), "{} has no layout", shape::text_without_layout(&instruction.shape));
    if let Some(opcode) = site.opcode {
        let (accepted, found) = (opcode.operands, site.operands.len());
        ensure!(accepted.accepts(found), "it has {found} operands instead of {}", accepted.describe());
    }
    check_called(site)?;
    if instruction.opcode == "constant" {
        check_constant(instruction)?;
    }
    Ok(())
}

/// Whether every array of the shape has a layout; XLA ends the process where one is missing.
pub(super) fn has_layouts(shape: &ShapeProto) -> bool {
    (shape.layout.is_set() || shape::dtype(shape).is_none()) && shape.tuple_shapes.iter().all(has_layouts)
}

fn check_called(site: &Site) -> Check {
    let called = site.called.len();
    let expected = match site.instruction.opcode.as_str() {
        "while" | "select-and-scatter" => 2,
        "call" | "map" | "reduce" | "reduce-window" | "reduce-scatter" | "all-reduce" | "all-reduce-start"
        | "scatter" | "sort" | "scan" | "fusion" | "async-start" => 1,
        "conditional" => site.operands.len().saturating_sub(1),
        "custom-call" | "async-update" | "async-done" => return Ok(()),
        _ if site.opcode.is_none() => return Ok(()),
        _ => 0,
    };
    ensure!(called == expected, "it calls {called} computations instead of {expected}");
    Ok(())
}

fn check_constant(instruction: &HloInstructionProto) -> Check {
    let literal = &instruction.literal;
    ensure!(literal.is_set(), "the constant has no value");
    let (found, expected) = (&literal.shape, &instruction.shape);
    ensure!(
        shape::compatible(found, expected),
        "the constant's value has the shape {}, not {}",
        shape::text_without_layout(found),
        shape::text_without_layout(expected)
    );
    check_shape(found)?;
    literal::check_length(literal).map_err(|error| error.to_string())
}

/// A shape that XLA can build: known types, sizes that fit, a layout of the same rank.
pub(super) fn check_shape(shape: &ShapeProto) -> Check {
    check_nested(shape, 0)
}

fn check_nested(shape: &ShapeProto, depth: usize) -> Check {
    ensure!(depth <= MAX_TUPLE_DEPTH, "its shape nests tuples more than {MAX_TUPLE_DEPTH} deep");
    let text = || shape::text_without_layout(shape);
    match shape.element_type.as_known() {
        Some(PrimitiveType::TUPLE) => {}
        Some(PrimitiveType::BUFFER) => {
            let inner = shape.tuple_shapes.first().filter(|_| shape.tuple_shapes.len() == 1);
            ensure!(inner.is_some_and(|inner| shape::dtype(inner).is_some()), "a buffer's shape must hold one array");
        }
        Some(PrimitiveType::TOKEN | PrimitiveType::OPAQUE_TYPE) => {
            ensure!(shape.tuple_shapes.is_empty(), "{} cannot have tuple elements", text());
        }
        Some(PrimitiveType::PRIMITIVE_TYPE_INVALID) | None => {
            return Err(format!("its element type {} is unknown", shape.element_type.to_i32()));
        }
        Some(_) => return check_array(shape, depth),
    }
    ensure!(shape.dimensions.is_empty() && shape.is_dynamic_dimension.is_empty(), "{} cannot have dimensions", text());
    ensure!(shape.layout.is_unset() || shape.element_type == PrimitiveType::BUFFER, "{} cannot have a layout", text());
    shape.tuple_shapes.iter().try_for_each(|element| check_nested(element, depth + 1))
}

fn check_array(shape: &ShapeProto, depth: usize) -> Check {
    let rank = shape.dimensions.len();
    let text = || shape::text_without_layout(shape);
    ensure!(rank <= MAX_RANK, "its shape has {rank} dimensions");
    ensure!(shape.tuple_shapes.is_empty(), "{} cannot have tuple elements", text());
    let dynamic = &shape.is_dynamic_dimension;
    ensure!(dynamic.is_empty() || dynamic.len() == rank, "{} says {} times what is dynamic", text(), dynamic.len());
    let unbounded = |dim: usize, size: i64| size == shape::UNBOUNDED && dynamic.get(dim) == Some(&true);
    for (dim, &size) in shape.dimensions.iter().enumerate() {
        ensure!(size >= 0 || unbounded(dim, size), "{} has the negative dimension {size}", text());
    }
    let bounded = shape.dimensions.iter().all(|&size| size >= 0);
    // Without the empty dimensions, which do not keep XLA from multiplying the others.
    let bytes = || {
        let dtype = shape::dtype(shape)?;
        let mut sizes = shape.dimensions.iter().filter(|&&size| size > 0);
        sizes.try_fold(dtype.size() as u64, |bytes, &size| bytes.checked_mul(size as u64))
    };
    ensure!(!bounded || bytes().is_some_and(|bytes| bytes <= MAX_BYTES), "{} is too large to address", text());
    let layout = &shape.layout;
    ensure!(
        layout.is_unset() || shape::is_permutation(&layout.minor_to_major, rank),
        "the layout of {} is no order of its {rank} dimensions: {{{}}}",
        text(),
        shape::join(&layout.minor_to_major)
    );
    if layout.physical_shape.is_set() {
        let inner = &*layout.physical_shape;
        ensure!(inner.layout.physical_shape.is_unset(), "{} has layouts within layouts", text());
        check_nested(inner, depth + 1)?;
    }
    Ok(())
}
