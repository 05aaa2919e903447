//! An array as a file holds it, and what becomes of it.

use super::header::{Element, Header, is_raw, numpy_name};
use crate::dtype::DType;
use crate::host_array::{FileError, HostArray, shape_text};

/// An array of a `.npy` file or of an entry of a `.npz` file, as it stands there.
#[derive(Clone, Debug)]
pub struct NpyArray {
    /// The file, and the name of the array in it.
    origin: String,
    header: Header,
    data: Vec<u8>,
}

impl NpyArray {
    pub(in crate::host_array) fn new(origin: String, header: Header, data: Vec<u8>) -> NpyArray {
        NpyArray { origin, header, data }
    }

    /// Size of each dimension; empty for a scalar.
    pub fn dims(&self) -> &[usize] {
        &self.header.dims
    }

    /// Type of the elements; `None` for raw ones, which are of any type of their width that NumPy lacks.
    pub fn dtype(&self) -> Option<DType> {
        self.header.dtype()
    }

    /// The array as one of `dtype` and `dims`, which it must be; nothing is converted but byte order and Fortran order.
    /// Raw elements are taken for any type of their width that NumPy lacks.
    pub fn into_host_array(self, dtype: DType, dims: &[usize]) -> Result<HostArray, FileError> {
        let same_type = self.header.holds(dtype);
        if !same_type || self.header.dims != dims {
            let advice = if same_type {
                String::new()
            } else if is_raw(dtype) {
                format!(": save it as an array of ml_dtypes.{}", numpy_name(dtype))
            } else {
                format!(": save it as .astype('{}')", numpy_name(dtype))
            };
            return Err(FileError::Mismatch {
                found: self.shape_text(),
                origin: self.origin,
                expected: shape_text(dtype, dims),
                advice,
            });
        }

        let mut data = self.data;
        let size = dtype.size();
        if self.header.fortran_order && !data.is_empty() {
            data = row_major(&data, dims, size);
        }
        let part = if matches!(dtype, DType::C64 | DType::C128) { size / 2 } else { size };
        if self.header.big_endian && part > 1 && !is_raw(dtype) {
            data.chunks_exact_mut(part).for_each(<[u8]>::reverse);
        }
        if dtype == DType::Pred {
            data.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        HostArray::new(dtype, dims.to_vec(), data).map_err(|error| FileError::malformed(&self.origin, error))
    }

    fn shape_text(&self) -> String {
        match self.header.element {
            Element::Typed(dtype) => shape_text(dtype, &self.header.dims),
            Element::Raw(size) => {
                let dims: Vec<String> = self.header.dims.iter().map(usize::to_string).collect();
                format!("raw V{size}[{}]", dims.join(","))
            }
        }
    }
}

/// Reorders elements whose first index runs fastest.
fn row_major(data: &[u8], dims: &[usize], size: usize) -> Vec<u8> {
    let mut strides = vec![size; dims.len()];
    for dim in 1..dims.len() {
        strides[dim] = strides[dim - 1] * dims[dim - 1];
    }
    let mut result = Vec::with_capacity(data.len());
    let mut index = vec![0; dims.len()];
    let mut at = 0;
    while result.len() < data.len() {
        result.extend_from_slice(&data[at..at + size]);
        for dim in (0..dims.len()).rev() {
            index[dim] += 1;
            at += strides[dim];
            if index[dim] < dims[dim] {
                break;
            }
            at -= strides[dim] * dims[dim];
            index[dim] = 0;
        }
    }
    result
}
