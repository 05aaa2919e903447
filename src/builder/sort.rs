//! Sorting.

use std::panic::Location;

use super::{Builder, Op};
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{HloInstructionCommon, HloInstructionDetails, HloInstructionProto, ShapeProto};

impl<'b> Op<'b> {
    /// The elements in ascending order along an axis; NaN is beyond the infinities.
    #[track_caller]
    pub fn sort(self, axis: i64) -> Op<'b> {
        self.builder.sort_by(&[self], axis, |pairs| total_less(pairs[0], pairs[1])).first().copied().unwrap_or(self)
    }

    /// The indices, as `s32`, that would sort the elements along an axis; equal ones keep their order.
    #[track_caller]
    pub fn argsort(self, axis: i64) -> Op<'b> {
        let indices = self.builder.iota(DType::S32, &self.dims(), axis);
        let sorted = self.builder.sort_by(&[self, indices], axis, |pairs| total_less(pairs[0], pairs[1]));
        sorted.last().copied().unwrap_or(self)
    }

    /// The `count` largest elements along an axis in descending order, and their indices as `s32`, as `jax.lax.top_k`: of
    /// equal ones, those that come first; NaN is the largest.
    #[track_caller]
    pub fn top_k(self, count: i64, axis: i64) -> (Op<'b>, Op<'b>) {
        let indices = self.builder.iota(DType::S32, &self.dims(), axis);
        let sorted = self.builder.sort_by(&[self, indices], axis, |pairs| total_less(pairs[1], pairs[0]));
        match sorted[..] {
            [values, indices] => (values.slice(axis, 0..count), indices.slice(axis, 0..count)),
            _ => (self.builder.failed(), self.builder.failed()),
        }
    }
}

/// `<` in the total order of floats.
#[track_caller]
fn total_less<'b>(left: Op<'b>, right: Op<'b>) -> Op<'b> {
    let is_float = matches!(left.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    let compare = HloInstructionProto::new("compare").with_details(HloInstructionDetails {
        comparison_direction: "LT".to_owned(),
        comparison_type: if is_float { "TOTALORDER".to_owned() } else { String::new() },
        ..Default::default()
    });
    left.builder.push(compare, &[left, right])
}

impl Builder {
    /// Arrays of the same dimensions sorted together along an axis, stably. `less` says of two places whether the first
    /// comes before the second: it gets the scalars of the first array at both, then those of the second array, and so on.
    #[track_caller]
    pub fn sort_by<'b>(&'b self, arrays: &[Op<'b>], axis: i64, less: impl FnOnce(&[Op<'b>]) -> Op<'b>) -> Vec<Op<'b>> {
        let failed = || vec![self.failed(); arrays.len()];
        let Some(axis) = arrays.first().and_then(|first| first.axis("sort", axis)) else { return failed() };
        let mut scalars: Vec<ShapeProto> = Vec::with_capacity(2 * arrays.len());
        for array in arrays {
            scalars.extend([shape::scalar(array.dtype()), shape::scalar(array.dtype())]);
        }
        let Some(function) = self.function("less", &scalars, None, less) else { return failed() };
        self.sort_as(function, arrays, axis as i64)
    }

    /// As [`Builder::sort_by`], by a comparison of the first arrays.
    #[track_caller]
    pub(super) fn sort_as<'b>(&'b self, comparison: u32, arrays: &[Op<'b>], axis: i64) -> Vec<Op<'b>> {
        let compared = self.graph().parameters(comparison).len() / 2;
        let mut function = comparison;
        for array in arrays.iter().skip(compared) {
            let scalar = shape::scalar(array.dtype());
            let widened = self.graph().with_two_more(function, &scalar, Location::caller());
            match widened {
                Ok(widened) => function = widened,
                Err(message) => return vec![self.fail("sort", message); arrays.len()],
            }
        }
        let sort = HloInstructionProto::from(HloInstructionCommon {
            opcode: "sort".into(),
            dimensions: vec![axis],
            ..Default::default()
        })
        .with_details(HloInstructionDetails { is_stable: true, ..Default::default() });
        let sorted = self.push_calling(sort, arrays, &[function]);
        if arrays.len() == 1 { vec![sorted] } else { sorted.elements(arrays.len()) }
    }
}
