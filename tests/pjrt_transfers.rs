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
        }
    }
}
