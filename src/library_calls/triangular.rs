//! Triangular systems, `trsm`, and the Cholesky factorization, `potrf`.

use faer::dyn_stack::MemStack;
use faer::linalg::cholesky::llt::factor::{LltError, cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::triangular_solve as solve;
use faer::reborrow::*;
use faer::{Conj, MatMut, MatRef, Par};

use super::call::{Call, scratch, unknown_letter};
use super::scalar::Scalar;
use crate::pjrt::FfiError;

/// Solves `op(A) X = B` or, with side `R`, `X op(A) = B`; X takes the place of B.
pub(super) fn trsm<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [m, n] = call.dims(1)?;
    let left = call.is_first_of("side", *b"LR")?;
    let lower = call.is_first_of("uplo", *b"LU")?;
    let unit = call.is_first_of("diag", *b"UN")?;
    let (transposed, conj) = match call.letter("trans_x")? {
        b'N' => (false, Conj::No),
        b'T' => (true, Conj::No),
        b'C' => (true, Conj::Yes),
        letter => return Err(unknown_letter("trans_x", letter)),
    };
    let size = if left { m } else { n };
    let a = call.operand::<T>(0, &[size, size])?;
    let mut b = call.in_place::<T>(1, 0, &[m, n])?;
    for problem in 0..call.len() {
        let a = MatRef::from_column_major_slice(&a[problem * size * size..][..size * size], size, size);
        let b = MatMut::from_column_major_slice_mut(b.at(problem), m, n);
        // X op(A) = B is op(A)ᵀ Xᵀ = Bᵀ.
        let a = if transposed == left { a.transpose() } else { a };
        let b = if left { b } else { b.transpose_mut() };
        match (lower != (transposed == left), unit) {
            (true, true) => solve::solve_unit_lower_triangular_in_place_with_conj(a, conj, b, Par::Seq),
            (true, false) => solve::solve_lower_triangular_in_place_with_conj(a, conj, b, Par::Seq),
            (false, true) => solve::solve_unit_upper_triangular_in_place_with_conj(a, conj, b, Par::Seq),
            (false, false) => solve::solve_upper_triangular_in_place_with_conj(a, conj, b, Par::Seq),
        }
    }
    Ok(())
}

/// `A = L Lᴴ` or, with uplo `U`, `A = Uᴴ U` in this triangle of A; the other one stays as it is. `info` is the row, from
/// 1, in which A turned out not to be positive definite.
pub(super) fn potrf<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [n, _] = call.dims(0)?;
    let lower = call.is_first_of("uplo", *b"LU")?;
    let mut a = call.in_place::<T>(0, 0, &[n, n])?;
    let mut info = call.result::<i32>(1, &[])?;
    let mut memory = scratch(cholesky_in_place_scratch::<T>(n, Par::Seq, Default::default()))?;
    for problem in 0..call.len() {
        let a = MatMut::from_column_major_slice_mut(a.at(problem), n, n);
        // Aᵀ has the lower triangle Uᵀ, and Uᵀ (Uᵀ)ᴴ = (Uᴴ U)ᵀ.
        let mut a = if lower { a } else { a.transpose_mut() };
        let stack = MemStack::new(&mut memory);
        let factored = cholesky_in_place(a.rb_mut(), Default::default(), Par::Seq, stack, Default::default());
        let mut failed = factored.err().map(|LltError::NonPositivePivot { index }| index);
        // NaN is not positive either.
        failed = (0..failed.unwrap_or(n)).find(|&row| a[(row, row)].is_not_a_number()).or(failed);
        info.at(problem)[0] = failed.map_or(0, |row| row as i32 + 1);
    }
    Ok(())
}
