//! Calls: what is passed, taken and given back.

use super::dims::{compatible, expect_same, text};
use super::reduction::{expect_parameters, expect_predicate};
use super::{Check, Signature, Site, ensure};
use crate::hlo::shape;
use crate::proto::{PrimitiveType, ShapeProto};

pub(super) fn call(site: &Site) -> Check {
    let Some(called) = site.called.first() else { return Ok(()) };
    expect_signature(called, site.operands.iter().map(|operand| &**operand.shape), site.shape())?;
    let aliases = site.instruction.details().output_operand_aliasing.len();
    ensure!(aliases == 0, "its results alias operands, which those of a call cannot");
    if site.instruction.details().is_composite {
        let name = site.instruction.frontend_attributes.map.iter().find(|entry| entry.key == "composite.name");
        ensure!(
            name.is_some_and(|entry| !entry.value.is_empty()),
            "it is composite, and its frontend attributes have no composite.name"
        );
    }
    Ok(())
}

/// A fusion's computation may leave operands unused.
pub(super) fn fusion(site: &Site) -> Check {
    const KINDS: [&str; 5] = ["kLoop", "kInput", "kOutput", "kCustom", "kUnused"];
    let kind = site.instruction.details().fusion_kind.as_str();
    ensure!(KINDS.contains(&kind), "its kind is '{kind}', and it must be one of {}", KINDS[..4].join(", "));
    let Some(called) = site.called.first() else { return Ok(()) };
    let (parameters, operands) = (called.parameters.len(), site.operands.len());
    let name = &called.computation.name;
    ensure!(parameters <= operands, "'{name}' has {parameters} parameters, and {operands} are passed");
    let passed = site.operands[..parameters].iter().map(|operand| &**operand.shape);
    expect_signature(called, passed, site.shape())?;
    aliases(site)
}

pub(super) fn while_loop(site: &Site) -> Check {
    let state = site.operand(0);
    let [body, condition] = site.called.as_slice() else { return Ok(()) };
    expect_signature(body, std::iter::once(state), state)?;
    expect_predicate(condition)?;
    expect_signature(condition, std::iter::once(state), condition.result)?;
    expect_same("it", site.shape(), state)
}

pub(super) fn conditional(site: &Site) -> Check {
    let selector = site.operand(0);
    let is_selector = selector.dimensions.is_empty()
        && (selector.element_type == PrimitiveType::PRED || selector.element_type == PrimitiveType::S32);
    ensure!(is_selector, "it selects a branch by {}, and that must be pred[] or s32[]", text(selector));
    let branches = site.called.len();
    ensure!(branches > 0, "it has no branches");
    ensure!(
        selector.element_type != PrimitiveType::PRED || branches == 2,
        "it has {branches} branches, and a pred[] can choose between 2 only"
    );
    for (index, branch) in site.called.iter().enumerate() {
        expect_signature(branch, std::iter::once(site.operand(index + 1)), site.shape())?;
    }
    Ok(())
}

/// The partitioners' own calls, which change the sharding of one array.
const RESHARDING: [&str; 4] =
    ["Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.FuncResultSharding"];

pub(super) fn custom_call(site: &Site) -> Check {
    let instruction = site.instruction;
    let (target, count) = (instruction.details().custom_call_target.as_str(), site.operands.len());
    ensure!(!RESHARDING.contains(&target) || count == 1, "a call of {target} has 1 operand, and this one {count}");
    if instruction.details().constrain_layout {
        let (operands, layouts) = (site.operands.len(), &instruction.details().operand_shapes_with_layout);
        let count = layouts.len();
        ensure!(count == operands, "it has {operands} operands, and operand_layout_constraints for {count}");
        for (index, (operand, layout)) in site.operands.iter().zip(layouts).enumerate() {
            super::structure::check_shape(layout)?;
            expect_same(&format!("operand_layout_constraints {index}"), layout, &operand.shape)?;
            let laid_out = super::structure::has_layouts(layout);
            ensure!(laid_out, "operand_layout_constraints {index}, {}, has no layout", text(layout));
        }
    }
    aliases(site)
}

/// The part of a shape that an index leads to.
pub(super) fn subshape<'a>(shape: &'a ShapeProto, index: &[i64]) -> Option<&'a ShapeProto> {
    index.iter().try_fold(shape, |shape, &place| {
        let place = usize::try_from(place).ok()?;
        shape.tuple_shapes.get(place).filter(|_| shape::is_tuple(shape))
    })
}

/// Results that take the place of operands must have their shapes.
fn aliases(site: &Site) -> Check {
    let attributes = &site.instruction.frontend_attributes.map;
    let unchecked = attributes.iter().any(|entry| entry.key == "xla_skip_custom_call_alias_shape_check");
    for alias in &site.instruction.details().output_operand_aliasing {
        let (output, input) = (&alias.output_shape_index, &alias.operand_shape_index);
        let Some(result) = subshape(site.shape(), output) else {
            return Err(format!(
                "output_to_operand_aliasing names the result {{{}}}, which {} does not have",
                shape::join(output),
                text(site.shape())
            ));
        };
        let operand = usize::try_from(alias.operand_index).ok().and_then(|index| site.operands.get(index));
        let Some(operand) = operand.and_then(|operand| subshape(&operand.shape, input)) else {
            return Err(format!(
                "output_to_operand_aliasing names the part {{{}}} of operand {}, which is not there",
                shape::join(input),
                alias.operand_index
            ));
        };
        // A buffer may take the place of the array that it holds.
        let held = |shape: &'_ ShapeProto| match &shape.tuple_shapes[..] {
            [array] if shape.element_type == PrimitiveType::BUFFER => array.clone(),
            _ => shape.clone(),
        };
        ensure!(
            unchecked || compatible(&held(result), &held(operand)),
            "output_to_operand_aliasing puts {} in the place of {}",
            text(result),
            text(operand)
        );
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
    expect_parameters(called, passed.len())?;
    for (parameter, passed) in called.parameters.iter().zip(passed) {
        if !compatible(&parameter.shape, passed) {
            expect_same(&format!("parameter '{}' of '{name}'", parameter.name), &parameter.shape, passed)?;
        }
    }
    expect_same(&format!("the result of '{name}'"), called.result, expected)
}
