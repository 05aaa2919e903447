//! Which values depend on those that derivatives are wanted by.

use std::collections::HashMap;

use super::is_float;
use crate::builder::Builder;
use crate::builder::graph::OpId;
use crate::hlo::shape;

/// For an array whether it depends, for a tuple each of its elements.
pub(super) type Active = Vec<bool>;

impl Builder {
    /// What of these values, operands first, depends on those of which it is known.
    pub(super) fn activity(&self, order: &[OpId], known: &[(OpId, Active)]) -> HashMap<OpId, Active> {
        let mut active: HashMap<OpId, Active> = HashMap::with_capacity(order.len());
        for &id in order {
            let given = known.iter().find(|(known, _)| *known == id).map(|(_, active)| active.clone());
            let found = given.unwrap_or_else(|| self.depends(id, &active));
            active.insert(id, found);
        }
        active
    }

    fn depends(&self, id: OpId, active: &HashMap<OpId, Active>) -> Active {
        let graph = self.graph();
        let instruction = graph.instruction(id).clone();
        let ids = (0..instruction.operand_ids.len()).filter_map(|operand| graph.operand(id, operand));
        let operands: Vec<Active> = ids.map(|id| active.get(&id).cloned().unwrap_or_default()).collect();
        let called = graph.called(id);
        drop(graph);
        match instruction.opcode.as_str() {
            "copy" => vec![false],
            "tuple" => operands.iter().map(|operand| operand.contains(&true)).collect(),
            "get-tuple-element" => {
                let of_tuple = operands.first().and_then(|tuple| tuple.get(instruction.tuple_index as usize));
                let depends = of_tuple.is_some_and(|&depends| depends);
                vec![depends && shape::dtype(&instruction.shape).is_some_and(is_float)]
            }
            "while" => self.through_turns(called[0], operands.into_iter().next().unwrap_or_default()),
            "conditional" => {
                let mut either = vec![false; instruction.shape.tuple_shapes.len()];
                for (branch, argument) in called.into_iter().zip(operands.into_iter().skip(1)) {
                    let results = self.through(branch, &[argument]);
                    either.iter_mut().zip(results).for_each(|(either, result)| *either |= result);
                }
                either
            }
            "call" => self.through(called[0], &operands),
            _ => {
                let depends = operands.iter().any(|operand| operand.contains(&true));
                let leaves = shape::leaves(&instruction.shape);
                leaves.into_iter().map(|leaf| depends && shape::dtype(leaf).is_some_and(is_float)).collect()
            }
        }
    }

    /// What of a computation's result depends on arguments that do.
    fn through(&self, computation: u32, arguments: &[Active]) -> Active {
        let (root, parameters) = {
            let graph = self.graph();
            (graph.root(computation), graph.parameters(computation))
        };
        let order = self.graph().ancestors(root);
        let known: Vec<(OpId, Active)> = parameters.into_iter().zip(arguments.iter().cloned()).collect();
        self.activity(&order, &known).remove(&root).unwrap_or_default()
    }

    /// What of a loop's state depends, in any turn, where this much of it does at its start.
    pub(super) fn through_turns(&self, body: u32, mut state: Active) -> Active {
        loop {
            let next = self.through(body, std::slice::from_ref(&state));
            let grown: Active = state.iter().zip(next).map(|(&before, after)| before || after).collect();
            if grown == state {
                return state;
            }
            state = grown;
        }
    }
}
