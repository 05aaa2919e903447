//! Looking things up in a module's protobuf.

use std::collections::{HashMap, HashSet};

use crate::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, SharedShape};

/// The shape of every instruction of a computation, by id.
pub(super) fn shapes(computation: &HloComputationProto) -> HashMap<i64, SharedShape> {
    let entries = computation
        .instructions
        .iter()
        .filter_map(|instruction| instruction.shape.as_option().map(|shape| (instruction.id, shape.clone())));
    entries.collect()
}

/// The computation with this id.
pub(super) fn computation(module: &HloModuleProto, id: i64) -> Option<&HloComputationProto> {
    module.computations.iter().find(|computation| computation.id == id)
}

/// The ids of all computations that hold an instruction of this sort, themselves or in a computation that they call.
pub(super) fn holders(module: &HloModuleProto, sort: impl Fn(&HloInstructionProto) -> bool) -> HashSet<i64> {
    let mut holders = HashSet::new();
    loop {
        let before = holders.len();
        for computation in &module.computations {
            let holds = |instruction: &HloInstructionProto| {
                sort(instruction) || instruction.called_computation_ids.iter().any(|id| holders.contains(id))
            };
            if computation.instructions.iter().any(holds) {
                holders.insert(computation.id);
            }
        }
        if holders.len() == before {
            return holders;
        }
    }
}

/// Ids and names that the module does not have yet.
pub(super) struct Fresh {
    next_computation: i64,
    ids: Ids,
    names: HashSet<String>,
    /// The last number that was added to a name.
    numbers: HashMap<String, u64>,
}

enum Ids {
    /// Instruction ids hold their computation's id; the next number of each computation.
    Qualified(HashMap<i64, i64>),
    /// The next id.
    Flat(i64),
}

impl Fresh {
    pub fn new(module: &HloModuleProto) -> Fresh {
        let computations = &module.computations;
        let next_computation = computations.iter().map(|computation| computation.id).max().unwrap_or(0) + 1;
        let mut is_qualified = true;
        let mut last = 0;
        let mut next_of = HashMap::new();
        let mut names = HashSet::new();
        for computation in computations {
            names.insert(computation.name.clone());
            let next = next_of.entry(computation.id).or_insert(0);
            for instruction in &computation.instructions {
                names.insert(instruction.name.to_string());
                is_qualified &= instruction.id >> 32 == computation.id;
                last = last.max(instruction.id);
                *next = (*next).max((instruction.id & 0xffff_ffff) + 1);
            }
        }
        let ids = if is_qualified { Ids::Qualified(next_of) } else { Ids::Flat(last + 1) };
        Fresh { next_computation, ids, names, numbers: HashMap::new() }
    }

    pub fn computation(&mut self) -> i64 {
        self.next_computation += 1;
        self.next_computation - 1
    }

    /// An id for an instruction of this computation.
    pub fn instruction(&mut self, computation: i64) -> i64 {
        match &mut self.ids {
            Ids::Qualified(next_of) => {
                let next = next_of.entry(computation).or_insert(0);
                *next += 1;
                computation << 32 | (*next - 1)
            }
            Ids::Flat(next) => {
                *next += 1;
                *next - 1
            }
        }
    }

    /// A name that begins with this one.
    pub fn name(&mut self, base: &str) -> String {
        let number = self.numbers.entry(base.to_owned()).or_insert(0);
        loop {
            *number += 1;
            let name = format!("{base}.{number}");
            if self.names.insert(name.clone()) {
                return name;
            }
        }
    }
}
