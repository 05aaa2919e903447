//! The text form of modules.

mod attributes;
mod dimensions;
mod metadata;
mod names;
mod sharding;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};

use crate::hlo::{HloModule, ModuleConfig, literal, shape};
use crate::proto::hlo_input_output_alias_proto::AliasEntryProto;
use crate::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, Kind, LiteralProto, ShapeProto};

use attributes::{COMMON, attributes_of};
use metadata::{escape, frontend_attributes, stack_frames};
use names::Names;
use shape::join;

/// The thread that computations run on unless they say otherwise.
const MAIN_THREAD: &str = "main";

/// The module as HLO text: what XLA's own parser reads, with defaults and whatever follows from the rest left out.
///
/// Fields for which HLO text has no spelling are lost, among them the shardings that the partitioner leaves on the
/// module. A module that breaks XLA's rules is printed as far as it goes, for people to look at: references to nothing
/// become names that no instruction has, and literals whose data does not fit their shape become `{...}`.
pub fn print(module: &HloModule) -> String {
    let proto = &module.proto;
    let names = Names::of(proto);
    let elided = module.elided_constants.iter().map(String::as_str).collect();
    let mut out = header(module);
    stack_frames(&proto.stack_frame_index, &mut out);
    for computation in &proto.computations {
        out.push('\n');
        let by_id = computation.instructions.iter().map(|instruction| (instruction.id, instruction));
        let scope = Scope { module: proto, computation, names: &names, elided: &elided, instructions: by_id.collect() };
        print_computation(&scope, &mut out);
    }
    out
}

fn header(module: &HloModule) -> String {
    let HloModule { proto, config, .. } = module;
    let mut out = format!("HloModule {}", names::legal(&proto.name));
    let mut attributes = Attributes(&mut out);
    if config.is_scheduled || proto.schedule.is_set() {
        attributes.set("is_scheduled", true);
    }
    let aliases: Vec<String> = proto.input_output_alias.entries.iter().map(alias).collect();
    if !aliases.is_empty() {
        attributes.set("input_output_alias", format_args!("{{ {} }}", aliases.join(", ")));
    }
    let donors = proto.buffer_donor.entries.iter();
    let donors = donors.map(|donor| format!("({}, {})", donor.parameter_number, braced(&donor.parameter_shape_index)));
    let donors: Vec<String> = donors.collect();
    if !donors.is_empty() {
        attributes.set("buffer_donor", format_args!("{{ {} }}", donors.join(", ")));
    }
    if let Some(layout) = entry_layout(proto, config) {
        attributes.set("entry_computation_layout", format_args!("{{{layout}}}"));
    }
    let allow = [
        ("allow_spmd_sharding_propagation_to_parameters", &config.allow_spmd_sharding_propagation_to_parameters),
        ("allow_spmd_sharding_propagation_to_output", &config.allow_spmd_sharding_propagation_to_output),
    ];
    for (name, allowed) in allow {
        if !allowed.is_empty() {
            attributes.set(name, braced(allowed));
        }
    }
    for (name, count) in [("replica_count", config.replica_count), ("num_partitions", config.num_partitions)] {
        if let Some(count) = count {
            attributes.set(name, count);
        }
    }
    frontend_attributes(&proto.frontend_attributes, &mut attributes);
    out.push('\n');
    out
}

fn alias(entry: &AliasEntryProto) -> String {
    let kind = if entry.kind == Kind::MUST_ALIAS { ", must-alias" } else { "" };
    let parameter = (entry.parameter_number, braced(&entry.parameter_shape_index));
    format!("{}: ({}, {}{kind})", braced(&entry.output_shape_index), parameter.0, parameter.1)
}

/// Layouts of the entry computation's parameters and result, unless they are the same as those of its instructions.
fn entry_layout(proto: &HloModuleProto, config: &ModuleConfig) -> Option<String> {
    let program = &proto.host_program_shape;
    let entry = proto.computations.iter().find(|computation| computation.id == proto.entry_computation_id)?;
    let root = entry.instructions.iter().find(|instruction| instruction.id == entry.root_id)?;
    let parameter = |number: usize| {
        let is_it = |i: &&HloInstructionProto| i.opcode == "parameter" && i.parameter_number == number as i64;
        entry.instructions.iter().find(is_it)
    };
    let row_major = config.ignores_instruction_layouts();
    let same = |a: &ShapeProto, b: &ShapeProto| {
        shape::text_with_layout(a) == shape::text_with_layout(b) && (!row_major || shape::is_row_major(a))
    };
    let follows = same(&program.result, &root.shape)
        && (program.parameters.iter().enumerate())
            .all(|(number, shape)| parameter(number).is_some_and(|instruction| same(shape, &instruction.shape)));
    if program.is_unset() || follows {
        return None;
    }
    let parameters: Vec<String> = program.parameters.iter().map(|shape| shape::text_with_layout(shape)).collect();
    Some(format!("({})->{}", parameters.join(", "), shape::text_with_layout(&program.result)))
}

fn print_computation(scope: &Scope, out: &mut String) {
    let Scope { module, computation, names, .. } = scope;
    if computation.id == module.entry_computation_id {
        out.push_str("ENTRY ");
    }
    write_to(out, format_args!("{} {{\n", names.computation(computation.id)));
    for instruction in scope.in_order() {
        out.push_str(if instruction.id == computation.root_id { "  ROOT " } else { "  " });
        print_instruction(scope, instruction, out);
        out.push('\n');
    }
    out.push('}');
    if !matches!(computation.execution_thread.as_str(), "" | MAIN_THREAD) {
        write_to(out, format_args!(", execution_thread={}", quoted(computation.execution_thread.as_bytes())));
    }
    out.push('\n');
}

fn print_instruction(scope: &Scope, instruction: &HloInstructionProto, out: &mut String) {
    let shape = shape::text(&instruction.shape);
    write_to(out, format_args!("{} = {shape} {}(", scope.name(instruction.id), instruction.opcode));
    match instruction.opcode.as_str() {
        "parameter" => write_to(out, format_args!("{}", instruction.parameter_number)),
        "constant" if scope.elided.contains(instruction.name.as_str()) => out.push_str("{...}"),
        "constant" => literal_or_dots(&instruction.literal, out),
        _ => out.push_str(&scope.names_of(&instruction.operand_ids)),
    }
    out.push(')');
    let mut attributes = Attributes(out);
    for attribute in attributes_of(&instruction.opcode).iter().chain(COMMON) {
        attribute(scope, instruction, &mut attributes);
    }
}

fn literal_or_dots(literal: &LiteralProto, out: &mut String) {
    let start = out.len();
    if literal::format_literal(literal, out).is_err() {
        out.truncate(start);
        out.push_str("{...}");
    }
}

/// A computation and what its instructions refer to.
struct Scope<'a> {
    module: &'a HloModuleProto,
    computation: &'a HloComputationProto,
    names: &'a Names,
    /// Constants whose values are not known.
    elided: &'a HashSet<&'a str>,
    instructions: HashMap<i64, &'a HloInstructionProto>,
}

impl<'a> Scope<'a> {
    fn name(&self, id: i64) -> String {
        self.names.instruction(self.computation.id, id)
    }

    fn names_of(&self, ids: &[i64]) -> String {
        ids.iter().map(|&id| self.name(id)).collect::<Vec<_>>().join(", ")
    }

    fn operand(&self, instruction: &HloInstructionProto, index: usize) -> Option<&'a HloInstructionProto> {
        self.instructions.get(instruction.operand_ids.get(index)?).copied()
    }

    /// The instructions in the order of the schedule if there is one, else as they stand.
    fn in_order(&self) -> Vec<&'a HloInstructionProto> {
        let sequences = &self.module.schedule.sequences;
        let scheduled = sequences.iter().find(|sequence| sequence.key == self.computation.id).and_then(|sequence| {
            sequence
                .value
                .instruction_ids
                .iter()
                .map(|id| self.instructions.get(id).copied())
                .collect::<Option<Vec<_>>>()
        });
        let complete = scheduled.filter(|scheduled| scheduled.len() == self.computation.instructions.len());
        complete.unwrap_or_else(|| self.computation.instructions.iter().collect())
    }
}

/// Appends `, name=value` for each attribute.
struct Attributes<'a>(&'a mut String);

impl Attributes<'_> {
    fn set(&mut self, name: &str, value: impl fmt::Display) {
        write_to(self.0, format_args!(", {name}={value}"));
    }

    fn set_if(&mut self, name: &str, value: bool) {
        if value {
            self.set(name, true);
        }
    }
}

fn braced<T: fmt::Display>(numbers: &[T]) -> String {
    format!("{{{}}}", join(numbers))
}

fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", escape(bytes))
}

/// Formatting into a `String` cannot fail.
fn write_to(out: &mut String, arguments: fmt::Arguments<'_>) {
    let _ = out.write_fmt(arguments);
}
