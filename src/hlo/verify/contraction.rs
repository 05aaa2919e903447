//! Products: dot and its kin, and convolution.

use super::dims::{expect_dim, expect_distinct, same_dims, same_size, text};
use super::{Check, Site, ensure};
use crate::hlo::infer::windowed;
use crate::hlo::shape::{self, join};
use crate::proto::{ConvolutionKind, DotDimensionNumbers, ShapeProto, WindowDimension};

/// The dimensions of both sides that are neither contracted nor batch dimensions.
struct Free {
    lhs: Vec<usize>,
    rhs: Vec<usize>,
}

fn dot_numbers(lhs: &ShapeProto, rhs: &ShapeProto, numbers: &DotDimensionNumbers) -> Result<Free, String> {
    let pairs = [
        ("contracting", &numbers.lhs_contracting_dimensions, &numbers.rhs_contracting_dimensions),
        ("batch", &numbers.lhs_batch_dimensions, &numbers.rhs_batch_dimensions),
    ];
    for (what, left, right) in pairs {
        ensure!(left.len() == right.len(), "the sides have {} and {} {what} dimensions", left.len(), right.len());
        for (&left, &right) in left.iter().zip(right) {
            let a = lhs.dimensions[expect_dim("dimension", left, lhs.dimensions.len())?];
            let b = rhs.dimensions[expect_dim("dimension", right, rhs.dimensions.len())?];
            ensure!(same_size(a, b), "the {what} dimensions {left} and {right} have the sizes {a} and {b}");
        }
    }
    let free = |shape: &ShapeProto, batch: &[i64], contracting: &[i64]| {
        let rank = shape.dimensions.len();
        let used = expect_distinct("dimension", &[batch, contracting].concat(), rank)?;
        Ok::<Vec<usize>, String>((0..rank).filter(|dim| !used.contains(dim)).collect())
    };
    Ok(Free {
        lhs: free(lhs, &numbers.lhs_batch_dimensions, &numbers.lhs_contracting_dimensions)?,
        rhs: free(rhs, &numbers.rhs_batch_dimensions, &numbers.rhs_contracting_dimensions)?,
    })
}

fn sizes<'a>(shape: &'a ShapeProto, dims: impl IntoIterator<Item = usize> + 'a) -> impl Iterator<Item = i64> + 'a {
    dims.into_iter().map(|dim| shape.dimensions[dim])
}

/// Both sides' element types may differ, and the result may be kept in a third.
pub(super) fn dot(site: &Site) -> Check {
    let (lhs, rhs) = (site.array(0)?, site.array(1)?);
    let numbers = &*site.instruction.dot_dimension_numbers;
    let free = dot_numbers(lhs, rhs, numbers)?;
    let batch = numbers.lhs_batch_dimensions.iter().map(|&dim| dim as usize);
    let expected: Vec<i64> = sizes(lhs, batch).chain(sizes(lhs, free.lhs)).chain(sizes(rhs, free.rhs)).collect();
    product(site, &expected)
}

/// The result of a product has these dimensions and a type of the same kind as the operands'.
fn product(site: &Site, expected: &[i64]) -> Check {
    let result = site.array_result()?;
    ensure!(
        same_dims(&result.dimensions, expected),
        "its shape is {}, and its dimensions must be [{}]",
        text(result),
        join(expected)
    );
    Ok(())
}

/// A dot whose groups lie one after the other along a dimension of the left side.
pub(super) fn ragged_dot(site: &Site) -> Check {
    let (lhs, rhs, group_sizes) = (site.array(0)?, site.array(1)?, site.array(2)?);
    let numbers = &*site.instruction.details().ragged_dot_dimension_numbers;
    let dot = &*numbers.dot_dimension_numbers;
    let free = dot_numbers(lhs, rhs, dot)?;
    let [ragged] = numbers.lhs_ragged_dimensions.as_slice() else {
        return Err(format!("it has {} ragged dimensions instead of one", numbers.lhs_ragged_dimensions.len()));
    };
    let ragged = expect_dim("lhs_ragged_dims", *ragged, lhs.dimensions.len())?;
    let index = |dims: &[i64]| dims.iter().map(|&dim| dim as usize).collect::<Vec<_>>();
    let (batch, contracting) = (index(&dot.lhs_batch_dimensions), index(&dot.lhs_contracting_dimensions));
    let is_batch = batch.contains(&ragged);
    let is_contracting = contracting.contains(&ragged);
    let kind = if is_contracting { &contracting } else { &free.lhs };
    let before = |dims: &[usize]| dims.iter().copied().take_while(|&dim| dim != ragged).collect::<Vec<_>>();
    let prefix = if is_batch { before(&batch) } else { [batch.clone(), before(kind)].concat() };
    let Some((&groups, outer)) = group_sizes.dimensions.split_last() else {
        return Err(format!("the group sizes {} must have a dimension for the groups", text(group_sizes)));
    };
    let prefix: Vec<i64> = sizes(lhs, prefix).collect();
    ensure!(
        outer.is_empty() || same_dims(outer, &prefix),
        "the group sizes {} must have the dimensions [{}], then one for the groups",
        text(group_sizes),
        join(&prefix)
    );
    let group_dims = expect_distinct("rhs_group_dims", &numbers.rhs_group_dimensions, rhs.dimensions.len())?;
    let expected = usize::from(!is_batch && !is_contracting);
    ensure!(group_dims.len() == expected, "it has {} group dimensions instead of {expected}", group_dims.len());
    for &dim in &group_dims {
        ensure!(free.rhs.contains(&dim), "rhs_group_dims {dim} is a batch or contracting dimension");
        let size = rhs.dimensions[dim];
        ensure!(same_size(size, groups), "rhs_group_dims {dim} has the size {size} for {groups} groups");
    }
    let rhs_free = free.rhs.into_iter().filter(|dim| !group_dims.contains(dim)).collect::<Vec<_>>();
    let leading = is_contracting.then_some(groups);
    let outer = sizes(lhs, batch).chain(sizes(lhs, free.lhs));
    let expected: Vec<i64> = leading.into_iter().chain(outer).chain(sizes(rhs, rhs_free)).collect();
    product(site, &expected)
}

/// A dot whose operands 2 and 3 scale blocks of operands 0 and 1.
pub(super) fn scaled_dot(site: &Site) -> Check {
    dot(site)?;
    let scalars = [2, 3].iter().filter(|&&index| site.operand(index).dimensions.is_empty()).count();
    ensure!(scalars < 2, "one of its scales at least must be no scalar");
    for index in [0, 1] {
        let (operand, scale) = (site.array(index)?, site.array(index + 2)?);
        if operand.element_type == scale.element_type && scale.dimensions.iter().all(|&size| size == 1) {
            continue;
        }
        let divides = |(&size, &scale): (&i64, &i64)| scale > 0 && size % scale == 0;
        ensure!(
            operand.dimensions.len() == scale.dimensions.len()
                && operand.dimensions.iter().zip(&scale.dimensions).all(divides),
            "the scale {} must divide each dimension of {}",
            text(scale),
            text(operand)
        );
    }
    Ok(())
}

/// A window's dimensions: as many as the array's, and none empty or without a stride.
pub(super) fn expect_window(window: &[WindowDimension], rank: usize) -> Check {
    ensure!(window.len() == rank, "the window has {} dimensions instead of {rank}", window.len());
    for dim in window {
        let WindowDimension { size, stride, base_dilation, window_dilation, .. } = *dim;
        for (what, value) in
            [("size", size), ("stride", stride), ("lhs_dilate", base_dilation), ("rhs_dilate", window_dilation)]
        {
            ensure!(value > 0, "the window's {what} is {value}, and it must be positive");
        }
    }
    Ok(())
}

pub(super) fn convolution(site: &Site) -> Check {
    let (lhs, rhs) = (site.array(0)?, site.array(1)?);
    let n = &*site.instruction.details().convolution_dimension_numbers;
    let result = site.array_result()?;
    let sides = [
        ("input", lhs, n.input_batch_dimension, n.input_feature_dimension, &n.input_spatial_dimensions),
        (
            "kernel",
            rhs,
            n.kernel_input_feature_dimension,
            n.kernel_output_feature_dimension,
            &n.kernel_spatial_dimensions,
        ),
        ("output", result, n.output_batch_dimension, n.output_feature_dimension, &n.output_spatial_dimensions),
    ];
    for (what, shape, first, second, spatial) in sides {
        let (dims, rank) = ([&[first, second], spatial.as_slice()].concat(), shape.dimensions.len());
        ensure!(
            shape::is_permutation(&dims, rank),
            "the {what} dimensions {{{}}} must name each of {rank} once",
            join(&dims)
        );
    }
    let spatial = n.input_spatial_dimensions.len();
    ensure!(
        spatial == n.kernel_spatial_dimensions.len() && spatial == n.output_spatial_dimensions.len(),
        "its operands {} and {} and its result {} must have the same rank",
        text(lhs),
        text(rhs),
        text(result)
    );
    expect_window(&site.instruction.details().window.dimensions, spatial)?;
    // XLA takes its word for convolutions in the other kinds' numbering, which no front end writes.
    let forward = !matches!(
        site.instruction.details().conv_kind.as_known(),
        Some(ConvolutionKind::CONVOLUTION_KIND_DGRAD | ConvolutionKind::CONVOLUTION_KIND_WGRAD)
    );
    if forward && !site.instruction.details().sparsity_config.is_set() && !super::dims::is_unbounded(lhs) {
        forward_convolution(site, lhs, rhs)?;
    }
    Ok(())
}

fn forward_convolution(site: &Site, lhs: &ShapeProto, rhs: &ShapeProto) -> Check {
    let n = &*site.instruction.details().convolution_dimension_numbers;
    let size = |shape: &ShapeProto, dim: i64| shape.dimensions[dim as usize];
    let feature_groups = site.instruction.details().feature_group_count.max(1);
    let batch_groups = site.instruction.details().batch_group_count.max(1);
    let (batch, features) = (size(lhs, n.input_batch_dimension), size(lhs, n.input_feature_dimension));
    let kernel_features = size(rhs, n.kernel_input_feature_dimension);
    let outputs = size(rhs, n.kernel_output_feature_dimension);
    ensure!(
        features % feature_groups == 0 && features / feature_groups == kernel_features,
        "the input has {features} features in {feature_groups} groups, and the kernel takes {kernel_features}"
    );
    for (what, size, groups) in [
        ("output features", outputs, feature_groups),
        ("output features", outputs, batch_groups),
        ("elements of the batch", batch, batch_groups),
    ] {
        ensure!(size % groups == 0, "its {size} {what} cannot be split in {groups} groups");
    }
    let window = &site.instruction.details().window.dimensions;
    let kernel: Vec<i64> = n.kernel_spatial_dimensions.iter().map(|&dim| size(rhs, dim)).collect();
    ensure!(
        window.iter().map(|dim| dim.size).eq(kernel.iter().copied()),
        "the window's sizes {} must be the kernel's {}",
        window.iter().map(|dim| dim.size.to_string()).collect::<Vec<_>>().join("x"),
        kernel.iter().map(i64::to_string).collect::<Vec<_>>().join("x")
    );
    let input: Vec<i64> = n.input_spatial_dimensions.iter().map(|&dim| size(lhs, dim)).collect();
    let mut expected = vec![0; lhs.dimensions.len()];
    for (&dim, size) in n.output_spatial_dimensions.iter().zip(windowed(&input, window)?) {
        expected[dim as usize] = size;
    }
    expected[n.output_batch_dimension as usize] = batch / batch_groups;
    expected[n.output_feature_dimension as usize] = outputs;
    product(site, &expected)
}
