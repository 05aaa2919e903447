//! Reverse-mode differentiation.

mod convolution;
mod elementwise;
mod linear;
mod movement;

use std::collections::HashMap;

use super::graph::OpId;
use super::{Builder, Op};
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::HloInstructionProto;

/// An instruction whose result has a derivative.
struct Site<'b> {
    instruction: HloInstructionProto,
    operands: Vec<Op<'b>>,
    /// Which operands a derivative is wanted of.
    wanted: Vec<bool>,
    result: Op<'b>,
    /// The derivative of the scalar by the result.
    derivative: Op<'b>,
}

/// The derivatives by the operands; `None` where it is zero.
type Derivatives<'b> = Result<Vec<Option<Op<'b>>>, String>;

impl Builder {
    /// The gradients of a scalar by some of the values that it was computed from, each of that value's shape, as
    /// `jax.grad`. They are part of the program like all else, so they can be differentiated again.
    ///
    /// Derivatives exist of elementwise operations, products, convolutions, sums, maxima and minima, gathers and sums into
    /// places, and of all that moves elements, but not of loops, branches, sorts and collectives: differentiating one of
    /// these is an error. Where a maximum has ties, they share the derivative, as in JAX.
    #[track_caller]
    pub fn grad<'b>(&'b self, scalar: Op<'b>, by: &[Op<'b>]) -> Vec<Op<'b>> {
        let is_scalar = scalar
            .shape()
            .is_none_or(|shape| shape::dtype(&shape).is_some_and(is_float) && shape.dimensions.is_empty());
        if !is_scalar {
            self.fail("grad", format!("{} is no scalar of a floating-point type", scalar.text()));
            return vec![self.failed(); by.len()];
        }
        self.vjp(scalar, scalar.ones_like(), by)
    }

    /// The derivatives of Σ result · cotangent by some of the values that the result was computed from, as `jax.vjp`.
    /// See [`Builder::grad`].
    #[track_caller]
    pub fn vjp<'b>(&'b self, result: Op<'b>, cotangent: Op<'b>, by: &[Op<'b>]) -> Vec<Op<'b>> {
        let failed = || vec![self.failed(); by.len()];
        let ids: Option<Vec<OpId>> = by.iter().map(|value| self.own("grad", *value)).collect();
        let (Some(ids), Some(last), Some(_)) = (ids, self.own("grad", result), self.own("grad", cotangent)) else {
            return failed();
        };
        if result.dims() != cotangent.dims() || result.dtype() != cotangent.dtype() {
            self.fail("vjp", format!("the cotangent {} must be {}", cotangent.text(), result.text()));
            return failed();
        }
        if ids.iter().any(|id| id.computation != last.computation) || last.computation != self.graph().current() {
            self.fail("grad", "the values must belong to the computation that is being built");
            return failed();
        }
        let active = self.active(&ids, last);
        let mut derivatives: HashMap<u32, Op<'b>> = HashMap::from([(last.index, cotangent)]);
        for index in (0..=last.index).rev() {
            let Some(&derivative) = derivatives.get(&index).filter(|_| active[index as usize]) else { continue };
            let id = OpId { index, ..last };
            if ids.contains(&id) && !self.is_computed_from(id, &active) {
                continue;
            }
            let site = self.site(id, &active, derivative);
            let operands = site.operands.clone();
            let by_operand = match site.derivatives() {
                Ok(by_operand) => by_operand,
                Err(message) => {
                    self.fail("grad", message);
                    return failed();
                }
            };
            for (operand, derivative) in operands.into_iter().zip(by_operand) {
                let (Some(OpId { index, .. }), Some(derivative)) = (operand.id, derivative) else { continue };
                let sum = derivatives.get(&index).map_or(derivative, |&other| other + derivative);
                derivatives.insert(index, sum);
            }
        }
        let mut gradients = Vec::with_capacity(by.len());
        for (value, id) in by.iter().zip(ids) {
            gradients.push(match derivatives.get(&id.index) {
                Some(&derivative) => derivative,
                None => value.zeros_like(),
            });
        }
        gradients
    }

    /// Which instructions up to `last` depend on these values.
    fn active(&self, by: &[OpId], last: OpId) -> Vec<bool> {
        let graph = self.graph();
        let mut active = vec![false; last.index as usize + 1];
        for index in 0..=last.index {
            let id = OpId { index, ..last };
            let instruction = graph.instruction(id);
            let has_derivative = match shape::dtype(&instruction.shape) {
                Some(dtype) => is_float(dtype) && instruction.opcode != "copy",
                None => true,
            };
            let operands = (0..instruction.operand_ids.len()).filter_map(|operand| graph.operand(id, operand));
            let depends = operands.into_iter().any(|operand| active[operand.index as usize]);
            active[index as usize] = by.contains(&id) || has_derivative && depends;
        }
        active
    }

    fn is_computed_from(&self, id: OpId, active: &[bool]) -> bool {
        let graph = self.graph();
        let count = graph.instruction(id).operand_ids.len();
        graph.instruction(id).opcode != "copy"
            && (0..count).filter_map(|operand| graph.operand(id, operand)).any(|operand| active[operand.index as usize])
    }

    fn site<'b>(&'b self, id: OpId, active: &[bool], derivative: Op<'b>) -> Site<'b> {
        let graph = self.graph();
        let instruction = graph.instruction(id).clone();
        let ids: Vec<OpId> =
            (0..instruction.operand_ids.len()).filter_map(|operand| graph.operand(id, operand)).collect();
        let handle = |id| Op { builder: self, id: Some(id) };
        Site {
            operands: ids.iter().copied().map(handle).collect(),
            wanted: ids.iter().map(|id| active[id.index as usize]).collect(),
            instruction,
            result: handle(id),
            derivative,
        }
    }
}

fn is_float(dtype: DType) -> bool {
    let is_other = matches!(dtype, DType::Pred | DType::C64 | DType::C128) || dtype.name().starts_with(['s', 'u']);
    !is_other
}

impl<'b> Site<'b> {
    #[track_caller]
    fn derivatives(&self) -> Derivatives<'b> {
        match self.instruction.opcode.as_str() {
            "dot" => Ok(self.dot()),
            "convolution" => self.convolution(),
            "reduce" => self.reduce(),
            "gather" => Ok(self.gather()),
            "scatter" => self.scatter(),
            "broadcast"
            | "reshape"
            | "transpose"
            | "slice"
            | "pad"
            | "concatenate"
            | "reverse"
            | "dynamic-slice"
            | "dynamic-update-slice" => Ok(self.movement()),
            "custom-call" if self.instruction.details().custom_call_target == "Sharding" => {
                let sharding = (*self.instruction.sharding).clone();
                let derivative = self.derivative;
                Ok(vec![Some(derivative.resharded("Sharding", derivative.shape(), sharding))])
            }
            "get-tuple-element" => {
                let of = self.operands.first().and_then(|operand| operand.id);
                let opcode = of.map(|id| self.result.builder.graph().instruction(id).opcode.clone());
                Err(not_differentiable(&opcode.unwrap_or_default()))
            }
            _ => self.elementwise(),
        }
    }

    /// The opcode of the computation that a reduction applies; `None` if it is none of the usual ones.
    fn reducer(&self) -> Option<String> {
        let graph = self.result.builder.graph();
        let called = u32::try_from(*self.instruction.called_computation_ids.first()? - 1).ok()?;
        match &graph.computation(called).proto.instructions[..] {
            [first, second, root] if root.operand_ids == [first.id, second.id] => Some(root.opcode.clone()),
            _ => None,
        }
    }
}

fn not_differentiable(opcode: &str) -> String {
    format!("{opcode} has no derivative here: use stop_gradient where it is to count as a constant")
}
