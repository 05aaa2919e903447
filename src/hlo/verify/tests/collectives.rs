//! Collectives against the devices that are there.

use super::*;

#[test]
fn good_collectives_pass() {
    passes(&[
        "ROOT r = f32[4] all-reduce(x), channel_id=1, use_global_device_ids=true, replica_groups=[2,4]<=[8], to_apply=add",
        "ROOT r = f32[4] all-reduce(x), channel_id=1, use_global_device_ids=true, replica_groups={{7,1},{5,2,6,3,0,4}}, to_apply=add",
        "ROOT r = f32[8] all-gather(x), replica_groups={{1,0}}, dimensions={0}",
        "ROOT r = (f32[8], f32[4,4]) all-gather(x, m), replica_groups={{0,1}}, dimensions={0}",
        "ROOT r = f32[1] reduce-scatter(x), channel_id=1, replica_groups={{0},{1}}, dimensions={0}, to_apply=add",
        "ROOT r = f32[4] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{3,0}}",
        "ROOT r = (f32[4], f32[4]) all-to-all(x, x), replica_groups={{0,1}}",
        "ROOT r = f32[4] all-to-all(x), channel_id=1, replica_groups={{0,1},{2,3}}, dimensions={0}",
        "ROOT r = f32[4] collective-broadcast(x), replica_groups={{0,1}}",
        "s = f32[4] all-reduce-start(x), replica_groups={{0,1}}, to_apply=add\n ROOT r = f32[4] all-reduce-done(s)",
        "s = (f32[4], f32[8]) all-gather-start(x), replica_groups={{0,1}}, dimensions={0}\n ROOT r = f32[8] all-gather-done(s)",
    ]);
}

#[test]
fn collectives_must_fit_the_devices() {
    insta::assert_snapshot!(messages([
        "ROOT r = f32[4] all-reduce(x), replica_groups={{0,2}}, to_apply=add",
        "ROOT r = f32[4] all-reduce(x), replica_groups={{0,0}}, to_apply=add",
        "ROOT r = f32[4] all-reduce(x), replica_groups={{0}}, to_apply=add",
        "ROOT r = f32[4] all-reduce(x), replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add",
        "ROOT r = f32[4] all-reduce(x), replica_groups={{0,1}}, to_apply=twice",
        "ROOT r = f32[4] all-reduce(x), replica_groups=[1,4]<=[4], to_apply=add",
        "ROOT r = f32[5] all-reduce(x), replica_groups={{0,1}}, to_apply=add",
        "ROOT r = (f32[4], f32[4]) all-reduce(x, m), replica_groups={{0,1}}, to_apply=add",
        "ROOT r = f32[9] all-gather(x), replica_groups={{0,1}}, dimensions={0}",
        "ROOT r = f32[8] all-gather(x), replica_groups={{0,1}}, dimensions={1}",
        "ROOT r = f32[12] all-gather(x), channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2},{3,4,5,6,7}}, dimensions={0}",
        "ROOT r = f32[8] all-gather-start(x), replica_groups={{0,1}}, dimensions={0}",
        "ROOT r = f32[1] reduce-scatter(zero), replica_groups={{0,1}}, dimensions={0}, to_apply=add",
        "ROOT r = f32[1,4] reduce-scatter(m), channel_id=1, replica_groups={{0,1}}, dimensions={0}, to_apply=add",
        "ROOT r = f32[2,4] reduce-scatter(m), replica_groups={{0,1}}, dimensions={0}, to_apply=add",
        "ROOT r = (f32[4], f32[4]) all-to-all(x, x), channel_id=1, replica_groups={{0,1,2,3}}",
        "ROOT r = (f32[4], f32[2,4]) all-to-all(x, m), replica_groups={{0,1}}",
        "t = f32[3] slice(x), slice={[0:3]}\n ROOT r = f32[3] all-to-all(t), replica_groups={{0,1}}, dimensions={0}",
        "ROOT r = f32[4] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,4}}",
        "ROOT r = f32[4] collective-permute(x), source_target_pairs={{0,1},{1,1}}",
        "ROOT r = f32[4] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{0,2}}",
        "ROOT r = f32[5] collective-permute(x), source_target_pairs={{0,1}}",
        "ROOT r = f32[4] collective-permute-start(x), source_target_pairs={{0,1}}",
        "ROOT r = f32[4] ragged-all-to-all(x, x, i, i, i), replica_groups={{0,1}}",
    ]), @r#"
    ROOT r = f32[4] all-reduce(x), replica_groups={{0,2}}, to_apply=add
        replica 2 does not exist: the program runs as 2 replica(s) × 4 partition(s). If the program was made for more, say so with --num-replicas or --num-partitions
    ROOT r = f32[4] all-reduce(x), replica_groups={{0,0}}, to_apply=add
        device 0 stands in the replica groups twice
    ROOT r = f32[4] all-reduce(x), replica_groups={{0}}, to_apply=add
        device 4 of 8 stands in no replica group
    ROOT r = f32[4] all-reduce(x), replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
        use_global_device_ids needs a channel_id
    ROOT r = f32[4] all-reduce(x), replica_groups={{0,1}}, to_apply=twice
        'twice' has 1 parameters, and 2 are passed
    ROOT r = f32[4] all-reduce(x), replica_groups=[1,4]<=[4], to_apply=add
        replica 2 does not exist: the program runs as 2 replica(s) × 4 partition(s). If the program was made for more, say so with --num-replicas or --num-partitions
    ROOT r = f32[5] all-reduce(x), replica_groups={{0,1}}, to_apply=add
        it makes f32[5] of f32[4], and the result's dimensions must be [4]
    ROOT r = (f32[4], f32[4]) all-reduce(x, m), replica_groups={{0,1}}, to_apply=add
        it makes f32[4] of f32[2,4], and the result's dimensions must be [2,4]
    ROOT r = f32[9] all-gather(x), replica_groups={{0,1}}, dimensions={0}
        it makes f32[9] of f32[4], and the result's dimensions must be [8]
    ROOT r = f32[8] all-gather(x), replica_groups={{0,1}}, dimensions={1}
        dimension 1 must lie below the rank 1
    ROOT r = f32[12] all-gather(x), channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2},{3,4,5,6,7}}, dimensions={0}
        its groups have different sizes, which only all-reduce can have
    ROOT r = f32[8] all-gather-start(x), replica_groups={{0,1}}, dimensions={0}
        its shape is f32[8], and it must be a tuple of the operands and the results
    ROOT r = f32[1] reduce-scatter(zero), replica_groups={{0,1}}, dimensions={0}, to_apply=add
        dimension 0 must lie below the rank 0
    ROOT r = f32[1,4] reduce-scatter(m), channel_id=1, replica_groups={{0,1}}, dimensions={0}, to_apply=add
        dimension 0 of size 2 cannot be split over its groups
    ROOT r = f32[2,4] reduce-scatter(m), replica_groups={{0,1}}, dimensions={0}, to_apply=add
        it makes f32[2,4] of f32[2,4], and the result's dimensions must be [1,4]
    ROOT r = (f32[4], f32[4]) all-to-all(x, x), channel_id=1, replica_groups={{0,1,2,3}}
        it has 2 operands for groups of 4 devices, one for each is needed
    ROOT r = (f32[4], f32[2,4]) all-to-all(x, m), replica_groups={{0,1}}
        operand 'm' has the shape f32[2,4], and it must be f32[4]
    t = f32[3] slice(x), slice={[0:3]}
     ROOT r = f32[3] all-to-all(t), replica_groups={{0,1}}, dimensions={0}
        dimension 0 of size 3 cannot be split over its groups
    ROOT r = f32[4] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,4}}
        target 4 is no partition: the program runs as 2 replica(s) × 4 partition(s)
    ROOT r = f32[4] collective-permute(x), source_target_pairs={{0,1},{1,1}}
        replica 1 stands there as target twice
    ROOT r = f32[4] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{0,2}}
        partition 0 stands there as source twice
    ROOT r = f32[5] collective-permute(x), source_target_pairs={{0,1}}
        it makes f32[5] of f32[4], and the result's dimensions must be [4]
    ROOT r = f32[4] collective-permute-start(x), source_target_pairs={{0,1}}
        its shape is f32[4], and it must be a tuple of the operands and the results
    ROOT r = f32[4] ragged-all-to-all(x, x, i, i, i), replica_groups={{0,1}}
        it has 5 operands instead of 6
    "#);
}
