//! Windows, paddings, convolution dimension labels, slices.

use super::Parser;
use super::cursor::fail;
use super::error::{Failure, Result};
use crate::hlo::MAX_LABELS;
use crate::proto::block_scaling_config::TensorBlockScalingConfig;
use crate::proto::hlo_instruction_details::SliceDimensions;
use crate::proto::padding_config::PaddingConfigDimension;
use crate::proto::sparsity_config::TensorSparsityConfig;
use crate::proto::{
    BlockScalingConfig, ConvolutionDimensionNumbers, PaddingConfig, SparsityConfig, Window, WindowDimension,
};

impl<'a> Parser<'a> {
    /// `{size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=1x1 rhs_dilate=1x1 rhs_reversal=0x0}`
    pub(super) fn window(&mut self) -> Result<Window> {
        let start = self.pos();
        let mut size = None;
        let mut rest = Vec::new();
        self.expect(b'{', "before the window")?;
        while !self.eat(b'}') {
            let at = self.pos();
            let field = self.word("a part of a window, such as size=3x3")?;
            self.expect(b'=', "after the name")?;
            match field {
                "size" => size = Some(self.sizes()?),
                "pad" => rest.push((field, at, self.paddings(2, 2)?)),
                "stride" | "lhs_dilate" | "rhs_dilate" | "rhs_reversal" => {
                    rest.push((field, at, self.sizes()?.into_iter().map(|size| vec![size]).collect()));
                }
                other => {
                    let message = format!(
                        "unknown part '{other}' of a window; expected size, stride, pad, lhs_dilate, rhs_dilate or rhs_reversal"
                    );
                    return Err(fail(at, message));
                }
            }
            self.eat(b',');
        }
        let size = match size {
            Some(size) => size,
            None if rest.is_empty() => Vec::new(),
            None => return Err(fail(start, "the window has no size")),
        };
        let dimension =
            |size| WindowDimension { size, stride: 1, window_dilation: 1, base_dilation: 1, ..Default::default() };
        let mut dimensions: Vec<WindowDimension> = size.into_iter().map(dimension).collect();
        for (field, at, values) in rest {
            if values.len() != dimensions.len() {
                let message = format!("the window has {} dimensions, its {field} {}", dimensions.len(), values.len());
                return Err(fail(at, message));
            }
            for (dimension, value) in dimensions.iter_mut().zip(values) {
                match field {
                    "stride" => dimension.stride = value[0],
                    "lhs_dilate" => dimension.base_dilation = value[0],
                    "rhs_dilate" => dimension.window_dilation = value[0],
                    "rhs_reversal" => dimension.window_reversal = value[0] == 1,
                    _ => (dimension.padding_low, dimension.padding_high) = (value[0], value[1]),
                }
            }
        }
        Ok(Window { dimensions, ..Default::default() })
    }

    /// `3x1x5`
    pub(super) fn sizes(&mut self) -> Result<Vec<i64>> {
        let start = self.pos();
        let run = self.run("sizes, such as 3x3", |byte| byte.is_ascii_digit() || byte == b'x')?;
        numbers(run, 'x').ok_or_else(|| fail(start, "expected sizes, such as 3x3"))
    }

    /// `0_1x-1_2`: numbers joined by `_`, between `least` and `most` for each dimension.
    fn paddings(&mut self, least: usize, most: usize) -> Result<Vec<Vec<i64>>> {
        let start = self.pos();
        let wrong = || fail(start, "expected the padding of each dimension, such as 0_1x0_1");
        let run =
            self.run("paddings, such as 0_1x0_1", |byte| byte.is_ascii_digit() || matches!(byte, b'x' | b'_' | b'-'))?;
        let dimensions =
            run.split('x').map(|dimension| numbers(dimension, '_').filter(|p| (least..=most).contains(&p.len())));
        dimensions.collect::<Option<_>>().ok_or_else(wrong)
    }

    /// `0_0_0x1_1`: low, high and interior padding.
    pub(super) fn padding_config(&mut self) -> Result<PaddingConfig> {
        let dimensions = self.paddings(2, 3)?.into_iter().map(|padding| PaddingConfigDimension {
            edge_padding_low: padding[0],
            edge_padding_high: padding[1],
            interior_padding: padding.get(2).copied().unwrap_or(0),
            ..Default::default()
        });
        Ok(PaddingConfig { dimensions: dimensions.collect(), ..Default::default() })
    }

    /// `b01f_01io->b01f`
    pub(super) fn convolution_dimension_numbers(&mut self) -> Result<ConvolutionDimensionNumbers> {
        let start = self.pos();
        let run = self.run("dimension labels, such as b01f_01io->b01f", |byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'>' | b'?')
        })?;
        let wrong = || fail(start, format!("'{run}' is no pattern like b01f_01io->b01f"));
        let (lhs, rest) = run.split_once('_').ok_or_else(wrong)?;
        let (rhs, output) = rest.split_once("->").ok_or_else(wrong)?;
        let lhs = labels(start, lhs, b'b', b'f')?;
        let rhs = labels(start, rhs, b'i', b'o')?;
        let output = labels(start, output, b'b', b'f')?;
        if lhs.spatial.len() != rhs.spatial.len() || lhs.spatial.len() != output.spatial.len() {
            return Err(fail(start, "the three parts of the labels have different numbers of spatial dimensions"));
        }
        Ok(ConvolutionDimensionNumbers {
            input_batch_dimension: lhs.first,
            input_feature_dimension: lhs.second,
            input_spatial_dimensions: lhs.spatial,
            kernel_input_feature_dimension: rhs.first,
            kernel_output_feature_dimension: rhs.second,
            kernel_spatial_dimensions: rhs.spatial,
            output_batch_dimension: output.first,
            output_feature_dimension: output.second,
            output_spatial_dimensions: output.spatial,
            ..Default::default()
        })
    }

    /// `{[0:2], [1:7:3]}`
    pub(super) fn slice_dimensions(&mut self) -> Result<Vec<SliceDimensions>> {
        self.list(b'{', b'}', "slice", |parser| {
            parser.expect(b'[', "before the range")?;
            let start = parser.integer()?;
            parser.expect(b':', "after the start")?;
            let limit = parser.integer()?;
            let stride = if parser.eat(b':') { parser.integer()? } else { 1 };
            parser.expect(b']', "after the range")?;
            Ok(SliceDimensions { start, limit, stride, ..Default::default() })
        })
    }

    /// `{lhs={sparsity=2x4 dimension=1 stride=1 idx=2} rhs={...}}`
    pub(super) fn sparsity_config(&mut self) -> Result<SparsityConfig> {
        let [lhs, rhs] = self.operand_fields("sparsity", |parser, tensor: &mut TensorSparsityConfig, field, at| {
            match field {
                "sparsity" => match parser.sizes()?.as_slice() {
                    &[num_non_zero, block_size] => {
                        (tensor.num_non_zero, tensor.block_size) = (num_non_zero, block_size);
                    }
                    _ => return Err(fail(at, "expected the sparsity as in 2x4")),
                },
                "dimension" => tensor.dimension = parser.integer()?,
                "stride" => tensor.stride = parser.integer()?,
                "idx" => tensor.idx = parser.integer_i32()?,
                other => return Err(unknown_field(at, other, "sparsity, dimension, stride or idx")),
            }
            Ok(())
        })?;
        Ok(SparsityConfig { lhs: lhs.into(), rhs: rhs.into(), ..Default::default() })
    }

    /// `{lhs={scale_idx=2 zero_idx=4 strides=1x32 steps=1x1} rhs={...}}`
    pub(super) fn block_scaling_config(&mut self) -> Result<BlockScalingConfig> {
        let [lhs, rhs] =
            self.operand_fields("block scaling", |parser, tensor: &mut TensorBlockScalingConfig, field, at| {
                match field {
                    "scale_idx" => tensor.scale_idx = parser.integer_i32()?,
                    "zero_idx" => tensor.zero_idx = Some(parser.integer_i32()?),
                    "strides" => tensor.strides = parser.sizes()?,
                    "steps" => tensor.steps = parser.sizes()?,
                    other => return Err(unknown_field(at, other, "scale_idx, zero_idx, strides or steps")),
                }
                Ok(())
            })?;
        Ok(BlockScalingConfig { lhs: lhs.into(), rhs: rhs.into(), ..Default::default() })
    }

    /// `{lhs={…} rhs={…}}`: what is said of the two operands of a dot, each field read by `value`.
    fn operand_fields<T: Default>(
        &mut self,
        what: &str,
        mut value: impl FnMut(&mut Self, &mut T, &'a str, usize) -> Result<()>,
    ) -> Result<[Option<T>; 2]> {
        let mut operands = [None, None];
        self.for_each_field(&format!("{what} configuration"), |parser, side, at| {
            let mut operand = T::default();
            parser.for_each_field(what, |parser, field, at| value(parser, &mut operand, field, at))?;
            match side {
                "lhs" => operands[0] = Some(operand),
                "rhs" => operands[1] = Some(operand),
                other => return Err(unknown_field(at, other, "lhs or rhs")),
            }
            Ok(())
        })?;
        Ok(operands)
    }

    /// Calls `value` for each `name=` in braces, with the name and its place. Commas are optional.
    pub(super) fn for_each_field(
        &mut self,
        what: &str,
        mut value: impl FnMut(&mut Self, &'a str, usize) -> Result<()>,
    ) -> Result<()> {
        if !self.eat(b'{') {
            return Err(self.expected(&format!("'{{' before the {what}")));
        }
        while !self.eat(b'}') {
            let at = self.pos();
            let field = self.peek_word().ok_or_else(|| self.expected(&format!("a part of the {what} or '}}'")))?;
            self.eat_str(field);
            self.expect(b'=', "after the name")?;
            value(self, field, at)?;
            self.eat(b',');
        }
        Ok(())
    }
}

pub(super) fn unknown_field(at: usize, field: &str, expected: &str) -> Failure {
    fail(at, format!("unknown part '{field}'; expected {expected}"))
}

fn numbers(run: &str, separator: char) -> Option<Vec<i64>> {
    run.split(separator).map(|number| number.parse().ok()).collect()
}

/// Where the labels of one operand of a convolution put its dimensions.
struct Labels {
    first: i64,
    second: i64,
    spatial: Vec<i64>,
}

/// Reads one part of the labels. Dimensions labelled `?` are not named by the result.
fn labels(start: usize, part: &str, first: u8, second: u8) -> Result<Labels> {
    let wrong = || {
        let (first, second) = (first as char, second as char);
        fail(start, format!("'{part}' is no set of labels: expected each of {first}, {second} and 0, 1, 2, ... once"))
    };
    if part.len() > MAX_LABELS {
        return Err(fail(start, format!("labels for {} dimensions: arrays have {MAX_LABELS} at most", part.len())));
    }
    let spatial = part.bytes().filter(u8::is_ascii_digit).count();
    let mut labels = Labels { first: -1, second: -1, spatial: vec![-1; spatial] };
    for (index, label) in (0..).zip(part.bytes()) {
        let slot = match label {
            b'?' => continue,
            label if label == first => Some(&mut labels.first),
            label if label == second => Some(&mut labels.second),
            b'0'..=b'9' => labels.spatial.get_mut(usize::from(label - b'0')),
            _ => None,
        };
        match slot {
            Some(slot) if *slot == -1 => *slot = index,
            _ => return Err(wrong()),
        }
    }
    // XLA leaves a batch or feature dimension that no label names at its default.
    (labels.first, labels.second) = (labels.first.max(0), labels.second.max(0));
    Ok(labels)
}
