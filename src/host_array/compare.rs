//! How far two arrays lie apart.

use std::fmt;

use super::element::{Value, same_bits, value, write_text};
use super::{ArrayError, HostArray};

/// Two arrays of one shape, element by element; the second one is what was expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Every element has the same bits.
    pub bitwise_equal: bool,
    /// Number of elements compared.
    pub elements: usize,
    /// Number of elements outside the tolerance.
    pub mismatches: usize,
    /// The first of them in row-major order.
    pub first_mismatch: Option<Mismatch>,
    /// Largest |actual - expected|; infinite where only one side is a NaN or an infinity.
    pub max_abs_difference: f64,
    /// Largest |actual - expected| / |expected| over the elements whose expected value is not zero.
    pub max_rel_difference: f64,
}

/// One element that lies outside the tolerance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Index in each dimension.
    pub index: Vec<usize>,
    /// The actual value.
    pub actual: String,
    /// The expected value.
    pub expected: String,
}

impl Comparison {
    /// Every element lies within the tolerance.
    pub fn is_close(&self) -> bool {
        self.mismatches == 0
    }
}

/// Compares two arrays of one dtype and shape. An element is close when |actual - expected| ≤ `atol` + `rtol` ×
/// |expected|, as in `numpy.isclose`; a NaN is close to any NaN, an infinity to the same one.
pub fn compare(actual: &HostArray, expected: &HostArray, rtol: f64, atol: f64) -> Result<Comparison, ArrayError> {
    if (actual.dtype(), actual.dims()) != (expected.dtype(), expected.dims()) {
        return Err(ArrayError::DifferentShapes { actual: actual.shape_text(), expected: expected.shape_text() });
    }
    let dtype = actual.dtype();
    let mut result = Comparison {
        bitwise_equal: true,
        elements: actual.num_elements(),
        mismatches: 0,
        first_mismatch: None,
        max_abs_difference: 0.0,
        max_rel_difference: 0.0,
    };
    if actual.data() == expected.data() {
        return Ok(result);
    }
    for (position, (left, right)) in actual.elements().zip(expected.elements()).enumerate() {
        if same_bits(dtype, left, right) {
            continue;
        }
        result.bitwise_equal = false;
        let (difference, size) = distance(value(dtype, left), value(dtype, right));
        result.max_abs_difference = result.max_abs_difference.max(difference);
        if size != 0.0 && difference != 0.0 {
            let relative = if difference.is_infinite() { difference } else { difference / size };
            result.max_rel_difference = result.max_rel_difference.max(relative);
        }
        if difference > 0.0 && !(difference <= atol + rtol * size && difference.is_finite()) {
            result.mismatches += 1;
            result.first_mismatch.get_or_insert_with(|| {
                let text = |bytes| {
                    let mut text = String::new();
                    write_text(dtype, bytes, &mut text);
                    text
                };
                Mismatch { index: index_of(position, actual.dims()), actual: text(left), expected: text(right) }
            });
        }
    }
    Ok(result)
}

/// |actual - expected| and |expected|.
fn distance(actual: Value, expected: Value) -> (f64, f64) {
    match (actual, expected) {
        (Value::Int(actual), Value::Int(expected)) => {
            (actual.abs_diff(expected) as f64, expected.unsigned_abs() as f64)
        }
        (Value::Bool(actual), Value::Bool(expected)) => {
            (f64::from(u8::from(actual != expected)), f64::from(u8::from(expected)))
        }
        (Value::Float(actual), Value::Float(expected)) => (gap(actual, expected), expected.abs()),
        (Value::Complex(real, imaginary), Value::Complex(expected_real, expected_imaginary)) => {
            let apart = gap(real, expected_real).hypot(gap(imaginary, expected_imaginary));
            (apart, expected_real.hypot(expected_imaginary))
        }
        _ => (f64::INFINITY, 0.0),
    }
}

/// |actual - expected|, where equal infinities and two NaNs lie 0 apart and a NaN and a number infinitely far.
fn gap(actual: f64, expected: f64) -> f64 {
    if actual == expected || (actual.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    let difference = (actual - expected).abs();
    if difference.is_nan() { f64::INFINITY } else { difference }
}

fn index_of(mut position: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (target, &dim) in index.iter_mut().zip(dims).rev() {
        *target = position % dim;
        position /= dim;
    }
    index
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bitwise_equal {
            return write!(f, "bitwise equal");
        }
        match &self.first_mismatch {
            None => write!(f, "equal within the tolerance")?,
            Some(Mismatch { index, actual, expected }) => write!(
                f,
                "{} of {} elements differ, the first at {index:?}: {actual}, expected {expected}",
                self.mismatches, self.elements
            )?,
        }
        write!(f, " (largest difference {:.3e}, relative {:.3e})", self.max_abs_difference, self.max_rel_difference)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Fill;
    use super::*;
    use crate::dtype::DType;

    fn floats(values: &[f32]) -> HostArray {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        HostArray::new(DType::F32, vec![values.len()], data).unwrap()
    }

    #[test]
    fn tolerance_is_that_of_isclose() {
        let (actual, expected) = (floats(&[1.0, 2.0, 101.0, 0.0]), floats(&[1.0, 2.5, 100.0, 0.25]));
        let strict = compare(&actual, &expected, 0.0, 0.0).unwrap();
        assert_eq!((strict.mismatches, strict.elements, strict.bitwise_equal), (3, 4, false));
        assert_eq!((strict.max_abs_difference, strict.max_rel_difference), (1.0, 1.0));
        assert_eq!(strict.first_mismatch.as_ref().unwrap().index, [1]);
        assert_eq!(compare(&actual, &expected, 0.01, 0.0).unwrap().mismatches, 2);
        assert_eq!(compare(&actual, &expected, 0.0, 0.5).unwrap().mismatches, 1);
        assert!(compare(&actual, &expected, 0.01, 0.5).unwrap().is_close());
        insta::assert_snapshot!(strict, @"3 of 4 elements differ, the first at [1]: 2.0, expected 2.5 (largest difference 1.000e0, relative 1.000e0)");
        insta::assert_snapshot!(compare(&actual, &expected, 0.01, 0.5).unwrap(), @"equal within the tolerance (largest difference 1.000e0, relative 1.000e0)");
        insta::assert_snapshot!(compare(&actual, &actual, 0.0, 0.0).unwrap(), @"bitwise equal");
    }

    #[test]
    fn nans_equal_nans_and_infinities_themselves() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        let other_nan = f32::from_bits(nan.to_bits() ^ 1);
        let same = compare(&floats(&[nan, infinity, 0.0]), &floats(&[other_nan, infinity, -0.0]), 0.0, 0.0).unwrap();
        assert!(same.is_close() && !same.bitwise_equal && same.max_abs_difference == 0.0);
        for (actual, expected) in [(nan, 1.0), (1.0, nan), (infinity, -infinity), (1.0, infinity), (infinity, 1.0)] {
            let different = compare(&floats(&[actual]), &floats(&[expected]), 1.0, 1e30).unwrap();
            assert!(!different.is_close() && different.max_abs_difference.is_infinite(), "{actual} {expected}");
        }
    }

    #[test]
    fn every_type_is_compared() {
        for dtype in DType::all() {
            let zeros = HostArray::zeros(dtype, &[2, 3, 4]).unwrap();
            let mut changed = zeros.clone();
            let size = dtype.size();
            let one = HostArray::filled(Fill::Ones, 0, dtype, &[]).unwrap().into_data();
            changed.data_mut()[17 * size..18 * size].copy_from_slice(&one);
            let comparison = compare(&changed, &zeros, 0.0, 0.0).unwrap();
            assert_eq!(comparison.mismatches, 1, "{dtype}");
            assert_eq!(comparison.first_mismatch.unwrap().index, [1, 1, 1], "{dtype}");
            assert_eq!(comparison.max_abs_difference.round(), 1.0, "{dtype}");
            assert!(compare(&zeros, &zeros, 0.0, 0.0).unwrap().bitwise_equal);
        }
    }

    #[test]
    fn large_integers_keep_their_difference() {
        let array = |value: u64| HostArray::new(DType::U64, vec![], value.to_le_bytes().to_vec()).unwrap();
        let comparison = compare(&array(u64::MAX), &array(u64::MAX - 1), 0.0, 0.0).unwrap();
        assert_eq!(comparison.max_abs_difference, 1.0);
        assert_eq!(comparison.first_mismatch.unwrap().actual, "18446744073709551615");
    }

    #[test]
    fn other_shapes_are_refused() {
        let error = compare(&floats(&[1.0]), &HostArray::zeros(DType::F64, &[1]).unwrap(), 0.0, 0.0).unwrap_err();
        insta::assert_snapshot!(error, @"an array of f32[1] cannot be compared with one of f64[1]");
    }
}
