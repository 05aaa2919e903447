//! Programs compiled and run on real plugins.

mod common;

use std::sync::mpsc;

use buffa::Message;
use common::*;
use spmd_run::dtype::DType;
use spmd_run::pjrt::*;
use spmd_run::proto;

const ADD: &str = r#"
module @add {
  func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %sum = stablehlo.add %x, %y : tensor<2x3xf32>
    return %sum : tensor<2x3xf32>
  }
}
"#;

/// Its first argument may be overwritten with the result.
const DONATING: &str = r#"
module @donating {
  func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %x, %y : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}
"#;

fn buffer(client: &Client, values: &[f32], dims: &[i64], device: &Device) -> Buffer {
    client.buffer_from_host(&bytes_of(values), DType::F32, dims, HostLayout::RowMajor, device).unwrap()
}

/// A HLO module that adds two arrays `f32[4]`, made field by field.
fn hlo_add() -> proto::HloModuleProto {
    let f32x4 = proto::SharedShape::from(proto::ShapeProto {
        element_type: DType::F32.primitive_type().into(),
        dimensions: vec![4],
        layout: proto::LayoutProto { minor_to_major: vec![0], ..Default::default() }.into(),
        ..Default::default()
    });
    let program_shape = proto::ProgramShapeProto {
        parameters: vec![f32x4.clone(), f32x4.clone()],
        parameter_names: vec!["x".to_owned(), "y".to_owned()],
        result: f32x4.clone().into(),
        ..Default::default()
    };
    let computation_id = 1_i64;
    let instruction = |name: &str, opcode: &str, id: i64| proto::HloInstructionCommon {
        name: name.into(),
        opcode: opcode.into(),
        shape: f32x4.clone().into(),
        id: computation_id << 32 | id,
        ..Default::default()
    };
    let y = proto::HloInstructionCommon { parameter_number: 1, ..instruction("y", "parameter", 1) };
    let operand_ids = [computation_id << 32, computation_id << 32 | 1].into();
    let sum = proto::HloInstructionCommon { operand_ids, ..instruction("sum", "add", 2) };
    let root_id = sum.id;
    let entry = proto::HloComputationProto {
        name: "main".to_owned(),
        instructions: [instruction("x", "parameter", 0), y, sum].map(Into::into).into(),
        program_shape: program_shape.clone().into(),
        id: computation_id,
        root_id,
        ..Default::default()
    };
    proto::HloModuleProto {
        name: "hlo_add".to_owned(),
        entry_computation_name: "main".to_owned(),
        entry_computation_id: computation_id,
        computations: vec![entry],
        host_program_shape: program_shape.into(),
        ..Default::default()
    }
}

#[test]
fn a_program_runs_on_four_devices() {
    for plugin in plugins() {
        let client = client(&plugin, 4);
        let executable = compile_mlir(&client, ADD, &CompileOptions { num_replicas: 4, ..Default::default() });
        assert_eq!(executable.addressable_devices().len(), 4);
        let inputs: Vec<[Buffer; 2]> = executable
            .addressable_devices()
            .iter()
            .enumerate()
            .map(|(index, device)| {
                [index as f32, 10.0].map(|base| {
                    let values: Vec<f32> = (0..6).map(|i| base + i as f32).collect();
                    buffer(&client, &values, &[2, 3], device)
                })
            })
            .collect();
        let args: Vec<Vec<&Buffer>> = inputs.iter().map(|buffers| buffers.iter().collect()).collect();
        let execution = executable.execute(&args, &ExecuteOptions { launch_id: 7, ..Default::default() }).unwrap();
        execution.wait().unwrap();
        for (index, (outputs, device)) in execution.outputs.iter().zip(executable.addressable_devices()).enumerate() {
            let base = index as f32 + 10.0;
            let expected: Vec<f32> = (0..6).map(|i| base + 2.0 * i as f32).collect();
            assert_eq!(floats_of(&outputs[0].to_host().unwrap()), expected);
            assert_eq!(&outputs[0].device().unwrap(), device);
        }
    }
}

#[test]
fn a_serialized_hlo_module_runs() {
    for plugin in plugins() {
        let client = client(&plugin, 1);
        let code = hlo_add().encode_to_vec();
        let program = Program { code: &code, format: ProgramFormat::Hlo };
        let executable = client.compile(&program, &CompileOptions::default().encode()).unwrap();
        assert_eq!(executable.name().unwrap(), "hlo_add");
        let device = &client.addressable_devices()[0];
        let (x, y) = (buffer(&client, &[1.0; 4], &[4], device), buffer(&client, &[2.0; 4], &[4], device));
        let execution = executable.execute(&[[&x, &y]], &ExecuteOptions::default()).unwrap();
        assert_eq!(floats_of(&execution.outputs[0][0].to_host().unwrap()), [3.0; 4]);
    }
}

#[test]
fn the_device_assignment_chooses_devices_and_their_order() {
    for plugin in plugins() {
        let client = client(&plugin, 4);
        let options = CompileOptions {
            num_replicas: 2,
            device_assignment: Some(DeviceAssignment(vec![vec![3], vec![1]])),
            ..Default::default()
        };
        let executable = compile_mlir(&client, ADD, &options);
        let ids: Vec<i32> = executable.addressable_devices().iter().map(Device::id).collect();
        assert_eq!(ids, [3, 1]);
        assert_eq!(client.default_device_assignment(2, 2).unwrap(), [[0, 1], [2, 3]]);
        assert!(client.default_device_assignment(0, 2).is_err());
    }
}

#[test]
fn an_executable_tells_about_itself() {
    for plugin in plugins() {
        let client = client(&plugin, 2);
        let executable = compile_mlir(&client, ADD, &CompileOptions { num_replicas: 2, ..Default::default() });
        assert_eq!(executable.name().unwrap(), "add");
        assert_eq!((executable.num_replicas().unwrap(), executable.num_partitions().unwrap()), (2, 1));
        assert_eq!(executable.num_outputs(), 1);
        assert_eq!(executable.output_dtypes().unwrap(), [DType::F32]);
        assert_eq!(executable.output_dims().unwrap(), [[2, 3]]);
        match executable.output_memory_kinds() {
            Ok(kinds) => assert_eq!(kinds.len(), 1),
            Err(error) => assert_eq!(error.code(), Some(ErrorCode::Unimplemented), "{error}"),
        }
        assert!(executable.generated_code_size().is_ok());
        let memory = executable.memory_stats().unwrap();
        assert_eq!((memory.arguments, memory.outputs, memory.aliased), (48, 24, 0));
        assert!(memory.peak.is_some());
        match executable.cost_analysis() {
            Ok(cost) => assert_eq!(cost["flops"].as_float(), Some(6.0)),
            Err(error) => assert_eq!(error.code(), Some(ErrorCode::Unimplemented), "{error}"),
        }
        let (code, format) = executable.optimized_program().unwrap();
        assert!(format.starts_with("hlo"), "{format}");
        assert!(!code.is_empty());
        // Not every plugin has fingerprints, but asking never harms.
        let _ = executable.fingerprint();
    }
}

#[test]
fn donated_arguments_are_gone_unless_kept() {
    for plugin in plugins() {
        let client = client(&plugin, 1);
        let executable = compile_mlir(&client, DONATING, &CompileOptions::default());
        let device = &client.addressable_devices()[0];
        let (x, y) = (buffer(&client, &[1.0; 4], &[4], device), buffer(&client, &[2.0; 4], &[4], device));
        let keep = ExecuteOptions { non_donatable_inputs: vec![0], ..Default::default() };
        let kept = executable.execute(&[[&x, &y]], &keep).unwrap();
        assert_eq!(floats_of(&kept.outputs[0][0].to_host().unwrap()), [3.0; 4]);
        assert!(!x.is_deleted().unwrap());
        assert_eq!(floats_of(&x.to_host().unwrap()), [1.0; 4]);
        let donated = executable.execute(&[[&x, &y]], &ExecuteOptions::default()).unwrap();
        assert_eq!(floats_of(&donated.outputs[0][0].to_host().unwrap()), [3.0; 4]);
        assert!(x.is_deleted().unwrap() && !y.is_deleted().unwrap());
        assert!(x.to_host().is_err());
        assert!(executable.execute(&[[&x, &y]], &ExecuteOptions::default()).is_err());
    }
}

#[test]
fn bad_programs_and_options_are_errors() {
    for plugin in plugins() {
        let client = client(&plugin, 2);
        let compile = |code: &str, format, options: &CompileOptions| {
            let error = client.compile(&Program { code: code.as_bytes(), format }, &options.encode()).unwrap_err();
            assert!(error.code().is_some(), "{error:?}");
            error.to_string()
        };
        let defaults = CompileOptions::default();
        assert!(compile("module {", ProgramFormat::Mlir, &defaults).starts_with("PJRT_Client_Compile: "));
        compile("HloModule text", ProgramFormat::Hlo, &defaults);
        compile("", ProgramFormat::Hlo, &defaults);
        compile(ADD, ProgramFormat::Mlir, &CompileOptions { num_replicas: 3, ..Default::default() });
        let env_overrides = vec![("xla_no_such_flag".to_owned(), true.into())];
        compile(ADD, ProgramFormat::Mlir, &CompileOptions { env_overrides, ..Default::default() });
        let env_overrides = vec![("xla_backend_optimization_level".to_owned(), 0.into())];
        compile_mlir(&client, ADD, &CompileOptions { env_overrides, ..Default::default() });
    }
}

#[test]
fn wrong_arguments_are_errors() {
    for plugin in plugins() {
        let client = client(&plugin, 2);
        let mut executable = compile_mlir(&client, ADD, &CompileOptions { num_replicas: 2, ..Default::default() });
        let [a, b, small_a, small_b] = [(0, 6), (1, 6), (0, 2), (1, 2)].map(|(device, size)| {
            let dims: &[i64] = if size == 6 { &[2, 3] } else { &[2] };
            buffer(&client, &vec![1.0; size], dims, &client.addressable_devices()[device])
        });
        let deleted = buffer(&client, &[1.0; 6], &[2, 3], &client.addressable_devices()[1]);
        deleted.delete().unwrap();
        for is_declared in [false, true] {
            let refused =
                |args: &[Vec<&Buffer>]| executable.execute(args, &ExecuteOptions::default()).unwrap_err().to_string();
            assert_eq!(refused(&[vec![&a, &a]]), "the program runs on 2 devices of this process, got arguments for 1");
            assert_eq!(refused(&[vec![&a, &a], vec![&b]]), "the program takes 2 arguments, device 1 got 1");
            assert_eq!(
                refused(&[vec![&a, &a], vec![&b, &small_b]]),
                "argument 1 of the program for device 1 is f32[2], expected f32[2, 3]"
            );
            assert_eq!(
                refused(&[vec![&a, &a], vec![&deleted, &b]]),
                "argument 0 of the program for device 1 was deleted or donated"
            );
            assert!(
                refused(&[vec![&a, &b], vec![&b, &b]])
                    .starts_with("argument 1 of the program for device 0 is on Device")
            );
            if is_declared {
                assert_eq!(refused(&[vec![&a], vec![&b]]), "the program takes 2 arguments, device 0 got 1");
                assert_eq!(
                    refused(&[vec![&small_a, &a], vec![&small_b, &b]]),
                    "argument 0 of the program for device 0 is f32[2], expected f32[2, 3]"
                );
            }
            executable.execute(&[[&a, &a], [&b, &b]], &ExecuteOptions::default()).unwrap().wait().unwrap();
            executable.declare_parameters([(DType::F32, &[2, 3][..]); 2]).unwrap();
        }
        // CPU plugins may take no notice, but must not fail.
        executable.delete().unwrap();
        executable.is_deleted().unwrap();
    }
}

#[test]
fn several_threads_share_an_executable() {
    fn assert_send_and_sync<T: Send + Sync>() {}
    assert_send_and_sync::<(Plugin, Client, Device, Memory, Buffer, LoadedExecutable, Event, Execution)>();
    for plugin in plugins() {
        let client = client(&plugin, 1);
        let executable = compile_mlir(&client, ADD, &CompileOptions::default());
        let device = &client.addressable_devices()[0];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (client, executable) = (&client, &executable);
                scope.spawn(move || {
                    for run in 0..50 {
                        let (x, y) = ((thread * 100) as f32, run as f32);
                        let (a, b) =
                            (buffer(client, &[x; 6], &[2, 3], device), buffer(client, &[y; 6], &[2, 3], device));
                        let execution = executable.execute(&[[&a, &b]], &ExecuteOptions::default()).unwrap();
                        assert_eq!(floats_of(&execution.outputs[0][0].to_host().unwrap()), [x + y; 6]);
                    }
                });
            }
        });
    }
}

#[test]
fn callbacks_of_events_run() {
    for plugin in plugins() {
        let client = client(&plugin, 1);
        let executable = compile_mlir(&client, ADD, &CompileOptions::default());
        let x = buffer(&client, &[1.0; 6], &[2, 3], &client.addressable_devices()[0]);
        let execution = executable.execute(&[[&x, &x]], &ExecuteOptions::default()).unwrap();
        let (sender, receiver) = mpsc::channel();
        for event in [&execution.done[0], &execution.outputs[0][0].ready_event().unwrap()] {
            let sender = sender.clone();
            event.on_ready(move |outcome| sender.send(outcome).unwrap()).unwrap();
        }
        assert!(receiver.recv().unwrap().is_ok() && receiver.recv().unwrap().is_ok());
        execution.wait().unwrap();
        assert!(execution.done[0].is_ready().unwrap());
    }
}

#[test]
fn handles_may_be_dropped_in_any_order() {
    for plugin in plugins() {
        let client = client(&plugin, 2);
        let executable = compile_mlir(&client, ADD, &CompileOptions::default());
        let x = buffer(&client, &[1.0; 6], &[2, 3], &client.addressable_devices()[0]);
        let execution = executable.execute(&[[&x, &x]], &ExecuteOptions::default()).unwrap();
        drop(client);
        drop(x);
        drop(executable);
        let Execution { mut outputs, done } = execution;
        drop(done);
        let output = outputs.remove(0).remove(0);
        assert_eq!(floats_of(&output.to_host().unwrap()), [2.0; 6]);
    }
}
