//! Products of arrays: dot products and convolutions.

use super::elementwise::broadcast_dims;
use super::{Builder, Op};
use crate::proto::{
    ConvolutionDimensionNumbers, DotDimensionNumbers, HloInstructionCommon, HloInstructionDetails, HloInstructionProto,
    Window, WindowDimension,
};

/// The dimensions that a dot product sums over, and those that both sides have in common, in pairs: as
/// `jax.lax.DotDimensionNumbers`. The result has the batch dimensions, then the others of the left side, then those of
/// the right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DotDims {
    /// Dimensions of the left side that are summed over.
    pub lhs_contracting: Vec<i64>,
    /// Their partners on the right side.
    pub rhs_contracting: Vec<i64>,
    /// Batch dimensions of the left side.
    pub lhs_batch: Vec<i64>,
    /// Their partners on the right side.
    pub rhs_batch: Vec<i64>,
}

/// How a window slides over the input of a convolution. The default moves by 1, without padding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conv {
    /// Steps in each spatial dimension; empty for 1.
    pub strides: Vec<i64>,
    /// Zeros before and after in each spatial dimension; empty for none.
    pub padding: Vec<(i64, i64)>,
    /// Distance of the input's elements in each spatial dimension; empty for 1. More than 1 is a transposed convolution.
    pub lhs_dilation: Vec<i64>,
    /// Distance of the kernel's elements in each spatial dimension; empty for 1.
    pub rhs_dilation: Vec<i64>,
    /// Groups of features that see only each other; 0 for 1.
    pub feature_groups: i64,
    /// Groups of the batch, each for output features of its own; 0 for 1.
    pub batch_groups: i64,
}

impl<'b> Op<'b> {
    /// The general dot product of two arrays of one element type.
    #[track_caller]
    pub fn dot_general(self, other: Op<'b>, dims: &DotDims) -> Op<'b> {
        let (Some((dtype, _)), Some((other_dtype, _))) = (self.array("dot"), other.array("dot")) else {
            return self.builder.failed();
        };
        if dtype != other_dtype {
            let (left, right) = (self.text(), other.text());
            let message = format!("{left} and {right} have different element types: convert one of them");
            return self.builder.fail("dot", message);
        }
        let numbers = DotDimensionNumbers {
            lhs_contracting_dimensions: dims.lhs_contracting.clone(),
            rhs_contracting_dimensions: dims.rhs_contracting.clone(),
            lhs_batch_dimensions: dims.lhs_batch.clone(),
            rhs_batch_dimensions: dims.rhs_batch.clone(),
            ..DotDimensionNumbers::default()
        };
        let dot = HloInstructionProto::from(HloInstructionCommon {
            opcode: "dot".into(),
            dot_dimension_numbers: Some(numbers).into(),
            ..Default::default()
        });
        self.builder.push(dot, &[self, other])
    }

    /// The matrix product as of `numpy.matmul`: of the last two dimensions, those before them broadcast; of vectors, whose
    /// dimension is summed over.
    #[track_caller]
    pub fn matmul(self, other: Op<'b>) -> Op<'b> {
        let (Some((_, left)), Some((_, right))) = (self.array("matmul"), other.array("matmul")) else {
            return self.builder.failed();
        };
        if left.is_empty() || right.is_empty() {
            return self.builder.fail("matmul", format!("{} or {} is a scalar", self.text(), other.text()));
        }
        let contracted = (left[left.len() - 1], right[right.len().saturating_sub(2)]);
        if contracted.0 != contracted.1 {
            let (a, b) = (self.text(), other.text());
            let message =
                format!("{a} and {b}: the dimensions summed over have the sizes {} and {}", contracted.0, contracted.1);
            return self.builder.fail("matmul", message);
        }
        if right.len() <= 2 {
            let numbers = DotDims {
                lhs_contracting: vec![left.len() as i64 - 1],
                rhs_contracting: vec![right.len().saturating_sub(2) as i64],
                ..DotDims::default()
            };
            return self.dot_general(other, &numbers);
        }
        if left.len() == 1 {
            return self.expand_dims(0).matmul(other).squeeze(&[-2]);
        }
        let (left_batch, left_matrix) = left.split_at(left.len() - 2);
        let (right_batch, right_matrix) = right.split_at(right.len() - 2);
        let Some(batch) = broadcast_dims(left_batch, right_batch) else {
            let (a, b) = (self.text(), other.text());
            let message = format!("the dimensions of {a} and {b} before the last two cannot be broadcast to one shape");
            return self.builder.fail("matmul", message);
        };
        let rank = batch.len() as i64;
        let numbers = DotDims {
            lhs_contracting: vec![rank + 1],
            rhs_contracting: vec![rank],
            lhs_batch: (0..rank).collect(),
            rhs_batch: (0..rank).collect(),
        };
        let left = self.broadcast_to(&[&batch, left_matrix].concat());
        let right = other.broadcast_to(&[&batch, right_matrix].concat());
        left.dot_general(right, &numbers)
    }

    /// The convolution of an input, `[batch, spatial…, features]`, with a kernel,
    /// `[spatial…, input features, output features]`, as `NHWC` and `HWIO` in JAX; for other orders transpose. The result
    /// lies as the input does.
    #[track_caller]
    pub fn conv(self, kernel: Op<'b>, options: &Conv) -> Op<'b> {
        let (Some((_, input)), Some((_, sizes))) = (self.array("convolution"), kernel.array("convolution")) else {
            return self.builder.failed();
        };
        if input.len() != sizes.len() || input.len() < 2 {
            let (input, kernel) = (self.text(), kernel.text());
            let message = format!("the input {input} and the kernel {kernel} must have one rank, of 2 at least");
            return self.builder.fail("convolution", message);
        }
        let spatial = input.len() - 2;
        let given =
            [options.strides.len(), options.padding.len(), options.lhs_dilation.len(), options.rhs_dilation.len()];
        if given.iter().any(|&given| given != 0 && given != spatial) {
            let message =
                format!("strides, padding and dilations must be given for {spatial} spatial dimensions, or for none");
            return self.builder.fail("convolution", message);
        }
        let or_one = |values: &[i64], dim: usize| values.get(dim).copied().unwrap_or(1);
        let window = (0..spatial).map(|dim| {
            let (padding_low, padding_high) = options.padding.get(dim).copied().unwrap_or_default();
            WindowDimension {
                size: sizes[dim],
                stride: or_one(&options.strides, dim),
                padding_low,
                padding_high,
                window_dilation: or_one(&options.rhs_dilation, dim),
                base_dilation: or_one(&options.lhs_dilation, dim),
                ..WindowDimension::default()
            }
        });
        let last = spatial as i64 + 1;
        let numbers = ConvolutionDimensionNumbers {
            input_batch_dimension: 0,
            input_feature_dimension: last,
            input_spatial_dimensions: (1..last).collect(),
            kernel_input_feature_dimension: last - 1,
            kernel_output_feature_dimension: last,
            kernel_spatial_dimensions: (0..last - 1).collect(),
            output_batch_dimension: 0,
            output_feature_dimension: last,
            output_spatial_dimensions: (1..last).collect(),
            ..ConvolutionDimensionNumbers::default()
        };
        let convolution = HloInstructionProto::new("convolution").with_details(HloInstructionDetails {
            window: Some(Window { dimensions: window.collect(), ..Window::default() }).into(),
            convolution_dimension_numbers: Some(numbers).into(),
            feature_group_count: options.feature_groups.max(1),
            batch_group_count: options.batch_groups.max(1),
            ..Default::default()
        });
        self.builder.push(convolution, &[self, kernel])
    }
}

impl Builder {
    /// The sum of products that the equation names, of two arrays: `einsum("bqhd,bkhd->bhqk", q, k)`, as `numpy.einsum`.
    /// Every letter of one side that the result lacks is summed over.
    #[track_caller]
    pub fn einsum<'b>(&'b self, equation: &str, left: Op<'b>, right: Op<'b>) -> Op<'b> {
        super::einsum::einsum(equation, left, right)
    }
}
