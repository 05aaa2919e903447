//! Computations and the module as a whole: signatures, names, aliasing and schedules.

use std::collections::{HashMap, HashSet};

use super::calls::subshape;
use super::dims::text;
use super::{Check, Instructions, Signature, ensure, sharding, structure};
use crate::hlo::shape;
use crate::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, ProgramShapeProto, ShapeProto};

/// What the computation takes and gives, once its instructions have been checked.
pub(super) fn signature<'m>(
    computation: &'m HloComputationProto,
    instructions: &Instructions<'m>,
) -> Result<Signature<'m>, String> {
    let Some(root) = instructions.get(&computation.root_id) else {
        return Err(format!("no instruction has the root's id {}", computation.root_id));
    };
    let predecessors = computation.instructions.iter().flat_map(|instruction| &instruction.control_predecessor_ids);
    let mut predecessors = predecessors.filter_map(|id| instructions.get(id).copied());
    let signature = Signature {
        computation,
        parameters: parameters(computation)?,
        result: &root.shape,
        control_parameter: predecessors.find(|instruction| instruction.opcode == "parameter"),
    };
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
        same(|| format!("parameter {number}"), &parameter.shape, announced)?;
    }
    same(|| "the result".to_owned(), signature.result, &program.result)
}

fn same(what: impl Fn() -> String, found: &ShapeProto, expected: &ShapeProto) -> Check {
    ensure!(
        shape::compatible(found, expected),
        "{} has the shape {}, and {} is announced",
        what(),
        text(found),
        text(expected)
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

pub(super) fn check(module: &HloModuleProto, computations: &HashMap<i64, Signature>, partitions: i64) -> Check {
    ensure!(!module.name.is_empty(), "the module has no name");
    let Some(entry) = computations.get(&module.entry_computation_id) else {
        return Err(format!("no computation has the entry's id {}", module.entry_computation_id));
    };
    let program = &module.host_program_shape;
    ensure!(program.is_set(), "the module has no program shape");
    program.parameters.iter().chain([&*program.result]).try_for_each(|shape| structure::check_shape(shape))?;
    announces(program, entry).map_err(|message| format!("the module's program shape and its entry: {message}"))?;
    check_aliases(module)?;
    check_schedule(module, computations)?;
    let shardings = module.spmd_parameters_shardings.iter().chain(module.spmd_output_sharding.as_option());
    shardings.into_iter().try_for_each(|sharding| sharding::well_formed(sharding, partitions).map(drop))
}

fn check_aliases(module: &HloModuleProto) -> Check {
    let program = &module.host_program_shape;
    let parameter = |number: i64, index: &[i64]| {
        let parameter = usize::try_from(number).ok().and_then(|number| program.parameters.get(number));
        parameter.and_then(|parameter| subshape(parameter, index)).ok_or_else(|| {
            format!("there is no parameter {number} with an element {{{}}} to alias or donate", shape::join(index))
        })
    };
    let mut outputs = HashSet::new();
    let mut inputs = HashSet::new();
    for entry in &module.input_output_alias.entries {
        let index = &entry.output_shape_index;
        let Some(output) = subshape(&program.result, index) else {
            return Err(format!(
                "input_output_alias names the output {{{}}}, which the result {} does not have",
                shape::join(index),
                text(&program.result)
            ));
        };
        let input = parameter(entry.parameter_number, &entry.parameter_shape_index)?;
        for (what, part) in [("output", output), ("parameter", input)] {
            ensure!(
                shape::dtype(part).is_some(),
                "input_output_alias names an {what} {}, which is no array",
                text(part)
            );
        }
        let (from, to) = (shape::byte_size(input), shape::byte_size(output));
        ensure!(
            from == to,
            "input_output_alias puts the output {} in the place of the parameter {}",
            text(output),
            text(input)
        );
        ensure!(outputs.insert(index), "input_output_alias names an output twice");
        let place = (entry.parameter_number, &entry.parameter_shape_index);
        ensure!(inputs.insert(place), "input_output_alias names a parameter twice");
    }
    for donor in &module.buffer_donor.entries {
        parameter(donor.parameter_number, &donor.parameter_shape_index)?;
        let place = (donor.parameter_number, &donor.parameter_shape_index);
        ensure!(!inputs.contains(&place), "buffer_donor names a parameter that input_output_alias gives away");
    }
    Ok(())
}

/// A schedule names each instruction of a computation once, and no instruction before what it uses. If there is one, every
/// computation that is not part of an operation has a sequence.
fn check_schedule(module: &HloModuleProto, computations: &HashMap<i64, Signature>) -> Check {
    let mut scheduled = HashSet::new();
    for sequence in &module.schedule.sequences {
        let Some(Signature { computation, .. }) = computations.get(&sequence.key) else {
            return Err(format!("the schedule names the computation with the id {}, which is not there", sequence.key));
        };
        let name = &computation.name;
        ensure!(scheduled.insert(sequence.key), "the schedule has two sequences for '{name}'");
        let ids = &sequence.value.instruction_ids;
        let place: HashMap<i64, usize> = ids.iter().copied().zip(0..).collect();
        let complete = place.len() == ids.len()
            && ids.len() == computation.instructions.len()
            && computation.instructions.iter().all(|instruction| place.contains_key(&instruction.id));
        ensure!(complete, "the schedule of '{name}' does not name each of its instructions once");
        for instruction in &computation.instructions {
            let used = instruction.operand_ids.iter().chain(&instruction.control_predecessor_ids);
            let late = used.into_iter().find(|id| place.get(id) > place.get(&instruction.id));
            ensure!(late.is_none(), "the schedule of '{name}' runs '{}' before what it uses", instruction.name);
        }
    }
    Ok(())
}
