use std::sync::LazyLock;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::dtype::DType;
use crate::narrow_float::Format;

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

    #[inline(always)]
    fn decode(&self, bytes: &[u8], values: &mut [f32]) {
        for (value, pattern) in values.iter_mut().zip(cast::<u16>(bytes)) {
            *value = f32::from_bits(u32::from(pattern.0) << 16);
        }
    }

    #[inline(always)]
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

static SMALL: LazyLock<Vec<Small>> = LazyLock::new(|| {
    DType::all()
        .filter(|dtype| dtype.bits() <= 8)
        .filter_map(|dtype| {
            let format = Format::of(dtype)?;
            let values = std::array::from_fn(|pattern| format.decode(pattern as u64) as f32);
            Some(Small { dtype, format, values })
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
            *pattern = self.format.encode(f64::from(value)) as u8;
        }
    }
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
