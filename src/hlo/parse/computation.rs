//! Computations: `[ENTRY] name [(parameters) -> result] { instructions }`.

use std::borrow::Cow;

use super::cursor::fail;
use super::error::{Failure, Result, hint};
use super::{Map, Parser};
use crate::hlo::shape::{compatible, is_tuple, text_without_layout};
use crate::hlo::source::Places;
use crate::proto::{
    HloComputationProto, HloInstructionCommon, HloInstructionProto, ProgramShapeProto, ShapeProto, SharedShape,
};

/// The computation whose instructions are being read. Ids are indices until it is finished.
#[derive(Default)]
pub(super) struct Scope<'a> {
    instructions: Vec<HloInstructionProto>,
    names: Vec<Cow<'a, str>>,
    /// Where the instructions stand.
    offsets: Vec<usize>,
    by_name: Map<&'a str, u32>,
    /// Tuple elements that operands such as `%tuple#0` have asked for.
    elements: Map<(u32, i64), u32>,
    parameter_numbers: Map<i64, ()>,
    /// Which async-start an asynchronous instruction continues.
    async_starts: Map<u32, u32>,
    pub(super) root: Option<u32>,
    /// The constants whose values the text leaves out.
    pub(super) elided: Vec<u32>,
    /// Operands that are not defined become parameters: the text is a lone instruction.
    pub(super) invents_parameters: bool,
}

impl<'a> Scope<'a> {
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Whether its room is not worth keeping: clearing it takes longer than what a small computation needs otherwise.
    fn is_large(&self) -> bool {
        self.instructions.capacity() > 1 << 12
    }

    /// Forgets the computation and keeps the room.
    fn clear(&mut self) {
        self.by_name.clear();
        self.elements.clear();
        self.parameter_numbers.clear();
        self.async_starts.clear();
        self.offsets.clear();
        self.root = None;
        self.invents_parameters = false;
    }

    pub(super) fn shape(&self, index: u32) -> &ShapeProto {
        &self.instructions[index as usize].shape
    }

    /// An instruction's operand, while the ids are still indices.
    pub(super) fn operand(&self, instruction: &HloInstructionProto, operand: usize) -> &HloInstructionProto {
        &self.instructions[instruction.operand_ids[operand] as usize]
    }

    pub(super) fn operand_shape(&self, instruction: &HloInstructionProto, operand: usize) -> &ShapeProto {
        &self.operand(instruction, operand).shape
    }

    pub(super) fn operand_shapes(&self, instruction: &HloInstructionProto) -> Vec<&ShapeProto> {
        (0..instruction.operand_ids.len()).map(|operand| self.operand_shape(instruction, operand)).collect()
    }

    /// The async-start of the chain that an instruction's first operand belongs to.
    pub(super) fn async_start(&self, instruction: &HloInstructionProto) -> Option<(u32, &HloInstructionProto)> {
        let operand = u32::try_from(*instruction.operand_ids.first()?).ok()?;
        let &start = self.async_starts.get(&operand)?;
        Some((start, self.instructions.get(start as usize)?))
    }

    /// Notes that the instruction `index` continues the async-start `start`, or is it.
    pub(super) fn continue_async(&mut self, index: u32, start: u32) {
        self.async_starts.insert(index, start);
    }

    pub(super) fn unknown_instruction(&self, start: usize, name: &str) -> Failure {
        let hint = hint(name, self.by_name.keys().copied());
        fail(start, format!("unknown instruction '{name}'{hint}"))
    }

    /// Adds an instruction that text cannot refer to yet; `start` is where the text asks for it.
    #[inline]
    pub(super) fn push(&mut self, name: Cow<'a, str>, start: usize, mut instruction: HloInstructionProto) -> u32 {
        let index = self.instructions.len() as u32;
        instruction.id = index.into();
        self.instructions.push(instruction);
        self.names.push(name);
        self.offsets.push(start);
        index
    }

    pub(super) fn parameters(&self) -> usize {
        self.parameter_numbers.len()
    }

    /// Adds the next parameter.
    pub(super) fn push_parameter(&mut self, name: Cow<'a, str>, start: usize, shape: SharedShape) -> u32 {
        let parameter_number = self.parameters() as i64;
        self.parameter_numbers.insert(parameter_number, ());
        let opcode = "parameter".into();
        let parameter = HloInstructionCommon { opcode, parameter_number, shape: shape.into(), ..Default::default() };
        self.push(name, start, parameter.into())
    }

    /// Gives an instruction the name that stands at `start`.
    pub(super) fn define(&mut self, name: &'a str, start: usize, index: u32) -> Result<()> {
        self.offsets[index as usize] = start;
        match self.by_name.insert(name, index) {
            None => Ok(()),
            Some(_) => Err(fail(start, format!("the computation has two instructions '{name}'"))),
        }
    }

    pub(super) fn add_parameter(&mut self, start: usize, number: i64) -> Result<()> {
        match self.parameter_numbers.insert(number, ()) {
            None => Ok(()),
            Some(()) => Err(fail(start, format!("the computation has two parameters number {number}"))),
        }
    }

    /// The get-tuple-element instruction that an operand such as `%tuple#0` stands for.
    pub(super) fn tuple_element(&mut self, start: usize, tuple: u32, element: i64) -> Result<u32> {
        if let Some(&index) = self.elements.get(&(tuple, element)) {
            return Ok(index);
        }
        let shape = self.shape(tuple);
        if !is_tuple(shape) {
            return Err(fail(start, format!("{} is no tuple", text_without_layout(shape))));
        }
        let element_shape = usize::try_from(element).ok().and_then(|element| shape.tuple_shapes.get(element)).cloned();
        let element_shape =
            element_shape.ok_or_else(|| fail(start, format!("the tuple has {} elements", shape.tuple_shapes.len())))?;
        let instruction = HloInstructionCommon {
            opcode: "get-tuple-element".into(),
            shape: element_shape.into(),
            tuple_index: element,
            operand_ids: [tuple.into()].into(),
            ..Default::default()
        };
        let name = format!("{}_{element}", self.names[tuple as usize]);
        let index = self.push(name.into(), start, instruction.into());
        self.elements.insert((tuple, element), index);
        Ok(index)
    }
}

impl<'a> Parser<'a> {
    /// A computation; true if it is marked `ENTRY`.
    pub(super) fn computation(&mut self) -> Result<(usize, bool)> {
        let mut start = self.pos();
        let mut name = self.name("a computation")?;
        let is_entry = name == "ENTRY" && !self.at(b'{') && !self.at(b'(');
        if is_entry {
            start = self.pos();
            name = self.name("the entry computation")?;
        }
        let result = if self.at(b'(') { Some(self.signature()?) } else { None };
        let index = self.instruction_list(Cow::Borrowed(name))?;
        self.places[index].name = start;
        if let Some((start, declared)) = result {
            self.check_result(start, name, index, &declared)?;
        }
        while self.eat(b',') {
            let start = self.pos();
            let attribute = self.word("an attribute")?;
            self.expect(b'=', "after the attribute's name")?;
            if attribute != "execution_thread" {
                let message = format!("a computation has no attribute '{attribute}'; it takes execution_thread");
                return Err(fail(start, message));
            }
            self.computations[index].execution_thread = self.execution_thread()?;
        }
        if self.computation_by_name.insert(name, index).is_some() {
            return Err(fail(start, format!("the module has two computations '{name}'")));
        }
        Ok((index, is_entry))
    }

    /// `(x: f32[2], y: s32[]) -> f32[2]`. What counts are the parameter instructions; of the signature XLA, too, checks
    /// the result only. Returns the result's place and shape.
    fn signature(&mut self) -> Result<(usize, SharedShape)> {
        self.list(b'(', b')', "parameters", |parser| {
            parser.name("a parameter")?;
            parser.eat(b':');
            parser.shared_shape()
        })?;
        if !self.eat_str("->") {
            return Err(self.expected("'->' after the parameters"));
        }
        let start = self.pos();
        Ok((start, self.shared_shape()?))
    }

    fn check_result(&self, start: usize, name: &str, index: usize, declared: &ShapeProto) -> Result<()> {
        let actual = &self.computations[index].program_shape.result;
        if compatible(declared, actual) {
            return Ok(());
        }
        let (declared, actual) = (text_without_layout(declared), text_without_layout(actual));
        Err(fail(start, format!("'{name}' is declared to return {declared}, its root instruction is {actual}")))
    }

    /// A text that is one instruction: `f32[2] add(f32[2] %x, f32[2] %y)`. Returns the computation around it.
    pub(super) fn lone_instruction(&mut self) -> Result<usize> {
        let start = self.pos();
        // Taken before the computations inside of the instruction get theirs.
        let name = self.computation_names.unique("_".into()).into();
        let mut scope = Scope { invents_parameters: true, ..Scope::default() };
        if self.at_shape() {
            scope.root = Some(self.right_hand_side(&mut scope, "_".into())?);
        } else {
            self.instruction(&mut scope)?;
        }
        if self.peek().is_some() {
            return Err(self.expected("the end of the text after an instruction without a computation"));
        }
        let index = self.finish_computation(start, "_".into(), scope)?;
        self.computations[index].name = name;
        Ok(index)
    }

    /// Instructions in braces, as a finished computation of this name. Returns its index.
    pub(super) fn instruction_list(&mut self, name: Cow<'a, str>) -> Result<usize> {
        let start = self.pos();
        let mut scope = std::mem::take(&mut self.spare);
        self.expect(b'{', "before the instructions")?;
        while !self.eat(b'}') {
            self.instruction(&mut scope)?;
        }
        self.finish_computation(start, name, scope)
    }

    pub(super) fn finish_computation(
        &mut self,
        start: usize,
        name: Cow<'a, str>,
        mut scope: Scope<'a>,
    ) -> Result<usize> {
        let index = self.computations.len();
        let base = (index as i64) << 32;
        let root = scope.root.map(|root| root as usize).or(scope.instructions.len().checked_sub(1));
        let root = root.ok_or_else(|| fail(start, "the computation has no instructions"))?;
        for (instruction, name) in scope.instructions.iter_mut().zip(scope.names.drain(..)) {
            instruction.name = self.instruction_names.unique(name);
            instruction.id += base;
            instruction.operand_ids.iter_mut().for_each(|id| *id += base);
            instruction.control_predecessor_ids.iter_mut().for_each(|id| *id += base);
        }
        let elided = scope.elided.drain(..).map(|index| scope.instructions[index as usize].name.to_string());
        self.elided.names.extend(elided);
        let is_large = scope.is_large();
        let instructions = if is_large {
            std::mem::take(&mut scope.instructions)
        } else {
            let mut instructions = Vec::with_capacity(scope.instructions.len());
            instructions.append(&mut scope.instructions);
            instructions
        };
        let program_shape = program_shape(start, &instructions, root)?;
        self.computations.push(HloComputationProto {
            name: self.computation_names.unique(name).into(),
            id: index as i64,
            root_id: instructions[root].id,
            program_shape: program_shape.into(),
            instructions,
            ..Default::default()
        });
        self.places.push(Places { name: start, instructions: scope.offsets.as_slice().into() });
        if !is_large {
            scope.clear();
            self.spare = scope;
        }
        Ok(index)
    }
}

fn program_shape(start: usize, instructions: &[HloInstructionProto], root: usize) -> Result<ProgramShapeProto> {
    let mut parameters: Vec<&HloInstructionProto> =
        instructions.iter().filter(|instruction| instruction.opcode == "parameter").collect();
    parameters.sort_by_key(|parameter| parameter.parameter_number);
    for (expected, parameter) in (0..).zip(&parameters) {
        if parameter.parameter_number != expected {
            let message =
                format!("the computation has parameter({}) but no parameter({expected})", parameter.parameter_number);
            return Err(fail(start, message));
        }
    }
    Ok(ProgramShapeProto {
        parameters: parameters.iter().map(|parameter| (*parameter.shape).clone()).collect(),
        result: (*instructions[root].shape).clone().into(),
        parameter_names: parameters.iter().map(|parameter| parameter.name.to_string()).collect(),
        ..Default::default()
    })
}
