//! Meshes and specs against what JAX makes of them (`jax.sharding.NamedSharding`, 0.10.2).

use super::*;

fn mesh() -> Mesh {
    Mesh::new(&[("data", 2), ("model", 4)]).unwrap()
}

#[test]
fn specs_become_xlas_shardings() {
    for (spec, rank, expected) in [
        (PartitionSpec::from(("data", "model")), 2, "{devices=[2,4]<=[8]}"),
        (("model", "data").into(), 2, "{devices=[4,2]<=[2,4]T(1,0)}"),
        (("data", None).into(), 2, "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"),
        ((None, "model").into(), 2, "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"),
        ((["data", "model"],).into(), 3, "{devices=[8,1,1]<=[8]}"),
        ((["model", "data"],).into(), 1, "{devices=[8]<=[2,4]T(1,0)}"),
        (().into(), 2, "{replicated}"),
    ] {
        assert_eq!(mesh().sharding(&spec).unwrap().to_hlo(rank).unwrap().to_string(), expected, "{spec}");
    }
    let reversed = Mesh::with_devices(&[("x", 4)], vec![3, 2, 1, 0]).unwrap();
    assert_eq!(reversed.sharding(("x",)).unwrap().to_hlo(1).unwrap().to_string(), "{devices=[4]3,2,1,0}");
    assert_eq!(reversed.sharding(("x",)).unwrap().index_ranges(&[8], 3).unwrap().first(), Some(&(0..2)));
}

#[test]
fn groups_differ_in_their_axes_only() {
    assert_eq!(mesh().groups(&["data"]).unwrap(), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!(mesh().groups(&["model"]).unwrap(), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(mesh().groups(&["model", "data"]).unwrap(), [[0, 4, 1, 5, 2, 6, 3, 7]]);
}

#[test]
fn what_does_not_fit_is_named() {
    let error = |result: Result<NamedSharding, SpecError>| result.unwrap_err().to_string();
    insta::assert_snapshot!(error(mesh().sharding(("batch", None))), @"axis batch of P('batch', None) is not found in Mesh('data': 2, 'model': 4)");
    insta::assert_snapshot!(error(mesh().sharding(("data", "data"))), @"P('data', 'data') uses axis 'data' twice: an axis can cut one dimension only");
    insta::assert_snapshot!(Mesh::new(&[]).unwrap_err(), @"a mesh has at least one axis");
    insta::assert_snapshot!(Mesh::new(&[("x", 2), ("x", 2)]).unwrap_err(), @"the mesh has two axes 'x'");
    insta::assert_snapshot!(Mesh::with_devices(&[("x", 2)], vec![1, 1]).unwrap_err(), @"a mesh of 2 devices holds each of 0..2 once, and [1, 1] were given");
    insta::assert_snapshot!(Mesh::new(&[("x", 2), ("y", 0)]).unwrap_err(), @"invalid sharding: a grid of 2 × 0 devices");

    let rows = mesh().sharding(("model",)).unwrap();
    insta::assert_snapshot!(rows.shard_shape(&[6, 3]).unwrap_err(), @"NamedSharding(Mesh('data': 2, 'model': 4), P('model',)) cuts dimension 0 into 4 equal parts, so its size should be divisible by 4, but it is 6 (full shape: (6, 3))");
    insta::assert_snapshot!(rows.shard_shape(&[]).unwrap_err(), @"P('model',) has 1 entries, and an array () has 0 dimensions");
    insta::assert_snapshot!(rows.index_ranges(&[8], 8).unwrap_err(), @"device 8 is none of Mesh('data': 2, 'model': 4)");
    insta::assert_snapshot!(mesh().groups(&["x"]).unwrap_err(), @"axis x is not found in Mesh('data': 2, 'model': 4)");
}
