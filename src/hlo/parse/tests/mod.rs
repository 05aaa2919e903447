mod messages;
mod shapes;

use super::*;
use crate::hlo::shape::{text, text_with_layout};
use crate::proto::hlo_instruction_details::ReplicaGroupList;
use crate::proto::op_sharding::Type;
use crate::proto::{HloInstructionProto, OpSharding, PrimitiveType};

fn module(source: &str) -> HloModule {
    parse(source, "test.hlo").unwrap_or_else(|error| panic!("{error}"))
}

fn error(source: &str) -> String {
    parse(source, "test.hlo").expect_err("the text is wrong").to_string()
}

/// The root of the entry computation with these lines, after a reducer `sum` and a computation `negated`.
fn root(lines: &str) -> HloInstructionProto {
    let module = module(&with_computations(lines));
    let entry = module.proto.computations.last().unwrap();
    entry.instructions.iter().find(|instruction| instruction.id == entry.root_id).unwrap().clone()
}

fn with_computations(lines: &str) -> String {
    format!(
        "HloModule test
sum {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}}
negated {{
  p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p)
}}
ENTRY main {{
{lines}
}}
"
    )
}

fn inferred(line: &str) -> String {
    let lines = format!(
        "a = f32[2,3] parameter(0)
  b = f32[3,4] parameter(1)
  v = f32[4] parameter(2)
  z = f32[] parameter(3)
  i = s32[5,1] parameter(4)
  c = c64[2,3] parameter(5)
  t = (f32[2], (s32[], pred[3])) parameter(6)
  q = pred[] parameter(7)
  n = s32[] parameter(8)
  x = f32[1,8,8,3] parameter(9)
  k = f32[3,3,3,5] parameter(10)
  ROOT r = {line}"
    );
    text(&root(&lines).shape)
}

#[test]
fn module_header() {
    let module = module(
        "HloModule jit_f, is_scheduled=true, input_output_alias={ {0}: (0, {}, must-alias), {1}: (1, {}) }, \
         buffer_donor={ (1, {}) }, entry_computation_layout={(f32[2]{0}, f32[])->(f32[2]{0}, f32[])}, \
         allow_spmd_sharding_propagation_to_parameters={true,false}, allow_spmd_sharding_propagation_to_output=true, \
         replica_count=2, num_partitions=4, frontend_attributes={a=\"b\",xla.sdy.meshes={mesh = #sdy.mesh<[\"x\"=4]>}}

         FileNames
         1 \"f.py\"
         FunctionNames
         1 \"f\"
         FileLocations
         1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=1 end_column=9}
         StackFrames
         1 {file_location_id=1 parent_frame_id=1}

         ENTRY main {
           a = f32[2] parameter(0)
           b = f32[] parameter(1)
           ROOT t = (f32[2], f32[]) tuple(a, b)
         }",
    );
    let config = &module.config;
    assert!(config.is_scheduled);
    assert_eq!((config.replica_count, config.num_partitions), (Some(2), Some(4)));
    assert_eq!(config.allow_spmd_sharding_propagation_to_parameters, [true, false]);
    assert_eq!(config.allow_spmd_sharding_propagation_to_output, [true]);
    let proto = &module.proto;
    assert_eq!((proto.name.as_str(), proto.entry_computation_name.as_str()), ("jit_f", "main"));
    assert_eq!(proto.input_output_alias.entries[0].kind, crate::proto::Kind::MUST_ALIAS);
    assert_eq!(proto.buffer_donor.entries[0].parameter_number, 1);
    assert_eq!(proto.host_program_shape.parameter_names, ["p0", "p1"]);
    assert_eq!(proto.frontend_attributes.map[1].value, "{mesh = #sdy.mesh<[\"x\"=4]>}");
    assert_eq!(proto.stack_frame_index.stack_frames[0].parent_frame_id, 0);
    assert_eq!(proto.schedule.sequences[0].value.instruction_ids, [0, 1, 2]);
}

#[test]
fn ids_are_computation_and_position() {
    let module = module(&with_computations(
        "  a = f32[4] parameter(0)
  z = f32[] constant(0)
  s = f32[] reduce(a, z), dimensions={0}, to_apply=sum
  ROOT c = f32[4] call(a), to_apply=negated, control-predecessors={s}",
    ));
    let entry = &module.proto.computations[2];
    assert_eq!((entry.id, module.proto.entry_computation_id), (2, 2));
    let ids: Vec<i64> = entry.instructions.iter().map(|instruction| instruction.id).collect();
    assert_eq!(ids, [2 << 32, (2 << 32) + 1, (2 << 32) + 2, (2 << 32) + 3]);
    let reduce = &entry.instructions[2];
    assert_eq!((&reduce.operand_ids[..], &reduce.called_computation_ids[..]), (&ids[..2], &[0][..]));
    let call = &entry.instructions[3];
    assert_eq!((entry.root_id, &call.called_computation_ids[..]), (ids[3], &[1][..]));
    assert_eq!(call.control_predecessor_ids, [ids[2]]);
}

#[test]
fn percent_signs_signatures_comments_and_crlf() {
    let source = "\u{feff}HloModule m // a comment\r\n\r\n%f (x: f32[2], /*index=1*/y: s32[]) -> f32[2] {\r\n  \
                  %x = f32[2]{0} parameter(0)\r\n  %y = s32[] parameter(1)\r\n  ROOT %n = f32[2]{0} negate(f32[2]{0} %x)\r\n}\r\n\
                  ENTRY %main () -> token[] {\r\n  ROOT %t = token[] after-all()\r\n}\r\n";
    let module = module(source);
    assert_eq!(module.proto.computations[0].program_shape.parameters.len(), 2);
    assert_eq!(module.proto.host_program_shape.result.element_type, PrimitiveType::TOKEN);
}

#[test]
fn modules_without_header_or_entry_mark() {
    let module =
        module("f { ROOT a = f32[] parameter(0) } g { a = f32[] parameter(0) ROOT b = f32[] call(a), to_apply=f }");
    assert_eq!((module.proto.name.as_str(), module.proto.entry_computation_id), ("module_g", 1));
    assert_eq!(module.proto.computations[1].instructions[0].name, "a.1");
}

#[test]
fn a_lone_instruction_is_a_module() {
    let module = module(
        "%fusion = f32[2] fusion(f32[2] %p0, f32[]), kind=kLoop, calls={ a = f32[2] parameter(0) b = f32[] parameter(1) ROOT c = negate(a) }",
    );
    let entry = &module.proto.computations[1];
    let opcodes: Vec<&str> = entry.instructions.iter().map(|instruction| instruction.opcode.as_str()).collect();
    assert_eq!(opcodes, ["parameter", "parameter", "fusion"]);
    assert!(module.proto.computations[0].is_fusion_computation);
    let names: Vec<&str> = entry.instructions.iter().map(|instruction| instruction.name.as_str()).collect();
    assert_eq!(names, ["p0", "_1", "fusion"]);
    let computations: Vec<&str> =
        module.proto.computations.iter().map(|computation| computation.name.as_str()).collect();
    assert_eq!((module.proto.name.as_str(), computations), ("_", vec!["_.1", "_"]));
    let transposed = self::module("ROOT t = s4[2,3]{0,1:E(4)} negate(s4[2,3]{0,1:E(4)} p)").proto.host_program_shape;
    for shape in [&transposed.parameters[0], &*transposed.result] {
        assert_eq!(text_with_layout(shape), "s4[2,3]{1,0:E(4)}");
    }
}

#[test]
fn a_shape_that_no_operand_follows_is_passed_over() {
    let operands = |call: &str| {
        let text = format!(
            "HloModule m\nENTRY e {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = {call}\n}}"
        );
        parse(&text, "test.hlo").map(|module| module.proto.computations[0].instructions[2].operand_ids.to_vec())
    };
    for call in [
        "add(f32[] %a, f32[], %b)",
        "add(f32[], %a, %b)",
        "add(a, f32[2]{0}, token[], b)",
        "add((f32[], s32[]), f32[] a, f32[], f32[] b)",
    ] {
        assert_eq!(operands(call).unwrap(), [0, 1], "{call}");
    }
    for (call, message) in [
        ("add(a, f32[])", "test.hlo:5:24: expected an operand, found ')'"),
        ("add(f32[], f32[])", "test.hlo:5:28: expected an operand, found ')'"),
        ("negate(f32[], f32[2] a)", "the operand is declared as f32[2], 'a' is f32[]"),
    ] {
        let error = operands(call).unwrap_err().to_string();
        assert!(error.contains(message), "{call}: {error}");
    }
}

#[test]
fn operands_in_place_and_tuple_elements() {
    let module = module(
        "HloModule m
         ENTRY e {
           p = (f32[2], (f32[2], s32[])) parameter(0)
           a = f32[2] add(%p#0, f32[2] p#1#0)
           ROOT m = f32[2] multiply(a, f32[2] add(p#0, abs(a)))
         }",
    );
    let instructions = &module.proto.computations[0].instructions;
    let names: Vec<&str> = instructions.iter().map(|instruction| instruction.name.as_str()).collect();
    assert_eq!(names, ["p", "p_0", "p_1", "p_1_0", "a", "abs.anon", "add.anon", "m"]);
    assert_eq!((instructions[3].tuple_index, &instructions[3].operand_ids[..]), (0, &[2][..]));
    assert_eq!(instructions[6].operand_ids, [1, 5]);
}

#[test]
fn shapes_and_layouts() {
    let shapes = [
        "f32[2,<=3]{0,1:T(8,128)(2,1)E(32)S(5)}",
        "(bf16[], (s4[8]{0:E(4)}, token[]), opaque[])",
        "f32[?,2]{1,0}",
        "f32[4]{0:T(*,8)L(64)SC(0:2,3)}",
        "f8e4m3fn[3]{0:D(D)#(u8)*(u32)M(16)}",
        "b(f32[2]{0})",
    ];
    for shape in shapes {
        let parsed = root(&format!("  ROOT p = {shape} parameter(0)")).shape.clone();
        let printed = text_with_layout(&parsed);
        let again = root(&format!("  ROOT p = {printed} parameter(0)")).shape.clone();
        assert_eq!(parsed, again, "{shape} printed as {printed}");
    }
    let shape = root("  ROOT p = f32[2,<=3]{0,1:T(8,128)(2,1)S(5)} parameter(0)").shape.clone();
    assert_eq!(shape.is_dynamic_dimension, [false, true]);
    assert_eq!(shape.layout.minor_to_major, [0, 1]);
    assert_eq!((shape.layout.tiles.len(), shape.layout.memory_space), (2, 5));
}

#[test]
fn literals() {
    let literal = |shape: &str, value: &str| root(&format!("  ROOT c = {shape} constant({value})")).literal.clone();
    assert_eq!(literal("f32[2,2]", "{ {1, -2.5}, {inf, 4e-3} }").f32s, [1.0, -2.5, f32::INFINITY, 4e-3]);
    assert_eq!(literal("f32[2,2]{0,1}", "{{1,2},{3,4}}").f32s, [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(literal("pred[3]", "{true, 0, 1}").preds, [true, false, true]);
    assert_eq!(literal("u64[]", "18446744073709551615").u64s, [u64::MAX]);
    assert_eq!(literal("c64[2]", "{(1, -nan), (2.5, inf)}").c64s.len(), 4);
    assert_eq!(literal("f32[]", "-nan(0x123)").f32s[0].to_bits(), 0xff80_0123);
    assert_eq!(literal("f32[]", "nan").f32s[0].to_bits(), 0x7fc0_0000);
    assert_eq!(literal("f32[2]", "{-0, 0}").f32s.iter().map(|zero| zero.to_bits()).collect::<Vec<_>>(), [1 << 31, 0]);
    assert_eq!(literal("c64[]", "(-0, 1)").c64s[0].to_bits(), 1 << 31);
    assert_eq!(literal("s32[]", "-0").s32s, [0]);
    assert_eq!(literal("s32[2,0]", "{ {}, {} }").s32s, [0; 0]);
    assert_eq!(literal("(s32[], (f32[1]))", "(7, ({1}))").tuple_literals[0].s32s, [7]);
    assert_eq!(literal("s8[3]", "1").s8s, [1, 0, 0]);
}

#[test]
fn elided_constants_are_filled_and_named() {
    let module =
        module("HloModule m ENTRY e { a = u32[3] constant({...}) b = pred[5] constant({...}) ROOT t = tuple(a, b) }");
    assert_eq!(module.elided_constants, ["a", "b"]);
    assert_eq!(module.proto.computations[0].instructions[0].literal.u32s, [0, 1, 2]);
    assert!(error("HloModule m ENTRY e { ROOT a = f32[999999999] constant({...}) }").contains("too large"));
}

#[test]
fn shardings() {
    let sharding = |shape: &str, sharding: &str| -> OpSharding {
        (*root(&format!("  ROOT p = {shape} parameter(0), sharding={sharding}")).sharding).clone()
    };
    assert_eq!(sharding("f32[2]", "{replicated}").r#type, Type::REPLICATED);
    assert_eq!(sharding("f32[2]", "{manual}").r#type, Type::MANUAL);
    assert_eq!(sharding("f32[2]", "{maximal device=3}").tile_assignment_devices, [3]);
    assert_eq!(sharding("f32[2]", "{devices=[2,1]0,1 metadata={op_name=\"x\"}}").metadata[0].op_name, "x");
    let iota = sharding("f32[2,2]", "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}");
    assert!(iota.replicate_on_last_tile_dim);
    assert_eq!((&iota.iota_reshape_dims[..], &iota.iota_transpose_perm[..]), (&[2, 2][..], &[1, 0][..]));
    let subgroups = sharding("f32[2]", "{devices=[1,2,2]<=[4] last_tile_dims={manual, replicated}}");
    assert_eq!(subgroups.last_tile_dims.len(), 2);
    assert_eq!(sharding("f32[2]", "{devices=[2]<=[2] shard_as 5}").shard_group_id, 5);
    for (text, kind) in [
        ("{devices=[2]<=[2] unreduced}", Type::UNREDUCED),
        ("{manual devices=[2,2]<=[4] last_tile_dims={unreduced}}", Type::MANUAL),
        ("{replicated last_tile_dim_replicate}", Type::REPLICATED),
        ("{unreduced unknown}", Type::UNKNOWN),
        ("{manual unreduced}", Type::MANUAL),
    ] {
        assert_eq!(sharding("f32[2]", text), OpSharding { r#type: kind.into(), ..Default::default() }, "{text}");
    }
    assert_eq!(sharding("(f32[2], f32[2])", "{replicated}").tuple_shardings.len(), 2);
    assert_eq!(sharding("(f32[2], f32[2])", "{{devices=[2]<=[2]}, {manual}}").tuple_shardings[1].r#type, Type::MANUAL);
    let named = sharding(
        "f32[8,8]",
        "{mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)), [{'x':(2)2, ?}, {'y'}], unreduced=max{'x'}}",
    );
    let named = &named.named_sharding;
    assert_eq!(named.mesh.iota_transform.reshape_dims, [2, 4]);
    assert!(!named.dim_shardings[0].is_closed);
    assert_eq!(named.dim_shardings[0].axes[0].sub_axis_info.pre_size, 2);
    assert_eq!(named.unreduced_axes.len(), 1);
    assert_eq!(sharding("f32[8]", "{maximal_mesh[device_id=3]}").named_sharding.mesh.device_ids, [3]);
    assert_eq!(sharding("f32[8]", "{mesh['x'=2], manual}").named_sharding.manual_axes.len(), 1);
}

#[test]
fn replica_groups() {
    let groups = |groups: &str| {
        let lines = format!(
            "  p = f32[4] parameter(0)\n  ROOT r = f32[4] all-reduce(p), replica_groups={groups}, to_apply=sum"
        );
        root(&lines).details().replica_group_list.clone().unwrap()
    };
    let ReplicaGroupList::CollectiveDeviceList(list) = groups("{{0,1},{2,3}}") else { panic!() };
    assert_eq!(list.replica_groups[1].replica_ids, [2, 3]);
    let ReplicaGroupList::CollectiveDeviceList(list) = groups("{}") else { panic!() };
    assert!(list.replica_groups.is_empty());
    let ReplicaGroupList::IotaCollectiveDeviceList(list) = groups("[2,4]<=[4,2]T(1,0)") else { panic!() };
    assert_eq!((list.num_replica_groups, list.num_devices_per_group), (2, 4));
    let ReplicaGroupList::MeshAxesReplicaGroupList(list) = groups("mesh['a'=4,'b'=2] {'b'}") else { panic!() };
    assert_eq!((list.mesh.axes[0].size, list.axes[0].mesh_axis_index), (4, 1));
    let ReplicaGroupList::MeshAxesReplicaGroupList(list) =
        groups("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a','b'}")
    else {
        panic!()
    };
    assert_eq!(list.mesh.iota_transform.transpose_perm, [1, 0]);
}

#[test]
fn called_computations_stand_in_their_own_order() {
    let called = |lines: &str| root(lines).called_computation_ids.clone();
    let one = "  p = f32[4] parameter(0)\n  ROOT r = f32[4]";
    assert_eq!(called(&format!("{one} while(p), condition=sum, body=negated")), [1, 0]);
    assert_eq!(called(&format!("{one} while(p), body=negated, condition=sum")), [1, 0]);
    let select = "  q = pred[] parameter(1)\n  p = f32[4] parameter(0)\n  ROOT r = f32[4]";
    let conditional = "conditional(q, p, p), false_computation=negated, true_computation=sum";
    assert_eq!(called(&format!("{select} {conditional}")), [0, 1]);
    assert_eq!(
        called(&format!("{one} custom-call(p), custom_call_target=\"t\", called_computations={{sum, %negated}}")),
        [0, 1]
    );
}

#[test]
fn defaults_that_the_text_leaves_out() {
    let one = "  p = f32[4] parameter(0)\n  ROOT r =";
    assert_eq!(root(&format!("{one} pred[4] compare(p, p), direction=LT")).details().comparison_type, "FLOAT");
    assert_eq!(
        root(&format!("{one} pred[4] compare(p, p), direction=LT, order=TOTAL")).details().comparison_type,
        "TOTALORDER"
    );
    let call = root(&format!("{one} f32[4] custom-call(p), custom_call_target=\"t\", backend_config={{\"a\": {{}}}}"));
    assert_eq!(call.details().custom_call_api_version, crate::proto::CustomCallApiVersion::API_VERSION_ORIGINAL);
    assert_eq!((call.details().feature_group_count, &call.details().backend_config[..]), (1, &b"{\"a\": {}}"[..]));
    let typed = format!("{one} f32[4] custom-call(p), custom_call_target=\"t\", api_version=API_VERSION_TYPED_FFI");
    assert_eq!(
        root(&typed).details().custom_call_api_version,
        crate::proto::CustomCallApiVersion::API_VERSION_TYPED_FFI
    );
    let top_k = root(&format!("{one} topk(p), k=2"));
    assert!(top_k.details().largest && top_k.details().is_stable);
    let dot = root(&format!(
        "{one} dot(p, p), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}, algorithm=dot_bf16_bf16_f32"
    ));
    assert_eq!(dot.precision_config.operand_precision.len(), 2);
    assert_eq!(dot.dot_dimension_numbers.rhs_contracting_dimensions, [0]);
}

#[test]
fn windows_and_labels() {
    let conv = root(
        "  x = f32[1,8,8,3] parameter(0)
  k = f32[3,3,3,5] parameter(1)
  ROOT c = f32[1,4,8,5] convolution(x, k), window={size=3x3 stride=2x1 pad=0_1x1_1 rhs_reversal=1x0}, dim_labels=b01f_01io->b01f",
    );
    let dims = &conv.details().window.dimensions;
    assert_eq!((dims[0].stride, dims[0].padding_high, dims[0].window_reversal), (2, 1, true));
    assert_eq!(conv.details().convolution_dimension_numbers.kernel_output_feature_dimension, 3);
    let pad = root("  p = f32[4] parameter(0)\n  z = f32[] parameter(1)\n  ROOT r = f32[9] pad(p, z), padding=-1_3_1");
    assert_eq!(pad.details().padding_config.dimensions[0].interior_padding, 1);
    let slice = root("  p = f32[4] parameter(0)\n  ROOT r = f32[2] slice(p), slice={[0:4:2]}");
    assert_eq!(slice.details().slice_dimensions[0].stride, 2);
}

#[test]
fn asynchronous_wrappers() {
    let module = module(&with_computations(
        "  p = f32[4] parameter(0)
  s = ((f32[4]), f32[2], u32[]) slice-start(p), slice={[0:2]}, async_execution_thread=\"other\", metadata={op_name=\"n\"}
  u = ((f32[4]), f32[2], u32[]) slice-update(s)
  ROOT d = f32[2] slice-done(u)",
    ));
    let wrapped = &module.proto.computations[2];
    assert_eq!((wrapped.name.as_str(), wrapped.execution_thread.as_str()), ("async_wrapped", "other"));
    assert_eq!(wrapped.instructions[1].metadata.op_name, "n");
    let entry = &module.proto.computations[3].instructions;
    let opcodes: Vec<&str> = entry.iter().map(|instruction| instruction.opcode.as_str()).collect();
    assert_eq!(opcodes, ["parameter", "async-start", "async-update", "async-done"]);
    assert_eq!((&entry[1].called_computation_ids[..], entry[3].called_computation_ids.len()), (&[2][..], 0));
}

#[test]
fn metadata_and_what_else_instructions_carry() {
    let add = root(
        "  p = f32[4] parameter(0), parameter_replication={true}, origin={{\"old\" {1}}}
  ROOT r = f32[4] negate(p), metadata={op_type=\"neg\" op_name=\"a \\\"b\\\"\" source_file=\"f.py\", source_line=7 stack_frame_id=2}, \
         frontend_attributes={k=\"v\"}, statistics={visualizing_index=1,s-1=33,s-2=4.5}, backend_config=\"x\\000y\"",
    );
    assert_eq!(
        (add.metadata.op_name.as_str(), add.metadata.source_line, add.metadata.stack_frame_id),
        ("a \"b\"", 7, 2)
    );
    assert_eq!(add.details().statistics_viz.statistics[1].stat_val, 4.5);
    assert_eq!(add.details().backend_config, b"x\0y");
}

#[test]
fn shapes_that_are_left_out() {
    assert_eq!(inferred("negate(a)"), "f32[2,3]");
    assert_eq!(inferred("abs(c)"), "f32[2,3]");
    assert_eq!(inferred("complex(a, a)"), "c64[2,3]");
    assert_eq!(inferred("compare(a, a), direction=EQ"), "pred[2,3]");
    assert_eq!(inferred("select(q, a, a)"), "f32[2,3]");
    assert_eq!(inferred("dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"), "f32[2,4]");
    assert_eq!(inferred("reduce(a, z), dimensions={0}, to_apply=sum"), "f32[3]");
    assert_eq!(inferred("transpose(a), dimensions={1,0}"), "f32[3,2]{0,1}");
    assert_eq!(inferred("concatenate(a, a), dimensions={1}"), "f32[2,6]");
    assert_eq!(inferred("get-tuple-element(t), index=1"), "(s32[], pred[3])");
    assert_eq!(inferred("tuple(a, q)"), "(f32[2,3], pred[])");
    assert_eq!(inferred("call(v), to_apply=negated"), "f32[4]");
    assert_eq!(inferred("map(v, v), dimensions={0}, to_apply=sum"), "f32[4]");
    assert_eq!(inferred("pad(a, z), padding=1_1x0_0_1"), "f32[4,5]");
    assert_eq!(inferred("topk(a), k=2"), "(f32[2,2], s32[2,2])");
    assert_eq!(inferred("fft(a), fft_type=RFFT, fft_length={3}"), "c64[2,2]");
    assert_eq!(inferred("reduce-window(a, z), window={size=1x2 pad=0_0x1_0}, to_apply=sum"), "f32[2,3]");
    assert_eq!(
        inferred(
            "gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}"
        ),
        "f32[5,3]"
    );
    assert_eq!(
        inferred("convolution(x, k), window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"),
        "f32[1,4,4,5]"
    );
    assert_eq!(inferred("set-dimension-size(a, n), dimensions={0}"), "f32[<=2,3]");
    assert_eq!(inferred("partition-id()"), "u32[]");
    assert_eq!(inferred("after-all()"), "token[]");
}

#[test]
fn nesting_is_bounded() {
    for (open, close) in [("(", ")"), ("negate(", ")"), ("call(), to_apply={ a = f32[] ", "}"), ("tuple(", ")")] {
        let deep = format!("HloModule m ENTRY e {{ ROOT r = {}{} }}", open.repeat(20_000), close.repeat(20_000));
        assert!(error(&deep).contains("nested deeper than 64 levels"), "{open}");
    }
    let literal = format!("HloModule m ENTRY e {{ ROOT r = f32[1] constant({}1) }}", "{".repeat(20_000));
    assert!(error(&literal).contains("the shape has 1 dimensions"));
}

#[test]
fn copies_are_bounded() {
    let mut source = "HloModule m ENTRY e { t0 = f32[] parameter(0) ".to_owned();
    for step in 1..40 {
        source += &format!("t{step} = tuple(t{0}, t{0}) ", step - 1);
    }
    source += "}";
    assert!(error(&source).contains("too many and too large shapes"));
    let leaves = vec!["f32[]"; 50_000].join(",");
    let devices = (0..50_000).map(|device| device.to_string()).collect::<Vec<_>>().join(",");
    let source =
        format!("HloModule m ENTRY e {{ p = ({leaves}) parameter(0), sharding={{devices=[50000]{devices}}} }}");
    assert!(error(&source).contains("too many and too large shapes"));
}

#[test]
fn names_are_located() {
    let text = "HloModule m
negated {
  p = f32[] parameter(0)
  ROOT n = f32[] negate(p)
}
ENTRY %main {
  %t = (f32[], f32[]) parameter(0)
  ROOT %r = f32[] add(%t#1, negate(%t#0))
}
";
    let module = module(text);
    let source = module.source.as_ref().unwrap();
    let mut places = Vec::new();
    for computation in &module.proto.computations {
        let place = source.locate_computation(computation.id).unwrap();
        places.push((computation.name.as_str(), place.line, place.column));
        for instruction in &computation.instructions {
            let place = source.locate_instruction(instruction.id).unwrap();
            places.push((instruction.name.as_str(), place.line, place.column));
        }
    }
    let expected = [
        ("negated", 2, 1),
        ("p", 3, 3),
        ("n", 4, 8),
        ("main", 6, 7),
        ("t", 7, 3),
        ("t_1", 8, 26),
        ("t_0", 8, 39),
        ("negate.anon", 8, 29),
        ("r", 8, 8),
    ];
    assert_eq!(places, expected);
    for id in [-1, 3, 2 << 32, i64::MAX, i64::MIN] {
        assert_eq!(source.locate_instruction(id), None);
    }
    assert_eq!(source.locate_computation(2), None);
}
