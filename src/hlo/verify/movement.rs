//! Operations that move elements, and `iota`.

use super::dims::{expect_dim, expect_dims, expect_distinct, expect_same, same_dims, same_size, text};
use super::elementwise::{expect_class, expect_integers};
use super::types::Class;
use super::{Check, Site, ensure};
use crate::dtype::DType;
use crate::hlo::shape::{self, join};
use crate::proto::{PrimitiveType, ShapeProto};

/// Sizes that `get-dimension-size` and `set-dimension-size` can tell: those that fit an `s32`.
const LONGEST_DYNAMIC: i64 = i32::MAX as i64;

pub(super) fn broadcast(site: &Site) -> Check {
    let (operand, result) = (site.array(0)?, site.array_result()?);
    let dims = &site.instruction.dimensions;
    ensure!(
        dims.len() == operand.dimensions.len(),
        "it maps {} dimensions of an operand that has {}",
        dims.len(),
        operand.dimensions.len()
    );
    let to = expect_distinct("dimension", dims, result.dimensions.len())?;
    site.expect_type("it", result, operand)?;
    let fits = to.iter().zip(&operand.dimensions).all(|(&to, &size)| same_size(result.dimensions[to], size));
    if !fits {
        let mut expected = result.dimensions.clone();
        to.into_iter().zip(&operand.dimensions).for_each(|(to, &size)| expected[to] = size);
        expect_dims(result, &expected)?;
    }
    Ok(())
}

pub(super) fn reshape(site: &Site) -> Check {
    let (operand, result) = (site.array(0)?, site.array_result()?);
    site.expect_type("it", result, operand)?;
    expect_distinct("inferred_dimension", &site.instruction.dimensions, result.dimensions.len())?;
    same_count(operand, result)
}

/// As many elements before as after.
fn same_count(operand: &ShapeProto, result: &ShapeProto) -> Check {
    let (Some(from), Some(to)) = (shape::num_elements(operand), shape::num_elements(result)) else { return Ok(()) };
    ensure!(from == to, "it makes {} with {to} elements of {} with {from}", text(result), text(operand));
    Ok(())
}

pub(super) fn dynamic_reshape(site: &Site) -> Check {
    let (operand, result) = (site.array(0)?, site.array_result()?);
    site.expect_type("it", result, operand)?;
    let (sizes, rank) = (site.operands.len() - 1, result.dimensions.len());
    ensure!(sizes == rank, "it is given {sizes} sizes for the {rank} dimensions of {}", text(result));
    for index in 1..site.operands.len() {
        let size = site.array(index)?;
        let is_size = size.element_type == PrimitiveType::S32 && size.dimensions.is_empty();
        ensure!(is_size, "a size is {}, and it must be s32[]", text(size));
    }
    same_count(operand, result)
}

/// The same bits in another shape.
pub(super) fn bitcast(site: &Site) -> Check {
    let (operand, result) = (site.operand(0), site.shape());
    let size = |shape: &ShapeProto| shape::num_elements(shape)?.checked_mul(shape::dtype(shape)?.bits() as u64);
    let (Some(from), Some(to)) = (size(operand), size(result)) else {
        let arrays = shape::dtype(operand).is_some() == shape::dtype(result).is_some();
        ensure!(arrays, "it makes {} of {}", text(result), text(operand));
        return Ok(());
    };
    ensure!(from == to, "it makes {} with {to} bits of {} with {from}", text(result), text(operand));
    Ok(())
}

pub(super) fn transpose(site: &Site) -> Check {
    let operand = site.array(0)?;
    let (dims, rank) = (&site.instruction.dimensions, operand.dimensions.len());
    let order = expect_distinct("dimension", dims, rank)?;
    ensure!(order.len() == rank, "dimensions={{{}}} must name each of the {rank} dimensions once", join(dims));
    let expected: Vec<i64> = order.into_iter().map(|dim| operand.dimensions[dim]).collect();
    site.expect_result(site.dtype(0)?, &expected)
}

pub(super) fn concatenate(site: &Site) -> Check {
    let first = site.array(0)?;
    let dim = site.one_dimension()?;
    let mut sum = Some(0i64);
    for index in 0..site.operands.len() {
        let operand = site.array(index)?;
        let same = operand.element_type == first.element_type && operand.dimensions.len() == first.dimensions.len();
        let mut sides = (0..).zip(operand.dimensions.iter().zip(&first.dimensions));
        ensure!(
            same && sides.all(|(side, (&a, &b))| side == dim || same_size(a, b)),
            "the operands have different shapes: {} and {}",
            text(first),
            text(operand)
        );
        let size = operand.dimensions[dim];
        sum = match sum {
            _ if size == shape::UNBOUNDED => return Ok(()),
            Some(sum) => sum.checked_add(size),
            None => None,
        };
    }
    let mut expected = first.dimensions.clone();
    expected[dim] = sum.ok_or("the result is too large")?;
    site.expect_result(site.dtype(0)?, &expected)
}

pub(super) fn pad(site: &Site) -> Check {
    let operand = site.array(0)?;
    site.scalar_of(1, operand)?;
    let padding = &site.instruction.details().padding_config.dimensions;
    let rank = operand.dimensions.len();
    ensure!(padding.len() == rank, "it pads {} dimensions of {}", padding.len(), text(operand));
    let mut expected = Vec::with_capacity(rank);
    for (&size, padding) in operand.dimensions.iter().zip(padding) {
        let (low, high, interior) = (padding.edge_padding_low, padding.edge_padding_high, padding.interior_padding);
        ensure!(interior >= 0, "its interior padding is {interior}, and it must not be negative");
        let padded = || {
            let spread = (size - 1).max(0).checked_mul(interior)?.checked_add(size)?;
            spread.checked_add(low)?.checked_add(high)
        };
        expected.push(match size {
            shape::UNBOUNDED => size,
            _ => padded().filter(|&size| size >= 0).ok_or_else(|| {
                format!("a dimension of {size}, padded by {low}_{high}_{interior}, would be negative or too large")
            })?,
        });
    }
    site.expect_result(site.dtype(0)?, &expected)
}

pub(super) fn reverse(site: &Site) -> Check {
    let operand = site.array(0)?;
    expect_distinct("dimension", &site.instruction.dimensions, operand.dimensions.len())?;
    expect_same("it", site.shape(), operand)
}

pub(super) fn iota(site: &Site) -> Check {
    let [dim] = site.instruction.dimensions.as_slice() else { return Err("it needs one iota_dimension".to_owned()) };
    let result = site.array_result()?;
    expect_class("it", result, Class::Number)?;
    expect_dim("iota_dimension", *dim, result.dimensions.len()).map(drop)
}

pub(super) fn slice(site: &Site) -> Check {
    let operand = site.array(0)?;
    let slices = &site.instruction.details().slice_dimensions;
    ensure!(slices.len() == operand.dimensions.len(), "it slices {} dimensions of {}", slices.len(), text(operand));
    let mut expected = Vec::with_capacity(slices.len());
    for (slice, &size) in slices.iter().zip(&operand.dimensions) {
        let (start, limit, stride) = (slice.start, slice.limit, slice.stride);
        ensure!(
            0 <= start && start <= limit && (size == shape::UNBOUNDED || limit <= size) && stride > 0,
            "[{start}:{limit}:{stride}] does not lie within a dimension of {size}"
        );
        expected.push((limit - start).div_euclid(stride) + i64::from((limit - start) % stride != 0));
    }
    site.expect_result(site.dtype(0)?, &expected)
}

/// Start indices: one scalar for each dimension, or all of them in one vector.
fn start_indices(site: &Site, first: usize, rank: usize) -> Check {
    let indices = &site.operands[first.min(site.operands.len())..];
    let vector = indices.len() == 1 && *indices[0].shape.dimensions == [rank as i64];
    let scalars = indices.len() == rank && indices.iter().all(|index| index.shape.dimensions.is_empty());
    ensure!(
        vector || scalars,
        "it has {} start indices for {rank} dimensions, and needs one scalar for each or one vector",
        indices.len()
    );
    for index in indices {
        expect_integers("a start index", &index.shape)?;
        let same = index.shape.element_type == indices[0].shape.element_type;
        ensure!(same, "its start indices are {} and {}", text(&indices[0].shape), text(&index.shape));
    }
    Ok(())
}

/// Sizes of a part must be those of a part of the operand.
pub(super) fn within(what: &str, sizes: &[i64], operand: &ShapeProto) -> Check {
    ensure!(
        sizes.len() == operand.dimensions.len(),
        "{what} [{}] have another rank than {}",
        join(sizes),
        text(operand)
    );
    let fits = |(&size, &dim): (&i64, &i64)| dim == shape::UNBOUNDED || (0 <= size && size <= dim);
    let fits = sizes.iter().zip(&operand.dimensions).all(fits);
    ensure!(fits, "{what} [{}] do not fit into {}", join(sizes), text(operand));
    Ok(())
}

pub(super) fn dynamic_slice(site: &Site) -> Check {
    let operand = site.array(0)?;
    let sizes = &site.instruction.details().dynamic_slice_sizes;
    within("the sizes", sizes, operand)?;
    start_indices(site, 1, sizes.len())?;
    site.expect_result(site.dtype(0)?, sizes)
}

pub(super) fn dynamic_update_slice(site: &Site) -> Check {
    // What is updated may be a buffer, which holds one array.
    let operand = match &site.operand(0).tuple_shapes[..] {
        [array] if site.operand(0).element_type == PrimitiveType::BUFFER => array,
        _ => site.array(0)?,
    };
    let update = site.array(1)?;
    if !same_dims(&update.dimensions, &operand.dimensions) {
        within("the update's dimensions", &update.dimensions, operand)?;
    }
    site.expect_type("the update", update, operand)?;
    start_indices(site, 2, operand.dimensions.len())?;
    expect_same("it", site.shape(), site.operand(0))
}

pub(super) fn dimension_size(site: &Site) -> Check {
    let operand = site.array(0)?;
    let dim = site.one_dimension()?;
    let size = operand.dimensions[dim];
    ensure!(size <= LONGEST_DYNAMIC, "dimension {dim} of {} has a size that does not fit s32", text(operand));
    if site.instruction.opcode == "get-dimension-size" {
        return site.expect_result(DType::S32, &[]);
    }
    let size = site.array(1)?;
    let is_size = size.element_type == PrimitiveType::S32 && size.dimensions.is_empty();
    ensure!(is_size, "the size is {}, and it must be s32[]", text(size));
    expect_same("it", site.shape(), operand)
}
