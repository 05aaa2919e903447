//! Where XLA does not take a shape as the text has it.

use super::*;

#[test]
fn some_shapes_are_made_of_the_operands_whatever_the_text_says() {
    let transfer =
        |line: &str| text(&root(&format!("a = f32[4] parameter(0)\n  t = token[] after-all()\n  {line}")).shape);
    assert_eq!(transfer("ROOT s = (f32[4], token[]) send(a, t)"), "(f32[4], u32[], token[])");
    assert_eq!(
        transfer("s = (f32[4], u32[], token[]) send(a, t)\n  ROOT d = (f32[4], token[]) send-done(s)"),
        "token[]"
    );
    assert_eq!(transfer("ROOT r = (f32[8], token[]) recv(t)"), "(f32[8], u32[], token[])");
    let received = "r = (f32[8], u32[], token[]) recv(t)\n  ROOT d = (f32[4], token[]) recv-done(r)";
    assert_eq!(transfer(received), "(f32[8], token[])");
    assert_eq!(transfer("ROOT o = (s32[]) outfeed(a, t)"), "token[]");
    assert!(
        error(&with_computations("t = token[] after-all()\n  ROOT r = f32[8] recv(t)"))
            .contains("a recv has the shape")
    );
    assert!(error(&with_computations("a = f32[4] parameter(0)\n  ROOT d = recv-done(a)")).contains("recv-done takes"));
}

#[test]
fn a_transpose_without_a_shape_lies_as_its_operand() {
    let lines = "a = f32[2,3,4] parameter(0)\n  ROOT t = transpose(a), dimensions={1,2,0}";
    assert_eq!(text_with_layout(&root(lines).shape), "f32[3,4,2]{1,0,2}");
}

#[test]
fn windows_have_the_element_type_of_the_initial_value() {
    let lines = "a = f32[8] parameter(0)\n  i = bf16[] constant(0)\n  \
                 ROOT r = reduce-window(a, i), window={size=2}, to_apply=sum";
    assert_eq!(text(&root(lines).shape), "bf16[7]");
}

#[test]
fn shapes_and_shardings_may_be_spaced_out() {
    let parameter = root("ROOT p = f32 [8, 4] {1, 0} parameter(0), sharding={mesh['x'=2] [{'x'}, {}]}");
    assert_eq!(text_with_layout(&parameter.shape), "f32[8,4]{1,0}");
    assert_eq!(parameter.sharding.named_sharding.dim_shardings.len(), 2);
}

#[test]
fn what_an_asynchronous_call_calls_runs_on_its_thread() {
    let threads = |thread: &str| -> Vec<String> {
        let text = format!(
            "HloModule m
leaf {{ ROOT p = f32[] parameter(0) }}
called {{ p = f32[] parameter(0)  ROOT c = f32[] call(p), to_apply=leaf }}, execution_thread=\"other\"
ENTRY e {{
  a = f32[] parameter(0)
  s = ((f32[]), f32[], s32[]) call-start(a), to_apply=called{thread}
  ROOT d = f32[] call-done(s)
}}"
        );
        module(&text).proto.computations.into_iter().map(|computation| computation.execution_thread).collect()
    };
    assert_eq!(threads(", async_execution_thread=\"other\""), ["other", "other", "other", ""]);
    // The call has the last word.
    assert_eq!(threads(""), ["", "", "", ""]);
}

#[test]
fn layouts_of_arguments_follow_the_instructions_unless_the_header_sets_more() {
    let argument = |header: &str| {
        let text = format!("HloModule m{header}\nENTRY e {{ ROOT p = f32[4,3]{{0,1}} parameter(0) }}");
        text_with_layout(&module(&text).proto.host_program_shape.parameters[0])
    };
    assert_eq!(argument(""), "f32[4,3]{0,1}");
    assert_eq!(argument(", is_scheduled=true"), "f32[4,3]{0,1}");
    assert_eq!(argument(", replica_count=2"), "f32[4,3]{1,0}");
    assert_eq!(argument(", num_partitions=2"), "f32[4,3]{1,0}");
    let given = ", replica_count=2, entry_computation_layout={(f32[4,3]{0,1})->f32[4,3]{0,1}}";
    assert_eq!(argument(given), "f32[4,3]{0,1}");
}
