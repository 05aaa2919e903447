//! Schur forms: `gees`.
//!
//! faer keeps its own Schur decomposition to itself, so here are the QR iterations of Golub and Van Loan, *Matrix
//! Computations*, 7.5, on top of our reduction to Hessenberg form.

use faer::reborrow::*;
use faer::traits::ComplexField;
use faer::{Mat, MatMut};
use num_complex::Complex;
use num_traits::{Float, One, Zero};

use super::call::{Call, NOT_FINITE, invalid};
use super::hessenberg::reduce;
use super::qr::blocks;
use super::scalar::{Real, RealScalar, Scalar, all_finite, nan};
use crate::pjrt::FfiError;

/// Sweeps for one eigenvalue before the iteration is given up.
const MAX_SWEEPS: usize = 60;

/// A rotation of two rows or columns: `(x, y)` becomes `(c x + s y, c y - s̄ x)`.
#[derive(Clone, Copy)]
struct Rotation<T: Scalar> {
    c: Real<T>,
    s: T,
}

/// `A = Q T Qᴴ`, T quasi-triangular with 2x2 blocks `(a b; c a)`, `b c < 0`, for pairs of conjugate eigenvalues: T in the
/// place of A, Q, w's real and imaginary parts, how many eigenvalues were selected (none), `info`.
pub(super) fn gees_real<R: RealScalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError> {
    let [n, _] = call.dims(0)?;
    let mut re = call.result::<R>(2, &[n])?;
    let mut im = call.result::<R>(3, &[n])?;
    decompose::<R>(call, n, [4, 5], quasi_triangularize, |problem, t| {
        let (re, im) = (re.at(problem), im.at(problem));
        im.fill(R::zero());
        for row in 0..n {
            re[row] = t[(row, row)];
            // Below a block there is a zero.
            if row + 1 < n && t[(row + 1, row)] != R::zero() {
                im[row] = Float::sqrt(Float::abs(t[(row, row + 1)])) * Float::sqrt(Float::abs(t[(row + 1, row)]));
                im[row + 1] = -im[row];
            }
        }
    })
}

/// `A = Q T Qᴴ`, T triangular: T in the place of A, Q, w, how many eigenvalues were selected (none), `info`.
pub(super) fn gees_complex<R: RealScalar>(call: &mut Call<'_, '_>) -> Result<(), FfiError>
where
    Complex<R>: Scalar + ComplexField<Real = R>,
{
    let [n, _] = call.dims(0)?;
    let mut values = call.result::<Complex<R>>(2, &[n])?;
    decompose::<Complex<R>>(call, n, [3, 4], triangularize, |problem, t| {
        values.at(problem).iter_mut().enumerate().for_each(|(row, value)| *value = t[(row, row)]);
    })
}

type Iteration<T> = fn(MatMut<'_, T>, MatMut<'_, T>) -> Result<(), usize>;

fn decompose<T: Scalar>(
    call: &mut Call<'_, '_>,
    n: usize,
    [selected, info]: [usize; 2],
    iterate: Iteration<T>,
    mut values: impl FnMut(usize, MatMut<'_, T>),
) -> Result<(), FfiError> {
    let with_vectors = call.is_first_of("mode", *b"VN")?;
    if !call.is_first_of("sort", *b"NS")? {
        return Err(invalid("sorted Schur forms need a function of the caller's"));
    }
    let mut a = call.in_place::<T>(0, 0, &[n, n])?;
    let mut q_out = if with_vectors { Some(call.result::<T>(1, &[n, n])?) } else { None };
    let mut selected = call.result::<i32>(selected, &[])?;
    let mut info = call.result::<i32>(info, &[])?;
    for problem in 0..call.len() {
        let finite = all_finite(a.at(problem));
        let mut t = MatMut::from_column_major_slice_mut(a.at(problem), n, n);
        let mut q = Mat::<T>::identity(n, n);
        let result = if finite {
            if n > 1 {
                let mut taus = vec![T::zero(); n - 1];
                reduce(t.rb_mut(), &mut taus, 0..n);
                for (start, block) in blocks(t.rb().submatrix(1, 0, n - 1, n - 1), &taus).iter().rev() {
                    block.apply_left(
                        q.as_mut().submatrix_mut(start + 1, start + 1, n - 1 - start, n - 1 - start),
                        false,
                    );
                }
                for column in 0..n {
                    t.rb_mut()
                        .col_mut(column)
                        .subrows_mut((column + 2).min(n), n.saturating_sub(column + 2))
                        .fill(T::zero());
                }
            }
            iterate(t.rb_mut(), q.as_mut()).map_err(|row| row as i32 + 1)
        } else {
            t.fill(nan());
            q.fill(nan());
            Err(NOT_FINITE)
        };
        values(problem, t);
        if let Some(out) = &mut q_out {
            MatMut::from_column_major_slice_mut(out.at(problem), n, n).copy_from(q.as_ref());
        }
        selected.at(problem)[0] = 0;
        info.at(problem)[0] = result.err().unwrap_or(0);
    }
    Ok(())
}

/// Single-shift QR iteration; fails with the row of the eigenvalue that does not converge.
fn triangularize<T: Scalar>(mut h: MatMut<'_, T>, mut q: MatMut<'_, T>) -> Result<(), usize> {
    let n = h.nrows();
    let mut last = n.saturating_sub(1);
    let mut sweeps = 0;
    while last > 0 {
        let first = split(h.rb_mut(), last);
        if first == last {
            last -= 1;
            sweeps = 0;
            continue;
        }
        sweeps += 1;
        if sweeps > MAX_SWEEPS {
            return Err(last);
        }
        let shift = if sweeps % 10 == 0 {
            h[(last, last)] + T::of(h[(last, last - 1)].modulus())
        } else {
            let (a, b) = (h[(last - 1, last - 1)], h[(last - 1, last)]);
            let (c, d) = (h[(last, last - 1)], h[(last, last)]);
            let half = T::one() / (T::one() + T::one());
            let half_difference = (a - d) * half;
            let root = (half_difference * half_difference + b * c).root();
            let far = if (half_difference + root).modulus() > (half_difference - root).modulus() {
                half_difference + root
            } else {
                half_difference - root
            };
            if far.is_zero() { d } else { d - b * c / far }
        };
        let (mut x, mut y) = (h[(first, first)] - shift, h[(first + 1, first)]);
        for row in first..last {
            let rotation = Rotation::zeroing(x, y);
            let start = if row > first { row - 1 } else { row };
            rotation.rows(h.rb_mut(), row, start..n);
            if row > first {
                h[(row + 1, row - 1)] = T::zero();
            }
            rotation.columns(h.rb_mut(), row, 0..(row + 3).min(last + 1));
            rotation.columns(q.rb_mut(), row, 0..n);
            if row + 1 < last {
                (x, y) = (h[(row + 1, row)], h[(row + 2, row)]);
            }
        }
    }
    Ok(())
}

/// Double-shift QR iteration; fails with the row of the eigenvalue that does not converge.
fn quasi_triangularize<R: RealScalar>(mut h: MatMut<'_, R>, mut q: MatMut<'_, R>) -> Result<(), usize> {
    let n = h.nrows();
    let mut end = n;
    let mut sweeps = 0;
    while end > 1 {
        let last = end - 1;
        let first = split(h.rb_mut(), last);
        if first == last {
            end -= 1;
            sweeps = 0;
            continue;
        }
        if first + 1 == last {
            standardize(h.rb_mut(), q.rb_mut(), first);
            end -= 2;
            sweeps = 0;
            continue;
        }
        sweeps += 1;
        if sweeps > MAX_SWEEPS {
            return Err(last);
        }
        double_shift_sweep(h.rb_mut(), q.rb_mut(), first, last, sweeps % 10 == 0);
    }
    Ok(())
}

/// Chases a bulge from row `first` to row `last`, at least two further.
fn double_shift_sweep<R: RealScalar>(
    mut h: MatMut<'_, R>,
    mut q: MatMut<'_, R>,
    first: usize,
    last: usize,
    exceptional: bool,
) {
    let n = h.nrows();
    // Sum and product of the two shifts.
    let (sum, product) = if exceptional {
        let size = Float::abs(h[(last, last - 1)]) + Float::abs(h[(last - 1, last - 2)]);
        let quarter = R::one() / (R::one() + R::one() + R::one() + R::one());
        (h[(last, last)] + h[(last, last)] + size, (h[(last, last)] + size) * (h[(last, last)] + size * quarter))
    } else {
        let (a, b) = (h[(last - 1, last - 1)], h[(last - 1, last)]);
        let (c, d) = (h[(last, last - 1)], h[(last, last)]);
        (a + d, a * d - b * c)
    };
    let (a, b) = (h[(first, first)], h[(first, first + 1)]);
    let (c, d) = (h[(first + 1, first)], h[(first + 1, first + 1)]);
    // The first column of the shifted square, divided by c.
    let mut bulge = [(a * a - sum * a + product) / c + b, a + d - sum, h[(first + 2, first + 1)]];
    for row in first..last {
        let size = 3.min(last - row + 1);
        if row > first {
            for (offset, element) in bulge.iter_mut().enumerate().take(size) {
                *element = h[(row + offset, row - 1)];
            }
        }
        let norm = bulge[..size].iter().fold(R::zero(), |norm, &element| Float::hypot(norm, element));
        if norm.is_zero() {
            continue;
        }
        let beta = if bulge[0].is_sign_negative() { norm } else { -norm };
        let tau = (beta - bulge[0]) / beta;
        let scale = bulge[0] - beta;
        let v = [R::one(), bulge[1] / scale, bulge[2] / scale];
        let v = &v[..size];
        if row > first {
            h[(row, row - 1)] = beta;
            (1..size).for_each(|offset| h[(row + offset, row - 1)] = R::zero());
        }
        for column in row..n {
            reflect(tau, v, |offset| (row + offset, column), h.rb_mut());
        }
        for other in 0..(row + 4).min(last + 1) {
            reflect(tau, v, |offset| (other, row + offset), h.rb_mut());
        }
        for other in 0..n {
            reflect(tau, v, |offset| (other, row + offset), q.rb_mut());
        }
    }
}

fn reflect<R: RealScalar>(tau: R, v: &[R], at: impl Fn(usize) -> (usize, usize), mut a: MatMut<'_, R>) {
    let product = v.iter().enumerate().fold(R::zero(), |sum, (offset, &v)| sum + v * a[at(offset)]);
    for (offset, &v) in v.iter().enumerate() {
        a[at(offset)] = a[at(offset)] - tau * product * v;
    }
}

/// Rotates a 2x2 block to the form that LAPACK leaves: triangular, or with equal elements on its diagonal.
fn standardize<R: RealScalar>(mut h: MatMut<'_, R>, mut q: MatMut<'_, R>, row: usize) {
    let n = h.nrows();
    let two = R::one() + R::one();
    let rotate = |h: &mut MatMut<'_, R>, q: &mut MatMut<'_, R>, rotation: Rotation<R>| {
        rotation.rows(h.rb_mut(), row, row..n);
        rotation.columns(h.rb_mut(), row, 0..row + 2);
        rotation.columns(q.rb_mut(), row, 0..n);
    };
    let block = |h: &MatMut<'_, R>| (h[(row, row)], h[(row, row + 1)], h[(row + 1, row)], h[(row + 1, row + 1)]);
    let (a, b, c, d) = block(&h);
    let half_difference = (a - d) / two;
    let scale = Float::max(Float::abs(half_difference), Float::max(Float::abs(b), Float::abs(c)));
    let discriminant = half_difference / scale * half_difference + b / scale * c;
    if discriminant >= R::zero() {
        // Two real eigenvalues: the first row's direction becomes that of an eigenvector.
        let root = Float::sqrt(scale) * Float::sqrt(discriminant);
        let far = if half_difference.is_sign_negative() { half_difference - root } else { half_difference + root };
        rotate(&mut h, &mut q, Rotation::zeroing(far, c));
        h[(row + 1, row)] = R::zero();
        return;
    }
    // Equal elements on the diagonal.
    let sum = b + c;
    let length = Float::hypot(sum, a - d);
    let cosine = Float::sqrt((R::one() + Float::abs(sum) / length) / two);
    let sine = -(half_difference / (length * cosine)) * if sum.is_sign_negative() { -R::one() } else { R::one() };
    rotate(&mut h, &mut q, Rotation { c: cosine, s: sine });
    let (a, b, c, d) = block(&h);
    let mean = (a + d) / two;
    h[(row, row)] = mean;
    h[(row + 1, row + 1)] = mean;
    if c.is_zero() {
        return;
    }
    if b.is_zero() {
        rotate(&mut h, &mut q, Rotation { c: R::zero(), s: R::one() });
        h[(row + 1, row)] = R::zero();
    } else if b.is_sign_negative() == c.is_sign_negative() {
        // Rounding made the eigenvalues real.
        rotate(&mut h, &mut q, Rotation::zeroing(Float::sqrt(Float::abs(b)), Float::sqrt(Float::abs(c))));
        h[(row + 1, row)] = R::zero();
    }
}

/// The first row of the undivided block that ends at `last`. Sets the small element before it to zero.
fn split<T: Scalar>(mut h: MatMut<'_, T>, last: usize) -> usize {
    let epsilon = <Real<T> as Float>::epsilon();
    for row in (1..=last).rev() {
        let mut size = h[(row - 1, row - 1)].l1_norm() + h[(row, row)].l1_norm();
        if size.is_zero() {
            size = h.rb().norm_max();
        }
        if h[(row, row - 1)].l1_norm() <= Float::max(epsilon * size, <Real<T> as Float>::min_positive_value()) {
            h[(row, row - 1)] = T::zero();
            return row;
        }
    }
    0
}

impl<T: Scalar> Rotation<T> {
    /// The rotation that makes `(x, y)` have no second element.
    fn zeroing(x: T, y: T) -> Self {
        let (size_x, size_y) = (x.modulus(), y.modulus());
        let length = Float::hypot(size_x, size_y);
        if size_y.is_zero() {
            Rotation { c: Real::<T>::one(), s: T::zero() }
        } else if size_x.is_zero() {
            Rotation { c: Real::<T>::zero(), s: y.conj().scaled(Float::recip(size_y)) }
        } else {
            let phase = x.scaled(Float::recip(size_x));
            Rotation { c: size_x / length, s: (phase * y.conj()).scaled(Float::recip(length)) }
        }
    }

    fn rows(self, mut a: MatMut<'_, T>, row: usize, columns: std::ops::Range<usize>) {
        for column in columns {
            let (x, y) = (a[(row, column)], a[(row + 1, column)]);
            a[(row, column)] = x.scaled(self.c) + self.s * y;
            a[(row + 1, column)] = y.scaled(self.c) - self.s.conj() * x;
        }
    }

    /// Multiplies by the rotation's adjoint from the right.
    fn columns(self, mut a: MatMut<'_, T>, column: usize, rows: std::ops::Range<usize>) {
        for row in rows {
            let (x, y) = (a[(row, column)], a[(row, column + 1)]);
            a[(row, column)] = x.scaled(self.c) + self.s.conj() * y;
            a[(row, column + 1)] = y.scaled(self.c) - self.s * x;
        }
    }
}
