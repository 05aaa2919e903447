//! The element types of LAPACK's routines.

use std::ops::Neg;

use faer::traits::{ComplexField, RealField};
use num_complex::Complex;
use num_traits::{Float, Num};

use crate::dtype::DType;

/// An element type of a buffer that routines read or write.
pub(super) trait Element: Copy + 'static {
    const DTYPE: DType;
}

/// A type that LAPACK's routines exist for: `s`, `d`, `c`, `z` in their names.
pub(super) trait Scalar: Element + Num + Neg<Output = Self> + ComplexField<Real: Element + Float> {
    /// The scalar whose real part this is, and which has no other.
    fn of(real: Real<Self>) -> Self {
        Self::from_real_impl(&real)
    }

    fn re(self) -> Real<Self> {
        Self::real_part_impl(&self)
    }

    fn im(self) -> Real<Self> {
        Self::imag_part_impl(&self)
    }

    fn conj(self) -> Self {
        Self::conj_impl(&self)
    }

    fn modulus(self) -> Real<Self> {
        Self::abs_impl(&self)
    }

    /// The sum of the parts' absolute values, by which LAPACK compares elements.
    fn l1_norm(self) -> Real<Self> {
        Float::abs(self.re()) + Float::abs(self.im())
    }

    fn scaled(self, factor: Real<Self>) -> Self {
        Self::mul_real_impl(&self, &factor)
    }

    fn inverse(self) -> Self {
        Self::one() / self
    }

    fn root(self) -> Self {
        Self::sqrt_impl(&self)
    }

    fn is_not_a_number(self) -> bool {
        Self::is_nan_impl(&self)
    }

    fn finite(self) -> bool {
        Self::is_finite_impl(&self)
    }
}

/// A scalar that is its own real part.
pub(super) trait RealScalar: Scalar + RealField + Float {}

/// The type of a scalar's real and imaginary part.
pub(super) type Real<T> = <T as ComplexField>::Real;

impl Element for i32 {
    const DTYPE: DType = DType::S32;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for f64 {
    const DTYPE: DType = DType::F64;
}

impl Element for Complex<f32> {
    const DTYPE: DType = DType::C64;
}

impl Element for Complex<f64> {
    const DTYPE: DType = DType::C128;
}

impl Scalar for f32 {}
impl Scalar for f64 {}
impl Scalar for Complex<f32> {}
impl Scalar for Complex<f64> {}
impl RealScalar for f32 {}
impl RealScalar for f64 {}

/// What no result can be computed from, nor by LAPACK: results are NaN then.
pub(super) fn nan<T: Scalar>() -> T {
    T::nan_impl()
}

/// Whether LAPACK's iterations can be trusted to end on these numbers.
pub(super) fn all_finite<T: Scalar>(numbers: &[T]) -> bool {
    numbers.iter().all(|number| number.finite())
}
