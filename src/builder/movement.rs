//! Operations that move elements.

use std::ops::Range;

use super::{Builder, Op, Operand};
use crate::hlo::shape;
use crate::proto::hlo_instruction_details::SliceDimensions;
use crate::proto::padding_config::PaddingConfigDimension;
use crate::proto::{HloInstructionCommon, HloInstructionDetails, HloInstructionProto, PaddingConfig, SharedShape};

fn instruction(opcode: &str, shape: Option<SharedShape>, dimensions: Vec<i64>) -> HloInstructionProto {
    HloInstructionCommon { opcode: opcode.into(), shape: shape.into(), dimensions, ..Default::default() }.into()
}

impl<'b> Op<'b> {
    /// The value in a larger shape, as `numpy.broadcast_to`: dimensions are added in front, and those of size 1 repeated.
    #[track_caller]
    pub fn broadcast_to(self, dims: &[i64]) -> Op<'b> {
        let Some((_, own)) = self.array("broadcast") else { return self.builder.failed() };
        if own == dims {
            return self;
        }
        let Some(added) = dims.len().checked_sub(own.len()) else {
            let message = format!("{} has more dimensions than [{}]", self.text(), shape::join(dims));
            return self.builder.fail("broadcast", message);
        };
        let places: Vec<i64> = (added as i64..dims.len() as i64).collect();
        self.broadcast_in_dim(dims, &places)
    }

    /// The value in a larger shape, its dimension i becoming dimension `places[i]` of it, which rise, as
    /// in `jax.lax.broadcast_in_dim`: a dimension of size 1 is repeated.
    #[track_caller]
    pub fn broadcast_in_dim(self, dims: &[i64], places: &[i64]) -> Op<'b> {
        let Some((dtype, own)) = self.array("broadcast") else { return self.builder.failed() };
        let size = |place: i64| usize::try_from(place).ok().and_then(|place| dims.get(place).copied());
        let fits = own.len() == places.len()
            && places.is_sorted_by(|a, b| a < b)
            && own.iter().zip(places).all(|(&own, &place)| size(place).is_some_and(|size| own == size || own == 1));
        if !fits {
            let (text, to, at) = (self.text(), shape::join(dims), shape::join(places));
            return self
                .builder
                .fail("broadcast", format!("{text} cannot become [{to}] with its dimensions at [{at}]"));
        }
        // XLA's broadcast repeats no dimension of its operand: those of size 1 go first.
        let kept = || own.iter().zip(places).filter(|&(&own, &place)| size(place) == Some(own));
        let (kept_dims, kept_places): (Vec<i64>, Vec<i64>) = kept().map(|(&own, &place)| (own, place)).unzip();
        let operand = self.reshape(&kept_dims);
        self.builder.push(instruction("broadcast", Some(shape::array(dtype, dims).into()), kept_places), &[operand])
    }

    /// The same elements in row-major order in another shape. One dimension may be −1: it takes what is left.
    #[track_caller]
    pub fn reshape(self, dims: &[i64]) -> Op<'b> {
        let Some((dtype, own)) = self.array("reshape") else { return self.builder.failed() };
        let mut dims = dims.to_vec();
        if let Some(open) = dims.iter().position(|&dim| dim == -1) {
            let others = dims.iter().enumerate().filter(|&(dim, _)| dim != open);
            let rest = others.fold(1i64, |product, (_, &dim)| product.saturating_mul(dim));
            let count = self.num_elements();
            if rest <= 0 || count % rest != 0 {
                let (text, to) = (self.text(), shape::join(&dims));
                return self.builder.fail("reshape", format!("{text} cannot become [{to}]"));
            }
            dims[open] = count / rest;
        }
        if own == dims {
            return self;
        }
        self.builder.push(instruction("reshape", Some(shape::array(dtype, &dims).into()), Vec::new()), &[self])
    }

    /// The dimensions in another order: dimension i of the result is dimension `order[i]` of the value.
    #[track_caller]
    pub fn transpose(self, order: &[i64]) -> Op<'b> {
        let Some(order) = self.axes("transpose", order) else { return self.builder.failed() };
        if order.iter().copied().eq(0..self.rank()) {
            return self;
        }
        let order = order.into_iter().map(|axis| axis as i64).collect();
        self.builder.push(instruction("transpose", None, order), &[self])
    }

    /// Two dimensions exchanged.
    #[track_caller]
    pub fn swap_axes(self, a: i64, b: i64) -> Op<'b> {
        let (Some(a), Some(b)) = (self.axis("swap_axes", a), self.axis("swap_axes", b)) else {
            return self.builder.failed();
        };
        let mut order: Vec<i64> = (0..self.rank() as i64).collect();
        order.swap(a, b);
        self.transpose(&order)
    }

    /// The last two dimensions exchanged: a matrix transposed.
    #[track_caller]
    pub fn t(self) -> Op<'b> {
        self.swap_axes(-2, -1)
    }

    /// A dimension of size 1 inserted, which then is dimension `axis`.
    #[track_caller]
    pub fn expand_dims(self, axis: i64) -> Op<'b> {
        let Some((_, mut dims)) = self.array("expand_dims") else { return self.builder.failed() };
        match super::op::axis_of(axis, dims.len() + 1) {
            Ok(axis) => {
                dims.insert(axis, 1);
                self.reshape(&dims)
            }
            Err(message) => self.builder.fail("expand_dims", message),
        }
    }

    /// Dimensions of size 1 taken out.
    #[track_caller]
    pub fn squeeze(self, axes: &[i64]) -> Op<'b> {
        let (Some((_, dims)), Some(axes)) = (self.array("squeeze"), self.axes("squeeze", axes)) else {
            return self.builder.failed();
        };
        if let Some(&axis) = axes.iter().find(|&&axis| dims[axis] != 1) {
            return self.builder.fail("squeeze", format!("dimension {axis} of {} is not 1", self.text()));
        }
        let kept = (0..dims.len()).filter(|axis| !axes.contains(axis));
        self.reshape(&kept.map(|axis| dims[axis]).collect::<Vec<_>>())
    }

    /// The elements from `starts` to before `limits` in each dimension, every `strides`-th of them.
    #[track_caller]
    pub fn strided_slice(self, starts: &[i64], limits: &[i64], strides: &[i64]) -> Op<'b> {
        let Some((dtype, dims)) = self.array("slice") else { return self.builder.failed() };
        if [starts.len(), limits.len(), strides.len()] != [dims.len(); 3] || strides.iter().any(|&stride| stride < 1) {
            let message =
                format!("each dimension of {} needs a start, a limit and a stride of at least 1", self.text());
            return self.builder.fail("slice", message);
        }
        let bounds = starts.iter().zip(limits).zip(strides);
        let slice_dimensions: Vec<SliceDimensions> = bounds
            .map(|((&start, &limit), &stride)| SliceDimensions { start, limit, stride, ..SliceDimensions::default() })
            .collect();
        let size = |slice: &SliceDimensions| {
            let length = slice.limit.saturating_sub(slice.start);
            if length > 0 { (length - 1) / slice.stride + 1 } else { 0 }
        };
        let sizes: Vec<i64> = slice_dimensions.iter().map(size).collect();
        if sizes == dims {
            return self;
        }
        let slice = instruction("slice", Some(shape::array(dtype, &sizes).into()), Vec::new())
            .with_details(HloInstructionDetails { slice_dimensions, ..Default::default() });
        self.builder.push(slice, &[self])
    }

    /// The elements with these indices along one axis.
    #[track_caller]
    pub fn slice(self, axis: i64, range: Range<i64>) -> Op<'b> {
        let (Some((_, dims)), Some(axis)) = (self.array("slice"), self.axis("slice", axis)) else {
            return self.builder.failed();
        };
        let (mut starts, mut limits) = (vec![0; dims.len()], dims.clone());
        (starts[axis], limits[axis]) = (range.start, range.end);
        self.strided_slice(&starts, &limits, &vec![1; dims.len()])
    }

    /// The one element along an axis with this index; the axis goes.
    #[track_caller]
    pub fn index(self, axis: i64, index: i64) -> Op<'b> {
        self.slice(axis, index..index.saturating_add(1)).squeeze(&[axis])
    }

    /// Equal parts along an axis. It is an error if they cannot be equal; there are as many parts in any case.
    #[track_caller]
    pub fn split(self, axis: i64, parts: usize) -> Vec<Op<'b>> {
        let size = self.dim(axis);
        let count = parts as i64;
        if parts == 0 || size % count != 0 {
            let failed = self.builder.fail("split", format!("{size} elements do not make {parts} equal parts"));
            return vec![failed; parts];
        }
        let size = size / count;
        let mut slices = Vec::with_capacity(parts);
        for part in 0..count {
            slices.push(self.slice(axis, part * size..(part + 1) * size));
        }
        slices
    }

    /// A part of the given sizes that starts at indices known only when the program runs, one scalar for each dimension.
    /// Where it would reach beyond the array, it starts earlier.
    #[track_caller]
    pub fn dynamic_slice(self, starts: &[Op<'b>], sizes: &[i64]) -> Op<'b> {
        let Some((dtype, _)) = self.array("dynamic-slice") else { return self.builder.failed() };
        let slice = instruction("dynamic-slice", Some(shape::array(dtype, sizes).into()), Vec::new())
            .with_details(HloInstructionDetails { dynamic_slice_sizes: sizes.to_vec(), ..Default::default() });
        self.builder.push(slice, &[&[self], starts].concat())
    }

    /// The array with a part of it replaced, which starts at indices known only when the program runs: as of
    /// [`Op::dynamic_slice`].
    #[track_caller]
    pub fn dynamic_update_slice(self, update: Op<'b>, starts: &[Op<'b>]) -> Op<'b> {
        let slice = instruction("dynamic-update-slice", self.shape(), Vec::new());
        self.builder.push(slice, &[&[self, update], starts].concat())
    }

    /// The array with `value` around and between its elements: for each dimension how many before, after and between.
    /// Negative numbers before and after take elements away.
    #[track_caller]
    pub fn pad(self, value: impl Into<Operand<'b>>, padding: &[(i64, i64, i64)]) -> Op<'b> {
        let Some((dtype, _)) = self.array("pad") else { return self.builder.failed() };
        let value = self.builder.scalar(dtype, value);
        let dimension = |&(low, high, interior): &(i64, i64, i64)| PaddingConfigDimension {
            edge_padding_low: low,
            edge_padding_high: high,
            interior_padding: interior,
            ..PaddingConfigDimension::default()
        };
        let config = PaddingConfig { dimensions: padding.iter().map(dimension).collect(), ..PaddingConfig::default() };
        let pad = instruction("pad", None, Vec::new())
            .with_details(HloInstructionDetails { padding_config: Some(config).into(), ..Default::default() });
        self.builder.push(pad, &[self, value])
    }

    /// The elements in reverse order along these axes.
    #[track_caller]
    pub fn reverse(self, axes: &[i64]) -> Op<'b> {
        let Some(axes) = self.axes("reverse", axes) else { return self.builder.failed() };
        let axes = axes.into_iter().map(|axis| axis as i64).collect();
        self.builder.push(instruction("reverse", None, axes), &[self])
    }

    /// The value, which derivatives take for a constant, as `jax.lax.stop_gradient`. In HLO it is a copy, which XLA drops.
    #[track_caller]
    pub fn stop_gradient(self) -> Op<'b> {
        self.builder.push(instruction("copy", None, Vec::new()), &[self])
    }
}

impl Builder {
    /// Arrays one after the other along an axis; their other dimensions are the same.
    #[track_caller]
    pub fn concatenate<'b>(&'b self, arrays: &[Op<'b>], axis: i64) -> Op<'b> {
        let Some(first) = arrays.first() else { return self.fail("concatenate", "there are no arrays") };
        let Some(axis) = first.axis("concatenate", axis) else { return self.failed() };
        if let [only] = arrays {
            return *only;
        }
        self.push(instruction("concatenate", None, vec![axis as i64]), arrays)
    }

    /// Arrays of one shape along a new axis.
    #[track_caller]
    pub fn stack<'b>(&'b self, arrays: &[Op<'b>], axis: i64) -> Op<'b> {
        let mut rows = Vec::with_capacity(arrays.len());
        for array in arrays {
            rows.push(array.expand_dims(axis));
        }
        self.concatenate(&rows, axis)
    }
}
