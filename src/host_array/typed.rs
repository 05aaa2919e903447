//! Host arrays from Rust's numbers and back.

use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

use super::{ArrayError, HostArray};
use crate::dtype::DType;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that an array's elements can have.
pub trait Element: Copy + sealed::Sealed {
    /// The element type that it is.
    const DTYPE: DType;

    /// Appends the bytes of these elements.
    #[doc(hidden)]
    fn write(elements: &[Self], bytes: &mut Vec<u8>);

    /// The element of these bytes, [`DType::size`] of them.
    #[doc(hidden)]
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! elements {
    ($($element:ty: $dtype:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $element {}

            impl Element for $element {
                const DTYPE: DType = DType::$dtype;

                fn write(elements: &[Self], bytes: &mut Vec<u8>) {
                    bytes.extend_from_slice(bytemuck::cast_slice(elements));
                }

                fn read(bytes: &[u8]) -> Self {
                    bytemuck::pod_read_unaligned(bytes)
                }
            }
        )*
    };
}

elements! {
    i8: S8, i16: S16, i32: S32, i64: S64, u8: U8, u16: U16, u32: U32, u64: U64, f32: F32, f64: F64,
}

macro_rules! elements_of_parts {
    ($($element:ty: $dtype:ident, $part:ty, |$value:ident| $parts:expr, |$read:ident| $whole:expr;)*) => {
        $(
            impl sealed::Sealed for $element {}

            impl Element for $element {
                const DTYPE: DType = DType::$dtype;

                fn write(elements: &[Self], bytes: &mut Vec<u8>) {
                    bytes.extend(elements.iter().flat_map(|$value| $parts).flat_map(<$part>::to_le_bytes));
                }

                fn read(bytes: &[u8]) -> Self {
                    let (half, _) = bytes.split_at(size_of::<$part>());
                    let $read = |part: usize| -> $part {
                        let start = part * half.len();
                        bytemuck::pod_read_unaligned(&bytes[start..start + half.len()])
                    };
                    $whole
                }
            }
        )*
    };
}

elements_of_parts! {
    f16: F16, u16, |value| [value.to_bits()], |part| f16::from_bits(part(0));
    bf16: BF16, u16, |value| [value.to_bits()], |part| bf16::from_bits(part(0));
    Complex32: C64, f32, |value| [value.re, value.im], |part| Complex32::new(part(0), part(1));
    Complex64: C128, f64, |value| [value.re, value.im], |part| Complex64::new(part(0), part(1));
}

impl sealed::Sealed for bool {}

impl Element for bool {
    const DTYPE: DType = DType::Pred;

    fn write(elements: &[bool], bytes: &mut Vec<u8>) {
        bytes.extend(elements.iter().map(|&element| u8::from(element)));
    }

    fn read(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|&byte| byte != 0)
    }
}

impl HostArray {
    /// An array of these elements in row-major order.
    ///
    /// ```
    /// use spmd_run::host_array::HostArray;
    ///
    /// let array = HostArray::from_elements(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?;
    /// assert_eq!(array.shape_text(), "f32[2,2]");
    /// assert_eq!(array.to_elements::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), spmd_run::host_array::ArrayError>(())
    /// ```
    ///
    /// # Errors
    /// The dimensions ask for another number of elements.
    pub fn from_elements<T: Element>(dims: &[usize], elements: &[T]) -> Result<HostArray, ArrayError> {
        let mut data = Vec::with_capacity(size_of_val(elements));
        T::write(elements, &mut data);
        HostArray::new(T::DTYPE, dims.to_vec(), data)
    }

    /// A scalar.
    pub fn scalar<T: Element>(element: T) -> HostArray {
        let mut data = Vec::new();
        T::write(&[element], &mut data);
        HostArray::of_bytes(T::DTYPE, Vec::new(), data)
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// They are of another type.
    pub fn to_elements<T: Element>(&self) -> Result<Vec<T>, ArrayError> {
        if self.dtype() != T::DTYPE {
            return Err(ArrayError::WrongType { shape: self.shape_text(), asked: T::DTYPE });
        }
        Ok(self.elements().map(T::read).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Element + PartialEq + std::fmt::Debug>(elements: &[T]) {
        let array = HostArray::from_elements(&[elements.len()], elements).unwrap();
        assert_eq!((array.dtype(), array.size()), (T::DTYPE, elements.len() * T::DTYPE.size()));
        assert_eq!(array.to_elements::<T>().unwrap(), elements);
    }

    #[test]
    fn elements_come_back() {
        round_trip(&[true, false, true]);
        round_trip(&[-1i8, 2]);
        round_trip(&[u64::MAX, 0]);
        round_trip(&[f16::from_f32(0.5), f16::MAX]);
        round_trip(&[bf16::from_f32(-3.0)]);
        round_trip(&[Complex64::new(1.0, -2.0)]);
        assert_eq!(HostArray::scalar(2.5f32).dims(), [0usize; 0]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let array = HostArray::from_elements(&[3], &[1i32, 2, 3]).unwrap();
        insta::assert_snapshot!(array.to_elements::<f32>().unwrap_err(), @"the elements of s32[3] are not f32");
        insta::assert_snapshot!(HostArray::from_elements(&[2], &[1i32]).unwrap_err(), @"s32[2] takes 8 bytes, but 4 are given");
    }
}
