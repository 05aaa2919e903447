//! References, counts and well-formed shapes.

use std::collections::HashMap;

use super::{Check, Signature, Site, ensure};
use crate::hlo::opcode::Opcode;
use crate::hlo::{literal, shape};
use crate::proto::{
    HloComputationProto, HloInstructionProto, HloModuleProto, PrimitiveType, ProgramShapeProto, ShapeProto,
};

/// Tuples within tuples: deeper ones overflow XLA's stack.
const MAX_TUPLE_DEPTH: usize = 32;

/// More dimensions than any backend takes.
const MAX_RANK: usize = 64;

pub(super) fn check_instruction(site: &Site) -> Check {
    let instruction = site.instruction;
    ensure!(!instruction.opcode.is_empty(), "it has no opcode");
    ensure!(instruction.shape.is_set(), "it has no shape");
    check_shape(&instruction.shape, 0)?;
    if let Some(opcode) = Opcode::from_name(&instruction.opcode) {
        let (accepted, found) = (opcode.operands, site.operands.len());
        ensure!(accepted.accepts(found), "it has {found} operands instead of {}", accepted.describe());
    }
    check_called(site)?;
    if instruction.opcode == "constant" {
        check_constant(instruction)?;
    }
    Ok(())
}

fn check_called(site: &Site) -> Check {
    let called = site.called.len();
    let expected = match site.instruction.opcode.as_str() {
        "while" | "select-and-scatter" => 2,
        "call" | "map" | "reduce" | "reduce-window" | "reduce-scatter" | "all-reduce" | "all-reduce-start"
        | "scatter" | "sort" | "scan" | "fusion" | "async-start" => 1,
        "conditional" => site.operands.len().saturating_sub(1),
        _ => return Ok(()),
    };
    ensure!(called == expected, "it calls {called} computations instead of {expected}");
    Ok(())
}

fn check_constant(instruction: &HloInstructionProto) -> Check {
    let literal = &instruction.literal;
    ensure!(literal.is_set(), "the constant has no value");
    let (found, expected) = (&literal.shape, &instruction.shape);
    ensure!(
        shape::compatible(found, expected),
        "the constant's value has the shape {}, not {}",
        shape::text_without_layout(found),
        shape::text_without_layout(expected)
    );
    literal::check_length(literal).map_err(|error| error.to_string())
}

/// A shape that XLA can build: known types, sizes that fit, a layout of the same rank.
pub(super) fn check_shape(shape: &ShapeProto, depth: usize) -> Check {
    ensure!(depth <= MAX_TUPLE_DEPTH, "its shape nests tuples more than {MAX_TUPLE_DEPTH} deep");
    let text = || shape::text_without_layout(shape);
    match shape.element_type.as_known() {
        Some(PrimitiveType::TUPLE) => {}
        Some(PrimitiveType::BUFFER) => {
            let inner = shape.tuple_shapes.first().filter(|_| shape.tuple_shapes.len() == 1);
            ensure!(inner.is_some_and(|inner| shape::dtype(inner).is_some()), "a buffer's shape must hold one array");
        }
        Some(PrimitiveType::TOKEN | PrimitiveType::OPAQUE_TYPE) => {
            ensure!(shape.dimensions.is_empty(), "{} cannot have dimensions", text());
        }
        Some(PrimitiveType::PRIMITIVE_TYPE_INVALID) | None => {
            return Err(format!("its element type {} is unknown", shape.element_type.to_i32()));
        }
        Some(_) => check_array(shape)?,
    }
    ensure!(
        shape.layout.is_unset() || shape::dtype(shape).is_some() || shape.element_type == PrimitiveType::BUFFER,
        "{} cannot have a layout",
        text()
    );
    shape.tuple_shapes.iter().try_for_each(|element| check_shape(element, depth + 1))
}

fn check_array(shape: &ShapeProto) -> Check {
    let rank = shape.dimensions.len();
    let text = || shape::text_without_layout(shape);
    ensure!(rank <= MAX_RANK, "its shape has {rank} dimensions");
    ensure!(shape.tuple_shapes.is_empty(), "{} cannot have tuple elements", text());
    let dynamic = &shape.is_dynamic_dimension;
    ensure!(dynamic.is_empty() || dynamic.len() == rank, "{} says {} times what is dynamic", text(), dynamic.len());
    let unbounded = |dim: usize, size: i64| size == shape::UNBOUNDED && dynamic.get(dim) == Some(&true);
    for (dim, &size) in shape.dimensions.iter().enumerate() {
        ensure!(size >= 0 || unbounded(dim, size), "{} has the negative dimension {size}", text());
    }
    let bounded = shape.dimensions.iter().all(|&size| size >= 0);
    ensure!(!bounded || shape::byte_size(shape).is_some(), "{} is too large to address", text());
    let layout = &shape.layout;
    ensure!(
        layout.is_unset() || shape::is_permutation(&layout.minor_to_major, rank),
        "the layout of {} is no order of its {rank} dimensions: {{{}}}",
        text(),
        shape::join(&layout.minor_to_major)
    );
    if layout.physical_shape.is_set() {
        check_shape(&layout.physical_shape, MAX_TUPLE_DEPTH)?;
    }
    Ok(())
}

/// What the computation takes and gives, once its instructions have been checked.
pub(super) fn signature<'m>(
    computation: &'m HloComputationProto,
    instructions: &HashMap<i64, &'m HloInstructionProto>,
) -> Result<Signature<'m>, String> {
    let Some(root) = instructions.get(&computation.root_id) else {
        return Err(format!("no instruction has the root's id {}", computation.root_id));
    };
    let signature = Signature { computation, parameters: parameters(computation)?, result: &root.shape };
    if computation.program_shape.is_set() {
        announces(&computation.program_shape, &signature)?;
    }
    Ok(signature)
}

/// A program shape must say what the computation takes and gives.
fn announces(program: &ProgramShapeProto, signature: &Signature) -> Check {
    let (found, announced) = (signature.parameters.len(), program.parameters.len());
    ensure!(found == announced, "it has {found} parameters, and {announced} are announced");
    for (number, (parameter, announced)) in signature.parameters.iter().zip(&program.parameters).enumerate() {
        same(&format!("parameter {number}"), &parameter.shape, announced)?;
    }
    same("the result", signature.result, &program.result)
}

fn same(what: &str, found: &ShapeProto, expected: &ShapeProto) -> Check {
    ensure!(
        shape::compatible(found, expected),
        "{what} has the shape {}, and {} is announced",
        shape::text_without_layout(found),
        shape::text_without_layout(expected)
    );
    Ok(())
}

/// The parameters in order. Their numbers must be dense and unique.
fn parameters(computation: &HloComputationProto) -> Result<Vec<&HloInstructionProto>, String> {
    let mut parameters: Vec<&HloInstructionProto> =
        computation.instructions.iter().filter(|instruction| instruction.opcode == "parameter").collect();
    parameters.sort_by_key(|parameter| parameter.parameter_number);
    for (number, parameter) in parameters.iter().enumerate() {
        let found = parameter.parameter_number;
        ensure!(
            found == number as i64,
            "the parameters must be numbered from 0 without gaps and repetitions: '{}' has number {found} instead of \
             {number}",
            parameter.name
        );
    }
    Ok(parameters)
}

pub(super) fn check_module(module: &HloModuleProto, computations: &HashMap<i64, Signature>) -> Check {
    let Some(entry) = computations.get(&module.entry_computation_id) else {
        return Err(format!("no computation has the entry's id {}", module.entry_computation_id));
    };
    let program = &module.host_program_shape;
    ensure!(program.is_set(), "the module has no program shape");
    program.parameters.iter().chain([&*program.result]).try_for_each(|shape| check_shape(shape, 0))?;
    announces(program, entry).map_err(|message| format!("the module's program shape and its entry: {message}"))?;
    check_aliases(module)?;
    check_schedule(module, computations)
}

/// The part of a shape that an index leads to.
fn subshape<'a>(shape: &'a ShapeProto, index: &[i64]) -> Option<&'a ShapeProto> {
    index.iter().try_fold(shape, |shape, &place| shape.tuple_shapes.get(usize::try_from(place).ok()?))
}

fn check_aliases(module: &HloModuleProto) -> Check {
    let program = &module.host_program_shape;
    let parameter = |number: i64, index: &[i64]| {
        let parameter = usize::try_from(number).ok().and_then(|number| program.parameters.get(number));
        parameter.and_then(|parameter| subshape(parameter, index)).ok_or_else(|| {
            format!("there is no parameter {number} with an element {{{}}} to alias or donate", shape::join(index))
        })
    };
    let mut outputs = Vec::new();
    let mut inputs = Vec::new();
    for entry in &module.input_output_alias.entries {
        let index = &entry.output_shape_index;
        ensure!(
            subshape(&program.result, index).is_some(),
            "input_output_alias names the output {{{}}}, which the result {} does not have",
            shape::join(index),
            shape::text_without_layout(&program.result)
        );
        parameter(entry.parameter_number, &entry.parameter_shape_index)?;
        outputs.push(index);
        inputs.push((entry.parameter_number, &entry.parameter_shape_index));
    }
    outputs.sort();
    inputs.sort();
    ensure!(outputs.windows(2).all(|pair| pair[0] != pair[1]), "input_output_alias names an output twice");
    ensure!(inputs.windows(2).all(|pair| pair[0] != pair[1]), "input_output_alias names a parameter twice");
    for donor in &module.buffer_donor.entries {
        parameter(donor.parameter_number, &donor.parameter_shape_index)?;
    }
    Ok(())
}

fn check_schedule(module: &HloModuleProto, computations: &HashMap<i64, Signature>) -> Check {
    for sequence in &module.schedule.sequences {
        let Some(Signature { computation, .. }) = computations.get(&sequence.key) else {
            return Err(format!("the schedule names the computation with the id {}, which is not there", sequence.key));
        };
        let mut scheduled = sequence.value.instruction_ids.clone();
        let mut expected: Vec<i64> = computation.instructions.iter().map(|instruction| instruction.id).collect();
        scheduled.sort_unstable();
        expected.sort_unstable();
        let name = &computation.name;
        ensure!(scheduled == expected, "the schedule of '{name}' does not name each of its instructions once");
    }
    Ok(())
}
