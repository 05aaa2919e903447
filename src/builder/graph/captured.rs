//! Values from around a computation: loops and branches get them as further elements of the tuple that is their parameter,
//! functions as further parameters, and constants are copied.

use std::panic::Location;

use super::{Graph, OpId, Scope, parameter};
use crate::proto::{HloInstructionCommon, HloInstructionProto, SharedShape};

impl Graph {
    /// The value, or what stands for it, in the current computation.
    pub fn import_here(&mut self, id: OpId, location: &'static Location<'static>) -> Result<OpId, String> {
        self.import(self.open.len().saturating_sub(1), id, location)
    }

    /// The value, or what stands for it, in the open computation at this level.
    pub(super) fn import(
        &mut self,
        level: usize,
        id: OpId,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let here = self.open[level];
        if id.computation == here {
            return Ok(id);
        }
        let from = &self.computations[id.computation as usize];
        let instruction = &from.proto.instructions[id.index as usize];
        let into = &self.computations[here as usize];
        let is_forward = into.reverse.as_ref().is_some_and(|reverse| reverse.forward == id.computation);
        if !is_forward && !self.reaches(level, id.computation) {
            return Err(format!(
                "'{}' belongs to '{}', which is over: what is needed of it must be its result",
                instruction.name, from.proto.name
            ));
        }
        if let Some(&known) = into.copies.get(&id) {
            return Ok(known);
        }
        if instruction.opcode == "constant" {
            let copied = self.copy_to(here, id, &[], location)?;
            self.computations[here as usize].copies.insert(id, copied);
            return Ok(copied);
        }
        if is_forward {
            let recalled = self.recall(level, id, location)?;
            self.computations[here as usize].copies.insert(id, recalled);
            return Ok(recalled);
        }
        match into.scope {
            Scope::Body { fixed } => {
                let outer = self.import(level - 1, id, location)?;
                self.capture(here, fixed, outer, location)
            }
            Scope::Function if into.reverse.is_some() => {
                let outer = self.import(level - 1, id, location)?;
                self.take(here, outer, location)
            }
            _ => Err(format!(
                "'{}' uses '{}' from outside, and only constants can be: pass it as an argument",
                into.proto.name, instruction.name
            )),
        }
    }

    /// Whether a computation around the one at this level is this one, or computes its derivatives.
    fn reaches(&self, level: usize, computation: u32) -> bool {
        self.open[..level].iter().any(|&around| {
            let reverse = &self.computations[around as usize].reverse;
            around == computation || reverse.as_ref().is_some_and(|reverse| reverse.forward == computation)
        })
    }

    /// The same instruction in another computation, of these operands.
    pub(super) fn copy_to(
        &mut self,
        computation: u32,
        id: OpId,
        operands: &[OpId],
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let instruction = self.instruction(id).clone();
        let name = instruction.opcode.clone();
        self.insert(computation, &name, instruction, operands, &[], location)
    }

    /// Makes a value of the computation around it one more element of the computation's parameter.
    fn capture(
        &mut self,
        computation: u32,
        fixed: usize,
        outer: OpId,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let shape = (*self.instruction(outer).shape).clone();
        let body = &mut self.computations[computation as usize];
        if let Some(&(_, inner)) = body.captures.iter().find(|(captured, _)| *captured == outer) {
            return Ok(inner);
        }
        let index = fixed + body.captures.len();
        if let Some(parameter) = body.proto.instructions.first_mut() {
            parameter.shape.get_or_insert_default().tuple_shapes.push(shape.into());
        }
        let element = HloInstructionProto::from(HloInstructionCommon {
            opcode: "get-tuple-element".into(),
            tuple_index: index as i64,
            ..Default::default()
        });
        let parameter = OpId { computation, index: 0 };
        let inner = self.insert(computation, "captured", element, &[parameter], &[], location)?;
        self.computations[computation as usize].captures.push((outer, inner));
        Ok(inner)
    }

    /// Captures what another computation does, in its order, so that both take the same parameter.
    pub fn capture_like(
        &mut self,
        computation: u32,
        captures: &[(OpId, OpId)],
        location: &'static Location<'static>,
    ) -> Result<(), String> {
        let Scope::Body { fixed } = self.computations[computation as usize].scope else { return Ok(()) };
        captures.iter().try_for_each(|&(outer, _)| self.capture(computation, fixed, outer, location).map(drop))
    }

    /// Makes a value of the computation around a function one more argument of it.
    fn take(&mut self, computation: u32, outer: OpId, location: &'static Location<'static>) -> Result<OpId, String> {
        let captures = &self.computations[computation as usize].captures;
        if let Some(&(_, inner)) = captures.iter().find(|(captured, _)| *captured == outer) {
            return Ok(inner);
        }
        let shape = (*self.instruction(outer).shape).clone();
        let numbered = self.numbered(computation, parameter(shape));
        let inner = self.insert(computation, "captured", numbered, &[], &[], location)?;
        self.computations[computation as usize].captures.push((outer, inner));
        Ok(inner)
    }

    /// Gives a computation that is over a parameter with more elements than it uses.
    pub fn widen(&mut self, computation: u32, shape: SharedShape) {
        let proto = &mut self.computations[computation as usize].proto;
        if let Some(parameter) = proto.instructions.first_mut() {
            parameter.shape = Some(shape.clone()).into();
        }
        if let Some(parameter) = proto.program_shape.get_or_insert_default().parameters.first_mut() {
            *parameter = shape;
        }
    }
}
