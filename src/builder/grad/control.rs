//! Derivatives of loops, branches and manual regions: computations that go back through theirs.

use super::activity::Active;
use super::{Cotangent, Op, Site};
use crate::builder::Builder;
use crate::builder::graph::OpId;
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{ShapeProto, SharedShape};

impl<'b> Site<'b> {
    /// A loop is gone back through turn by turn. What does not change in it is a state too, whose derivatives add up.
    #[track_caller]
    pub(super) fn turns(&self) -> Result<Vec<Cotangent<'b>>, String> {
        let b = self.result.builder;
        let turns = self.result.id.and_then(|id| b.graph().loops.get(&id).copied());
        let turns = turns.ok_or(
            "while_loop has no derivative, as it is not known how often it runs: use scan, or fori_loop with a fixed start \
             and end",
        )?;
        let body = self.called()[0];
        let start = self.active[0].clone();
        let state = b.through_turns(body, start.clone());
        let at: Vec<usize> = (0..state.len()).filter(|&index| state[index]).collect();
        let shapes = &self.instruction.shape.tuple_shapes;
        let mut init = Vec::with_capacity(at.len());
        for &index in &at {
            init.push(self.part_or_zeros(index, &shapes[index]));
        }
        let mut outcome = Ok(());
        let made = b.fori_loop(0, turns.count, &init, |turn, current| {
            let counter = -turn + (i64::from(turns.start) + i64::from(turns.count) - 1);
            let mut cotangent = vec![None; state.len()];
            at.iter().zip(current).for_each(|(&index, &part)| cotangent[index] = Some(part));
            let parameter = OpId { computation: body, index: 0 };
            let pulled = b.back_through(body, counter.id, cotangent, &[(parameter, state.clone())]);
            let mut pulled = match pulled {
                Ok(pulled) => pulled,
                Err(message) => {
                    outcome = Err(message);
                    return current.to_vec();
                }
            };
            let mut parts = pulled.pop().unwrap_or_default();
            parts.resize(state.len(), None);
            let part_or_zeros =
                |(&index, current): (&usize, &Op<'b>)| parts[index].unwrap_or_else(|| current.zeros_like());
            at.iter().zip(current).map(part_or_zeros).collect()
        });
        outcome?;
        let mut cotangent = vec![None; state.len()];
        for (index, part) in at.into_iter().zip(made) {
            cotangent[index] = Some(part).filter(|_| start[index]);
        }
        Ok(vec![cotangent])
    }

    /// The derivatives by what both branches took come of a branch again.
    #[track_caller]
    pub(super) fn branches(&self) -> Result<Vec<Cotangent<'b>>, String> {
        let b = self.result.builder;
        let called = self.called();
        let [yes, no] = called[..] else { return Err(super::not_differentiable("a switch")) };
        let wanted = |operand: usize| -> Vec<usize> {
            (0..self.active[operand].len()).filter(|&index| self.active[operand][index]).collect()
        };
        let (of_yes, of_no) = (wanted(1), wanted(2));
        let shape_of = |operand: usize, index: usize| {
            self.operands[operand].shape().and_then(|shape| shape.tuple_shapes.get(index).cloned()).unwrap_or_default()
        };
        let zeros = |operand: usize, at: &[usize]| -> Vec<Op<'b>> {
            at.iter().map(|&index| b.zeros_of(&shape_of(operand, index))).collect()
        };
        let pull = |branch: u32, operand: usize, at: &[usize]| -> Result<Vec<Op<'b>>, String> {
            let parameter = OpId { computation: branch, index: 0 };
            let active = [(parameter, self.active[operand].clone())];
            let mut parts = b.back_through(branch, None, self.cotangent.clone(), &active)?.pop().unwrap_or_default();
            parts.resize(self.active[operand].len(), None);
            Ok(at.iter().map(|&index| parts[index].unwrap_or_else(|| b.zeros_of(&shape_of(operand, index)))).collect())
        };
        let mut outcomes = [Ok(()), Ok(())];
        let [left, right] = &mut outcomes;
        let made = b.cond(
            self.operands[0],
            || {
                let own = pull(yes, 1, &of_yes).unwrap_or_else(|message| {
                    *left = Err(message);
                    zeros(1, &of_yes)
                });
                [own, zeros(2, &of_no)].concat()
            },
            || {
                let own = pull(no, 2, &of_no).unwrap_or_else(|message| {
                    *right = Err(message);
                    zeros(2, &of_no)
                });
                [zeros(1, &of_yes), own].concat()
            },
        );
        outcomes.into_iter().collect::<Result<(), String>>()?;
        let (made_of_yes, made_of_no) = made.split_at(of_yes.len().min(made.len()));
        let spread = |operand: usize, at: &[usize], made: &[Op<'b>]| {
            let mut cotangent = vec![None; self.active[operand].len()];
            at.iter().zip(made).for_each(|(&index, &part)| cotangent[index] = Some(part));
            cotangent
        };
        Ok(vec![vec![None], spread(1, &of_yes, made_of_yes), spread(2, &of_no, made_of_no)])
    }

    /// The devices go back through their parts as they came.
    #[track_caller]
    pub(super) fn parts(&self) -> Result<Vec<Cotangent<'b>>, String> {
        let b = self.result.builder;
        let forward = self.called()[0];
        let (region, parameters) = {
            let graph = b.graph();
            (graph.computation(forward).region.clone(), graph.parameters(forward))
        };
        let given: Vec<(usize, Op<'b>)> =
            self.cotangent.iter().enumerate().filter_map(|(index, part)| part.map(|part| (index, part))).collect();
        let shapes: Option<Vec<SharedShape>> = given.iter().map(|(_, part)| part.shape()).collect();
        let shapes = shapes.ok_or("a derivative could not be built")?;
        let at: Vec<usize> = (0..self.wanted.len()).filter(|&index| self.wanted[index]).collect();
        let by: Vec<(OpId, Active)> = at.iter().map(|&index| (parameters[index], vec![true])).collect();
        let mut outcome = Ok(());
        let function = b.function("back", &shapes, region, |parts| {
            let mut cotangent = vec![None; self.cotangent.len()];
            given.iter().zip(parts).for_each(|(&(index, _), &part)| cotangent[index] = Some(part));
            let pulled = b.back_through(forward, None, cotangent, &by).unwrap_or_else(|message| {
                outcome = Err(message);
                Vec::new()
            });
            let mut made = Vec::with_capacity(at.len());
            for (place, &index) in at.iter().enumerate() {
                let part = pulled.get(place).and_then(|parts| parts.first().copied().flatten());
                made.push(part.unwrap_or_else(|| self.operands[index].zeros_like()));
            }
            b.tuple(&made)
        });
        outcome?;
        let function = function.ok_or("a derivative could not be built")?;
        let captured = b.graph().computation(function).captures.clone();
        let captured = captured.into_iter().map(|(outer, _)| Op { builder: b, id: Some(outer) });
        let operands: Vec<Op<'b>> = given.into_iter().map(|(_, part)| part).chain(captured).collect();
        let made = b.push_calling(crate::proto::HloInstructionProto::new("call"), &operands, &[function]);
        let mut cotangents = vec![vec![None]; self.operands.len()];
        for (place, index) in at.into_iter().enumerate() {
            cotangents[index] = vec![Some(made.element(place))];
        }
        Ok(cotangents)
    }

    pub(super) fn called(&self) -> Vec<u32> {
        self.result.id.map(|id| self.result.builder.graph().called(id)).unwrap_or_default()
    }

    #[track_caller]
    fn part_or_zeros(&self, index: usize, shape: &ShapeProto) -> Op<'b> {
        let part = self.cotangent.get(index).copied().flatten();
        part.unwrap_or_else(|| self.result.builder.zeros_of(shape))
    }
}

impl Builder {
    /// Makes the current computation one that goes back through another, from the derivatives by its result to those by its
    /// parameters.
    #[track_caller]
    fn back_through<'b>(
        &'b self,
        forward: u32,
        counter: Option<OpId>,
        cotangent: Cotangent<'b>,
        by: &[(OpId, Active)],
    ) -> Result<Vec<Cotangent<'b>>, String> {
        let root = {
            let mut graph = self.graph();
            graph.begin_reverse(forward, counter);
            graph.root(forward)
        };
        self.pull_back(root, cotangent, by)
    }

    #[track_caller]
    fn zeros_of(&self, shape: &ShapeProto) -> Op<'_> {
        self.zeros(shape::dtype(shape).unwrap_or(DType::F32), &shape.dimensions)
    }
}
