//! Operands and results of each opcode.

use super::calls::{async_shape, call, conditional, expect_parameters, expect_predicate, while_loop};
use super::dims::{bounded, expect_dim, expect_dims, expect_same, text, without};
use super::{Check, Site, ensure};
use crate::dtype::DType;
use crate::hlo::infer::{can_infer, distinct, infer, windowed};
use crate::hlo::opcode::{Opcode, Rule};
use crate::hlo::shape;
use crate::proto::ShapeProto;

pub(super) fn check(site: &Site) -> Check {
    let Some(opcode) = Opcode::from_name(&site.instruction.opcode) else { return Ok(()) };
    if takes_arrays(opcode) {
        for index in 0..site.operands.len() {
            array(site, index)?;
        }
    }
    check_own(site)?;
    if !can_infer(opcode.rule) {
        return Ok(());
    }
    let operands: Vec<&ShapeProto> = site.operands.iter().map(|operand| &*operand.shape).collect();
    if operands.iter().flat_map(|shape| shape::leaves(shape)).any(|leaf| bounded(leaf).is_none()) {
        return Ok(());
    }
    let called = site.called.first().map(|called| called.result);
    let expected = infer(opcode, site.instruction, &operands, called)?;
    // The products of narrow types may be kept in wider ones.
    match opcode.rule {
        Rule::Dot | Rule::Convolution => expect_dims(site.shape(), &expected.dimensions),
        _ => expect_same("it", site.shape(), &expected),
    }
}

/// Whether all operands of such instructions are arrays.
fn takes_arrays(opcode: &Opcode) -> bool {
    let plain = [
        "bitcast-convert",
        "convert",
        "dynamic-reshape",
        "dynamic-slice",
        "dynamic-update-slice",
        "reduce-precision",
        "reshape",
        "reverse",
        "slice",
    ];
    match opcode.rule {
        Rule::Plain => plain.contains(&opcode.name),
        Rule::LikeFirst => matches!(opcode.name, "batch-norm-inference" | "cholesky" | "reverse" | "reduce-precision"),
        Rule::AfterAll
        | Rule::AsyncDone
        | Rule::AsyncStart
        | Rule::AsyncUpdate
        | Rule::Call
        | Rule::Collective
        | Rule::Conditional
        | Rule::Constant
        | Rule::CustomCall
        | Rule::DeviceId
        | Rule::Fusion
        | Rule::GetTupleElement
        | Rule::Outfeed
        | Rule::Parameter
        | Rule::Scan
        | Rule::Tuple
        | Rule::While => false,
        _ => true,
    }
}

fn check_own(site: &Site) -> Check {
    match site.instruction.opcode.as_str() {
        "broadcast" => broadcast(site),
        "reshape" | "bitcast" => same_size(site),
        "bitcast-convert" => bitcast_convert(site),
        "convert" => expect_dims(array_result(site)?, &array(site, 0)?.dimensions),
        "reverse" => distinct(&site.instruction.dimensions, rank(site, 0)?).map(drop),
        "iota" => iota(site),
        "slice" => slice(site),
        "dynamic-slice" => dynamic_slice(site),
        "dynamic-update-slice" => dynamic_update_slice(site),
        "concatenate" => distinct(&site.instruction.dimensions, rank(site, 0)?).map(drop),
        "get-dimension-size" | "set-dimension-size" => one_dimension(site).map(drop),
        "select" => select(site),
        "clamp" => clamp(site),
        "pad" => scalar_of(site, 1, array(site, 0)?),
        "dot" => dot(site),
        "convolution" => convolution(site),
        "gather" => gather(site),
        "scatter" => scatter(site),
        "reduce" => reduce(site),
        "reduce-window" => paired_inputs(site),
        "select-and-scatter" => select_and_scatter(site),
        "sort" => sort(site),
        "map" => map(site),
        "topk" => topk(site),
        "fft" => fft(site),
        "cholesky" | "triangular-solve" => square(site),
        "batch-norm-training" | "batch-norm-inference" | "batch-norm-grad" => batch_norm(site),
        "while" => while_loop(site),
        "conditional" => conditional(site),
        "call" | "fusion" => call(site),
        "async-start" | "async-update" => async_shape(site),
        "copy-start" | "send" | "recv" | "recv-done" | "infeed" | "collective-permute-start" | "all-gather-start" => {
            ensure!(
                shape::is_tuple(site.shape()) && !site.shape().tuple_shapes.is_empty(),
                "its shape is {}, and it must be a tuple of several parts",
                text(site.shape())
            );
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The operand, which must be an array.
fn array<'m>(site: &Site<'_, 'm>, index: usize) -> Result<&'m ShapeProto, String> {
    let shape = site.operand(index);
    ensure!(shape::dtype(shape).is_some(), "operand {index} is {}, and it must be an array", text(shape));
    Ok(shape)
}

fn array_result<'m>(site: &Site<'_, 'm>) -> Result<&'m ShapeProto, String> {
    ensure!(shape::dtype(site.shape()).is_some(), "its shape is {}, and it must be an array", text(site.shape()));
    Ok(site.shape())
}

fn rank(site: &Site, index: usize) -> Result<usize, String> {
    Ok(array(site, index)?.dimensions.len())
}

fn expect_type(what: &str, found: &ShapeProto, expected: &ShapeProto) -> Check {
    ensure!(
        found.element_type == expected.element_type,
        "{what} has the shape {}, and its element type must be that of {}",
        text(found),
        text(expected)
    );
    Ok(())
}

/// The operand must be a scalar of another shape's element type.
fn scalar_of(site: &Site, index: usize, like: &ShapeProto) -> Check {
    let scalar = array(site, index)?;
    ensure!(scalar.dimensions.is_empty(), "operand {index} is {}, and it must be a scalar", text(scalar));
    expect_type(&format!("operand {index}"), scalar, like)
}

fn one_dimension(site: &Site) -> Result<usize, String> {
    let [dim] = site.instruction.dimensions.as_slice() else {
        return Err(format!("it names {} dimensions instead of one", site.instruction.dimensions.len()));
    };
    expect_dim("dimension", *dim, rank(site, 0)?)
}

fn broadcast(site: &Site) -> Check {
    let (operand, result) = (array(site, 0)?, array_result(site)?);
    let dims = &site.instruction.dimensions;
    ensure!(
        dims.len() == operand.dimensions.len(),
        "it maps {} dimensions of an operand that has {}",
        dims.len(),
        operand.dimensions.len()
    );
    let to = distinct(dims, result.dimensions.len())?;
    expect_type("it", result, operand)?;
    let mut expected = result.dimensions.clone();
    for (to, &size) in to.into_iter().zip(&operand.dimensions) {
        expected[to] = size;
    }
    expect_dims(result, &expected)
}

/// Reshape and bitcast: as many elements, or as many bits.
fn same_size(site: &Site) -> Check {
    let is_reshape = site.instruction.opcode == "reshape";
    let (operand, result) = (site.operand(0), site.shape());
    let size = |shape: &ShapeProto| {
        let bits = if is_reshape { 1 } else { shape::dtype(shape)?.bits() as u64 };
        shape::num_elements(shape)?.checked_mul(bits)
    };
    if is_reshape {
        expect_type("it", array_result(site)?, operand)?;
        let inferred = site.instruction.dimensions.as_slice();
        distinct(inferred, result.dimensions.len())?;
    }
    let (Some(from), Some(to)) = (size(operand), size(result)) else { return Ok(()) };
    let unit = if is_reshape { "elements" } else { "bits" };
    ensure!(from == to, "it makes {} with {to} {unit} of {} with {from}", text(result), text(operand));
    Ok(())
}

fn bitcast_convert(site: &Site) -> Check {
    let (operand, result) = (array(site, 0)?, array_result(site)?);
    let bits = |shape| shape::dtype(shape).map_or(1, DType::bits);
    let (from, to) = (bits(operand), bits(result));
    let mut expected = operand.dimensions.clone();
    if from > to {
        expected.push((from / to) as i64);
    } else if from < to {
        let minor = expected.pop();
        ensure!(minor == Some((to / from) as i64), "the last dimension of {} must be {}", text(operand), to / from);
    }
    expect_dims(result, &expected)
}

fn iota(site: &Site) -> Check {
    let [dim] = site.instruction.dimensions.as_slice() else { return Err("it needs one iota_dimension".to_owned()) };
    expect_dim("iota_dimension", *dim, array_result(site)?.dimensions.len()).map(drop)
}

fn slice(site: &Site) -> Check {
    let (operand, result) = (array(site, 0)?, array_result(site)?);
    let slices = &site.instruction.slice_dimensions;
    ensure!(slices.len() == operand.dimensions.len(), "it slices {} dimensions of {}", slices.len(), text(operand));
    expect_type("it", result, operand)?;
    let Some(sizes) = bounded(operand) else { return Ok(()) };
    let mut expected = Vec::with_capacity(sizes.len());
    for (slice, &size) in slices.iter().zip(sizes) {
        let (start, limit, stride) = (slice.start, slice.limit, slice.stride);
        ensure!(
            0 <= start && start <= limit && limit <= size && stride > 0,
            "[{start}:{limit}:{stride}] does not lie within a dimension of {size}"
        );
        expected.push((limit - start).div_euclid(stride) + i64::from((limit - start) % stride != 0));
    }
    expect_dims(result, &expected)
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
        let integer = shape::dtype(&index.shape).is_some_and(|dtype| dtype.name().starts_with(['s', 'u']));
        ensure!(integer, "a start index is {}, and must be an integer", text(&index.shape));
    }
    Ok(())
}

fn within(what: &str, sizes: &[i64], operand: &ShapeProto) -> Check {
    ensure!(
        sizes.len() == operand.dimensions.len(),
        "{what} [{}] have another rank than {}",
        shape::join(sizes),
        text(operand)
    );
    let Some(dims) = bounded(operand) else { return Ok(()) };
    let fits = sizes.iter().zip(dims).all(|(&size, &dim)| 0 <= size && size <= dim);
    ensure!(fits, "{what} [{}] do not fit into {}", shape::join(sizes), text(operand));
    Ok(())
}

fn dynamic_slice(site: &Site) -> Check {
    let (operand, result) = (array(site, 0)?, array_result(site)?);
    let sizes = &site.instruction.dynamic_slice_sizes;
    within("the sizes", sizes, operand)?;
    start_indices(site, 1, sizes.len())?;
    expect_type("it", result, operand)?;
    expect_dims(result, sizes)
}

fn dynamic_update_slice(site: &Site) -> Check {
    let (operand, update) = (array(site, 0)?, array(site, 1)?);
    within("the update's dimensions", &update.dimensions, operand)?;
    expect_type("the update", update, operand)?;
    start_indices(site, 2, operand.dimensions.len())?;
    expect_same("it", site.shape(), operand)
}

fn select(site: &Site) -> Check {
    let (predicate, on_true) = (array(site, 0)?, array(site, 1)?);
    ensure!(shape::dtype(predicate) == Some(DType::Pred), "it selects by {}, and that must be pred", text(predicate));
    ensure!(
        predicate.dimensions.is_empty() || predicate.dimensions == on_true.dimensions,
        "the predicate {} must be a scalar or have the dimensions of {}",
        text(predicate),
        text(on_true)
    );
    expect_same("the other choice", array(site, 2)?, on_true)
}

fn clamp(site: &Site) -> Check {
    let operand = array(site, 1)?;
    for index in [0, 2] {
        let bound = array(site, index)?;
        if bound.dimensions.is_empty() {
            expect_type("a bound", bound, operand)?;
        } else {
            expect_same("a bound", bound, operand)?;
        }
    }
    Ok(())
}

fn dot(site: &Site) -> Check {
    let (lhs, rhs) = (array(site, 0)?, array(site, 1)?);
    let numbers = &site.instruction.dot_dimension_numbers;
    let pairs = [
        ("contracting", &numbers.lhs_contracting_dimensions, &numbers.rhs_contracting_dimensions),
        ("batch", &numbers.lhs_batch_dimensions, &numbers.rhs_batch_dimensions),
    ];
    for (what, left, right) in pairs {
        ensure!(left.len() == right.len(), "the sides have {} and {} {what} dimensions", left.len(), right.len());
        let left = distinct(left, lhs.dimensions.len())?;
        let right = distinct(right, rhs.dimensions.len())?;
        for (left, right) in left.into_iter().zip(right) {
            let (a, b) = (lhs.dimensions[left], rhs.dimensions[right]);
            let unbounded = [a, b].contains(&shape::UNBOUNDED);
            ensure!(a == b || unbounded, "the {what} dimensions {left} and {right} have the sizes {a} and {b}");
        }
    }
    Ok(())
}

fn convolution(site: &Site) -> Check {
    let (lhs, rhs) = (rank(site, 0)?, rank(site, 1)?);
    let n = &site.instruction.convolution_dimension_numbers;
    let result = array_result(site)?.dimensions.len();
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
    for (what, rank, first, second, spatial) in sides {
        let dims = [&[first, second], spatial.as_slice()].concat();
        ensure!(
            shape::is_permutation(&dims, rank),
            "the {what} dimensions {{{}}} must name each of {rank} once",
            shape::join(&dims)
        );
    }
    for (what, count) in [
        ("feature_group_count", site.instruction.feature_group_count),
        ("batch_group_count", site.instruction.batch_group_count),
    ] {
        ensure!(count >= 0, "{what} is {count}");
    }
    Ok(())
}

fn gather(site: &Site) -> Check {
    let (operand, indices) = (array(site, 0)?, rank(site, 1)?);
    let numbers = &site.instruction.gather_dimension_numbers;
    within("the slice sizes", &site.instruction.gather_slice_sizes, operand)?;
    let vector = numbers.index_vector_dim;
    ensure!((0..=indices as i64).contains(&vector), "index_vector_dim {vector} must lie within the rank {indices}");
    distinct(&numbers.start_index_map, operand.dimensions.len())?;
    distinct(&numbers.start_indices_batching_dims, indices).map(drop)
}

fn scatter(site: &Site) -> Check {
    let count = site.operands.len() / 2;
    let (operand, indices, updates) = (array(site, 0)?, rank(site, count)?, array(site, count + 1)?);
    let numbers = &site.instruction.scatter_dimension_numbers;
    let vector = numbers.index_vector_dim;
    ensure!((0..=indices as i64).contains(&vector), "index_vector_dim {vector} must lie within the rank {indices}");
    distinct(&numbers.update_window_dims, updates.dimensions.len())?;
    let dropped = [numbers.inserted_window_dims.as_slice(), &numbers.input_batching_dims].concat();
    distinct(&dropped, operand.dimensions.len())?;
    distinct(&numbers.scatter_dims_to_operand_dims, operand.dimensions.len())?;
    distinct(&numbers.scatter_indices_batching_dims, indices)?;
    for index in 1..count {
        expect_dims(array(site, index)?, &operand.dimensions)?;
        expect_dims(array(site, count + 1 + index)?, &updates.dimensions)?;
    }
    expect_parameters(site, 0, 2 * count)
}

/// Inputs of the same dimensions, then as many scalars to start with.
fn paired_inputs(site: &Site) -> Check {
    let count = site.operands.len() / 2;
    let first = array(site, 0)?;
    for index in 0..count {
        let input = array(site, index)?;
        ensure!(
            input.dimensions == first.dimensions,
            "its inputs have different dimensions: {} and {}",
            text(first),
            text(input)
        );
        let start = array(site, count + index)?;
        ensure!(start.dimensions.is_empty(), "the initial value {} must be a scalar", text(start));
    }
    expect_parameters(site, 0, 2 * count)
}

fn reduce(site: &Site) -> Check {
    paired_inputs(site)?;
    let operand = array(site, 0)?;
    distinct(&site.instruction.dimensions, operand.dimensions.len())?;
    let expected = without(&operand.dimensions, &site.instruction.dimensions);
    shape::leaves(site.shape()).into_iter().try_for_each(|leaf| expect_dims(leaf, &expected))
}

fn select_and_scatter(site: &Site) -> Check {
    let (operand, source) = (array(site, 0)?, array(site, 1)?);
    scalar_of(site, 2, operand)?;
    expect_parameters(site, 0, 2)?;
    expect_parameters(site, 1, 2)?;
    expect_dims(source, &windowed(&operand.dimensions, &site.instruction.window.dimensions)?)
}

fn sort(site: &Site) -> Check {
    one_dimension(site)?;
    let first = array(site, 0)?;
    for index in 1..site.operands.len() {
        expect_dims(array(site, index)?, &first.dimensions)?;
    }
    expect_parameters(site, 0, 2 * site.operands.len())?;
    site.called.first().map_or(Ok(()), |called| expect_predicate(called))
}

fn map(site: &Site) -> Check {
    let first = array(site, 0)?;
    for index in 1..site.operands.len() {
        expect_dims(array(site, index)?, &first.dimensions)?;
    }
    expect_parameters(site, 0, site.operands.len())
}

fn topk(site: &Site) -> Check {
    let operand = array(site, 0)?;
    let last = operand.dimensions.last().copied().unwrap_or(0);
    let k = site.instruction.k;
    ensure!((0..=last).contains(&k), "k is {k}, and the last dimension of {} has {last}", text(operand));
    Ok(())
}

fn fft(site: &Site) -> Check {
    let lengths = &site.instruction.fft_length;
    let rank = rank(site, 0)?;
    ensure!((1..=3).contains(&lengths.len()), "it transforms {} dimensions, and 1 to 3 are possible", lengths.len());
    ensure!(lengths.len() <= rank, "it transforms {} dimensions of {rank}", lengths.len());
    ensure!(lengths.iter().all(|&length| length >= 0), "its lengths {{{}}} are negative", shape::join(lengths));
    Ok(())
}

fn square(site: &Site) -> Check {
    let matrix = array(site, 0)?;
    let is_square = matches!(matrix.dimensions.as_slice(), [.., rows, columns] if rows == columns);
    ensure!(is_square, "{} is no square matrix", text(matrix));
    if site.operands.len() == 2 {
        let other = rank(site, 1)?;
        ensure!(
            other == matrix.dimensions.len(),
            "its operands have the ranks {} and {other}",
            matrix.dimensions.len()
        );
    }
    Ok(())
}

fn batch_norm(site: &Site) -> Check {
    let operand = array(site, 0)?;
    let feature = expect_dim("feature_index", site.instruction.feature_index, operand.dimensions.len())?;
    expect_dims(array(site, 1)?, &[operand.dimensions[feature]])
}
