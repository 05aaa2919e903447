//! Shardings: whole grids of devices that fit the arrays.

use std::collections::HashSet;

use super::dims::{expect_dim, text};
use super::{Check, ensure};
use crate::hlo::shape;
use crate::proto::op_sharding::Type;
use crate::proto::{AxisRefProto, MeshProto, NamedShardingProto, OpSharding, ShapeProto};

/// The sharding fits the shape and, if there are several partitions, uses all of them.
pub(super) fn check(sharding: &OpSharding, shape: &ShapeProto, partitions: i64) -> Check {
    if shape::is_token(shape) {
        return well_formed(sharding, partitions).map(drop);
    }
    if !is_tuple(sharding) {
        ensure!(!shape::is_tuple(shape), "its sharding is that of one array, and its shape is {}", text(shape));
        return leaf(sharding, shape, partitions);
    }
    let leaves = shape::leaves(shape);
    let found = sharding.tuple_shardings.len();
    ensure!(shape::is_tuple(shape), "its sharding is that of a tuple, and its shape is {}", text(shape));
    // An empty tuple has a sharding or none.
    let expected = leaves.len();
    ensure!(
        found == expected || expected == 0 && found <= 1,
        "its sharding has {found} parts, and {} has {expected} arrays",
        text(shape)
    );
    leaves.into_iter().zip(&sharding.tuple_shardings).try_for_each(|(shape, part)| leaf(part, shape, partitions))
}

/// A sharding of no particular shape: what a domain or the module's parameters have.
pub(super) fn well_formed(sharding: &OpSharding, partitions: i64) -> Result<Option<usize>, String> {
    if is_tuple(sharding) {
        for part in &sharding.tuple_shardings {
            ensure!(!is_tuple(part), "its sharding has tuples inside a tuple");
            grid(part, partitions)?;
        }
        return Ok(None);
    }
    grid(sharding, partitions)
}

fn is_tuple(sharding: &OpSharding) -> bool {
    sharding.named_sharding.is_unset() && sharding.r#type == Type::TUPLE
}

fn leaf(sharding: &OpSharding, shape: &ShapeProto, partitions: i64) -> Check {
    ensure!(!is_tuple(sharding), "its sharding has tuples inside a tuple");
    let tiled = grid(sharding, partitions)?;
    // Tokens, and what is not tiled at all, may have any.
    if let Some(tiled) = tiled.filter(|_| shape::dtype(shape).is_some()) {
        let rank = shape.dimensions.len();
        ensure!(tiled == rank, "its sharding tiles {tiled} dimensions, and {} has {rank}", text(shape));
    }
    Ok(())
}

/// How many dimensions the sharding tiles; `None` if it does not tile.
fn grid(sharding: &OpSharding, partitions: i64) -> Result<Option<usize>, String> {
    if let Some(named) = sharding.named_sharding.as_option() {
        return named_grid(named, partitions);
    }
    match sharding.r#type.as_known() {
        Some(Type::REPLICATED | Type::MANUAL | Type::UNREDUCED | Type::UNKNOWN) => Ok(None),
        Some(Type::MAXIMAL) => {
            let [device] = sharding.tile_assignment_devices.as_slice() else {
                return Err("its sharding is that of a single device, and names another number of them".to_owned());
            };
            expect_device(*device, partitions)?;
            Ok(None)
        }
        Some(Type::OTHER) => tiles(sharding, partitions),
        Some(Type::TUPLE) => Err("its sharding has tuples inside a tuple".to_owned()),
        None => Err(format!("the type {} of its sharding is unknown", sharding.r#type.to_i32())),
    }
}

fn expect_device(device: i64, partitions: i64) -> Check {
    let exists = device >= 0 && (partitions == 1 || device < partitions);
    ensure!(exists, "its sharding names the device {device}, and the program has {partitions} partition(s)");
    Ok(())
}

fn expect_devices(found: i64, partitions: i64) -> Check {
    ensure!(
        partitions == 1 || found == partitions,
        "its sharding is for {found} devices, and the program has {partitions} partition(s)"
    );
    Ok(())
}

fn tiles(sharding: &OpSharding, partitions: i64) -> Result<Option<usize>, String> {
    let dims = &sharding.tile_assignment_dimensions;
    let count = product(dims)?;
    let (reshape, order) = (&sharding.iota_reshape_dims, &sharding.iota_transpose_perm);
    let devices = &sharding.tile_assignment_devices;
    if !reshape.is_empty() {
        ensure!(devices.is_empty(), "its sharding has a list of devices and an iota at once");
        let found = product(reshape)?;
        ensure!(found == count, "its sharding has {count} tiles, and an iota of {found} devices");
        let order: Vec<i64> = order.iter().map(|&dim| dim.into()).collect();
        ensure!(
            shape::is_permutation(&order, reshape.len()),
            "T({}) is no order of the {} dimensions of its sharding's iota",
            shape::join(&order),
            reshape.len()
        );
    } else {
        ensure!(devices.len() as i64 == count, "its sharding has {count} tiles, and {} devices", devices.len());
        let mut seen = HashSet::with_capacity(devices.len());
        for &device in devices {
            expect_device(device, partitions)?;
            ensure!(seen.insert(device), "its sharding names the device {device} twice");
        }
    }
    if count == 1 {
        // One device holds everything: XLA reads this as replicated.
        return Ok(None);
    }
    expect_devices(count, partitions)?;
    let subgroups = match sharding.last_tile_dims.len() {
        0 => usize::from(sharding.replicate_on_last_tile_dim),
        count => {
            ensure!(
                !sharding.replicate_on_last_tile_dim,
                "its sharding has last_tile_dims and last_tile_dim_replicate at once"
            );
            count
        }
    };
    for kind in &sharding.last_tile_dims {
        let known = matches!(kind.as_known(), Some(Type::REPLICATED | Type::MANUAL | Type::UNREDUCED));
        ensure!(known, "last_tile_dims of its sharding must be manual, replicated or unreduced");
    }
    let tiled = dims.len().checked_sub(subgroups);
    tiled.map(Some).ok_or_else(|| format!("its sharding has {subgroups} last_tile_dims of {} dimensions", dims.len()))
}

/// The number of places in a grid.
fn product(dims: &[i64]) -> Result<i64, String> {
    let grid = || format!("its sharding has a grid of [{}] devices", shape::join(dims));
    let total = dims.iter().try_fold(1i64, |total, &dim| (dim > 0).then_some(total.checked_mul(dim)?));
    total.filter(|_| !dims.is_empty()).ok_or_else(grid)
}

/// A mesh is a whole grid with names for its axes.
pub(super) fn check_mesh(mesh: &MeshProto) -> Result<i64, String> {
    let sizes: Vec<i64> = mesh.axes.iter().map(|axis| axis.size).collect();
    let ids = &mesh.device_ids;
    if sizes.is_empty() {
        let whole = ids.len() <= 1 && ids.iter().all(|&id| id >= 0);
        ensure!(whole, "a mesh without axes has one device at most, not [{}]", shape::join(ids));
        return Ok(ids.len() as i64);
    }
    let count = product(&sizes)?;
    let mut names = HashSet::with_capacity(sizes.len());
    let twice = mesh.axes.iter().find(|axis| !names.insert(&axis.name));
    if let Some(axis) = twice {
        return Err(format!("the mesh has two axes '{}'", axis.name));
    }
    ensure!(ids.is_empty() || mesh.iota_transform.is_unset(), "the mesh has device_ids and an iota at once");
    if let Some(iota) = mesh.iota_transform.as_option() {
        let (reshape, order) = (&iota.reshape_dims, &iota.transpose_perm);
        ensure!(
            product(reshape)? == count && shape::is_permutation(order, reshape.len()),
            "[{}]T({}) is no order of the mesh's {count} devices",
            shape::join(reshape),
            shape::join(order)
        );
    }
    ensure!(
        ids.is_empty() || ids.len() as i64 == count && shape::is_permutation(ids, ids.len()),
        "device_ids=[{}] are no order of the mesh's {count} devices",
        shape::join(ids)
    );
    // XLA ends the process on a list where an iota would do.
    let is_iota = !ids.is_empty() && ids.iter().copied().eq(0..count);
    ensure!(!is_iota, "device_ids=[{}] are the mesh's own order and must be left out", shape::join(ids));
    Ok(count)
}

fn named_grid(named: &NamedShardingProto, partitions: i64) -> Result<Option<usize>, String> {
    let mesh = &*named.mesh;
    let devices = check_mesh(mesh)?;
    let mut used = Vec::new();
    for dim in &named.dim_shardings {
        check_axes(&dim.axes, mesh, &mut used)?;
    }
    for (what, axes) in
        [("replicated", &named.replicated_axes), ("unreduced", &named.unreduced_axes), ("manual", &named.manual_axes)]
    {
        let place = |axis: &AxisRefProto| (axis.mesh_axis_index, axis.sub_axis_info.pre_size);
        ensure!(axes.is_sorted_by_key(place), "its sharding's {what} axes must stand in the mesh's order");
        check_axes(axes, mesh, &mut used)?;
    }
    match (mesh.axes.is_empty(), mesh.device_ids.as_slice()) {
        (true, [device]) => expect_device(*device, partitions)?,
        (true, _) => {}
        (false, _) => expect_devices(devices, partitions)?,
    }
    let tiles = named.dim_shardings.iter().any(|dim| !dim.axes.is_empty());
    Ok(tiles.then_some(named.dim_shardings.len()))
}

/// Axes that are there, of which no part is used twice.
pub(super) fn check_axes(axes: &[AxisRefProto], mesh: &MeshProto, used: &mut Vec<(usize, i64, i64)>) -> Check {
    let mut before = None;
    for axis in axes {
        let index = expect_dim("mesh axis", axis.mesh_axis_index, mesh.axes.len())?;
        let size = mesh.axes[index].size;
        let (start, end) = match axis.sub_axis_info.as_option() {
            None => (1, size),
            Some(part) => {
                let end = part.pre_size.checked_mul(part.size).filter(|&end| end > 0 && size % end == 0);
                let end = end.filter(|_| part.size > 1 && part.size < size);
                (
                    part.pre_size,
                    end.ok_or_else(|| {
                        format!(
                            "({}){} is no part of the axis '{}' of {size}",
                            part.pre_size, part.size, mesh.axes[index].name
                        )
                    })?,
                )
            }
        };
        let name = &mesh.axes[index].name;
        let apart = |&(other, from, to): &(usize, i64, i64)| {
            other != index || (end <= from && from % end == 0) || (to <= start && start % to == 0)
        };
        ensure!(size == 1 || used.iter().all(apart), "parts of the axis '{name}' are used twice or do not fit");
        let joined = before == Some((index, start)) && axis.sub_axis_info.is_set();
        ensure!(!joined, "neighbouring parts of the axis '{name}' must be written as one");
        used.push((index, start, end));
        before = Some((index, end));
    }
    Ok(())
}
