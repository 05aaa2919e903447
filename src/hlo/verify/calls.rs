//! Calls: what is passed, taken and given back.

use super::dims::{expect_same, text};
use super::{Check, Signature, Site, ensure};
use crate::hlo::shape;
use crate::proto::{PrimitiveType, ShapeProto};

pub(super) fn call(site: &Site) -> Check {
    let Some(called) = site.called.first() else { return Ok(()) };
    expect_signature(called, site.operands.iter().map(|operand| &*operand.shape), site.shape())
}

pub(super) fn while_loop(site: &Site) -> Check {
    let state = site.operand(0);
    let [body, condition] = site.called.as_slice() else { return Ok(()) };
    expect_signature(body, std::iter::once(state), state)?;
    expect_predicate(condition)?;
    expect_signature(condition, std::iter::once(state), condition.result)
}

pub(super) fn conditional(site: &Site) -> Check {
    let selector = site.operand(0);
    let is_selector = selector.dimensions.is_empty()
        && (selector.element_type == PrimitiveType::PRED || selector.element_type == PrimitiveType::S32);
    ensure!(is_selector, "it selects a branch by {}, and that must be pred[] or s32[]", text(selector));
    let branches = site.called.len();
    ensure!(
        selector.element_type != PrimitiveType::PRED || branches == 2,
        "it has {branches} branches, and a pred[] can choose between 2 only"
    );
    for (index, branch) in site.called.iter().enumerate() {
        expect_signature(branch, std::iter::once(site.operand(index + 1)), site.shape())?;
    }
    Ok(())
}

/// `((operands…), results, …)`.
pub(super) fn async_shape(site: &Site) -> Check {
    let parts = &site.shape().tuple_shapes;
    ensure!(
        parts.len() >= 2 && shape::is_tuple(&parts[0]),
        "its shape is {}, and it must be a tuple of the operands' tuple, the results and more",
        text(site.shape())
    );
    if let Some(called) = site.called.first() {
        // The steps of an asynchronous operation may pass its operands one after the other.
        let (parameters, passed) = (called.parameters.len(), site.operands.len());
        let name = &called.computation.name;
        ensure!(passed <= parameters.max(1), "'{name}' has {parameters} parameters, and {passed} are passed");
    }
    Ok(())
}

/// The computation must take these and give that.
fn expect_signature<'a>(
    called: &Signature,
    passed: impl ExactSizeIterator<Item = &'a ShapeProto>,
    expected: &ShapeProto,
) -> Check {
    let name = &called.computation.name;
    let parameters = &called.parameters;
    ensure!(
        parameters.len() == passed.len(),
        "'{name}' has {} parameters, and {} are passed",
        parameters.len(),
        passed.len()
    );
    for (parameter, passed) in parameters.iter().zip(passed) {
        expect_same(&format!("parameter '{}' of '{name}'", parameter.name), &parameter.shape, passed)?;
    }
    expect_same(&format!("the result of '{name}'"), called.result, expected)
}

/// The called computation must have as many parameters.
pub(super) fn expect_parameters(site: &Site, called: usize, expected: usize) -> Check {
    let Some(signature) = site.called.get(called) else { return Ok(()) };
    let found = signature.parameters.len();
    let name = &signature.computation.name;
    ensure!(found == expected, "'{name}' has {found} parameters, and {expected} are passed");
    Ok(())
}

pub(super) fn expect_predicate(called: &Signature) -> Check {
    let found = called.result;
    let is_predicate = found.element_type == PrimitiveType::PRED && found.dimensions.is_empty();
    ensure!(is_predicate, "'{}' returns {}, and it must return pred[]", called.computation.name, text(found));
    Ok(())
}
