//! Arguments and results as PJRT passes them: arrays, one by one.

use super::module::Fresh;
use crate::hlo::shape::{self, is_tuple, leaves};
use crate::hlo::{HloModule, ModuleConfig};
use crate::proto::hlo_buffer_donor_proto::BufferDonorEntryProto;
use crate::proto::{
    HloComputationProto, HloInstructionCommon, HloInstructionProto, HloModuleProto, InlineList, OpSharding,
    ProgramShapeProto, ShapeProto,
};

/// Takes tuples among the arguments and results of a verified module apart: each leaf becomes an argument or result of its
/// own, in order. One flat tuple of arguments or of results stays, as PJRT passes its elements one by one.
///
/// Returns whether there was anything to take apart.
pub fn flatten_entry(module: &mut HloModule) -> bool {
    let program = &module.proto.host_program_shape;
    let old_parameters: Vec<ShapeProto> = program.parameters.iter().map(|shape| (**shape).clone()).collect();
    let old_result = (*program.result).clone();
    let parameters = match &old_parameters[..] {
        [only] => is_nested(only),
        several => several.iter().any(is_tuple),
    };
    let result = is_nested(&old_result);
    let mut fresh = Fresh::new(&module.proto);
    let id = module.proto.entry_computation_id;
    let entry = module.proto.computations.iter_mut().find(|computation| computation.id == id);
    let (Some(entry), true) = (entry, parameters || result) else { return false };
    if parameters {
        flatten_parameters(entry, &old_parameters, &mut fresh);
    }
    if result {
        flatten_result(entry, &mut fresh);
    }
    for shape in [&mut entry.program_shape, &mut module.proto.host_program_shape] {
        flatten_program_shape(shape.get_or_insert_default(), parameters, result);
    }
    if parameters {
        flatten_parameter_settings(&mut module.proto, &old_parameters);
        spread(&mut module.config.allow_spmd_sharding_propagation_to_parameters, &old_parameters);
    }
    if result {
        for alias in &mut module.proto.input_output_alias.get_or_insert_default().entries {
            alias.output_shape_index = vec![place(&old_result, &alias.output_shape_index)];
        }
        let ModuleConfig { allow_spmd_sharding_propagation_to_output: allowed, .. } = &mut module.config;
        spread(allowed, &old_result.tuple_shapes);
    }
    module.source = None;
    true
}

fn is_nested(shape: &ShapeProto) -> bool {
    shape.tuple_shapes.iter().any(is_tuple)
}

/// The number of leaves in front of the part of a shape that an index names.
fn place(shape: &ShapeProto, index: &[i64]) -> i64 {
    let Some((&first, rest)) = index.split_first() else { return 0 };
    let first = usize::try_from(first).unwrap_or(0);
    let before: i64 = shape.tuple_shapes.iter().take(first).map(count).sum();
    before + shape.tuple_shapes.get(first).map_or(0, |part| place(part, rest))
}

fn count(shape: &ShapeProto) -> i64 {
    leaves(shape).len() as i64
}

/// The number of the first leaf of a parameter.
fn start(parameters: &[ShapeProto], number: i64) -> i64 {
    parameters.iter().take(usize::try_from(number).unwrap_or(0)).map(count).sum()
}

/// Gives each leaf what its parameter or result has; a single value stands for all.
fn spread(values: &mut Vec<bool>, shapes: &[ShapeProto]) {
    if values.len() == shapes.len() && values.len() > 1 {
        *values = values.iter().zip(shapes).flat_map(|(&value, shape)| vec![value; leaves(shape).len()]).collect();
    }
}

fn flatten_program_shape(program: &mut ProgramShapeProto, parameters: bool, result: bool) {
    if parameters {
        let arrays = program.parameters.iter().flat_map(|shape| leaves(shape));
        program.parameters = arrays.map(|shape| shape.clone().into()).collect();
        program.parameter_names = (0..program.parameters.len()).map(|number| format!("p{number}")).collect();
    }
    if result {
        program.result = flat(&program.result).into();
    }
}

fn flat(tuple: &ShapeProto) -> ShapeProto {
    shape::tuple(leaves(tuple).into_iter().cloned().collect())
}

/// Aliases, donors and shardings that the module keeps for its parameters.
fn flatten_parameter_settings(module: &mut HloModuleProto, parameters: &[ShapeProto]) {
    let shape = |number: i64| usize::try_from(number).ok().and_then(|number| parameters.get(number));
    let first = |number, index: &[i64]| start(parameters, number) + shape(number).map_or(0, |it| place(it, index));
    for alias in &mut module.input_output_alias.get_or_insert_default().entries {
        alias.parameter_number = first(alias.parameter_number, &alias.parameter_shape_index);
        alias.parameter_shape_index.clear();
    }
    let donors = &mut module.buffer_donor.get_or_insert_default().entries;
    let donated = donors.iter().flat_map(|donor| {
        let index = &donor.parameter_shape_index;
        let part = index.iter().try_fold(shape(donor.parameter_number)?, |shape, &element| {
            shape.tuple_shapes.get(usize::try_from(element).ok()?)
        })?;
        let first = first(donor.parameter_number, index);
        Some((first..first + count(part)).collect::<Vec<_>>())
    });
    let donor = |parameter_number| BufferDonorEntryProto { parameter_number, ..Default::default() };
    *donors = donated.flatten().map(donor).collect();
    let shardings = &mut module.spmd_parameters_shardings;
    if shardings.len() == parameters.len() {
        *shardings = shardings.iter().zip(parameters).flat_map(|(it, shape)| leaf_shardings(it, shape)).collect();
    }
}

fn leaf_shardings(sharding: &OpSharding, shape: &ShapeProto) -> Vec<OpSharding> {
    let is_spelled_out = is_tuple(shape) && !sharding.tuple_shardings.is_empty();
    if is_spelled_out { sharding.tuple_shardings.clone() } else { vec![sharding.clone(); leaves(shape).len()] }
}

/// Puts tuples of new parameters where the old ones stood.
fn flatten_parameters(entry: &mut HloComputationProto, parameters: &[ShapeProto], fresh: &mut Fresh) {
    for mut instruction in std::mem::take(&mut entry.instructions) {
        if instruction.opcode == "parameter" {
            let number = start(parameters, instruction.parameter_number);
            if is_tuple(&instruction.shape) {
                assemble(entry, fresh, &mut instruction, number);
            } else {
                instruction.parameter_number = number;
            }
        }
        entry.instructions.push(instruction);
    }
}

/// Makes a tuple of a parameter, and emits its leaves as parameters that are numbered from `number` on.
fn assemble(entry: &mut HloComputationProto, fresh: &mut Fresh, tuple: &mut HloInstructionProto, mut number: i64) {
    let shardings = match tuple.sharding.as_option() {
        Some(sharding) => leaf_shardings(sharding, &tuple.shape).into_iter().map(Some).collect(),
        None => vec![None; leaves(&tuple.shape).len()],
    };
    let mut shardings = shardings.into_iter();
    let shape = tuple.shape.clone();
    let name = tuple.name.to_string();
    let mut leaf = |shape: &ShapeProto| {
        let leaf = HloInstructionCommon {
            parameter_number: number,
            sharding: shardings.next().flatten().into(),
            ..common("parameter", shape)
        };
        number += 1;
        leaf
    };
    let operands = shape.tuple_shapes.iter().map(|part| emit_tree(entry, fresh, &name, part, &mut leaf));
    tuple.operand_ids = operands.collect();
    tuple.opcode = "tuple".into();
    tuple.parameter_number = 0;
    if let Some(details) = tuple.existing_details_mut() {
        details.parameter_replication = None.into();
    }
}

/// Emits the leaves of a shape and the tuples around them. Returns the id of the whole.
fn emit_tree(
    entry: &mut HloComputationProto,
    fresh: &mut Fresh,
    name: &str,
    shape: &ShapeProto,
    leaf: &mut impl FnMut(&ShapeProto) -> HloInstructionCommon,
) -> i64 {
    if !is_tuple(shape) {
        return emit(entry, fresh, name, leaf(shape));
    }
    let operand_ids = shape.tuple_shapes.iter().map(|part| emit_tree(entry, fresh, name, part, leaf)).collect();
    emit(entry, fresh, name, HloInstructionCommon { operand_ids, ..common("tuple", shape) })
}

/// Makes a flat tuple of the root's leaves the root.
fn flatten_result(entry: &mut HloComputationProto, fresh: &mut Fresh) {
    let Some(root) = entry.instructions.iter().find(|instruction| instruction.id == entry.root_id) else { return };
    let (name, shape, sharding) = (root.name.to_string(), root.shape.clone(), root.sharding.clone());
    let mut operand_ids = InlineList::default();
    take_apart(entry, fresh, &name, entry.root_id, &shape, &mut operand_ids);
    let tuple = HloInstructionCommon { operand_ids, sharding, ..common("tuple", &flat(&shape)) };
    entry.root_id = emit(entry, fresh, &name, tuple);
}

/// Emits what takes the leaves out of the tuple with this id.
fn take_apart(
    entry: &mut HloComputationProto,
    fresh: &mut Fresh,
    name: &str,
    tuple: i64,
    shape: &ShapeProto,
    taken: &mut InlineList<i64>,
) {
    for (tuple_index, part) in (0..).zip(&shape.tuple_shapes) {
        let element =
            HloInstructionCommon { operand_ids: [tuple].into(), tuple_index, ..common("get-tuple-element", part) };
        let element = emit(entry, fresh, name, element);
        if is_tuple(part) {
            take_apart(entry, fresh, name, element, part, taken);
        } else {
            taken.push(element);
        }
    }
}

fn common(opcode: &str, shape: &ShapeProto) -> HloInstructionCommon {
    HloInstructionCommon { opcode: opcode.into(), shape: shape.clone().into(), ..Default::default() }
}

fn emit(entry: &mut HloComputationProto, fresh: &mut Fresh, name: &str, instruction: HloInstructionCommon) -> i64 {
    let id = fresh.instruction(entry.id);
    let name = fresh.name(name).into();
    entry.instructions.push(HloInstructionCommon { id, name, ..instruction }.into());
    id
}

#[cfg(test)]
mod tests {
    use super::flatten_entry;
    use crate::hlo::{parse, print, verify};

    #[test]
    fn tuples_are_taken_apart() {
        let text = "HloModule m, input_output_alias={ {1}: (0, {1}), {0, 1}: (0, {0, 1}) }, buffer_donor={ (1, {}) }
ENTRY e {
  p = ((f32[2], s32[]), f32[4]) parameter(0), sharding={{devices=[2]<=[2]}, {replicated}, {manual}}
  q = f32[4] parameter(1)
  i = (f32[2], s32[]) get-tuple-element(p), index=0
  ROOT r = ((f32[2], s32[]), f32[4]) tuple(i, q)
}";
        let mut module = parse(text, "m.hlo").unwrap();
        verify(&module, 1, 2).unwrap();
        assert!(flatten_entry(&mut module));
        verify(&module, 1, 2).unwrap();
        insta::assert_snapshot!(print(&module), @r"
        HloModule m, input_output_alias={ {2}: (2, {}), {1}: (1, {}) }, buffer_donor={ (3, {}) }

        ENTRY %e {
          %p.1 = f32[2] parameter(0), sharding={devices=[2]<=[2]}
          %p.2 = s32[] parameter(1), sharding={replicated}
          %p.3 = (f32[2], s32[]) tuple(%p.1, %p.2)
          %p.4 = f32[4] parameter(2), sharding={manual}
          %p = ((f32[2], s32[]), f32[4]) tuple(%p.3, %p.4), sharding={{devices=[2]<=[2]}, {replicated}, {manual}}
          %q = f32[4] parameter(3)
          %i = (f32[2], s32[]) get-tuple-element(%p), index=0
          %r = ((f32[2], s32[]), f32[4]) tuple(%i, %q)
          %r.1 = (f32[2], s32[]) get-tuple-element(%r), index=0
          %r.2 = f32[2] get-tuple-element(%r.1), index=0
          %r.3 = s32[] get-tuple-element(%r.1), index=1
          %r.4 = f32[4] get-tuple-element(%r), index=1
          ROOT %r.5 = (f32[2], s32[], f32[4]) tuple(%r.2, %r.3, %r.4)
        }
        ");
        assert!(!flatten_entry(&mut module));
    }

    #[test]
    fn one_flat_tuple_stays() {
        let mut module = parse("(f32[2], s32[]) copy((f32[2], s32[]) p)", "m.hlo").unwrap();
        assert!(!flatten_entry(&mut module));
    }
}
