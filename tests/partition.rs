//! Global programs to per-device programs, through a real plugin.

mod common;

use spmd_run::hlo::{self, Program};
use spmd_run::mesh::HloSharding;
use spmd_run::partition::{self, Partitioned};
use spmd_run::pjrt::{CompileOptions, ProgramFormat};

fn load(text: &str) -> Program {
    hlo::load(text.as_bytes(), "test").unwrap()
}

fn partitioned(text: &str, replicas: i64, partitions: i64) -> Result<Partitioned, partition::Error> {
    partition::partition(&common::plugin(), &load(text), replicas, partitions)
}

/// Shapes and shardings of arguments, then of results.
fn signature(partitioned: &Partitioned) -> Vec<String> {
    let args = partitioned.parameters.iter().chain(&partitioned.results);
    args.map(|arg| format!("{} {}", hlo::shape::text(&arg.shape), HloSharding::from_proto(&arg.sharding).unwrap()))
        .collect()
}

const MATMUL: &str = "HloModule m, input_output_alias={ {}: (1, {}, may-alias) }, num_partitions=4

ENTRY main {
  x = f32[8,16] parameter(0), sharding={devices=[2,2]<=[4]}
  y = f32[8,4] parameter(1), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
  w = f32[16,4] parameter(2), sharding={devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  d = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = f32[8,4] add(d, y), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
}";

#[test]
fn the_partitioner_cuts_the_program_and_tells_how() {
    let partitioned = partitioned(MATMUL, 1, 4).unwrap();
    insta::assert_debug_snapshot!(signature(&partitioned), @r#"
    [
        "f32[8,16] {devices=[2,2]<=[4]}",
        "f32[8,4] {devices=[2,1,2]<=[4] last_tile_dim_replicate}",
        "f32[16,4] {devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}",
        "f32[8,4] {devices=[2,1,2]<=[4] last_tile_dim_replicate}",
    ]
    "#);
    let proto = &partitioned.module.proto;
    let parameters: Vec<String> =
        proto.host_program_shape.parameters.iter().map(|shape| hlo::shape::text(shape)).collect();
    assert_eq!(parameters, ["f32[4,8]", "f32[4,4]", "f32[8,4]"]);
    assert_eq!(proto.input_output_alias.entries.len(), 1, "donation survives");
    assert!(partition::is_partitioned(&partitioned.module));
    let again = partition::partition(&common::plugin(), &Program::Hlo(partitioned.module.clone()), 1, 4).unwrap();
    assert_eq!(signature(&again), signature(&partitioned), "a partitioned program stays as it is");
}

#[test]
fn a_compiled_program_tells_what_partitioning_tells() {
    let plugin = common::plugin();
    let stablehlo = std::fs::read("hlo/shardy_stablehlo.mlir").unwrap();
    for program in [load(MATMUL), load(UNEVEN), hlo::load(&stablehlo, "test").unwrap()] {
        let (code, format) = match &program {
            Program::Hlo(module) => (buffa::Message::encode_to_vec(&module.proto), ProgramFormat::Hlo),
            Program::Mlir(code) => (code.clone(), ProgramFormat::Mlir),
        };
        let partitions = partition::program_counts(&program).partitions.unwrap();
        let options = CompileOptions {
            num_partitions: partitions,
            use_spmd_partitioning: true,
            use_shardy_partitioner: partition::uses_shardy(&program),
            ..CompileOptions::default()
        };
        let code = spmd_run::pjrt::Program { code: &code, format };
        let executable = common::client(&plugin, partitions).compile(&code, &options.encode()).unwrap();
        let compiled = partition::compiled_module(&executable).unwrap();
        let Program::Hlo(global) = &program else {
            let told = partition::signature_of_compiled(Some(&compiled), None, partitions).unwrap();
            let expected = partition::partition(&plugin, &program, 1, partitions).unwrap();
            assert_eq!((told.parameters, told.results), (expected.parameters, expected.results));
            continue;
        };
        let told = partition::signature_of_compiled(Some(&compiled), Some(global), partitions).unwrap();
        let expected = partition::partition(&plugin, &program, 1, partitions).unwrap();
        assert_eq!((&told.parameters, &told.results), (&expected.parameters, &expected.results));
        let declared = partition::signature_of_compiled(None, Some(global), partitions).unwrap();
        assert_eq!(declared.parameters, told.parameters, "what the program declares is what the partitioner takes");
    }
}

/// Seven rows on four devices.
const UNEVEN: &str = "HloModule m, num_partitions=4

ENTRY main {
  x = f32[7] parameter(0), sharding={devices=[4]<=[4]}
  ROOT s = f32[7] negate(x), sharding={devices=[4]<=[4]}
}";

#[test]
fn replicas_are_partitioned_alike() {
    let partitioned = partitioned(MATMUL, 2, 4).unwrap();
    assert_eq!(partitioned.parameters.len(), 3);
    assert_eq!((partitioned.module.config.replica_count, partitioned.module.config.num_partitions), (Some(2), Some(4)));
}

#[test]
fn tuple_arguments_are_told_one_by_one() {
    let text = "HloModule m
ENTRY main {
  p = (f32[8], s32[4]) parameter(0), sharding={{devices=[4]<=[4]}, {replicated}}
  a = f32[8] get-tuple-element(p), index=0
  b = s32[4] get-tuple-element(p), index=1
  ROOT out = (s32[4], f32[8]) tuple(b, a), sharding={{devices=[2,2]<=[4] last_tile_dim_replicate}, {devices=[4]<=[4]}}
}";
    insta::assert_debug_snapshot!(signature(&partitioned(text, 1, 4).unwrap()), @r#"
    [
        "f32[8] {devices=[4]<=[4]}",
        "s32[4] {replicated}",
        "s32[4] {devices=[2,2]<=[4] last_tile_dim_replicate}",
        "f32[8] {devices=[4]<=[4]}",
    ]
    "#);
}

#[test]
fn programs_without_shardings_are_whole_everywhere() {
    let text = "HloModule m
ENTRY main { p = f32[4] parameter(0)  ROOT n = f32[4] negate(p) }";
    for partitions in [1, 4] {
        let partitioned = partitioned(text, 1, partitions).unwrap();
        assert_eq!(signature(&partitioned), ["f32[4] {replicated}", "f32[4] {replicated}"]);
    }
}

#[test]
fn stablehlo_is_imported() {
    let text = r#"
module @m attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>, tf.aliasing_output = 0 : i32}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"#;
    let module = partition::import(&common::plugin(), &load(text)).unwrap();
    assert_eq!(partition::program_counts(&Program::Hlo(module.clone())).partitions, Some(2));
    assert_eq!(module.proto.input_output_alias.entries.len(), 1);
    insta::assert_debug_snapshot!(signature(&partitioned(text, 1, 2).unwrap()), @r#"
    [
        "f32[4] {devices=[2]<=[2]}",
        "f32[4] {devices=[2]<=[2]}",
    ]
    "#);
}

#[test]
fn what_xla_says_of_a_bad_program_reaches_the_user() {
    let text = "module { func.func @main(%a: tensor<2xf32>) -> tensor<3xf32> { return %a : tensor<2xf32> } }";
    let error = partitioned(text, 1, 2).unwrap_err().to_string();
    assert!(error.contains("tensor<3xf32>"), "{error}");
}

#[test]
fn compilations_can_stop_before_code_is_generated() {
    for plugin in common::plugins() {
        let client = common::client(&plugin, 1);
        let text = "module { func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> } }";
        let program = spmd_run::pjrt::Program { code: text.as_bytes(), format: ProgramFormat::Mlir };
        let options = CompileOptions::default().encode();
        let can_stop = plugin.extensions().iter().any(|extension| extension.number == 24);
        let stopped = plugin.without_code_generation(|| client.compile(&program, &options));
        assert_eq!(stopped.is_err(), can_stop, "{plugin:?}");
        client.compile(&program, &options).unwrap();
    }
}
