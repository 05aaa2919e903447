//! Shardings from their protobuf: device lists, iotas, and meshes with named axes.

use super::device_order::{grid_size, is_permutation, joined, transposed};
use super::{HloSharding, ShardingError, Subgroup, named};
use crate::proto;
use crate::proto::op_sharding::Type;

impl HloSharding {
    /// Reads any of XLA's three spellings of a sharding. Groups of instructions that are to be sharded alike are
    /// ignored: they bind the partitioner, not the arrays.
    pub fn from_proto(proto: &proto::OpSharding) -> Result<HloSharding, ShardingError> {
        if proto.r#type.as_known() != Some(Type::TUPLE) || proto.named_sharding.is_set() {
            return leaf(proto);
        }
        proto.tuple_shardings.iter().map(leaf).collect::<Result<_, _>>().map(HloSharding::Tuple)
    }
}

fn leaf(proto: &proto::OpSharding) -> Result<HloSharding, ShardingError> {
    if let Some(named) = proto.named_sharding.as_option() {
        return named::from_proto(named);
    }
    match proto.r#type.as_known() {
        Some(Type::REPLICATED) => Ok(HloSharding::Replicated),
        Some(Type::MANUAL) => Ok(HloSharding::Manual),
        Some(Type::UNREDUCED) => Ok(HloSharding::Unreduced),
        Some(Type::UNKNOWN) => Ok(HloSharding::Unknown),
        Some(Type::MAXIMAL) => match proto.tile_assignment_devices[..] {
            [device] => maximal(device),
            ref devices => {
                Err(ShardingError::Invalid(format!("{} devices where one holds the whole array", devices.len())))
            }
        },
        Some(Type::OTHER) => tiled(proto),
        Some(Type::TUPLE) => Err(ShardingError::Invalid("a tuple inside the sharding of a tuple".to_owned())),
        None => Err(ShardingError::Invalid(format!("unknown type {}", proto.r#type))),
    }
}

pub(super) fn maximal(device: i64) -> Result<HloSharding, ShardingError> {
    let device = usize::try_from(device).map_err(|_| ShardingError::Invalid(format!("there is no device {device}")))?;
    Ok(HloSharding::Maximal { device })
}

fn tiled(proto: &proto::OpSharding) -> Result<HloSharding, ShardingError> {
    let mut tiles = sizes(&proto.tile_assignment_dimensions)?;
    if tiles.is_empty() {
        return Err(ShardingError::Invalid("it has no tiles".to_owned()));
    }
    let kinds = if proto.replicate_on_last_tile_dim {
        if !proto.last_tile_dims.is_empty() {
            return Err(ShardingError::Invalid("last_tile_dim_replicate and last_tile_dims at once".to_owned()));
        }
        vec![Subgroup::Replicated]
    } else {
        proto.last_tile_dims.iter().map(|kind| subgroup(kind.as_known())).collect::<Result<_, _>>()?
    };
    let Some(rank) = tiles.len().checked_sub(kinds.len()) else {
        return Err(ShardingError::Invalid(format!("{} last_tile_dims of {} dimensions", kinds.len(), tiles.len())));
    };
    let devices = if proto.iota_reshape_dims.is_empty() {
        device_list(&proto.tile_assignment_devices)?
    } else if proto.tile_assignment_devices.is_empty() {
        let permutation: Vec<i64> = proto.iota_transpose_perm.iter().map(|&dim| i64::from(dim)).collect();
        iota(&proto.iota_reshape_dims, &permutation)?
    } else {
        return Err(ShardingError::Invalid("a list of devices and an iota at once".to_owned()));
    };
    let subgroups: Vec<(Subgroup, usize)> = kinds.into_iter().zip(tiles.split_off(rank)).collect();
    HloSharding::tiled(tiles, &subgroups, devices)
}

fn subgroup(kind: Option<Type>) -> Result<Subgroup, ShardingError> {
    match kind {
        Some(Type::MANUAL) => Ok(Subgroup::Manual),
        Some(Type::UNREDUCED) => Ok(Subgroup::Unreduced),
        Some(Type::REPLICATED) => Ok(Subgroup::Replicated),
        other => Err(ShardingError::Invalid(format!("last_tile_dims with {other:?}"))),
    }
}

/// Sizes of the dimensions of a grid, all of them positive.
pub(super) fn sizes(dims: &[i64]) -> Result<Vec<usize>, ShardingError> {
    let positive = |&dim: &i64| usize::try_from(dim).ok().filter(|&dim| dim > 0);
    dims.iter()
        .map(positive)
        .collect::<Option<_>>()
        .ok_or_else(|| ShardingError::Invalid(format!("a grid of {} devices", joined(dims, " × "))))
}

pub(super) fn device_list(devices: &[i64]) -> Result<Vec<u32>, ShardingError> {
    let number = |&device: &i64| {
        u32::try_from(device).map_err(|_| ShardingError::Invalid(format!("there is no device {device}")))
    };
    devices.iter().map(number).collect()
}

/// The numbers from 0 on in a row-major grid of `dims`, whose dimensions are then put in the order `permutation`.
pub(super) fn iota(dims: &[i64], permutation: &[i64]) -> Result<Vec<u32>, ShardingError> {
    let dims = sizes(dims)?;
    let order: Vec<usize> = permutation.iter().filter_map(|&dim| usize::try_from(dim).ok()).collect();
    if order.len() != dims.len() || permutation.len() != dims.len() || !is_permutation(&order) {
        return Err(ShardingError::Invalid(format!(
            "<=[{}]T({}) orders other dimensions than there are",
            joined(&dims, ","),
            joined(permutation, ",")
        )));
    }
    let count = grid_size(&dims)?;
    let numbers: Vec<u32> = (0..count as u32).collect();
    Ok(transposed(&numbers, &dims, &order))
}
