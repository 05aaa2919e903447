//! The collectives of a program of one device.

use serde::Serialize;

use super::graph::{Graph, Runs, Walk};
use super::participants::{Participants, participants};
use super::traffic::{self, LinkBytes, Pattern, Places};
use crate::hlo::groups::{self, GroupError};
use crate::hlo::shape;
use crate::lower::Layout;
use crate::proto::HloInstructionProto;

/// A collective instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Collective {
    /// XLA's name of the operation.
    pub opcode: String,
    /// The instruction's name.
    pub name: String,
    /// The computation that it stands in.
    pub computation: String,
    /// How often it runs in one execution of the program.
    pub runs: Runs,
    /// The shapes of its operands on each device, as in `f32[8,32]`.
    pub operands: Vec<String>,
    /// Bytes of all operands on each device.
    pub operand_bytes: u64,
    /// Who takes part.
    pub participants: Participants,
    /// How [`bytes_moved`](Self::bytes_moved) follows from the shapes, `n` devices being in a group.
    pub formula: &'static str,
    /// What its busiest device moves each time that it runs.
    pub bytes_moved: LinkBytes,
}

/// What all collectives of one execution move together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// The busiest device.
    pub busiest_device_bytes: LinkBytes,
    /// All devices together.
    pub all_devices_bytes: LinkBytes,
    /// Some stand in loops whose trip count is not known, and are counted for one turn.
    pub has_unknown_loops: bool,
    /// Some stand in branches, and are counted as if these were taken.
    pub has_branches: bool,
}

/// The collectives in program order, and what they move together.
pub(super) fn collectives(
    graph: &Graph,
    walk: &Walk,
    layout: &Layout,
    places: Places,
) -> Result<(Vec<Collective>, Totals), GroupError> {
    let mut totals = Totals::default();
    let mut of_devices = Vec::new();
    let mut collectives = Vec::new();
    for &(at, instruction) in &walk.order {
        if !groups::is_collective(instruction) {
            continue;
        }
        let runs = walk.runs[at];
        let (collective, once) = collective(graph, at, instruction, runs, layout, places)?;
        of_devices.resize(once.len(), LinkBytes::default());
        for (total, moved) in of_devices.iter_mut().zip(once) {
            *total += moved.times(runs.times);
        }
        totals.has_unknown_loops |= runs.in_unknown_loop;
        totals.has_branches |= runs.in_branch;
        collectives.push(collective);
    }
    totals.busiest_device_bytes = busiest(&of_devices);
    of_devices.into_iter().for_each(|moved| totals.all_devices_bytes += moved);
    Ok((collectives, totals))
}

/// One collective, and what each device moves when it runs.
fn collective(
    graph: &Graph,
    at: usize,
    instruction: &HloInstructionProto,
    runs: Runs,
    layout: &Layout,
    places: Places,
) -> Result<(Collective, Vec<LinkBytes>), GroupError> {
    let opcode = instruction.opcode.strip_suffix("-start").unwrap_or(&instruction.opcode).to_owned();
    let participants = participants(instruction, layout, places)?;
    let mut operands: Vec<_> =
        instruction.operand_ids.iter().filter_map(|&id| Some(&*graph.instruction(at, id)?.shape)).collect();
    if opcode == "ragged-all-to-all" {
        // The others are the result's place, offsets and sizes.
        operands.truncate(1);
    }
    let operand_bytes = operands.iter().filter_map(|shape| shape::byte_size(shape)).fold(0, u64::saturating_add);
    // Participants bound the number of devices.
    let mut moved = vec![LinkBytes::default(); (layout.replicas * layout.partitions) as usize];
    let mut add = |device: u32, bytes: LinkBytes| {
        if let Some(moved) = moved.get_mut(device as usize) {
            *moved += bytes;
        }
    };
    let pattern = match opcode.as_str() {
        "all-reduce" => Some(Pattern::AllReduce),
        "all-gather" => Some(Pattern::AllGather),
        "reduce-scatter" => Some(Pattern::ReduceScatter),
        "all-to-all" | "ragged-all-to-all" => Some(Pattern::AllToAll),
        "collective-broadcast" => Some(Pattern::Broadcast),
        _ => None,
    };
    for members in &participants.device_ids {
        match (pattern, &members[..]) {
            (Some(pattern), group) => traffic::of_group(pattern, group, operand_bytes, places, &mut add),
            (None, &[source, target]) => {
                add(source, traffic::of_pair(source, target, operand_bytes, places));
            }
            (None, _) => {}
        }
    }
    let formula = match (pattern, opcode.as_str()) {
        (_, "ragged-all-to-all") => "at most (n-1)/n × first operand",
        (Some(pattern), _) => pattern.formula(),
        (None, _) => "operand, per pair",
    };
    let collective = Collective {
        opcode,
        name: instruction.name.to_string(),
        computation: graph.computation(at).name.clone(),
        runs,
        operands: operands.into_iter().map(|shape| shape::text_without_layout(shape)).collect(),
        operand_bytes,
        participants,
        formula,
        bytes_moved: busiest(&moved),
    };
    Ok((collective, moved))
}

/// What the device moves that moves most.
fn busiest(devices: &[LinkBytes]) -> LinkBytes {
    devices
        .iter()
        .copied()
        .max_by_key(|moved| (moved.total(), moved.between_slices, moved.between_processes))
        .unwrap_or_default()
}
