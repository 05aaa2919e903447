//! Gives every call site of a computation with bridged collectives its own copy of it.
//!
//! A collective is known by its instruction and by how often the device has run it. Were one computation called from
//! two places, the order of the two calls would decide which is which, and XLA orders calls by their data alone.

use std::collections::{HashMap, HashSet};

use super::Error;
use super::module::{self, Fresh};
use crate::collective::CollectiveSpec;
use crate::proto::{HloComputationProto, HloModuleProto};

/// Bounds what nested calls can multiply to.
const MAX_COPIES: usize = 10_000;

/// Opcodes that may call a computation with custom calls.
const CALLERS: [&str; 3] = ["while", "conditional", "call"];

/// Copies computations until each that holds bridged collectives, and each that is an alternative to one that does, has
/// one call site; these are the result. Copies of collectives are added to `bridged`. Fusions of custom calls become
/// plain calls.
pub(super) fn separate(
    module: &mut HloModuleProto,
    bridged: &mut HashMap<i64, CollectiveSpec>,
    fresh: &mut Fresh,
) -> Result<HashSet<i64>, Error> {
    unfuse(module)?;
    let holders = module::holders(module, |instruction| bridged.contains_key(&instruction.id));
    let mut members = HashSet::new();
    for instruction in module.computations.iter().flat_map(|computation| &computation.instructions) {
        if instruction.called_computation_ids.iter().any(|callee| holders.contains(callee)) {
            members.extend(instruction.called_computation_ids.iter().copied());
        }
    }
    let mut index: HashMap<i64, usize> =
        module.computations.iter().enumerate().map(|(at, computation)| (computation.id, at)).collect();
    let originals = module.computations.len();
    let mut origin: Vec<usize> = (0..originals).collect();
    let mut claimed: HashSet<i64> = HashSet::new();
    let mut open: Vec<usize> = index.get(&module.entry_computation_id).copied().into_iter().collect();
    while let Some(at) = open.pop() {
        for position in 0..module.computations[at].instructions.len() {
            for slot in 0..module.computations[at].instructions[position].called_computation_ids.len() {
                let callee = module.computations[at].instructions[position].called_computation_ids[slot];
                let Some(&target) = index.get(&callee).filter(|_| members.contains(&callee)) else { continue };
                if claimed.insert(callee) {
                    open.push(target);
                    continue;
                }
                if module.computations.len() - originals >= MAX_COPIES {
                    let what = format!("computations with collectives are called from more than {MAX_COPIES} places");
                    return Err(Error::Unsupported(vec![what]));
                }
                let copy = copy(&module.computations[target], fresh, bridged);
                let id = copy.id;
                members.insert(id);
                claimed.insert(id);
                index.insert(id, module.computations.len());
                origin.push(origin[target]);
                open.push(module.computations.len());
                module.computations.push(copy);
                module.computations[at].instructions[position].called_computation_ids[slot] = id;
            }
        }
    }
    // Callees stand before their callers, and so do their copies.
    let mut sorted: Vec<_> = origin.into_iter().zip(std::mem::take(&mut module.computations)).collect();
    sorted.sort_by_key(|&(origin, _)| origin);
    module.computations = sorted.into_iter().map(|(_, computation)| computation).collect();
    Ok(members)
}

/// Makes calls of fusions that hold custom calls of ours, and refuses other places where none can stand.
fn unfuse(module: &mut HloModuleProto) -> Result<(), Error> {
    let targets = [super::COLLECTIVE_TARGET, super::LOGICAL_ID_TARGET];
    let holders =
        module::holders(module, |instruction| targets.contains(&instruction.details().custom_call_target.as_str()));
    let mut unfused = HashSet::new();
    let mut refused = Vec::new();
    for instruction in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        if !instruction.called_computation_ids.iter().any(|id| holders.contains(id)) {
            continue;
        }
        if instruction.opcode == "fusion" {
            instruction.opcode = "call".into();
            let details = instruction.details_mut();
            details.fusion_kind.clear();
            details.backend_config.clear();
            details.backend_config_payload = None.into();
            unfused.extend(instruction.called_computation_ids.iter().copied());
        } else if !CALLERS.contains(&instruction.opcode.as_str()) {
            refused.push(format!("{} ({}) calls a computation with collectives", instruction.name, instruction.opcode));
        }
    }
    for computation in module.computations.iter_mut().filter(|computation| unfused.contains(&computation.id)) {
        computation.is_fusion_computation = false;
    }
    if refused.is_empty() { Ok(()) } else { Err(Error::Unsupported(refused)) }
}

/// A copy of a computation under fresh ids and names.
fn copy(
    original: &HloComputationProto,
    fresh: &mut Fresh,
    bridged: &mut HashMap<i64, CollectiveSpec>,
) -> HloComputationProto {
    let mut copy = original.clone();
    copy.id = fresh.computation();
    copy.name = fresh.name(&original.name);
    let mut renamed = HashMap::new();
    for instruction in &mut copy.instructions {
        let old = instruction.id;
        instruction.id = fresh.instruction(copy.id);
        instruction.name = fresh.name(&instruction.name).into();
        renamed.insert(old, instruction.id);
        if let Some(spec) = bridged.get(&old).cloned() {
            bridged.insert(instruction.id, spec);
        }
    }
    let rename = |id: &mut i64| *id = *renamed.get(id).unwrap_or(id);
    rename(&mut copy.root_id);
    for instruction in &mut copy.instructions {
        instruction.operand_ids.iter_mut().for_each(rename);
        instruction.control_predecessor_ids.iter_mut().for_each(rename);
    }
    copy
}
