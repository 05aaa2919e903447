use super::*;
use crate::collective::{ArraySpec, CollectiveKind, ReduceOp};
use crate::dtype::DType;
use crate::hlo;

/// Lowers a module for processes with this many devices each, and checks that the result is a valid module.
fn lowered(text: &str, replicas: i64, partitions: i64, devices_per_process: &[u32]) -> Result<Lowered, Error> {
    let module = hlo::parse(text, "test.hlo").unwrap_or_else(|error| panic!("{error}"));
    hlo::verify(&module, replicas, partitions).unwrap_or_else(|error| panic!("{error}"));
    let lowered = lower(&module, &Layout { replicas, partitions, devices_per_process: devices_per_process.to_vec() })?;
    let printed = hlo::print(&lowered.module);
    let local_devices = i64::from(devices_per_process[0]);
    hlo::verify(&lowered.module, local_devices, 1).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    hlo::parse(&printed, "printed.hlo").unwrap_or_else(|error| panic!("{error}\n{printed}"));
    Ok(lowered)
}

/// Lowered for four processes with two devices each.
fn over_four(text: &str) -> Lowered {
    lowered(text, 1, 8, &[2; 4]).unwrap_or_else(|error| panic!("{error}"))
}

fn error(text: &str) -> String {
    lowered(text, 1, 8, &[2; 4]).unwrap_err().to_string()
}

/// The lowered module's text without its header, its reductions and what every custom call says.
fn text_of(lowered: &Lowered) -> String {
    let text = hlo::print(&lowered.module);
    let computations = text.split("\n\n").skip(1).filter(|computation| !computation.starts_with("%add "));
    let text = computations.collect::<Vec<_>>().join("\n\n");
    text.replace(", custom_call_has_side_effect=true, api_version=API_VERSION_TYPED_FFI", "")
        .replace("custom_call_target=\"spmd_run.collective\", ", "")
        .trim()
        .to_owned()
}

fn kinds(lowered: &Lowered) -> Vec<(&str, &CollectiveKind)> {
    lowered.collectives.iter().map(|spec| (spec.name.as_str(), &spec.kind)).collect()
}

fn module(computations: &str) -> String {
    format!(
        "HloModule m\n\nadd {{ x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT add = f32[] add(x, y) }}\n\n{computations}"
    )
}

const EVERYONE: &str = "channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true";

fn all_reduce(attributes: &str) -> String {
    module(&format!(
        "ENTRY main {{
  p = f32[4,2] parameter(0)
  ROOT all-reduce.7 = f32[4,2] all-reduce(p), {attributes}, to_apply=add
}}"
    ))
}

#[test]
fn a_collective_across_processes_becomes_a_custom_call() {
    let lowered = over_four(&all_reduce(EVERYONE));
    insta::assert_snapshot!(hlo::print(&lowered.module), @r#"
    HloModule m

    %add {
      %x = f32[] parameter(0)
      %y = f32[] parameter(1)
      ROOT %add = f32[] add(%x, %y)
    }

    ENTRY %main {
      %collectives.1 = u32[] constant(0)
      %p = f32[4,2] parameter(0)
      %all-reduce.7 = (f32[4,2], u32[]) custom-call(%p, %collectives.1), custom_call_target="spmd_run.collective", operand_layout_constraints={f32[4,2]{1,0}, u32[]}, custom_call_has_side_effect=true, api_version=API_VERSION_TYPED_FFI, backend_config="{key = 0 : i64}"
      ROOT %all-reduce.7.1 = f32[4,2] get-tuple-element(%all-reduce.7), index=0
      %all-reduce.7.2 = u32[] get-tuple-element(%all-reduce.7), index=1
    }
    "#);
    let array = ArraySpec::new(DType::F32, [4, 2]);
    assert_eq!(
        lowered.collectives,
        [CollectiveSpec {
            key: 0,
            name: "all-reduce.7".to_owned(),
            kind: CollectiveKind::AllReduce { op: ReduceOp::Sum },
            groups: vec![(0..8).collect()],
            operands: vec![array.clone()],
            results: vec![array],
        }]
    );
}

#[test]
fn a_collective_inside_processes_stays() {
    let inside = "channel_id=1, replica_groups={{0,1},{4,5},{2,3},{6,7}}, use_global_device_ids=true";
    let lowered = over_four(&all_reduce(inside));
    assert!(lowered.collectives.is_empty());
    insta::assert_snapshot!(text_of(&lowered), @r"
    ENTRY %main {
      %p = f32[4,2] parameter(0)
      ROOT %all-reduce.7 = f32[4,2] all-reduce(%p), replica_groups={{0,1}}, to_apply=%add
    }
    ");

    let ranks_differ = "channel_id=1, replica_groups={{0,1},{3,2},{4,5},{6,7}}, use_global_device_ids=true";
    assert_eq!(over_four(&all_reduce(ranks_differ)).collectives.len(), 1);
}

#[test]
fn devices_alone_in_their_groups_keep_their_operands() {
    let alone = "replica_groups={{0}}";
    insta::assert_snapshot!(text_of(&over_four(&all_reduce(alone))), @r"
    ENTRY %main {
      %p = f32[4,2] parameter(0)
      ROOT %all-reduce.7 = f32[4,2] copy(%p)
    }
    ");

    let text = module(
        "ENTRY main {
  p = f32[4] parameter(0)
  q = f32[2] parameter(1)
  both = (f32[4], f32[2]) all-reduce(p, q), replica_groups={}, to_apply=add
  first = f32[4] get-tuple-element(both), index=0
  ROOT same = f32[4] collective-permute(first), source_target_pairs={{0,0}}
}",
    );
    insta::assert_snapshot!(text_of(&over_four(&text)), @r"
    ENTRY %main {
      %p = f32[4] parameter(0)
      %q = f32[2] parameter(1)
      %both = (f32[4], f32[2]) tuple(%p, %q)
      %first = f32[4] get-tuple-element(%both), index=0
      ROOT %same = f32[4] copy(%first)
    }
    ");
}

#[test]
fn several_operands_make_one_custom_call() {
    let text = module(&format!(
        "ENTRY main {{
  p = f32[4] parameter(0)
  q = bf16[2,3] parameter(1)
  ROOT both = (f32[4], bf16[2,3]) all-reduce(p, q), {EVERYONE}, to_apply=add
}}"
    ));
    insta::assert_snapshot!(text_of(&over_four(&text)), @r#"
    ENTRY %main {
      %collectives.1 = u32[] constant(0)
      %p = f32[4] parameter(0)
      %q = bf16[2,3] parameter(1)
      %both = (f32[4], bf16[2,3], u32[]) custom-call(%p, %q, %collectives.1), operand_layout_constraints={f32[4]{0}, bf16[2,3]{1,0}, u32[]}, backend_config="{key = 0 : i64}"
      %both.1 = f32[4] get-tuple-element(%both), index=0
      %both.2 = bf16[2,3] get-tuple-element(%both), index=1
      ROOT %both.3 = (f32[4], bf16[2,3]) tuple(%both.1, %both.2)
      %both.4 = u32[] get-tuple-element(%both), index=2
    }
    "#);
}

#[test]
fn every_kind_is_described() {
    let text = module(
        "ENTRY main {
  p = f32[16,4] parameter(0)
  o = s32[2] parameter(1)
  gather = f32[64,4] all-gather(p), channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}, dimensions={0}, use_global_device_ids=true
  scatter = f32[16,1] reduce-scatter(p), channel_id=1, replica_groups=[2,4]<=[8], dimensions={1}, use_global_device_ids=true, to_apply=add
  array = f32[16,4] all-to-all(p), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={1}
  tuple = (f32[16,4], f32[16,4]) all-to-all(p, p), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}
  permute = f32[16,4] collective-permute(p), channel_id=1, source_target_pairs={{0,4},{4,0},{2,3}}
  broadcast = f32[16,4] collective-broadcast(p), channel_id=1, replica_groups={{7,0},{1,2}}
  ragged = f32[16,4] ragged-all-to-all(p, permute, o, o, o, o), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}
  ROOT out = (f32[64,4], f32[16,1], f32[16,4], (f32[16,4], f32[16,4]), f32[16,4], f32[16,4]) tuple(gather, scatter, array, tuple, broadcast, ragged)
}",
    );
    let lowered = over_four(&text);
    insta::assert_debug_snapshot!(kinds(&lowered), @r#"
    [
        (
            "gather",
            AllGather {
                dim: 0,
            },
        ),
        (
            "scatter",
            ReduceScatter {
                op: Sum,
                dim: 1,
            },
        ),
        (
            "array",
            AllToAll {
                split_dim: Some(
                    1,
                ),
            },
        ),
        (
            "tuple",
            AllToAll {
                split_dim: None,
            },
        ),
        (
            "permute",
            CollectivePermute {
                pairs: [
                    (
                        0,
                        4,
                    ),
                    (
                        2,
                        3,
                    ),
                    (
                        4,
                        0,
                    ),
                ],
            },
        ),
        (
            "broadcast",
            CollectivePermute {
                pairs: [
                    (
                        7,
                        7,
                    ),
                    (
                        7,
                        0,
                    ),
                    (
                        1,
                        1,
                    ),
                    (
                        1,
                        2,
                    ),
                ],
            },
        ),
        (
            "ragged",
            RaggedAllToAll,
        ),
    ]
    "#);
    assert_eq!(lowered.collectives[4].groups, [vec![0, 4], vec![1], vec![2, 3], vec![5], vec![6], vec![7]]);
    assert_eq!(lowered.collectives[5].groups, [vec![0, 7], vec![1, 2], vec![3], vec![4], vec![5], vec![6]]);
}

#[test]
fn reductions_are_recognised() {
    let op_of = |dtype: &str, computation: &str| {
        let text = format!(
            "HloModule m
r {{ {computation} }}
ENTRY main {{
  p = {dtype}[4] parameter(0)
  ROOT all-reduce.1 = {dtype}[4] all-reduce(p), {EVERYONE}, to_apply=r
}}"
        );
        lowered(&text, 1, 8, &[2; 4]).map(|lowered| lowered.collectives[0].kind.clone())
    };
    let binary = |dtype: &str, opcode: &str| {
        let scalar = format!("{dtype}[]");
        let computation =
            format!("x = {scalar} parameter(0)  y = {scalar} parameter(1)  ROOT z = {scalar} {opcode}(y, x)");
        op_of(dtype, &computation).ok()
    };
    let reduce = |op| Some(CollectiveKind::AllReduce { op });
    assert_eq!(binary("f32", "add"), reduce(ReduceOp::Sum));
    assert_eq!(binary("s8", "multiply"), reduce(ReduceOp::Product));
    assert_eq!(binary("f16", "minimum"), reduce(ReduceOp::Min));
    assert_eq!(binary("u64", "maximum"), reduce(ReduceOp::Max));
    assert_eq!(binary("u32", "xor"), reduce(ReduceOp::Xor));
    assert_eq!(binary("pred", "and"), reduce(ReduceOp::And));
    assert_eq!(binary("pred", "add"), reduce(ReduceOp::Or));
    assert_eq!(binary("pred", "minimum"), reduce(ReduceOp::And));
    assert_eq!(binary("c64", "maximum"), None);
    assert_eq!(binary("f32", "subtract"), None);
    let promoted = "x = bf16[] parameter(0)  y = bf16[] parameter(1)  xf = f32[] convert(x)  yf = f32[] convert(y)
      z = f32[] add(xf, yf)  ROOT zb = bf16[] convert(z)";
    assert_eq!(op_of("bf16", promoted).ok(), reduce(ReduceOp::Sum));
    let twice = "x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT z = f32[] add(x, x)";
    insta::assert_snapshot!(op_of("f32", twice).unwrap_err(), @"all-reduce.1: its computation 'r' is none of sum, product, min, max, and, or, xor of its two parameters: such a reduction cannot run over several processes");
}

#[test]
fn loops_carry_the_order() {
    let text = module(&format!(
        "body {{
  state = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  v = f32[4] get-tuple-element(state), index=1
  sum = f32[4] all-reduce(v), {EVERYONE}, to_apply=add
  ROOT out = (s32[], f32[4]) tuple(next, sum)
}}

cond {{
  state = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(5)
  ROOT more = pred[] compare(i, n), direction=LT
}}

ENTRY main {{
  init = (s32[], f32[4]) parameter(0)
  loop = (s32[], f32[4]) while(init), condition=cond, body=body
  v = f32[4] get-tuple-element(loop), index=1
  after = f32[4] all-reduce(v), {EVERYONE}, to_apply=add
  ROOT out = ((s32[], f32[4]), f32[4]) tuple(loop, after)
}}"
    ));
    insta::assert_snapshot!(text_of(&over_four(&text)), @r#"
    %body {
      %state = (s32[], f32[4], u32[]) parameter(0)
      %state.2 = u32[] get-tuple-element(%state), index=2
      %i = s32[] get-tuple-element(%state), index=0
      %one = s32[] constant(1)
      %next = s32[] add(%i, %one)
      %v = f32[4] get-tuple-element(%state), index=1
      %sum = (f32[4], u32[]) custom-call(%v, %state.2), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 0 : i64}"
      %sum.1 = f32[4] get-tuple-element(%sum), index=0
      %sum.2 = u32[] get-tuple-element(%sum), index=1
      %out = (s32[], f32[4]) tuple(%next, %sum.1)
      ROOT %collectives.1 = (s32[], f32[4], u32[]) tuple(%next, %sum.1, %sum.2)
    }

    %cond {
      %state.1 = (s32[], f32[4], u32[]) parameter(0)
      %state.1.1 = u32[] get-tuple-element(%state.1), index=2
      %i.1 = s32[] get-tuple-element(%state.1), index=0
      %n = s32[] constant(5)
      ROOT %more = pred[] compare(%i.1, %n), direction=LT
    }

    ENTRY %main {
      %collectives.2 = u32[] constant(0)
      %init = (s32[], f32[4]) parameter(0)
      %collectives.3 = s32[] get-tuple-element(%init), index=0
      %collectives.4 = f32[4] get-tuple-element(%init), index=1
      %collectives.5 = (s32[], f32[4], u32[]) tuple(%collectives.3, %collectives.4, %collectives.2)
      %loop = (s32[], f32[4], u32[]) while(%collectives.5), condition=%cond, body=%body
      %loop.1 = s32[] get-tuple-element(%loop), index=0
      %loop.2 = f32[4] get-tuple-element(%loop), index=1
      %loop.3 = (s32[], f32[4]) tuple(%loop.1, %loop.2)
      %loop.4 = u32[] get-tuple-element(%loop), index=2
      %v.1 = f32[4] get-tuple-element(%loop), index=1
      %after = (f32[4], u32[]) custom-call(%v.1, %loop.4), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 1 : i64}"
      %after.1 = f32[4] get-tuple-element(%after), index=0
      %after.2 = u32[] get-tuple-element(%after), index=1
      ROOT %out.1 = ((s32[], f32[4]), f32[4]) tuple(%loop.3, %after.1)
    }
    "#);
}

#[test]
fn branches_carry_the_order_whether_they_hold_collectives_or_not() {
    let text = module(&format!(
        "sums {{
  v = f32[4] parameter(0)
  ROOT sum = f32[4] all-reduce(v), {EVERYONE}, to_apply=add
}}

keeps {{ ROOT v = f32[4] parameter(0) }}

ENTRY main {{
  p = pred[] parameter(0)
  v = f32[4] parameter(1)
  ROOT out = f32[4] conditional(p, v, v), true_computation=sums, false_computation=keeps
}}"
    ));
    insta::assert_snapshot!(text_of(&over_four(&text)), @r#"
    %sums {
      %v = (f32[4], u32[]) parameter(0)
      %v.3 = f32[4] get-tuple-element(%v), index=0
      %v.4 = u32[] get-tuple-element(%v), index=1
      %sum = (f32[4], u32[]) custom-call(%v.3, %v.4), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 0 : i64}"
      %sum.1 = f32[4] get-tuple-element(%sum), index=0
      %sum.2 = u32[] get-tuple-element(%sum), index=1
      ROOT %collectives.1 = (f32[4], u32[]) tuple(%sum.1, %sum.2)
    }

    %keeps {
      %v.1 = (f32[4], u32[]) parameter(0)
      %v.1.1 = f32[4] get-tuple-element(%v.1), index=0
      %v.1.2 = u32[] get-tuple-element(%v.1), index=1
      ROOT %collectives.2 = (f32[4], u32[]) tuple(%v.1.1, %v.1.2)
    }

    ENTRY %main {
      %collectives.3 = u32[] constant(0)
      %p = pred[] parameter(0)
      %v.2 = f32[4] parameter(1)
      %collectives.4 = (f32[4], u32[]) tuple(%v.2, %collectives.3)
      %collectives.5 = (f32[4], u32[]) tuple(%v.2, %collectives.3)
      %out = (f32[4], u32[]) conditional(%p, %collectives.4, %collectives.5), true_computation=%sums, false_computation=%keeps
      ROOT %out.1 = f32[4] get-tuple-element(%out), index=0
      %out.2 = u32[] get-tuple-element(%out), index=1
    }
    "#);
}

#[test]
fn each_call_site_has_collectives_of_its_own() {
    let text = module(&format!(
        "inner {{
  v = f32[4] parameter(0)
  ROOT sum = f32[4] all-reduce(v), {EVERYONE}, to_apply=add
}}

outer {{
  v = f32[4] parameter(0)
  a = f32[4] call(v), to_apply=inner
  b = f32[4] call(v), to_apply=inner
  ROOT s = f32[4] add(a, b)
}}

ENTRY main {{
  v = f32[4] parameter(0)
  a = f32[4] call(v), to_apply=outer
  ROOT b = f32[4] call(a), to_apply=outer
}}"
    ));
    let lowered = over_four(&text);
    insta::assert_debug_snapshot!(kinds(&lowered), @r#"
    [
        (
            "sum",
            AllReduce {
                op: Sum,
            },
        ),
        (
            "sum.1",
            AllReduce {
                op: Sum,
            },
        ),
        (
            "sum.2",
            AllReduce {
                op: Sum,
            },
        ),
        (
            "sum.3",
            AllReduce {
                op: Sum,
            },
        ),
    ]
    "#);
    insta::assert_snapshot!(text_of(&lowered), @r#"
    %inner {
      %collectives.1 = u32[] parameter(1)
      %v = f32[4] parameter(0)
      %sum = (f32[4], u32[]) custom-call(%v, %collectives.1), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 0 : i64}"
      %sum.4 = f32[4] get-tuple-element(%sum), index=0
      %sum.5 = u32[] get-tuple-element(%sum), index=1
      ROOT %collectives.2 = (f32[4], u32[]) tuple(%sum.4, %sum.5)
    }

    %inner.1 {
      %collectives.3 = u32[] parameter(1)
      %v.3 = f32[4] parameter(0)
      %sum.1 = (f32[4], u32[]) custom-call(%v.3, %collectives.3), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 1 : i64}"
      %sum.1.1 = f32[4] get-tuple-element(%sum.1), index=0
      %sum.1.2 = u32[] get-tuple-element(%sum.1), index=1
      ROOT %collectives.4 = (f32[4], u32[]) tuple(%sum.1.1, %sum.1.2)
    }

    %inner.2 {
      %collectives.5 = u32[] parameter(1)
      %v.4 = f32[4] parameter(0)
      %sum.2 = (f32[4], u32[]) custom-call(%v.4, %collectives.5), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 2 : i64}"
      %sum.2.1 = f32[4] get-tuple-element(%sum.2), index=0
      %sum.2.2 = u32[] get-tuple-element(%sum.2), index=1
      ROOT %collectives.6 = (f32[4], u32[]) tuple(%sum.2.1, %sum.2.2)
    }

    %inner.3 {
      %collectives.7 = u32[] parameter(1)
      %v.5 = f32[4] parameter(0)
      %sum.3 = (f32[4], u32[]) custom-call(%v.5, %collectives.7), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 3 : i64}"
      %sum.3.1 = f32[4] get-tuple-element(%sum.3), index=0
      %sum.3.2 = u32[] get-tuple-element(%sum.3), index=1
      ROOT %collectives.8 = (f32[4], u32[]) tuple(%sum.3.1, %sum.3.2)
    }

    %outer {
      %collectives.9 = u32[] parameter(1)
      %v.1 = f32[4] parameter(0)
      %a = (f32[4], u32[]) call(%v.1, %collectives.9), to_apply=%inner.2
      %a.3 = f32[4] get-tuple-element(%a), index=0
      %a.4 = u32[] get-tuple-element(%a), index=1
      %b = (f32[4], u32[]) call(%v.1, %a.4), to_apply=%inner.3
      %b.3 = f32[4] get-tuple-element(%b), index=0
      %b.4 = u32[] get-tuple-element(%b), index=1
      %s = f32[4] add(%a.3, %b.3)
      ROOT %collectives.10 = (f32[4], u32[]) tuple(%s, %b.4)
    }

    %outer.1 {
      %collectives.11 = u32[] parameter(1)
      %v.1.1 = f32[4] parameter(0)
      %a.2 = (f32[4], u32[]) call(%v.1.1, %collectives.11), to_apply=%inner
      %a.2.1 = f32[4] get-tuple-element(%a.2), index=0
      %a.2.2 = u32[] get-tuple-element(%a.2), index=1
      %b.2 = (f32[4], u32[]) call(%v.1.1, %a.2.2), to_apply=%inner.1
      %b.2.1 = f32[4] get-tuple-element(%b.2), index=0
      %b.2.2 = u32[] get-tuple-element(%b.2), index=1
      %s.1 = f32[4] add(%a.2.1, %b.2.1)
      ROOT %collectives.12 = (f32[4], u32[]) tuple(%s.1, %b.2.2)
    }

    ENTRY %main {
      %collectives.13 = u32[] constant(0)
      %v.2 = f32[4] parameter(0)
      %a.1 = (f32[4], u32[]) call(%v.2, %collectives.13), to_apply=%outer
      %a.1.1 = f32[4] get-tuple-element(%a.1), index=0
      %a.1.2 = u32[] get-tuple-element(%a.1), index=1
      %b.1 = (f32[4], u32[]) call(%a.1.1, %a.1.2), to_apply=%outer.1
      ROOT %b.1.1 = f32[4] get-tuple-element(%b.1), index=0
      %b.1.2 = u32[] get-tuple-element(%b.1), index=1
    }
    "#);
}

#[test]
fn a_collective_in_a_loop_condition_is_in_order_too() {
    let text = module(&format!(
        "body {{ ROOT v = f32[4] parameter(0) }}

cond {{
  v = f32[4] parameter(0)
  sum = f32[4] all-reduce(v), {EVERYONE}, to_apply=add
  zero = f32[] constant(0)
  total = f32[] reduce(sum, zero), dimensions={{0}}, to_apply=add
  ROOT more = pred[] compare(total, zero), direction=LT
}}

ENTRY main {{
  v = f32[4] parameter(0)
  loop = f32[4] while(v), condition=cond, body=body
  ROOT after = f32[4] all-reduce(loop), {EVERYONE}, to_apply=add
}}"
    ));
    insta::assert_snapshot!(text_of(&over_four(&text)), @r#"
    %body {
      %v = (f32[4], u32[]) parameter(0)
      %v.3 = f32[4] get-tuple-element(%v), index=0
      %v.4 = u32[] get-tuple-element(%v), index=1
      %collectives.1 = u32[] add(%v.4, %v.4)
      ROOT %collectives.2 = (f32[4], u32[]) tuple(%v.3, %collectives.1)
    }

    %cond {
      %v.1 = (f32[4], u32[]) parameter(0)
      %v.1.1 = f32[4] get-tuple-element(%v.1), index=0
      %v.1.2 = u32[] get-tuple-element(%v.1), index=1
      %sum = (f32[4], u32[]) custom-call(%v.1.1, %v.1.2), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 0 : i64}"
      %sum.1 = f32[4] get-tuple-element(%sum), index=0
      %sum.2 = u32[] get-tuple-element(%sum), index=1
      %zero = f32[] constant(0)
      %total = f32[] reduce(%sum.1, %zero), dimensions={0}, to_apply=%add
      ROOT %more = pred[] compare(%total, %zero), direction=LT
    }

    ENTRY %main {
      %collectives.3 = u32[] constant(0)
      %v.2 = f32[4] parameter(0)
      %collectives.4 = (f32[4], u32[]) tuple(%v.2, %collectives.3)
      %loop = (f32[4], u32[]) while(%collectives.4), condition=%cond, body=%body
      %loop.1 = f32[4] get-tuple-element(%loop), index=0
      %loop.2 = u32[] get-tuple-element(%loop), index=1
      %after = (f32[4], u32[]) custom-call(%loop.1, %loop.2), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 1 : i64}"
      ROOT %after.1 = f32[4] get-tuple-element(%after), index=0
      %after.2 = u32[] get-tuple-element(%after), index=1
    }
    "#);
}

#[test]
fn asynchronous_collectives_become_synchronous() {
    let text = module(
        "wrapped {
  w = f32[4] parameter(0)
  ROOT inner = f32[1] reduce-scatter(w), channel_id=4, replica_groups={{0,2,4,6},{1,3,5,7}}, dimensions={0}, use_global_device_ids=true, to_apply=add
}

ENTRY main {
  p = f32[4] parameter(0)
  reduce = f32[4] all-reduce-start(p), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=add
  gather = (f32[4], f32[8]) all-gather-start(p), channel_id=2, replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}, use_global_device_ids=true
  permute = (f32[4], f32[4], u32[], u32[]) collective-permute-start(p), channel_id=3, source_target_pairs={{0,7}}
  scatter = ((f32[4]), f32[1]) async-start(p), calls=wrapped
  update = ((f32[4]), f32[1]) async-update(scatter)
  reduced = f32[4] all-reduce-done(reduce)
  gathered = f32[8] all-gather-done(gather)
  permuted = f32[4] collective-permute-done(permute)
  scattered = f32[1] async-done(update)
  ROOT out = (f32[4], f32[8], f32[4], f32[1]) tuple(reduced, gathered, permuted, scattered)
}",
    );
    insta::assert_snapshot!(text_of(&over_four(&text)), @r#"
    %wrapped {
      %collectives.1 = u32[] parameter(1)
      %w = f32[4] parameter(0)
      %inner = (f32[1], u32[]) custom-call(%w, %collectives.1), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 0 : i64}"
      %inner.1 = f32[1] get-tuple-element(%inner), index=0
      %inner.2 = u32[] get-tuple-element(%inner), index=1
      ROOT %collectives.2 = (f32[1], u32[]) tuple(%inner.1, %inner.2)
    }

    ENTRY %main {
      %collectives.3 = u32[] constant(0)
      %p = f32[4] parameter(0)
      %reduce = (f32[4], u32[]) custom-call(%p, %collectives.3), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 1 : i64}"
      %reduce.1 = f32[4] get-tuple-element(%reduce), index=0
      %reduce.2 = u32[] get-tuple-element(%reduce), index=1
      %gather = f32[8] all-gather(%p), replica_groups={{0,1}}, dimensions={0}
      %permute = (f32[4], u32[]) custom-call(%p, %reduce.2), operand_layout_constraints={f32[4]{0}, u32[]}, backend_config="{key = 2 : i64}"
      %permute.1 = f32[4] get-tuple-element(%permute), index=0
      %permute.2 = u32[] get-tuple-element(%permute), index=1
      %scatter = (f32[1], u32[]) call(%p, %permute.2), to_apply=%wrapped
      %scatter.1 = f32[1] get-tuple-element(%scatter), index=0
      %scatter.2 = u32[] get-tuple-element(%scatter), index=1
      ROOT %out = (f32[4], f32[8], f32[4], f32[1]) tuple(%reduce.1, %gather, %permute.1, %scatter.1)
    }
    "#);
}

/// What comes after a large collective can start while that is under way: its memory is none that a token had.
#[test]
fn tokens_are_kept_to_the_end_beside_large_collectives() {
    let text = |len: usize| {
        module(&format!(
            "ENTRY main {{
  p = f32[{len}] parameter(0)
  first = f32[{len}] all-reduce(p), {EVERYONE}, to_apply=add
  second = f32[{len}] all-reduce(first), {EVERYONE}, to_apply=add
  ROOT out = (f32[{len}], f32[{len}]) tuple(second, p)
}}"
        ))
    };
    assert!(!hlo::print(&over_four(&text(500_000)).module).contains(MARKER_TARGET));
    let lowered = over_four(&text(600_000));
    let printed = text_of(&lowered);
    let markers: Vec<&str> = printed.lines().filter(|line| line.contains(MARKER_TARGET)).collect();
    assert_eq!(markers.len(), 9, "{printed}");
    insta::assert_snapshot!(markers[8].trim(), @r#"%end.9 = u32[] custom-call(%first.2, %second.2, %second.1, %p), custom_call_target="spmd_run.end""#);
}

#[test]
fn ids_come_from_the_runtime() {
    let text = "HloModule m

fused {
  id = u32[] partition-id()
  one = u32[] constant(1)
  ROOT sum = u32[] add(id, one)
}

ENTRY main {
  r = u32[] replica-id()
  p = u32[] fusion(), kind=kLoop, calls=fused
  ROOT out = (u32[], u32[]) tuple(r, p)
}";
    insta::assert_snapshot!(text_of(&over_four(text)), @r#"
    %fused {
      %id = u32[] custom-call(), custom_call_target="spmd_run.logical_id", operand_layout_constraints={}, api_version=API_VERSION_TYPED_FFI, backend_config="{kind = \"partition\"}"
      %one = u32[] constant(1)
      ROOT %sum = u32[] add(%id, %one)
    }

    ENTRY %main {
      %r = u32[] constant(0)
      %p = u32[] call(), to_apply=%fused
      ROOT %out = (u32[], u32[]) tuple(%r, %p)
    }
    "#);
    let text = "HloModule m
ENTRY main { r = u32[] replica-id()  p = u32[] partition-id()  ROOT out = (u32[], u32[]) tuple(r, p) }";
    insta::assert_snapshot!(text_of(&lowered(text, 4, 2, &[4, 4]).unwrap()), @r#"
    ENTRY %main {
      %r = u32[] custom-call(), custom_call_target="spmd_run.logical_id", operand_layout_constraints={}, api_version=API_VERSION_TYPED_FFI, backend_config="{kind = \"replica\"}"
      %p = u32[] custom-call(), custom_call_target="spmd_run.logical_id", operand_layout_constraints={}, api_version=API_VERSION_TYPED_FFI, backend_config="{kind = \"partition\"}"
      ROOT %out = (u32[], u32[]) tuple(%r, %p)
    }
    "#);
}

#[test]
fn what_was_for_the_partitioner_goes_and_the_rest_stays() {
    let text = "HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, buffer_donor={ (1, {}) }, frontend_attributes={xla.sdy.meshes=\"{}\",mine=\"1\"}, num_partitions=8

ENTRY main {
  p = f32[4] parameter(0), sharding={devices=[8]<=[8]}, metadata={op_name=\"weights\"}
  q = f32[4] parameter(1), sharding={replicated}
  s = f32[4] add(p, q)
  ROOT out = (f32[4]) tuple(s)
}";
    insta::assert_snapshot!(hlo::print(&over_four(text).module), @r#"
    HloModule m, input_output_alias={ {0}: (0, {}) }, buffer_donor={ (1, {}) }, frontend_attributes={mine="1"}

    ENTRY %main {
      %p = f32[4] parameter(0), metadata={op_name="weights"}
      %q = f32[4] parameter(1)
      %s = f32[4] add(%p, %q)
      ROOT %out = (f32[4]) tuple(%s)
    }
    "#);
}

#[test]
fn programs_that_cannot_run_are_refused() {
    let text = "HloModule m
ENTRY main {
  t = token[] after-all()
  p = f32[4] parameter(0)
  in = (f32[4], token[]) infeed(t)
  s = (f32[4], u32[], token[]) send(p, t), channel_id=2
  d = token[] send-done(s), channel_id=2
  ROOT out = f32[4] get-tuple-element(in), index=0
}";
    insta::assert_snapshot!(error(text), @"the program cannot run over several processes: in (infeed): there is nobody to feed it; s (send): point-to-point channels are not supported, use collective-permute");
    let mapped = module(&format!(
        "f {{
  x = f32[] parameter(0)
  ROOT s = f32[] all-reduce(x), {EVERYONE}, to_apply=add
}}
ENTRY main {{
  p = f32[4] parameter(0)
  ROOT m = f32[4] map(p), dimensions={{0}}, to_apply=f
}}"
    ));
    insta::assert_snapshot!(error(&mapped), @"the program cannot run over several processes: m (map) calls a computation with collectives");
}

#[test]
fn devices_must_fit() {
    let text = all_reduce(EVERYONE);
    insta::assert_snapshot!(lowered(&text, 1, 8, &[2, 2]).unwrap_err(), @"the program needs 8 device(s) (1 replica(s) × 8 partition(s)), the processes have 4");
    insta::assert_snapshot!(lowered(&text, 1, 8, &[4, 2, 2]).unwrap_err(), @"process 1 has 2 device(s), process 0 has 4: a program that spans processes needs the same number of devices on each");
}

#[test]
fn shapes_must_fit_the_groups() {
    let module = |instruction: &str| {
        module(&format!("ENTRY main {{\n  p = f32[6,4] parameter(0)\n  ROOT c = {instruction}\n}}"))
    };
    let lower = |text: &str| {
        let module = hlo::parse(&module(text), "test.hlo").unwrap();
        let layout = Layout { replicas: 1, partitions: 8, devices_per_process: vec![2; 4] };
        lower(&module, &layout).unwrap_err().to_string()
    };
    let pairs = "channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}, use_global_device_ids=true";
    insta::assert_snapshot!(lower(&format!("f32[18,4] all-gather(p), {pairs}")), @"c: its shapes do not fit groups of 2 along dimension 0");
    let uneven = "channel_id=1, replica_groups={{0,1,2},{3,4,5},{6,7}}, dimensions={0}, use_global_device_ids=true";
    insta::assert_snapshot!(lower(&format!("f32[18,4] all-gather(p), {uneven}")), @"c: its replica groups differ in size");
    insta::assert_snapshot!(
        lower("f32[6,4] all-to-all(p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}"),
        @"c: dimension 0 cannot be cut into 4 equal parts"
    );
    insta::assert_snapshot!(
        lower("(f32[6,4]) all-to-all(p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}"),
        @"c: a group of 4 needs 4 operands of one shape"
    );
}

#[test]
fn pairs_inside_one_process_only_are_not_taken_for_those_of_all() {
    let text = "HloModule m, num_partitions=4\n\nENTRY e {\n  p = s32[2] parameter(0)\n  \
                ROOT shift = s32[2] collective-permute(p), channel_id=1, source_target_pairs={{0,1}}\n}\n";
    let module = crate::hlo::parse(text, "m.hlo").unwrap();
    let layout = Layout { replicas: 1, partitions: 4, devices_per_process: vec![2, 2] };
    assert_eq!(lower(&module, &layout).unwrap().collectives.len(), 1);
}

#[test]
fn a_transpose_of_a_reduced_array_comes_before_the_reduction() {
    let text = module(&format!(
        "ENTRY main {{
  x = f32[4,2] parameter(0)
  grad = f32[4,2] all-reduce(x), {EVERYONE}, to_apply=add
  late = f32[2,4]{{0,1}} transpose(grad), dimensions={{1,0}}
  kept = f32[4,2] all-reduce(x), {EVERYONE}, to_apply=add
  also = f32[2,4] transpose(kept), dimensions={{1,0}}
  again = f32[2,4] all-reduce(late), {EVERYONE}, to_apply=add
  back = f32[4,2] transpose(again), dimensions={{1,0}}
  ROOT all = (f32[4,2], f32[4,2], f32[2,4]) tuple(kept, back, also)
}}"
    ));
    insta::assert_snapshot!(text_of(&over_four(&text)), @r#"
    ENTRY %main {
      %collectives.1 = u32[] constant(0)
      %x.1 = f32[4,2] parameter(0)
      %late = f32[2,4] transpose(%x.1), dimensions={1,0}
      %grad = (f32[2,4], u32[]) custom-call(%late, %collectives.1), operand_layout_constraints={f32[2,4]{1,0}, u32[]}, backend_config="{key = 0 : i64}"
      %grad.1 = f32[2,4] get-tuple-element(%grad), index=0
      %grad.2 = u32[] get-tuple-element(%grad), index=1
      %kept = (f32[4,2], u32[]) custom-call(%x.1, %grad.2), operand_layout_constraints={f32[4,2]{1,0}, u32[]}, backend_config="{key = 1 : i64}"
      %kept.1 = f32[4,2] get-tuple-element(%kept), index=0
      %kept.2 = u32[] get-tuple-element(%kept), index=1
      %also = f32[2,4] transpose(%kept.1), dimensions={1,0}
      %back = f32[4,2] transpose(%grad.1), dimensions={1,0}
      %again = (f32[4,2], u32[]) custom-call(%back, %kept.2), operand_layout_constraints={f32[4,2]{1,0}, u32[]}, backend_config="{key = 2 : i64}"
      %again.1 = f32[4,2] get-tuple-element(%again), index=0
      %again.2 = u32[] get-tuple-element(%again), index=1
      ROOT %all = (f32[4,2], f32[4,2], f32[2,4]) tuple(%kept.1, %again.1, %also)
    }
    "#);
}
