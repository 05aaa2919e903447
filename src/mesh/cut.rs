//! Cutting arrays into shards and putting them together again.

use std::borrow::{Borrow, Cow};

use super::device_order::joined;
use super::{HloSharding, ShardingError};
use crate::dtype::DType;
use crate::host_array::{HostArray, Side, copy_region, shape_text};

/// Missing tiles that an error names.
const NAMED_TILES: usize = 4;

impl HloSharding {
    /// The shard of a global array that lies on `device`, padded with zeros; borrowed where it is the whole array.
    /// Devices without a share ([`HloSharding::Maximal`]) get zeros.
    pub fn shard<'a>(&self, global: &'a HostArray, device: usize) -> Result<Cow<'a, HostArray>, ShardingError> {
        let dims = self.checked_dims(&global.dims_i64())?;
        let range = self.range(&dims, device)?;
        if range.is_some() && self.is_whole_on_holders() {
            return Ok(Cow::Borrowed(global));
        }
        let shard_dims = self.tile_dims(&dims);
        let mut shard = HostArray::zeros(global.dtype(), &shard_dims)?;
        if let Some(range) = range {
            let extent: Vec<usize> = range.iter().map(|range| range.end - range.start).collect();
            let start: Vec<usize> = range.iter().map(|range| range.start).collect();
            let origin = vec![0; extent.len()];
            copy_region(
                &extent,
                global.dtype().size(),
                (global.data(), Side { dims: &dims, start: &start }),
                (shard.data_mut(), Side { dims: &shard_dims, start: &origin }),
            );
        }
        Ok(Cow::Owned(shard))
    }

    /// Puts the shards of an array of shape `global` together and drops their padding.
    ///
    /// Of devices that hold the same part, one is enough and the first one given wins. Shards that are missing, given
    /// twice or of another shape are errors; those of [`HloSharding::owners`] suffice.
    pub fn assemble<A: Borrow<HostArray>>(
        &self,
        global: &[i64],
        dtype: DType,
        shards: impl IntoIterator<Item = (usize, A)>,
    ) -> Result<HostArray, ShardingError> {
        let dims = self.checked_dims(global)?;
        let shard_dims = self.tile_dims(&dims);
        let mut array = HostArray::zeros(dtype, &dims)?;
        let origin = vec![0; dims.len()];
        let mut devices = Vec::new();
        let mut tiles = vec![false; self.num_tiles()];
        for (device, shard) in shards {
            let shard = shard.borrow();
            devices.push(device);
            if (shard.dtype(), shard.dims()) != (dtype, &shard_dims[..]) {
                return Err(ShardingError::WrongShard {
                    device,
                    actual: shard.shape_text(),
                    expected: shape_text(dtype, &shard_dims),
                    sharding: self.to_string(),
                    global: shape_text(dtype, &dims),
                });
            }
            let Some(range) = self.range(&dims, device)? else { continue };
            if std::mem::replace(&mut tiles[self.tile_of(device)], true) {
                continue;
            }
            let extent: Vec<usize> = range.iter().map(|range| range.end - range.start).collect();
            let start: Vec<usize> = range.iter().map(|range| range.start).collect();
            copy_region(
                &extent,
                dtype.size(),
                (shard.data(), Side { dims: &shard_dims, start: &origin }),
                (array.data_mut(), Side { dims: &dims, start: &start }),
            );
        }
        devices.sort_unstable();
        if let Some(pair) = devices.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ShardingError::DuplicateShard { device: pair[0] });
        }
        self.check_complete(&tiles, &dims, dtype)?;
        Ok(array)
    }

    fn is_whole_on_holders(&self) -> bool {
        self.is_whole() || matches!(self, HloSharding::Maximal { .. })
    }

    /// An error that names the tiles which no shard brought, unless they are all padding.
    fn check_complete(&self, tiles: &[bool], dims: &[usize], dtype: DType) -> Result<(), ShardingError> {
        let mut missing = tiles.iter().enumerate().filter(|(_, there)| !**there).filter_map(|(tile, _)| {
            let range = self.tile_range(dims, tile);
            let empty = range.iter().any(|range| range.is_empty());
            let bounds: Vec<String> = range.iter().map(|range| format!("{}:{}", range.start, range.end)).collect();
            (!empty).then(|| format!("[{}]", joined(&bounds, ", ")))
        });
        let mut named: Vec<String> = missing.by_ref().take(NAMED_TILES).collect();
        if named.is_empty() {
            return Ok(());
        }
        let more = missing.count();
        if more > 0 {
            named.push(format!("and {more} more"));
        }
        Err(ShardingError::MissingShards {
            missing: joined(&named, " "),
            global: shape_text(dtype, dims),
            sharding: self.to_string(),
        })
    }
}
