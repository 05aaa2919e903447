//! Turns asynchronous operations into their synchronous form.
//!
//! Custom calls complete on their own thread anyway, and the CPU backend has no asynchronous collectives.

use std::collections::HashMap;

use super::Error;
use crate::proto::{HloInstructionProto, HloModuleProto, SharedShape};

/// Replaces the start of every asynchronous operation by the operation, and takes its updates and its done out.
pub(super) fn desync(module: &mut HloModuleProto) -> Result<(), Error> {
    let mut threads = HashMap::new();
    for computation in &mut module.computations {
        let is_start = |instruction: &HloInstructionProto| {
            let starts =
                ["all-gather-start", "all-reduce-start", "async-start", "collective-permute-start", "copy-start"];
            starts.contains(&instruction.opcode.as_str())
        };
        // Start, update or done, by id, to its start.
        let mut start_of: HashMap<i64, i64> = HashMap::new();
        let mut result_of: HashMap<i64, SharedShape> = HashMap::new();
        for instruction in &computation.instructions {
            if is_start(instruction) {
                start_of.insert(instruction.id, instruction.id);
                continue;
            }
            let (update, done) = match instruction.opcode.as_str() {
                "async-update" => (true, false),
                "all-gather-done" | "all-reduce-done" | "async-done" | "collective-permute-done" | "copy-done" => {
                    (false, true)
                }
                _ => continue,
            };
            let Some(&start) = instruction.operand_ids.first().and_then(|operand| start_of.get(operand)) else {
                continue;
            };
            if update || done {
                start_of.insert(instruction.id, start);
            }
            if done {
                result_of.insert(start, instruction.shape.as_option().cloned().unwrap_or_default());
            }
        }
        if start_of.is_empty() {
            continue;
        }

        computation
            .instructions
            .retain(|instruction| start_of.get(&instruction.id).is_none_or(|start| *start == instruction.id));
        let forward = |id: &mut i64| *id = *start_of.get(id).unwrap_or(id);
        forward(&mut computation.root_id);
        for instruction in &mut computation.instructions {
            instruction.operand_ids.iter_mut().for_each(forward);
            instruction.control_predecessor_ids.iter_mut().for_each(forward);
            if start_of.contains_key(&instruction.id) {
                let shape = result_of.remove(&instruction.id);
                let shape = shape.ok_or_else(|| Error::malformed(&instruction.name, "it is started and never done"))?;
                make_synchronous(instruction, shape);
                if instruction.opcode == "call" {
                    threads.extend(
                        instruction.called_computation_ids.iter().map(|&id| (id, computation.execution_thread.clone())),
                    );
                }
            }
        }
    }
    for computation in &mut module.computations {
        if let Some(thread) = threads.remove(&computation.id) {
            computation.execution_thread = thread;
        }
    }
    Ok(())
}

fn make_synchronous(instruction: &mut HloInstructionProto, shape: SharedShape) {
    let opcode = match instruction.opcode.strip_suffix("-start") {
        Some("async") | None => "call",
        Some(operation) => operation,
    };
    instruction.opcode = opcode.into();
    instruction.shape = shape.into();
    instruction.details_mut().async_execution_thread.clear();
    instruction.details_mut().optional_cross_program_prefetch_index = None;
}
