//! What a program says of itself: for how many devices it is, by which partitioner, and whether it ran already.

use serde::Serialize;

use crate::hlo::groups::{self, GroupMode};
use crate::hlo::{HloModule, Program};
use crate::proto::{FrontendAttributes, HloInstructionProto, HloModuleProto, OpSharding};

/// The numbers of replicas and partitions, where the program tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Copies of the program on other data.
    pub replicas: Option<i64>,
    /// Devices that share one replica.
    pub partitions: Option<i64>,
}

/// What a program tells a count by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CountSource {
    /// `num_partitions` or `replica_count` in the header, or the attribute of an MLIR module.
    Header,
    /// The number of devices that its shardings are made for.
    Shardings,
    /// The greatest id that its collectives name.
    Collectives,
}

/// The numbers of replicas and partitions, and what tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Copies of the program on other data.
    pub replicas: Option<(i64, CountSource)>,
    /// Devices that share one replica.
    pub partitions: Option<(i64, CountSource)>,
}

const SHARDY_MESHES: &str = "xla.sdy.meshes";

/// The numbers in the header, else those that the shardings are made for, else those that the collectives name.
///
/// StableHLO text is searched for its attributes only: for all else see [`import`](super::import).
pub fn program_counts(program: &Program) -> Counts {
    let found = find_counts(program);
    Counts { replicas: found.replicas.map(|(count, _)| count), partitions: found.partitions.map(|(count, _)| count) }
}

/// As [`program_counts`], with what tells them.
pub fn find_counts(program: &Program) -> Found {
    let header = |count: Option<i64>| Some((count?, CountSource::Header));
    let module = match program {
        Program::Hlo(module) => module,
        Program::Mlir(code) => {
            let count = |name: &str| header(find_after(code, name).filter(|&count| count > 0));
            return Found { replicas: count("mhlo.num_replicas"), partitions: count("mhlo.num_partitions") };
        }
    };
    let named = collective_counts(&module.proto);
    let by_collectives = |count: Option<i64>| Some((count?, CountSource::Collectives));
    let by_shardings = || Some((sharding_count(&module.proto)?, CountSource::Shardings));
    Found {
        replicas: header(module.config.replica_count).or(by_collectives(named.replicas)),
        partitions: header(module.config.num_partitions).or_else(by_shardings).or(by_collectives(named.partitions)),
    }
}

/// Whether the program is for Shardy. XLA aborts when it is told so of a program that was lowered for GSPMD.
pub fn uses_shardy(program: &Program) -> bool {
    match program {
        Program::Hlo(module) => is_for_shardy(&module.proto),
        // Bytecode names the dialect on its own.
        Program::Mlir(code) => {
            code.windows(4).any(|window| window == b"sdy.") || code.windows(5).any(|window| window == b"\0sdy\0")
        }
    }
}

pub(super) fn is_for_shardy(module: &HloModuleProto) -> bool {
    let marked = |attributes: &FrontendAttributes| attributes.map.iter().any(|entry| entry.key.starts_with("xla.sdy."));
    marked(&module.frontend_attributes)
        || instructions(module).any(|instruction| {
            instruction.details().custom_call_target.starts_with("xla.sdy.") || marked(&instruction.frontend_attributes)
        })
}

/// Whether the program is that of one device already.
///
/// XLA leaves the shardings of parameters (and, in protos, of the result) behind when it partitions, so shardings
/// alone tell nothing: what tells are collectives between partitions where nothing is left to be partitioned.
pub fn is_partitioned(module: &HloModule) -> bool {
    let proto = &module.proto;
    if proto.spmd_output_sharding.is_set() || !proto.spmd_parameters_shardings.is_empty() {
        return true;
    }
    if module.config.is_scheduled || proto.schedule.is_set() {
        return true;
    }
    let entry = proto.computations.iter().find(|computation| computation.id == proto.entry_computation_id);
    let may_keep_sharding = |instruction: &HloInstructionProto| {
        let root = entry.is_some_and(|entry| entry.root_id == instruction.id);
        root || instruction.opcode == "parameter"
    };
    let is_global = |instruction: &HloInstructionProto| {
        matches!(
            instruction.details().custom_call_target.as_str(),
            "Sharding" | "SPMDFullToShardShape" | "SPMDShardToFullShape"
        ) || (instruction.sharding.is_set() && !may_keep_sharding(instruction))
    };
    if is_for_shardy(proto) || instructions(proto).any(is_global) {
        return false;
    }
    instructions(proto).any(|instruction| {
        instruction.opcode == "partition-id" || (groups::is_collective(instruction) && instruction.channel_id > 0)
    })
}

fn instructions(module: &HloModuleProto) -> impl Iterator<Item = &HloInstructionProto> {
    module.computations.iter().flat_map(|computation| &computation.instructions)
}

/// The greatest number of devices that a sharding or a mesh of the program is made for.
fn sharding_count(module: &HloModuleProto) -> Option<i64> {
    let attributes = module.frontend_attributes.map.iter().filter(|entry| entry.key == SHARDY_MESHES);
    let meshes = attributes.filter_map(|entry| shardy_mesh_size(&entry.value));
    let shardings = instructions(module).filter_map(|instruction| devices_of(instruction.sharding.as_option()?));
    let parameters = module.spmd_parameters_shardings.iter().filter_map(devices_of);
    meshes.chain(shardings).chain(parameters).max()
}

/// The number of devices that a sharding is made for.
fn devices_of(sharding: &OpSharding) -> Option<i64> {
    let tuple = sharding.tuple_shardings.iter().filter_map(devices_of).max();
    let product = |dims: &[i64]| dims.iter().try_fold(1i64, |product, &dim| product.checked_mul(dim));
    let tiles =
        Some(&sharding.tile_assignment_dimensions).filter(|dims| !dims.is_empty()).and_then(|dims| product(dims));
    let mesh = sharding.named_sharding.as_option().and_then(|named| named.mesh.as_option());
    let sizes = mesh.map(|mesh| mesh.axes.iter().map(|axis| axis.size).collect::<Vec<_>>());
    let named = sizes.filter(|sizes| !sizes.is_empty()).and_then(|sizes| product(&sizes));
    tuple.or(tiles).or(named).filter(|&count| count > 0)
}

/// The size of the largest mesh in Shardy's attribute, as in `{mesh = #sdy.mesh<["x"=4, "y"=2]>}`.
fn shardy_mesh_size(attribute: &str) -> Option<i64> {
    let size_of = |axes: &str| {
        let sizes = axes.split(',').filter_map(|axis| axis.rsplit('=').next()?.trim().parse::<i64>().ok());
        sizes.fold(1i64, i64::saturating_mul)
    };
    let meshes = attribute.split("mesh<[").skip(1);
    meshes.filter_map(|mesh| Some(size_of(mesh.split(']').next()?))).max().filter(|&size| size > 1)
}

/// Replicas and partitions that the collectives must have at least.
fn collective_counts(module: &HloModuleProto) -> Counts {
    let mut counts = Counts::default();
    for instruction in instructions(module).filter(|instruction| groups::is_collective(instruction)) {
        let Ok(mode) = groups::group_mode(instruction) else { continue };
        let groups = groups::replica_groups(instruction).unwrap_or_default();
        let pairs = instruction.details().source_target_pairs.iter().flat_map(|pair| [pair.source, pair.target]);
        let Some(last) = groups.into_iter().flatten().chain(pairs).max() else { continue };
        let count = match mode {
            GroupMode::CrossReplica | GroupMode::CrossReplicaAndPartition => &mut counts.replicas,
            GroupMode::CrossPartition | GroupMode::FlattenedId => &mut counts.partitions,
        };
        *count = (*count).max(Some(last.saturating_add(1)));
    }
    counts
}

/// The integer after `name =` in text.
fn find_after(code: &[u8], name: &str) -> Option<i64> {
    let at = code.windows(name.len()).position(|window| window == name.as_bytes())?;
    let rest = code.get(at + name.len()..)?;
    let value: Vec<u8> = rest
        .iter()
        .copied()
        .skip_while(|byte| matches!(byte, b' ' | b'='))
        .take_while(u8::is_ascii_digit)
        .take(18)
        .collect();
    std::str::from_utf8(&value).ok()?.parse().ok()
}
