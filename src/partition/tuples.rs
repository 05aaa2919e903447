//! Collectives with several results, as XLA's partitioner wants them.

use super::counts::{is_for_shardy, is_partitioned};
use crate::hlo::HloModule;
use crate::hlo::groups::is_collective;
use crate::hlo::shape::{is_tuple, leaves};
use crate::mesh::HloSharding;

/// Says of the results of collectives that they are whole on each device, where there are several of them and nothing is said.
/// XLA's propagation gives them the sharding of an operand, which is none of a tuple's, and its partitioner aborts.
///
/// Only collectives between replicas are meant: those between partitions, which have channels, stand in manual regions.
pub fn shard_tuples(module: &mut HloModule, partitions: i64) {
    if partitions < 2 || is_partitioned(module) || is_for_shardy(&module.proto) {
        return;
    }
    for instruction in module.proto.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        if is_collective(instruction)
            && is_tuple(&instruction.shape)
            && instruction.channel_id == 0
            && !instruction.sharding.is_set()
        {
            let parts = vec![HloSharding::Replicated; leaves(&instruction.shape).len()];
            instruction.sharding = HloSharding::Tuple(parts).to_proto().into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::shard_tuples;
    use crate::hlo::parse;

    #[test]
    fn tuples_between_replicas_are_whole() {
        let text = "HloModule m, replica_count=2, num_partitions=2
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a, b) }
ENTRY e {
  x = f32[4] parameter(0), sharding={devices=[2]<=[2]}
  one = f32[4] all-reduce(x), replica_groups={}, to_apply=add
  given = (f32[4], f32[4]) all-reduce(x, one), replica_groups={}, to_apply=add, sharding={{manual}, {manual}}
  manual = (f32[4], f32[4]) all-reduce(x, one), channel_id=1, replica_groups={}, to_apply=add
  ROOT open = (f32[4], f32[4]) all-reduce(x, one), replica_groups={}, to_apply=add
}";
        let mut module = parse(text, "m.hlo").unwrap();
        let before = module.proto.clone();
        shard_tuples(&mut module, 2);
        let instructions = |module: &crate::proto::HloModuleProto| module.computations[1].instructions.clone();
        let changed =
            instructions(&module.proto).into_iter().zip(instructions(&before)).filter(|(now, then)| now != then);
        let changed: Vec<_> =
            changed.map(|(now, _)| (now.name.to_string(), now.sharding.tuple_shardings.len())).collect();
        assert_eq!(changed, [("open".to_owned(), 2)]);
    }
}
