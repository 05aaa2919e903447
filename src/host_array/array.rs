//! The array itself.

use std::fmt::Write;

use super::{Side, copy_region};
use crate::dtype::DType;

/// A dense array in host memory, row-major; an element takes [`DType::size`] bytes, little-endian.
///
/// Elements of types narrower than a byte lie in the low bits of theirs; what the other bits are does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostArray {
    dtype: DType,
    dims: Vec<usize>,
    data: Vec<u8>,
}

/// An array that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// The data is not what dtype and dimensions ask for.
    #[error("{shape} takes {expected} bytes, but {actual} are given")]
    WrongLength {
        /// Shape as in HLO text.
        shape: String,
        /// Bytes that the shape takes.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// Two arrays were to be compared, and cannot be.
    #[error("an array of {actual} cannot be compared with one of {expected}")]
    DifferentShapes {
        /// Shape as in HLO text.
        actual: String,
        /// Shape as in HLO text.
        expected: String,
    },
    /// The elements were to be read as another type.
    #[error("the elements of {shape} are not {asked}")]
    WrongType {
        /// Shape as in HLO text.
        shape: String,
        /// The type that was asked for.
        asked: DType,
    },
    /// More bytes than can be addressed or allocated.
    #[error("{shape} is too large for the memory of this machine")]
    TooLarge {
        /// Shape as in HLO text.
        shape: String,
    },
}

impl HostArray {
    /// An array over `data`, which must be as long as the shape asks for.
    pub fn new(dtype: DType, dims: Vec<usize>, data: Vec<u8>) -> Result<HostArray, ArrayError> {
        let expected = byte_size(dtype, &dims)?;
        if data.len() != expected {
            return Err(ArrayError::WrongLength { shape: shape_text(dtype, &dims), expected, actual: data.len() });
        }
        Ok(HostArray { dtype, dims, data })
    }

    /// An array whose data is as long as its shape asks for.
    pub(super) fn of_bytes(dtype: DType, dims: Vec<usize>, data: Vec<u8>) -> HostArray {
        HostArray { dtype, dims, data }
    }

    /// An array of zero bytes.
    pub fn zeros(dtype: DType, dims: &[usize]) -> Result<HostArray, ArrayError> {
        let size = byte_size(dtype, dims)?;
        // A failed `vec!` ends the process; asking first turns a shape that cannot be had into an error.
        let mut probe = Vec::<u8>::new();
        probe.try_reserve_exact(size).map_err(|_| ArrayError::TooLarge { shape: shape_text(dtype, dims) })?;
        drop(probe);
        Ok(HostArray { dtype, dims: dims.to_vec(), data: vec![0; size] })
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Size of each dimension; empty for a scalar.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Size of each dimension, as XLA and PJRT take it.
    pub fn dims_i64(&self) -> Vec<i64> {
        self.dims.iter().map(|&dim| dim as i64).collect()
    }

    /// The elements' bytes.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The elements' bytes, to be changed in place.
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// The elements' bytes, without copying them.
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// Number of elements; 1 for a scalar.
    pub fn num_elements(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// Bytes that the elements take.
    pub fn size(&self) -> usize {
        self.data.len()
    }

    /// Dtype and dimensions as in HLO text: `f32[8,128]`.
    pub fn shape_text(&self) -> String {
        shape_text(self.dtype, &self.dims)
    }

    /// The box of `extent` elements from the element `start` on, which lies inside the array.
    pub(crate) fn part(&self, start: &[usize], extent: &[usize]) -> Result<HostArray, ArrayError> {
        let mut part = HostArray::zeros(self.dtype, extent)?;
        let to = Side { dims: extent, start: &vec![0; extent.len()] };
        let from = Side { dims: &self.dims, start };
        copy_region(extent, self.dtype.size(), (&self.data, from), (&mut part.data, to));
        Ok(part)
    }

    /// Puts an array of the same type in place of the elements from `start` on, where there is room for it.
    pub(crate) fn set_part(&mut self, start: &[usize], part: &HostArray) {
        let from = Side { dims: &part.dims, start: &vec![0; part.dims.len()] };
        let to = Side { dims: &self.dims, start };
        copy_region(&part.dims, self.dtype.size(), (&part.data, from), (&mut self.data, to));
    }

    pub(super) fn elements(&self) -> std::slice::ChunksExact<'_, u8> {
        self.data.chunks_exact(self.dtype.size())
    }
}

/// Dtype and dimensions as in HLO text: `f32[8,128]`.
pub(crate) fn shape_text(dtype: DType, dims: &[usize]) -> String {
    let mut text = format!("{dtype}[");
    for (position, dim) in dims.iter().enumerate() {
        let comma = if position == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{dim}");
    }
    text.push(']');
    text
}

fn byte_size(dtype: DType, dims: &[usize]) -> Result<usize, ArrayError> {
    if dims.contains(&0) {
        return Ok(0);
    }
    let size = dims.iter().try_fold(dtype.size(), |size, &dim| size.checked_mul(dim));
    size.filter(|&size| isize::try_from(size).is_ok())
        .ok_or_else(|| ArrayError::TooLarge { shape: shape_text(dtype, dims) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_must_fit_the_shape() {
        let array = HostArray::new(DType::F32, vec![2, 3], vec![0; 24]).unwrap();
        assert_eq!((array.num_elements(), array.size(), array.shape_text().as_str()), (6, 24, "f32[2,3]"));
        assert_eq!(HostArray::new(DType::S4, vec![], vec![7]).unwrap().num_elements(), 1);
        let error = HostArray::new(DType::F32, vec![2, 3], vec![0; 23]).unwrap_err();
        insta::assert_snapshot!(error, @"f32[2,3] takes 24 bytes, but 23 are given");
    }

    #[test]
    fn shapes_beyond_memory_are_errors() {
        for dims in [vec![usize::MAX, 2], vec![1 << 62], vec![1 << 40, 1 << 20]] {
            assert!(matches!(HostArray::zeros(DType::F32, &dims), Err(ArrayError::TooLarge { .. })), "{dims:?}");
        }
        assert_eq!(HostArray::zeros(DType::F32, &[usize::MAX, 0, usize::MAX]).unwrap().size(), 0);
    }
}
