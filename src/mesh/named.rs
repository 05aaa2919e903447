//! Shardings by the named axes of a mesh, as Shardy writes them.

use super::device_order::{grid_size, transposed};
use super::from_proto::{device_list, iota, maximal, sizes};
use super::{HloSharding, ShardingError, Subgroup};
use crate::proto;

/// A part of a mesh axis: of an axis seen as a grid of `before` × `size` × the rest, the middle dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SubAxis {
    axis: usize,
    before: usize,
    size: usize,
}

/// The mesh, cut into sub-axes small enough that the sharding uses each as a whole or not at all.
struct Grid<'a> {
    mesh: &'a proto::MeshProto,
    sub_axes: Vec<SubAxis>,
    /// Sub-axes in the order in which the sharding uses them.
    order: Vec<usize>,
}

pub(super) fn from_proto(sharding: &proto::NamedShardingProto) -> Result<HloSharding, ShardingError> {
    let mesh = &*sharding.mesh;
    if mesh.axes.is_empty() {
        return match mesh.device_ids[..] {
            [] => Ok(HloSharding::Replicated),
            [device] => maximal(device),
            ref devices => Err(ShardingError::Invalid(format!("a mesh without axes and {} devices", devices.len()))),
        };
    }
    let axis_sizes = sizes(&mesh.axes.iter().map(|axis| axis.size).collect::<Vec<_>>())?;
    let num_devices = grid_size(&axis_sizes)?;
    let devices = if let Some(transform) = mesh.iota_transform.as_option() {
        iota(&transform.reshape_dims, &transform.transpose_perm)?
    } else if mesh.device_ids.is_empty() {
        (0..num_devices as u32).collect()
    } else {
        device_list(&mesh.device_ids)?
    };
    if devices.len() != num_devices {
        return Err(ShardingError::Invalid(format!("a mesh of {num_devices} devices that lists {}", devices.len())));
    }

    let mut grid = Grid { mesh, sub_axes: sub_axes(sharding, &axis_sizes)?, order: Vec::new() };
    let mut tiles = Vec::with_capacity(sharding.dim_shardings.len());
    for dim in &sharding.dim_shardings {
        tiles.push(grid.take(&dim.axes)?);
    }
    let manual = grid.take(&sharding.manual_axes)?;
    let unreduced = grid.take(&sharding.unreduced_axes)?;
    let used = grid.order.len();
    grid.take(&sharding.replicated_axes)?;
    grid.order.truncate(used);
    let rest: Vec<usize> = (0..grid.sub_axes.len()).filter(|sub_axis| !grid.order.contains(sub_axis)).collect();
    let replicated = rest.iter().map(|&sub_axis| grid.sub_axes[sub_axis].size).product();
    grid.order.extend(rest);

    let dims: Vec<usize> = grid.sub_axes.iter().map(|sub_axis| sub_axis.size).collect();
    let subgroups = [(Subgroup::Manual, manual), (Subgroup::Unreduced, unreduced), (Subgroup::Replicated, replicated)];
    HloSharding::tiled(tiles, &subgroups, transposed(&devices, &dims, &grid.order))
}

/// Cuts every axis wherever a sub-axis of the sharding begins or ends.
fn sub_axes(sharding: &proto::NamedShardingProto, axis_sizes: &[usize]) -> Result<Vec<SubAxis>, ShardingError> {
    let mut cuts: Vec<Vec<usize>> = axis_sizes.iter().map(|&size| vec![1, size]).collect();
    let in_dims = sharding.dim_shardings.iter().flat_map(|dim| &dim.axes);
    let elsewhere = [&sharding.manual_axes, &sharding.unreduced_axes, &sharding.replicated_axes].into_iter().flatten();
    for axis in in_dims.chain(elsewhere) {
        let axis = resolve(axis, &sharding.mesh)?;
        cuts[axis.axis].extend([axis.before, axis.before * axis.size]);
    }
    let mut result = Vec::new();
    for (axis, mut cuts) in cuts.into_iter().enumerate() {
        cuts.sort_unstable();
        cuts.dedup();
        for pair in cuts.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            if !after.is_multiple_of(before) {
                return Err(ShardingError::Invalid(format!(
                    "sub-axes of '{}' that overlap",
                    sharding.mesh.axes[axis].name
                )));
            }
            result.push(SubAxis { axis, before, size: after / before });
        }
    }
    Ok(result)
}

/// The axis or sub-axis that a reference means, once it is sure to lie in the mesh.
fn resolve(reference: &proto::AxisRefProto, mesh: &proto::MeshProto) -> Result<SubAxis, ShardingError> {
    let position = usize::try_from(reference.mesh_axis_index).ok().filter(|&axis| axis < mesh.axes.len());
    let Some(axis) = position else {
        return Err(ShardingError::Invalid(format!(
            "axis {} of a mesh of {} axes",
            reference.mesh_axis_index,
            mesh.axes.len()
        )));
    };
    let axis_size = mesh.axes[axis].size;
    let (before, size) = match reference.sub_axis_info.as_option() {
        None => (1, axis_size),
        Some(part) => (part.pre_size, part.size),
    };
    let fits = before > 0 && size > 0 && before.checked_mul(size).is_some_and(|end| axis_size % end == 0);
    if !fits {
        return Err(ShardingError::Invalid(format!(
            "sub-axis '{}':({before}){size} of an axis of {axis_size}",
            mesh.axes[axis].name
        )));
    }
    Ok(SubAxis { axis, before: before as usize, size: size as usize })
}

impl Grid<'_> {
    /// Uses axes for one purpose, and returns how many devices they have together.
    fn take(&mut self, axes: &[proto::AxisRefProto]) -> Result<usize, ShardingError> {
        let mut size = 1;
        for reference in axes {
            let wanted = resolve(reference, self.mesh)?;
            if wanted.size == 1 {
                continue;
            }
            let position = self.sub_axes.iter().position(|sub_axis| *sub_axis == wanted);
            match position.filter(|position| !self.order.contains(position)) {
                Some(position) => self.order.push(position),
                None => {
                    let name = &self.mesh.axes[wanted.axis].name;
                    return Err(ShardingError::Invalid(format!("it uses axis '{name}' twice")));
                }
            }
            size *= wanted.size;
        }
        Ok(size)
    }
}
