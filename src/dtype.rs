//! Element types, as XLA names them.

use std::fmt;
use std::str::FromStr;

/// The element type of an array: one of XLA's `PrimitiveType`s that a device buffer can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the names are XLA's")]
pub enum DType {
    Pred,
    S1,
    S2,
    S4,
    S8,
    S16,
    S32,
    S64,
    U1,
    U2,
    U4,
    U8,
    U16,
    U32,
    U64,
    F4E2M1FN,
    F6E2M3FN,
    F6E3M2FN,
    F8E3M4,
    F8E4M3,
    F8E4M3B11FNUZ,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0FNU,
    F16,
    BF16,
    F32,
    F64,
    C64,
    C128,
}

struct Row {
    dtype: DType,
    name: &'static str,
    primitive_type: i32,
    bits: usize,
}

const fn row(dtype: DType, name: &'static str, primitive_type: i32, bits: usize) -> Row {
    Row { dtype, name, primitive_type, bits }
}

/// In the order of the enum's variants, so that a variant indexes its own row.
const TABLE: [Row; 32] = [
    row(DType::Pred, "pred", 1, 8),
    row(DType::S1, "s1", 30, 1),
    row(DType::S2, "s2", 26, 2),
    row(DType::S4, "s4", 21, 4),
    row(DType::S8, "s8", 2, 8),
    row(DType::S16, "s16", 3, 16),
    row(DType::S32, "s32", 4, 32),
    row(DType::S64, "s64", 5, 64),
    row(DType::U1, "u1", 31, 1),
    row(DType::U2, "u2", 27, 2),
    row(DType::U4, "u4", 22, 4),
    row(DType::U8, "u8", 6, 8),
    row(DType::U16, "u16", 7, 16),
    row(DType::U32, "u32", 8, 32),
    row(DType::U64, "u64", 9, 64),
    row(DType::F4E2M1FN, "f4e2m1fn", 32, 4),
    row(DType::F6E2M3FN, "f6e2m3fn", 36, 6),
    row(DType::F6E3M2FN, "f6e3m2fn", 35, 6),
    row(DType::F8E3M4, "f8e3m4", 29, 8),
    row(DType::F8E4M3, "f8e4m3", 28, 8),
    row(DType::F8E4M3B11FNUZ, "f8e4m3b11fnuz", 23, 8),
    row(DType::F8E4M3FN, "f8e4m3fn", 20, 8),
    row(DType::F8E4M3FNUZ, "f8e4m3fnuz", 25, 8),
    row(DType::F8E5M2, "f8e5m2", 19, 8),
    row(DType::F8E5M2FNUZ, "f8e5m2fnuz", 24, 8),
    row(DType::F8E8M0FNU, "f8e8m0fnu", 33, 8),
    row(DType::F16, "f16", 10, 16),
    row(DType::BF16, "bf16", 16, 16),
    row(DType::F32, "f32", 11, 32),
    row(DType::F64, "f64", 12, 64),
    row(DType::C64, "c64", 15, 64),
    row(DType::C128, "c128", 18, 128),
];

impl DType {
    /// Every element type.
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.dtype)
    }

    /// XLA's name, as in HLO text: `f32`, `bf16`, `pred`.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].name
    }

    /// The number of this type in XLA's `PrimitiveType` enum.
    pub fn primitive_type(self) -> i32 {
        TABLE[self as usize].primitive_type
    }

    /// The element type with this number in XLA's `PrimitiveType`; `None` for tuples, tokens, opaque and unknown ones.
    pub fn from_primitive_type(number: i32) -> Option<DType> {
        TABLE.iter().find(|row| row.primitive_type == number).map(|row| row.dtype)
    }

    /// Significant bits of one element.
    pub fn bits(self) -> usize {
        TABLE[self as usize].bits
    }

    /// Bytes that one element takes in host memory and in collectives: types narrower than a byte take a whole one.
    pub fn size(self) -> usize {
        self.bits().div_ceil(8)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.dtype).ok_or_else(|| UnknownDType(name.to_owned()))
    }
}

/// A name that is no element type.
#[derive(Debug, thiserror::Error)]
#[error("unknown element type '{0}'")]
pub struct UnknownDType(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_at_their_variants_index() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.dtype as usize, index, "{}", row.name);
            assert_eq!(DType::from_primitive_type(row.primitive_type), Some(row.dtype));
            assert_eq!(row.name.parse::<DType>().unwrap(), row.dtype);
        }
    }
}
