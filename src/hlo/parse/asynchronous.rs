//! Asynchronous chains: async-start, async-update, async-done, and `slice-start` for a slice inside of them.

use std::collections::HashSet;

use super::Parser;
use super::attr::{Attr, AttrSet};
use super::computation::Scope;
use super::cursor::fail;
use super::error::{Failure, Result};
use super::instruction::Draft;
use super::opcode::Opcode;
use crate::hlo::shape::is_tuple;
use crate::proto::HloInstructionProto;

impl<'a> Parser<'a> {
    /// `slice-start(...)`: a computation around the operation, and the async-start that calls it.
    pub(super) fn wrapped_async_start(
        &mut self,
        scope: &mut Scope<'a>,
        wrapped: &'static Opcode,
        mut outer: Draft<'a>,
    ) -> Result<u32> {
        let start = outer.start;
        let (operand_shapes, result) = match outer.shape.as_ref().map(|shape| shape.tuple_shapes.as_slice()) {
            Some([operands, result, ..]) if is_tuple(operands) => (operands.tuple_shapes.clone(), result.clone()),
            _ => return Err(wrong_shape(start)),
        };
        let mut inner = Draft::new(wrapped.name.into(), start, wrapped, Some(result.into()));
        inner.proto.operand_ids = (0..operand_shapes.len() as i64).collect();
        inner.check_operand_count()?;
        let own = AttrSet::of(&[Attr::AsyncExecutionThread, Attr::OutputToOperandAliasing]);
        self.attributes(scope, own, &mut inner)?;
        let (from, to) = (&mut inner.proto, &mut outer.proto);
        to.sharding = std::mem::take(&mut from.sharding);
        to.control_predecessor_ids = std::mem::take(&mut from.control_predecessor_ids);
        to.metadata = std::mem::take(&mut from.metadata);
        to.frontend_attributes = std::mem::take(&mut from.frontend_attributes);
        let (from, to) = (from.details_mut(), to.details_mut());
        to.async_execution_thread = std::mem::take(&mut from.async_execution_thread);
        to.parameter_replication = std::mem::take(&mut from.parameter_replication);
        to.original_value = std::mem::take(&mut from.original_value);
        to.backend_config = std::mem::take(&mut from.backend_config);
        to.statistics_viz = std::mem::take(&mut from.statistics_viz);
        if !wrapped.allowed.contains(Attr::OutputToOperandAliasing) {
            to.output_operand_aliasing = std::mem::take(&mut from.output_operand_aliasing);
        }
        let mut body = Scope::default();
        for shape in operand_shapes {
            body.push_parameter("async_param".into(), start, shape.into());
        }
        self.finish_instruction(&mut body, inner)?;
        let computation = self.finish_computation(start, "async_wrapped".into(), body)?;
        outer.called.push((0, computation as i64));
        self.finish_instruction(scope, outer)
    }

    /// `slice-done` continues a `slice-start`, not another operation.
    pub(super) fn check_wrapped(&self, scope: &Scope<'a>, wrapped: &Opcode, draft: &Draft<'a>) -> Result<()> {
        let id = scope.async_start(&draft.proto).and_then(|(_, start)| start.called_computation_ids.first().copied());
        let Some(computation) = id.and_then(|id| self.computations.get(id as usize)) else { return Ok(()) };
        let root = (computation.root_id - (computation.id << 32)) as usize;
        match computation.instructions[root].opcode.as_str() {
            started if started == wrapped.name => Ok(()),
            started => Err(fail(draft.start, format!("the operation that was started is {started}"))),
        }
    }

    /// What is said of an asynchronous operation holds for the operation that it wraps as well, through all chains
    /// that stand inside of each other: read again after printing, it must be the same.
    pub(super) fn copy_to_wrapped(
        &mut self,
        scope: &Scope<'a>,
        start: usize,
        proto: &HloInstructionProto,
    ) -> Result<()> {
        let first = match scope.async_start(proto) {
            Some((_, first)) if proto.opcode != "async-start" => first,
            _ => proto,
        };
        let mut called = first.called_computation_ids.first().copied();
        while let Some(wrapped) = called.and_then(|id| self.computations.get_mut(id as usize)) {
            let local = |id: i64| (id - (wrapped.id << 32)) as usize;
            let root = local(wrapped.root_id);
            copy_description(proto, &mut wrapped.instructions[root]);
            let mut last = &wrapped.instructions[root];
            while matches!(last.opcode.as_str(), "async-update" | "async-done") {
                last = &wrapped.instructions[local(last.operand_ids[0])];
            }
            called = last.called_computation_ids.first().copied().filter(|_| last.opcode == "async-start");
            self.charge(start, 1)?;
        }
        Ok(())
    }

    /// Checks an async-start. The computation that it calls runs on its thread, with everything that calls in turn.
    pub(super) fn set_execution_thread(&mut self, start: usize, proto: &HloInstructionProto) -> Result<()> {
        let thread = &proto.details().async_execution_thread;
        let mut pending = proto.called_computation_ids.clone();
        let mut seen = HashSet::new();
        while let Some(id) = pending.pop() {
            if !seen.insert(id) {
                continue;
            }
            let computation = &mut self.computations[id as usize];
            computation.execution_thread.clone_from(thread);
            let cost = computation.instructions.len();
            let calls = computation.instructions.iter().filter(|call| !call.opcode.starts_with("async-"));
            pending.extend(calls.flat_map(|call| call.called_computation_ids.iter().copied()));
            self.charge(start, cost / 8)?;
        }
        Ok(())
    }
}

impl Scope<'_> {
    /// async-update and async-done continue a chain whose computation and thread are those of its async-start; text may
    /// repeat them, the protobuf form does not.
    pub(super) fn check_async(&self, start: usize, proto: &mut HloInstructionProto) -> Result<()> {
        let thread = std::mem::take(&mut proto.details_mut().async_execution_thread);
        let calls = std::mem::take(&mut proto.called_computation_ids);
        if self.operand(proto, 0).opcode == "async-done" {
            return Err(fail(start, "the operation is done already: async-done is the end of its chain"));
        }
        let Some((_, first)) = self.async_start(proto) else {
            return Ok(());
        };
        if !thread.is_empty() && thread != first.details().async_execution_thread {
            let message =
                format!("the operation was started on the thread \"{}\"", first.details().async_execution_thread);
            return Err(fail(start, message));
        }
        if !calls.is_empty() && calls != first.called_computation_ids {
            return Err(fail(start, "the operation was started with another computation"));
        }
        Ok(())
    }
}

fn copy_description(from: &HloInstructionProto, to: &mut HloInstructionProto) {
    if from.metadata.is_set() {
        to.metadata = from.metadata.clone();
    }
    if from.frontend_attributes.is_set() {
        to.frontend_attributes = from.frontend_attributes.clone();
    }
    let from = from.details();
    if from.original_value.is_set() {
        to.details_mut().original_value = from.original_value.clone();
    }
    if !from.backend_config.is_empty() {
        to.details_mut().backend_config.clone_from(&from.backend_config);
    }
    if from.statistics_viz.is_set() {
        to.details_mut().statistics_viz = from.statistics_viz.clone();
    }
}

fn wrong_shape(start: usize) -> Failure {
    fail(start, "an asynchronous operation has the shape ((operands), results, ...)")
}
