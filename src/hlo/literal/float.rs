//! Bit patterns of XLA's float types, from `f64` and back.

use crate::dtype::DType;

/// What the largest exponent and the pattern of negative zero mean.
#[derive(Clone, Copy, PartialEq)]
enum Specials {
    /// Infinity and NaNs with payload, as in IEEE 754.
    Ieee,
    /// One NaN per sign (all ones), no infinity.
    OneNan,
    /// One NaN (the pattern of negative zero), no infinity, no negative zero.
    NanIsNegativeZero,
    /// Finite values only: conversions saturate, NaN becomes zero of the other sign (as `ml_dtypes` does).
    Finite,
}

/// The layout of a float type with a sign bit.
#[derive(Clone, Copy)]
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    specials: Specials,
}

const fn format(exponent_bits: u32, mantissa_bits: u32, bias: i32, specials: Specials) -> Format {
    Format { exponent_bits, mantissa_bits, bias, specials }
}

fn format_of(dtype: DType) -> Format {
    use Specials::*;
    match dtype {
        DType::F4E2M1FN => format(2, 1, 1, Finite),
        DType::F6E2M3FN => format(2, 3, 1, Finite),
        DType::F6E3M2FN => format(3, 2, 3, Finite),
        DType::F8E3M4 => format(3, 4, 3, Ieee),
        DType::F8E4M3 => format(4, 3, 7, Ieee),
        DType::F8E4M3B11FNUZ => format(4, 3, 11, NanIsNegativeZero),
        DType::F8E4M3FN => format(4, 3, 7, OneNan),
        DType::F8E4M3FNUZ => format(4, 3, 8, NanIsNegativeZero),
        DType::F8E5M2 => format(5, 2, 15, Ieee),
        DType::F8E5M2FNUZ => format(5, 2, 16, NanIsNegativeZero),
        DType::F16 => format(5, 10, 15, Ieee),
        DType::BF16 => format(8, 7, 127, Ieee),
        DType::F32 => format(8, 23, 127, Ieee),
        _ => format(11, 52, 1023, Ieee),
    }
}

impl Format {
    fn sign(self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    fn mantissa_mask(self) -> u64 {
        (1 << self.mantissa_bits) - 1
    }

    /// The largest finite value's pattern.
    fn max(self) -> u64 {
        match self.specials {
            Specials::Ieee => self.infinity() - 1,
            Specials::OneNan => self.sign() - 2,
            Specials::NanIsNegativeZero | Specials::Finite => self.sign() - 1,
        }
    }

    fn infinity(self) -> u64 {
        self.sign() - 1 - self.mantissa_mask()
    }

    fn nan(self, negative: bool) -> u64 {
        let sign = if negative { self.sign() } else { 0 };
        match self.specials {
            Specials::Ieee => sign | self.infinity() | 1 << (self.mantissa_bits - 1),
            Specials::OneNan => sign | (self.sign() - 1),
            Specials::NanIsNegativeZero => self.sign(),
            Specials::Finite => sign ^ self.sign(),
        }
    }

    fn is_nan(self, bits: u64) -> bool {
        match self.specials {
            Specials::Ieee => bits & (self.sign() - 1) > self.infinity(),
            Specials::OneNan => bits & (self.sign() - 1) == self.sign() - 1,
            Specials::NanIsNegativeZero => bits == self.sign(),
            Specials::Finite => false,
        }
    }
}

/// The payload bits of a NaN of this type (its mantissa); 0 where NaNs carry none.
pub(super) fn nan_payload_mask(dtype: DType) -> u64 {
    match dtype {
        DType::F8E8M0FNU => 0,
        _ if format_of(dtype).specials == Specials::Ieee => format_of(dtype).mantissa_mask(),
        _ => 0,
    }
}

/// The payload that a NaN has when none is asked for.
pub(super) fn default_nan_payload(dtype: DType) -> u64 {
    (nan_payload_mask(dtype) + 1) >> 1
}

/// The largest finite value.
pub(super) fn max(dtype: DType) -> f64 {
    decode(dtype, format_of(dtype).max())
}

/// A NaN with this payload, which must be within [`nan_payload_mask`] and not 0.
pub(super) fn nan_with_payload(dtype: DType, negative: bool, payload: u64) -> u64 {
    let format = format_of(dtype);
    format.infinity() | payload | if negative { format.sign() } else { 0 }
}

/// The sign and the mantissa of a NaN's pattern; `None` if it is no NaN.
pub(super) fn nan_parts(dtype: DType, bits: u64) -> Option<(bool, u64)> {
    if dtype == DType::F8E8M0FNU {
        return (bits == 0xff).then_some((false, 0));
    }
    let format = format_of(dtype);
    let negative = bits & format.sign() != 0 && format.specials != Specials::NanIsNegativeZero;
    format.is_nan(bits).then_some((negative, bits & nan_payload_mask(dtype)))
}

/// The pattern nearest to `value`, ties to even, as XLA converts constants; `None` if a finite value has no finite
/// neighbour (the types without infinity and NaN saturate instead).
pub(super) fn encode(dtype: DType, value: f64) -> Option<u64> {
    let bits = match dtype {
        DType::F64 => return Some(value.to_bits()),
        DType::F8E8M0FNU => return encode_e8m0(value as f32),
        // XLA rounds these twice, by way of f32.
        DType::F16 | DType::BF16 => round(format_of(dtype), f64::from(value as f32)),
        _ => round(format_of(dtype), value),
    };
    let overflowed = value.is_finite() && (is_infinite(dtype, bits) || nan_parts(dtype, bits).is_some());
    (!overflowed).then_some(bits)
}

fn is_infinite(dtype: DType, bits: u64) -> bool {
    let format = format_of(dtype);
    format.specials == Specials::Ieee && bits & (format.sign() - 1) == format.infinity()
}

fn round(format: Format, value: f64) -> u64 {
    let negative = value.is_sign_negative();
    let sign = if negative { format.sign() } else { 0 };
    if value.is_nan() {
        return format.nan(negative);
    }
    let magnitude = if value.is_infinite() { format.sign() } else { round_magnitude(format, value.abs()) };
    match format.specials {
        Specials::Ieee => sign | magnitude.min(format.infinity()),
        Specials::OneNan | Specials::NanIsNegativeZero if magnitude > format.max() => format.nan(negative),
        Specials::NanIsNegativeZero if magnitude == 0 => 0,
        Specials::Finite => sign | magnitude.min(format.max()),
        _ => sign | magnitude,
    }
}

/// The pattern of a finite value without its sign; larger than any finite pattern if it overflows.
fn round_magnitude(format: Format, value: f64) -> u64 {
    let bits = value.to_bits();
    let biased = (bits >> 52) as i32;
    let mantissa = bits & ((1 << 52) - 1);
    let (exponent, significand) = if biased == 0 { (-1022, mantissa) } else { (biased - 1023, mantissa | 1 << 52) };
    let min_exponent = 1 - format.bias;
    if exponent > (1 << format.exponent_bits) - 1 - format.bias {
        return format.sign();
    }
    let stored_exponent = exponent.max(min_exponent);
    let shift = (52 - format.mantissa_bits as i32) + (stored_exponent - exponent);
    let rounded = if shift > 54 {
        0
    } else {
        let quotient = significand >> shift;
        let half = (1u64 << shift) >> 1;
        let remainder = significand & ((1u64 << shift) - 1);
        quotient + u64::from(remainder > half || (remainder == half && half > 0 && quotient & 1 == 1))
    };
    // A carry out of the mantissa raises the exponent by itself.
    (((stored_exponent - min_exponent) as u64) << format.mantissa_bits) + rounded
}

/// A power of two: the exponent alone, ties upwards; there is no zero, no sign and one NaN.
fn encode_e8m0(value: f32) -> Option<u64> {
    if !value.is_finite() {
        return Some(0xff);
    }
    if value <= 0.0 {
        return None;
    }
    let bits = value.to_bits();
    let biased = bits >> 23;
    let round_up = if biased == 0 { bits >= 3 << 21 } else { bits & 1 << 22 != 0 };
    let code = u64::from(biased) + u64::from(round_up);
    (code < 0xff).then_some(code)
}

/// The value of a pattern; NaNs come back as the default NaN of their sign.
pub(super) fn decode(dtype: DType, bits: u64) -> f64 {
    match dtype {
        DType::F64 => return f64::from_bits(bits),
        DType::F32 => return f64::from(f32::from_bits(bits as u32)),
        DType::F8E8M0FNU => return if bits == 0xff { f64::NAN } else { 2f64.powi(bits as i32 - 127) },
        _ => {}
    }
    let format = format_of(dtype);
    let sign = if bits & format.sign() != 0 { -1.0 } else { 1.0 };
    if let Some((negative, _)) = nan_parts(dtype, bits) {
        return f64::NAN.copysign(if negative { -1.0 } else { 1.0 });
    }
    if is_infinite(dtype, bits) {
        return sign * f64::INFINITY;
    }
    let biased = (bits & (format.sign() - 1)) >> format.mantissa_bits;
    let mantissa = bits & format.mantissa_mask();
    let (exponent, significand) = match biased {
        0 => (1 - format.bias, mantissa),
        _ => (biased as i32 - format.bias, mantissa | 1 << format.mantissa_bits),
    };
    sign * significand as f64 * 2f64.powi(exponent - format.mantissa_bits as i32)
}
