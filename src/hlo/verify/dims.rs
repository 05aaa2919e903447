//! Arithmetic on dimensions.

use super::{Check, ensure};
use crate::hlo::shape::{self, join};
use crate::proto::ShapeProto;

/// The dimensions of the array, unless some are unbounded and nothing can be said of them.
pub(super) fn bounded(shape: &ShapeProto) -> Option<&[i64]> {
    shape.dimensions.iter().all(|&size| size != shape::UNBOUNDED).then_some(&shape.dimensions)
}

/// The result's dimensions must be these.
pub(super) fn expect_dims(shape: &ShapeProto, expected: &[i64]) -> Check {
    let fits = bounded(shape).is_none_or(|found| found == expected) || expected.contains(&shape::UNBOUNDED);
    ensure!(fits, "its shape is {}, and its dimensions must be [{}]", text(shape), join(expected));
    Ok(())
}

/// The shapes must have the same element type and dimensions; the message names both.
pub(super) fn expect_same(what: &str, found: &ShapeProto, expected: &ShapeProto) -> Check {
    let unbounded = [found, expected].iter().flat_map(|shape| shape::leaves(shape)).any(|leaf| bounded(leaf).is_none());
    ensure!(
        unbounded || shape::compatible(found, expected),
        "{what} has the shape {}, and it must be {}",
        text(found),
        text(expected)
    );
    Ok(())
}

pub(super) fn text(shape: &ShapeProto) -> String {
    shape::text_without_layout(shape)
}

/// The dimension as an index below the rank.
pub(super) fn expect_dim(what: &str, dim: i64, rank: usize) -> Result<usize, String> {
    let index = usize::try_from(dim).ok().filter(|&dim| dim < rank);
    index.ok_or_else(|| format!("{what} {dim} must lie below the rank {rank}"))
}

/// The dimensions without some of them.
pub(super) fn without(dims: &[i64], removed: &[i64]) -> Vec<i64> {
    let kept = dims.iter().enumerate().filter(|(index, _)| !removed.contains(&(*index as i64)));
    kept.map(|(_, &size)| size).collect()
}
