//! Host arrays from those of the crate ndarray and back.

use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use super::{ArrayError, Element, HostArray};

/// A copy of the elements, in row-major order whatever the array's own is.
impl<T: Element, S: Data<Elem = T>, D: Dimension> From<&ArrayBase<S, D>> for HostArray {
    fn from(array: &ArrayBase<S, D>) -> HostArray {
        let mut data = Vec::with_capacity(array.len() * T::DTYPE.size());
        match array.as_slice() {
            Some(elements) => T::write(elements, &mut data),
            None => array.iter().for_each(|&element| T::write(&[element], &mut data)),
        }
        HostArray::of_bytes(T::DTYPE, array.shape().to_vec(), data)
    }
}

impl HostArray {
    /// A copy of the elements as an array of the crate ndarray.
    ///
    /// ```
    /// use ndarray::array;
    /// use spmd_run::host_array::HostArray;
    ///
    /// let matrix = array![[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    /// let transposed = HostArray::from(&matrix.t());
    /// assert_eq!(transposed.shape_text(), "f32[3,2]");
    /// assert_eq!(transposed.to_ndarray::<f32>()?, matrix.t().into_dyn());
    /// # Ok::<(), spmd_run::host_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    /// The elements are of another type.
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>, ArrayError> {
        let too_large = |_| ArrayError::TooLarge { shape: self.shape_text() };
        ArrayD::from_shape_vec(IxDyn(self.dims()), self.to_elements()?).map_err(too_large)
    }
}
