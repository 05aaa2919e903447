//! Custom calls of real plugins into handlers of ours.

mod common;

use std::collections::BTreeSet;
use std::sync::{Barrier, Mutex};

use common::*;
use spmd_run::dtype::DType;
use spmd_run::pjrt::*;

const DEVICES: usize = 4;
const PLATFORM: &str = "Host";

/// A program of one custom call from `f32[4]` to `f32[4]`.
fn program(target: &str) -> String {
    format!(
        r#"
module @call {{
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = stablehlo.custom_call @{target}(%x) {{
      api_version = 4 : i32, has_side_effect = true,
      backend_config = {{key = 42 : i64, narrow = 7 : i32, flag = true, half = 0.5 : f32, name = "µ", ids = array<i64: 1, 2>}}
    }} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }}
}}
"#
    )
}

/// Runs the program on four devices; device `i` gets `[i, i, i, i]`.
fn run(client: &Client, target: &str, launch_id: i32) -> Result<Vec<Vec<f32>>> {
    let options = CompileOptions { num_replicas: DEVICES as i64, ..Default::default() };
    let executable = compile_mlir(client, &program(target), &options);
    let inputs: Vec<Buffer> = executable
        .addressable_devices()
        .iter()
        .enumerate()
        .map(|(index, device)| {
            client.buffer_from_host(&bytes_of(&[index as f32; 4]), DType::F32, &[4], HostLayout::RowMajor, device)
        })
        .collect::<Result<_>>()?;
    let args: Vec<Vec<&Buffer>> = inputs.iter().map(|input| vec![input]).collect();
    let execution = executable.execute(&args, &ExecuteOptions { launch_id, ..Default::default() })?;
    execution.wait()?;
    execution.outputs.iter().map(|outputs| Ok(floats_of(&outputs[0].to_host()?))).collect()
}

/// Writes `f(input)` to the result.
fn map(frame: &CallFrame<'_>, f: impl Fn(f32) -> f32) -> std::result::Result<(), FfiError> {
    let (args, results) = (frame.args()?, frame.results()?);
    assert_eq!((args[0].dtype, args[0].dims, args[0].size_in_bytes()), (DType::F32, &[4][..], 16));
    for index in 0..args[0].num_elements() {
        // SAFETY: both buffers hold four floats.
        unsafe {
            let value = args[0].ptr.cast::<f32>().add(index).read();
            results[0].ptr.cast::<f32>().add(index).write(f(value));
        }
    }
    Ok(())
}

#[test]
fn a_handler_sees_attributes_run_id_and_device() {
    static SEEN: Mutex<BTreeSet<(i64, i32)>> = Mutex::new(BTreeSet::new());
    for plugin in plugins() {
        let ffi = plugin.ffi().unwrap();
        ffi.register("test.inspect", PLATFORM, |frame: &CallFrame<'_>| {
            assert_eq!(frame.int_attr("key"), Ok(42));
            assert_eq!(frame.int_attr("narrow"), Ok(7));
            assert_eq!(frame.attr("flag"), Some(Attr::Bool(true)));
            assert_eq!(frame.attr("half"), Some(Attr::Float(0.5)));
            assert_eq!(frame.attr("name"), Some(Attr::Str("µ")));
            assert_eq!(frame.attr("ids"), Some(Attr::Ints(&[1, 2])));
            assert_eq!(frame.attr("nope"), None);
            assert!(frame.int_attr("name").is_err());
            let ordinal = frame.device_ordinal().unwrap();
            SEEN.lock().unwrap().insert((frame.run_id().unwrap(), ordinal));
            map(frame, |x| x + 1.0).into()
        })
        .unwrap();
        let client = client(&plugin, DEVICES as i64);
        for launch_id in [3, 4] {
            SEEN.lock().unwrap().clear();
            assert_eq!(run(&client, "test.inspect", launch_id).unwrap(), [[1.0; 4], [2.0; 4], [3.0; 4], [4.0; 4]]);
            assert_eq!(*SEEN.lock().unwrap(), (0..4).map(|device| (launch_id.into(), device)).collect());
        }
    }
}

#[test]
fn all_devices_may_block_in_a_handler_until_the_last_has_come() {
    static ALL_HERE: Barrier = Barrier::new(DEVICES);
    for plugin in plugins() {
        plugin
            .ffi()
            .unwrap()
            .register("test.meet", PLATFORM, |frame: &CallFrame<'_>| {
                ALL_HERE.wait();
                map(frame, |x| x * 2.0).into()
            })
            .unwrap();
        let client = client(&plugin, DEVICES as i64);
        assert_eq!(run(&client, "test.meet", 0).unwrap(), [[0.0; 4], [2.0; 4], [4.0; 4], [6.0; 4]]);
    }
}

/// A pointer that another thread writes through.
struct SendPtr(*mut f32);

// SAFETY: the memory stays valid until the call is complete, and only the thread that completes it writes.
unsafe impl Send for SendPtr {}

impl SendPtr {
    fn get(&self) -> *mut f32 {
        self.0
    }
}

#[test]
fn the_last_device_to_come_completes_the_calls_of_all() {
    static WAITING: Mutex<Vec<(SendPtr, Completion)>> = Mutex::new(Vec::new());
    for plugin in plugins() {
        plugin
            .ffi()
            .unwrap()
            .register("test.later", PLATFORM, |frame: &CallFrame<'_>| {
                let result = frame.results().unwrap()[0];
                let (outcome, completion) = frame.defer();
                let mut waiting = WAITING.lock().unwrap();
                waiting.push((SendPtr(result.ptr.cast()), completion));
                if waiting.len() == DEVICES {
                    let all = std::mem::take(&mut *waiting);
                    std::thread::spawn(move || {
                        for (result, completion) in all {
                            // SAFETY: the result holds four floats until the call is complete.
                            unsafe { result.get().copy_from([9.0_f32; 4].as_ptr(), 4) };
                            completion.complete(Ok(()));
                        }
                    });
                }
                outcome
            })
            .unwrap();
        let client = client(&plugin, DEVICES as i64);
        for launch_id in 0..20 {
            assert_eq!(run(&client, "test.later", launch_id).unwrap(), [[9.0; 4]; 4]);
        }
    }
}

/// Runs a target whose handler fails, and returns the execution's error.
fn failure(plugin: &Plugin, target: &str) -> (ErrorCode, String) {
    let client = client(plugin, DEVICES as i64);
    match run(&client, target, 0) {
        Err(Error::Plugin { code, message, .. }) => (code, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_of_handlers_are_errors_of_the_execution() {
    for plugin in plugins() {
        let ffi = plugin.ffi().unwrap();
        ffi.register("test.fail", PLATFORM, |_: &CallFrame<'_>| {
            Outcome::failed(ErrorCode::FailedPrecondition, "no \0 good")
        })
        .unwrap();
        ffi.register("test.fail_later", PLATFORM, |frame: &CallFrame<'_>| {
            let (outcome, completion) = frame.defer();
            std::thread::spawn(move || {
                completion.complete(Err(FfiError::new(ErrorCode::Unavailable, "the peer is gone")));
            });
            outcome
        })
        .unwrap();
        ffi.register("test.abandon", PLATFORM, |frame: &CallFrame<'_>| frame.defer().0).unwrap();
        ffi.register("test.panic", PLATFORM, |_: &CallFrame<'_>| panic!("on purpose")).unwrap();
        for (target, code, message) in [
            ("test.fail", ErrorCode::FailedPrecondition, "no "),
            ("test.fail_later", ErrorCode::Unavailable, "the peer is gone"),
            ("test.abandon", ErrorCode::Internal, "a deferred custom call was abandoned"),
            ("test.panic", ErrorCode::Internal, "the handler of a custom call panicked"),
        ] {
            let (found_code, found_message) = failure(&plugin, target);
            assert!(found_message.ends_with(message), "{plugin:?} {found_message}");
            // The oldest plugin makes all errors of computations internal ones.
            let expected = if plugin.api_version().minor < 106 { ErrorCode::Internal } else { code };
            assert_eq!(found_code, expected, "{plugin:?} {target}");
        }
    }
}

#[test]
fn a_target_keeps_its_first_handler() {
    for plugin in plugins() {
        let ffi = plugin.ffi().unwrap();
        let first = |frame: &CallFrame<'_>| map(frame, |x| x).into();
        ffi.register("test.once", PLATFORM, first).unwrap();
        ffi.register("test.once", PLATFORM, first).unwrap();
        let second = |frame: &CallFrame<'_>| map(frame, |x| -x).into();
        let error = ffi.register("test.once", PLATFORM, second).unwrap_err();
        assert!(error.to_string().contains("test.once"), "{error}");
    }
}

#[test]
fn narrow_types_are_packed_in_the_plugins_memory() {
    static SEEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    for plugin in plugins() {
        plugin
            .ffi()
            .unwrap()
            .register("test.narrow", PLATFORM, |frame: &CallFrame<'_>| {
                let (arg, result) = (frame.args().unwrap()[0], frame.results().unwrap()[0]);
                // SAFETY: argument and result have the same type, and do not overlap.
                let (stored, result) = unsafe {
                    let size = arg.size_in_bytes();
                    (std::slice::from_raw_parts(arg.ptr, size), std::slice::from_raw_parts_mut(result.ptr, size))
                };
                let mut elements = vec![0; arg.num_elements() * arg.dtype.size()];
                unpack(arg.dtype, stored, &mut elements);
                pack(arg.dtype, &elements, result);
                *SEEN.lock().unwrap() = elements;
                Outcome::Done(Ok(()))
            })
            .unwrap();
        let client = client(&plugin, 1);
        let device = &client.addressable_devices()[0];
        for (mlir, dtype, mask) in [
            ("i1", DType::Pred, 1),
            ("i2", DType::S2, 3),
            ("ui2", DType::U2, 3),
            ("i4", DType::S4, 15),
            ("ui4", DType::U4, 15),
            ("f4E2M1FN", DType::F4E2M1FN, 15),
            ("f8E4M3FN", DType::F8E4M3FN, 255),
        ] {
            let code = format!(
                r#"
module @call {{
  func.func @main(%x: tensor<7x{mlir}>) -> tensor<7x{mlir}> {{
    %0 = stablehlo.custom_call @test.narrow(%x) {{ api_version = 4 : i32, backend_config = {{}} }}
      : (tensor<7x{mlir}>) -> tensor<7x{mlir}>
    return %0 : tensor<7x{mlir}>
  }}
}}
"#
            );
            let executable = compile_mlir(&client, &code, &CompileOptions::default());
            assert_eq!(executable.output_dtypes().unwrap(), [dtype]);
            let data = [1, 2, 3, 100, 8, 9, 254].map(|element| element & mask);
            let input = client.buffer_from_host(&data, dtype, &[7], HostLayout::RowMajor, device).unwrap();
            let execution = executable.execute(&[[&input]], &ExecuteOptions::default()).unwrap();
            execution.wait().unwrap();
            assert_eq!(*SEEN.lock().unwrap(), data, "{plugin:?} {dtype}");
            assert_eq!(execution.outputs[0][0].to_host().unwrap(), data, "{plugin:?} {dtype}");
        }
    }
}
