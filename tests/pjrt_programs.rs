//! Programs compiled and run on real plugins.

mod common;

use common::*;
use spmd_run::dtype::DType;
use spmd_run::pjrt::*;

const ADD: &str = r#"
module @add {
  func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %sum = stablehlo.add %x, %y : tensor<2x3xf32>
    return %sum : tensor<2x3xf32>
  }
}
"#;

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
                [index as f32, 10.0].map(|value| {
                    let data = bytes_of(&[value, value + 1.0, value + 2.0, value + 3.0, value + 4.0, value + 5.0]);
                    client.buffer_from_host(&data, DType::F32, &[2, 3], HostLayout::RowMajor, device).unwrap()
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
