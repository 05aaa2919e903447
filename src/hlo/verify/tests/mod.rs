mod collectives;
mod opcodes;
mod sharding;
mod whole;

use super::*;
use crate::dtype::DType;
use crate::hlo::{parse, shape};
use crate::proto::hlo_input_output_alias_proto::AliasEntryProto;
use crate::proto::{HloModuleProto, HloScheduleProto, PrimitiveType, hlo_schedule_proto};

/// A module of one computation, `main`, between a few that its instructions may call.
fn module(body: &str) -> HloModule {
    let text = format!(
        "HloModule test

         add {{
           a = f32[] parameter(0)
           b = f32[] parameter(1)
           ROOT sum = f32[] add(a, b)
         }}

         negative {{
           x = f32[4] parameter(0)
           zero = f32[] constant(0)
           total = f32[] reduce(x, zero), dimensions={{0}}, to_apply=add
           ROOT less = pred[] compare(total, zero), direction=LT
         }}

         twice {{
           x = f32[4] parameter(0)
           ROOT double = f32[4] add(x, x)
         }}

         larger {{
           a = f32[] parameter(0)
           b = f32[] parameter(1)
           ROOT less = pred[] compare(a, b), direction=GT
         }}

         ENTRY main {{
           x = f32[4] parameter(0)
           m = f32[2,4] parameter(1)
           i = s32[] parameter(2)
           n = s32[2,4] parameter(3)
           p = pred[2,4] parameter(4)
           z = c64[2,4] parameter(5)
           u = u32[2,4] parameter(6)
           b = bf16[2,4] parameter(7)
           q = f32[4,4] parameter(8)
           k = token[] parameter(9)
           zero = f32[] constant(0)
           {body}
         }}"
    );
    parse(&text, "test.hlo").unwrap()
}

/// What is wrong with the module, run by 2 replicas of 4 partitions.
fn message_of(module: &HloModule) -> String {
    verify(module, 2, 4).unwrap_err().message
}

/// What is wrong with these instructions.
fn message(body: &str) -> String {
    verify(&module(body), 2, 4).expect_err(body).message
}

/// Each case, and what is wrong with it.
fn messages<const N: usize>(cases: [&str; N]) -> String {
    cases.map(|case| format!("{case}\n    {}", message(case))).join("\n")
}

fn passes(bodies: &[&str]) {
    for body in bodies {
        assert_eq!(verify(&module(body), 2, 4), Ok(()), "{body}");
    }
}

/// A good module after a change.
fn damaged(damage: impl FnOnce(&mut HloModuleProto)) -> VerifyError {
    let mut module = module("t = (f32[4], s32[]) tuple(x, i)\n ROOT r = f32[4] get-tuple-element(t), index=0");
    assert_eq!(verify(&module, 1, 1), Ok(()));
    damage(&mut module.proto);
    module.source = None;
    verify(&module, 2, 4).unwrap_err()
}

fn main_of(module: &mut HloModuleProto) -> &mut HloComputationProto {
    module.computations.last_mut().unwrap()
}

/// An instruction of `main`, by its name.
fn instruction<'m>(module: &'m mut HloModuleProto, name: &str) -> &'m mut HloInstructionProto {
    main_of(module).instructions.iter_mut().find(|instruction| instruction.name == name).unwrap()
}

#[test]
fn errors_point_into_the_text() {
    let error = |body: &str| verify(&module(body), 2, 4).unwrap_err().to_string();
    insta::assert_snapshot!(error("ROOT r = f32[9] reshape(m)"), @r#"
    test.hlo:39:17: instruction 'r' of 'main': it makes f32[9] with 9 elements of f32[2,4] with 8
    39 |            ROOT r = f32[9] reshape(m)
       |                 ^
    "#);
    let text = "HloModule m\n\nENTRY %e (a: f32[2]) -> f32[3] {\n  %a = f32[2]{0} parameter(0)\n  ROOT %r = f32[3]{0} add(%a, %a)\n}\n";
    insta::assert_snapshot!(verify(&parse(text, "e.hlo").unwrap(), 1, 1).unwrap_err(), @r#"
    e.hlo:5:8: instruction 'r' of 'e': it has the shape f32[3], and it must be f32[2]
    5 |   ROOT %r = f32[3]{0} add(%a, %a)
      |        ^
    "#);
    let binary = HloModule { source: None, ..parse(text, "e.hlo").unwrap() };
    insta::assert_snapshot!(verify(&binary, 1, 1).unwrap_err(), @"instruction 'r' of 'e': it has the shape f32[3], and it must be f32[2]");
}

#[test]
fn long_messages_are_cut() {
    let parts = vec!["x"; 2000].join(", ");
    let body = format!("t = (f32[4]) tuple({parts})\n ROOT r = f32[4] get-tuple-element(t), index=0");
    assert!(message(&body).len() < 1100);
}
