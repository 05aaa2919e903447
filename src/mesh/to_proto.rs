//! Shardings as XLA stores them.

use super::device_order::transposed_iota;
use super::{HloSharding, Subgroup, Tiling};
use crate::proto::OpSharding;
use crate::proto::op_sharding::Type;

impl HloSharding {
    /// The protobuf, devices as an iota where they are one: what [`HloSharding::from_proto`] reads.
    pub fn to_proto(&self) -> OpSharding {
        let of_type = |kind: Type| OpSharding { r#type: kind.into(), ..OpSharding::default() };
        match self {
            HloSharding::Replicated => of_type(Type::REPLICATED),
            HloSharding::Manual => of_type(Type::MANUAL),
            HloSharding::Unreduced => of_type(Type::UNREDUCED),
            HloSharding::Unknown => of_type(Type::UNKNOWN),
            HloSharding::Maximal { device } => OpSharding {
                tile_assignment_dimensions: vec![1],
                tile_assignment_devices: vec![*device as i64],
                ..of_type(Type::MAXIMAL)
            },
            HloSharding::Tiled(tiling) => tiling.to_proto(),
            HloSharding::Tuple(leaves) => OpSharding {
                tuple_shardings: leaves.iter().map(HloSharding::to_proto).collect(),
                ..of_type(Type::TUPLE)
            },
        }
    }
}

impl Tiling {
    fn to_proto(&self) -> OpSharding {
        let sizes = self.tiles().iter().copied().chain(self.subgroups().iter().map(|&(_, size)| size));
        let mut proto = OpSharding {
            r#type: Type::OTHER.into(),
            tile_assignment_dimensions: sizes.map(|size| size as i64).collect(),
            ..OpSharding::default()
        };
        match transposed_iota(self.devices()) {
            Some((dims, permutation)) => {
                proto.iota_reshape_dims = dims.into_iter().map(|dim| dim as i64).collect();
                proto.iota_transpose_perm = permutation.into_iter().map(|dim| dim as i32).collect();
            }
            None => proto.tile_assignment_devices = self.devices().iter().map(|&device| device.into()).collect(),
        }
        match self.subgroups() {
            [] => {}
            [(Subgroup::Replicated, _)] => proto.replicate_on_last_tile_dim = true,
            kinds => proto.last_tile_dims = kinds.iter().map(|(kind, _)| kind.to_proto().into()).collect(),
        }
        proto
    }
}

impl Subgroup {
    fn to_proto(self) -> Type {
        match self {
            Subgroup::Manual => Type::MANUAL,
            Subgroup::Unreduced => Type::UNREDUCED,
            Subgroup::Replicated => Type::REPLICATED,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_protobuf_reads_back(
            tiles in prop::collection::vec(1usize..4, 1..4),
            kinds in prop::collection::vec((0usize..3, 1usize..3), 0..3),
            shuffle in any::<bool>(),
            seed in any::<u32>(),
        ) {
            let kinds: Vec<(Subgroup, usize)> = kinds
                .into_iter()
                .map(|(kind, size)| ([Subgroup::Manual, Subgroup::Unreduced, Subgroup::Replicated][kind], size))
                .collect();
            let count = tiles.iter().product::<usize>() * kinds.iter().map(|kind| kind.1).product::<usize>();
            let mut devices: Vec<u32> = (0..count as u32).collect();
            if shuffle {
                devices.sort_by_key(|device| device.wrapping_add(seed).wrapping_mul(2_654_435_761));
            }
            let sharding = HloSharding::tiled(tiles, &kinds, devices).unwrap();
            prop_assert_eq!(HloSharding::from_proto(&sharding.to_proto()).unwrap(), sharding);
        }
    }
}
