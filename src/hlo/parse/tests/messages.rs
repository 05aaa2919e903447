//! What wrong texts are told.

use super::{error, with_computations};

#[test]
fn messages_of_whole_texts() {
    insta::assert_snapshot!(error(""), @r##"
    test.hlo:1:1: the text is empty; expected HloModule or a computation
    1 |
      | ^
    "##);
    insta::assert_snapshot!(error("{\"json\": 1}"), @r##"
    test.hlo:1:1: expected a computation, found '{'
    1 | {"json": 1}
      | ^
    "##);
    insta::assert_snapshot!(error("HloModule m\n\nENTRY main {\n  a = f32[2] parameter(0)\n"), @r##"
    test.hlo:5:1: expected an instruction or '}', found the end of the text
    5 |
      | ^
    "##);
    insta::assert_snapshot!(error("HloModule m, num_partition=2\n"), @r##"
    test.hlo:1:14: a module has no attribute 'num_partition'; did you mean 'num_partitions'?
    1 | HloModule m, num_partition=2
      |              ^
    "##);
    insta::assert_snapshot!(error("HloModule m /* and no end"), @r##"
    test.hlo:1:13: expected a computation, found a comment that does not end
    1 | HloModule m /* and no end
      |             ^
    "##);
    insta::assert_snapshot!(error(
        "HloModule m\nENTRY a { ROOT x = f32[] parameter(0) }\nENTRY b { ROOT x = f32[] parameter(0) }"
    ), @r##"
    test.hlo:3:1: the module has two ENTRY computations
    3 | ENTRY b { ROOT x = f32[] parameter(0) }
      | ^
    "##);
    insta::assert_snapshot!(error("HloModule m\nENTRY e { ROOT x = f32[] parameter(1) }"), @r##"
    test.hlo:2:9: the computation has parameter(1) but no parameter(0)
    2 | ENTRY e { ROOT x = f32[] parameter(1) }
      |         ^
    "##);
    insta::assert_snapshot!(error("HloModule m\nf (x: f32[2]) -> f32[3] { ROOT x = f32[2] parameter(0) }"), @r##"
    test.hlo:2:18: 'f' is declared to return f32[3], its root instruction is f32[2]
    2 | f (x: f32[2]) -> f32[3] { ROOT x = f32[2] parameter(0) }
      |                  ^
    "##);
}

#[test]
fn messages_of_instructions() {
    let line = |line: &str| error(&with_computations(&format!("  p = f32[4] parameter(0)\n  ROOT r = {line}")));
    insta::assert_snapshot!(line("f32[4] all-redcue(p), to_apply=sum"), @r##"
    test.hlo:13:19: unknown opcode 'all-redcue'; did you mean 'all-reduce'?
    13 |   ROOT r = f32[4] all-redcue(p), to_apply=sum
       |                   ^
    "##);
    insta::assert_snapshot!(line("f32[4] all-reduce(p), to_apply=summ"), @r##"
    test.hlo:13:43: unknown computation 'summ'; did you mean 'sum'?
    13 |   ROOT r = f32[4] all-reduce(p), to_apply=summ
       |                                           ^
    "##);
    insta::assert_snapshot!(line("f32[4] all-reduce(pp), to_apply=sum"), @r##"
    test.hlo:13:30: unknown instruction 'pp'; did you mean 'p'?
    13 |   ROOT r = f32[4] all-reduce(pp), to_apply=sum
       |                              ^
    "##);
    insta::assert_snapshot!(line("f32[4] all-reduce(p), to_apply=sum, chanel_id=1"), @r##"
    test.hlo:13:48: all-reduce has no attribute 'chanel_id'; did you mean 'channel_id'?
    13 |   ROOT r = f32[4] all-reduce(p), to_apply=sum, chanel_id=1
       |                                                ^
    "##);
    insta::assert_snapshot!(line("f32[4] all-reduce(p), to_apply=sum, dimensions={0}"), @r##"
    test.hlo:13:48: all-reduce has no attribute 'dimensions'; it takes channel_id, constrain_layout, mode, replica_groups, to_apply, use_global_device_ids, besides those of every instruction
    13 |   ROOT r = f32[4] all-reduce(p), to_apply=sum, dimensions={0}
       |                                                ^
    "##);
    insta::assert_snapshot!(line("f32[4] all-reduce(p)"), @r##"
    test.hlo:13:19: all-reduce needs the attribute 'to_apply'
    13 |   ROOT r = f32[4] all-reduce(p)
       |                   ^
    "##);
    insta::assert_snapshot!(line("f32[4] negate(p, p)"), @r##"
    test.hlo:13:19: negate takes 1 operand, found 2
    13 |   ROOT r = f32[4] negate(p, p)
       |                   ^
    "##);
    insta::assert_snapshot!(line("f33[4] negate(p)"), @r##"
    test.hlo:13:12: unknown element type 'f33'; did you mean 'f32'?
    13 |   ROOT r = f33[4] negate(p)
       |            ^
    "##);
    insta::assert_snapshot!(line("f32[4] negate(f32[5] p)"), @r##"
    test.hlo:13:26: the operand is declared as f32[5], 'p' is f32[4]
    13 |   ROOT r = f32[4] negate(f32[5] p)
       |                          ^
    "##);
    insta::assert_snapshot!(line("f32[4] constant({1,2,3})"), @r##"
    test.hlo:13:34: expected 4 elements in dimension 0, found 3
    13 |   ROOT r = f32[4] constant({1,2,3})
       |                                  ^
    "##);
    insta::assert_snapshot!(line("s8[1] constant({300})"), @r##"
    test.hlo:13:28: 300 is out of range for s8 (-128 to 127)
    13 |   ROOT r = s8[1] constant({300})
       |                            ^
    "##);
    insta::assert_snapshot!(line("f32[4]{1} negate(p)"), @r##"
    test.hlo:13:18: the layout's order is no permutation of 0 to 0
    13 |   ROOT r = f32[4]{1} negate(p)
       |                  ^
    "##);
    insta::assert_snapshot!(line("f32[4] negate(p), sharding={devices=[3]0,1}"), @r##"
    test.hlo:13:39: the sharding has 3 tiles and 2 devices
    13 |   ROOT r = f32[4] negate(p), sharding={devices=[3]0,1}
       |                                       ^
    "##);
    insta::assert_snapshot!(line("f32[4] all-reduce(p), to_apply=sum, replica_groups=mesh['a'=2] {'b'}"), @r##"
    test.hlo:13:76: the mesh has no axis 'b'
    13 |   ROOT r = f32[4] all-reduce(p), to_apply=sum, replica_groups=mesh['a'=2] {'b'}
       |                                                                            ^
    "##);
    insta::assert_snapshot!(line("reshape(p)"), @r##"
    test.hlo:13:12: the shape of reshape cannot be left out here
    13 |   ROOT r = reshape(p)
       |            ^
    "##);
    insta::assert_snapshot!(line("add(p, f32[] constant(1))"), @r##"
    test.hlo:13:12: the operands have different shapes: f32[4] and f32[]
    13 |   ROOT r = add(p, f32[] constant(1))
       |            ^
    "##);
    insta::assert_snapshot!(line("f32[4] custom-call(p), custom_call_target=\"t\", api_version=TYPED"), @r##"
    test.hlo:13:71: unknown API version 'TYPED'; expected one of API_VERSION_UNSPECIFIED, API_VERSION_ORIGINAL, API_VERSION_STATUS_RETURNING, API_VERSION_STATUS_RETURNING_UNIFIED, API_VERSION_TYPED_FFI
    13 |   ROOT r = f32[4] custom-call(p), custom_call_target="t", api_version=TYPED
       |                                                                       ^
    "##);
    insta::assert_snapshot!(line("f32[4] negate(p), metadata={op_nam=\"x\"}"), @r##"
    test.hlo:13:40: unknown metadata field 'op_nam'; did you mean 'op_name'?
    13 |   ROOT r = f32[4] negate(p), metadata={op_nam="x"}
       |                                        ^
    "##);
}

#[test]
fn labels_of_a_convolution_end() {
    let labels = format!("b0f{0}_0io{0}->b0f{0}", "?".repeat(80));
    let text = format!(
        "HloModule m\n\nENTRY main {{\n  x = f32[1,2,1] parameter(0)\n  ROOT c = f32[1,2,1] custom-call(x), \
         dim_labels={labels}, custom_call_target=\"t\"\n}}\n"
    );
    assert!(error(&text).contains("labels for 83 dimensions: arrays have 64 at most"));
}
