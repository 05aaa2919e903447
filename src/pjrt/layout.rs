//! Element types and memory layouts at the border of the plugin.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::borrow;
use super::error::{Error, Result};
use super::ffi;
use super::plugin::Plugin;
use crate::dtype::DType;

/// How an array lies in host memory.
#[derive(Clone, Copy, Debug, Default)]
pub enum HostLayout<'a> {
    /// Dense, the last dimension contiguous.
    #[default]
    RowMajor,
    /// Dense, with the dimensions in this order from the one that varies fastest to the slowest.
    MinorToMajor(&'a [i64]),
    /// The distance in bytes from one element to the next, for each dimension; never negative. Host to device only.
    Strides(&'a [i64]),
}

/// How an array lies in device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferLayout {
    /// Dense, perhaps in tiles.
    Tiled {
        /// The dimensions, from the one that varies fastest to the slowest.
        minor_to_major: Vec<i64>,
        /// The dimensions of each level of tiles; none when the array is not tiled.
        tiles: Vec<Vec<i64>>,
    },
    /// The distance in bytes from one element to the next, for each dimension.
    Strides(Vec<i64>),
}

impl BufferLayout {
    /// # Safety
    /// `raw` was filled in by a plugin, and its lists are still valid.
    pub(super) unsafe fn from_raw(raw: &ffi::MemoryLayout) -> BufferLayout {
        // SAFETY: `kind` says which arm is set; the lists have the lengths that stand beside them.
        unsafe {
            if raw.kind != ffi::LAYOUT_TILED {
                let strides = raw.arm.strides;
                return BufferLayout::Strides(borrow(strides.byte_strides, strides.num_byte_strides).to_vec());
            }
            let tiled = raw.arm.tiled;
            let sizes = borrow(tiled.tile_dim_sizes, tiled.num_tiles);
            let mut dims = borrow(tiled.tile_dims, sizes.iter().sum());
            let mut tiles = Vec::with_capacity(sizes.len());
            for &size in sizes {
                let (tile, rest) = dims.split_at(size.min(dims.len()));
                tiles.push(tile.to_vec());
                dims = rest;
            }
            let minor_to_major = borrow(tiled.minor_to_major, tiled.minor_to_major_size).to_vec();
            BufferLayout::Tiled { minor_to_major, tiles }
        }
    }
}

/// `minor_to_major`, which must outlive the result, in the form that PJRT takes.
pub(super) fn to_raw(minor_to_major: &[i64]) -> ffi::MemoryLayout {
    ffi::MemoryLayout {
        struct_size: size_of::<ffi::MemoryLayout>(),
        extension_start: null_mut(),
        arm: ffi::MemoryLayoutArm {
            tiled: ffi::TiledLayout {
                struct_size: size_of::<ffi::TiledLayout>(),
                extension_start: null_mut(),
                minor_to_major: minor_to_major.as_ptr(),
                minor_to_major_size: minor_to_major.len(),
                tile_dims: std::ptr::null(),
                tile_dim_sizes: std::ptr::null(),
                num_tiles: 0,
            },
        },
        kind: ffi::LAYOUT_TILED,
    }
}

/// The numbers of `PJRT_Buffer_Type`, and the minor version that brought each (for the f6 types, the first known to have
/// them).
const BUFFER_TYPES: [(DType, c_int, i32); 32] = [
    (DType::Pred, 1, 0),
    (DType::S8, 2, 0),
    (DType::S16, 3, 0),
    (DType::S32, 4, 0),
    (DType::S64, 5, 0),
    (DType::U8, 6, 0),
    (DType::U16, 7, 0),
    (DType::U32, 8, 0),
    (DType::U64, 9, 0),
    (DType::F16, 10, 0),
    (DType::F32, 11, 0),
    (DType::F64, 12, 0),
    (DType::BF16, 13, 0),
    (DType::C64, 14, 0),
    (DType::C128, 15, 0),
    (DType::F8E5M2, 16, 0),
    (DType::F8E4M3FN, 17, 0),
    (DType::F8E4M3B11FNUZ, 18, 0),
    (DType::F8E5M2FNUZ, 19, 0),
    (DType::F8E4M3FNUZ, 20, 0),
    (DType::S4, 21, 0),
    (DType::U4, 22, 0),
    (DType::S2, 24, 0),
    (DType::U2, 25, 0),
    (DType::F8E4M3, 26, 0),
    (DType::F8E3M4, 27, 0),
    (DType::F8E8M0FNU, 28, 63),
    (DType::F4E2M1FN, 29, 63),
    (DType::S1, 30, 94),
    (DType::U1, 31, 94),
    (DType::F6E2M3FN, 32, 114),
    (DType::F6E3M2FN, 33, 114),
];

/// The plugin's number for `dtype`. Plugins abort on numbers that they do not know, so newer ones are kept from them.
pub(super) fn buffer_type(plugin: &Plugin, dtype: DType) -> Result<c_int> {
    let row = BUFFER_TYPES.iter().find(|(row, _, since)| *row == dtype && *since <= plugin.api_version().minor);
    row.map(|(_, number, _)| *number).ok_or_else(|| plugin.lacks(format!("arrays of {dtype}")))
}

/// The element type with this number in `PJRT_Buffer_Type`.
pub(super) fn dtype_of(number: c_int) -> Result<DType> {
    let row = BUFFER_TYPES.iter().find(|(_, row, _)| *row == number);
    row.map(|(dtype, _, _)| *dtype)
        .ok_or_else(|| Error::Invalid(format!("buffers of PJRT element type {number} hold no array that we know")))
}

/// The bytes that a dense array takes in host memory.
pub(super) fn dense_size(dtype: DType, dims: &[i64]) -> Result<usize> {
    dims.iter()
        .try_fold(dtype.size(), |size, &dim| size.checked_mul(usize::try_from(dim).ok()?))
        .filter(|size| isize::try_from(*size).is_ok())
        .ok_or_else(|| Error::Invalid(format!("{dtype}{dims:?} is no shape of an array in memory")))
}

/// The strides of a layout that is not row-major.
pub(super) fn byte_strides(layout: HostLayout<'_>, dtype: DType, dims: &[i64]) -> Result<Option<Vec<i64>>> {
    match layout {
        HostLayout::RowMajor => Ok(None),
        HostLayout::Strides(strides) => {
            if strides.len() != dims.len() || strides.iter().any(|stride| *stride < 0) {
                return Err(Error::Invalid(format!("the byte strides {strides:?} do not fit {dtype}{dims:?}")));
            }
            Ok(Some(strides.to_vec()))
        }
        HostLayout::MinorToMajor(order) => {
            check_order(order, dims)?;
            let mut strides = vec![0; dims.len()];
            let mut stride = i64::try_from(dtype.size()).unwrap_or(1);
            for (stride_of_dim, dim) in
                order.iter().filter_map(|&dim| usize::try_from(dim).ok()).map(|dim| (dim, dims[dim]))
            {
                strides[stride_of_dim] = stride;
                stride = stride.saturating_mul(dim.max(1));
            }
            Ok(Some(strides))
        }
    }
}

/// Refuses an order that is no permutation of the dimensions.
pub(super) fn check_order(order: &[i64], dims: &[i64]) -> Result<()> {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    let expected = 0..i64::try_from(dims.len()).unwrap_or(i64::MAX);
    if sorted.into_iter().eq(expected) {
        return Ok(());
    }
    Err(Error::Invalid(format!("{order:?} is no order of the dimensions of {dims:?}")))
}

/// Refuses host data that is shorter than what the plugin will read, or, when dense, longer.
pub(super) fn check_span(len: usize, dtype: DType, dims: &[i64], strides: Option<&[i64]>) -> Result<()> {
    let dense = dense_size(dtype, dims)?;
    let fits = match strides {
        None => len == dense,
        Some(_) if dense == 0 => true,
        Some(strides) => dims
            .iter()
            .zip(strides)
            .try_fold(dtype.size(), |span, (&dim, &stride)| {
                span.checked_add(usize::try_from(dim.checked_sub(1)?.checked_mul(stride)?).ok()?)
            })
            .is_some_and(|span| span <= len),
    };
    if fits {
        return Ok(());
    }
    Err(Error::Invalid(format!("{len} bytes of host data do not fit {dtype}{dims:?}, which takes {dense}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_has_a_buffer_type() {
        for dtype in DType::all() {
            let row = BUFFER_TYPES.iter().find(|row| row.0 == dtype);
            assert_eq!(row.map(|row| dtype_of(row.1).unwrap()), Some(dtype));
        }
        assert!(dtype_of(0).is_err());
        assert!(dtype_of(23).is_err(), "tokens are no arrays");
    }

    #[test]
    fn strides_follow_the_order_of_dimensions() {
        let strides = |order: &[i64]| byte_strides(HostLayout::MinorToMajor(order), DType::F32, &[2, 3, 5]).unwrap();
        assert_eq!(strides(&[2, 1, 0]), Some(vec![60, 20, 4]));
        assert_eq!(strides(&[0, 1, 2]), Some(vec![4, 8, 24]));
        for bad in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3], &[-1, 0, 1]] {
            assert!(byte_strides(HostLayout::MinorToMajor(bad), DType::F32, &[2, 3, 5]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn spans_are_checked() {
        let check = |len, dims: &[i64], strides| check_span(len, DType::S16, dims, strides).is_ok();
        assert!(check(12, &[2, 3], None));
        assert!(!check(11, &[2, 3], None));
        assert!(!check(13, &[2, 3], None));
        assert!(check(0, &[0, 3], None));
        assert!(check(12, &[2, 3], Some(&[2, 4])));
        assert!(!check(11, &[2, 3], Some(&[2, 4])));
        assert!(check(2, &[1000], Some(&[0])));
        assert!(!check(12, &[-2, -3], None));
        assert!(!check(12, &[i64::MAX, i64::MAX], None));
        assert!(!check(12, &[i64::MAX, 2], Some(&[i64::MAX, 1])));
    }
}
