//! Singular value decompositions: `gesdd` and `gesvd`.

use faer::diag::DiagMut;
use faer::dyn_stack::MemStack;
use faer::linalg::svd::{ComputeSvdVectors, svd, svd_scratch};
use faer::reborrow::*;
use faer::{Mat, MatMut, Par};

use super::call::{Call, NOT_FINITE, scratch, unknown_letter};
use super::scalar::{Real, Scalar, all_finite, nan};
use crate::pjrt::FfiError;

/// `A = U diag(s) Vᴴ` with s falling: A is lost; then s, U, Vᴴ, `info`. The mode says how much of U and V: all (`A`), as
/// many columns as s has elements (`S`), none (`N`).
pub(super) fn gesdd<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [m, n] = call.dims(0)?;
    let size = m.min(n);
    let (vectors, ours) = match call.letter("mode")? {
        b'A' => (ComputeSvdVectors::Full, Some([m, n])),
        b'S' => (ComputeSvdVectors::Thin, Some([size, size])),
        b'N' => (ComputeSvdVectors::No, None),
        letter => return Err(unknown_letter("mode", letter)),
    };
    let mut a = call.in_place::<T>(0, 0, &[m, n])?;
    let mut values = call.result::<Real<T>>(1, &[size])?;
    let mut vectors_out = match ours {
        Some([left, right]) => Some((call.result::<T>(2, &[m, left])?, call.result::<T>(3, &[right, n])?, left, right)),
        None => None,
    };
    let mut info = call.result::<i32>(4, &[])?;
    let mut memory = scratch(svd_scratch::<T>(m, n, vectors, vectors, Par::Seq, Default::default()))?;
    let mut complex_values = vec![nan::<T>(); size];
    for problem in 0..call.len() {
        let a = a.at(problem);
        let finite = all_finite(a);
        let a = MatMut::from_column_major_slice_mut(a, m, n);
        let mut out = vectors_out.as_mut().map(|(u, v, left, right)| (u.at(problem), v.at(problem), *left, *right));
        let mut v = out.as_ref().map(|(.., right)| Mat::zeros(n, *right));
        complex_values.fill(nan());
        let converged = finite && {
            let u = out.as_mut().map(|(u, _, left, _)| {
                // The decomposition of a tall matrix reads what it finds here.
                u.fill(T::zero());
                MatMut::from_column_major_slice_mut(u, m, *left)
            });
            let s = DiagMut::from_slice_mut(&mut complex_values);
            let v = v.as_mut().map(Mat::as_mut);
            svd(a.rb(), s, u, v, Par::Seq, MemStack::new(&mut memory), Default::default()).is_ok()
        };
        for (value, complex) in values.at(problem).iter_mut().zip(&complex_values) {
            *value = complex.re();
        }
        match (out, v) {
            (Some((_, adjoint, _, right)), Some(v)) if converged => {
                let mut adjoint = MatMut::from_column_major_slice_mut(adjoint, right, n);
                for column in 0..n {
                    for row in 0..right {
                        adjoint[(row, column)] = v[(column, row)].conj();
                    }
                }
            }
            (Some((u, adjoint, ..)), _) => {
                u.fill(nan());
                adjoint.fill(nan());
            }
            _ => {}
        }
        info.at(problem)[0] = if !finite { NOT_FINITE } else { i32::from(!converged) };
    }
    Ok(())
}
