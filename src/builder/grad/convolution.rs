//! Derivatives of convolutions, which are convolutions (`jax.lax`'s rules for their windows).

use super::{Derivatives, Op, Site};
use crate::builder::Conv;
use crate::proto::WindowDimension;

impl<'b> Site<'b> {
    #[track_caller]
    pub(super) fn convolution(&self) -> Derivatives<'b> {
        let details = self.instruction.details();
        let (feature_groups, batch_groups) = (details.feature_group_count.max(1), details.batch_group_count.max(1));
        let [input, kernel] = [self.operands[0], self.operands[1]];
        let window = &details.window.dimensions;
        let (inputs, outputs) = (input.dims(), self.result.dims());
        let places: Vec<Place> = (0..)
            .zip(window)
            .map(|(dim, window): (usize, &WindowDimension)| Place {
                input: dilated(inputs[dim + 1], window.base_dilation),
                kernel: dilated(window.size, window.window_dilation),
                output: dilated(outputs[dim + 1], window.stride),
                low: window.padding_low,
            })
            .collect();
        let strides: Vec<i64> = window.iter().map(|dim| dim.stride).collect();
        let lhs_dilation: Vec<i64> = window.iter().map(|dim| dim.base_dilation).collect();
        let rhs_dilation: Vec<i64> = window.iter().map(|dim| dim.window_dilation).collect();
        let spatial: Vec<i64> = (0..window.len() as i64).collect();
        let by_input = if self.wanted[0] {
            let options = Conv {
                strides: lhs_dilation.clone(),
                padding: places.iter().map(Place::of_input).collect(),
                lhs_dilation: strides.clone(),
                rhs_dilation: rhs_dilation.clone(),
                feature_groups: feature_groups.max(batch_groups),
                batch_groups: 1,
            };
            let back = turned(kernel.reverse(&spatial), options.feature_groups);
            Some(groups_of_batch(self.derivative.conv(back, &options), batch_groups))
        } else {
            None
        };
        let by_kernel = if self.wanted[1] {
            let options = Conv {
                strides: rhs_dilation,
                padding: places.iter().map(Place::of_kernel).collect(),
                lhs_dilation,
                rhs_dilation: strides,
                // The features of one are the batch of the other.
                feature_groups: batch_groups,
                batch_groups: feature_groups,
            };
            Some(self.by_kernel(input, &options))
        } else {
            None
        };
        Ok(vec![by_input, by_kernel])
    }

    /// The input over the result's derivative, summed over the batch: its features stand in for the batch, and the batch for
    /// the features.
    #[track_caller]
    fn by_kernel(&self, input: Op<'b>, options: &Conv) -> Op<'b> {
        let last = input.rank() as i64 - 1;
        let spatial = 1..last;
        let to_kernel: Vec<i64> = spatial.chain([0, last]).collect();
        let over = self.derivative.transpose(&to_kernel);
        let made = input.swap_axes(0, last).conv(over, options);
        made.transpose(&to_kernel)
    }
}

/// A kernel whose output features become its inputs, in groups of them that see only each other.
#[track_caller]
fn turned(kernel: Op<'_>, groups: i64) -> Op<'_> {
    let dims = kernel.dims();
    let (spatial, features) = dims.split_at(dims.len() - 2);
    let (inputs, outputs) = (features[0], features[1]);
    let apart = kernel.reshape(&[spatial, &[inputs, groups, outputs / groups]].concat());
    apart.swap_axes(-3, -1).reshape(&[spatial, &[outputs / groups, groups * inputs]].concat())
}

/// An array whose features come from so many groups of the batch, which are put one after the other again.
#[track_caller]
fn groups_of_batch(array: Op<'_>, groups: i64) -> Op<'_> {
    if groups == 1 {
        return array;
    }
    let dims = array.dims();
    let (features, others) = dims.split_last().map_or((1, &[][..]), |(last, others)| (*last, others));
    let apart = array.reshape(&[others, &[groups, features / groups]].concat());
    let rank = others.len() as i64;
    let order: Vec<i64> = [rank].into_iter().chain(0..rank).chain([rank + 1]).collect();
    let whole = [&[groups * others[0]], &others[1..], &[features / groups]].concat();
    apart.transpose(&order).reshape(&whole)
}

/// Sizes in one spatial dimension, with the gaps that dilation and strides make.
struct Place {
    input: i64,
    kernel: i64,
    output: i64,
    low: i64,
}

impl Place {
    /// The padding of the derivative by the input.
    fn of_input(&self) -> (i64, i64) {
        let before = self.kernel - self.low - 1;
        (before, self.input + self.kernel - 1 - self.output - before)
    }

    /// The padding of the derivative by the kernel.
    fn of_kernel(&self) -> (i64, i64) {
        (self.low, self.output - self.input + self.kernel - self.low - 1)
    }
}

fn dilated(size: i64, dilation: i64) -> i64 {
    if size == 0 { 0 } else { (size - 1) * dilation + 1 }
}
