//! The module: header, source location tables, computations.

use std::sync::Arc;

use super::Parser;
use super::cursor::fail;
use super::error::{Result, hint_or};
use super::window::unknown_field;
use crate::hlo::shape::row_major;
use crate::hlo::{HloModule, ModuleConfig, Source};
use crate::proto::hlo_buffer_donor_proto::BufferDonorEntryProto;
use crate::proto::hlo_input_output_alias_proto::AliasEntryProto;
use crate::proto::hlo_schedule_proto::{InstructionSequence, SequencesEntry};
use crate::proto::stack_frame_index_proto::{FileLocation, StackFrame};
use crate::proto::{
    HloBufferDonorProto, HloComputationProto, HloInputOutputAliasProto, HloModuleProto, HloScheduleProto, Kind,
    LayoutProto, ProgramShapeProto, ShapeProto, StackFrameIndexProto,
};

const HEADER_ATTRIBUTES: [&str; 12] = [
    "is_scheduled",
    "replica_count",
    "num_partitions",
    "input_output_alias",
    "buffer_donor",
    "alias_passthrough_params",
    "entry_computation_layout",
    "frontend_attributes",
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
    "origin_recovery_table",
    "debug_attributes",
];

impl<'a> Parser<'a> {
    pub(super) fn module(mut self, file: &str) -> Result<HloModule> {
        let mut proto = HloModuleProto::default();
        let mut config = ModuleConfig::default();
        if self.peek().is_none() {
            return Err(fail(self.pos(), "the text is empty; expected HloModule or a computation"));
        }
        let has_header = self.eat_word("HloModule");
        if has_header {
            proto.name = self.name("the module's name")?.to_owned();
            self.eat(b':');
            while self.eat(b',') {
                self.header_attribute(&mut proto, &mut config)?;
            }
        }
        if self.eat_word("FileNames") {
            proto.stack_frame_index = self.stack_frame_index()?.into();
        }
        let lone = !has_header && self.at_lone_instruction();
        let entry = if lone { self.lone_instruction()? } else { self.all_computations()? };
        let entry = &self.computations[entry];
        proto.entry_computation_name = entry.name.clone();
        proto.entry_computation_id = entry.id;
        if !has_header {
            proto.name = if lone { entry.name.clone() } else { format!("module_{}", entry.name) };
        }
        if proto.host_program_shape.is_unset() {
            proto.host_program_shape = entry.program_shape.clone();
            if lone || config.ignores_instruction_layouts() {
                // XLA then lays out arguments and results as if their instructions did not say how.
                let shape = proto.host_program_shape.get_or_insert_default();
                shape.parameters.iter_mut().for_each(|shape| lay_out_row_major(shape));
                lay_out_row_major(shape.result.get_or_insert_default());
            }
        }
        let shape = proto.host_program_shape.get_or_insert_default();
        shape.parameter_names = (0..shape.parameters.len()).map(|number| format!("p{number}")).collect();
        if config.is_scheduled {
            proto.schedule = schedule(&self.computations).into();
        }
        proto.computations = self.computations;
        let source = Source { file: file.to_owned(), text: self.cursor.text().to_owned(), computations: self.places };
        Ok(HloModule { proto, config, elided_constants: self.elided.names, source: Some(Arc::new(source)) })
    }

    /// Without a header, a shape or a name and `=` start an instruction rather than a computation.
    fn at_lone_instruction(&self) -> bool {
        let mut ahead = self.cursor;
        let mut name = ahead.eat_name();
        if name == Some("ROOT") && !ahead.at(b'=') {
            name = ahead.eat_name();
        }
        self.at_shape() || (name.is_some() && ahead.at(b'='))
    }

    /// Returns the index of the entry computation: the one marked so, else the last one.
    fn all_computations(&mut self) -> Result<usize> {
        let mut entry = None;
        let mut last = 0;
        loop {
            let start = self.pos();
            let (index, is_entry) = self.computation()?;
            if is_entry && entry.replace(index).is_some() {
                return Err(fail(start, "the module has two ENTRY computations"));
            }
            last = index.max(last);
            if self.peek().is_none() {
                return Ok(entry.unwrap_or(last));
            }
        }
    }

    fn header_attribute(&mut self, proto: &mut HloModuleProto, config: &mut ModuleConfig) -> Result<()> {
        let start = self.pos();
        let name = self.word("an attribute of the module")?;
        self.expect(b'=', "after the attribute's name")?;
        match name {
            "is_scheduled" => config.is_scheduled = self.boolean()?,
            "replica_count" => config.replica_count = Some(self.positive()?),
            "num_partitions" => config.num_partitions = Some(self.positive()?),
            "input_output_alias" => proto.input_output_alias = self.input_output_alias()?.into(),
            "buffer_donor" => proto.buffer_donor = self.buffer_donor()?.into(),
            // An instruction to old compilers that the protobuf form never carried.
            "alias_passthrough_params" => drop(self.boolean()?),
            "entry_computation_layout" => proto.host_program_shape = self.entry_computation_layout()?.into(),
            "frontend_attributes" => proto.frontend_attributes = self.frontend_attributes()?.into(),
            "allow_spmd_sharding_propagation_to_parameters" => {
                config.allow_spmd_sharding_propagation_to_parameters = self.booleans()?;
            }
            "allow_spmd_sharding_propagation_to_output" => {
                config.allow_spmd_sharding_propagation_to_output = self.booleans()?;
            }
            // Tables for debuggers, without meaning for the program.
            "origin_recovery_table" | "debug_attributes" => drop(self.braces()?),
            other => {
                let hint = hint_or(other, HEADER_ATTRIBUTES, || format!("; it takes {}", HEADER_ATTRIBUTES.join(", ")));
                let message = format!("a module has no attribute '{other}'{hint}");
                return Err(fail(start, message));
            }
        }
        Ok(())
    }

    fn positive(&mut self) -> Result<i64> {
        let start = self.pos();
        let value = self.integer()?;
        if value < 1 { Err(fail(start, "expected a number of at least 1")) } else { Ok(value) }
    }

    fn booleans(&mut self) -> Result<Vec<bool>> {
        if self.at(b'{') {
            return self.list(b'{', b'}', "booleans", Parser::boolean);
        }
        Ok(vec![self.boolean()?])
    }

    /// `{ {0}: (1, {}, may-alias), {1}: (0, {2}) }`
    fn input_output_alias(&mut self) -> Result<HloInputOutputAliasProto> {
        let entries = self.list(b'{', b'}', "aliases", |parser| {
            let output_shape_index = parser.integers()?;
            parser.expect(b':', "after the output's index")?;
            let (parameter_number, parameter_shape_index, kind) = parser.aliased_parameter()?;
            Ok(AliasEntryProto {
                output_shape_index,
                parameter_number,
                parameter_shape_index,
                kind: kind.into(),
                ..Default::default()
            })
        })?;
        Ok(HloInputOutputAliasProto { entries, ..Default::default() })
    }

    /// `{ (0, {}), (1, {2}) }`
    fn buffer_donor(&mut self) -> Result<HloBufferDonorProto> {
        let entries = self.list(b'{', b'}', "buffer donors", |parser| {
            let (parameter_number, parameter_shape_index, _) = parser.aliased_parameter()?;
            Ok(BufferDonorEntryProto { parameter_number, parameter_shape_index, ..Default::default() })
        })?;
        Ok(HloBufferDonorProto { entries, ..Default::default() })
    }

    /// `(1, {2}, must-alias)`; the kind may be left out.
    fn aliased_parameter(&mut self) -> Result<(i64, Vec<i64>, Kind)> {
        self.expect(b'(', "before the parameter's number")?;
        let number = self.integer()?;
        self.expect(b',', "after the parameter's number")?;
        let index = self.integers()?;
        let mut kind = Kind::MAY_ALIAS;
        if self.eat(b',') {
            let start = self.pos();
            kind = match self.word("a kind of alias")? {
                "may-alias" => Kind::MAY_ALIAS,
                "must-alias" => Kind::MUST_ALIAS,
                other => return Err(unknown_field(start, other, "may-alias or must-alias")),
            };
        }
        self.expect(b')', "after the alias")?;
        Ok((number, index, kind))
    }

    /// `{(f32[2]{0}, s32[])->f32[2]{0}}`
    fn entry_computation_layout(&mut self) -> Result<ProgramShapeProto> {
        self.expect(b'{', "before the entry computation's layout")?;
        let parameters = self.list(b'(', b')', "parameters' layouts", Parser::shared_shape)?;
        if !self.eat_str("->") {
            return Err(self.expected("'->' after the parameters' layouts"));
        }
        let result = self.shared_shape()?.into();
        self.expect(b'}', "after the entry computation's layout")?;
        Ok(ProgramShapeProto { parameters, result, ..Default::default() })
    }

    /// The tables after `FileNames`: each line has its number, from 1, and the entry.
    fn stack_frame_index(&mut self) -> Result<StackFrameIndexProto> {
        let file_names = self.numbered_lines(|parser| parser.string())?;
        self.table_name("FunctionNames")?;
        let function_names = self.numbered_lines(|parser| parser.string())?;
        self.table_name("FileLocations")?;
        let file_locations = self.numbered_lines(|parser| {
            let mut location = FileLocation::default();
            parser.for_each_field("file location", |parser, field, at| {
                let value = parser.integer_i32()?;
                match field {
                    "file_name_id" => location.file_name_id = value,
                    "function_name_id" => location.function_name_id = value,
                    "line" => location.line = value,
                    "end_line" => location.end_line = value,
                    "column" => location.column = value,
                    "end_column" => location.end_column = value,
                    other => return Err(unknown_field(at, other, "file_name_id, function_name_id, line or column")),
                }
                Ok(())
            })?;
            Ok(location)
        })?;
        self.table_name("StackFrames")?;
        let stack_frames = self.numbered_lines(|parser| {
            let mut frame = StackFrame::default();
            parser.for_each_field("stack frame", |parser, field, at| {
                let value = parser.integer_i32()?;
                match field {
                    "file_location_id" => frame.file_location_id = value,
                    // Printed from 1, where 0 and 1 both mean "no parent".
                    "parent_frame_id" => frame.parent_frame_id = value - 1,
                    other => return Err(unknown_field(at, other, "file_location_id or parent_frame_id")),
                }
                Ok(())
            })?;
            Ok(frame)
        })?;
        Ok(StackFrameIndexProto { file_names, function_names, file_locations, stack_frames, ..Default::default() })
    }

    fn table_name(&mut self, name: &str) -> Result<()> {
        if self.eat_word(name) { Ok(()) } else { Err(self.expected(&format!("a number or '{name}'"))) }
    }

    fn numbered_lines<T>(&mut self, mut entry: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut entries = Vec::new();
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.integer()?;
            entries.push(entry(self)?);
        }
        Ok(entries)
    }
}

fn lay_out_row_major(shape: &mut ShapeProto) {
    if let Some(layout) = shape.layout.as_option_mut() {
        let element_size_in_bits = layout.element_size_in_bits;
        *layout = LayoutProto { element_size_in_bits, ..row_major(shape.dimensions.len()) };
    }
    shape.tuple_shapes.iter_mut().for_each(lay_out_row_major);
}

/// The order of the text. Fusions have no schedule of their own.
fn schedule(computations: &[HloComputationProto]) -> HloScheduleProto {
    let sequences = computations.iter().filter(|computation| !computation.is_fusion_computation).map(|computation| {
        let instruction_ids = computation.instructions.iter().map(|instruction| instruction.id).collect();
        let value = InstructionSequence { instruction_ids, ..Default::default() }.into();
        SequencesEntry { key: computation.id, value, ..Default::default() }
    });
    HloScheduleProto { sequences: sequences.collect(), ..Default::default() }
}
