//! The result shapes that follow from operands and attributes.

use super::opcode::{Opcode, Rule};
use crate::dtype::DType;
use crate::hlo::shape::{array, compatible, dtype, is_tuple, scalar, text_without_layout, token, tuple};
use crate::proto::{
    DotDimensionNumbers, FftType, GatherDimensionNumbers, HloInstructionProto, PaddingConfig, ShapeProto,
    WindowDimension,
};

type Inferred = Result<ShapeProto, String>;

/// The shape of an instruction with these operands, as far as it follows from them; `called` is the result of the first
/// computation that it calls.
///
/// # Errors
/// The operands do not go together, or the shape of such an instruction does not follow from them.
pub(super) fn infer(
    opcode: &Opcode,
    instruction: &HloInstructionProto,
    operands: &[&ShapeProto],
    called: Option<&ShapeProto>,
) -> Inferred {
    let operand = |index: usize| operands.get(index).copied().ok_or_else(|| cannot_infer(opcode));
    let first = || operand(0);
    let called = || called.ok_or_else(|| "no computation is called".to_owned());
    match opcode.rule {
        Rule::LikeFirst | Rule::Cholesky | Rule::While | Rule::SelectAndScatter => Ok(first()?.clone()),
        Rule::LikeSecond | Rule::TriangularSolve => Ok(operand(1)?.clone()),
        Rule::Elementwise => elementwise(operands),
        Rule::RealPart => with_type(first()?, real_part(dtype(first()?))),
        Rule::IsFinite => with_type(first()?, Some(DType::Pred)),
        Rule::Compare => with_type(&elementwise(operands)?, Some(DType::Pred)),
        Rule::Complex => with_type(&elementwise(operands)?, complex(dtype(first()?))),
        Rule::AfterAll | Rule::Outfeed | Rule::SendDone => Ok(token()),
        Rule::Send => Ok(in_transfer(first()?)),
        Rule::RecvDone => {
            let received = first()?.tuple_shapes.first().ok_or("recv-done takes the tuple that recv returns")?;
            Ok(tuple(vec![received.clone(), token()]))
        }
        Rule::DeviceId => Ok(scalar(DType::U32)),
        Rule::GetDimensionSize => Ok(scalar(DType::S32)),
        Rule::BatchNorm => Ok(tuple([first()?, operand(1)?, operand(1)?].map(Clone::clone).to_vec())),
        Rule::Tuple => Ok(tuple(operands.iter().copied().cloned().collect())),
        Rule::Sort => Ok(one_or_tuple(operands)),
        Rule::Scatter => Ok(one_or_tuple(&operands[..operands.len() / 2])),
        Rule::GetTupleElement => tuple_element(first()?, instruction.tuple_index),
        Rule::Call | Rule::Conditional => Ok(called()?.clone()),
        Rule::Map => with_type(first()?, dtype(called()?)),
        Rule::Concatenate => concatenate(operands, &instruction.dimensions),
        Rule::Transpose => transpose(first()?, &instruction.dimensions),
        Rule::Reduce => reduce(instruction, first()?, called()?),
        Rule::ReduceWindow => reduce_window(instruction, operands),
        Rule::Dot => dot(first()?, operand(1)?, &instruction.dot_dimension_numbers),
        Rule::Convolution => convolution(first()?, operand(1)?, instruction),
        Rule::Gather => gather(
            first()?,
            operand(1)?,
            &instruction.details().gather_dimension_numbers,
            &instruction.details().gather_slice_sizes,
        ),
        Rule::Pad => pad(first()?, &instruction.details().padding_config),
        Rule::Fft => fft(first()?, instruction),
        Rule::TopK => top_k(first()?, instruction.details().k),
        Rule::SetDimensionSize => set_dimension_size(first()?, &instruction.dimensions),
        _ => Err(cannot_infer(opcode)),
    }
}

/// The shape of an instruction by its opcode's name, as [`infer`].
pub(crate) fn infer_shape(
    instruction: &HloInstructionProto,
    operands: &[&ShapeProto],
    called: Option<&ShapeProto>,
) -> Inferred {
    let opcode = Opcode::from_name(&instruction.opcode);
    let opcode = opcode.ok_or_else(|| format!("unknown opcode '{}'", instruction.opcode))?;
    infer(opcode, instruction, operands, called)
}

fn reduce(instruction: &HloInstructionProto, operand: &ShapeProto, called: &ShapeProto) -> Inferred {
    let kept = others(&instruction.dimensions, operand.dimensions.len())?;
    over_results(called, |element| with_dims(element, operand, &kept))
}

/// Its elements are of the initial values' types.
fn reduce_window(instruction: &HloInstructionProto, operands: &[&ShapeProto]) -> Inferred {
    let (arrays, inits) = operands.split_at(operands.len() / 2);
    let dims = arrays.first().map_or(&[][..], |operand| &operand.dimensions);
    let sizes = windowed(dims, &instruction.details().window.dimensions)?;
    let shapes: Vec<ShapeProto> =
        inits.iter().map(|init| Ok(array(element_type(init)?, &sizes))).collect::<Result<_, String>>()?;
    Ok(one_or_tuple(&shapes.iter().collect::<Vec<_>>()))
}

/// What send and recv return until they are done: the data, and what tells the transfer from others.
pub(super) fn in_transfer(data: &ShapeProto) -> ShapeProto {
    tuple(vec![data.clone(), scalar(DType::U32), token()])
}

/// The shape that `shape` makes of the element type that the called computation returns, for each of them.
fn over_results(called: &ShapeProto, shape: impl Fn(DType) -> Inferred) -> Inferred {
    let element = |result: &ShapeProto| {
        let element = dtype(result).ok_or_else(|| "the called computation returns no arrays".to_owned())?;
        shape(element)
    };
    if is_tuple(called) {
        Ok(tuple(called.tuple_shapes.iter().map(element).collect::<Result<_, _>>()?))
    } else {
        element(called)
    }
}

fn cannot_infer(opcode: &Opcode) -> String {
    format!("the shape of {} cannot be left out here", opcode.name)
}

fn elementwise(operands: &[&ShapeProto]) -> Inferred {
    let first = *operands.first().ok_or("there are no operands")?;
    match operands.iter().find(|other| !compatible(first, other)) {
        None => Ok(first.clone()),
        Some(other) => {
            let (first, other) = (text_without_layout(first), text_without_layout(other));
            Err(format!("the operands have different shapes: {first} and {other}"))
        }
    }
}

/// The shape with another element type.
fn with_type(shape: &ShapeProto, element: Option<DType>) -> Inferred {
    let element = element.ok_or_else(|| format!("{} is no operand of this operation", text_without_layout(shape)))?;
    let mut shape = shape.clone();
    shape.element_type = element.primitive_type().into();
    Ok(shape)
}

/// An array of some of another array's dimensions.
fn with_dims(element: DType, shape: &ShapeProto, dims: &[usize]) -> Inferred {
    let sizes: Vec<i64> = dims.iter().map(|&dim| shape.dimensions[dim]).collect();
    let mut result = array(element, &sizes);
    result.is_dynamic_dimension = dims.iter().map(|&dim| is_dynamic(shape, dim)).collect();
    Ok(result)
}

fn is_dynamic(shape: &ShapeProto, dim: usize) -> bool {
    shape.is_dynamic_dimension.get(dim).copied().unwrap_or(false)
}

fn real_part(element: Option<DType>) -> Option<DType> {
    match element {
        Some(DType::C64) => Some(DType::F32),
        Some(DType::C128) => Some(DType::F64),
        other => other,
    }
}

fn complex(element: Option<DType>) -> Option<DType> {
    match element {
        Some(DType::F32) => Some(DType::C64),
        Some(DType::F64) => Some(DType::C128),
        _ => None,
    }
}

fn one_or_tuple(shapes: &[&ShapeProto]) -> ShapeProto {
    match shapes {
        [shape] => (*shape).clone(),
        _ => tuple(shapes.iter().copied().cloned().collect()),
    }
}

fn tuple_element(shape: &ShapeProto, index: i64) -> Inferred {
    let element = usize::try_from(index).ok().and_then(|index| shape.tuple_shapes.get(index));
    element
        .filter(|_| is_tuple(shape))
        .cloned()
        .ok_or_else(|| format!("{} has no element {index}", text_without_layout(shape)))
}

/// Dimension numbers as indices, each once and below `rank`.
pub(super) fn distinct(dims: &[i64], rank: usize) -> Result<Vec<usize>, String> {
    let mut seen = vec![false; rank];
    let index = |&dim: &i64| {
        let index = usize::try_from(dim).ok().filter(|&index| index < rank);
        let new = index.filter(|&index| !std::mem::replace(&mut seen[index], true));
        new.ok_or_else(|| format!("dimension {dim} stands there twice or is not below {rank}"))
    };
    dims.iter().map(index).collect()
}

/// The dimensions below `rank` that are not in `dims`.
fn others(dims: &[i64], rank: usize) -> Result<Vec<usize>, String> {
    let mut kept = vec![true; rank];
    for dim in distinct(dims, rank)? {
        kept[dim] = false;
    }
    Ok((0..rank).filter(|&dim| kept[dim]).collect())
}

fn element_type(shape: &ShapeProto) -> Result<DType, String> {
    dtype(shape).ok_or_else(|| format!("{} is no array", text_without_layout(shape)))
}

fn concatenate(operands: &[&ShapeProto], dims: &[i64]) -> Inferred {
    let mut result = (*operands.first().ok_or("there are no operands")?).clone();
    let &[dim] = distinct(dims, result.dimensions.len())?.as_slice() else {
        return Err("concatenate has one dimension".to_owned());
    };
    for operand in &operands[1..] {
        let alike = (0..).zip(&operand.dimensions).zip(&result.dimensions).all(|((i, a), b)| i == dim || a == b);
        let same_rank = operand.dimensions.len() == result.dimensions.len();
        let size = *operand.dimensions.get(dim).ok_or("the operands have different ranks")?;
        if !alike || !same_rank || operand.element_type != result.element_type {
            result.dimensions[dim] = size;
            return elementwise(&[&result, operand]);
        }
        result.dimensions[dim] = result.dimensions[dim].checked_add(size).ok_or("the result is too large")?;
    }
    Ok(result)
}

fn transpose(operand: &ShapeProto, dims: &[i64]) -> Inferred {
    let dims = distinct(dims, operand.dimensions.len())?;
    if dims.len() != operand.dimensions.len() {
        return Err("the dimensions are no permutation".to_owned());
    }
    with_dims(element_type(operand)?, operand, &dims)
}

fn dot(lhs: &ShapeProto, rhs: &ShapeProto, numbers: &DotDimensionNumbers) -> Inferred {
    let lhs_batch = distinct(&numbers.lhs_batch_dimensions, lhs.dimensions.len())?;
    let free = |shape: &ShapeProto, batch: &[i64], contracting: &[i64]| {
        let free = others(&[batch, contracting].concat(), shape.dimensions.len())?;
        Ok::<Vec<i64>, String>(free.into_iter().map(|dim| shape.dimensions[dim]).collect())
    };
    let mut dims: Vec<i64> = lhs_batch.into_iter().map(|dim| lhs.dimensions[dim]).collect();
    dims.extend(free(lhs, &numbers.lhs_batch_dimensions, &numbers.lhs_contracting_dimensions)?);
    dims.extend(free(rhs, &numbers.rhs_batch_dimensions, &numbers.rhs_contracting_dimensions)?);
    Ok(array(element_type(lhs)?, &dims))
}

/// The number of places of a window in each dimension.
pub(super) fn windowed(sizes: &[i64], window: &[WindowDimension]) -> Result<Vec<i64>, String> {
    if sizes.len() != window.len() {
        return Err(format!("the window has {} dimensions, the operand {}", window.len(), sizes.len()));
    }
    let places = |size: i64, window: &WindowDimension| {
        let dilated = dilated(size, window.base_dilation)?;
        let padded = dilated.checked_add(window.padding_low)?.checked_add(window.padding_high)?;
        let width = self::dilated(window.size, window.window_dilation)?;
        if window.stride < 1 {
            return None;
        }
        Some(if padded < width { 0 } else { padded.checked_sub(width)? / window.stride + 1 })
    };
    let places = sizes.iter().zip(window).map(|(&size, window)| places(size, window));
    places.collect::<Option<_>>().ok_or_else(|| "the window does not fit 64 bits or has no stride".to_owned())
}

/// The width of `size` elements that stand `dilation` apart.
fn dilated(size: i64, dilation: i64) -> Option<i64> {
    if size == 0 { Some(0) } else { size.checked_sub(1)?.checked_mul(dilation)?.checked_add(1) }
}

fn convolution(lhs: &ShapeProto, rhs: &ShapeProto, instruction: &HloInstructionProto) -> Inferred {
    let numbers = &*instruction.details().convolution_dimension_numbers;
    let size = |shape: &ShapeProto, dim: i64| {
        let size = usize::try_from(dim).ok().and_then(|dim| shape.dimensions.get(dim)).copied();
        size.ok_or_else(|| format!("{} has no dimension {dim}", text_without_layout(shape)))
    };
    let spatial = numbers.input_spatial_dimensions.iter().map(|&dim| size(lhs, dim)).collect::<Result<Vec<_>, _>>()?;
    let spatial = windowed(&spatial, &instruction.details().window.dimensions)?;
    let mut dims = vec![0; lhs.dimensions.len()];
    let batch = size(lhs, numbers.input_batch_dimension)? / instruction.details().batch_group_count.max(1);
    let features = size(rhs, numbers.kernel_output_feature_dimension)?;
    let outer = [(numbers.output_batch_dimension, batch), (numbers.output_feature_dimension, features)];
    for (dim, size) in numbers.output_spatial_dimensions.iter().copied().zip(spatial).chain(outer) {
        let place = usize::try_from(dim).ok().and_then(|dim| dims.get_mut(dim));
        *place.ok_or_else(|| format!("the result has no dimension {dim}"))? = size;
    }
    Ok(array(element_type(lhs)?, &dims))
}

fn gather(
    operand: &ShapeProto,
    indices: &ShapeProto,
    numbers: &GatherDimensionNumbers,
    slice_sizes: &[i64],
) -> Inferred {
    let dropped = [numbers.collapsed_slice_dims.as_slice(), &numbers.operand_batching_dims].concat();
    let kept = others(&dropped, slice_sizes.len())?;
    let mut window = kept.iter().map(|&dim| slice_sizes[dim]);
    let batch = (0i64..).zip(&indices.dimensions).filter(|&(dim, _)| dim != numbers.index_vector_dim);
    let batch: Vec<i64> = batch.map(|(_, &size)| size).collect();
    let mut is_offset = vec![false; kept.len() + batch.len()];
    for dim in distinct(&numbers.offset_dims, is_offset.len())? {
        is_offset[dim] = true;
    }
    let mut batch = batch.into_iter();
    let dims = is_offset.into_iter().map(|is_offset| if is_offset { window.next() } else { batch.next() });
    let dims: Vec<i64> = dims.collect::<Option<_>>().ok_or("the offset dimensions do not fit the slice sizes")?;
    Ok(array(element_type(operand)?, &dims))
}

fn pad(operand: &ShapeProto, config: &PaddingConfig) -> Inferred {
    if config.dimensions.len() != operand.dimensions.len() {
        return Err("the padding and the operand have different ranks".to_owned());
    }
    let size = |(&size, padding): (&i64, &crate::proto::padding_config::PaddingConfigDimension)| {
        let spread = dilated(size, padding.interior_padding.checked_add(1)?)?;
        let size = spread.checked_add(padding.edge_padding_low)?.checked_add(padding.edge_padding_high)?;
        (size >= 0).then_some(size)
    };
    let dims: Option<Vec<i64>> = operand.dimensions.iter().zip(&config.dimensions).map(size).collect();
    let dims = dims.ok_or("a dimension would be negative or too large")?;
    let mut result = array(element_type(operand)?, &dims);
    result.is_dynamic_dimension.clone_from(&operand.is_dynamic_dimension);
    Ok(result)
}

fn fft(operand: &ShapeProto, instruction: &HloInstructionProto) -> Inferred {
    let mut result = operand.clone();
    let last = (result.dimensions.last_mut(), instruction.details().fft_length.last());
    let (Some(size), Some(&length)) = last else {
        return Err("a Fourier transform has at least one dimension".to_owned());
    };
    match instruction.details().fft_type.as_known() {
        Some(FftType::RFFT) => {
            *size = if length > 0 { length / 2 + 1 } else { 0 };
            with_type(&result, complex(dtype(operand)))
        }
        Some(FftType::IRFFT) => {
            *size = length;
            with_type(&result, real_part(dtype(operand)))
        }
        _ => Ok(result),
    }
}

fn top_k(operand: &ShapeProto, k: i64) -> Inferred {
    let mut values = operand.clone();
    *values.dimensions.last_mut().ok_or("topk needs an array with at least one dimension")? = k;
    let indices = with_type(&values, Some(DType::S32))?;
    Ok(tuple(vec![values, indices]))
}

fn set_dimension_size(operand: &ShapeProto, dims: &[i64]) -> Inferred {
    let mut result = operand.clone();
    for dim in distinct(dims, operand.dimensions.len())? {
        result.is_dynamic_dimension.resize(operand.dimensions.len(), false);
        result.is_dynamic_dimension[dim] = true;
    }
    Ok(result)
}
