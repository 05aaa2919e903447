//! Programs that are partitioned, lowered and run over several clients give what they give on one.

mod common;

use std::path::Path;

use common::bridged::{Case, Results};
use spmd_run::collective::{ArraySpec, CollectiveKind};
use spmd_run::dtype::DType;
use spmd_run::hlo::{self, Program};
use spmd_run::host_array::{Fill, HostArray};
use spmd_run::partition;

/// One array per result and device.
fn arrays(results: &Results, like: &[ArraySpec]) -> Vec<HostArray> {
    let arrays = results.iter().flat_map(|device| device.iter().zip(like));
    arrays.map(|(bytes, like)| HostArray::new(like.dtype, like.dims.clone(), bytes.clone()).unwrap()).collect()
}

/// Both are the same but for the order in which floats are added.
fn assert_close(found: &Results, expected: &Results, like: &[ArraySpec], what: &str) {
    for (found, expected) in arrays(found, like).iter().zip(&arrays(expected, like)) {
        let tolerance = match found.dtype() {
            DType::F32 => 1e-5,
            DType::BF16 | DType::F16 => 2e-2,
            _ => 0.0,
        };
        let comparison = spmd_run::host_array::compare(found, expected, tolerance, tolerance).unwrap();
        assert!(comparison.is_close(), "{what}: {comparison:?}");
    }
}

/// The shapes of one device's results.
fn result_shapes(module: &hlo::HloModule) -> Vec<ArraySpec> {
    let leaves = hlo::shape::leaves(&module.proto.host_program_shape.result);
    let array = |shape: &spmd_run::proto::ShapeProto| {
        let dims: Vec<usize> = shape.dimensions.iter().map(|&dim| dim as usize).collect();
        ArraySpec::new(hlo::shape::dtype(shape).unwrap(), dims)
    };
    leaves.into_iter().map(array).collect()
}

#[test]
fn samples_give_the_same_over_two_processes() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("hlo");
    let mut tried = 0;
    for entry in std::fs::read_dir(samples).unwrap() {
        let path = entry.unwrap().path();
        if !path.extension().is_some_and(|extension| extension == "hlo" || extension == "mlir") {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let program = hlo::load(&std::fs::read(&path).unwrap(), &name).unwrap();
        let counts = partition::program_counts(&program);
        let case = Case {
            plugin: common::plugin(),
            program,
            replicas: counts.replicas.unwrap_or(1),
            partitions: counts.partitions.unwrap_or(1),
            // Numbers of rows must fit the rows that are there.
            fill: if name.starts_with("ragged") { Fill::Ones } else { Fill::Random { seed: 7 } },
        };
        let partitioned = case.partition();
        let arguments = case.arguments(&partitioned.parameters);
        let in_one = case.lower(&partitioned.module, 1);
        // XLA alone is the reference where it has all collectives and does them right.
        let alone = match in_one.collectives.is_empty() {
            true => case.run_alone(&arguments),
            false => case.run_bridged(&in_one, 1, &arguments, 1),
        };
        let shapes = result_shapes(&partitioned.module);
        let lowered = case.lower(&partitioned.module, 2);
        assert_close(&case.run_bridged(&lowered, 2, &arguments, 2), &alone, &shapes, &name);
        tried += 1;
    }
    assert!(tried >= 10, "{tried} samples found");
}

/// A per-device program, run as two replicas of four partitions.
fn per_device(text: &str, fill: Fill) -> Case {
    let program = Program::Hlo(hlo::parse(text, "test.hlo").unwrap_or_else(|error| panic!("{error}")));
    Case { plugin: common::plugin(), program, replicas: 2, partitions: 4, fill }
}

fn run(case: &Case, processes: usize) -> (Results, usize) {
    let Program::Hlo(module) = &case.program else { unreachable!() };
    let lowered = case.lower(module, processes);
    let parameters = &module.proto.host_program_shape.parameters;
    let whole = |shape: &spmd_run::proto::SharedShape| partition::GlobalArg {
        shape: (**shape).clone(),
        sharding: spmd_run::proto::OpSharding::default(),
    };
    let parameters: Vec<_> = parameters.iter().map(whole).collect();
    // Arguments differ from device to device.
    let arguments: Vec<Vec<HostArray>> = (0..case.devices())
        .map(|device| {
            let shapes = parameters.iter().enumerate();
            let argument = |(index, arg): (usize, &partition::GlobalArg)| {
                let dims: Vec<usize> = arg.shape.dimensions.iter().map(|&dim| dim as usize).collect();
                let dtype = hlo::shape::dtype(&arg.shape).unwrap();
                HostArray::filled(case.fill, 100 * device + index, dtype, &dims).unwrap()
            };
            shapes.map(argument).collect()
        })
        .collect();
    (case.run_bridged(&lowered, processes, &arguments, 2), lowered.collectives.len())
}

#[test]
fn collectives_of_every_mode_give_the_same_over_processes() {
    let reduce = "add { x = s32[] parameter(0)  y = s32[] parameter(1)  ROOT add = s32[] add(x, y) }";
    let collectives = [
        "s32[4] all-reduce(p), replica_groups={}, to_apply=add",
        "s32[4] all-reduce(p), replica_groups={{1,0}}, to_apply=add",
        "s32[4] all-reduce(p), channel_id=1, replica_groups={{0},{1}}, to_apply=add",
        "s32[4] all-reduce(p), channel_id=1, replica_groups={}, to_apply=add",
        "s32[4] all-reduce(p), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true, to_apply=add",
        "s32[8] all-gather(p), replica_groups={{1,0}}, dimensions={0}",
        "s32[32] all-gather(p), channel_id=1, replica_groups={{1,0}}, dimensions={0}",
        "s32[16] all-gather(p), channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}, use_global_device_ids=true",
        "s32[2] reduce-scatter(p), channel_id=1, replica_groups={{0,5},{1,4},{7,2},{3,6}}, dimensions={0}, use_global_device_ids=true, to_apply=add",
        "s32[4] all-to-all(p), channel_id=1, replica_groups={{0,2},{3,1}}, dimensions={0}",
        "s32[4] all-to-all(p), replica_groups={{0,1}}, dimensions={0}",
        "s32[4] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3}}",
        "s32[4] collective-permute(p), source_target_pairs={{1,0}}",
    ];
    for collective in collectives {
        let text = format!("HloModule m\n{reduce}\nENTRY main {{ p = s32[4] parameter(0)  ROOT c = {collective} }}");
        let case = per_device(&text, Fill::Random { seed: 3 });
        let (alone, bridged) = run(&case, 1);
        assert_eq!(bridged, 0, "{collective}");
        for processes in [2, 4, 8] {
            assert_eq!(run(&case, processes).0, alone, "{collective} over {processes} processes");
        }
    }
}

#[test]
fn ids_are_global() {
    let text = "HloModule m
ENTRY main { r = u32[] replica-id()  p = u32[] partition-id()  ROOT out = (u32[], u32[]) tuple(r, p) }";
    for processes in [1, 2, 4, 8] {
        let (found, _) = run(&per_device(text, Fill::Zeros), processes);
        for (device, ids) in found.iter().enumerate() {
            let id = |index: usize| u32::from_ne_bytes(ids[index][..].try_into().unwrap()) as usize;
            assert_eq!((id(0), id(1)), (device / 4, device % 4));
        }
    }
}

#[test]
fn devices_outside_a_broadcast_get_zeros() {
    let text = "HloModule m
ENTRY main {
  id = u32[] partition-id()
  one = u32[] constant(1)
  mine = u32[] add(id, one)
  ROOT b = u32[] collective-broadcast(mine), channel_id=1, replica_groups={{3,0},{2}}
}";
    for processes in [1, 2, 8] {
        let (found, bridged) = run(&per_device(text, Fill::Zeros), processes);
        assert_eq!(bridged, 1, "XLA has no broadcast on CPUs");
        let found: Vec<u32> =
            found.iter().map(|results| u32::from_ne_bytes(results[0][..].try_into().unwrap())).collect();
        assert_eq!(found, [4, 0, 3, 4, 4, 0, 3, 4]);
    }
}

#[test]
fn elements_narrower_than_a_byte_travel() {
    let text = "HloModule m
add { x = s4[] parameter(0)  y = s4[] parameter(1)  ROOT add = s4[] add(x, y) }
max { x = s4[] parameter(0)  y = s4[] parameter(1)  ROOT max = s4[] maximum(x, y) }
ENTRY main {
  p = s8[5] parameter(0)
  n = s4[5] convert(p)
  sum = s4[5] all-reduce(n), channel_id=1, replica_groups={}, to_apply=add
  max = s4[5] all-reduce(n), channel_id=1, replica_groups={}, to_apply=max
  all = s4[40] all-gather(n), channel_id=1, replica_groups={{0,1}}, dimensions={0}
  s = s8[5] convert(sum)
  m = s8[5] convert(max)
  a = s8[40] convert(all)
  ROOT out = (s8[5], s8[5], s8[40], s8[5]) tuple(s, m, a, p)
}";
    let wrap = |value: i8| (value << 4) >> 4;
    for processes in [1, 2, 8] {
        let (found, bridged) = run(&per_device(text, Fill::Random { seed: 5 }), processes);
        assert_eq!(bridged, 3);
        let arguments: Vec<Vec<i8>> =
            found.iter().map(|results| results[3].iter().map(|&byte| wrap(byte as i8)).collect()).collect();
        for results in &found {
            let result = |index: usize| results[index].iter().map(|&byte| byte as i8).collect::<Vec<i8>>();
            let column = |place: usize| arguments.iter().map(move |argument| argument[place]);
            let sums: Vec<i8> = (0..5).map(|place| wrap(column(place).fold(0, i8::wrapping_add))).collect();
            let greatest: Vec<i8> = (0..5).map(|place| column(place).max().unwrap()).collect();
            assert_eq!((result(0), result(1), result(2)), (sums, greatest, arguments.concat()));
        }
    }
}

#[test]
fn independent_collectives_and_loops_keep_their_order() {
    let text = "HloModule m
add { x = s32[] parameter(0)  y = s32[] parameter(1)  ROOT add = s32[] add(x, y) }
body {
  state = (s32[], s32[3]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  v = s32[3] get-tuple-element(state), index=1
  sum = s32[3] all-reduce(v), channel_id=1, replica_groups={}, to_apply=add
  ROOT out = (s32[], s32[3]) tuple(next, sum)
}
cond {
  state = (s32[], s32[3]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  three = s32[] constant(3)
  ROOT more = pred[] compare(i, three), direction=LT
}
twice {
  v = s32[3] parameter(0)
  a = s32[3] all-reduce(v), channel_id=1, replica_groups={}, to_apply=add
  ROOT b = s32[3] collective-permute(a), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
}
ENTRY main {
  p = s32[3] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], s32[3]) tuple(zero, p)
  first = (s32[], s32[3]) while(init), condition=cond, body=body
  second = (s32[], s32[3]) while(init), condition=cond, body=body
  a = s32[3] call(p), to_apply=twice
  b = s32[3] call(p), to_apply=twice
  c = s32[3] all-reduce(p), replica_groups={}, to_apply=add
  d = s32[3] all-reduce(p), channel_id=1, replica_groups={{0},{1}}, to_apply=add
  ROOT out = ((s32[], s32[3]), (s32[], s32[3]), s32[3], s32[3], s32[3], s32[3]) tuple(first, second, a, b, c, d)
}";
    let flat = text
        .replace(
            "ROOT out = ((s32[], s32[3]), (s32[], s32[3]), s32[3], s32[3], s32[3], s32[3]) tuple(first, second, a, b, c, d)",
            "f = s32[3] get-tuple-element(first), index=1
  s = s32[3] get-tuple-element(second), index=1
  ROOT out = (s32[3], s32[3], s32[3], s32[3], s32[3], s32[3]) tuple(f, s, a, b, c, d)",
        );
    let case = per_device(&flat, Fill::Random { seed: 11 });
    let alone = run(&case, 1).0;
    for processes in [2, 4, 8] {
        assert_eq!(run(&case, processes).0, alone, "over {processes} processes");
    }
}

#[test]
fn ragged_rows_arrive() {
    // Each device sends row j of its input to partition j, as that one's row `mine`.
    let text = "HloModule m
ENTRY main {
  in = s32[4,2] parameter(0)
  zero = s32[] constant(0)
  out = s32[4,2] broadcast(zero), dimensions={}
  offsets = s32[4] iota(), iota_dimension=0
  one = s32[] constant(1)
  ones = s32[4] broadcast(one), dimensions={}
  id = u32[] partition-id()
  mine = s32[] convert(id)
  places = s32[4] broadcast(mine), dimensions={}
  r = s32[4,2] ragged-all-to-all(in, out, offsets, ones, places, ones), channel_id=1, replica_groups={{0,1,2,3}}
  ROOT t = (s32[4,2], s32[4,2]) tuple(r, in)
}";
    for processes in [1, 2, 8] {
        let case = per_device(text, Fill::Random { seed: 13 });
        let (found, bridged) = run(&case, processes);
        assert_eq!(bridged, 1, "XLA has no ragged all-to-all on CPUs");
        let row = |device: usize, result: usize, row: usize| &found[device][result][row * 8..row * 8 + 8];
        for device in 0..8 {
            for source in 0..4 {
                let peer = device / 4 * 4 + source;
                assert_eq!(row(device, 0, source), row(peer, 1, device % 4));
            }
        }
    }
}

#[test]
fn what_xla_cannot_do_alone_is_bridged_in_one_process_too() {
    let text = "HloModule m
xor { x = u32[] parameter(0)  y = u32[] parameter(1)  ROOT xor = u32[] xor(x, y) }
ENTRY main { p = u32[2] parameter(0)  ROOT x = u32[2] all-reduce(p), channel_id=1, replica_groups={}, to_apply=xor }";
    let case = per_device(text, Fill::Random { seed: 1 });
    let Program::Hlo(module) = &case.program else { unreachable!() };
    let lowered = case.lower(module, 1);
    assert!(matches!(lowered.collectives[0].kind, CollectiveKind::AllReduce { .. }));
    assert_eq!(run(&case, 1), run(&case, 4));
}
