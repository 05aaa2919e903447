//! What the bytes of one element mean.

use std::fmt::Write;

use crate::dtype::DType;
use crate::narrow_float::{Format, Specials};

/// The value of an element, exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

/// A binary floating-point format of at most a byte.
pub(super) struct SmallFloat(Format);

impl SmallFloat {
    /// The format of a sign-exponent-mantissa type of at most 8 bits; `f8e8m0fnu` is none.
    pub(super) fn of(dtype: DType) -> Option<SmallFloat> {
        let format = Format::of(dtype).filter(|format| format.specials != Specials::PowersOfTwo)?;
        (dtype.bits() <= 8).then_some(SmallFloat(format))
    }

    /// Number of integers `0, 1, 2, …` that the format holds without a gap.
    pub(super) fn consecutive_integers(&self) -> u64 {
        (0..2 << self.0.mantissa_bits).take_while(|&integer| self.pattern_of(integer as f64).is_some()).count() as u64
    }

    /// The largest number of equal steps into which the format cuts `[0, 1)` with every step exact.
    pub(super) fn steps_of_one(&self) -> u64 {
        let mantissa_bits = self.0.mantissa_bits as i32;
        1 << (mantissa_bits + self.0.bias - 1).min(mantissa_bits + 1)
    }

    /// The pattern of a value that the format holds exactly.
    pub(super) fn pattern_of(&self, value: f64) -> Option<u8> {
        let pattern = self.0.encode(value);
        (self.0.decode(pattern) == value).then_some(pattern as u8)
    }
}

/// The value of an element of [`DType::size`] bytes.
pub(super) fn value(dtype: DType, bytes: &[u8]) -> Value {
    let low = u64_of(bytes);
    let unused = 64 - dtype.bits().min(64) as u32;
    match dtype {
        DType::Pred => Value::Bool(low != 0),
        DType::S1 | DType::S2 | DType::S4 | DType::S8 | DType::S16 | DType::S32 | DType::S64 => {
            Value::Int(i128::from((low << unused).cast_signed() >> unused))
        }
        DType::U1 | DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64 => {
            Value::Int(i128::from((low << unused) >> unused))
        }
        DType::C64 => {
            let (real, imaginary) = bytes.split_at(4);
            let part = |bytes| f64::from(f32::from_bits(u64_of(bytes) as u32));
            Value::Complex(part(real), part(imaginary))
        }
        DType::C128 => {
            let (real, imaginary) = bytes.split_at(8);
            Value::Complex(f64::from_bits(u64_of(real)), f64::from_bits(u64_of(imaginary)))
        }
        DType::F32 => Value::Float(f64::from(f32::from_bits(low as u32))),
        _ => Value::Float(Format::of(dtype).map_or(f64::NAN, |format| format.decode(low))),
    }
}

/// Whether two elements are the same bits, those that a narrow type does not use left out.
pub(super) fn same_bits(dtype: DType, left: &[u8], right: &[u8]) -> bool {
    if dtype.bits() >= 8 {
        return left == right;
    }
    let mask = (1 << dtype.bits()) - 1;
    u64_of(left) & mask == u64_of(right) & mask
}

/// A narrow element's byte with the bits that its type does not use as `ml_dtypes` has them: copies of the sign in signed
/// integers, else zero.
pub(super) fn canonical(dtype: DType, byte: u8) -> u8 {
    let unused = 8 - dtype.bits().min(8) as u32;
    match dtype {
        DType::S1 | DType::S2 | DType::S4 => ((byte << unused).cast_signed() >> unused).cast_unsigned(),
        _ => (byte << unused) >> unused,
    }
}

/// Appends an element as NumPy prints it; floats with the fewest digits that tell them from their neighbours.
pub(super) fn write_text(dtype: DType, bytes: &[u8], out: &mut String) {
    match value(dtype, bytes) {
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(value) => {
            let _ = write!(out, "{value}");
        }
        Value::Float(value) => write_float(narrowed(dtype, bytes, value), dtype == DType::F32, out),
        Value::Complex(real, imaginary) => {
            let single = dtype == DType::C64;
            write_float(real, single, out);
            if !imaginary.is_sign_negative() || imaginary.is_nan() {
                out.push('+');
            }
            write_float(imaginary, single, out);
            out.push('j');
        }
    }
}

fn write_float(value: f64, single: bool, out: &mut String) {
    let _ = if value.is_nan() {
        write!(out, "nan")
    } else if single {
        write!(out, "{:?}", value as f32)
    } else {
        write!(out, "{value:?}")
    };
}

/// The number with the fewest decimal digits that lies nearer to `value` than to its neighbours in a type narrower
/// than `f32`; `value` itself in other types.
pub(super) fn narrowed(dtype: DType, bytes: &[u8], value: f64) -> f64 {
    let pattern = u64_of(bytes) as u16;
    let magnitude_bits = match dtype {
        DType::F32 | DType::F64 => return value,
        DType::F8E8M0FNU => 8,
        _ => dtype.bits() - 1,
    };
    let magnitude = pattern & ((1 << magnitude_bits) - 1);
    let neighbour = |pattern: Option<u16>| match pattern.map(|pattern| self::value(dtype, &pattern.to_le_bytes())) {
        Some(Value::Float(neighbour)) if neighbour.is_finite() => Some(neighbour),
        _ => None,
    };
    let size = value.abs();
    if size == 0.0 || !size.is_finite() {
        return value;
    }
    let below = neighbour(magnitude.checked_sub(1)).unwrap_or(size / 2.0);
    let above = neighbour(magnitude.checked_add(1)).filter(|&above| above > size).unwrap_or(size + (size - below));
    let (low, high) = (f64::midpoint(below, size), f64::midpoint(size, above));
    let short = (0..17)
        .filter_map(|digits| format!("{size:.digits$e}").parse::<f64>().ok())
        .find(|&candidate| low < candidate && candidate < high)
        .unwrap_or(size);
    short.copysign(value)
}

fn u64_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (target, source) in word.iter_mut().zip(bytes) {
        *target = *source;
    }
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::host_array::npz::read_npz;

    fn narrow_floats() -> impl Iterator<Item = DType> {
        DType::all().filter(|&dtype| SmallFloat::of(dtype).is_some() || dtype == DType::F8E8M0FNU)
    }

    #[test]
    fn every_pattern_is_worth_what_ml_dtypes_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/numpy/narrow_values.npz");
        let mut files = read_npz(&path).unwrap();
        for dtype in narrow_floats() {
            let expected = files.remove(dtype.name()).unwrap().into_host_array(DType::F32, &[256]).unwrap();
            for (pattern, expected) in expected.elements().enumerate() {
                let Value::Float(expected) = value(DType::F32, expected) else { unreachable!() };
                let Value::Float(actual) = value(dtype, &[pattern as u8]) else { unreachable!() };
                let same = actual.is_nan() && expected.is_nan()
                    || actual == expected && actual.is_sign_negative() == expected.is_sign_negative();
                assert!(same, "{dtype} {pattern:#x}: {actual} instead of {expected}");
            }
        }
    }

    #[test]
    fn integers_are_sign_extended_from_their_width() {
        for (dtype, pattern, expected) in [
            (DType::S1, 0b1u8, -1),
            (DType::S2, 0b10, -2),
            (DType::S4, 0b0000_1000, -8),
            (DType::S4, 0b1111_0111, 7),
            (DType::U4, 0b1111_0111, 7),
            (DType::U2, 0b11, 3),
            (DType::S8, 0x80, -128),
        ] {
            assert_eq!(value(dtype, &[pattern]), Value::Int(expected), "{dtype}");
        }
        assert_eq!(value(DType::U64, &[0xff; 8]), Value::Int(i128::from(u64::MAX)));
        assert_eq!(value(DType::S64, &[0xff; 8]), Value::Int(-1));
        assert_eq!([DType::S4, DType::U4, DType::S8].map(|dtype| canonical(dtype, 0x1c)), [0xfc, 0x0c, 0x1c]);
        assert!(same_bits(DType::S4, &[0xf7], &[0x07]) && !same_bits(DType::S4, &[0xf7], &[0x06]));
    }

    #[test]
    fn printed_floats_are_short_and_read_back_as_themselves() {
        for dtype in narrow_floats().chain([DType::F16, DType::BF16]) {
            let patterns = if dtype.size() == 1 { 256u32 } else { 65536 };
            let all: Vec<f64> = (0..patterns)
                .map(|pattern| match value(dtype, &pattern.to_le_bytes()[..dtype.size()]) {
                    Value::Float(value) => value,
                    other => panic!("{other:?}"),
                })
                .collect();
            let mut sorted: Vec<f64> = all.iter().copied().filter(|value| value.is_finite()).collect();
            sorted.sort_by(f64::total_cmp);
            sorted.dedup();
            for (pattern, &expected) in all.iter().enumerate().filter(|(_, value)| value.is_finite()) {
                let mut text = String::new();
                write_text(dtype, &(pattern as u32).to_le_bytes()[..dtype.size()], &mut text);
                let read: f64 = text.parse().unwrap();
                let above = sorted.partition_point(|&value| value < read);
                let nearest = [above.saturating_sub(1), above.min(sorted.len() - 1)]
                    .map(|at| sorted[at])
                    .into_iter()
                    .min_by(|a, b| (a - read).abs().total_cmp(&(b - read).abs()));
                assert_eq!(nearest, Some(expected), "{dtype} {pattern:#x} is printed as {text}");
            }
        }
    }
}
