//! Elementary reflectors in LAPACK's convention: `H = I - tau v vᴴ`, where v starts with an implied 1.
//!
//! faer has Householder reflections of its own, but with another scale of tau and, for complex matrices, another phase;
//! LAPACK's are part of what its routines return.

use faer::linalg::matmul::matmul_with_conj;
use faer::reborrow::*;
use faer::{Accum, ColMut, ColRef, Conj, Mat, MatMut, MatRef, Par};
use num_traits::{Float, Zero};

use super::scalar::{Real, Scalar};

/// Columns whose reflectors are applied together.
pub(super) const BLOCK: usize = 32;

/// Finds the reflector with `Hᴴ (head, tail) = (beta, 0)`, beta real; leaves beta and v in their place, returns tau.
pub(super) fn make<T: Scalar>(head: &mut T, mut tail: ColMut<'_, T>) -> T {
    let mut norm = tail.norm_l2();
    if norm.is_zero() && head.im().is_zero() {
        return T::zero();
    }
    let length = |head: T, norm: Real<T>| {
        let length = Float::hypot(Float::hypot(head.re(), head.im()), norm);
        if head.re().is_sign_negative() { length } else { -length }
    };
    let mut beta = length(*head, norm);
    // Below this the reciprocal that v is scaled with would overflow.
    let smallest = <Real<T> as Float>::min_positive_value() / <Real<T> as Float>::epsilon();
    let mut rescaled = 0;
    while Float::abs(beta) < smallest && rescaled < 20 {
        let factor = Float::recip(smallest);
        scale(tail.as_mut(), T::of(factor));
        *head = head.scaled(factor);
        rescaled += 1;
        norm = tail.norm_l2();
        beta = length(*head, norm);
    }
    let tau = (T::of(beta) - *head).scaled(Float::recip(beta));
    scale(tail, (*head - T::of(beta)).inverse());
    *head = T::of((0..rescaled).fold(beta, |beta, _| beta * smallest));
    tau
}

fn scale<T: Scalar>(column: ColMut<'_, T>, factor: T) {
    column.iter_mut().for_each(|element| *element *= factor);
}

/// The vector of a reflector whose elements after the implied 1 are these.
pub(super) fn vector<T: Scalar>(tail: ColRef<'_, T>) -> Mat<T> {
    Mat::from_fn(tail.nrows() + 1, 1, |row, _| row.checked_sub(1).map_or(T::one(), |row| tail[row]))
}

/// `(I - tau v vᴴ) matrix`
pub(super) fn apply_left<T: Scalar>(v: MatRef<'_, T>, tau: T, matrix: MatMut<'_, T>) {
    let mut products = Mat::zeros(1, matrix.ncols());
    multiply(products.as_mut(), Accum::Replace, v.transpose(), Conj::Yes, matrix.rb(), Conj::No, T::one());
    multiply(matrix, Accum::Add, v, Conj::No, products.as_ref(), Conj::No, -tau);
}

/// `matrix (I - tau v vᴴ)`
pub(super) fn apply_right<T: Scalar>(v: MatRef<'_, T>, tau: T, matrix: MatMut<'_, T>) {
    let mut products = Mat::zeros(matrix.nrows(), 1);
    multiply(products.as_mut(), Accum::Replace, matrix.rb(), Conj::No, v, Conj::No, T::one());
    multiply(matrix, Accum::Add, products.as_ref(), Conj::No, v.transpose(), Conj::Yes, -tau);
}

/// The product `H₁ H₂ … = I - V T Vᴴ` of the reflectors that a factorization left below a diagonal.
pub(super) struct Block<T> {
    v: Mat<T>,
    t: Mat<T>,
}

impl<T: Scalar> Block<T> {
    /// Of the reflectors in the columns of `factors`, the first with its implied 1 in the first row.
    pub fn new(factors: MatRef<'_, T>, tau: &[T]) -> Self {
        let count = tau.len();
        let v = Mat::from_fn(factors.nrows(), count, |row, column| match row.cmp(&column) {
            std::cmp::Ordering::Less => T::zero(),
            std::cmp::Ordering::Equal => T::one(),
            std::cmp::Ordering::Greater => factors[(row, column)],
        });
        let mut products = Mat::zeros(count, count);
        multiply(products.as_mut(), Accum::Replace, v.transpose(), Conj::Yes, v.as_ref(), Conj::No, T::one());
        let mut t = Mat::zeros(count, count);
        for (column, &tau) in tau.iter().enumerate() {
            for row in 0..column {
                let sum = (row..column).fold(T::zero(), |sum, k| sum + t[(row, k)] * products[(k, column)]);
                t[(row, column)] = -tau * sum;
            }
            t[(column, column)] = tau;
        }
        Block { v, t }
    }

    /// Multiplies `matrix` by the product, or its adjoint, from the left.
    pub fn apply_left(&self, matrix: MatMut<'_, T>, adjoint: bool) {
        let mut inner = Mat::zeros(self.v.ncols(), matrix.ncols());
        let mut outer = Mat::zeros(self.v.ncols(), matrix.ncols());
        multiply(inner.as_mut(), Accum::Replace, self.v.transpose(), Conj::Yes, matrix.rb(), Conj::No, T::one());
        let (t, conj) = self.t(adjoint);
        multiply(outer.as_mut(), Accum::Replace, t, conj, inner.as_ref(), Conj::No, T::one());
        multiply(matrix, Accum::Add, self.v.as_ref(), Conj::No, outer.as_ref(), Conj::No, -T::one());
    }

    /// Multiplies `matrix` by the product, or its adjoint, from the right.
    pub fn apply_right(&self, matrix: MatMut<'_, T>, adjoint: bool) {
        let mut inner = Mat::zeros(matrix.nrows(), self.v.ncols());
        let mut outer = Mat::zeros(matrix.nrows(), self.v.ncols());
        multiply(inner.as_mut(), Accum::Replace, matrix.rb(), Conj::No, self.v.as_ref(), Conj::No, T::one());
        let (t, conj) = self.t(adjoint);
        multiply(outer.as_mut(), Accum::Replace, inner.as_ref(), Conj::No, t, conj, T::one());
        multiply(matrix, Accum::Add, outer.as_ref(), Conj::No, self.v.transpose(), Conj::Yes, -T::one());
    }

    fn t(&self, adjoint: bool) -> (MatRef<'_, T>, Conj) {
        if adjoint { (self.t.transpose(), Conj::Yes) } else { (self.t.as_ref(), Conj::No) }
    }
}

/// `target (+)= factor · left · right` on this thread alone, as other devices have the other ones.
pub(super) fn multiply<T: Scalar>(
    target: MatMut<'_, T>,
    accum: Accum,
    left: MatRef<'_, T>,
    conj_left: Conj,
    right: MatRef<'_, T>,
    conj_right: Conj,
    factor: T,
) {
    matmul_with_conj(target, accum, left, conj_left, right, conj_right, factor, Par::Seq);
}
