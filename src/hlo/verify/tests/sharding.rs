//! Shardings against shapes and partitions.

use super::*;

fn with(sharding: &str) -> HloModule {
    module(&format!("ROOT r = f32[2,4] negate(m), sharding={{{sharding}}}"))
}

#[test]
fn good_shardings_pass() {
    for sharding in [
        "replicated",
        "manual",
        "maximal device=3",
        "devices=[2,2]<=[4]",
        "devices=[2,2]0,2,1,3",
        "devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate",
        "devices=[1,1,4]<=[4] last_tile_dims={manual}",
        "mesh['a'=2,'b'=2], [{'a'}, {}]",
    ] {
        assert_eq!(verify(&with(sharding), 2, 4), Ok(()), "{sharding}");
    }
    // With one partition, shardings are left over from elsewhere.
    assert_eq!(verify(&with("devices=[2,4]<=[8]"), 1, 1), Ok(()));
}

#[test]
fn shardings_must_fit() {
    let cases = [
        "maximal device=4",
        "devices=[4]<=[4]",
        "devices=[2,4]<=[8]",
        "devices=[2,2]0,1,2,4",
        "devices=[2,2]0,1,1,2",
        "{replicated}, {replicated}",
        "mesh['a'=2,'b'=4], [{'a'}, {}]",
        "mesh['a'=2,'b'=2], [{'a'}, {'a'}]",
        "mesh['a'=4], [{'a'}]",
    ];
    let case = |case: &str| format!("{case}\n    {}", message_of(&with(case)));
    insta::assert_snapshot!(cases.map(case).join("\n"), @r#"
    maximal device=4
        its sharding names the device 4, and the program has 4 partition(s)
    devices=[4]<=[4]
        its sharding tiles 1 dimensions, and f32[2,4] has 2
    devices=[2,4]<=[8]
        its sharding is for 8 devices, and the program has 4 partition(s)
    devices=[2,2]0,1,2,4
        its sharding names the device 4, and the program has 4 partition(s)
    devices=[2,2]0,1,1,2
        its sharding names the device 1 twice
    {replicated}, {replicated}
        its sharding is that of a tuple, and its shape is f32[2,4]
    mesh['a'=2,'b'=4], [{'a'}, {}]
        its sharding is for 8 devices, and the program has 4 partition(s)
    mesh['a'=2,'b'=2], [{'a'}, {'a'}]
        parts of the axis 'a' are used twice or do not fit
    mesh['a'=4], [{'a'}]
        its sharding tiles 1 dimensions, and f32[2,4] has 2
    "#);
    let tuple = "ROOT r = (f32[4], f32[4]) tuple(x, x), sharding=";
    insta::assert_snapshot!(
        [message(&format!("{tuple}{{{{replicated}}, {{replicated}}, {{replicated}}}}"))].join("\n"),
        @"its sharding has 3 parts, and (f32[4], f32[4]) has 2 arrays"
    );
}

/// XLA ends the process on each of these.
#[test]
fn damaged_meshes_are_refused() {
    let damage = |damage: fn(&mut crate::proto::NamedShardingProto)| {
        let mut module = with("mesh['a'=2,'b'=2], [{'a'}, {}]");
        let root = module.proto.computations.last_mut().unwrap().instructions.last_mut().unwrap();
        damage(root.sharding.get_or_insert_default().named_sharding.get_or_insert_default());
        message_of(&module)
    };
    let messages = [
        damage(|named| named.mesh.get_or_insert_default().axes[0].size = 0),
        damage(|named| named.mesh.get_or_insert_default().axes[0].name = "b".to_owned()),
        damage(|named| named.mesh.get_or_insert_default().device_ids = vec![0, 1, 2, 3]),
        damage(|named| named.mesh.get_or_insert_default().device_ids = vec![3, 3, 2, 1]),
        damage(|named| named.dim_shardings[0].axes[0].mesh_axis_index = 2),
        damage(|named| named.dim_shardings[0].axes[0].sub_axis_info.get_or_insert_default().size = 3),
        damage(|named| named.replicated_axes = named.dim_shardings[0].axes.clone()),
    ];
    insta::assert_snapshot!(messages.join("\n"), @r#"
    its sharding has a grid of [0,2] devices
    the mesh has two axes 'b'
    device_ids=[0,1,2,3] are the mesh's own order and must be left out
    device_ids=[3,3,2,1] are no order of the mesh's 4 devices
    mesh axis 2 must lie below the rank 2
    (0)3 is no part of the axis 'a' of 2
    parts of the axis 'a' are used twice or do not fit
    "#);
}
