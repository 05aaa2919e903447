//! Operations that apply a computation to elements.

use super::contraction::expect_window;
use super::dims::{
    compatible, expect_dim, expect_distinct, expect_same, expect_same_dims, is_unbounded, same_dims, same_size, text,
};
use super::types::is_float;
use super::{Check, Signature, Site, ensure};
use crate::dtype::DType;
use crate::hlo::infer::windowed;
use crate::hlo::shape;
use crate::proto::{PrimitiveType, ShapeProto};

/// What one pair of a reduction's computation is of: the value so far, and the next element.
pub(super) struct Reducer {
    pub(super) accumulator: DType,
    pub(super) input: DType,
}

/// The called computation takes the accumulators, then the elements, all scalars, and returns new accumulators.
pub(super) fn expect_reducer(site: &Site, called: usize, reducers: &[Reducer]) -> Check {
    let Some(signature) = site.called.get(called) else { return Ok(()) };
    let (count, name) = (reducers.len(), &signature.computation.name);
    expect_parameters(signature, 2 * count)?;
    let results = match &signature.result.tuple_shapes[..] {
        results if shape::is_tuple(signature.result) => results,
        _ => std::slice::from_ref(signature.result),
    };
    ensure!(results.len() == count, "'{name}' returns {} and must return {count} scalars", text(signature.result));
    for (index, reducer) in reducers.iter().enumerate() {
        let accumulator = &*signature.parameters[index].shape;
        let what = || format!("parameter {index} of '{name}'");
        expect_scalar(&what(), accumulator, reducer.accumulator)?;
        expect_scalar(&format!("result {index} of '{name}'"), &results[index], reducer.accumulator)?;
        let element = &*signature.parameters[count + index].shape;
        expect_scalar(&format!("parameter {} of '{name}'", count + index), element, reducer.input)?;
        ensure!(
            same_kind(reducer.accumulator, reducer.input),
            "'{name}' reduces elements of {} to {}",
            reducer.input,
            reducer.accumulator
        );
    }
    Ok(())
}

/// Whether values of one type can be accumulated in the other: floats of any precision can.
fn same_kind(a: DType, b: DType) -> bool {
    a == b || is_float(a) && is_float(b)
}

/// A scalar of this type, or of another precision of it.
fn expect_scalar(what: &str, shape: &ShapeProto, element: DType) -> Check {
    let fits = shape::dtype(shape).is_some_and(|dtype| same_kind(dtype, element)) && shape.dimensions.is_empty();
    ensure!(fits, "{what} is {}, and it must be {element}[]", text(shape));
    Ok(())
}

pub(super) fn expect_parameters(signature: &Signature, expected: usize) -> Check {
    let (found, name) = (signature.parameters.len(), &signature.computation.name);
    ensure!(found == expected, "'{name}' has {found} parameters, and {expected} are passed");
    Ok(())
}

pub(super) fn expect_predicate(called: &Signature) -> Check {
    let found = called.result;
    let is_predicate = found.element_type == PrimitiveType::PRED && found.dimensions.is_empty();
    ensure!(is_predicate, "'{}' returns {}, and it must return pred[]", called.computation.name, text(found));
    Ok(())
}

/// Inputs of the same dimensions, then as many scalars to start with, and a computation for them.
fn paired_inputs<'m>(site: &Site<'_, 'm>) -> Result<&'m ShapeProto, String> {
    let count = site.operands.len() / 2;
    let first = site.array(0)?;
    let mut reducers = Vec::with_capacity(count);
    for index in 0..count {
        let input = site.array(index)?;
        expect_same_dims(first, input)?;
        let start = site.array(count + index)?;
        ensure!(start.dimensions.is_empty(), "the initial value {} must be a scalar", text(start));
        let (accumulator, input) = (site.dtype(count + index)?, site.dtype(index)?);
        ensure!(
            same_kind(accumulator, input),
            "the initial value {} must have the type of {}",
            text(start),
            text(&site.operands[index].shape)
        );
        reducers.push(Reducer { accumulator, input });
    }
    expect_reducer(site, 0, &reducers)?;
    Ok(first)
}

/// The result is an array of these dimensions for each result of the called computation.
fn expect_results(site: &Site, dims: &[i64]) -> Check {
    let Some(called) = site.called.first() else { return Ok(()) };
    if !shape::is_tuple(called.result) {
        return site.expect_result(shape::dtype(called.result).ok_or("its computation returns no array")?, dims);
    }
    let (results, elements) = (&site.shape().tuple_shapes, &called.result.tuple_shapes);
    ensure!(
        shape::is_tuple(site.shape()) && results.len() == elements.len(),
        "its shape is {}, and it must be a tuple of {} arrays",
        text(site.shape()),
        elements.len()
    );
    for (index, (result, element)) in results.iter().zip(elements).enumerate() {
        ensure!(
            result.element_type == element.element_type && same_dims(&result.dimensions, dims),
            "its part {index} has the shape {}, and it must be of {} with the dimensions [{}]",
            text(result),
            text(element),
            shape::join(dims)
        );
    }
    Ok(())
}

pub(super) fn reduce(site: &Site) -> Check {
    let operand = paired_inputs(site)?;
    let rank = operand.dimensions.len();
    let reduced = expect_distinct("dimension", &site.instruction.dimensions, rank)?;
    let kept: Vec<i64> = (0..rank).filter(|dim| !reduced.contains(dim)).map(|dim| operand.dimensions[dim]).collect();
    expect_results(site, &kept)
}

pub(super) fn reduce_window(site: &Site) -> Check {
    let operand = paired_inputs(site)?;
    let window = &site.instruction.details().window.dimensions;
    expect_window(window, operand.dimensions.len())?;
    if is_unbounded(operand) {
        return Ok(());
    }
    expect_results(site, &windowed(&operand.dimensions, window)?)
}

pub(super) fn select_and_scatter(site: &Site) -> Check {
    let (operand, source) = (site.array(0)?, site.array(1)?);
    site.scalar_of(2, operand)?;
    let dtype = site.dtype(0)?;
    if let [select, _] = site.called.as_slice() {
        expect_parameters(select, 2)?;
        expect_predicate(select)?;
        for parameter in &select.parameters {
            expect_scalar(&format!("parameter '{}'", parameter.name), &parameter.shape, dtype)?;
        }
    }
    expect_reducer(site, 1, &[Reducer { accumulator: site.dtype(2)?, input: site.dtype(1)? }])?;
    let window = &site.instruction.details().window.dimensions;
    expect_window(window, operand.dimensions.len())?;
    if !is_unbounded(operand) {
        let places = windowed(&operand.dimensions, window)?;
        ensure!(
            same_dims(&source.dimensions, &places),
            "the source {} must have the dimensions [{}] of the window's places",
            text(source),
            shape::join(&places)
        );
    }
    site.expect_type("the source", source, operand)?;
    expect_same("it", site.shape(), operand)
}

pub(super) fn sort(site: &Site) -> Check {
    site.one_dimension()?;
    let first = site.array(0)?;
    for index in 1..site.operands.len() {
        expect_same_dims(first, site.array(index)?)?;
    }
    if let Some(compare) = site.called.first() {
        expect_parameters(compare, 2 * site.operands.len())?;
        expect_predicate(compare)?;
        for (index, parameter) in compare.parameters.iter().enumerate() {
            expect_scalar(&format!("parameter '{}'", parameter.name), &parameter.shape, site.dtype(index / 2)?)?;
        }
    }
    match site.operands.as_slice() {
        [operand] => expect_same("it", site.shape(), &operand.shape),
        operands => site.expect_tuple(operands.iter().map(|operand| &**operand.shape)),
    }
}

pub(super) fn map(site: &Site) -> Check {
    let first = site.array(0)?;
    let Some(called) = site.called.first() else { return Ok(()) };
    expect_parameters(called, site.operands.len())?;
    for (index, parameter) in called.parameters.iter().enumerate() {
        expect_same_dims(first, site.array(index)?)?;
        expect_scalar(&format!("parameter '{}'", parameter.name), &parameter.shape, site.dtype(index)?)?;
    }
    let element = shape::dtype(called.result).filter(|_| called.result.dimensions.is_empty());
    let element = element.ok_or_else(|| {
        format!("'{}' returns {}, and must return a scalar", called.computation.name, text(called.result))
    })?;
    site.expect_result(element, &first.dimensions)
}

pub(super) fn top_k(site: &Site) -> Check {
    let operand = site.array(0)?;
    let Some((&last, outer)) = operand.dimensions.split_last() else {
        return Err(format!("operand 0 is {}, and it must have a dimension", text(operand)));
    };
    let k = site.instruction.details().k;
    ensure!(
        k >= 0 && (k <= last || last == shape::UNBOUNDED),
        "k is {k}, and the last dimension of {} has {last}",
        text(operand)
    );
    let dims = [outer, &[k]].concat();
    site.expect_tuple([&shape::array(site.dtype(0)?, &dims), &shape::array(DType::S32, &dims)])
}

/// A loop over one dimension of its inputs that carries values and stacks its outputs.
pub(super) fn scan(site: &Site) -> Check {
    let [dim] = site.instruction.dimensions.as_slice() else {
        return Err(format!("it names {} dimensions instead of one", site.instruction.dimensions.len()));
    };
    let Some(called) = site.called.first() else { return Ok(()) };
    expect_parameters(called, site.operands.len())?;
    let parts =
        |shape: &'_ ShapeProto| if shape::is_tuple(shape) { shape.tuple_shapes.clone() } else { vec![shape.clone()] };
    let (roots, results) = (parts(called.result), parts(site.shape()));
    let (inputs, outputs) = (site.operands.len(), results.len());
    let name = &called.computation.name;
    ensure!(roots.len() == outputs, "it has {outputs} results, and '{name}' returns {}", roots.len());
    let carries =
        usize::try_from(site.instruction.details().num_carries).ok().filter(|&carries| carries <= inputs.min(outputs));
    let carries = carries.ok_or_else(|| {
        format!(
            "num_carries is {}, for {inputs} operands and {outputs} results",
            site.instruction.details().num_carries
        )
    })?;
    ensure!(inputs + outputs > 2 * carries, "it has no inputs and no outputs besides what it carries");
    let mut length = None;
    let mut slice = |what: &str, shape: &ShapeProto, stacked: bool| {
        let mut slice = shape.clone();
        if stacked {
            let size = slice.dimensions.remove(expect_dim("dimension", *dim, shape.dimensions.len())?);
            let length = *length.get_or_insert(size);
            ensure!(same_size(size, length), "{what} {} is not {length} long in dimension {dim}", text(shape));
        }
        Ok::<_, String>(slice)
    };
    for (index, (operand, parameter)) in site.operands.iter().zip(&called.parameters).enumerate() {
        let passed = slice("operand", &operand.shape, index < inputs - carries)?;
        expect_same(&format!("parameter '{}' of '{name}'", parameter.name), &parameter.shape, &passed)?;
    }
    for (index, (root, result)) in roots.iter().zip(&results).enumerate() {
        let returned = slice("result", result, index < outputs - carries)?;
        expect_same(&format!("result {index} of '{name}'"), root, &returned)?;
    }
    for (parameter, root) in called.parameters[inputs - carries..].iter().zip(&roots[outputs - carries..]) {
        ensure!(
            compatible(&parameter.shape, root),
            "'{name}' carries {} and returns {}",
            text(&parameter.shape),
            text(root)
        );
    }
    Ok(())
}
