use super::*;
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

         ENTRY main {{
           x = f32[4] parameter(0)
           m = f32[2,4] parameter(1)
           i = s32[] parameter(2)
           zero = f32[] constant(0)
           {body}
         }}"
    );
    parse(&text, "test.hlo").unwrap()
}

fn message_of(module: &HloModule) -> String {
    verify(module, 2, 4).unwrap_err().to_string()
}

/// What is wrong with these instructions, run by 2 replicas of 4 partitions.
fn message(body: &str) -> String {
    message_of(&module(body))
}

/// What is wrong with a good module after a change.
fn damaged(damage: impl FnOnce(&mut HloModuleProto)) -> String {
    let mut module = module("t = (f32[4], s32[]) tuple(x, i)\n ROOT r = f32[4] get-tuple-element(t), index=0");
    assert_eq!(verify(&module, 1, 1), Ok(()));
    damage(&mut module.proto);
    message_of(&module)
}

fn main_of(module: &mut HloModuleProto) -> &mut HloComputationProto {
    module.computations.last_mut().unwrap()
}

#[test]
fn good_instructions_pass() {
    let bodies = [
        "ROOT r = f32[4] while(x), condition=negative, body=twice",
        "ROOT r = f32[2] reduce(m, zero), dimensions={1}, to_apply=add",
        "p = pred[] constant(true)\n ROOT r = f32[4] conditional(p, x, x), true_computation=twice, false_computation=twice",
        "ROOT r = f32[8] reshape(m)",
        "ROOT r = f32[4,2] transpose(m), dimensions={1,0}",
        "ROOT r = f32[2,2] slice(m), slice={[0:2], [0:4:2]}",
        "ROOT r = f32[1,4] dynamic-slice(m, i, i), dynamic_slice_sizes={1,4}",
        "ROOT r = f32[2,2] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        "ROOT r = f32[4] all-reduce(x), channel_id=1, use_global_device_ids=true, replica_groups=[2,4]<=[8], to_apply=add",
        "ROOT r = f32[8] all-gather(x), replica_groups={{0,1}}, dimensions={0}",
        "ROOT r = f32[1] reduce-scatter(x), channel_id=1, replica_groups={{0},{1}}, dimensions={0}, to_apply=add",
        "ROOT r = f32[4] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{3,0}}",
        "ROOT r = (f32[4], f32[4]) all-to-all(x, x), replica_groups={{0,1}}",
    ];
    for body in bodies {
        assert_eq!(verify(&module(body), 2, 4), Ok(()), "{body}");
    }
}

/// Each of these aborts the process when XLA gets it.
#[test]
fn what_makes_xla_abort_is_refused() {
    insta::assert_snapshot!(message("ROOT r = f32[9] reshape(m)"), @"instruction 'r' of 'main': it makes f32[9] with 9 elements of f32[2,4] with 8");
    insta::assert_snapshot!(
        damaged(|module| main_of(module).instructions[2].parameter_number = 3),
        @"computation 'main': the parameters must be numbered from 0 without gaps and repetitions: 'i' has number 3 instead of 2"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let nested = (0..60).fold(shape::token(), |inner, _| shape::tuple(vec![inner]));
            *main_of(module).instructions[0].shape.get_or_insert_default() = nested;
        }),
        @"instruction 'x.2' of 'main': its shape nests tuples more than 32 deep"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            main_of(module).instructions[0].shape.get_or_insert_default().dimensions = vec![1 << 40];
            main_of(module).instructions[1].shape.get_or_insert_default().dimensions = vec![1 << 31, 1 << 31];
        }),
        @"instruction 'm' of 'main': f32[2147483648,2147483648] is too large to address"
    );
    insta::assert_snapshot!(
        damaged(|module| main_of(module).instructions.last_mut().unwrap().tuple_index = 2),
        @"instruction 'r' of 'main': (f32[4], s32[]) has no element 2"
    );
    insta::assert_snapshot!(message("ROOT r = s32[3] iota(), iota_dimension=1"), @"instruction 'r' of 'main': iota_dimension 1 must lie below the rank 1");
    insta::assert_snapshot!(message("ROOT r = f32[4] recv(zero)"), @"instruction 'r' of 'main': its shape is f32[4], and it must be a tuple of several parts");
}

#[test]
fn references_must_resolve_and_point_backwards() {
    insta::assert_snapshot!(damaged(|module| main_of(module).instructions[4].operand_ids[1] = 77), @"instruction 't' of 'main': its operand has the id 77, which no instruction of the computation has");
    insta::assert_snapshot!(
        damaged(|module| main_of(module).instructions.swap(4, 5)),
        @"instruction 'r' of 'main': its operand 't' stands after it"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let t = main_of(module).instructions[4].id;
            main_of(module).instructions[4].control_predecessor_ids = vec![t];
        }),
        @"instruction 't' of 'main': its control predecessor 't' stands after it"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let id = main_of(module).instructions[1].id;
            main_of(module).instructions[2].id = id;
        }),
        @"instruction 'i' of 'main': the id 12884901889 belongs to another instruction too"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let id = main_of(module).id;
            let call = &mut main_of(module).instructions[5];
            call.opcode = "call".to_owned();
            call.called_computation_ids = vec![id];
        }),
        @"instruction 'r' of 'main': it calls its own computation, and XLA has no recursion"
    );
    insta::assert_snapshot!(damaged(|module| module.computations.swap(0, 1)), @"instruction 'total' of 'negative': it calls the computation with the id 0, which does not stand before this one");
    insta::assert_snapshot!(damaged(|module| main_of(module).root_id = 5), @"computation 'main': no instruction has the root's id 5");
    insta::assert_snapshot!(damaged(|module| module.entry_computation_id = 50), @"no computation has the entry's id 50");
    insta::assert_snapshot!(damaged(|module| module.computations.clear()), @"no computation has the entry's id 3");
}

#[test]
fn the_module_agrees_with_its_entry() {
    insta::assert_snapshot!(
        damaged(|module| {
            module.host_program_shape.get_or_insert_default().parameters.pop();
        }),
        @"the module's program shape and its entry: it has 3 parameters, and 2 are announced"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            module.host_program_shape.get_or_insert_default().result = Some(shape::token()).into();
        }),
        @"the module's program shape and its entry: the result has the shape f32[4], and token[] is announced"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let entry = AliasEntryProto { parameter_number: 9, ..Default::default() };
            module.input_output_alias.get_or_insert_default().entries.push(entry);
        }),
        @"there is no parameter 9 with an element {} to alias or donate"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let key = main_of(module).id;
            let sequence = hlo_schedule_proto::SequencesEntry { key, ..Default::default() };
            module.schedule = Some(HloScheduleProto { sequences: vec![sequence], ..Default::default() }).into();
        }),
        @"the schedule of 'main' does not name each of its instructions once"
    );
}

#[test]
fn shapes_must_follow_from_operands() {
    let cases = [
        "ROOT r = f32[4] add(x, i)",
        "ROOT r = f32[3] add(x, x)",
        "ROOT r = f32[4,2] broadcast(x), dimensions={1}",
        "ROOT r = f32[2,4] transpose(m), dimensions={1,0}",
        "ROOT r = f32[2,4] transpose(m), dimensions={0,0}",
        "ROOT r = f32[2,5] slice(m), slice={[0:2], [0:5]}",
        "ROOT r = f32[2,9] dynamic-slice(m, i, i), dynamic_slice_sizes={2,9}",
        "ROOT r = f32[2,4] dynamic-slice(m, i), dynamic_slice_sizes={2,4}",
        "ROOT r = f32[8] concatenate(x, m), dimensions={0}",
        "ROOT r = f32[4,4] dot(m, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "ROOT r = f32[4] reduce(m, zero), dimensions={1}, to_apply=add",
        "ROOT r = f32[2] reduce(m, zero), dimensions={1}, to_apply=twice",
        "ROOT r = f32[2] reduce(m, x), dimensions={1}, to_apply=add",
        "ROOT r = f32[2,4] while(m), condition=negative, body=twice",
        "ROOT r = f32[4] while(x), condition=twice, body=twice",
        "ROOT r = f32[4] call(m), to_apply=twice",
        "ROOT r = f32[4] conditional(i, m, x), branch_computations={twice, twice}",
        "ROOT r = f32[4] select(x, x, x)",
    ];
    insta::assert_snapshot!(cases.map(message).join("\n"), @r"
    instruction 'r' of 'main': the operands have different shapes: f32[4] and s32[]
    instruction 'r' of 'main': it has the shape f32[3], and it must be f32[4]
    instruction 'r' of 'main': its shape is f32[4,2], and its dimensions must be [4,4]
    instruction 'r' of 'main': it has the shape f32[2,4], and it must be f32[4,2]
    instruction 'r' of 'main': dimension 0 stands there twice or is not below 2
    instruction 'r' of 'main': [0:5:1] does not lie within a dimension of 4
    instruction 'r' of 'main': the sizes [2,9] do not fit into f32[2,4]
    instruction 'r' of 'main': it has 1 start indices for 2 dimensions, and needs one scalar for each or one vector
    instruction 'r' of 'main': the operands have different shapes: f32[2] and f32[2,4]
    instruction 'r' of 'main': the contracting dimensions 1 and 0 have the sizes 4 and 2
    instruction 'r' of 'main': its shape is f32[4], and its dimensions must be [2]
    instruction 'r' of 'main': 'twice' has 1 parameters, and 2 are passed
    instruction 'r' of 'main': the initial value f32[4] must be a scalar
    instruction 'r' of 'main': parameter 'x.1' of 'twice' has the shape f32[4], and it must be f32[2,4]
    instruction 'r' of 'main': 'twice' returns f32[4], and it must return pred[]
    instruction 'r' of 'main': parameter 'x.1' of 'twice' has the shape f32[4], and it must be f32[2,4]
    instruction 'r' of 'main': parameter 'x.1' of 'twice' has the shape f32[4], and it must be f32[2,4]
    instruction 'r' of 'main': it selects by f32[4], and that must be pred
    ");
}

#[test]
fn collectives_must_fit_the_devices() {
    let cases = [
        "ROOT r = f32[4] all-reduce(x), replica_groups={{0,2}}, to_apply=add",
        "ROOT r = f32[4] all-reduce(x), replica_groups={{0,0}}, to_apply=add",
        "ROOT r = f32[4] all-reduce(x), replica_groups={{0}}, to_apply=add",
        "ROOT r = f32[4] all-reduce(x), replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add",
        "ROOT r = f32[9] all-gather(x), replica_groups={{0,1}}, dimensions={0}",
        "ROOT r = f32[8] all-gather(x), replica_groups={{0,1}}, dimensions={1}",
        "ROOT r = f32[1] reduce-scatter(zero), replica_groups={{0,1}}, dimensions={0}, to_apply=add",
        "ROOT r = (f32[4], f32[4]) all-to-all(x, x), channel_id=1, replica_groups={{0,1,2,3}}",
        "ROOT r = f32[4] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,4}}",
        "ROOT r = f32[4] collective-permute(x), source_target_pairs={{0,1},{1,1}}",
    ];
    insta::assert_snapshot!(cases.map(message).join("\n"), @r"
    instruction 'r' of 'main': replica 2 does not exist: the program runs as 2 replica(s) × 4 partition(s). If the program was made for more, say so with --num-replicas or --num-partitions
    instruction 'r' of 'main': device 0 stands in the replica groups twice
    instruction 'r' of 'main': device 4 of 8 stands in no replica group
    instruction 'r' of 'main': use_global_device_ids needs a channel_id
    instruction 'r' of 'main': it makes f32[9] of f32[4], and the result's dimensions must be [8]
    instruction 'r' of 'main': dimension 1 must lie below the rank 1
    instruction 'r' of 'main': dimension 0 must lie below the rank 0
    instruction 'r' of 'main': it has 2 operands for groups of 4 devices, one for each is needed
    instruction 'r' of 'main': target 4 is no partition: the program runs as 2 replica(s) × 4 partition(s)
    instruction 'r' of 'main': replica 1 stands there as target twice
    ");
}

#[test]
fn unknown_element_types_are_refused() {
    insta::assert_snapshot!(
        damaged(|module| main_of(module).instructions[0].shape.get_or_insert_default().element_type = 99.into()),
        @"instruction 'x.2' of 'main': its element type 99 is unknown"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            main_of(module).instructions[0].shape.get_or_insert_default().element_type = PrimitiveType::TOKEN.into();
        }),
        @"instruction 'x.2' of 'main': token[4] cannot have dimensions"
    );
}
