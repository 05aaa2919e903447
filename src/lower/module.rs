//! Looking things up in a module's protobuf.

use std::collections::{HashMap, HashSet};

use crate::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto};

/// The shape of every instruction of a computation, by id.
pub(super) fn shapes(computation: &HloComputationProto) -> HashMap<i64, ShapeProto> {
    let entries = computation.instructions.iter().filter_map(|instruction| {
        instruction.shape.as_option().map(|shape| (instruction.id, shape.clone()))
    });
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
