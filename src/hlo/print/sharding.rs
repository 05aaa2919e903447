//! Shardings, meshes and replica groups, each in the form in which it is stored.

use super::braced;
use super::metadata::{escape, metadata};
use crate::hlo::shape::join;
use crate::proto::hlo_instruction_details::ReplicaGroupList;
use crate::proto::mesh_proto::IotaTransform;
use crate::proto::named_sharding_proto::{DimensionSharding, ReductionOpProto};
use crate::proto::op_sharding::{ShardGroupType, Type};
use crate::proto::{
    AxisRefProto, HloInstructionProto, HloModuleProto, IotaReplicaGroupListProto, MeshProto, NamedShardingProto,
    OpMetadata, OpSharding, ReplicaGroup,
};

/// A sharding in braces.
pub(super) fn sharding(sharding: &OpSharding, module: &HloModuleProto) -> String {
    if sharding.named_sharding.is_set() {
        return named_sharding(&sharding.named_sharding, module);
    }
    if sharding.r#type == Type::TUPLE {
        let elements = sharding.tuple_shardings.iter().map(|element| self::sharding(element, module));
        return format!("{{{}}}", elements.collect::<Vec<_>>().join(", "));
    }
    let mut out = String::from("{");
    out += &match sharding.r#type.as_known() {
        Some(Type::REPLICATED) => "replicated".to_owned(),
        Some(Type::MAXIMAL) => {
            format!("maximal device={}", sharding.tile_assignment_devices.first().copied().unwrap_or_default())
        }
        Some(Type::MANUAL) => "manual".to_owned(),
        Some(Type::UNREDUCED) => "unreduced".to_owned(),
        Some(Type::UNKNOWN) => "unknown".to_owned(),
        Some(Type::OTHER | Type::TUPLE) | None => tiles(sharding),
    };
    if sharding.is_shard_group {
        let group = if sharding.shard_group_type == ShardGroupType::LIKE { "shard_like" } else { "shard_as" };
        out += &format!(" {group} {}", sharding.shard_group_id);
    }
    match sharding.metadata.as_slice() {
        [] => {}
        [single] => out += &format!(" metadata={{{}}}", metadata(single, module)),
        several => out += &format!(" metadata={}", metadata_list(several, module)),
    }
    out + "}"
}

fn tiles(sharding: &OpSharding) -> String {
    let mut out = format!("devices=[{}]", join(&sharding.tile_assignment_dimensions));
    out += &match sharding.iota_reshape_dims.as_slice() {
        [] => join(&sharding.tile_assignment_devices),
        dims => format!("<={}", iota(dims, &sharding.iota_transpose_perm)),
    };
    if sharding.replicate_on_last_tile_dim {
        out += " last_tile_dim_replicate";
    }
    let subgroups = sharding.last_tile_dims.iter().map(|kind| match kind.as_known() {
        Some(Type::MANUAL) => "manual",
        Some(Type::MAXIMAL) => "maximal",
        Some(Type::UNREDUCED) => "unreduced",
        _ => "replicated",
    });
    let subgroups: Vec<&str> = subgroups.collect();
    if !subgroups.is_empty() {
        out += &format!(" last_tile_dims={{{}}}", subgroups.join(", "));
    }
    out
}

/// `[2,4]T(1,0)`; a single dimension cannot be transposed.
fn iota<T: std::fmt::Display>(dims: &[i64], transpose: &[T]) -> String {
    let dims = format!("[{}]", join(dims));
    if transpose.len() > 1 { format!("{dims}T({})", join(transpose)) } else { dims }
}

fn metadata_list(list: &[OpMetadata], module: &HloModuleProto) -> String {
    let entries = list.iter().map(|entry| format!("{{{}}}", metadata(entry, module)));
    format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
}

fn named_sharding(sharding: &NamedShardingProto, module: &HloModuleProto) -> String {
    let mesh = &*sharding.mesh;
    let mut parts = vec![self::mesh(mesh)];
    let replicated = sharding.dim_shardings.is_empty()
        && [&sharding.replicated_axes, &sharding.unreduced_axes, &sharding.manual_axes]
            .iter()
            .all(|axes| axes.is_empty());
    if !(replicated && mesh.axes.is_empty()) {
        let dims = sharding.dim_shardings.iter().map(|dim| dimension(dim, mesh));
        parts.push(format!("[{}]", dims.collect::<Vec<_>>().join(", ")));
    }
    let reduction = match sharding.reduction_op.as_known() {
        Some(ReductionOpProto::MAX) => "max",
        Some(ReductionOpProto::MIN) => "min",
        _ => "",
    };
    let groups = [
        ("replicated=", &sharding.replicated_axes),
        (&*format!("unreduced={reduction}"), &sharding.unreduced_axes),
        ("manual=", &sharding.manual_axes),
    ];
    for (name, axes) in groups {
        if !axes.is_empty() {
            parts.push(format!("{name}{{{}}}", axis_list(axes, mesh, ", ")));
        }
    }
    if !sharding.metadata.is_empty() {
        parts.push(format!("metadata={}", metadata_list(&sharding.metadata, module)));
    }
    format!("{{{}}}", parts.join(", "))
}

fn dimension(dimension: &DimensionSharding, mesh: &MeshProto) -> String {
    let open = match (dimension.is_closed, dimension.axes.is_empty()) {
        (true, _) => "",
        (false, true) => "?",
        (false, false) => ", ?",
    };
    format!("{{{}{open}}}", axis_list(&dimension.axes, mesh, ", "))
}

fn mesh(mesh: &MeshProto) -> String {
    if let ([], [device]) = (mesh.axes.as_slice(), mesh.device_ids.as_slice()) {
        return format!("maximal_mesh[device_id={device}]");
    }
    let axes: Vec<String> =
        mesh.axes.iter().map(|axis| format!("'{}'={}", escape(axis.name.as_bytes()), axis.size)).collect();
    let ids = match mesh.iota_transform.as_option() {
        Some(IotaTransform { reshape_dims, transpose_perm, .. }) if reshape_dims.len() > 1 => {
            iota(reshape_dims, transpose_perm)
        }
        _ => join(&mesh.device_ids),
    };
    let ids = if ids.is_empty() { ids } else { format!(", device_ids=({ids})") };
    format!("mesh[{}]{ids}", axes.join(","))
}

fn axis_list(axes: &[AxisRefProto], mesh: &MeshProto, separator: &str) -> String {
    let axes = axes.iter().map(|axis| {
        let name = usize::try_from(axis.mesh_axis_index).ok().and_then(|index| mesh.axes.get(index));
        let name = name.map_or(String::new(), |axis| escape(axis.name.as_bytes()));
        match axis.sub_axis_info.as_option() {
            Some(sub) => format!("'{name}':({}){}", sub.pre_size, sub.size),
            None => format!("'{name}'"),
        }
    });
    axes.collect::<Vec<_>>().join(separator)
}

/// The groups of a collective in whichever form they have.
pub(super) fn replica_groups(instruction: &HloInstructionProto) -> String {
    let compact = |list: &IotaReplicaGroupListProto| {
        let iota = iota(&list.iota_reshape_dims, &list.iota_transpose_perm);
        format!("[{},{}]<={iota}", list.num_replica_groups, list.num_devices_per_group)
    };
    match &instruction.details().replica_group_list {
        _ if !instruction.details().replica_groups.is_empty() => group_list(&instruction.details().replica_groups),
        None => group_list(&[]),
        Some(ReplicaGroupList::CollectiveDeviceList(list)) => match list.iota_replica_group_list.as_option() {
            Some(iota) if list.replica_groups.is_empty() => compact(iota),
            _ => group_list(&list.replica_groups),
        },
        Some(ReplicaGroupList::IotaCollectiveDeviceList(list)) => compact(list),
        Some(ReplicaGroupList::MeshAxesReplicaGroupList(list)) => {
            format!("{} {{{}}}", mesh(&list.mesh), axis_list(&list.axes, &list.mesh, ","))
        }
    }
}

fn group_list(groups: &[ReplicaGroup]) -> String {
    braced(&groups.iter().map(|group| braced(&group.replica_ids)).collect::<Vec<_>>())
}
