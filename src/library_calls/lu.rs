//! Solving by elimination: `getrf` and, for tridiagonal matrices, `gtsv`.

use faer::linalg::triangular_solve::solve_unit_lower_triangular_in_place;
use faer::{Accum, Conj, MatMut, Par};

use super::call::{Call, invalid};
use super::reflectors::multiply;
use super::scalar::Scalar;
use crate::pjrt::FfiError;

/// `A = P L U`: L and U in the place of A, the rows that were exchanged counted from 1, `info`.
pub(super) fn getrf<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [m, n] = call.dims(0)?;
    let size = m.min(n);
    let mut a = call.in_place::<T>(0, 0, &[m, n])?;
    let mut pivots = call.result::<i32>(1, &[size])?;
    let mut info = call.result::<i32>(2, &[])?;
    let mut rows = vec![0; size];
    for problem in 0..call.len() {
        let mut first_zero = None;
        eliminate(MatMut::from_column_major_slice_mut(a.at(problem), m, n), &mut rows, 0, &mut first_zero);
        for (pivot, row) in pivots.at(problem).iter_mut().zip(&rows) {
            *pivot = *row as i32 + 1;
        }
        info.at(problem)[0] = first_zero.map_or(0, |column: usize| column as i32 + 1);
    }
    Ok(())
}

/// Factors the columns of `a`, of which `start` have gone before, halves after halves.
fn eliminate<T: Scalar>(mut a: MatMut<'_, T>, pivots: &mut [usize], start: usize, first_zero: &mut Option<usize>) {
    let (m, n) = (a.nrows(), a.ncols());
    match pivots.len() {
        0 => {}
        1 if n == 1 => pivots[0] = start + eliminate_column(a, start, first_zero),
        size => {
            let half = if n > size { size } else { size / 2 };
            let (first, rest) = pivots.split_at_mut(half);
            let (mut left, mut right) = a.as_mut().split_at_col_mut(half);
            eliminate(left.as_mut(), first, start, first_zero);
            exchange(right.as_mut(), first, start);
            let (top_left, bottom_left) = left.as_ref().split_at_row(half);
            let (mut top_right, mut bottom_right) = right.as_mut().split_at_row_mut(half);
            solve_unit_lower_triangular_in_place(top_left, top_right.as_mut(), Par::Seq);
            let top_right = top_right.as_ref();
            multiply(bottom_right.as_mut(), Accum::Add, bottom_left, Conj::No, top_right, Conj::No, -T::one());
            eliminate(bottom_right, rest, start + half, first_zero);
            exchange(left.subrows_mut(half, m - half), rest, start + half);
        }
    }
}

/// Divides a column by its largest element, the first of equals, after moving this to the top. Returns where it was.
fn eliminate_column<T: Scalar>(mut column: MatMut<'_, T>, start: usize, first_zero: &mut Option<usize>) -> usize {
    let mut pivot = 0;
    for row in 1..column.nrows() {
        if column[(row, 0)].l1_norm() > column[(pivot, 0)].l1_norm() {
            pivot = row;
        }
    }
    let value = column[(pivot, 0)];
    if value.is_zero() {
        first_zero.get_or_insert(start);
        return pivot;
    }
    column[(pivot, 0)] = column[(0, 0)];
    column[(0, 0)] = value;
    for row in 1..column.nrows() {
        column[(row, 0)] /= value;
    }
    pivot
}

fn exchange<T: Scalar>(mut a: MatMut<'_, T>, pivots: &[usize], start: usize) {
    for column in 0..a.ncols() {
        for (row, &pivot) in pivots.iter().enumerate() {
            let other = pivot - start;
            let value = a[(row, column)];
            a[(row, column)] = a[(other, column)];
            a[(other, column)] = value;
        }
    }
}

/// Solves `A X = B` for a tridiagonal A with the diagonals `dl`, `d`, `du`, of one length: the first element of `dl` and
/// the last one of `du` mean nothing. The diagonals become those of U, B becomes X; then comes `info`.
pub(super) fn gtsv<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [n] = call.dims(0)?;
    let [rows, columns] = call.dims(3)?;
    if rows != n {
        return Err(invalid(format!("a tridiagonal matrix of size {n} cannot have right-hand sides of {rows} rows")));
    }
    let mut lower = call.in_place::<T>(0, 0, &[n])?;
    let mut diagonal = call.in_place::<T>(1, 1, &[n])?;
    let mut upper = call.in_place::<T>(2, 2, &[n])?;
    let mut b = call.in_place::<T>(3, 3, &[n, columns])?;
    let mut info = call.result::<i32>(4, &[])?;
    for problem in 0..call.len() {
        let b = MatMut::from_column_major_slice_mut(b.at(problem), n, columns);
        let lower = lower.at(problem).get_mut(1..).unwrap_or_default();
        let solved = solve_tridiagonal(lower, diagonal.at(problem), upper.at(problem), b);
        info.at(problem)[0] = solved.err().map_or(0, |row| row as i32 + 1);
    }
    Ok(())
}

/// Fails with the first row whose pivot is zero. `lower` becomes U's second diagonal above the main one.
fn solve_tridiagonal<T: Scalar>(
    lower: &mut [T],
    diagonal: &mut [T],
    upper: &mut [T],
    mut b: MatMut<'_, T>,
) -> Result<(), usize> {
    let Some(last) = diagonal.len().checked_sub(1) else { return Ok(()) };
    for row in 0..last {
        let below = lower[row];
        let exchanged = diagonal[row].l1_norm() < below.l1_norm();
        lower[row] = T::zero();
        if exchanged {
            let factor = diagonal[row] / below;
            diagonal[row] = below;
            let next = diagonal[row + 1];
            diagonal[row + 1] = upper[row] - factor * next;
            upper[row] = next;
            if row + 1 < last {
                lower[row] = upper[row + 1];
                upper[row + 1] = -factor * upper[row + 1];
            }
            for column in 0..b.ncols() {
                let value = b[(row, column)];
                b[(row, column)] = b[(row + 1, column)];
                b[(row + 1, column)] = value - factor * b[(row + 1, column)];
            }
        } else {
            if diagonal[row].is_zero() {
                return Err(row);
            }
            let factor = below / diagonal[row];
            diagonal[row + 1] -= factor * upper[row];
            for column in 0..b.ncols() {
                let above = b[(row, column)];
                b[(row + 1, column)] -= factor * above;
            }
        }
    }
    if diagonal[last].is_zero() {
        return Err(last);
    }
    for column in 0..b.ncols() {
        for row in (0..=last).rev() {
            let mut value = b[(row, column)];
            if row < last {
                value -= upper[row] * b[(row + 1, column)];
            }
            if row + 1 < last {
                value -= lower[row] * b[(row + 2, column)];
            }
            b[(row, column)] = value / diagonal[row];
        }
    }
    Ok(())
}
