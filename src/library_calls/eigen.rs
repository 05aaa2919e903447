//! Eigenvalues and eigenvectors: `syevd`/`heevd` and `geev`.

use faer::diag::DiagMut;
use faer::dyn_stack::MemStack;
use faer::linalg::evd::{self, ComputeEigenvectors};
use faer::reborrow::*;
use faer::traits::ComplexField;
use faer::{Mat, MatMut, MatRef, Par};
use num_complex::Complex;
use num_traits::{Float, Zero};

use super::call::{Arrays, Call, NOT_FINITE, scratch};
use super::scalar::{Real, RealScalar, Scalar, all_finite, nan};
use crate::pjrt::FfiError;

/// `A = V diag(w) Vᴴ` for the Hermitian A of which one triangle is given, w rising: V in the place of A, w, `info`. In
/// mode `N` there is no V, and A is lost.
pub(super) fn syevd<T: Scalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [n, _] = call.dims(0)?;
    let with_vectors = call.is_first_of("mode", *b"VN")?;
    let lower = call.is_first_of("uplo", *b"LU")?;
    let mut a = call.in_place::<T>(0, 0, &[n, n])?;
    let mut values = call.result::<Real<T>>(1, &[n])?;
    let mut info = call.result::<i32>(2, &[])?;
    if n == 0 {
        (0..call.len()).for_each(|problem| info.at(problem)[0] = 0);
        return Ok(());
    }
    let vectors = if with_vectors { ComputeEigenvectors::Yes } else { ComputeEigenvectors::No };
    let mut memory = scratch(evd::self_adjoint_evd_scratch::<T>(n, vectors, Par::Seq, Default::default()))?;
    let mut complex_values = vec![nan::<T>(); n];
    for problem in 0..call.len() {
        let a = a.at(problem);
        // The other triangle may hold anything.
        let given = |(index, &element): (usize, &T)| {
            let (row, column) = (index % n, index / n);
            (row == column || (row > column) == lower).then_some(element)
        };
        let finite = a.iter().enumerate().filter_map(given).all(|element| element.finite());
        let mut a = MatMut::from_column_major_slice_mut(a, n, n);
        // The lower triangle of Aᵀ, which is the conjugate of A.
        let copy = if lower { a.rb().cloned() } else { a.rb().transpose().cloned() };
        complex_values.fill(nan());
        let converged = finite && {
            let s = DiagMut::from_slice_mut(&mut complex_values);
            let v = with_vectors.then(|| a.rb_mut());
            let stack = MemStack::new(&mut memory);
            evd::self_adjoint_evd(copy.as_ref(), s, v, Par::Seq, stack, Default::default()).is_ok()
        };
        for (value, complex) in values.at(problem).iter_mut().zip(&complex_values) {
            *value = complex.re();
        }
        match converged {
            true if !lower => a.for_each_mut(|element| *element = element.conj()),
            true => {}
            false => a.fill(nan()),
        }
        info.at(problem)[0] = if converged { 0 } else { 1 };
    }
    Ok(())
}

/// Right and left eigenvectors, `A v = w v` and `uᴴ A = w uᴴ`, of a real A: w's real and imaginary parts, u, v, `info`.
/// Vectors have length 1, and their largest element is real.
pub(super) fn geev_real<R: RealScalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError>
where
    Complex<R>: Scalar + ComplexField<Real = R>,
{
    let [n, _] = call.dims(0)?;
    let a = call.operand::<R>(0, &[n, n])?;
    let mut re = call.result::<R>(0, &[n])?;
    let mut im = call.result::<R>(1, &[n])?;
    let mut vectors = Vectors::<Complex<R>>::new(call, n, 2)?;
    let mut info = call.result::<i32>(4, &[])?;
    let [left, right] = vectors.computed();
    let mut memory = scratch(evd::evd_scratch::<R>(n, left, right, Par::Seq, Default::default()))?;
    let mut sides = [(); 2].map(|()| Mat::<R>::zeros(n, n));
    for problem in 0..call.len() {
        let a = &a[problem * n * n..][..n * n];
        let (re, im) = (re.at(problem), im.at(problem));
        let converged = all_finite(a) && {
            let [u, v] = &mut sides;
            let (u, v) = (vectors.left.as_ref().map(|_| u.as_mut()), vectors.right.as_ref().map(|_| v.as_mut()));
            let a = MatRef::from_column_major_slice(a, n, n);
            let (re, im) = (DiagMut::from_slice_mut(re), DiagMut::from_slice_mut(im));
            evd::evd_real(a, re, im, u, v, Par::Seq, MemStack::new(&mut memory), Default::default()).is_ok()
        };
        for (out, packed) in [&mut vectors.left, &mut vectors.right].into_iter().zip(&sides) {
            let Some(out) = out else { continue };
            let mut out = MatMut::from_column_major_slice_mut(out.at(problem), n, n);
            for column in 0..n {
                // A pair of conjugate vectors is packed as real and imaginary part of the first.
                let (first, second) = match im[column] {
                    im if im > R::zero() && column + 1 < n => (column, Some((column + 1, R::one()))),
                    im if im < R::zero() && column > 0 => (column - 1, Some((column, -R::one()))),
                    _ => (column, None),
                };
                for row in 0..n {
                    let im = second.map_or(R::zero(), |(second, sign)| sign * packed[(row, second)]);
                    out[(row, column)] = Complex::new(packed[(row, first)], im);
                }
            }
            finish(out, converged);
        }
        if !converged {
            re.fill(nan());
            im.fill(nan());
        }
        info.at(problem)[0] = if converged { 0 } else { NOT_FINITE };
    }
    Ok(())
}

/// As [`geev_real`] of a complex A, with w in one result.
pub(super) fn geev_complex<R: RealScalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError>
where
    Complex<R>: Scalar + ComplexField<Real = R>,
{
    let [n, _] = call.dims(0)?;
    let a = call.operand::<Complex<R>>(0, &[n, n])?;
    let mut values = call.result::<Complex<R>>(0, &[n])?;
    let mut vectors = Vectors::<Complex<R>>::new(call, n, 1)?;
    let mut info = call.result::<i32>(3, &[])?;
    let [left, right] = vectors.computed();
    let mut memory = scratch(evd::evd_scratch::<Complex<R>>(n, left, right, Par::Seq, Default::default()))?;
    for problem in 0..call.len() {
        let a = &a[problem * n * n..][..n * n];
        let values = values.at(problem);
        let converged = all_finite(a) && {
            let [u, v] = [&mut vectors.left, &mut vectors.right].map(|out| {
                out.as_mut().map(|out| {
                    let out = out.at(problem);
                    out.fill(Complex::new(R::zero(), R::zero()));
                    MatMut::from_column_major_slice_mut(out, n, n)
                })
            });
            let a = MatRef::from_column_major_slice(a, n, n);
            let s = DiagMut::from_slice_mut(values);
            evd::evd_cplx(a, s, u, v, Par::Seq, MemStack::new(&mut memory), Default::default()).is_ok()
        };
        for out in [&mut vectors.left, &mut vectors.right].into_iter().flatten() {
            finish(MatMut::from_column_major_slice_mut(out.at(problem), n, n), converged);
        }
        if !converged {
            values.fill(nan());
        }
        info.at(problem)[0] = if converged { 0 } else { NOT_FINITE };
    }
    Ok(())
}

/// The results for eigenvectors that are to be computed.
struct Vectors<'a, T> {
    left: Option<Arrays<'a, T>>,
    right: Option<Arrays<'a, T>>,
}

impl<'a, T: Scalar> Vectors<'a, T> {
    fn new(call: &mut Call<'a, '_>, n: usize, first: usize) -> Result<Self, FfiError> {
        let mut of = |name, result| match call.is_first_of(name, *b"VN")? {
            true => call.result(result, &[n, n]).map(Some),
            false => Ok(None),
        };
        Ok(Vectors { left: of("compute_left", first)?, right: of("compute_right", first + 1)? })
    }

    fn computed(&self) -> [ComputeEigenvectors; 2] {
        [&self.left, &self.right].map(|out| match out {
            Some(_) => ComputeEigenvectors::Yes,
            None => ComputeEigenvectors::No,
        })
    }
}

/// Gives eigenvectors their length and phase, or makes them NaN.
fn finish<T: Scalar>(mut vectors: MatMut<'_, T>, converged: bool) {
    if !converged {
        return vectors.fill(nan());
    }
    for column in vectors.col_iter_mut() {
        let norm = column.norm_l2();
        let size = |element: &T| element.modulus();
        let largest = column
            .rb()
            .iter()
            .copied()
            .fold(T::zero(), |largest, element| if size(&element) > size(&largest) { element } else { largest });
        if largest.is_zero() {
            continue;
        }
        let of_real = largest.im().is_zero();
        let phase = if of_real {
            T::of(Float::recip(norm))
        } else {
            largest.conj().scaled(Float::recip(size(&largest) * norm))
        };
        column.iter_mut().for_each(|element| {
            let scaled = *element * phase;
            *element = if !of_real && *element == largest { T::of(scaled.re()) } else { scaled };
        });
    }
}
