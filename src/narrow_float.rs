//! Bit patterns of the float types, from `f64` and back: the one place that knows their formats.

use crate::dtype::DType;

/// The layout of a float type: sign, exponent and mantissa, from the top bit down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) exponent_bits: u32,
    pub(crate) mantissa_bits: u32,
    pub(crate) bias: i32,
    pub(crate) specials: Specials,
}

/// What the largest exponent and the pattern of negative zero mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Specials {
    /// Infinity and NaNs with payload, as in IEEE 754.
    Ieee,
    /// One NaN per sign (all ones), no infinity.
    OneNan,
    /// One NaN (the pattern of negative zero), no infinity, no negative zero.
    NanIsNegativeZero,
    /// Finite values only: conversions saturate, NaN becomes zero of the other sign (as `ml_dtypes` does).
    Finite,
    /// Nothing but an exponent: powers of two and one NaN (all ones); no sign, no zero, no infinity.
    PowersOfTwo,
}

const fn format(exponent_bits: u32, mantissa_bits: u32, bias: i32, specials: Specials) -> Format {
    Format { exponent_bits, mantissa_bits, bias, specials }
}

impl Format {
    pub(crate) const F64: Format = format(11, 52, 1023, Specials::Ieee);

    /// The format of a real float type.
    pub(crate) fn of(dtype: DType) -> Option<Format> {
        use Specials::*;
        Some(match dtype {
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
            DType::F8E8M0FNU => format(8, 0, 127, PowersOfTwo),
            DType::F16 => format(5, 10, 15, Ieee),
            DType::BF16 => format(8, 7, 127, Ieee),
            DType::F32 => format(8, 23, 127, Ieee),
            DType::F64 => Format::F64,
            _ => return None,
        })
    }

    /// The bit above exponent and mantissa.
    pub(crate) fn sign(self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    pub(crate) fn mantissa_mask(self) -> u64 {
        (1 << self.mantissa_bits) - 1
    }

    /// The largest finite value's pattern.
    pub(crate) fn max(self) -> u64 {
        match self.specials {
            Specials::Ieee => self.infinity() - 1,
            Specials::OneNan | Specials::PowersOfTwo => self.sign() - 2,
            Specials::NanIsNegativeZero | Specials::Finite => self.sign() - 1,
        }
    }

    /// The pattern of the largest exponent without a mantissa, which is infinity in the IEEE formats.
    pub(crate) fn infinity(self) -> u64 {
        self.sign() - 1 - self.mantissa_mask()
    }

    pub(crate) fn is_infinite(self, bits: u64) -> bool {
        self.specials == Specials::Ieee && bits & (self.sign() - 1) == self.infinity()
    }

    pub(crate) fn is_nan(self, bits: u64) -> bool {
        match self.specials {
            Specials::Ieee => bits & (self.sign() - 1) > self.infinity(),
            Specials::OneNan | Specials::PowersOfTwo => bits & (self.sign() - 1) == self.sign() - 1,
            Specials::NanIsNegativeZero => bits == self.sign(),
            Specials::Finite => false,
        }
    }

    /// Whether the pattern's sign bit is set and is a sign.
    pub(crate) fn is_negative(self, bits: u64) -> bool {
        let unsigned = match self.specials {
            Specials::PowersOfTwo => true,
            Specials::NanIsNegativeZero => bits == self.sign(),
            _ => false,
        };
        !unsigned && bits & self.sign() != 0
    }

    fn nan(self, negative: bool) -> u64 {
        let sign = if negative { self.sign() } else { 0 };
        match self.specials {
            Specials::Ieee => sign | self.infinity() | 1 << (self.mantissa_bits - 1),
            Specials::OneNan => sign | (self.sign() - 1),
            Specials::NanIsNegativeZero => self.sign(),
            Specials::Finite => sign ^ self.sign(),
            Specials::PowersOfTwo => self.sign() - 1,
        }
    }

    /// The value of a pattern, exactly; NaNs come back as the default NaN of their sign.
    pub(crate) fn decode(self, bits: u64) -> f64 {
        if self.mantissa_bits == 52 {
            return f64::from_bits(bits);
        }
        let size = if self.is_nan(bits) {
            f64::NAN
        } else if self.is_infinite(bits) {
            f64::INFINITY
        } else {
            let biased = (bits & (self.sign() - 1)) >> self.mantissa_bits;
            let subnormal = biased == 0 && self.specials != Specials::PowersOfTwo;
            let implicit = if subnormal { 0 } else { 1 << self.mantissa_bits };
            let exponent = biased as i32 + i32::from(subnormal) - self.bias;
            (bits & self.mantissa_mask() | implicit) as f64 * power_of_two(exponent - self.mantissa_bits as i32)
        };
        if self.is_negative(bits) { -size } else { size }
    }

    /// The pattern nearest to `value`, ties to even; among powers of two, ties upwards. What lies too far out becomes
    /// infinity, or NaN where there is none, or the largest value where there is neither.
    pub(crate) fn encode(self, value: f64) -> u64 {
        if self.mantissa_bits == 52 {
            return value.to_bits();
        }
        if self.specials == Specials::PowersOfTwo {
            return self.encode_power_of_two(value);
        }
        let negative = value.is_sign_negative();
        if value.is_nan() {
            return self.nan(negative);
        }
        let sign = if negative { self.sign() } else { 0 };
        let magnitude = self.rounded_magnitude(value.abs());
        if magnitude > self.max() {
            return match self.specials {
                Specials::Ieee => sign | self.infinity(),
                Specials::Finite => sign | self.max(),
                _ => self.nan(negative),
            };
        }
        if magnitude == 0 && self.specials == Specials::NanIsNegativeZero { 0 } else { sign | magnitude }
    }

    /// Exponent and mantissa of the number nearest to a positive one, as if exponents had no bound above.
    fn rounded_magnitude(self, size: f64) -> u64 {
        if size.is_infinite() {
            return u64::MAX;
        }
        let smallest_exponent = 1 - self.bias;
        let exponent = exponent_of(size).max(smallest_exponent);
        let steps = (size * power_of_two(self.mantissa_bits as i32 - exponent)).round_ties_even() as u64;
        // A carry out of the mantissa raises the exponent by itself.
        steps + (((exponent - smallest_exponent) as u64) << self.mantissa_bits)
    }

    /// What is zero, negative or too large is NaN; what is too small is the smallest.
    fn encode_power_of_two(self, value: f64) -> u64 {
        if value.is_nan() || value <= 0.0 || value.is_infinite() {
            return self.nan(false);
        }
        let exponent = exponent_of(value) + (value.to_bits() >> 51 & 1) as i32;
        ((exponent + self.bias).max(0) as u64).min(self.nan(false))
    }
}

/// The exponent of a positive number, or what is below the smallest one if it is subnormal.
fn exponent_of(value: f64) -> i32 {
    (value.to_bits() >> 52) as i32 - 1023
}

/// Of an exponent between -1022 and 1023, which the types narrower than `f64` keep to.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
