use std::sync::LazyLock;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::dtype::DType;

use super::cast;

/// A type narrower than f32 that is computed with in f32.
pub(super) trait Codec {
    /// Bytes per element.
    fn size(&self) -> usize;

    /// Exact.
    fn decode(&self, bytes: &[u8], values: &mut [f32]);

    /// Rounds to the nearest, ties to even.
    fn encode(&self, values: &[f32], bytes: &mut [u8]);
}

pub(super) struct Bf16;

impl Codec for Bf16 {
    fn size(&self) -> usize {
        2
    }

    fn decode(&self, bytes: &[u8], values: &mut [f32]) {
        for (value, pattern) in values.iter_mut().zip(cast::<u16>(bytes)) {
            *value = f32::from_bits(u32::from(pattern.0) << 16);
        }
    }

    fn encode(&self, values: &[f32], bytes: &mut [u8]) {
        for (pattern, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            let bits = value.to_bits();
            let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16;
            let quiet_nan = bits >> 16 | 0x40;
            *pattern = (if value.is_nan() { quiet_nan } else { rounded } as u16).to_ne_bytes();
        }
    }
}

pub(super) struct Half;

/// Elements that are converted at a time.
const HALF_BLOCK: usize = 1024;

impl Codec for Half {
    fn size(&self) -> usize {
        2
    }

    fn decode(&self, bytes: &[u8], values: &mut [f32]) {
        let mut aligned = [f16::ZERO; HALF_BLOCK];
        for (values, bytes) in values.chunks_mut(HALF_BLOCK).zip(bytes.chunks(2 * HALF_BLOCK)) {
            let aligned = &mut aligned[..values.len()];
            for (half, pattern) in aligned.iter_mut().zip(cast::<u16>(bytes)) {
                *half = f16::from_bits(pattern.0);
            }
            aligned.convert_to_f32_slice(values);
        }
    }

    fn encode(&self, values: &[f32], bytes: &mut [u8]) {
        let mut aligned = [f16::ZERO; HALF_BLOCK];
        for (values, bytes) in values.chunks(HALF_BLOCK).zip(bytes.chunks_mut(2 * HALF_BLOCK)) {
            let aligned = &mut aligned[..values.len()];
            aligned.convert_from_f32_slice(values);
            for (pattern, half) in bytes.as_chunks_mut().0.iter_mut().zip(aligned) {
                *pattern = half.to_bits().to_ne_bytes();
            }
        }
    }
}

/// A floating-point type of at most 8 bits, one byte each.
pub(super) struct Small {
    dtype: DType,
    format: Format,
    values: [f32; 256],
}

#[derive(Clone, Copy)]
enum Format {
    /// Sign, exponent, mantissa.
    Fields { exponent_bits: u32, mantissa_bits: u32, bias: i32, special: Special },
    /// Only an exponent: `2^(pattern - 127)`, and all ones for NaN.
    PowerOfTwo,
}

/// How a format spells infinities and NaNs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// As IEEE 754 does.
    Ieee,
    /// NaN where all exponent and mantissa bits are set, no infinities.
    AllOnesNan,
    /// NaN in the place of negative zero, no infinities.
    NegativeZeroNan,
    /// Neither; too large values become the largest one.
    Nothing,
}

static SMALL: LazyLock<Vec<Small>> = LazyLock::new(|| {
    let fields =
        |exponent_bits, mantissa_bits, bias, special| Format::Fields { exponent_bits, mantissa_bits, bias, special };
    [
        (DType::F4E2M1FN, fields(2, 1, 1, Special::Nothing)),
        (DType::F6E2M3FN, fields(2, 3, 1, Special::Nothing)),
        (DType::F6E3M2FN, fields(3, 2, 3, Special::Nothing)),
        (DType::F8E3M4, fields(3, 4, 3, Special::Ieee)),
        (DType::F8E4M3, fields(4, 3, 7, Special::Ieee)),
        (DType::F8E4M3B11FNUZ, fields(4, 3, 11, Special::NegativeZeroNan)),
        (DType::F8E4M3FN, fields(4, 3, 7, Special::AllOnesNan)),
        (DType::F8E4M3FNUZ, fields(4, 3, 8, Special::NegativeZeroNan)),
        (DType::F8E5M2, fields(5, 2, 15, Special::Ieee)),
        (DType::F8E5M2FNUZ, fields(5, 2, 16, Special::NegativeZeroNan)),
        (DType::F8E8M0FNU, Format::PowerOfTwo),
    ]
    .into_iter()
    .map(|(dtype, format)| {
        let values = std::array::from_fn(|pattern| format.value(pattern as u8));
        Small { dtype, format, values }
    })
    .collect()
});

impl Small {
    pub fn of(dtype: DType) -> Option<&'static Small> {
        SMALL.iter().find(|small| small.dtype == dtype)
    }
}

impl Codec for Small {
    fn size(&self) -> usize {
        1
    }

    fn decode(&self, bytes: &[u8], values: &mut [f32]) {
        for (value, &pattern) in values.iter_mut().zip(bytes) {
            *value = self.values[usize::from(pattern)];
        }
    }

    fn encode(&self, values: &[f32], bytes: &mut [u8]) {
        for (pattern, &value) in bytes.iter_mut().zip(values) {
            *pattern = self.format.pattern(value);
        }
    }
}

impl Format {
    fn value(self, pattern: u8) -> f32 {
        let Format::Fields { exponent_bits, mantissa_bits, bias, special } = self else {
            return if pattern == u8::MAX { f32::NAN } else { 2f64.powi(i32::from(pattern) - 127) as f32 };
        };
        let sign_bit = 1u8 << (exponent_bits + mantissa_bits);
        let magnitude = pattern & (sign_bit - 1);
        let negative = pattern & sign_bit != 0;
        let (exponent, mantissa) = (magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1));
        let top_exponent = exponent + 1 == 1 << exponent_bits;
        let size = match special {
            Special::Ieee if top_exponent && mantissa == 0 => f64::INFINITY,
            Special::Ieee if top_exponent => f64::NAN,
            Special::AllOnesNan if magnitude == sign_bit - 1 => f64::NAN,
            Special::NegativeZeroNan if negative && magnitude == 0 => return f32::NAN,
            _ => {
                let significand = if exponent == 0 { mantissa } else { mantissa + (1 << mantissa_bits) };
                f64::from(significand) * 2f64.powi(i32::from(exponent.max(1)) - bias - mantissa_bits as i32)
            }
        };
        (if negative { -size } else { size }) as f32
    }

    fn pattern(self, value: f32) -> u8 {
        let Format::Fields { exponent_bits, mantissa_bits, bias, special } = self else {
            return power_of_two_pattern(value);
        };
        let negative = value.is_sign_negative();
        let sign_bit = 1u8 << (exponent_bits + mantissa_bits);
        let sign = if negative { sign_bit } else { 0 };
        if value.is_nan() {
            return match special {
                Special::Ieee => sign | (((1 << exponent_bits) - 1) << mantissa_bits) | 1 << (mantissa_bits - 1),
                Special::AllOnesNan => sign | (sign_bit - 1),
                Special::NegativeZeroNan => sign_bit,
                Special::Nothing => sign ^ sign_bit,
            };
        }
        let largest = match special {
            Special::Ieee => (((1 << exponent_bits) - 1) << mantissa_bits) - 1,
            Special::AllOnesNan => sign_bit - 2,
            Special::NegativeZeroNan | Special::Nothing => sign_bit - 1,
        };
        let magnitude = rounded_magnitude(value, mantissa_bits, 1 - bias);
        if magnitude <= u64::from(largest) {
            let magnitude = magnitude as u8;
            return if special == Special::NegativeZeroNan && magnitude == 0 { 0 } else { sign | magnitude };
        }
        match special {
            Special::Ieee => sign | (largest + 1),
            Special::AllOnesNan => sign | (sign_bit - 1),
            Special::NegativeZeroNan => sign_bit,
            Special::Nothing => sign | largest,
        }
    }
}

/// Exponent and mantissa fields of the nearest number in a format without bounds above.
fn rounded_magnitude(value: f32, mantissa_bits: u32, smallest_exponent: i32) -> u64 {
    let size = f64::from(value).abs();
    if size.is_infinite() {
        return u64::MAX;
    }
    let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(smallest_exponent);
    // A power of two in f64's normal range: f32 spans 2^-149 to 2^128.
    let steps_per_unit = f64::from_bits(((mantissa_bits as i32 - exponent + 1023) as u64) << 52);
    let steps = (size * steps_per_unit).round_ties_even() as u64;
    steps + (((exponent - smallest_exponent) as u64) << mantissa_bits)
}

/// Rounds to the nearest power of two, ties away from zero; what has no power of two is NaN.
fn power_of_two_pattern(value: f32) -> u8 {
    if value.is_nan() || value <= 0.0 || value.is_infinite() {
        return u8::MAX;
    }
    let bits = f64::from(value).to_bits();
    let exponent = (bits >> 52) as i32 - 1023 + (bits >> 51 & 1) as i32;
    u8::try_from(exponent.max(-127) + 127).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// The first 8 bytes of the SHA-256 of what ml_dtypes 0.6 makes of every f32 whose upper half is arbitrary and
    /// whose lower half is one of 0, 1, 0x8000 and 0xffff, in this order, upper half outermost; subnormal ones as zero.
    const ENCODED: [(DType, u64); 11] = [
        (DType::F4E2M1FN, 0xa933_86ac_0902_3fa9),
        (DType::F6E2M3FN, 0x2bd9_2682_aefe_b2d9),
        (DType::F6E3M2FN, 0x0de6_5145_5b97_3153),
        (DType::F8E3M4, 0x933b_3aa0_fdce_d9f1),
        (DType::F8E4M3, 0x57d4_aaaa_9548_034e),
        (DType::F8E4M3B11FNUZ, 0xded5_e0bd_37c2_8591),
        (DType::F8E4M3FN, 0x95de_dff2_66c8_3680),
        (DType::F8E4M3FNUZ, 0x711d_1adf_245a_ab8a),
        (DType::F8E5M2, 0x22fe_4a3e_f2fe_0a66),
        (DType::F8E5M2FNUZ, 0x2405_bc8c_baed_f6d0),
        (DType::F8E8M0FNU, 0x4497_285f_7c16_b5e6),
    ];

    #[test]
    fn rounding_is_that_of_ml_dtypes() {
        let values: Vec<f32> = (0..=u32::from(u16::MAX))
            .flat_map(|upper| [0, 1, 0x8000, 0xffff].map(|lower| f32::from_bits(upper << 16 | lower)))
            .map(|value| if value.is_subnormal() || value == 0.0 { 0.0 } else { value })
            .collect();
        for (dtype, expected) in ENCODED {
            let mut bytes = vec![0; values.len()];
            Small::of(dtype).unwrap().encode(&values, &mut bytes);
            let hash = Sha256::digest(&bytes);
            assert_eq!(hash[..8], u64::to_be_bytes(expected), "{dtype}");
        }
    }

    #[test]
    fn patterns_survive_a_round_trip() {
        for small in SMALL.iter() {
            let patterns: Vec<u8> = (0..=u8::MAX >> (8 - small.dtype.bits())).collect();
            let mut values = vec![0.0; patterns.len()];
            small.decode(&patterns, &mut values);
            let mut again = vec![0; patterns.len()];
            small.encode(&values, &mut again);
            for ((pattern, value), again) in patterns.iter().zip(&values).zip(&again) {
                assert!(value.is_nan() || pattern == again, "{} {pattern:#x} is {value}, then {again:#x}", small.dtype);
            }
        }
    }

    #[test]
    fn sixteen_bit_types_round_like_the_half_crate() {
        let values: Vec<f32> = (0..200_000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
        let (mut bf16, mut half) = (vec![0; 2 * values.len()], vec![0; 2 * values.len()]);
        Bf16.encode(&values, &mut bf16);
        Half.encode(&values, &mut half);
        for (index, value) in values.iter().enumerate() {
            let at = 2 * index..2 * index + 2;
            assert_eq!(bf16[at.clone()], half::bf16::from_f32(*value).to_ne_bytes(), "{value}");
            assert!(half[at] == f16::from_f32(*value).to_ne_bytes() || value.is_nan(), "{value}");
        }
    }
}
