//! QR factorizations, `geqrf` and `geqp3`, and their unitary factor: `orgqr`/`ungqr` and `ormqr`/`unmqr`.

use faer::reborrow::*;
use faer::{MatMut, MatRef};
use num_traits::{Float, One, Zero};

use super::call::{Call, invalid};
use super::reflectors::{self, BLOCK, Block};
use super::scalar::{Real, Scalar};
use crate::pjrt::FfiError;

/// `A = Q R`: R in the upper triangle of A, reflectors below it, their tau.
pub(super) fn geqrf<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [m, n] = call.dims(0)?;
    let size = m.min(n);
    let mut a = call.in_place::<T>(0, 0, &[m, n])?;
    let mut taus = call.result::<T>(1, &[size])?;
    for problem in 0..call.len() {
        let mut a = MatMut::from_column_major_slice_mut(a.at(problem), m, n);
        for (index, tau) in taus.at(problem).chunks_mut(BLOCK).enumerate() {
            let start = index * BLOCK;
            let rest = a.rb_mut().submatrix_mut(start, start, m - start, n - start);
            let (mut panel, right) = rest.split_at_col_mut(tau.len());
            factor_panel(panel.rb_mut(), tau);
            if right.ncols() > 0 {
                Block::new(panel.rb(), tau).apply_left(right, true);
            }
        }
    }
    Ok(())
}

fn factor_panel<T: Scalar>(mut panel: MatMut<'_, T>, taus: &mut [T]) {
    for (column, tau) in taus.iter_mut().enumerate() {
        *tau = reduce_column(panel.rb_mut(), column);
    }
}

/// Makes a column zero below its diagonal and applies the reflector to the columns right of it.
fn reduce_column<T: Scalar>(a: MatMut<'_, T>, column: usize) -> T {
    let (left, right) = a.split_at_row_mut(column).1.split_at_col_mut(column + 1);
    let (mut head, mut tail) = left.col_mut(column).split_at_row_mut(1);
    let tau = reflectors::make(&mut head[0], tail.rb_mut());
    if right.ncols() > 0 {
        reflectors::apply_left(reflectors::vector(tail.rb()).as_ref(), tau.conj(), right);
    }
    tau
}

/// `A P = Q R` with the diagonal of R falling. Columns that the second operand is not zero for go first, unpivoted; the
/// result says for each column, from 1, which column of A it was.
pub(super) fn geqp3<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [m, n] = call.dims(0)?;
    let size = m.min(n);
    let mut a = call.in_place::<T>(0, 0, &[m, n])?;
    let mut pivots = call.in_place::<i32>(1, 1, &[n])?;
    let mut taus = call.result::<T>(2, &[size])?;
    for problem in 0..call.len() {
        let a = MatMut::from_column_major_slice_mut(a.at(problem), m, n);
        factor_pivoted(a, pivots.at(problem), taus.at(problem));
    }
    Ok(())
}

fn factor_pivoted<T: Scalar>(mut a: MatMut<'_, T>, pivots: &mut [i32], taus: &mut [T]) {
    let mut fixed = 0;
    for column in 0..pivots.len() {
        if std::mem::replace(&mut pivots[column], column as i32 + 1) != 0 {
            exchange_columns(a.rb_mut(), fixed, column);
            pivots.swap(fixed, column);
            fixed += 1;
        }
    }
    let mut norms: Vec<Real<T>> = a.rb().col_iter().map(|column| column.norm_l2()).collect();
    // The norms when they were last computed rather than updated.
    let mut computed = norms.clone();
    for (step, tau) in taus.iter_mut().enumerate() {
        if step == fixed && fixed > 0 {
            for column in step..a.ncols() {
                norms[column] = a.rb().col(column).subrows(step, a.nrows() - step).norm_l2();
                computed[column] = norms[column];
            }
        }
        if step >= fixed {
            let largest = (step..norms.len()).fold(
                step,
                |largest, column| {
                    if norms[column] > norms[largest] { column } else { largest }
                },
            );
            exchange_columns(a.rb_mut(), step, largest);
            pivots.swap(step, largest);
            norms.swap(step, largest);
            computed.swap(step, largest);
        }
        *tau = reduce_column(a.rb_mut(), step);
        for column in step + 1..norms.len() {
            if norms[column].is_zero() {
                continue;
            }
            let ratio = a[(step, column)].modulus() / norms[column];
            let left = Float::max(Real::<T>::one() - ratio * ratio, Real::<T>::zero());
            let of_computed = norms[column] / computed[column];
            // Updates cancel once little of a norm is left.
            if left * of_computed * of_computed <= Float::sqrt(<Real<T> as Float>::epsilon()) {
                norms[column] = a.rb().col(column).subrows(step + 1, a.nrows() - step - 1).norm_l2();
                computed[column] = norms[column];
            } else {
                norms[column] *= Float::sqrt(left);
            }
        }
    }
}

fn exchange_columns<T: Scalar>(mut a: MatMut<'_, T>, first: usize, second: usize) {
    if first != second {
        let (first, second) = a.rb_mut().two_cols_mut(first, second);
        first.iter_mut().zip(second.iter_mut()).for_each(|(first, second)| std::mem::swap(first, second));
    }
}

/// The first n columns of `Q = H₁ H₂ …`, in the place of A with the reflectors in its first columns.
pub(super) fn orgqr<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [m, n] = call.dims(0)?;
    let [count] = call.dims(1)?;
    if n > m || count > n {
        return Err(invalid(format!("{count} reflectors and {m} rows give no unitary matrix of {n} columns")));
    }
    let taus = call.operand::<T>(1, &[count])?;
    let mut a = call.in_place::<T>(0, 0, &[m, n])?;
    for problem in 0..call.len() {
        let mut a = MatMut::from_column_major_slice_mut(a.at(problem), m, n);
        let blocks = blocks(a.rb(), &taus[problem * count..][..count]);
        a.rb_mut().fill(T::zero());
        a.rb_mut().diagonal_mut().fill(T::one());
        for (start, block) in blocks.iter().rev() {
            block.apply_left(a.rb_mut().submatrix_mut(*start, *start, m - start, n - start), false);
        }
    }
    Ok(())
}

/// Multiplies C by `Q = H₁ H₂ …` or its adjoint (`transpose`), from the left or the right.
pub(super) fn ormqr<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [size, columns] = call.dims(0)?;
    let [count] = call.dims(1)?;
    let [m, n] = call.dims(2)?;
    let left = call.flag("left")?;
    let adjoint = call.flag("transpose")?;
    if size != if left { m } else { n } || count > columns.min(size) {
        return Err(invalid(format!("{count} reflectors of size {size} cannot be applied to a {m}x{n} matrix")));
    }
    let a = call.operand::<T>(0, &[size, columns])?;
    let taus = call.operand::<T>(1, &[count])?;
    let mut c = call.in_place::<T>(2, 0, &[m, n])?;
    for problem in 0..call.len() {
        let a = MatRef::from_column_major_slice(&a[problem * size * columns..][..size * columns], size, columns);
        let mut c = MatMut::from_column_major_slice_mut(c.at(problem), m, n);
        let mut blocks = blocks(a, &taus[problem * count..][..count]);
        if left != adjoint {
            blocks.reverse();
        }
        for (start, block) in &blocks {
            match left {
                true => block.apply_left(c.rb_mut().submatrix_mut(*start, 0, m - start, n), adjoint),
                false => block.apply_right(c.rb_mut().submatrix_mut(0, *start, m, n - start), adjoint),
            }
        }
    }
    Ok(())
}

/// The reflectors of a factorization, block by block, with the row where each block starts.
pub(super) fn blocks<T: Scalar>(factors: MatRef<'_, T>, taus: &[T]) -> Vec<(usize, Block<T>)> {
    let block = |(index, taus): (usize, &[T])| {
        let start = index * BLOCK;
        let factors = factors.submatrix(start, start, factors.nrows() - start, taus.len());
        (start, Block::new(factors, taus))
    };
    taus.chunks(BLOCK).enumerate().map(block).collect()
}
