//! Gives every call site of a computation with bridged collectives its own copy of it.
//!
//! A collective is known by its instruction and by how often the device has run it. Were one computation called from
//! two places, the order of the two calls would decide which is which, and XLA orders calls by their data alone.

use std::collections::{HashMap, HashSet};

use super::{Error, module};
use crate::collective::CollectiveSpec;
use crate::proto::{HloComputationProto, HloModuleProto};

/// Bounds what nested calls can multiply to.
const MAX_COPIES: usize = 10_000;

/// Opcodes that may call a computation with custom calls.
const CALLERS: [&str; 3] = ["while", "conditional", "call"];

/// Copies computations until each that holds bridged collectives has one call site; copies of collectives are added to
/// `bridged`. Fusions of custom calls become plain calls.
pub(super) fn separate(
    module: &mut HloModuleProto,
    bridged: &mut HashMap<i64, CollectiveSpec>,
) -> Result<(), Error> {
    unfuse(module)?;
    let mut holders = module::holders(module, |instruction| bridged.contains_key(&instruction.id));
    let mut copier = Copier::new(module);
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
                let Some(&target) = index.get(&callee).filter(|_| holders.contains(&callee)) else { continue };
                if claimed.insert(callee) {
                    open.push(target);
                    continue;
                }
                if module.computations.len() - originals >= MAX_COPIES {
                    let what = format!("computations with collectives are called from more than {MAX_COPIES} places");
                    return Err(Error::Unsupported(vec![what]));
                }
                let copy = copier.copy(&module.computations[target], bridged);
                let id = copy.id;
                holders.insert(id);
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
    Ok(())
}

/// Makes calls of fusions that hold custom calls of ours, and refuses other places where none can stand.
fn unfuse(module: &mut HloModuleProto) -> Result<(), Error> {
    let targets = [super::COLLECTIVE_TARGET, super::LOGICAL_ID_TARGET];
    let holders = module::holders(module, |instruction| targets.contains(&instruction.custom_call_target.as_str()));
    let mut unfused = HashSet::new();
    let mut refused = Vec::new();
    for instruction in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        if !instruction.called_computation_ids.iter().any(|id| holders.contains(id)) {
            continue;
        }
        if instruction.opcode == "fusion" {
            instruction.opcode = "call".to_owned();
            instruction.fusion_kind.clear();
            instruction.backend_config.clear();
            instruction.backend_config_payload = None.into();
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

struct Copier {
    next_computation: i64,
    /// The next instruction id, where ids do not hold their computation's.
    next_instruction: Option<i64>,
    names: HashSet<String>,
}

impl Copier {
    fn new(module: &HloModuleProto) -> Copier {
        let computations = &module.computations;
        let next_computation = computations.iter().map(|computation| computation.id).max().unwrap_or(0) + 1;
        let mut ids = computations.iter().flat_map(|computation| {
            computation.instructions.iter().map(move |instruction| (computation.id, instruction.id))
        });
        let qualified = ids.clone().all(|(computation, instruction)| instruction >> 32 == computation);
        let next_instruction = (!qualified).then(|| ids.by_ref().map(|(_, id)| id).max().unwrap_or(0) + 1);
        let instructions = computations.iter().flat_map(|computation| &computation.instructions);
        let mut names: HashSet<String> = instructions.map(|instruction| instruction.name.clone()).collect();
        names.extend(computations.iter().map(|computation| computation.name.clone()));
        Copier { next_computation, next_instruction, names }
    }

    fn copy(
        &mut self,
        original: &HloComputationProto,
        bridged: &mut HashMap<i64, CollectiveSpec>,
    ) -> HloComputationProto {
        let mut copy = original.clone();
        copy.id = self.next_computation;
        self.next_computation += 1;
        copy.name = self.name(&original.name);
        let mut renamed = HashMap::new();
        for instruction in &mut copy.instructions {
            let old = instruction.id;
            instruction.id = match &mut self.next_instruction {
                Some(next) => {
                    *next += 1;
                    *next - 1
                }
                None => copy.id << 32 | (old & 0xffff_ffff),
            };
            instruction.name = self.name(&instruction.name);
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

    fn name(&mut self, original: &str) -> String {
        let mut number = 2u64;
        loop {
            let name = format!("{original}.site{number}");
            if self.names.insert(name.clone()) {
                return name;
            }
            number += 1;
        }
    }
}
