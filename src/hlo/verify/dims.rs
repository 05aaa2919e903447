//! Arithmetic on dimensions, and shapes that must agree.

use std::collections::HashSet;

use super::{Check, ensure};
use crate::dtype::DType;
use crate::hlo::shape::{self, join};
use crate::proto::{PrimitiveType, ShapeProto};

/// Whether two sizes may be the same: an unbounded one may be any.
pub(super) fn same_size(a: i64, b: i64) -> bool {
    a == b || a == shape::UNBOUNDED || b == shape::UNBOUNDED
}

pub(super) fn same_dims(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| same_size(a, b))
}

/// Whether both have the same element types, dimensions and tuple structure, as far as their sizes are known.
pub(super) fn compatible(a: &ShapeProto, b: &ShapeProto) -> bool {
    a.element_type == b.element_type
        && same_dims(&a.dimensions, &b.dimensions)
        && a.tuple_shapes.len() == b.tuple_shapes.len()
        && a.tuple_shapes.iter().zip(&b.tuple_shapes).all(|(a, b)| compatible(a, b))
}

/// The dimensions of the array, unless some are unbounded and nothing can be said of them.
pub(super) fn bounded(shape: &ShapeProto) -> Option<&[i64]> {
    shape.dimensions.iter().all(|&size| size != shape::UNBOUNDED).then_some(&shape.dimensions)
}

/// Whether an array in the shape has an unbounded dimension.
pub(super) fn is_unbounded(shape: &ShapeProto) -> bool {
    bounded(shape).is_none() || shape.tuple_shapes.iter().any(is_unbounded)
}

/// Operands of an operation that takes them element by element must have the same dimensions.
pub(super) fn expect_same_dims(a: &ShapeProto, b: &ShapeProto) -> Check {
    let fits = same_dims(&a.dimensions, &b.dimensions);
    ensure!(fits, "its operands have different dimensions: {} and {}", text(a), text(b));
    Ok(())
}

/// The result's dimensions must be these.
pub(super) fn expect_dims(shape: &ShapeProto, expected: &[i64]) -> Check {
    let fits = same_dims(&shape.dimensions, expected);
    ensure!(fits, "its shape is {}, and its dimensions must be [{}]", text(shape), join(expected));
    Ok(())
}

/// The shapes must have the same element type and dimensions; the message names both.
pub(super) fn expect_same(what: &str, found: &ShapeProto, expected: &ShapeProto) -> Check {
    ensure!(compatible(found, expected), "{what} has the shape {}, and it must be {}", text(found), text(expected));
    Ok(())
}

/// The shape must be an array of this type and these dimensions.
pub(super) fn expect_array(what: &str, found: &ShapeProto, element: DType, dims: &[i64]) -> Check {
    ensure!(
        found.element_type.to_i32() == element.primitive_type() && same_dims(&found.dimensions, dims),
        "{what} has the shape {}, and it must be {element}[{}]",
        text(found),
        join(dims)
    );
    Ok(())
}

pub(super) fn expect_token(what: &str, found: &ShapeProto) -> Check {
    ensure!(found.element_type == PrimitiveType::TOKEN, "{what} is {}, and it must be a token", text(found));
    Ok(())
}

/// A shape for messages.
pub(super) fn text(shape: &ShapeProto) -> String {
    shape::text_without_layout(shape)
}

/// The dimension as an index below the rank.
pub(super) fn expect_dim(what: &str, dim: i64, rank: usize) -> Result<usize, String> {
    let index = usize::try_from(dim).ok().filter(|&dim| dim < rank);
    index.ok_or_else(|| format!("{what} {dim} must lie below the rank {rank}"))
}

/// Dimension numbers as indices below the rank, each once; the message names the attribute.
pub(super) fn expect_distinct(what: &str, dims: &[i64], rank: usize) -> Result<Vec<usize>, String> {
    let mut seen = HashSet::with_capacity(dims.len());
    let index = |&dim: &i64| {
        let index = expect_dim(what, dim, rank)?;
        ensure!(seen.insert(index), "{what} {dim} stands there twice");
        Ok(index)
    };
    dims.iter().map(index).collect()
}

/// As [`expect_distinct`], in rising order.
pub(super) fn expect_rising(what: &str, dims: &[i64], rank: usize) -> Result<Vec<usize>, String> {
    let indices = expect_distinct(what, dims, rank)?;
    ensure!(indices.is_sorted(), "{what}={{{}}} must be in rising order", join(dims));
    Ok(indices)
}
