//! Sharding arithmetic against JAX's answers and against a plain element-by-element reference.

use std::ops::Range;

use buffa::Message;
use proptest::prelude::*;
use spmd_run::dtype::DType;
use spmd_run::host_array::HostArray;
use spmd_run::mesh::{HloSharding, ShardingError, Subgroup};
use spmd_run::proto::{self, op_sharding::Type};

fn from_hex(hex: &str) -> HloSharding {
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    let proto = proto::OpSharding::decode_from_slice(&bytes).unwrap();
    HloSharding::from_proto(&proto).unwrap()
}

#[test]
fn shardings_mean_what_jax_says() {
    let mut placed = 0;
    for line in include_str!("data/shardings.txt").lines().filter(|line| !line.starts_with('#')) {
        let [hex, text, dims, ranges] = line.split("; ").collect::<Vec<_>>().try_into().unwrap();
        let sharding = from_hex(hex.trim_matches('-'));
        assert_eq!(sharding.to_string(), text);
        if dims == "-" {
            continue;
        }
        placed += 1;
        let dims: Vec<i64> = dims.split(',').map(|dim| dim.parse().unwrap()).collect();
        let shape = sharding.shard_shape(&dims).unwrap();
        for (device, expected) in ranges.split(' ').enumerate() {
            let range = sharding.index_range(&dims, device).unwrap().unwrap();
            let bounds: Vec<String> = range.iter().map(|range| format!("{}:{}", range.start, range.end)).collect();
            assert_eq!(bounds.join(","), expected, "{text} on device {device}");
            assert!(range.iter().zip(&shape).all(|(range, size)| range.end - range.start == *size));
        }
    }
    assert!(placed > 15);
}

/// A tiling as its grid: tiles, then subgroups.
#[derive(Clone, Debug)]
struct Case {
    dims: Vec<usize>,
    tiles: Vec<usize>,
    subgroups: Vec<(Subgroup, usize)>,
    devices: Vec<u32>,
    dtype: DType,
}

impl Case {
    fn sharding(&self) -> HloSharding {
        HloSharding::tiled(self.tiles.clone(), &self.subgroups, self.devices.clone()).unwrap()
    }

    fn global(&self) -> HostArray {
        let count: usize = self.dims.iter().product::<usize>() * self.dtype.size();
        let data = (0..count).map(|at| (at * 31 % 255 + 1) as u8).collect();
        HostArray::new(self.dtype, self.dims.clone(), data).unwrap()
    }

    /// The tile that the grid gives to a device.
    fn tile(&self, device: usize) -> Vec<usize> {
        let mut position = self.devices.iter().position(|&other| other as usize == device).unwrap();
        position /= self.subgroups.iter().map(|&(_, size)| size).product::<usize>();
        let mut tile = vec![0; self.tiles.len()];
        for dim in (0..self.tiles.len()).rev() {
            tile[dim] = position % self.tiles[dim];
            position /= self.tiles[dim];
        }
        tile
    }

    fn shard_dims(&self) -> Vec<usize> {
        self.dims.iter().zip(&self.tiles).map(|(dim, tiles)| dim.div_ceil(*tiles)).collect()
    }

    /// The shard of a device, element by element.
    fn reference(&self, device: usize) -> Vec<u8> {
        let (tile, shard_dims, size) = (self.tile(device), self.shard_dims(), self.dtype.size());
        let global = self.global();
        let mut shard = Vec::new();
        for element in 0..shard_dims.iter().product() {
            let (mut rest, mut position, mut stride, mut inside) = (element, 0, 1, true);
            for dim in (0..self.dims.len()).rev() {
                let index = tile[dim] * shard_dims[dim] + rest % shard_dims[dim];
                rest /= shard_dims[dim];
                inside &= index < self.dims[dim];
                position += index * stride;
                stride *= self.dims[dim];
            }
            if inside {
                shard.extend_from_slice(&global.data()[position * size..(position + 1) * size]);
            } else {
                shard.resize(shard.len() + size, 0);
            }
        }
        shard
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let dims = proptest::collection::vec((0usize..7, 1usize..4), 0..4);
    let subgroup = (prop_oneof![Just(Subgroup::Replicated), Just(Subgroup::Manual)], 1usize..4);
    let dtype = proptest::sample::select(vec![DType::Pred, DType::S4, DType::BF16, DType::F32, DType::C128]);
    (dims, proptest::collection::vec(subgroup, 0..3), dtype).prop_flat_map(|(dims, subgroups, dtype)| {
        let (dims, tiles): (Vec<usize>, Vec<usize>) = dims.into_iter().unzip();
        let count = tiles.iter().product::<usize>() * subgroups.iter().map(|&(_, size)| size).product::<usize>();
        Just((0..count as u32).collect::<Vec<_>>()).prop_shuffle().prop_map(move |devices| Case {
            dims: dims.clone(),
            tiles: tiles.clone(),
            subgroups: subgroups.clone(),
            devices,
            dtype,
        })
    })
}

proptest! {
    #[test]
    fn shards_are_those_of_the_reference(case in cases()) {
        let (sharding, global) = (case.sharding(), case.global());
        let global_dims = global.dims_i64();
        let shard_dims = case.shard_dims();
        prop_assert_eq!(
            sharding.shard_shape(&global_dims).unwrap(),
            shard_dims.iter().map(|&dim| dim as i64).collect::<Vec<_>>()
        );
        for device in 0..case.devices.len() {
            let shard = sharding.shard(&global, device).unwrap();
            prop_assert_eq!(shard.dims(), &shard_dims[..]);
            prop_assert_eq!(shard.data(), &case.reference(device)[..], "{} on device {}", sharding, device);
            let tile = case.tile(device);
            let expected: Vec<Range<i64>> = (0..tile.len())
                .map(|dim| {
                    let bound = |tile: usize| (tile * shard_dims[dim]).min(case.dims[dim]) as i64;
                    bound(tile[dim])..bound(tile[dim] + 1)
                })
                .collect();
            prop_assert_eq!(sharding.index_range(&global_dims, device).unwrap(), Some(expected));
        }
    }

    #[test]
    fn shards_make_up_the_array(case in cases(), start in 0usize..100) {
        let (sharding, global) = (case.sharding(), case.global());
        let count = case.devices.len();
        let shards = |devices: Vec<usize>| -> Vec<_> {
            devices.into_iter().map(|device| (device, sharding.shard(&global, device).unwrap().into_owned())).collect()
        };
        let assemble = |shards| sharding.assemble(&global.dims_i64(), case.dtype, shards);

        let rotated = shards((0..count).map(|device| (device + start) % count).collect());
        prop_assert_eq!(&assemble(rotated).unwrap(), &global);
        let owners = sharding.owners().unwrap();
        prop_assert!(owners.is_sorted());
        prop_assert_eq!(&assemble(shards(owners.clone())).unwrap(), &global);

        let left_out = start % owners.len();
        let mut some = owners.clone();
        let missing = some.remove(left_out);
        let range = sharding.index_range(&global.dims_i64(), missing).unwrap().unwrap();
        let result = assemble(shards(some));
        if range.iter().any(|range| range.is_empty()) {
            prop_assert_eq!(&result.unwrap(), &global);
        } else {
            let is_missing = matches!(result, Err(ShardingError::MissingShards { .. }));
            prop_assert!(is_missing);
        }
        let mut twice = owners.clone();
        twice.push(owners[left_out]);
        let result = assemble(shards(twice));
        let is_duplicate = matches!(result, Err(ShardingError::DuplicateShard { .. }));
        prop_assert!(is_duplicate);
    }

    #[test]
    fn iotas_and_lists_say_the_same(
        dims in proptest::collection::vec(1usize..5, 1..5),
        seed in any::<u64>(),
    ) {
        let mut permutation: Vec<i32> = (0..dims.len() as i32).collect();
        permutation.sort_by_key(|&dim| seed.rotate_left(13 * dim as u32).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let count: usize = dims.iter().product();
        let mut devices = Vec::new();
        for position in 0..count {
            let (mut rest, mut device) = (position, 0);
            for &dim in permutation.iter().rev() {
                let stride: usize = dims[dim as usize + 1..].iter().product();
                device += rest % dims[dim as usize] * stride;
                rest /= dims[dim as usize];
            }
            devices.push(device as i64);
        }
        let list = proto::OpSharding {
            r#type: Type::OTHER.into(),
            tile_assignment_dimensions: vec![count as i64],
            ..Default::default()
        };
        let mut iota = list.clone();
        iota.iota_reshape_dims = dims.iter().map(|&dim| dim as i64).collect();
        iota.iota_transpose_perm = permutation;
        let list = proto::OpSharding { tile_assignment_devices: devices, ..list };
        let (iota, list) = (HloSharding::from_proto(&iota).unwrap(), HloSharding::from_proto(&list).unwrap());
        prop_assert_eq!(&iota, &list);
        let shown = iota.to_string();
        prop_assert!(count == 1 || shown.contains("<=["), "{}", shown);
    }

    #[test]
    fn random_protobufs_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60), named in any::<bool>()) {
        let bytes = if named { [&[0x72, bytes.len() as u8], &bytes[..]].concat() } else { bytes };
        if let Ok(proto) = proto::OpSharding::decode_from_slice(&bytes)
            && let Ok(sharding) = HloSharding::from_proto(&proto)
        {
            let _ = (sharding.to_string(), sharding.index_range(&[4, 4], 1), sharding.owners());
        }
    }
}

#[test]
fn shardings_without_tiles_place_arrays_too() {
    let global = HostArray::new(DType::U8, vec![3], vec![1, 2, 3]).unwrap();
    let maximal = HloSharding::Maximal { device: 2 };
    assert_eq!(maximal.index_range(&[3], 2).unwrap(), Some(vec![Range { start: 0, end: 3 }]));
    assert_eq!(maximal.index_range(&[3], 0).unwrap(), None);
    assert_eq!(maximal.shard(&global, 2).unwrap().data(), [1, 2, 3]);
    assert_eq!(maximal.shard(&global, 0).unwrap().data(), [0, 0, 0]);
    let shards = [1, 2, 0].map(|device| (device, maximal.shard(&global, device).unwrap().into_owned()));
    assert_eq!(maximal.assemble(&[3], DType::U8, shards).unwrap(), global);
    assert_eq!(maximal.owners().unwrap(), [2]);

    for sharding in [HloSharding::Replicated, HloSharding::Manual] {
        assert_eq!(sharding.shard_shape(&[3]).unwrap(), [3]);
        assert_eq!(sharding.shard(&global, 6).unwrap().data(), [1, 2, 3]);
        assert_eq!(sharding.assemble(&[3], DType::U8, [(5, &global)]).unwrap(), global);
        assert_eq!((sharding.owners().unwrap(), sharding.num_devices()), (vec![0], None));
    }
}

#[test]
fn scalars_have_shards() {
    let sharding = HloSharding::tiled(vec![], &[(Subgroup::Manual, 2), (Subgroup::Replicated, 2)], vec![0, 1, 2, 3]);
    let scalar = HostArray::new(DType::U8, vec![], vec![7]).unwrap();
    assert_eq!(sharding.unwrap().shard(&scalar, 3).unwrap().data(), [7]);
}

#[test]
fn mistakes_are_explained() {
    let rows = from_hex("08031a0202044a0108520100");
    let unreduced = from_hex("721e120e0a050a016110020a050a016210041a040a0010011a0210012a020801");
    let shard = HostArray::zeros(DType::F32, &[2, 2]).unwrap();
    let small = HostArray::zeros(DType::F32, &[2, 1]).unwrap();
    let assemble = |shards: Vec<(usize, &HostArray)>| rows.assemble(&[4, 8], DType::F32, shards).unwrap_err();
    let tuple = HloSharding::Tuple(vec![HloSharding::Replicated, rows.clone(), HloSharding::Maximal { device: 9 }]);
    let proto = |build: &dyn Fn(&mut proto::OpSharding)| {
        let mut proto = proto::OpSharding { r#type: Type::OTHER.into(), ..Default::default() };
        build(&mut proto);
        HloSharding::from_proto(&proto).unwrap_err()
    };
    let errors = [
        rows.check_num_devices(4).unwrap_err(),
        tuple.leaves()[2].check_num_devices(8).unwrap_err(),
        tuple.check_num_devices(16).unwrap_err(),
        rows.shard_shape(&[4]).unwrap_err(),
        rows.shard_shape(&[4, -1]).unwrap_err(),
        rows.index_range(&[4, 8], 8).unwrap_err(),
        tuple.shard_shape(&[4]).unwrap_err(),
        HloSharding::Unknown.index_range(&[4], 0).unwrap_err(),
        unreduced.index_range(&[4, 4], 0).unwrap_err(),
        assemble(vec![]),
        assemble(vec![(0, &shard), (1, &shard), (2, &shard), (4, &shard), (5, &shard), (7, &shard)]),
        assemble(vec![(0, &shard), (1, &shard), (0, &shard)]),
        assemble(vec![(0, &shard), (1, &small)]),
        assemble(vec![(8, &shard)]),
        proto(&|_| {}),
        proto(&|p| p.tile_assignment_dimensions = vec![2, 0]),
        proto(&|p| {
            p.tile_assignment_dimensions = vec![2, 2];
            p.tile_assignment_devices = vec![0, 1, 2];
        }),
        proto(&|p| {
            p.tile_assignment_dimensions = vec![2, 2];
            p.tile_assignment_devices = vec![0, 1, 2, 2];
        }),
        proto(&|p| {
            p.tile_assignment_dimensions = vec![2];
            p.tile_assignment_devices = vec![0, -1];
        }),
        proto(&|p| {
            p.tile_assignment_dimensions = vec![i64::MAX, i64::MAX];
            p.iota_reshape_dims = vec![i64::MAX, i64::MAX];
            p.iota_transpose_perm = vec![0, 1];
        }),
        proto(&|p| {
            p.tile_assignment_dimensions = vec![4];
            p.iota_reshape_dims = vec![2, 2];
            p.iota_transpose_perm = vec![1, 1];
        }),
        proto(&|p| p.r#type = Type::MAXIMAL.into()),
        proto(&|p| p.r#type = 77.into()),
        proto(&|p| {
            p.r#type = Type::TUPLE.into();
            p.tuple_shardings = vec![p.clone()];
        }),
    ];
    let text: String = errors.iter().map(|error| format!("{error}\n")).collect();
    insta::assert_snapshot!(text, @r"
    the sharding {devices=[2,4]<=[8]} uses devices 0..8, the program has 4 devices
    the sharding {maximal device=9} uses device 9, the program has 8 devices
    the sharding {devices=[2,4]<=[8]} uses devices 0..8, the program has 16 devices
    the sharding {devices=[2,4]<=[8]} tiles 2 dimensions, the array [4] has 1
    the array [4,-1] has a dimension without a size
    device 8 is none of the 8 devices of the sharding {devices=[2,4]<=[8]}
    the sharding {{replicated}, {devices=[2,4]<=[8]}, {maximal device=9}} does not say where the elements of an array lie: it is that of a tuple, whose leaves have one each
    the sharding {unknown} does not say where the elements of an array lie: it was left to the partitioner
    the sharding {devices=[2,1,4]<=[8] last_tile_dims={unreduced}} does not say where the elements of an array lie: each device holds a summand
    no shard holds [0:2, 0:2] [0:2, 2:4] [0:2, 4:6] [0:2, 6:8] and 4 more of f32[4,8], sharded {devices=[2,4]<=[8]}
    no shard holds [0:2, 6:8] [2:4, 4:6] of f32[4,8], sharded {devices=[2,4]<=[8]}
    the shard of device 0 is there twice
    the shard of device 1 is f32[2,1], the sharding {devices=[2,4]<=[8]} of f32[4,8] asks for f32[2,2]
    device 8 is none of the 8 devices of the sharding {devices=[2,4]<=[8]}
    invalid sharding: it has no tiles
    invalid sharding: a grid of 2 × 0 devices
    invalid sharding: 2 × 2 tiles need 4 devices, 3 are listed
    invalid sharding: device 2 is listed twice
    invalid sharding: there is no device -1
    invalid sharding: it uses 9223372036854775807 × 9223372036854775807 devices, more than 1048576
    invalid sharding: <=[2,2]T(1,1) orders other dimensions than there are
    invalid sharding: 0 devices where one holds the whole array
    invalid sharding: unknown type 77
    invalid sharding: a tuple inside the sharding of a tuple
    ");
}

#[test]
fn meshes_that_make_no_sense_are_explained() {
    use proto::axis_ref_proto::SubAxis;
    use proto::mesh_proto::MeshAxis;
    use proto::named_sharding_proto::DimensionSharding;

    let axis = |index: i64, part: Option<(i64, i64)>| {
        let part = part.map(|(pre_size, size)| SubAxis { pre_size, size, ..Default::default() });
        proto::AxisRefProto { mesh_axis_index: index, sub_axis_info: part.into(), ..Default::default() }
    };
    let sharding = |axes: Vec<proto::AxisRefProto>, build: &dyn Fn(&mut proto::MeshProto)| {
        let sized = |name: &str, size| MeshAxis { name: name.to_owned(), size, ..Default::default() };
        let mut mesh = proto::MeshProto { axes: vec![sized("x", 2), sized("y", 12)], ..Default::default() };
        build(&mut mesh);
        let named = proto::NamedShardingProto {
            mesh: mesh.into(),
            dim_shardings: vec![DimensionSharding { axes, ..Default::default() }],
            ..Default::default()
        };
        let proto = proto::OpSharding { named_sharding: named.into(), ..Default::default() };
        HloSharding::from_proto(&proto).unwrap_err()
    };
    let errors = [
        sharding(vec![axis(2, None)], &|_| {}),
        sharding(vec![axis(-1, None)], &|_| {}),
        sharding(vec![axis(0, None), axis(0, None)], &|_| {}),
        sharding(vec![axis(1, Some((1, 5)))], &|_| {}),
        sharding(vec![axis(1, Some((0, 4)))], &|_| {}),
        sharding(vec![axis(1, Some((i64::MAX, 4)))], &|_| {}),
        sharding(vec![axis(1, Some((1, 4))), axis(1, Some((1, 6)))], &|_| {}),
        sharding(vec![axis(1, None), axis(1, Some((2, 2)))], &|_| {}),
        sharding(vec![], &|mesh| mesh.axes[0].size = 0),
        sharding(vec![], &|mesh| mesh.axes[0].size = i64::MAX),
        sharding(vec![], &|mesh| mesh.device_ids = vec![0, 1]),
        sharding(vec![axis(0, None)], &|mesh| mesh.device_ids = (1..25).collect()),
        sharding(vec![], &|mesh| {
            mesh.axes.clear();
            mesh.device_ids = vec![0, 1];
        }),
    ];
    let text: String = errors.iter().map(|error| format!("{error}\n")).collect();
    insta::assert_snapshot!(text, @r"
    invalid sharding: axis 2 of a mesh of 2 axes
    invalid sharding: axis -1 of a mesh of 2 axes
    invalid sharding: it uses axis 'x' twice
    invalid sharding: sub-axis 'y':(1)5 of an axis of 12
    invalid sharding: sub-axis 'y':(0)4 of an axis of 12
    invalid sharding: sub-axis 'y':(9223372036854775807)4 of an axis of 12
    invalid sharding: sub-axes of 'y' that overlap
    invalid sharding: it uses axis 'y' twice
    invalid sharding: a grid of 0 × 12 devices
    invalid sharding: it uses 9223372036854775807 × 12 devices, more than 1048576
    invalid sharding: a mesh of 24 devices that lists 2
    invalid sharding: device 24 is listed among devices 0..24
    invalid sharding: a mesh without axes and 2 devices
    ");
}
