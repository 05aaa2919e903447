//! A bitcast reads the bytes of one array as another one: here as operations on elements, which need no layouts.

use std::collections::HashMap;

use crate::dtype::DType;
use crate::hlo::literal::{DenseWriter, Scalar};
use crate::hlo::shape;
use crate::lower::Error;
use crate::lower::module::Fresh;
use crate::proto::hlo_instruction_details::SliceDimensions;
use crate::proto::padding_config::PaddingConfigDimension;
use crate::proto::{
    HloInstructionCommon, HloInstructionProto, InlineString, LayoutProto, PaddingConfig, ShapeProto, SharedShape,
};

/// An operation on one array.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// These dimensions for the same elements in row-major order.
    Reshape(Vec<i64>),
    /// Dimension `i` of the result is dimension `permutation[i]` of the operand.
    Transpose(Vec<usize>),
    /// Zeros at the end of each dimension, up to these sizes.
    Pad(Vec<i64>),
    /// As many elements of each dimension, from the first one.
    Slice(Vec<i64>),
    /// The bits of elements as elements of another type. A wider type takes the last dimension together, a narrower one
    /// adds a dimension.
    BitcastConvert(DType),
    /// The values of elements in another type.
    Convert(DType),
}

/// An array on its way through steps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    pub dtype: DType,
    pub dims: Vec<i64>,
}

/// The steps from an array to another one, and what each of them starts from.
pub(super) struct Path {
    pub steps: Vec<(Value, Step)>,
    pub result: Value,
}

/// Appends what does the same as a bitcast, without layouts; the last instruction has its id and name.
pub(super) fn undo(
    mut bitcast: HloInstructionProto,
    shapes: &HashMap<i64, SharedShape>,
    computation: i64,
    fresh: &mut Fresh,
    to: &mut Vec<HloInstructionProto>,
) -> Result<(), Error> {
    let operand = bitcast.operand_ids.first().and_then(|id| shapes.get(id));
    let path = operand.ok_or("it has no operand").and_then(|operand| path(operand, &bitcast.shape));
    let Path { steps, mut result } = path.map_err(|what| Error::malformed(&bitcast.name, what))?;
    if steps.is_empty() {
        bitcast.opcode = "copy".into();
        shape::set_row_major(bitcast.shape.get_or_insert_default());
        to.push(bitcast);
        return Ok(());
    }
    // From the last one, which is the bitcast's successor, to the first.
    let mut successor = Some((bitcast.id, bitcast.name.clone()));
    let mut reversed = Vec::with_capacity(steps.len() + 1);
    for (index, (start, step)) in steps.into_iter().enumerate().rev() {
        let mut fresh_names = || (fresh.instruction(computation), fresh.name(&bitcast.name).into());
        let (id, name) = successor.take().unwrap_or_else(&mut fresh_names);
        let input = if index == 0 { None } else { Some(fresh_names()) };
        let operand = input.as_ref().map(|(id, _)| *id).or(bitcast.operand_ids.first().copied());
        let mut instruction = HloInstructionProto::from(HloInstructionCommon {
            name,
            id,
            operand_ids: operand.into_iter().collect(),
            shape: shape::array(result.dtype, &result.dims).into(),
            metadata: bitcast.metadata.clone(),
            ..Default::default()
        });
        let padding = step.write(&start, &mut instruction);
        let padding = padding.then(|| zero(start.dtype, fresh_names()));
        instruction.operand_ids.extend(padding.iter().map(|zero| zero.id));
        reversed.push(instruction);
        reversed.extend(padding);
        successor = input;
        result = start;
    }
    to.extend(reversed.into_iter().rev());
    Ok(())
}

impl Step {
    /// Writes opcode and attributes of the step; whether it needs a padding value as its second operand.
    fn write(&self, start: &Value, instruction: &mut HloInstructionProto) -> bool {
        let opcode = match self {
            Step::Reshape(_) => "reshape",
            Step::Transpose(permutation) => {
                instruction.dimensions = permutation.iter().map(|&dim| dim as i64).collect();
                "transpose"
            }
            Step::Pad(sizes) => {
                let behind = |(to, from): (&i64, &i64)| PaddingConfigDimension {
                    edge_padding_high: to - from,
                    ..PaddingConfigDimension::default()
                };
                let dimensions = sizes.iter().zip(&start.dims).map(behind).collect();
                instruction.details_mut().padding_config =
                    PaddingConfig { dimensions, ..PaddingConfig::default() }.into();
                "pad"
            }
            Step::Slice(sizes) => {
                let first = |&limit: &i64| SliceDimensions { limit, stride: 1, ..SliceDimensions::default() };
                instruction.details_mut().slice_dimensions = sizes.iter().map(first).collect();
                "slice"
            }
            Step::BitcastConvert(_) => "bitcast-convert",
            Step::Convert(_) => "convert",
        };
        instruction.opcode = opcode.into();
        matches!(self, Step::Pad(_))
    }

    /// The step back to an array of these dimensions. Types are not changed back.
    fn inverse(self, dims: Vec<i64>) -> Step {
        match self {
            Step::Reshape(_) => Step::Reshape(dims),
            Step::Pad(_) => Step::Slice(dims),
            Step::Slice(_) => Step::Pad(dims),
            Step::Transpose(permutation) => {
                let mut inverse = vec![0; permutation.len()];
                permutation.into_iter().enumerate().for_each(|(to, from)| inverse[from] = to);
                Step::Transpose(inverse)
            }
            convert => convert,
        }
    }

    fn is_identity(&self, start: &Value) -> bool {
        match self {
            Step::Reshape(dims) | Step::Pad(dims) | Step::Slice(dims) => *dims == start.dims,
            Step::Transpose(permutation) => permutation.iter().copied().eq(0..permutation.len()),
            Step::BitcastConvert(dtype) | Step::Convert(dtype) => *dtype == start.dtype,
        }
    }

    fn result(&self, start: &Value) -> Value {
        let mut result = start.clone();
        match self {
            Step::Reshape(dims) | Step::Pad(dims) | Step::Slice(dims) => result.dims.clone_from(dims),
            Step::Transpose(permutation) => result.dims = permutation.iter().map(|&dim| start.dims[dim]).collect(),
            Step::Convert(dtype) => result.dtype = *dtype,
            Step::BitcastConvert(dtype) => {
                result.dtype = *dtype;
                match (start.dtype.bits(), dtype.bits()) {
                    (from, to) if from > to => result.dims.push((from / to) as i64),
                    (from, to) if from < to => drop(result.dims.pop()),
                    _ => {}
                }
            }
        }
        result
    }
}

impl Path {
    fn new(start: Value) -> Path {
        Path { steps: Vec::new(), result: start }
    }

    /// Adds a step, and makes one of two that come to one.
    fn push(&mut self, step: Step) {
        if step.is_identity(&self.result) {
            return;
        }
        let merged = match (self.steps.last(), &step) {
            (Some((_, Step::Reshape(_))), Step::Reshape(_)) => Some(step.clone()),
            (Some((_, Step::Transpose(first))), Step::Transpose(second)) => {
                Some(Step::Transpose(second.iter().map(|&dim| first[dim]).collect()))
            }
            _ => None,
        };
        match merged {
            Some(merged) => {
                self.result = self.steps.pop().map_or_else(|| self.result.clone(), |(start, _)| start);
                self.push(merged);
            }
            None => {
                let result = step.result(&self.result);
                self.steps.push((std::mem::replace(&mut self.result, result), step));
            }
        }
    }
}

/// What a bitcast between these shapes does.
pub(super) fn path(from: &ShapeProto, to: &ShapeProto) -> Result<Path, &'static str> {
    let (start, end) = (array(from)?, array(to)?);
    let is_dynamic = |shape: &ShapeProto| shape.is_dynamic_dimension.contains(&true);
    let (mut path, back) = (to_memory(from, start)?, to_memory(to, end)?);
    convert(&mut path, (from, to), back.result.dtype)?;
    let size = |dims: &[i64]| dims.iter().try_fold(1i64, |product, &dim| product.checked_mul(dim));
    if size(&path.result.dims) != size(&back.result.dims) {
        return Err("the sizes of its operand and its result differ");
    }
    path.push(Step::Reshape(back.result.dims));
    for (start, step) in back.steps.into_iter().rev() {
        path.push(step.inverse(start.dims));
    }
    if (is_dynamic(from) || is_dynamic(to)) && !path.steps.is_empty() {
        return Err("it changes an array whose size is known at run time only");
    }
    Ok(path)
}

fn array(shape: &ShapeProto) -> Result<Value, &'static str> {
    let dtype = shape::dtype(shape).ok_or("its operand and its result must be arrays")?;
    shape::num_elements(shape).ok_or("it has an array without bound")?;
    Ok(Value { dtype, dims: shape.dimensions.clone() })
}

/// From an array to one that has its elements, row-major, in the order in which they lie in memory.
fn to_memory(shape: &ShapeProto, value: Value) -> Result<Path, &'static str> {
    let rank = shape.dimensions.len();
    let layout: &LayoutProto = &shape.layout;
    let mut path = Path::new(value);
    if !layout.minor_to_major.is_empty() {
        if !shape::is_permutation(&layout.minor_to_major, rank) {
            return Err("its layouts do not fit its shapes");
        }
        path.push(Step::Transpose(layout.minor_to_major.iter().rev().map(|&dim| dim as usize).collect()));
    }
    for tile in &layout.tiles {
        apply_tile(&mut path, &tile.dimensions)?;
    }
    Ok(path)
}

/// Cuts the most minor dimensions into tiles, which lie one after the other.
fn apply_tile(path: &mut Path, tile: &[i64]) -> Result<(), &'static str> {
    if tile.iter().any(|&size| size < 1) {
        return Err("its layouts have tiles over merged dimensions");
    }
    let mut dims = path.result.dims.clone();
    if dims.len() < tile.len() {
        let missing = std::iter::repeat_n(1, tile.len() - dims.len());
        dims.splice(0..0, missing);
        path.push(Step::Reshape(dims.clone()));
    }
    let first = dims.len() - tile.len();
    for (dim, &size) in dims[first..].iter_mut().zip(tile) {
        let up = dim.checked_add(size - 1).ok_or("its tiles are too large")?;
        *dim = up / size * size;
    }
    dims.iter().try_fold(1i64, |product, &dim| product.checked_mul(dim)).ok_or("its tiles are too large")?;
    path.push(Step::Pad(dims.clone()));
    let cut = dims[first..].iter().zip(tile).flat_map(|(&dim, &size)| [dim / size, size]);
    path.push(Step::Reshape(dims[..first].iter().copied().chain(cut).collect()));
    let which = (0..tile.len()).map(|index| first + 2 * index);
    let within = (0..tile.len()).map(|index| first + 2 * index + 1);
    path.push(Step::Transpose((0..first).chain(which).chain(within).collect()));
    Ok(())
}

/// Makes elements of another type of the elements in memory.
fn convert(path: &mut Path, shapes: (&ShapeProto, &ShapeProto), to: DType) -> Result<(), &'static str> {
    let from = path.result.dtype;
    if from == to {
        return Ok(());
    }
    let width = |shape: &ShapeProto, dtype: DType| match shape.layout.element_size_in_bits {
        0 => dtype.bits().max(8),
        bits => bits as usize,
    };
    let (from_width, to_width) = (width(shapes.0, from), width(shapes.1, to));
    let is_integer = |dtype| matches!(dtype, DType::S8 | DType::U8);
    if from == DType::Pred && is_integer(to) || to == DType::Pred && is_integer(from) {
        path.push(Step::Convert(to));
        return Ok(());
    }
    let is_complex = |dtype| matches!(dtype, DType::C64 | DType::C128);
    let ratio = to.bits() / from.bits();
    let fits = from.bits().is_multiple_of(to.bits()) || to.bits().is_multiple_of(from.bits());
    let packed = from_width * to.bits() == to_width * from.bits();
    if [from, to].contains(&DType::Pred) || is_complex(from) != is_complex(to) || !fits || !packed {
        return Err("no other operation reads elements of its operand's type as those of its result");
    }
    if ratio > 1 {
        let count: i64 = path.result.dims.iter().product();
        if count % ratio as i64 != 0 {
            return Err("the sizes of its operand and its result differ");
        }
        path.push(Step::Reshape(vec![count / ratio as i64, ratio as i64]));
    }
    path.push(Step::BitcastConvert(to));
    Ok(())
}

/// A constant zero under this id and name.
fn zero(dtype: DType, (id, name): (i64, InlineString)) -> HloInstructionProto {
    let value = match dtype {
        DType::Pred => Scalar::Bool(false),
        DType::C64 | DType::C128 => Scalar::Complex(0.0, 0.0),
        _ => Scalar::Int(0),
    };
    let shape = shape::scalar(dtype);
    let mut writer = DenseWriter::new(dtype, 1);
    let literal = writer.push(value).and_then(|()| writer.finish(shape.clone())).unwrap_or_default();
    let opcode = "constant".into();
    HloInstructionCommon { name, id, opcode, shape: shape.into(), literal: literal.into(), ..Default::default() }.into()
}
