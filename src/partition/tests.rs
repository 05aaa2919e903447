use super::*;
use crate::hlo;

fn parse(text: &str) -> HloModule {
    hlo::parse(text, "test.hlo").unwrap_or_else(|error| panic!("{error}"))
}

fn counts(text: &str) -> (Option<i64>, Option<i64>) {
    let counts = program_counts(&Program::Hlo(parse(text)));
    (counts.replicas, counts.partitions)
}

fn module(header: &str, instructions: &str) -> String {
    format!("HloModule m{header}\n\nENTRY main {{\n  p = f32[8] parameter(0)\n  {instructions}\n}}")
}

#[test]
fn the_header_counts_first_then_shardings_then_collectives() {
    let sharded = "ROOT c = f32[8] copy(p), sharding={devices=[4]<=[4]}";
    assert_eq!(counts(&module(", replica_count=2, num_partitions=8", sharded)), (Some(2), Some(8)));
    assert_eq!(counts(&module("", sharded)), (None, Some(4)));
    let replicated = "ROOT c = f32[8] copy(p), sharding={devices=[1,6]<=[6] last_tile_dim_replicate}";
    assert_eq!(counts(&module("", replicated)), (None, Some(6)));
    let shardy = r#", frontend_attributes={xla.sdy.meshes="{a = #sdy.mesh<[\"x\"=4, \"y\"=2]>, b = #sdy.mesh<[\"z\"=2], device_ids=[1, 0]>}"}"#;
    assert_eq!(counts(&module(shardy, "ROOT c = f32[8] copy(p)")), (None, Some(8)));
    let permute = "ROOT c = f32[8] collective-permute(p), source_target_pairs={{0,3}}";
    assert_eq!(counts(&module("", permute)), (Some(4), None));
    assert_eq!(counts(&module("", "ROOT c = f32[8] copy(p)")), (None, None));
}

#[test]
fn stablehlo_text_tells_its_counts() {
    let text = "module @m attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {}";
    let counts = program_counts(&Program::Mlir(text.into()));
    assert_eq!(counts, Counts { replicas: Some(1), partitions: Some(8) });
    assert_eq!(program_counts(&Program::Mlir("module {}".into())), Counts::default());
}

#[test]
fn shardy_is_told_from_gspmd() {
    let is_shardy = |text: &str| uses_shardy(&Program::Hlo(parse(text)));
    assert!(is_shardy(&module(", frontend_attributes={xla.sdy.meshes=\"{}\"}", "ROOT c = f32[8] copy(p)")));
    assert!(is_shardy(&module("", "ROOT c = f32[8] copy(p), frontend_attributes={xla.sdy.sharding=\"x\"}")));
    let call = "ROOT c = f32[8] custom-call(p), custom_call_target=\"xla.sdy.LocalToGlobalShape\"";
    assert!(is_shardy(&module("", call)));
    assert!(!is_shardy(&module("", "ROOT c = f32[8] copy(p), sharding={replicated}")));
    assert!(uses_shardy(&Program::Mlir("sdy.mesh @mesh = <[\"x\"=2]>".into())));
    assert!(uses_shardy(&Program::Mlir(b"ML\xefR\x0dStableHLO_v1.15.0\0builtin\0sdy\0vhlo\0".into())));
    assert!(!uses_shardy(&Program::Mlir("mhlo.sharding = \"{replicated}\"".into())));
}

#[test]
fn programs_of_one_device_are_told_from_global_ones() {
    let reduce = "ROOT c = f32[8] collective-permute(p), channel_id=1, source_target_pairs={{0,1}}";
    assert!(is_partitioned(&parse(&module("", reduce))));
    assert!(is_partitioned(&parse(&module(", is_scheduled=true", "ROOT c = f32[8] copy(p)"))));
    let replica_mode = "ROOT c = f32[8] collective-permute(p), source_target_pairs={{0,1}}";
    assert!(!is_partitioned(&parse(&module("", replica_mode))));
    let inner = "q = f32[8] copy(p), sharding={devices=[2]<=[2]}
  ROOT c = f32[8] collective-permute(q), channel_id=1, source_target_pairs={{0,1}}";
    assert!(!is_partitioned(&parse(&module("", inner))));
    let manual = "q = f32[8] custom-call(p), custom_call_target=\"Sharding\", sharding={replicated}
  ROOT c = f32[8] collective-permute(q), channel_id=1, source_target_pairs={{0,1}}";
    assert!(!is_partitioned(&parse(&module("", manual))));
}

#[test]
fn shards_of_a_partitioned_program_add_up() {
    let text = "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[2,8] parameter(0), sharding={devices=[4,1]<=[4]}
  q = f32[3] parameter(1)
  ROOT out = (f32[2,8], f32[3]) tuple(p, q)
}";
    let Signature { parameters, results } = signature::of_partitioned(&parse(text).proto).unwrap();
    let dims = |args: &[GlobalArg]| args.iter().map(|arg| arg.shape.dimensions.clone()).collect::<Vec<_>>();
    assert_eq!(dims(&parameters), [vec![8, 8], vec![3]]);
    assert_eq!(dims(&results), [vec![2, 8], vec![3]]);
    assert_eq!(parameters[1].sharding.r#type, proto::op_sharding::Type::MANUAL);
}

#[test]
fn tuples_are_flattened() {
    let text = "HloModule m
ENTRY main {
  p = (f32[4], (s32[], f32[2])) parameter(0)
  ROOT q = (s32[], f32[2]) get-tuple-element(p), index=1
}";
    let Signature { parameters, results } = signature::of_whole(&parse(text).proto);
    assert_eq!((parameters.len(), results.len()), (3, 2));
}
