//! Decides what becomes of each collective, and checks that it can mean what it says.

use std::collections::HashMap;

use super::{Error, Layout, module, reduction};
use crate::collective::{ArraySpec, CollectiveKind, CollectiveSpec, ReduceOp};
use crate::dtype::DType;
use crate::hlo::groups;
use crate::hlo::shape;
use crate::proto::{HloInstructionProto, HloModuleProto, ShapeProto, SharedShape};

/// What becomes of an instruction.
pub(super) enum Plan {
    /// Each device is alone in its group: the result is the operand.
    Forward,
    /// XLA's own collective, within the process.
    Local(Participants),
    /// The id is always zero.
    Zero,
    /// A custom call that returns the id.
    LogicalId(LogicalId),
    /// A custom call that does the collective.
    Bridge(Box<CollectiveSpec>),
}

/// Who takes part in a collective inside a process, as local replica ids.
pub(super) enum Participants {
    Groups(Vec<Vec<i64>>),
    Pairs(Vec<(i64, i64)>),
}

/// Which id of a device.
#[derive(Clone, Copy)]
pub(super) enum LogicalId {
    Replica,
    Partition,
}

/// Refuses programs that talk to something else than their collectives' peers.
pub(super) fn refuse_unsupported(module: &HloModuleProto) -> Result<(), Error> {
    let mut found = Vec::new();
    for instruction in module.computations.iter().flat_map(|computation| &computation.instructions) {
        let reason = match instruction.opcode.as_str() {
            "send" | "recv" => "point-to-point channels are not supported, use collective-permute",
            "infeed" | "outfeed" => "there is nobody to feed it",
            _ => continue,
        };
        found.push(format!("{} ({}): {reason}", instruction.name, instruction.opcode));
    }
    if found.is_empty() { Ok(()) } else { Err(Error::Unsupported(found)) }
}

/// What becomes of this instruction; `None` if it stays as it is.
pub(super) fn plan(
    instruction: &HloInstructionProto,
    shapes: &HashMap<i64, SharedShape>,
    module: &HloModuleProto,
    layout: &Layout,
    local_devices: u32,
) -> Result<Option<Plan>, Error> {
    match instruction.opcode.as_str() {
        "replica-id" if layout.replicas == 1 => return Ok(Some(Plan::Zero)),
        "partition-id" if layout.partitions == 1 => return Ok(Some(Plan::Zero)),
        "replica-id" => return Ok(Some(Plan::LogicalId(LogicalId::Replica))),
        "partition-id" => return Ok(Some(Plan::LogicalId(LogicalId::Partition))),
        _ if !groups::is_collective(instruction) => return Ok(None),
        _ => {}
    }
    let collective = Collective::new(instruction, shapes, module)?;
    let (replicas, partitions) = (layout.replicas, layout.partitions);
    let processes = layout.devices_per_process.len();
    if instruction.opcode == "collective-permute" {
        let pairs = groups::device_pairs(instruction, replicas, partitions)?;
        if pairs.iter().copied().eq((0..(replicas * partitions) as u32).map(|device| (device, device))) {
            return Ok(Some(Plan::Forward));
        }
        collective.check_same_shapes()?;
        if let Some(pairs) = local_pairs(&pairs, local_devices, processes).filter(|_| collective.operands.len() == 1) {
            return Ok(Some(Plan::Local(Participants::Pairs(pairs))));
        }
        let groups = connected(&pairs, replicas * partitions);
        return Ok(Some(collective.bridge(CollectiveKind::CollectivePermute { pairs }, groups)));
    }

    let all_take_part = instruction.opcode != "collective-broadcast";
    let groups = groups::device_groups(instruction, replicas, partitions, all_take_part)?;
    let kind = collective.kind(&groups)?;
    let alone = groups.len() as i64 == replicas * partitions && groups.iter().all(|group| group.len() == 1);
    if alone && kind != CollectiveKind::RaggedAllToAll {
        return Ok(Some(Plan::Forward));
    }
    if let Some(pairs) = broadcast_pairs(&kind, &groups, replicas * partitions) {
        let groups = connected(&pairs, replicas * partitions);
        return Ok(Some(collective.bridge(CollectiveKind::CollectivePermute { pairs }, groups)));
    }
    let local = if collective.xla_has(&kind) { local_groups(&groups, local_devices, processes) } else { None };
    match local {
        Some(groups) => Ok(Some(Plan::Local(Participants::Groups(groups)))),
        None => Ok(Some(collective.bridge(kind, groups))),
    }
}

struct Collective<'a> {
    instruction: &'a HloInstructionProto,
    module: &'a HloModuleProto,
    operands: Vec<ArraySpec>,
    results: Vec<ArraySpec>,
}

impl<'a> Collective<'a> {
    fn new(
        instruction: &'a HloInstructionProto,
        shapes: &HashMap<i64, SharedShape>,
        module: &'a HloModuleProto,
    ) -> Result<Self, Error> {
        let mut operands = Vec::new();
        for id in &instruction.operand_ids {
            let shape = shapes.get(id).ok_or_else(|| Error::malformed(&instruction.name, "an operand is missing"))?;
            operands.push(array(instruction, shape)?);
        }
        let results = shape::leaves(&instruction.shape);
        let results = results.into_iter().map(|shape| array(instruction, shape)).collect::<Result<_, _>>()?;
        Ok(Collective { instruction, module, operands, results })
    }

    fn bridge(self, kind: CollectiveKind, groups: Vec<Vec<u32>>) -> Plan {
        Plan::Bridge(Box::new(CollectiveSpec {
            key: 0,
            name: self.instruction.name.to_string(),
            kind,
            groups,
            operands: self.operands,
            results: self.results,
        }))
    }

    /// What the collective does, its shapes checked against its groups.
    fn kind(&self, groups: &[Vec<u32>]) -> Result<CollectiveKind, Error> {
        let size = groups.first().map_or(1, Vec::len);
        let resizes = matches!(self.instruction.opcode.as_str(), "all-gather" | "reduce-scatter" | "all-to-all");
        if resizes && groups.iter().any(|group| group.len() != size) {
            return Err(self.error("its replica groups differ in size"));
        }
        match self.instruction.opcode.as_str() {
            "all-reduce" => {
                self.check_same_shapes()?;
                Ok(CollectiveKind::AllReduce { op: self.reduction()? })
            }
            "all-gather" => {
                let dim = self.dimension()?;
                self.check_grown(&self.operands, &self.results, dim, size)?;
                Ok(CollectiveKind::AllGather { dim })
            }
            "reduce-scatter" => {
                let dim = self.dimension()?;
                self.check_grown(&self.results, &self.operands, dim, size)?;
                Ok(CollectiveKind::ReduceScatter { op: self.reduction()?, dim })
            }
            "all-to-all" if self.instruction.dimensions.is_empty() => {
                self.check_same_shapes()?;
                let alike = self.operands.windows(2).all(|pair| pair[0] == pair[1]);
                if self.operands.len() != size || !alike {
                    return Err(self.error(format!("a group of {size} needs {size} operands of one shape")));
                }
                Ok(CollectiveKind::AllToAll { split_dim: None })
            }
            "all-to-all" => {
                self.check_same_shapes()?;
                let dim = self.dimension()?;
                let divides = |operand: &ArraySpec| operand.dims.get(dim).is_some_and(|extent| extent % size == 0);
                if self.operands.len() != 1 || !self.operands.iter().all(divides) {
                    return Err(self.error(format!("dimension {dim} cannot be cut into {size} equal parts")));
                }
                Ok(CollectiveKind::AllToAll { split_dim: Some(dim) })
            }
            "collective-broadcast" => {
                self.check_same_shapes()?;
                Ok(CollectiveKind::CollectiveBroadcast)
            }
            _ => {
                if self.operands.len() != 6 || self.results.len() != 1 || self.operands[1] != self.results[0] {
                    return Err(self.error("it needs six operands, and a result shaped like the second"));
                }
                Ok(CollectiveKind::RaggedAllToAll)
            }
        }
    }

    fn reduction(&self) -> Result<ReduceOp, Error> {
        let id = self.instruction.called_computation_ids.first();
        let computation = id.and_then(|&id| module::computation(self.module, id));
        let computation = computation.ok_or_else(|| self.error("its to_apply computation is missing"))?;
        let dtype = self.operands.first().ok_or_else(|| self.error("it has no operands"))?.dtype;
        let op = reduction::recognise(computation, dtype).filter(|op| op.supports(dtype));
        op.ok_or_else(|| Error::Reduction {
            instruction: self.instruction.name.to_string(),
            computation: computation.name.clone(),
        })
    }

    fn dimension(&self) -> Result<usize, Error> {
        let dim = self.instruction.dimensions.first().and_then(|&dim| usize::try_from(dim).ok());
        dim.ok_or_else(|| self.error("it has no dimensions={…}"))
    }

    fn check_same_shapes(&self) -> Result<(), Error> {
        let sliced = !self.instruction.details().dynamic_slice_sizes.is_empty();
        if self.operands != self.results || self.operands.is_empty() || sliced {
            return Err(self.error("its results are not shaped like its operands"));
        }
        Ok(())
    }

    fn check_grown(&self, small: &[ArraySpec], large: &[ArraySpec], dim: usize, times: usize) -> Result<(), Error> {
        let grown = |small: &ArraySpec| {
            let mut grown = small.clone();
            let extent = grown.dims.get_mut(dim)?;
            *extent = extent.checked_mul(times)?;
            Some(grown)
        };
        let expected: Vec<_> = small.iter().map(grown).collect();
        if expected.is_empty() || !expected.iter().map(Option::as_ref).eq(large.iter().map(Some)) {
            return Err(self.error(format!("its shapes do not fit groups of {times} along dimension {dim}")));
        }
        Ok(())
    }

    /// Whether the CPU backend can do it alone, and right: its minima and maxima of floats drop NaN.
    fn xla_has(&self, kind: &CollectiveKind) -> bool {
        use DType::*;
        let usual = |operand: &ArraySpec| {
            matches!(operand.dtype, S8 | S16 | S32 | S64 | U8 | U16 | U32 | U64 | F16 | BF16 | F32 | F64 | Pred)
        };
        match kind {
            CollectiveKind::AllReduce { op } | CollectiveKind::ReduceScatter { op, .. } => {
                let right = |dtype| match op {
                    ReduceOp::Sum | ReduceOp::Product => true,
                    ReduceOp::Min | ReduceOp::Max => !matches!(dtype, F16 | BF16 | F32 | F64),
                    ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => dtype == Pred,
                };
                self.operands.iter().all(|operand| usual(operand) && right(operand.dtype))
            }
            CollectiveKind::AllGather { .. } | CollectiveKind::AllToAll { .. } => self.operands.iter().all(usual),
            _ => false,
        }
    }

    fn error(&self, what: impl Into<String>) -> Error {
        Error::malformed(&self.instruction.name, what)
    }
}

fn array(instruction: &HloInstructionProto, shape: &ShapeProto) -> Result<ArraySpec, Error> {
    let error = |what: &str| Error::malformed(&instruction.name, format!("{what}: {}", shape::text(shape)));
    let dtype = shape::dtype(shape).ok_or_else(|| error("it carries something that is no array"))?;
    if shape.is_dynamic_dimension.contains(&true) || shape::byte_size(shape).is_none() {
        return Err(error("it carries an array without a fixed size"));
    }
    Ok(ArraySpec { dtype, dims: shape.dimensions.iter().map(|&dim| dim as usize).collect() })
}

/// A broadcast that not all devices take part in, as pairs: as with a permutation, the others get zeros.
fn broadcast_pairs(kind: &CollectiveKind, groups: &[Vec<u32>], devices: i64) -> Option<Vec<(u32, u32)>> {
    if *kind != CollectiveKind::CollectiveBroadcast || groups.iter().map(Vec::len).sum::<usize>() as i64 == devices {
        return None;
    }
    let pairs = groups.iter().filter_map(|group| Some((*group.first()?, group)));
    Some(pairs.flat_map(|(source, group)| group.iter().map(move |&target| (source, target))).collect())
}

/// The devices that pairs connect, directly or through others, as one group each: nobody else waits for them.
fn connected(pairs: &[(u32, u32)], devices: i64) -> Vec<Vec<u32>> {
    let mut group_of: Vec<u32> = (0..devices as u32).collect();
    let find = |group_of: &[u32], mut device: u32| {
        while group_of[device as usize] != device {
            device = group_of[device as usize];
        }
        device
    };
    for &(source, target) in pairs {
        let (a, b) = (find(&group_of, source), find(&group_of, target));
        group_of[a.max(b) as usize] = a.min(b);
    }
    let mut groups: Vec<Vec<u32>> = vec![Vec::new(); group_of.len()];
    for device in 0..devices as u32 {
        groups[find(&group_of, device) as usize].push(device);
    }
    groups.retain(|group| !group.is_empty());
    groups
}

/// The groups as local ids, if each stays in a process and all processes have the same ones.
fn local_groups(groups: &[Vec<u32>], local_devices: u32, processes: usize) -> Option<Vec<Vec<i64>>> {
    let inside = |group: &&Vec<u32>| {
        let process = |device: &u32| device / local_devices;
        group.windows(2).all(|pair| process(&pair[0]) == process(&pair[1]))
    };
    if !groups.iter().all(|group| inside(&group)) {
        return None;
    }
    let local = |group: &Vec<u32>| group.iter().map(|device| i64::from(device % local_devices)).collect::<Vec<_>>();
    same_everywhere(processes, groups.iter().filter_map(|group| Some((group.first()? / local_devices, local(group)))))
}

/// The pairs as local ids, if each stays in a process and all processes have the same ones.
fn local_pairs(pairs: &[(u32, u32)], local_devices: u32, processes: usize) -> Option<Vec<(i64, i64)>> {
    let inside = |&(source, target): &(u32, u32)| source / local_devices == target / local_devices;
    if pairs.is_empty() || !pairs.iter().all(inside) {
        return None;
    }
    let local = |device: u32| i64::from(device % local_devices);
    same_everywhere(
        processes,
        pairs.iter().map(|&(source, target)| (source / local_devices, (local(source), local(target)))),
    )
}

/// The entries of each process, if all processes have some, and the same ones.
fn same_everywhere<T: Ord>(processes: usize, entries: impl Iterator<Item = (u32, T)>) -> Option<Vec<T>> {
    let mut by_process: HashMap<u32, Vec<T>> = HashMap::new();
    for (process, entry) in entries {
        by_process.entry(process).or_default().push(entry);
    }
    if by_process.len() != processes {
        return None;
    }
    by_process.values_mut().for_each(|entries| entries.sort_unstable());
    let mut lists = by_process.into_values();
    let first = lists.next()?;
    lists.all(|list| list == first).then_some(first)
}
