//! Reduction to Hessenberg form, `gehrd`, and of Hermitian matrices to tridiagonal form, `sytrd`/`hetrd`.

use faer::reborrow::*;
use faer::{Accum, Conj, Mat, MatMut};

use super::call::{Call, invalid};
use super::reflectors::{self, multiply};
use super::scalar::{Real, Scalar};
use crate::pjrt::FfiError;

/// `A = Q H Qᴴ` in the rows and columns from `low` to `high`, counted from 1: H in its place, reflectors below its first
/// subdiagonal, their tau, `info`.
pub(super) fn gehrd<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [n, _] = call.dims(0)?;
    let (low, high) = (call.index("low")?, call.index("high")?);
    if n > 0 && !(1 <= low && low <= high && high <= n) {
        return Err(invalid(format!("rows {low} to {high} are not in a matrix of size {n}")));
    }
    let mut a = call.in_place::<T>(0, 0, &[n, n])?;
    let mut taus = call.result::<T>(1, &[n.saturating_sub(1)])?;
    let mut info = call.result::<i32>(2, &[])?;
    for problem in 0..call.len() {
        let taus = taus.at(problem);
        taus.fill(T::zero());
        info.at(problem)[0] = 0;
        if n > 0 {
            reduce(MatMut::from_column_major_slice_mut(a.at(problem), n, n), taus, low - 1..high);
        }
    }
    Ok(())
}

/// The reduction within a range of rows and columns.
pub(super) fn reduce<T: Scalar>(mut a: MatMut<'_, T>, taus: &mut [T], range: std::ops::Range<usize>) {
    let columns = range.start..range.end.saturating_sub(1);
    for (column, reflector) in columns.clone().zip(&mut taus[columns]) {
        let mut below = a.rb_mut().col_mut(column).subrows_mut(column + 1, range.end - column - 1);
        let (mut head, mut tail) = below.rb_mut().split_at_row_mut(1);
        let tau = reflectors::make(&mut head[0], tail.rb_mut());
        let v = reflectors::vector(tail.rb());
        let (from, len) = (column + 1, v.nrows());
        reflectors::apply_right(v.as_ref(), tau, a.rb_mut().submatrix_mut(0, from, range.end, len));
        let columns = a.ncols() - from;
        let right = a.rb_mut().submatrix_mut(from, from, len, columns);
        reflectors::apply_left(v.as_ref(), tau.conj(), right);
        *reflector = tau;
    }
}

/// `A = Q T Qᴴ` for the Hermitian A of which one triangle is given: T and the reflectors in this triangle, T's diagonal
/// and off-diagonal, the reflectors' tau, `info`.
pub(super) fn sytrd<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [n, _] = call.dims(0)?;
    let lower = call.is_first_of("uplo", *b"LU")?;
    let mut a = call.in_place::<T>(0, 0, &[n, n])?;
    let off = n.saturating_sub(1);
    let mut diagonal = call.result::<Real<T>>(1, &[n])?;
    let mut off_diagonal = call.result::<Real<T>>(2, &[off])?;
    let mut taus = call.result::<T>(3, &[off])?;
    let mut info = call.result::<i32>(4, &[])?;
    for problem in 0..call.len() {
        let mut a = MatMut::from_column_major_slice_mut(a.at(problem), n, n);
        let mut full = Mat::from_fn(n, n, |row, column| match row.cmp(&column) {
            std::cmp::Ordering::Equal => T::of(a[(row, row)].re()),
            order if (order == std::cmp::Ordering::Greater) == lower => a[(row, column)],
            _ => a[(column, row)].conj(),
        });
        tridiagonalize(full.as_mut(), off_diagonal.at(problem), taus.at(problem), lower);
        for (index, element) in diagonal.at(problem).iter_mut().enumerate() {
            *element = full[(index, index)].re();
        }
        match lower {
            true => a.copy_from_triangular_lower(full.as_ref()),
            false => a.copy_from_triangular_upper(full.as_ref()),
        }
        info.at(problem)[0] = 0;
    }
    Ok(())
}

/// From the first column on for the lower triangle, from the last one back for the upper.
fn tridiagonalize<T: Scalar>(mut full: MatMut<'_, T>, off: &mut [Real<T>], taus: &mut [T], lower: bool) {
    let n = full.nrows();
    for step in 0..off.len() {
        // The column whose elements at `rest` become zero, but for the one at `head`.
        let (column, rest, head) = match lower {
            true => (step, step + 1..n, step + 1),
            false => (n - 1 - step, 0..n - 1 - step, n - 2 - step),
        };
        let index = head.min(column);
        let elements = full.rb_mut().col_mut(column).subrows_mut(rest.start, rest.len());
        let (mut value, mut others) = match lower {
            true => elements.split_at_row_mut(1),
            false => {
                let (others, value) = elements.split_at_row_mut(rest.len() - 1);
                (value, others)
            }
        };
        let tau = reflectors::make(&mut value[0], others.rb_mut());
        off[index] = value[0].re();
        taus[index] = tau;
        let v = full.rb().col(column).subrows(rest.start, rest.len());
        let v = Mat::from_fn(rest.len(), 1, |row, _| if rest.start + row == head { T::one() } else { v[row] });
        let mut block = full.rb_mut().submatrix_mut(rest.start, rest.start, rest.len(), rest.len());
        let mut w = Mat::<T>::zeros(rest.len(), 1);
        multiply(w.as_mut(), Accum::Replace, block.rb(), Conj::No, v.as_ref(), Conj::No, tau);
        let product = (0..rest.len()).fold(T::zero(), |sum, row| sum + w[(row, 0)].conj() * v[(row, 0)]);
        let half = (T::one() + T::one()).inverse();
        let factor = -half * tau * product;
        for row in 0..rest.len() {
            w[(row, 0)] += factor * v[(row, 0)];
        }
        let (v, w) = (v.as_ref(), w.as_ref());
        multiply(block.rb_mut(), Accum::Add, v, Conj::No, w.transpose(), Conj::Yes, -T::one());
        multiply(block, Accum::Add, w, Conj::No, v.transpose(), Conj::Yes, -T::one());
    }
}
