//! Arrays copied to devices and back.

mod common;

use common::*;
use spmd_run::dtype::DType;
use spmd_run::pjrt::*;

/// Fifteen elements with all of the type's bits in use, and no more.
fn sample(dtype: DType) -> Vec<u8> {
    let mask = if dtype == DType::Pred { 1 } else { 0xff_u8 >> (8 - dtype.bits().min(8)) };
    (0..15 * dtype.size()).map(|i| (i * 37 + 5) as u8 & mask).collect()
}

/// The sample as a column-major array of three rows and five columns.
fn transposed(dtype: DType) -> Vec<u8> {
    let (row_major, size) = (sample(dtype), dtype.size());
    let element = |row: usize, column: usize| &row_major[(5 * row + column) * size..][..size];
    (0..5).flat_map(|column| (0..3).flat_map(move |row| element(row, column))).copied().collect()
}

/// The types that came after the API that a plugin was built with.
fn is_newer_than(dtype: DType, version: ApiVersion) -> bool {
    match dtype {
        DType::S1 | DType::U1 => version.minor < 94,
        DType::F6E2M3FN | DType::F6E3M2FN => version.minor < 114,
        _ => false,
    }
}

#[test]
fn every_dtype_makes_the_round_trip() {
    for plugin in plugins() {
        let client = client(&plugin, 1);
        let device = &client.addressable_devices()[0];
        for dtype in DType::all() {
            let data = sample(dtype);
            let buffer = client.buffer_from_host(&data, dtype, &[3, 5], HostLayout::RowMajor, device);
            if is_newer_than(dtype, plugin.api_version()) {
                assert!(matches!(buffer, Err(Error::Lacks { .. })), "{plugin:?} {dtype}");
                continue;
            }
            let buffer = buffer.unwrap();
            assert_eq!(buffer.dtype().unwrap(), dtype);
            assert_eq!(buffer.dims().unwrap(), [3, 5]);
            assert_eq!(buffer.to_host().unwrap(), data, "{plugin:?} {dtype}");
            let layout = HostLayout::MinorToMajor(&[0, 1]);
            let buffer = client.buffer_from_host(&transposed(dtype), dtype, &[3, 5], layout, device).unwrap();
            assert_eq!(buffer.to_host().unwrap(), data, "{plugin:?} {dtype} from column-major");
        }
    }
}

#[test]
fn scalars_and_empty_arrays_make_the_round_trip() {
    for plugin in plugins() {
        let client = client(&plugin, 1);
        let device = &client.addressable_devices()[0];
        for (data, dims) in [(vec![4.5_f32], &[][..]), (vec![], &[0]), (vec![], &[3, 0, 2]), (vec![1.0], &[1, 1])] {
            let data = bytes_of(&data);
            let buffer = client.buffer_from_host(&data, DType::F32, dims, HostLayout::RowMajor, device).unwrap();
            assert_eq!(buffer.dims().unwrap(), dims);
            assert_eq!(buffer.to_host().unwrap(), data, "{plugin:?} {dims:?}");
        }
    }
}

#[test]
fn host_layouts_are_respected() {
    let row_major = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let column_major = bytes_of(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    // Rows of three floats, each followed by one that is not part of the array.
    let padded = bytes_of(&[1.0, 2.0, 3.0, -1.0, 4.0, 5.0, 6.0]);
    for plugin in plugins() {
        let client = client(&plugin, 1);
        let device = &client.addressable_devices()[0];
        for (data, layout) in [
            (&column_major, HostLayout::MinorToMajor(&[0, 1])),
            (&column_major, HostLayout::Strides(&[4, 8])),
            (&padded, HostLayout::Strides(&[16, 4])),
        ] {
            let buffer = client.buffer_from_host(data, DType::F32, &[2, 3], layout, device).unwrap();
            assert_eq!(floats_of(&buffer.to_host().unwrap()), row_major, "{plugin:?} {layout:?}");
            if let Some(back) = to_host(&buffer, HostLayout::MinorToMajor(&[0, 1])) {
                assert_eq!(back, column_major, "{plugin:?}");
            }
        }
    }
}

/// The array in this layout; `None` for plugins that are too old to change its layout.
fn to_host(buffer: &Buffer, layout: HostLayout<'_>) -> Option<Vec<u8>> {
    let mut data = vec![0; 24];
    match buffer.to_host_into(&mut data, layout) {
        Ok(()) => Some(data),
        Err(Error::Lacks { .. }) if buffer.client().plugin().api_version().minor < 106 => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn device_layouts_are_hidden_from_the_host() {
    let code = r#"
module @transposed {
  func.func @main(%x: tensor<2x3xf32> {mhlo.layout_mode = "{0,1}"})
      -> (tensor<2x3xf32> {mhlo.layout_mode = "{0,1}"}) {
    %0 = stablehlo.negate %x : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}
"#;
    let (x_row_major, x_column_major) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    for plugin in plugins() {
        let client = client(&plugin, 1);
        let executable = compile_mlir(&client, code, &CompileOptions::default());
        let place = Place {
            device: Some(&client.addressable_devices()[0]),
            minor_to_major: Some(&[0, 1]),
            ..Default::default()
        };
        let data = bytes_of(&x_row_major);
        let x = client.buffer_from_host_to(&data, DType::F32, &[2, 3], HostLayout::RowMajor, place);
        if plugin.api_version().minor < 115 {
            assert!(matches!(x, Err(Error::Lacks { .. })), "{x:?}");
            continue;
        }
        let x = x.unwrap();
        let execution = executable.execute(&[[&x]], &ExecuteOptions::default()).unwrap();
        let y = &execution.outputs[0][0];
        for (buffer, sign) in [(&x, 1.0), (y, -1.0)] {
            assert_eq!(
                buffer.layout().unwrap(),
                BufferLayout::Tiled { minor_to_major: vec![0, 1], tiles: vec![] },
                "{plugin:?}"
            );
            if let Some(data) = to_host(buffer, HostLayout::RowMajor) {
                assert_eq!(floats_of(&data), x_row_major.map(|x| sign * x), "{plugin:?}");
            }
            let data = to_host(buffer, HostLayout::MinorToMajor(&[0, 1])).unwrap();
            assert_eq!(floats_of(&data), x_column_major.map(|x| sign * x), "{plugin:?}");
        }
        let nowhere = client.buffer_from_host_to(&data, DType::F32, &[2, 3], HostLayout::RowMajor, Place::default());
        assert!(nowhere.is_err());
    }
}

#[test]
fn data_that_does_not_fit_is_refused() {
    let plugin = plugin();
    let client = client(&plugin, 1);
    let device = &client.addressable_devices()[0];
    let refused = |len: usize, dims: &[i64], layout| {
        client.buffer_from_host(&vec![0; len], DType::F32, dims, layout, device).unwrap_err().to_string()
    };
    assert_eq!(
        refused(23, &[2, 3], HostLayout::RowMajor),
        "23 bytes of host data do not fit f32[2, 3], which takes 24"
    );
    refused(24, &[2, -3], HostLayout::RowMajor);
    refused(24, &[i64::MAX, i64::MAX], HostLayout::RowMajor);
    refused(24, &[2, 3], HostLayout::Strides(&[16, 4]));
    refused(24, &[2, 3], HostLayout::Strides(&[12]));
    refused(24, &[2, 3], HostLayout::MinorToMajor(&[1, 1]));
    let buffer = client.buffer_from_host(&[0; 24], DType::F32, &[2, 3], HostLayout::RowMajor, device).unwrap();
    assert!(buffer.to_host_into(&mut [0; 23], HostLayout::RowMajor).is_err());
    assert!(buffer.to_host_into(&mut [0; 24], HostLayout::MinorToMajor(&[2, 0])).is_err());
    assert!(buffer.to_host_into(&mut [0; 24], HostLayout::Strides(&[12, 4])).is_err());
}

#[test]
fn arrays_move_between_devices_and_memories() {
    for plugin in plugins() {
        let client = client(&plugin, 2);
        let devices = client.addressable_devices();
        let data = bytes_of(&[1.0, 2.0]);
        let buffer = client.buffer_from_host(&data, DType::F32, &[2], HostLayout::RowMajor, &devices[0]).unwrap();
        let copy = buffer.copy_to_device(&devices[1]).unwrap();
        assert_eq!(copy.device().unwrap(), devices[1]);
        assert_eq!(copy.to_host().unwrap(), data);
        let memory = devices[1].default_memory().unwrap();
        assert_eq!(copy.memory().unwrap(), memory);
        let copy = buffer.copy_to_memory(&memory).unwrap();
        assert_eq!(copy.memory().unwrap(), memory);
        assert_eq!(copy.to_host().unwrap(), data);
        let place = Place { memory: Some(&memory), ..Default::default() };
        let direct = client.buffer_from_host_to(&data, DType::F32, &[2], HostLayout::RowMajor, place).unwrap();
        assert_eq!(direct.device().unwrap(), devices[1]);
        assert_eq!(direct.to_host().unwrap(), data);
    }
}

#[test]
fn a_deleted_buffer_can_be_held_but_not_read() {
    for plugin in plugins() {
        let client = client(&plugin, 1);
        let device = &client.addressable_devices()[0];
        let data = bytes_of(&[1.0, 2.0]);
        let buffer = client.buffer_from_host(&data, DType::F32, &[2], HostLayout::RowMajor, device).unwrap();
        buffer.ready_event().unwrap().wait().unwrap();
        assert!(!buffer.is_deleted().unwrap());
        buffer.delete().unwrap();
        assert!(buffer.is_deleted().unwrap());
        assert_eq!(buffer.dims().unwrap(), [2]);
        assert!(buffer.to_host().unwrap_err().code().is_some());
        buffer.delete().unwrap();
    }
}
