//! What derivatives need of the loop, branch or device's part that they go back through: its values are computed again
//! where that is cheap, else the instruction that ran it returns them too.

use std::panic::Location;

use super::order::{index_of, ordered};
use super::{Graph, OpId, Scope};
use crate::builder::constant::zero;
use crate::builder::region::is_mark;
use crate::hlo::shape;
use crate::proto::{HloInstructionCommon, HloInstructionDetails, HloInstructionProto, ShapeProto, SharedShape};

/// That a computation makes the derivatives of another one, which is over.
#[derive(Debug)]
pub(super) struct Reverse {
    pub forward: u32,
    /// What the loop's counter was in the turn that is gone back through.
    counter: Option<OpId>,
    /// For each instruction of the forward computation whether it is computed again.
    is_repeated: Vec<bool>,
}

/// Operations that cost less than to keep their results.
const CHEAP: [&str; 17] = [
    "add",
    "and",
    "bitcast-convert",
    "broadcast",
    "compare",
    "concatenate",
    "convert",
    "dynamic-slice",
    "iota",
    "multiply",
    "negate",
    "pad",
    "reshape",
    "reverse",
    "slice",
    "subtract",
    "transpose",
];

impl Graph {
    /// Lets the current computation use the values of `forward`, whose derivatives it makes: for a loop's body those of
    /// the turn in which its counter was `counter`.
    pub fn begin_reverse(&mut self, forward: u32, counter: Option<OpId>) {
        let from = &self.computations[forward as usize];
        let instructions = &from.proto.instructions;
        let mut is_repeated = vec![false; instructions.len()];
        for index in ordered(instructions, &[index_of(from.proto.root_id)], |_| false) {
            let instruction = &instructions[index];
            let is_known = |&operand: &i64| is_repeated[index_of(operand)];
            let id = OpId { computation: forward, index: index as u32 };
            is_repeated[index] = match instruction.opcode.as_str() {
                "constant" => true,
                "parameter" => matches!(from.scope, Scope::Function),
                "get-tuple-element" => {
                    from.captures.iter().any(|&(_, inner)| inner == id)
                        || counter.is_some() && is_element_of_state(instruction) && instruction.tuple_index == 0
                }
                _ if is_mark(instruction) => instruction.operand_ids.iter().all(is_known),
                // Of a value that is kept, it is that which is kept.
                "broadcast" => true,
                opcode => CHEAP.contains(&opcode) && instruction.operand_ids.iter().all(is_known),
            };
        }
        let current = self.current();
        self.computations[current as usize].reverse = Some(Reverse { forward, counter, is_repeated });
    }

    /// A value of the forward computation in the one at this level, which makes its derivatives.
    pub(super) fn recall(
        &mut self,
        level: usize,
        id: OpId,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let here = self.open[level];
        let Some(reverse) = &self.computations[here as usize].reverse else { return Ok(id) };
        let (forward, counter) = (reverse.forward, reverse.counter);
        if !reverse.is_repeated.get(id.index as usize).is_some_and(|&is_repeated| is_repeated) {
            let saved = self.save(forward, id, location)?;
            let saved = self.import(level, saved, location)?;
            return match counter {
                Some(counter) => self.of_turn(forward, saved, id, counter, location),
                None => Ok(saved),
            };
        }
        let instruction = self.instruction(id);
        match (instruction.opcode.as_str(), counter) {
            ("get-tuple-element", Some(counter)) if instruction.tuple_index == 0 => Ok(counter),
            ("get-tuple-element", _) => {
                let captures = &self.computations[forward as usize].captures;
                let captured = captures.iter().find(|&&(_, inner)| inner == id).ok_or("a value is lost")?;
                self.import(level, captured.0, location)
            }
            ("parameter", _) => {
                let number = instruction.parameter_number as usize;
                let caller = self.computations[forward as usize].caller.ok_or("nothing calls the function")?;
                let argument = self.operand(caller, number).ok_or("an argument is lost")?;
                self.import(level, argument, location)
            }
            _ => {
                let count = instruction.operand_ids.len();
                let operands: Vec<OpId> = (0..count).filter_map(|operand| self.operand(id, operand)).collect();
                let operands: Result<Vec<OpId>, String> =
                    operands.into_iter().map(|operand| self.import(level, operand, location)).collect();
                self.copy_to(here, id, &operands?, location)
            }
        }
    }

    /// Makes the instruction that runs a computation return one of its values, a loop those of all turns along a new first
    /// dimension; and returns where it is then, in the computation around it.
    pub fn save(&mut self, inside: u32, id: OpId, location: &'static Location<'static>) -> Result<OpId, String> {
        if let Some(&saved) = self.computations[inside as usize].saved.get(&id) {
            return Ok(saved);
        }
        let caller = self.computations[inside as usize].caller.ok_or("nothing runs the computation")?;
        let called = self.called(caller);
        let shape = (*self.instruction(id).shape).clone();
        let saved = match self.instruction(caller).opcode.as_str() {
            "while" => self.save_turns(caller, &called, id, &shape, location)?,
            "conditional" => {
                for branch in called {
                    let value = if branch == inside { id } else { self.zeros(branch, &shape, location)? };
                    self.add_result(branch, value, &shape);
                }
                self.add_element(caller, shape, location)?
            }
            _ => {
                self.add_result(inside, id, &shape);
                let part = self.add_element(caller, shape.clone(), location)?;
                self.mark_as_part(inside, part, shape, location)?
            }
        };
        self.computations[inside as usize].saved.insert(id, saved);
        Ok(saved)
    }

    /// Makes a loop collect a value of its turns.
    fn save_turns(
        &mut self,
        caller: OpId,
        called: &[u32],
        id: OpId,
        shape: &ShapeProto,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let turns = *self.loops.get(&caller).ok_or("it is not known how often the loop runs")?;
        let dtype = shape::dtype(shape).ok_or("a tuple cannot be kept for each turn of a loop")?;
        // What never runs must have a place for its result, too.
        let whole = shape::array(dtype, &[&[i64::from(turns.count.max(1))], &shape.dimensions[..]].concat());
        let one = shape::array(dtype, &[&[1], &shape.dimensions[..]].concat());
        let body = id.computation;

        let start = self.operand(caller, 0).ok_or("the loop has no state")?;
        let zeros = self.zeros(start.computation, &whole, location)?;
        let state = self.instruction(start).shape.tuple_shapes.len() as i64;
        self.add_operand(start, zeros, &whole);
        for &computation in called {
            let parameter = OpId { computation, index: 0 };
            self.change(parameter).shape.get_or_insert_default().tuple_shapes.push(whole.clone());
        }
        let parameter = OpId { computation: body, index: 0 };
        let collected = self.element(parameter, state, location)?;
        let counter = self.element(parameter, 0, location)?;
        let value = self.shaped("reshape", &one, &[id], location)?;
        let place = self.place(counter, turns.start, whole.dimensions.len(), location)?;
        let collected =
            self.shaped("dynamic-update-slice", &whole, &[&[collected, value], &place[..]].concat(), location)?;
        self.add_result(body, collected, &whole);
        self.add_element(caller, whole.into(), location)
    }

    /// The value of the turn in which the loop's counter was `counter`, of those that were collected.
    fn of_turn(
        &mut self,
        body: u32,
        collected: OpId,
        id: OpId,
        counter: OpId,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let caller = self.computations[body as usize].caller.ok_or("nothing runs the loop")?;
        let start = self.loops.get(&caller).map_or(0, |turns| turns.start);
        let shape = (*self.instruction(id).shape).clone();
        let dtype = shape::dtype(&shape).ok_or("a tuple cannot be kept for each turn of a loop")?;
        let one = shape::array(dtype, &[&[1], &shape.dimensions[..]].concat());
        let place = self.place(counter, start, one.dimensions.len(), location)?;
        let operands = [&[collected], &place[..]].concat();
        let slice = HloInstructionProto::from(HloInstructionCommon {
            opcode: "dynamic-slice".into(),
            shape: one.clone().into(),
            ..Default::default()
        })
        .with_details(HloInstructionDetails { dynamic_slice_sizes: one.dimensions.clone(), ..Default::default() });
        let slice = self.insert(counter.computation, "recalled", slice, &operands, &[], location)?;
        self.shaped("reshape", &shape, &[slice], location)
    }

    /// Where a turn's value begins among those that are collected, as so many scalars.
    fn place(
        &mut self,
        counter: OpId,
        start: i32,
        rank: usize,
        location: &'static Location<'static>,
    ) -> Result<Vec<OpId>, String> {
        let shape = (*self.instruction(counter).shape).clone();
        let zero = self.zeros(counter.computation, &shape, location)?;
        let mut place = vec![zero; rank];
        place[0] = match start {
            0 => counter,
            _ => {
                let start = self.literal(counter.computation, start, location)?;
                self.shaped("subtract", &shape, &[counter, start], location)?
            }
        };
        Ok(place)
    }

    fn literal(&mut self, computation: u32, number: i32, location: &'static Location<'static>) -> Result<OpId, String> {
        let literal = crate::builder::constant::integer(number).map_err(|error| error.to_string())?;
        let constant = HloInstructionProto::from(HloInstructionCommon {
            opcode: "constant".into(),
            shape: Some((*literal.shape).clone()).into(),
            literal: Some(literal).into(),
            ..Default::default()
        });
        self.insert(computation, "constant", constant, &[], &[], location)
    }

    fn zeros(
        &mut self,
        computation: u32,
        shape: &ShapeProto,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let dtype = shape::dtype(shape).ok_or("a tuple cannot be kept")?;
        let literal = zero(dtype).map_err(|error| error.to_string())?;
        let constant = HloInstructionProto::from(HloInstructionCommon {
            opcode: "constant".into(),
            shape: shape::scalar(dtype).into(),
            literal: Some(literal).into(),
            ..Default::default()
        });
        let zero = self.insert(computation, "constant", constant, &[], &[], location)?;
        if shape.dimensions.is_empty() { Ok(zero) } else { self.shaped("broadcast", shape, &[zero], location) }
    }

    /// An instruction beside its operands.
    fn shaped(
        &mut self,
        opcode: &str,
        shape: &ShapeProto,
        operands: &[OpId],
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let instruction = HloInstructionProto::from(HloInstructionCommon {
            opcode: opcode.into(),
            shape: shape.clone().into(),
            ..Default::default()
        });
        self.insert(operands[0].computation, opcode, instruction, operands, &[], location)
    }

    fn element(&mut self, tuple: OpId, index: i64, location: &'static Location<'static>) -> Result<OpId, String> {
        let element = HloInstructionProto::from(HloInstructionCommon {
            opcode: "get-tuple-element".into(),
            tuple_index: index,
            ..Default::default()
        });
        self.insert(tuple.computation, "saved", element, &[tuple], &[], location)
    }

    fn change(&mut self, id: OpId) -> &mut HloInstructionProto {
        &mut self.computations[id.computation as usize].proto.instructions[id.index as usize]
    }

    /// Makes a value one more element of a tuple.
    fn add_operand(&mut self, tuple: OpId, value: OpId, shape: &ShapeProto) {
        let value = self.instruction(value).id;
        let tuple = self.change(tuple);
        tuple.operand_ids.push(value);
        tuple.shape.get_or_insert_default().tuple_shapes.push(shape.clone());
    }

    /// Makes a value one more result of a computation that is over, whose result is a tuple.
    fn add_result(&mut self, computation: u32, value: OpId, shape: &ShapeProto) {
        self.add_operand(self.root(computation), value, shape);
    }

    /// Takes note that what an instruction runs has one more result, and gets it.
    fn add_element(
        &mut self,
        caller: OpId,
        shape: SharedShape,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let shapes = &mut self.change(caller).shape.get_or_insert_default().tuple_shapes;
        shapes.push(shape.into());
        let index = shapes.len() as i64 - 1;
        self.element(caller, index, location)
    }

    /// Says of a value outside of a manual region that it is each device's own.
    fn mark_as_part(
        &mut self,
        region: u32,
        value: OpId,
        shape: SharedShape,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let region = self.computations[region as usize].region.as_ref().ok_or("a function outside of a region")?;
        let mark = region.mark(shape)?;
        self.insert(value.computation, "part", mark, &[value], &[], location)
    }
}

/// Whether an instruction takes an element of its computation's parameter.
fn is_element_of_state(instruction: &HloInstructionProto) -> bool {
    instruction.operand_ids.first().is_some_and(|&operand| index_of(operand) == 0)
}
