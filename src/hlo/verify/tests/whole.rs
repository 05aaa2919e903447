//! References, signatures and the module as a whole.

use super::*;

/// Each of these aborts the process when XLA gets it.
#[test]
fn what_makes_xla_abort_is_refused() {
    insta::assert_snapshot!(
        damaged(|module| main_of(module).instructions[2].parameter_number = 3),
        @"computation 'main': the parameters must be numbered from 0 without gaps and repetitions: 'i' has number 3 instead of 2"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let nested = (0..60).fold(shape::token(), |inner, _| shape::tuple(vec![inner]));
            *main_of(module).instructions[0].shape.get_or_insert_default() = nested.into();
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
}

#[test]
fn references_must_resolve_and_point_backwards() {
    insta::assert_snapshot!(damaged(|module| instruction(module, "t").operand_ids[1] = 77), @"instruction 't' of 'main': its operand has the id 77, which no instruction of the computation has");
    insta::assert_snapshot!(
        damaged(|module| main_of(module).instructions.swap(11, 12)),
        @"instruction 'r' of 'main': its operand 't' stands after it"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let t = instruction(module, "t").id;
            instruction(module, "t").control_predecessor_ids = vec![t];
        }),
        @"instruction 't' of 'main': its control predecessor 't' stands after it"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let id = main_of(module).instructions[1].id;
            main_of(module).instructions[2].id = id;
        }),
        @"instruction 'i' of 'main': the id 17179869185 belongs to another instruction too"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let id = main_of(module).id;
            let call = instruction(module, "r");
            call.opcode = "call".into();
            call.called_computation_ids = [id].into();
        }),
        @"instruction 'r' of 'main': it calls its own computation, and XLA has no recursion"
    );
    insta::assert_snapshot!(damaged(|module| module.computations.swap(0, 1)), @"instruction 'total' of 'negative': it calls the computation with the id 0, which does not stand before this one");
    insta::assert_snapshot!(damaged(|module| main_of(module).root_id = 5), @"computation 'main': no instruction has the root's id 5");
    insta::assert_snapshot!(damaged(|module| module.entry_computation_id = 50), @"no computation has the entry's id 50");
    insta::assert_snapshot!(damaged(|module| module.computations.clear()), @"no computation has the entry's id 4");
}

#[test]
fn the_module_agrees_with_its_entry() {
    insta::assert_snapshot!(
        damaged(|module| {
            module.host_program_shape.get_or_insert_default().parameters.pop();
        }),
        @"the module's program shape and its entry: it has 10 parameters, and 9 are announced"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            module.host_program_shape.get_or_insert_default().result = shape::token().into();
        }),
        @"the module's program shape and its entry: the result has the shape f32[4], and token[] is announced"
    );
    insta::assert_snapshot!(
        damaged(|module| {
            let entry = AliasEntryProto { parameter_number: 9, ..Default::default() };
            module.input_output_alias.get_or_insert_default().entries.push(entry);
        }),
        @"input_output_alias names an parameter token[], which is no array"
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
fn control_dependencies_that_xla_loses_are_refused() {
    insta::assert_snapshot!(
        messages([
            "c = u16[4,2] bitcast-convert(x)\n ROOT r = f32[4] negate(x), control-predecessors={c}",
            "ROOT r = u16[4,2] bitcast-convert(x), control-predecessors={x}",
            "ROOT g = f32[4] gather(m, i), offset_dims={0}, collapsed_slice_dims={0}, start_index_map={0}, \
             index_vector_dim=0, slice_sizes={1,4}, control-predecessors={x}",
        ]),
        @r"
    c = u16[4,2] bitcast-convert(x)
     ROOT r = f32[4] negate(x), control-predecessors={c}
        'c', a bitcast-convert, cannot be its control predecessor
    ROOT r = u16[4,2] bitcast-convert(x), control-predecessors={x}
        a bitcast-convert cannot have a control predecessor, 'x.2'
    ROOT g = f32[4] gather(m, i), offset_dims={0}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=0, slice_sizes={1,4}, control-predecessors={x}
        a gather cannot have a control predecessor, 'x.2'
    "
    );
    passes(&["ROOT r = u32[4] bitcast-convert(x), control-predecessors={x}"]);
    let text = "HloModule m
        called {
          x = f32[4] parameter(0)
          ROOT r = f32[4] negate(x), control-predecessors={x}
        }
        ENTRY main {
          x = f32[4] parameter(0)
          ROOT r = f32[4] call(x), to_apply=called
        }";
    insta::assert_snapshot!(message_of(&parse(text, "m").unwrap()), @"'called' has the parameter 'x' as a control predecessor, so it cannot be inlined");
}

/// Text cannot say these: XLA makes the shapes of transfers of their operands.
#[test]
fn transfers_have_the_shapes_of_what_they_carry() {
    let changed = |lines: &str, shape: ShapeProto| {
        let mut module = module(lines);
        *instruction(&mut module.proto, "r").shape.get_or_insert_default() = shape.into();
        message_of(&module)
    };
    let data = shape::array(DType::F32, &[4]);
    insta::assert_snapshot!(
        changed("ROOT r = (f32[4], u32[], token[]) recv(k)", data.clone()),
        @"its shape is f32[4], and it must be a tuple of several parts: the data, u32[] and token[]"
    );
    let transfer = shape::tuple(vec![data, shape::scalar(DType::U32), shape::token()]);
    insta::assert_snapshot!(
        changed("ROOT r = send(m, k), channel_id=1", transfer),
        @"what is sent has the shape f32[4], and it must be f32[2,4]"
    );
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
