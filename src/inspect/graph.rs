//! Who calls whom in a module, and how often.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::Serialize;

use super::trip_count::trip_count;
use crate::proto::{HloComputationProto, HloInstructionProto, HloModuleProto};

/// How often a computation runs in one execution of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Runs {
    /// Times that it runs. Loops whose trip count is not known count as one turn, and every branch as taken.
    pub times: u64,
    /// It runs inside a loop whose trip count is not known.
    pub in_unknown_loop: bool,
    /// It runs inside a branch that need not be taken.
    pub in_branch: bool,
}

/// A while loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loop {
    /// The instruction's name.
    pub name: String,
    /// The computation that it stands in.
    pub computation: String,
    /// How often its body runs each time; `None` where that is not known before it runs.
    pub trip_count: Option<u64>,
}

/// A module with its references looked up.
pub(super) struct Graph<'a> {
    module: &'a HloModuleProto,
    /// Positions of computations, by id.
    computations: HashMap<i64, usize, RandomState>,
    /// Positions of each computation's instructions, by id.
    instructions: Vec<HashMap<i64, usize, RandomState>>,
}

/// All that runs when a program runs. Computations that only say how elements are combined are no part of it.
pub(super) struct Walk<'a> {
    /// The instructions in program order, each one once, with the position of its computation. Those of a called
    /// computation follow its first caller.
    pub order: Vec<(usize, &'a HloInstructionProto)>,
    /// By position of the computation.
    pub runs: Vec<Runs>,
    /// The loops in program order.
    pub loops: Vec<Loop>,
}

impl<'a> Graph<'a> {
    pub fn new(module: &'a HloModuleProto) -> Graph<'a> {
        let positions = |computation: &HloComputationProto| {
            computation.instructions.iter().enumerate().map(|(at, instruction)| (instruction.id, at)).collect()
        };
        Graph {
            module,
            computations: module.computations.iter().enumerate().map(|(at, it)| (it.id, at)).collect(),
            instructions: module.computations.iter().map(positions).collect(),
        }
    }

    pub fn computation(&self, at: usize) -> &'a HloComputationProto {
        &self.module.computations[at]
    }

    /// The position of the computation with this id.
    pub fn find(&self, id: i64) -> Option<usize> {
        self.computations.get(&id).copied()
    }

    /// An instruction of the computation at this position.
    pub fn instruction(&self, computation: usize, id: i64) -> Option<&'a HloInstructionProto> {
        let at = *self.instructions.get(computation)?.get(&id)?;
        self.module.computations[computation].instructions.get(at)
    }

    pub fn walk(&self) -> Walk<'a> {
        let mut walk =
            Walk { order: Vec::new(), runs: vec![Runs::default(); self.instructions.len()], loops: Vec::new() };
        let Some(entry) = self.find(self.module.entry_computation_id) else { return walk };
        let mut trip_counts = HashMap::new();
        let mut callees_first = Vec::new();
        let mut seen = vec![false; self.instructions.len()];
        seen[entry] = true;
        // Computations that are not done, with the callees and instructions that are still to come.
        let mut open = vec![(entry, Vec::new().into_iter(), self.computation(entry).instructions.iter())];
        while let Some((at, callees, instructions)) = open.last_mut() {
            let at = *at;
            if let Some(callee) = callees.next() {
                if !std::mem::replace(&mut seen[callee], true) {
                    open.push((callee, Vec::new().into_iter(), self.computation(callee).instructions.iter()));
                }
                continue;
            }
            let Some(instruction) = instructions.next() else {
                callees_first.push(at);
                open.pop();
                continue;
            };
            *callees = self.callees(instruction).into_iter();
            walk.order.push((at, instruction));
            if instruction.opcode == "while" {
                let trip_count = trip_count(self, at, instruction);
                trip_counts.insert((at, instruction.id), trip_count);
                let computation = self.computation(at).name.clone();
                walk.loops.push(Loop { name: instruction.name.to_string(), computation, trip_count });
            }
        }

        walk.runs[entry].times = 1;
        for at in callees_first.into_iter().rev() {
            let caller = walk.runs[at];
            for instruction in &self.computation(at).instructions {
                for (slot, callee) in self.callees(instruction).into_iter().enumerate() {
                    let runs = &mut walk.runs[callee];
                    let trips = match trip_counts.get(&(at, instruction.id)) {
                        // The condition is asked once more than the body runs.
                        Some(Some(trips)) => trips.saturating_add(slot as u64),
                        _ => 1,
                    };
                    runs.times = runs.times.saturating_add(caller.times.saturating_mul(trips));
                    runs.in_unknown_loop |=
                        caller.in_unknown_loop || trip_counts.get(&(at, instruction.id)).is_some_and(Option::is_none);
                    runs.in_branch |= caller.in_branch || instruction.opcode == "conditional";
                }
            }
        }
        walk
    }

    /// Positions of the computations that an instruction runs; of a loop the body and then the condition.
    fn callees(&self, instruction: &HloInstructionProto) -> Vec<usize> {
        match instruction.opcode.as_str() {
            "while" | "conditional" | "call" | "fusion" | "async-start" => {
                instruction.called_computation_ids.iter().filter_map(|&id| self.find(id)).collect()
            }
            _ => Vec::new(),
        }
    }
}
