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
            let results = run(&client, "test.inspect", launch_id);
            eprintln!("{plugin:?} {results:?} {:?}", SEEN.lock().unwrap());
        }
    }
}
