use buffa::Message;

use super::*;
use crate::hlo::parse;
use crate::proto::{OriginalArrayProto, OriginalValueElementProto, OriginalValueProto};

/// Parses the text, prints it, and parses that again; returns what was printed.
fn round_trip(text: &str) -> String {
    let first = parse(text, "first.hlo").unwrap();
    let printed = print(&first);
    let second = parse(&printed, "printed.hlo").unwrap_or_else(|error| panic!("{error}\n{printed}"));
    // As bytes, because NaNs do not equal themselves.
    assert_eq!(first.proto.encode_to_vec(), second.proto.encode_to_vec(), "{printed}");
    assert_eq!(first.config, second.config);
    printed
}

/// Instructions in the form in which they are printed, after the computations that they call.
const INSTRUCTIONS: &str = r#"
  %f = f32[4,8] parameter(0), parameter_replication={true}
  %s = s32[] parameter(1)
  %pair = (f32[4,8], s32[]) parameter(2)
  %t = token[] after-all()
  %zero = f32[] constant(0)
  %truth = pred[2] constant({1, 0})
  %numbers = bf16[2,2]{0,1} constant({{1, -0.0}, {nan, 1e30}})
  %complex = c64[] constant((1, -inf))
  %narrow = s4[3] constant({-8, 7, 0})
  %packed = s4[3]{0:E(4)} copy(%narrow)
  %nested = (f32[], (s32[2])) constant((1.5, ({3, 4})))
  %dynamic = f32[<=4,8] parameter(3)
  %tiled = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} parameter(4)
  %iota = s32[2,3] iota(), iota_dimension=1
  %add = f32[4,8] add(%f, %f), metadata={op_type="add" op_name="jit(f)/a\"b" source_file="f.py" source_line=7}
  %exp = f32[4,8] exponential(%f), result_accuracy={tolerance={atol=0.5,rtol=0.25,ulps=3}}
  %log = f32[4,8] log(%f), result_accuracy={mode=highest}
  %compare = pred[4,8] compare(%f, %f), direction=LT, type=TOTALORDER
  %convert = bf16[4,8] convert(%f), sharding={devices=[2,1,4]<=[2,2,2]T(1,0,2) last_tile_dims={manual, replicated}}
  %v1 = f32[4,8] copy(%f), sharding={devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}
  %v2 = f32[4,8] copy(%f), sharding={devices=[4,2]<=[8]}
  %v3 = f32[4,8] copy(%f), sharding={mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)), [{'a':(1)2, ?}, {}], replicated={'b'}}
  %max = f32[4,8] copy(%f), sharding={maximal device=3}
  %manual = f32[4,8] copy(%f), sharding={manual metadata={op_name="here"}}
  %like = f32[4,8] copy(%f), sharding={replicated shard_like 1}
  %reshape = f32[32] reshape(%f)
  %broadcast = f32[4,8,2] broadcast(%f), dimensions={0,1}
  %transpose = f32[8,4] transpose(%f), dimensions={1,0}
  %reverse = f32[4,8] reverse(%f), dimensions={1}
  %slice = f32[2,2] slice(%f), slice={[0:2:1], [1:5:2]}
  %pad = f32[4,12] pad(%f, %zero), padding=0_0x1_3
  %concat = f32[4,16] concatenate(%f, %f), dimensions={1}
  %ds = f32[1,8] dynamic-slice(%f, %s, %s), dynamic_slice_sizes={1,8}
  %reduce = f32[4] reduce(%f, %zero), dimensions={1}, to_apply=%sum
  %window = f32[4,4] reduce-window(%f, %zero), window={size=1x3 stride=1x2 pad=0_0x0_1}, to_apply=%sum
  %sort = f32[4,8] sort(%f), dimensions={1}, is_stable=true, to_apply=%less
  %map = f32[4,8] map(%f), dimensions={0,1}, to_apply=%negate
  %dot = f32[4,4] dot(%f, %f), lhs_contracting_dims={1}, rhs_contracting_dims={1}, operand_precision={highest,default}
  %conv = f32[4,4] convolution(%f, %reverse), dim_labels=bf_oi->bf
  %gather = f32[8] gather(%f, %s), offset_dims={0}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=0, slice_sizes={1,8}
  %scatter = f32[4,8] scatter(%f, %s, %gather), update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=0, unique_indices=true, to_apply=%sum
  %rng = f32[4] rng(%zero, %zero), distribution=rng_uniform
  %bits = (u32[4], u32[2]) rng-bit-generator(%dynamic), algorithm=rng_three_fry
  %fft = c64[4,5] fft(%f), fft_type=RFFT, fft_length={8}
  %solve = f32[4,4] triangular-solve(%dot, %dot), left_side=true, lower=true, transpose_a=ADJOINT
  %cholesky = f32[4,4] cholesky(%dot), lower=true
  %rp = f32[4,8] reduce-precision(%f), exponent_bits=5, mantissa_bits=10
  %topk = (f32[4,2], s32[4,2]) topk(%f), k=2, largest=false
  %get = f32[4,8] get-tuple-element(%pair), index=0
  %call = f32[4,8] call(%f), to_apply=%forward, is_composite=true, frontend_attributes={composite.attributes={"x": {"y": 1}},composite.name="a.b"}
  %while = f32[4,8] while(%f), condition=%always, body=%forward
  %branch = f32[4,8] conditional(%s, %f, %f), branch_computations={%forward, %forward}
  %fusion = f32[4,8] fusion(%f), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=%forward
  %ar = f32[4,8] all-reduce(%f), channel_id=1, replica_groups=mesh['a'=4,'b'=2] {'a'}, use_global_device_ids=true, to_apply=%sum
  %ag = f32[16,8] all-gather(%f), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  %rs = f32[2,8] reduce-scatter(%f), replica_groups={{0,1},{2,3}}, dimensions={0}, to_apply=%sum
  %a2a = (f32[4,8], f32[4,8]) all-to-all(%f, %f), replica_groups={{0,1}}
  %cp = f32[4,8] collective-permute(%f), channel_id=2, source_target_pairs={{0,1},{1,0}}
  %send = (f32[4,8], u32[], token[]) send(%f, %t), channel_id=3, is_host_transfer=true
  %infeed = (f32[4], token[]) infeed(%t), infeed_config="\001\n"
  %outfeed = token[] outfeed(%f, %t), outfeed_shape=f32[4,8]{1,0}
  %custom = f32[4,8] custom-call(%f), custom_call_target="t", operand_layout_constraints={f32[4,8]{0,1}}, custom_call_has_side_effect=true, literal=s32[2]{0} {1, 2}, schedule=SCHEDULE_LATEST, api_version=API_VERSION_TYPED_FFI, control-predecessors={%cp, %ag}, backend_config={"a": "}"}
  %start = ((f32[4,8]), f32[4,8], s32[]) async-start(%f), calls=%forward
  %done = f32[4,8] async-done(%start)
  %domain = f32[4,8] domain(%f), domain={kind="sharding", entry={maximal device=0}, exit={replicated}}
  %origin = (f32[4,8], s32[]) copy(%pair), statistics={visualizing_index=0,count=2}, origin={({"a" {1}}, {})}, backend_config="plain"
  ROOT %root = f32[4,8] add(%done, %custom)
"#;

const CALLED: &str = "
%sum {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%less {
  %d = f32[] parameter(0)
  %e = f32[] parameter(1)
  ROOT %g = pred[] compare(%d, %e), direction=LT
}

%negate {
  %h = f32[] parameter(0)
  ROOT %i = f32[] negate(%h)
}

%forward {
  %j = f32[4,8] parameter(0)
  ROOT %k = f32[4,8] abs(%j)
}

%always {
  %l = f32[4,8] parameter(0)
  ROOT %m = pred[] constant(true)
}
";

#[test]
fn every_attribute_comes_back() {
    let text = format!("HloModule m\n{CALLED}\nENTRY %main {{{INSTRUCTIONS}}}\n");
    let printed = round_trip(&text);
    for (expected, found) in text.lines().zip(printed.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(printed.lines().count(), text.lines().count());
}

#[test]
fn header_and_tables_come_back() {
    let text = "\
HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, must-alias) }, buffer_donor={ (1, {}) }, \
entry_computation_layout={(f32[2,3]{0,1}, s32[])->f32[2,3]{1,0}}, \
allow_spmd_sharding_propagation_to_parameters={false,true}, allow_spmd_sharding_propagation_to_output={true}, \
replica_count=2, num_partitions=4, frontend_attributes={a=\"b\"}

FileNames
1 \"a.py\"

FunctionNames
1 \"f\"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=4 column=1 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%other {
  %x = f32[] parameter(0)
  ROOT %y = f32[] copy(%x)
}, execution_thread=\"host\"

ENTRY %main {
  %p = f32[2,3] parameter(0), metadata={op_name=\"p\" stack_frame_id=1}
  %i = s32[] parameter(1)
  ROOT %r = f32[2,3] copy(%p)
}
";
    assert_eq!(round_trip(text), text);
}

#[test]
fn layouts_of_the_entry_follow_its_instructions() {
    let text = "HloModule m\n\nENTRY %main {\n  ROOT %p = f32[2,3]{0,1} parameter(0)\n}\n";
    assert_eq!(round_trip(text), text);
}

#[test]
fn names_of_axes_are_escaped() {
    let text = "HloModule m\n\nENTRY %main {\n  ROOT %p = f32[4] parameter(0), \
                sharding={mesh['a\\\\\\n\\''=4], [{'a\\\\\\n\\''}]}\n}\n";
    assert_eq!(round_trip(text), text);
}

#[test]
fn an_origin_of_another_shape_stays() {
    let text = "HloModule m\n\n%wrapped {\n  %a = s32[] parameter(0)\n  ROOT %b = s32[] negate(%a), origin={{\"v\"}}\n}\n\n\
                ENTRY %main {\n  %p = s32[] parameter(0)\n  %start = ((s32[]), s32[], s32[]) async-start(%p), \
                calls=%wrapped, origin={{\"v\"}}\n  ROOT %done = s32[] async-done(%start)\n}\n";
    assert_eq!(round_trip(text), text);
}

#[test]
fn what_is_said_of_a_chain_around_another_one_reads_the_same_again() {
    let chain = |operation: &str, called: &str, attributes: &str| {
        format!(
            "  %start = ((f32[4]), f32[4], s32[]) {operation}-start(%p){called}\n  \
             ROOT %done = f32[4] {operation}-done(%start){attributes}\n}}\n"
        )
    };
    let outer = |called: &str| chain("async", &format!(", calls={called}"), ", frontend_attributes={a=\"b\"}");
    let text = format!(
        "HloModule m\n\n%inner {{\n  %p = f32[4] parameter(0)\n{}\n%middle {{\n  %p = f32[4] parameter(0)\n{}\n\
         ENTRY %main {{\n  %p = f32[4] parameter(0)\n{}",
        chain("negate", "", ""),
        chain("async", ", calls=%inner", ""),
        outer("%middle")
    );
    let printed = round_trip(&text);
    assert_eq!(printed.matches("frontend_attributes={a=\"b\"}").count(), 4, "{printed}");
    assert_eq!(round_trip(&printed), printed);
}

#[test]
fn what_is_elided_stays_so() {
    let text = "HloModule m\n\nENTRY %main {\n  ROOT %c = f32[2,3] constant({...})\n}\n";
    assert_eq!(round_trip(text), text);
    // It is known by the name that it has in the end.
    let text = "HloModule m ENTRY e { ROOT r = add(f32[2] constant({1, 2}), f32[2] constant({...})) }";
    insta::assert_snapshot!(round_trip(text), @r"
    HloModule m

    ENTRY %e {
      %constant.anon = f32[2] constant({1, 2})
      %constant.anon.1 = f32[2] constant({...})
      ROOT %r = f32[2] add(%constant.anon, %constant.anon.1)
    }
    ");
}

#[test]
fn names_become_legal_and_unique() {
    let mut module =
        parse("HloModule m\n\nENTRY main {\n  a = f32[] parameter(0)\n  ROOT b = f32[] copy(a)\n}", "m").unwrap();
    module.proto.name = "jit(f)".to_owned();
    for (instruction, name) in module.proto.computations[0].instructions.iter_mut().zip(["f32", "f32_"]) {
        instruction.name = name.into();
    }
    insta::assert_snapshot!(print(&module), @r"
    HloModule jit_f_
    
    ENTRY %main {
      %f32_ = f32[] parameter(0)
      ROOT %f32_.clone1 = f32[] copy(%f32_)
    }
    ");
}

#[test]
fn broken_modules_are_printed_as_far_as_they_go() {
    let mut module =
        parse("HloModule m\n\nENTRY main {\n  a = f32[2] constant({1, 2})\n  ROOT b = f32[2] copy(a)\n}", "m").unwrap();
    let instructions = &mut module.proto.computations[0].instructions;
    instructions[0].literal.get_or_insert_default().f32s.pop();
    instructions[1].operand_ids = [7].into();
    let leaf = OriginalValueElementProto {
        shape_index: vec![i64::MAX; 200],
        original_array: Some(OriginalArrayProto::default()).into(),
        ..Default::default()
    };
    let origin = OriginalValueProto { elements: vec![leaf], ..Default::default() };
    instructions[0].details_mut().original_value = Some(origin).into();
    let printed = print(&module);
    assert!(printed.contains("constant({...})") && printed.contains("copy(%missing.7)"), "{printed}");
}
