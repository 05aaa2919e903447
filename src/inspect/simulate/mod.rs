//! What a program would take on a cluster that is not there: time per step and per collective, and what limits it.
//!
//! A step is the work of one device, at a rate that is given, and its collectives one after the other, each by the algorithm
//! that the engine would take ([`crate::collective`]). Links are busy in both directions at once; a collective takes as long as its
//! busiest link, and the latency of each step that must wait for another one.

mod topology;

use std::collections::HashMap;

use serde::Serialize;

use super::cost::{self, Cost};
use super::graph::{Graph, Runs};
use crate::collective::cost::{Kind, Transfer, time, widening};
use crate::hlo::groups::{self, GroupError};
use crate::hlo::{HloModule, shape};
use crate::proto::HloInstructionProto;

pub use crate::collective::Link;
pub use crate::collective::cost::{Algorithm, Limit, Timing};
pub use crate::quantity::{InvalidQuantity, parse_bandwidth, parse_flops, parse_seconds};
pub use topology::Topology;

/// What a device does by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Device {
    /// Floating-point operations per second.
    pub flops: Option<f64>,
    /// Bytes per second to and from its memory.
    pub memory_bandwidth: Option<f64>,
    /// Seconds of a step without its collectives, where they were measured; counts more than what follows from the rates.
    pub compute_seconds: Option<f64>,
}

/// What a program would take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The module's name.
    pub name: String,
    /// The cluster.
    pub topology: Topology,
    /// Devices of the whole cluster.
    pub device_count: u64,
    /// The work of one step on each device.
    pub cost: Cost,
    /// Bytes that one step moves between each device and its memory: arguments and results, and operands and results of its
    /// products of matrices. What lies between these is thought to stay in registers.
    pub memory_bytes: u64,
    /// Seconds of a step without its collectives; 0 where no rate is given.
    pub compute_seconds: f64,
    /// The collectives of the program of one device, in program order.
    pub collectives: Vec<Collective>,
    /// Seconds of a step's collectives.
    pub collective_seconds: f64,
    /// Seconds of a step whose work and collectives wait for each other.
    pub step_seconds: f64,
    /// Seconds of a step whose collectives are hidden behind its work as far as possible.
    pub overlapped_step_seconds: f64,
    /// What most of the collectives' time is spent on.
    pub limit: Limit,
    /// Some stand in loops whose trip count is not known, and are counted for one turn.
    pub has_unknown_loops: bool,
}

/// A collective instruction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Collective {
    /// XLA's name of the operation.
    pub opcode: String,
    /// The instruction's name.
    pub name: String,
    /// How often it runs in one step.
    pub runs: Runs,
    /// The shapes of its operands on each device.
    pub operands: Vec<String>,
    /// Bytes of all operands on each device.
    pub operand_bytes: u64,
    /// How many groups there are, or pairs.
    pub groups: usize,
    /// Devices of the largest one.
    pub group_size: usize,
    /// How long it takes each time that it runs, and why.
    pub timing: Timing,
    /// Seconds of all its runs in one step.
    pub step_seconds: f64,
}

/// Predicts what the program of one device takes, as it is after partitioning for `replicas × partitions` devices, which are
/// all that the topology has.
///
/// # Errors
/// Groups that make no sense for so many devices.
pub fn simulate(
    module: &HloModule,
    (replicas, partitions): (i64, i64),
    topology: &Topology,
    device: &Device,
) -> Result<Prediction, GroupError> {
    let graph = Graph::new(&module.proto);
    let walk = graph.walk();
    let cluster = topology.cluster();
    let mut collectives = Vec::new();
    let mut known: HashMap<(Transfer, [u8; 32]), (usize, usize, Timing)> = HashMap::new();
    for &(at, instruction) in &walk.order {
        if !groups::is_collective(instruction) {
            continue;
        }
        let opcode = instruction.opcode.strip_suffix("-start").unwrap_or(&instruction.opcode).to_owned();
        let mut operands: Vec<_> =
            instruction.operand_ids.iter().filter_map(|&id| Some(&**graph.instruction(at, id)?.shape)).collect();
        if opcode == "ragged-all-to-all" {
            // The others are the result's place, offsets and sizes.
            operands.truncate(1);
        }
        let operand_bytes = operands.iter().filter_map(|shape| shape::byte_size(shape)).fold(0, u64::saturating_add);
        let transfer = Transfer {
            kind: kind(&opcode),
            operand_bytes,
            widening: widening(operands.first().and_then(|shape| shape::dtype(shape))),
        };
        let members = members(instruction, replicas, partitions, transfer.kind)?;
        let (groups, group_size, timing) = *known
            .entry((transfer, digest(&members)))
            .or_insert_with(|| (members.len(), largest(&members), time(&cluster, transfer, &members)));
        let runs = walk.runs[at];
        collectives.push(Collective {
            opcode,
            name: instruction.name.to_string(),
            runs,
            operands: operands.into_iter().map(shape::text_without_layout).collect(),
            operand_bytes,
            groups,
            group_size,
            timing,
            step_seconds: timing.seconds * runs.times as f64,
        });
    }
    let cost = cost::cost(&graph, &walk);
    let memory_bytes = memory_bytes(module, &graph, &walk.order, &walk.runs);
    let of_rates = [
        device.flops.map(|rate| cost.flops.saturating_add(cost.transcendentals) as f64 / rate),
        device.memory_bandwidth.map(|rate| memory_bytes as f64 / rate),
    ];
    let compute_seconds = device.compute_seconds.unwrap_or_else(|| of_rates.into_iter().flatten().fold(0.0, f64::max));
    let collective_seconds = collectives.iter().map(|collective| collective.step_seconds).sum();
    Ok(Prediction {
        name: module.proto.name.clone(),
        topology: *topology,
        device_count: topology.device_count(),
        cost,
        memory_bytes,
        compute_seconds,
        limit: limit(&collectives),
        has_unknown_loops: cost.has_unknown_loops || collectives.iter().any(|it| it.runs.in_unknown_loop),
        collectives,
        collective_seconds,
        step_seconds: compute_seconds + collective_seconds,
        overlapped_step_seconds: compute_seconds.max(collective_seconds),
    })
}

fn kind(opcode: &str) -> Kind {
    match opcode {
        "all-gather" => Kind::AllGather,
        "reduce-scatter" => Kind::ReduceScatter,
        "all-to-all" | "ragged-all-to-all" => Kind::AllToAll,
        "collective-broadcast" => Kind::Broadcast,
        "collective-permute" => Kind::Permute,
        _ => Kind::AllReduce,
    }
}

/// The groups as device ids; of a permute the pairs.
fn members(
    instruction: &HloInstructionProto,
    replicas: i64,
    partitions: i64,
    kind: Kind,
) -> Result<Vec<Vec<u32>>, GroupError> {
    if kind == Kind::Permute {
        let pairs = groups::device_pairs(instruction, replicas, partitions)?;
        return Ok(pairs.into_iter().map(|(source, target)| vec![source, target]).collect());
    }
    groups::device_groups(instruction, replicas, partitions, kind != Kind::Broadcast)
}

fn digest(groups: &[Vec<u32>]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for group in groups {
        hasher.update(&group.len().to_le_bytes());
        hasher.update(bytemuck::cast_slice(group));
    }
    *hasher.finalize().as_bytes()
}

fn largest(groups: &[Vec<u32>]) -> usize {
    groups.iter().map(Vec::len).max().unwrap_or(0)
}

/// What the collectives wait for longest.
fn limit(collectives: &[Collective]) -> Limit {
    let mut seconds: Vec<(Limit, f64)> = Vec::new();
    for collective in collectives {
        match seconds.iter_mut().find(|(limit, _)| *limit == collective.timing.limit) {
            Some((_, sum)) => *sum += collective.step_seconds,
            None => seconds.push((collective.timing.limit, collective.step_seconds)),
        }
    }
    let most = seconds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    most.map_or(Limit::Nothing, |(limit, _)| limit)
}

fn memory_bytes(module: &HloModule, graph: &Graph, order: &[(usize, &HloInstructionProto)], runs: &[Runs]) -> u64 {
    let bytes = |shape: &crate::proto::ShapeProto| {
        shape::leaves(shape).into_iter().filter_map(shape::byte_size).fold(0, u64::saturating_add)
    };
    let program = &module.proto.host_program_shape;
    let mut sum = program.parameters.iter().map(|shape| bytes(shape)).fold(bytes(&program.result), u64::saturating_add);
    for &(at, instruction) in order.iter().filter(|(_, it)| matches!(&*it.opcode, "dot" | "convolution")) {
        let operands = instruction.operand_ids.iter().filter_map(|&id| Some(bytes(&graph.instruction(at, id)?.shape)));
        let once = operands.fold(bytes(&instruction.shape), u64::saturating_add);
        sum = sum.saturating_add(once.saturating_mul(runs[at].times));
    }
    sum
}

#[cfg(test)]
mod tests;
