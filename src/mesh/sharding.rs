//! XLA's sharding of one array, and which elements it puts on which device.

use std::fmt;
use std::ops::Range;

use super::ShardingError;
use super::device_order::{grid_size, joined, transposed, write_devices};

/// How the elements of an array, or of the leaves of a tuple, lie on the devices of a program.
///
/// Devices are numbered as in the program: the partition ids `0..num_partitions`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HloSharding {
    /// Every device holds the whole array.
    Replicated,
    /// One device holds the array, the others nothing.
    Maximal {
        /// The one that does.
        device: usize,
    },
    /// Every device holds an array of its own, which the partitioner leaves alone; the shape is that of one of them.
    Manual,
    /// Every device holds a summand of the array.
    Unreduced,
    /// Left to the partitioner.
    Unknown,
    /// Cut into tiles.
    Tiled(Tiling),
    /// One sharding for each leaf of a tuple.
    Tuple(Vec<HloSharding>),
}

/// An array cut into a grid of equal tiles, the last one of a dimension padded; each tile lies on one device, or on a
/// group of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// Number of tiles in each dimension of the array; empty for an array of any rank that is not cut.
    tiles: Vec<usize>,
    /// What the devices that share a tile are to each other; sizes above 1, each kind once, in the order of the enum.
    subgroups: Vec<(Subgroup, usize)>,
    /// The devices, tile by tile.
    devices: Vec<u32>,
    /// Where each device stands in `devices`.
    positions: Vec<u32>,
}

/// What the devices that share a tile hold of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subgroup {
    /// Each a tile of its own.
    Manual,
    /// Each a summand.
    Unreduced,
    /// Each the same.
    Replicated,
}

impl Subgroup {
    fn name(self) -> &'static str {
        match self {
            Subgroup::Manual => "manual",
            Subgroup::Unreduced => "unreduced",
            Subgroup::Replicated => "replicated",
        }
    }
}

impl HloSharding {
    /// Cuts dimension i of an array into `tiles[i]` tiles and gives each to a group of devices; `devices` lists the
    /// grid of tiles and subgroups in row-major order and holds each of `0..devices.len()` once.
    ///
    /// The result is in XLA's normal form: subgroups merged and sorted, and no tiling where a simpler sharding says
    /// the same.
    pub fn tiled(
        tiles: Vec<usize>,
        subgroups: &[(Subgroup, usize)],
        devices: Vec<u32>,
    ) -> Result<HloSharding, ShardingError> {
        let rank = tiles.len();
        let dims: Vec<usize> = tiles.iter().copied().chain(subgroups.iter().map(|&(_, size)| size)).collect();
        let count = grid_size(&dims)?;
        if count != devices.len() {
            return Err(ShardingError::Invalid(format!(
                "{} tiles need {count} devices, {} are listed",
                joined(&dims, " × "),
                devices.len()
            )));
        }
        let mut listed = vec![false; count];
        for &device in &devices {
            let problem = match listed.get_mut(device as usize) {
                Some(listed) if !*listed => {
                    *listed = true;
                    continue;
                }
                Some(_) => format!("device {device} is listed twice"),
                None => format!("device {device} is listed among devices 0..{count}"),
            };
            return Err(ShardingError::Invalid(problem));
        }

        let mut order: Vec<usize> = (rank..dims.len()).filter(|&dim| dims[dim] > 1).collect();
        order.sort_by_key(|&dim| subgroups[dim - rank].0);
        let mut merged: Vec<(Subgroup, usize)> = Vec::new();
        for &dim in &order {
            let (kind, size) = subgroups[dim - rank];
            match merged.last_mut() {
                Some((last, total)) if *last == kind => *total *= size,
                _ => merged.push((kind, size)),
            }
        }
        let uncut = tiles.iter().all(|&tiles| tiles == 1);
        match merged[..] {
            [] if uncut => return Ok(HloSharding::Replicated),
            [(kind, _)] if uncut => {
                return Ok(match kind {
                    Subgroup::Manual => HloSharding::Manual,
                    Subgroup::Unreduced => HloSharding::Unreduced,
                    Subgroup::Replicated => HloSharding::Replicated,
                });
            }
            _ => {}
        }

        let permutation: Vec<usize> = (0..rank).chain(order).collect();
        let mut devices = transposed(&devices, &dims, &permutation);
        if let Some(&(Subgroup::Replicated, size)) = merged.last() {
            devices.chunks_exact_mut(size).for_each(<[u32]>::sort_unstable);
        }
        let mut positions = vec![0; count];
        for (position, &device) in devices.iter().enumerate() {
            positions[device as usize] = position as u32;
        }
        Ok(HloSharding::Tiled(Tiling { tiles, subgroups: merged, devices, positions }))
    }

    /// The shardings of a tuple's leaves; the sharding itself if it is none of a tuple.
    pub fn leaves(&self) -> &[HloSharding] {
        match self {
            HloSharding::Tuple(leaves) => leaves,
            leaf => std::slice::from_ref(leaf),
        }
    }

    /// The number of devices that the sharding is made for; `None` if it suits any number.
    pub fn num_devices(&self) -> Option<usize> {
        match self {
            HloSharding::Tiled(tiling) => Some(tiling.devices.len()),
            HloSharding::Tuple(leaves) => leaves.iter().find_map(HloSharding::num_devices),
            _ => None,
        }
    }

    /// Checks that the sharding suits a program of `available` devices.
    pub fn check_num_devices(&self, available: usize) -> Result<(), ShardingError> {
        let wrong = |used| Err(ShardingError::DeviceCount { sharding: self.to_string(), used, available });
        match self {
            HloSharding::Tiled(tiling) if tiling.devices.len() != available => {
                wrong(format!("devices 0..{}", tiling.devices.len()))
            }
            HloSharding::Maximal { device } if *device >= available => wrong(format!("device {device}")),
            HloSharding::Tuple(leaves) => leaves.iter().try_for_each(|leaf| leaf.check_num_devices(available)),
            _ => Ok(()),
        }
    }

    /// The shape that each device holds of an array of shape `global`: tiles are ⌈size / tiles⌉ long, the last ones
    /// padded. Devices without a share of the array ([`HloSharding::Maximal`]) hold the same shape.
    pub fn shard_shape(&self, global: &[i64]) -> Result<Vec<i64>, ShardingError> {
        let dims = self.checked_dims(global)?;
        Ok(self.tile_dims(&dims).into_iter().map(|dim| dim as i64).collect())
    }

    /// The part of an array of shape `global` that lies on `device`, without padding: it is empty where the device
    /// holds nothing but padding, and `None` where it holds nothing.
    pub fn index_range(&self, global: &[i64], device: usize) -> Result<Option<Vec<Range<i64>>>, ShardingError> {
        let dims = self.checked_dims(global)?;
        let range = self.range(&dims, device)?;
        Ok(range.map(|range| range.into_iter().map(|range| range.start as i64..range.end as i64).collect()))
    }

    /// The devices, in ascending order, that hold an array's elements among them once: the lowest one of each group
    /// that holds the same.
    pub fn owners(&self) -> Result<Vec<usize>, ShardingError> {
        self.check_placement()?;
        Ok(match self {
            HloSharding::Maximal { device } => vec![*device],
            HloSharding::Tiled(tiling) => {
                let groups = tiling.devices.chunks_exact(tiling.group_size());
                let mut owners: Vec<usize> =
                    groups.filter_map(|group| group.iter().min()).map(|&d| d as usize).collect();
                owners.sort_unstable();
                owners
            }
            _ => vec![0],
        })
    }

    /// Whether every device holds the whole array.
    pub fn is_whole(&self) -> bool {
        match self {
            HloSharding::Replicated | HloSharding::Manual => true,
            HloSharding::Tiled(tiling) => tiling.tiles.iter().all(|&tiles| tiles == 1),
            _ => false,
        }
    }

    /// The tile of the grid, counted in row-major order, that lies on a device.
    pub(super) fn tile_of(&self, device: usize) -> usize {
        match self {
            HloSharding::Tiled(tiling) => {
                tiling.positions.get(device).map_or(0, |&position| position as usize / tiling.group_size())
            }
            _ => 0,
        }
    }

    /// The number of tiles of the grid.
    pub(super) fn num_tiles(&self) -> usize {
        match self {
            HloSharding::Tiled(tiling) => tiling.tiles.iter().product(),
            _ => 1,
        }
    }

    /// The dimensions as sizes, once it is sure that the sharding places arrays of this rank.
    pub(super) fn checked_dims(&self, global: &[i64]) -> Result<Vec<usize>, ShardingError> {
        self.check_placement()?;
        let shape = || format!("[{}]", joined(global, ","));
        if let HloSharding::Tiled(tiling) = self
            && !tiling.tiles.is_empty()
            && tiling.tiles.len() != global.len()
        {
            return Err(ShardingError::Rank {
                sharding: self.to_string(),
                tiled: tiling.tiles.len(),
                shape: shape(),
                rank: global.len(),
            });
        }
        let dims = global.iter().map(|&dim| usize::try_from(dim)).collect::<Result<_, _>>();
        dims.map_err(|_| ShardingError::Dimension { shape: shape() })
    }

    /// An error for shardings that say nothing of where elements lie.
    fn check_placement(&self) -> Result<(), ShardingError> {
        let reason = match self {
            HloSharding::Unknown => "it was left to the partitioner",
            HloSharding::Tuple(_) => "it is that of a tuple, whose leaves have one each",
            HloSharding::Unreduced => "each device holds a summand",
            HloSharding::Tiled(tiling) if tiling.subgroups.iter().any(|&(kind, _)| kind == Subgroup::Unreduced) => {
                "each device holds a summand"
            }
            _ => return Ok(()),
        };
        Err(ShardingError::NotAPlacement { sharding: self.to_string(), reason })
    }

    pub(super) fn tile_dims(&self, dims: &[usize]) -> Vec<usize> {
        match self {
            HloSharding::Tiled(tiling) if !tiling.tiles.is_empty() => {
                dims.iter().zip(&tiling.tiles).map(|(dim, tiles)| dim.div_ceil(*tiles)).collect()
            }
            _ => dims.to_vec(),
        }
    }

    pub(super) fn range(&self, dims: &[usize], device: usize) -> Result<Option<Vec<Range<usize>>>, ShardingError> {
        match self {
            HloSharding::Maximal { device: holder } if *holder != device => return Ok(None),
            HloSharding::Tiled(tiling) if device >= tiling.devices.len() => {
                return Err(ShardingError::NoSuchDevice {
                    device,
                    devices: tiling.devices.len(),
                    sharding: self.to_string(),
                });
            }
            _ => {}
        }
        Ok(Some(self.tile_range(dims, self.tile_of(device))))
    }

    /// The part of an array that a tile of the grid covers, tiles being counted in row-major order.
    pub(super) fn tile_range(&self, dims: &[usize], mut tile: usize) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = dims.iter().map(|&dim| 0..dim).collect();
        if let HloSharding::Tiled(tiling) = self {
            for (range, &tiles) in ranges.iter_mut().zip(&tiling.tiles).rev() {
                let (dim, size) = (range.end, range.end.div_ceil(tiles));
                let index = tile % tiles;
                tile /= tiles;
                let bound = |index: usize| index.checked_mul(size).map_or(dim, |bound| bound.min(dim));
                *range = bound(index)..bound(index + 1);
            }
        }
        ranges
    }
}

impl Tiling {
    /// Number of tiles in each dimension of the array; empty for an array of any rank that is not cut.
    pub fn tiles(&self) -> &[usize] {
        &self.tiles
    }

    /// What the devices that share a tile are to each other, and how many there are of each kind.
    pub fn subgroups(&self) -> &[(Subgroup, usize)] {
        &self.subgroups
    }

    /// The devices, in row-major order of tiles and subgroups.
    pub fn devices(&self) -> &[u32] {
        &self.devices
    }

    /// Number of devices that share a tile.
    fn group_size(&self) -> usize {
        self.subgroups.iter().map(|&(_, size)| size).product()
    }
}

/// As XLA prints it, device lists in their short form where they have one.
impl fmt::Display for HloSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HloSharding::Replicated => f.write_str("{replicated}"),
            HloSharding::Maximal { device } => write!(f, "{{maximal device={device}}}"),
            HloSharding::Manual => f.write_str("{manual}"),
            HloSharding::Unreduced => f.write_str("{unreduced}"),
            HloSharding::Unknown => f.write_str("{unknown}"),
            HloSharding::Tiled(tiling) => tiling.fmt(f),
            HloSharding::Tuple(leaves) => {
                f.write_str("{")?;
                for (index, leaf) in leaves.iter().enumerate() {
                    match index {
                        0 => {}
                        _ if index % 5 == 0 => write!(f, ", /*index={index}*/")?,
                        _ => f.write_str(", ")?,
                    }
                    leaf.fmt(f)?;
                }
                f.write_str("}")
            }
        }
    }
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.subgroups.iter().map(|&(_, size)| size);
        let dims: Vec<usize> = self.tiles.iter().copied().chain(sizes).collect();
        write!(f, "{{devices=[{}]", joined(&dims, ","))?;
        write_devices(&self.devices, f)?;
        match self.subgroups[..] {
            [] => {}
            [(Subgroup::Replicated, _)] => f.write_str(" last_tile_dim_replicate")?,
            _ => {
                let names: Vec<&str> = self.subgroups.iter().map(|&(kind, _)| kind.name()).collect();
                write!(f, " last_tile_dims={{{}}}", joined(&names, ", "))?;
            }
        }
        f.write_str("}")
    }
}
