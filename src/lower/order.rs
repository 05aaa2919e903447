//! One total order for everything that waits for other processes.

use std::collections::{HashMap, HashSet};

use super::module;
use crate::collective::CollectiveSpec;
use crate::proto::HloModuleProto;

/// Chains the bridged collectives of each computation, and the loops, conditionals and calls that hold some, by control
/// dependencies.
///
/// Instructions stand after what they depend on, so a chain in their order closes no cycle.
pub(super) fn chain(module: &mut HloModuleProto, bridged: &HashMap<i64, CollectiveSpec>) {
    let holders: HashSet<i64> = module::holders(module, |instruction| bridged.contains_key(&instruction.id));
    for computation in &mut module.computations {
        let mut previous = None;
        for instruction in &mut computation.instructions {
            let holds = instruction.called_computation_ids.iter().any(|id| holders.contains(id));
            if !holds && !bridged.contains_key(&instruction.id) {
                continue;
            }
            if let Some(previous) = previous.replace(instruction.id) {
                let known = instruction.control_predecessor_ids.contains(&previous);
                if !known && !instruction.operand_ids.contains(&previous) {
                    instruction.control_predecessor_ids.push(previous);
                }
            }
        }
    }
}
