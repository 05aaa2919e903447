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
    insta::assert_snapshot!(Mesh::with_devices(&[("x", 2)], vec![1, 1]).unwrap_err(), @"a mesh of 2 has places for 2 devices, each of them once, and [1, 1] were given");
    insta::assert_snapshot!(Mesh::new(&[("x", 2), ("y", 0)]).unwrap_err(), @"invalid sharding: a grid of 2 × 0 devices");

    let rows = mesh().sharding(("model",)).unwrap();
    insta::assert_snapshot!(rows.shard_shape(&[6, 3]).unwrap_err(), @"NamedSharding(Mesh('data': 2, 'model': 4), P('model',)) cuts dimension 0 into 4 equal parts, so its size should be divisible by 4, but it is 6 (full shape: (6, 3))");
    insta::assert_snapshot!(rows.shard_shape(&[]).unwrap_err(), @"P('model',) has 1 entries, and an array () has 0 dimensions");
    insta::assert_snapshot!(rows.index_ranges(&[8], 8).unwrap_err(), @"device 8 is none of Mesh('data': 2, 'model': 4)");
    insta::assert_snapshot!(mesh().groups(&["x"]).unwrap_err(), @"axis x is not found in Mesh('data': 2, 'model': 4)");
}

/// `mesh_utils.create_hybrid_device_mesh` of the same shapes, where JAX names no axes.
#[test]
fn hybrid_meshes_have_slices_outermost() {
    let slices = [0, 0, 0, 0, 1, 1, 1, 1];
    let shared = Mesh::hybrid(&[("data", 2), ("model", 2)], &[("data", 2), ("model", 1)], &slices).unwrap();
    assert_eq!(shared, Mesh::new(&[("data", 4), ("model", 2)]).unwrap());
    let inner = Mesh::hybrid(&[("data", 2), ("model", 2)], &[("model", 2)], &slices).unwrap();
    assert_eq!(inner.to_string(), "Mesh('data': 2, 'model': 4)");
    assert_eq!(inner.devices(), [0, 1, 4, 5, 2, 3, 6, 7]);
    let mixed = Mesh::hybrid(&[("model", 4)], &[("replica", 2)], &[7, 3, 7, 3, 7, 3, 7, 3]).unwrap();
    assert_eq!(mixed.groups(&["model"]).unwrap(), [[1, 3, 5, 7], [0, 2, 4, 6]]);

    let error = |ici: &[(&str, usize)], dcn: &[(&str, usize)], slices: &[u32]| {
        Mesh::hybrid(ici, dcn, slices).unwrap_err().to_string()
    };
    insta::assert_snapshot!(error(&[("x", 4)], &[("y", 3)], &slices), @"number of slices 2 must equal the product of dcn_mesh_shape (3)");
    insta::assert_snapshot!(error(&[("x", 2), ("z", 1)], &[("y", 2)], &slices), @"number of devices 4 of slice 0 must equal the product of ici_mesh_shape (2, 1)");
    insta::assert_snapshot!(error(&[("x", 2)], &[("y", 2)], &[0, 0, 1]), @"number of devices 1 of slice 1 must equal the product of ici_mesh_shape (2)");
    insta::assert_snapshot!(error(&[("x", 2), ("x", 2)], &[("y", 2)], &slices), @"the mesh has two axes 'x'");
    insta::assert_snapshot!(error(&[("x", 4)], &[("y", 2), ("y", 1)], &slices), @"the mesh has two axes 'y'");
    insta::assert_snapshot!(error(&[], &[], &[0]), @"a mesh has at least one axis");
}

/// As JAX 0.10.2 writes them (`jax.jit(…).lower(…).as_text()`).
#[test]
fn shardings_for_shardy_are_those_of_jax() {
    assert_eq!(mesh().to_shardy(), r#"<["data"=2, "model"=4]>"#);
    let shardy = |spec: PartitionSpec, rank| mesh().sharding(&spec).unwrap().to_shardy("mesh", rank);
    assert_eq!(shardy(("data", None).into(), 2).unwrap(), r#"#sdy.sharding<@mesh, [{"data"}, {}]>"#);
    assert_eq!(
        shardy((None, ["model", "data"]).into(), 2).unwrap(),
        r#"#sdy.sharding<@mesh, [{}, {"model", "data"}]>"#
    );
    assert_eq!(shardy(().into(), 0).unwrap(), "#sdy.sharding<@mesh, []>");
    assert_eq!(shardy(("data",).into(), 3).unwrap(), r#"#sdy.sharding<@mesh, [{"data"}, {}, {}]>"#);
    let reversed = Mesh::with_devices(&[("x\"", 4)], vec![3, 2, 1, 0]).unwrap();
    assert_eq!(reversed.to_shardy(), r#"<["x\""=4], device_ids=[3, 2, 1, 0]>"#);
    insta::assert_snapshot!(shardy(("data", None).into(), 1).unwrap_err(), @"P('data', None) has 2 entries, and an array of 1 dimensions has 1 dimensions");
}
