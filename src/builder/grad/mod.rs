//! Reverse-mode differentiation.

mod activity;
mod collectives;
mod control;
mod convolution;
mod elementwise;
mod linear;
mod movement;
mod reduction;
mod sort;

use std::collections::HashMap;
use std::panic::Location;

use super::graph::OpId;
use super::{Builder, Op};
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{HloInstructionProto, InlineString};

use activity::Active;

/// The derivatives of the scalar by a value: one for an array, one for each element of a tuple; `None` where it is zero.
type Cotangent<'b> = Vec<Option<Op<'b>>>;

/// An instruction whose result has a derivative.
struct Site<'b> {
    instruction: HloInstructionProto,
    operands: Vec<Op<'b>>,
    /// Which operands a derivative is wanted of.
    wanted: Vec<bool>,
    /// The same for each element of those that are tuples.
    active: Vec<Active>,
    result: Op<'b>,
    /// The derivative of the scalar by the result, the first of several.
    derivative: Op<'b>,
    /// The derivatives of the scalar by all results.
    cotangent: Cotangent<'b>,
}

/// The derivatives by the operands, which are arrays; `None` where it is zero.
type Derivatives<'b> = Result<Vec<Option<Op<'b>>>, String>;

impl Builder {
    /// The gradients of a scalar by some of the values that it was computed from, each of that value's shape, as
    /// `jax.grad`. They are part of the program like all else, so they can be differentiated again.
    ///
    /// Derivatives exist of elementwise operations, products, convolutions, sums and other reductions, sorts, gathers and sums
    /// into places, all that moves elements, loops of known length ([`Builder::scan`], [`Builder::fori_loop`]), branches, and
    /// [`Builder::shard_map`] with its sums over devices and exchanges between them. Differentiating anything else, such as
    /// a [`Builder::while_loop`], is an error. Where a maximum has ties, they share the derivative, as in JAX.
    ///
    /// Inside [`Builder::shard_map`], the scalar is the sum of those of all devices, as in JAX with `check_vma=False`.
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
        let location = Location::caller();
        let own = |value: Op| self.own("grad", value, location);
        let ids: Option<Vec<OpId>> = by.iter().map(|value| own(*value)).collect();
        let (Some(ids), Some(last), Some(_)) = (ids, own(result), own(cotangent)) else {
            return failed();
        };
        if result.dims() != cotangent.dims() || result.dtype() != cotangent.dtype() {
            self.fail("vjp", format!("the cotangent {} must be {}", cotangent.text(), result.text()));
            return failed();
        }
        if last.computation != self.graph().current() {
            self.fail("grad", "the value must belong to the computation that is being built");
            return failed();
        }
        let location = Location::caller();
        let mut own = Vec::with_capacity(ids.len());
        for id in ids {
            let imported = self.graph().import_here(id, location);
            let Some(id) = self.handle("grad", imported, location).id else { return failed() };
            own.push((id, vec![true]));
        }
        let pulled = match self.pull_back(last, vec![Some(cotangent)], &own) {
            Ok(pulled) => pulled,
            Err(message) => {
                self.fail("grad", message);
                return failed();
            }
        };
        let mut gradients = Vec::with_capacity(by.len());
        for (value, cotangent) in by.iter().zip(pulled) {
            gradients.push(cotangent.first().copied().flatten().unwrap_or_else(|| value.zeros_like()));
        }
        gradients
    }

    /// The derivatives by some values of a computation, those by its value `last` being known. The computation is the
    /// current one, or one that this goes back through; what is made is added to the current one.
    #[track_caller]
    fn pull_back<'b>(
        &'b self,
        last: OpId,
        cotangent: Cotangent<'b>,
        by: &[(OpId, Active)],
    ) -> Result<Vec<Cotangent<'b>>, String> {
        let order = self.graph().ancestors(last);
        let active = self.activity(&order, by);
        let mut cotangents: HashMap<OpId, Cotangent<'b>> = HashMap::from([(last, cotangent)]);
        for &id in order.iter().rev() {
            let Some(cotangent) = cotangents.get(&id).filter(|all| all.iter().any(Option::is_some)) else { continue };
            let site = self.site(id, &active, cotangent.clone());
            if !site.wanted.contains(&true) || site.instruction.opcode == "copy" {
                continue;
            }
            let by_operand = site.cotangents()?;
            for ((operand, wanted), cotangent) in site.operands.iter().zip(&site.wanted).zip(by_operand) {
                let Some(id) = operand.id.filter(|_| *wanted) else { continue };
                let sums = cotangents.entry(id).or_default();
                sums.resize(cotangent.len().max(sums.len()), None);
                for (sum, part) in sums.iter_mut().zip(cotangent) {
                    *sum = match (*sum, part) {
                        (Some(sum), Some(part)) => Some(sum + part),
                        (sum, part) => sum.or(part),
                    };
                }
            }
        }
        Ok(by.iter().map(|(id, _)| cotangents.remove(id).unwrap_or_default()).collect())
    }

    fn site<'b>(&'b self, id: OpId, active: &HashMap<OpId, Active>, cotangent: Cotangent<'b>) -> Site<'b> {
        let graph = self.graph();
        let instruction = graph.instruction(id).clone();
        let ids: Vec<OpId> =
            (0..instruction.operand_ids.len()).filter_map(|operand| graph.operand(id, operand)).collect();
        let handle = |id| Op { builder: self, id: Some(id) };
        let active: Vec<Active> = ids.iter().map(|id| active.get(id).cloned().unwrap_or_default()).collect();
        Site {
            operands: ids.iter().copied().map(handle).collect(),
            wanted: active.iter().map(|active| active.contains(&true)).collect(),
            active,
            instruction,
            result: handle(id),
            derivative: cotangent.iter().copied().flatten().next().unwrap_or(self.failed()),
            cotangent,
        }
    }
}

fn is_float(dtype: DType) -> bool {
    let is_other = matches!(dtype, DType::Pred | DType::C64 | DType::C128) || dtype.name().starts_with(['s', 'u']);
    !is_other
}

impl<'b> Site<'b> {
    /// The derivatives by the operands.
    #[track_caller]
    fn cotangents(&self) -> Result<Vec<Cotangent<'b>>, String> {
        match self.instruction.opcode.as_str() {
            "tuple" => Ok(self.cotangent.iter().map(|&part| vec![part]).collect()),
            "get-tuple-element" => {
                let index = self.instruction.tuple_index as usize;
                let mut cotangent = vec![None; index + 1];
                cotangent[index] = Some(self.derivative);
                Ok(vec![cotangent])
            }
            "while" => self.turns(),
            "conditional" => self.branches(),
            "call" => self.parts(),
            _ => Ok(self.derivatives()?.into_iter().map(|derivative| vec![derivative]).collect()),
        }
    }

    #[track_caller]
    fn derivatives(&self) -> Derivatives<'b> {
        match self.instruction.opcode.as_str() {
            "dot" => Ok(self.dot()),
            "convolution" => self.convolution(),
            "reduce" => self.reduce(),
            "reduce-window" => self.reduce_window(),
            "sort" => self.sort(),
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
            "custom-call" => self.border(),
            "all-reduce" | "all-gather" | "reduce-scatter" | "all-to-all" | "collective-permute" => self.collective(),
            _ => self.elementwise(),
        }
    }

    /// The opcode of the computation that a reduction applies; `None` if it is none of the usual ones.
    fn reducer(&self) -> Option<InlineString> {
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
