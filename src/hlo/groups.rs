//! Who takes part in a collective: the three spellings of replica groups and the four ways to read their ids.
//!
//! XLA stores replica groups as plain lists (v1), as a reshaped and transposed iota (v2) or as axes of a mesh (v3).
//! Whether an id names a replica, a partition or a device follows from `channel_id` and `use_global_device_ids`
//! (XLA, `CollectiveOpGroupMode`).

use crate::proto::__buffa::oneof::hlo_instruction_details::ReplicaGroupList;
use crate::proto::{
    AxisRefProto, CollectiveDeviceListProto, HloInstructionProto, HloModuleProto, IotaReplicaGroupListProto,
    MeshAxesReplicaGroupListProto, MeshProto, ReplicaGroup,
};

/// More devices than any group list may name: bounds what a malformed program can make us allocate.
const MAX_DEVICES: i64 = 1 << 20;

/// What the ids of a collective's replica groups (or source-target pairs) mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMode {
    /// Replica ids; each partition has its own copy of every group.
    CrossReplica,
    /// Partition ids; each replica has its own copy of every group.
    CrossPartition,
    /// Replica ids; every partition of these replicas is a member.
    CrossReplicaAndPartition,
    /// Flattened ids: replica × number of partitions + partition.
    FlattenedId,
}

/// Why the participants of a collective cannot be told.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GroupError {
    /// `use_global_device_ids` without a channel.
    #[error("{instruction}: use_global_device_ids needs a channel_id")]
    GlobalIdsWithoutChannel {
        /// The collective's name.
        instruction: String,
    },
    /// The compact spelling does not describe whole groups.
    #[error("{instruction}: malformed replica groups: {what}")]
    Malformed {
        /// The collective's name.
        instruction: String,
        /// What does not fit.
        what: String,
    },
    /// An id that no replica, partition or device has.
    #[error(
        "{instruction}: {what} {id} does not exist: the program runs as {replicas} replica(s) × {partitions} \
         partition(s). If the program was made for more, say so with --num-replicas or --num-partitions"
    )]
    OutOfRange {
        /// The collective's name.
        instruction: String,
        /// What the id names: a replica, a partition or a device.
        what: &'static str,
        /// The id.
        id: i64,
        /// Replicas of the program.
        replicas: i64,
        /// Partitions of the program.
        partitions: i64,
    },
    /// A device in two groups, or named twice in one.
    #[error("{instruction}: device {device} stands in the replica groups twice")]
    Twice {
        /// The collective's name.
        instruction: String,
        /// Global device id.
        device: u32,
    },
    /// A device in no group of a collective in which all must take part.
    #[error("{instruction}: device {device} of {devices} stands in no replica group")]
    Missing {
        /// The collective's name.
        instruction: String,
        /// Global device id.
        device: u32,
        /// Devices of the program.
        devices: u32,
    },
}

/// Whether the instruction is a collective, or starts one.
pub fn is_collective(instruction: &HloInstructionProto) -> bool {
    let opcode = instruction.opcode.strip_suffix("-start").unwrap_or(&instruction.opcode);
    matches!(
        opcode,
        "all-reduce"
            | "all-gather"
            | "reduce-scatter"
            | "all-to-all"
            | "ragged-all-to-all"
            | "collective-permute"
            | "collective-broadcast"
    )
}

/// How the ids of this collective's groups are to be read.
pub fn group_mode(instruction: &HloInstructionProto) -> Result<GroupMode, GroupError> {
    let has_channel = instruction.channel_id > 0;
    let knows_global_ids = matches!(
        instruction.opcode.as_str(),
        "all-reduce" | "all-reduce-start" | "all-gather" | "all-gather-start" | "reduce-scatter"
    );
    match (has_channel, instruction.details().use_global_device_ids) {
        (false, true) => Err(GroupError::GlobalIdsWithoutChannel { instruction: instruction.name.to_string() }),
        (false, false) => Ok(GroupMode::CrossReplica),
        (true, _) if !knows_global_ids => Ok(GroupMode::CrossPartition),
        (true, false) => Ok(GroupMode::CrossReplicaAndPartition),
        (true, true) => Ok(GroupMode::FlattenedId),
    }
}

/// The replica groups as plain lists of the ids that the program spells; empty when everyone forms one group.
pub fn replica_groups(instruction: &HloInstructionProto) -> Result<Vec<Vec<i64>>, GroupError> {
    let plain =
        |groups: &[ReplicaGroup]| groups.iter().map(|group| group.replica_ids.clone()).collect::<Vec<Vec<i64>>>();
    let groups = if !instruction.details().replica_groups.is_empty() {
        Ok(plain(&instruction.details().replica_groups))
    } else {
        match &instruction.details().replica_group_list {
            None => Ok(Vec::new()),
            Some(ReplicaGroupList::CollectiveDeviceList(list)) => match list.iota_replica_group_list.as_option() {
                Some(iota) if list.replica_groups.is_empty() => expand_iota(iota),
                _ => Ok(plain(&list.replica_groups)),
            },
            Some(ReplicaGroupList::IotaCollectiveDeviceList(iota)) => expand_iota(iota),
            Some(ReplicaGroupList::MeshAxesReplicaGroupList(mesh)) => expand_mesh(mesh),
        }
    };
    let mut groups =
        groups.map_err(|what| GroupError::Malformed { instruction: instruction.name.to_string(), what })?;
    groups.retain(|group| !group.is_empty());
    Ok(groups)
}

/// Spells the instruction's replica groups as plain lists.
pub fn set_replica_groups(instruction: &mut HloInstructionProto, groups: Vec<Vec<i64>>) {
    instruction.details_mut().replica_groups.clear();
    instruction.details_mut().replica_group_list = None;
    if !groups.is_empty() {
        let replica_groups =
            groups.into_iter().map(|replica_ids| ReplicaGroup { replica_ids, ..Default::default() }).collect();
        let list = CollectiveDeviceListProto { replica_groups, ..Default::default() };
        instruction.details_mut().replica_group_list = Some(ReplicaGroupList::from(list));
    }
}

/// Spells every replica group of a module as plain lists, which plugins of every age read.
pub fn expand_replica_groups(module: &mut HloModuleProto) -> Result<(), GroupError> {
    for instruction in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        if instruction.details().replica_group_list.is_some() || !instruction.details().replica_groups.is_empty() {
            let groups = replica_groups(instruction)?;
            set_replica_groups(instruction, groups);
        }
    }
    Ok(())
}

/// The groups of a collective as global device ids (replica × `partitions` + partition), in rank order.
///
/// Every device stands in at most one group; with `all_take_part` every device stands in exactly one.
pub fn device_groups(
    instruction: &HloInstructionProto,
    replicas: i64,
    partitions: i64,
    all_take_part: bool,
) -> Result<Vec<Vec<u32>>, GroupError> {
    let ids = Ids::new(instruction, replicas, partitions)?;
    let mode = ids.mode;
    let mut spelled = replica_groups(instruction)?;
    if spelled.is_empty() {
        let everyone = match mode {
            GroupMode::CrossReplica | GroupMode::CrossReplicaAndPartition => replicas,
            GroupMode::CrossPartition => partitions,
            GroupMode::FlattenedId => replicas * partitions,
        };
        spelled.push((0..everyone).collect());
    }
    for &id in spelled.iter().flatten() {
        ids.check(id)?;
    }
    let groups: Vec<Vec<u32>> = match mode {
        GroupMode::CrossReplica | GroupMode::CrossPartition => {
            let copies = if mode == GroupMode::CrossReplica { partitions } else { replicas };
            let copy_of = |group: &Vec<i64>, copy| group.iter().map(|&id| ids.device(id, copy)).collect();
            spelled.iter().flat_map(|group| (0..copies).map(move |copy| copy_of(group, copy))).collect()
        }
        GroupMode::CrossReplicaAndPartition => spelled
            .iter()
            .map(|group| group.iter().flat_map(|&id| (0..partitions).map(move |copy| ids.device(id, copy))).collect())
            .collect(),
        GroupMode::FlattenedId => {
            spelled.iter().map(|group| group.iter().map(|&id| ids.device(id, 0)).collect()).collect()
        }
    };
    let devices = (replicas * partitions) as usize;
    let mut seen = vec![false; devices];
    for &device in groups.iter().flatten() {
        match seen.get_mut(device as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(GroupError::Twice { instruction: instruction.name.to_string(), device }),
        }
    }
    match seen.iter().position(|&seen| !seen) {
        Some(device) if all_take_part => Err(GroupError::Missing {
            instruction: instruction.name.to_string(),
            device: device as u32,
            devices: devices as u32,
        }),
        _ => Ok(groups),
    }
}

/// The source-target pairs of a collective-permute as global device ids. No device is a target twice.
pub fn device_pairs(
    instruction: &HloInstructionProto,
    replicas: i64,
    partitions: i64,
) -> Result<Vec<(u32, u32)>, GroupError> {
    let ids = Ids::new(instruction, replicas, partitions)?;
    let copies = if ids.mode == GroupMode::CrossReplica { partitions } else { replicas };
    let mut pairs = Vec::new();
    let mut is_target = vec![false; (replicas * partitions) as usize];
    for pair in &instruction.details().source_target_pairs {
        ids.check(pair.source)?;
        ids.check(pair.target)?;
        for copy in 0..copies {
            let target = ids.device(pair.target, copy);
            match is_target.get_mut(target as usize) {
                Some(taken) if !*taken => *taken = true,
                _ => {
                    let what = format!("device {target} is the target of two source_target_pairs");
                    return Err(GroupError::Malformed { instruction: instruction.name.to_string(), what });
                }
            }
            pairs.push((ids.device(pair.source, copy), target));
        }
    }
    pairs.sort_unstable();
    Ok(pairs)
}

#[derive(Clone, Copy)]
struct Ids<'a> {
    instruction: &'a HloInstructionProto,
    mode: GroupMode,
    replicas: i64,
    partitions: i64,
}

impl<'a> Ids<'a> {
    fn new(instruction: &'a HloInstructionProto, replicas: i64, partitions: i64) -> Result<Self, GroupError> {
        product(&[replicas, partitions])
            .map_err(|what| GroupError::Malformed { instruction: instruction.name.to_string(), what })?;
        Ok(Ids { instruction, mode: group_mode(instruction)?, replicas, partitions })
    }

    fn check(&self, id: i64) -> Result<(), GroupError> {
        let (what, count) = match self.mode {
            GroupMode::CrossReplica | GroupMode::CrossReplicaAndPartition => ("replica", self.replicas),
            GroupMode::CrossPartition => ("partition", self.partitions),
            GroupMode::FlattenedId => ("device", self.replicas * self.partitions),
        };
        if (0..count).contains(&id) {
            return Ok(());
        }
        let instruction = self.instruction.name.to_string();
        Err(GroupError::OutOfRange { instruction, what, id, replicas: self.replicas, partitions: self.partitions })
    }

    /// The device that a checked id names, in the copy for this partition or replica.
    fn device(&self, id: i64, copy: i64) -> u32 {
        let device = match self.mode {
            GroupMode::CrossReplica | GroupMode::CrossReplicaAndPartition => id * self.partitions + copy,
            GroupMode::CrossPartition => copy * self.partitions + id,
            GroupMode::FlattenedId => id,
        };
        device as u32
    }
}

fn expand_iota(list: &IotaReplicaGroupListProto) -> Result<Vec<Vec<i64>>, String> {
    let count = product(&list.iota_reshape_dims)?;
    let expected = product(&[list.num_replica_groups, list.num_devices_per_group])?;
    if count != expected {
        return Err(format!(
            "[{},{}] holds {expected} devices, its iota {count}",
            list.num_replica_groups, list.num_devices_per_group
        ));
    }
    let order: Vec<usize> = if list.iota_transpose_perm.is_empty() {
        (0..list.iota_reshape_dims.len()).collect()
    } else {
        list.iota_transpose_perm.iter().map(|&axis| axis as usize).collect()
    };
    let iota: Vec<i64> = (0..count).collect();
    let ids = transpose(&iota, &list.iota_reshape_dims, &order)?;
    Ok(ids.chunks(list.num_devices_per_group as usize).map(<[i64]>::to_vec).collect())
}

/// Splits mesh axes at the borders of the sub-axes that are named, then moves the named ones innermost.
fn expand_mesh(list: &MeshAxesReplicaGroupListProto) -> Result<Vec<Vec<i64>>, String> {
    let mesh = list.mesh.as_option().ok_or("the mesh is missing")?;
    let devices = mesh_devices(mesh)?;
    let mut dims = Vec::new();
    let mut first_dim = Vec::new();
    let mut borders_of_axis = Vec::new();
    for (axis, entry) in mesh.axes.iter().enumerate() {
        let borders = axis_borders(axis, entry.size, &list.axes)?;
        first_dim.push(dims.len());
        dims.extend(borders.windows(2).map(|pair| pair[1] / pair[0]));
        borders_of_axis.push(borders);
    }
    let mut grouped = Vec::new();
    for reference in &list.axes {
        let axis = usize::try_from(reference.mesh_axis_index).unwrap_or(usize::MAX);
        let borders = borders_of_axis.get(axis).ok_or("an axis that the mesh lacks")?;
        let size = mesh.axes[axis].size;
        let (start, end) = sub_axis(reference, size)?;
        let inside = borders.windows(2).enumerate().filter(|(_, pair)| start <= pair[0] && pair[1] <= end);
        grouped.extend(inside.map(|(index, _)| first_dim[axis] + index));
    }
    let group_size = product(&grouped.iter().map(|&dim| dims[dim]).collect::<Vec<_>>())?;
    let mut order: Vec<usize> = (0..dims.len()).filter(|dim| !grouped.contains(dim)).collect();
    order.extend(grouped);
    let ids = transpose(&devices, &dims, &order)?;
    Ok(ids.chunks(group_size as usize).map(<[i64]>::to_vec).collect())
}

/// The device ids of a mesh, row-major over its axes.
fn mesh_devices(mesh: &MeshProto) -> Result<Vec<i64>, String> {
    let count = product(&mesh.axes.iter().map(|axis| axis.size).collect::<Vec<_>>())?;
    if !mesh.device_ids.is_empty() {
        if mesh.device_ids.len() as i64 != count {
            return Err(format!("the mesh has {count} places and {} device ids", mesh.device_ids.len()));
        }
        return Ok(mesh.device_ids.clone());
    }
    let iota: Vec<i64> = (0..count).collect();
    match mesh.iota_transform.as_option() {
        Some(transform) if !transform.transpose_perm.is_empty() => {
            let order: Vec<usize> = transform.transpose_perm.iter().map(|&axis| axis as usize).collect();
            transpose(&iota, &transform.reshape_dims, &order)
        }
        _ => Ok(iota),
    }
}

/// Where the axis is cut, as products of the sizes so far: 1, …, size.
fn axis_borders(axis: usize, size: i64, references: &[AxisRefProto]) -> Result<Vec<i64>, String> {
    let mut borders = vec![1, size];
    for reference in references.iter().filter(|reference| reference.mesh_axis_index == axis as i64) {
        let (start, end) = sub_axis(reference, size)?;
        borders.extend([start, end]);
    }
    borders.sort_unstable();
    borders.dedup();
    match borders.windows(2).all(|pair| pair[1] % pair[0] == 0) {
        true if size == 1 => Ok(vec![1, 1]),
        true => Ok(borders),
        false => Err("sub-axes that do not divide their axis".to_owned()),
    }
}

fn sub_axis(reference: &AxisRefProto, axis_size: i64) -> Result<(i64, i64), String> {
    let Some(sub_axis) = reference.sub_axis_info.as_option() else { return Ok((1, axis_size)) };
    let end = sub_axis.pre_size.checked_mul(sub_axis.size).filter(|&end| end > 0 && sub_axis.size > 0);
    match end {
        Some(end) if axis_size % end == 0 => Ok((sub_axis.pre_size, end)),
        _ => Err("a sub-axis that does not divide its axis".to_owned()),
    }
}

fn product(dims: &[i64]) -> Result<i64, String> {
    let mut total = 1i64;
    for &dim in dims {
        total = match total.checked_mul(dim) {
            Some(total) if dim > 0 && total <= MAX_DEVICES => total,
            _ => return Err(format!("dimensions {dims:?} are no device grid")),
        };
    }
    Ok(total)
}

/// The elements of a row-major array in the order that they have after its dimensions are permuted.
fn transpose(values: &[i64], dims: &[i64], order: &[usize]) -> Result<Vec<i64>, String> {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if product(dims)? != values.len() as i64 || !sorted.iter().copied().eq(0..dims.len()) {
        return Err(format!("{order:?} does not permute the dimensions {dims:?} of {} devices", values.len()));
    }
    let mut strides = vec![1usize; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis] as usize;
    }
    let mut result = Vec::with_capacity(values.len());
    let mut index = vec![0i64; dims.len()];
    for _ in 0..values.len() {
        let offset: usize = order.iter().zip(&index).map(|(&axis, &at)| at as usize * strides[axis]).sum();
        result.push(values[offset]);
        for place in (0..order.len()).rev() {
            index[place] += 1;
            if index[place] < dims[order[place]] {
                break;
            }
            index[place] = 0;
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::axis_ref_proto::SubAxis;
    use crate::proto::mesh_proto::MeshAxis;
    use crate::proto::{HloInstructionCommon, HloInstructionDetails, SourceTarget};

    fn collective(opcode: &str, channel_id: i64, use_global_device_ids: bool) -> HloInstructionProto {
        let name = format!("{opcode}.1").into();
        let opcode = opcode.into();
        let details = HloInstructionDetails { use_global_device_ids, ..Default::default() };
        HloInstructionProto::from(HloInstructionCommon { name, opcode, channel_id, ..Default::default() })
            .with_details(details)
    }

    fn with_groups(mut instruction: HloInstructionProto, groups: &[&[i64]]) -> HloInstructionProto {
        set_replica_groups(&mut instruction, groups.iter().map(|group| group.to_vec()).collect());
        instruction
    }

    fn iota(groups: i64, size: i64, dims: &[i64], perm: &[i32]) -> IotaReplicaGroupListProto {
        IotaReplicaGroupListProto {
            num_replica_groups: groups,
            num_devices_per_group: size,
            iota_reshape_dims: dims.to_vec(),
            iota_transpose_perm: perm.to_vec(),
            ..Default::default()
        }
    }

    fn mesh(axes: &[(&str, i64)], device_ids: &[i64], grouped: &[(i64, Option<(i64, i64)>)]) -> HloInstructionProto {
        let mesh = MeshProto {
            axes: axes
                .iter()
                .map(|&(name, size)| MeshAxis { name: name.to_owned(), size, ..Default::default() })
                .collect(),
            device_ids: device_ids.to_vec(),
            ..Default::default()
        };
        let axes = grouped
            .iter()
            .map(|&(mesh_axis_index, sub)| AxisRefProto {
                mesh_axis_index,
                sub_axis_info: sub.map(|(pre_size, size)| SubAxis { pre_size, size, ..Default::default() }).into(),
                ..Default::default()
            })
            .collect();
        let list = MeshAxesReplicaGroupListProto { mesh: mesh.into(), axes, ..Default::default() };
        let mut instruction = collective("all-reduce", 1, true);
        instruction.details_mut().replica_group_list = Some(ReplicaGroupList::from(list));
        instruction
    }

    #[test]
    fn iota_lists_expand_in_both_places_of_the_wire_format() {
        let mut new = collective("all-reduce", 1, true);
        new.details_mut().replica_group_list = Some(ReplicaGroupList::from(iota(2, 4, &[4, 2], &[1, 0])));
        let mut old = new.clone();
        let list =
            CollectiveDeviceListProto { iota_replica_group_list: iota(4, 2, &[8], &[0]).into(), ..Default::default() };
        old.details_mut().replica_group_list = Some(ReplicaGroupList::from(list));

        assert_eq!(replica_groups(&new).unwrap(), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(replica_groups(&old).unwrap(), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    }

    #[test]
    fn mesh_axes_expand() {
        let axes = [("a", 4), ("b", 2)];
        assert_eq!(replica_groups(&mesh(&axes, &[], &[(0, None)])).unwrap(), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(replica_groups(&mesh(&axes, &[], &[(1, None)])).unwrap(), [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(replica_groups(&mesh(&axes, &[], &[(1, None), (0, None)])).unwrap(), [[0, 2, 4, 6, 1, 3, 5, 7]]);
        let reversed = [7, 6, 5, 4, 3, 2, 1, 0];
        assert_eq!(replica_groups(&mesh(&axes, &reversed, &[(0, None)])).unwrap(), [[7, 5, 3, 1], [6, 4, 2, 0]]);
    }

    #[test]
    fn sub_axes_expand() {
        let axes = [("a", 8)];
        assert_eq!(replica_groups(&mesh(&axes, &[], &[(0, Some((1, 2)))])).unwrap(), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(
            replica_groups(&mesh(&axes, &[], &[(0, Some((4, 2))), (0, Some((1, 2)))])).unwrap(),
            [[0, 4, 1, 5], [2, 6, 3, 7]]
        );
        assert!(replica_groups(&mesh(&axes, &[], &[(0, Some((3, 2)))])).is_err());
    }

    #[test]
    fn the_four_modes_name_devices() {
        let groups = |channel, global, spelled: &[&[i64]]| {
            device_groups(&with_groups(collective("all-reduce", channel, global), spelled), 2, 3, true).unwrap()
        };
        assert_eq!(groups(0, false, &[&[1, 0]]), [[3, 0], [4, 1], [5, 2]]);
        assert_eq!(groups(0, false, &[]), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(groups(1, false, &[&[0], &[1]]), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(groups(1, false, &[]), [[0, 1, 2, 3, 4, 5]]);
        assert_eq!(groups(1, true, &[&[0, 5], &[4, 1], &[2, 3]]), [[0, 5], [4, 1], [2, 3]]);
        let all_to_all = with_groups(collective("all-to-all", 1, false), &[&[2, 0], &[1]]);
        assert_eq!(device_groups(&all_to_all, 2, 3, true).unwrap(), [vec![2, 0], vec![5, 3], vec![1], vec![4]]);
    }

    #[test]
    fn pairs_are_copied_for_each_partition_or_replica() {
        let mut permute = collective("collective-permute", 0, false);
        permute.details_mut().source_target_pairs = vec![SourceTarget { source: 0, target: 1, ..Default::default() }];
        assert_eq!(device_pairs(&permute, 2, 2).unwrap(), [(0, 2), (1, 3)]);
        permute.channel_id = 1;
        assert_eq!(device_pairs(&permute, 2, 2).unwrap(), [(0, 1), (2, 3)]);
        permute.details_mut().source_target_pairs.push(SourceTarget { source: 1, target: 1, ..Default::default() });
        assert!(matches!(device_pairs(&permute, 2, 2), Err(GroupError::Malformed { .. })));
    }

    #[test]
    fn wrong_groups_are_errors() {
        let error = |instruction| device_groups(&instruction, 2, 1, true).unwrap_err();
        let reduce = || collective("all-reduce", 0, false);
        assert!(matches!(error(collective("all-reduce", 0, true)), GroupError::GlobalIdsWithoutChannel { .. }));
        assert!(matches!(error(with_groups(reduce(), &[&[0, 2]])), GroupError::OutOfRange { id: 2, .. }));
        assert!(matches!(error(with_groups(reduce(), &[&[-1, 0]])), GroupError::OutOfRange { id: -1, .. }));
        assert!(matches!(error(with_groups(reduce(), &[&[0, 0]])), GroupError::Twice { device: 0, .. }));
        assert!(matches!(error(with_groups(reduce(), &[&[0]])), GroupError::Missing { device: 1, .. }));
        let mut huge = collective("all-reduce", 0, false);
        huge.details_mut().replica_group_list = Some(ReplicaGroupList::from(iota(1 << 40, 1 << 40, &[1 << 62], &[])));
        assert!(matches!(error(huge), GroupError::Malformed { .. }));
    }
}
