//! Bit patterns of XLA's float types, as literals hold and convert them.

use crate::dtype::DType;
use crate::narrow_float::{Format, Specials};

/// The format of a float type; other types do not come here.
fn format_of(dtype: DType) -> Format {
    Format::of(dtype).unwrap_or(Format::F64)
}

/// The payload bits of a NaN of this type (its mantissa); 0 where NaNs carry none.
pub(super) fn nan_payload_mask(dtype: DType) -> u64 {
    let format = format_of(dtype);
    if format.specials == Specials::Ieee { format.mantissa_mask() } else { 0 }
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
    let format = format_of(dtype);
    format.is_nan(bits).then(|| (format.is_negative(bits), bits & nan_payload_mask(dtype)))
}

/// The pattern nearest to `value`, ties to even, as XLA converts constants; `None` if a finite value has no finite
/// neighbour (the types without infinity and NaN saturate instead).
pub(super) fn encode(dtype: DType, value: f64) -> Option<u64> {
    if dtype == DType::F32 && value.is_finite() {
        let rounded = value as f32;
        return rounded.is_finite().then(|| rounded.to_bits().into());
    }
    let format = format_of(dtype);
    let (value, was_finite) = match dtype {
        // XLA rounds these twice, by way of f32, …
        DType::F16 | DType::BF16 => (f64::from(value as f32), value.is_finite()),
        // … and this one too, but with the infinity that large values become it is content.
        DType::F8E8M0FNU => (f64::from(value as f32), (value as f32).is_finite()),
        _ => (value, value.is_finite()),
    };
    let bits = format.encode(value);
    let overflowed = was_finite && (format.is_infinite(bits) || format.is_nan(bits));
    (!overflowed).then_some(bits)
}

/// The value of a pattern; NaNs come back as the default NaN of their sign.
pub(super) fn decode(dtype: DType, bits: u64) -> f64 {
    format_of(dtype).decode(bits)
}
