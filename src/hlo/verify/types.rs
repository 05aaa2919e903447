//! Classes of element types.

use crate::dtype::DType;

/// A set of element types that an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Any,
    Integer,
    Unsigned,
    /// `pred` too.
    Bits,
    Float,
    FloatOrComplex,
    Complex,
    /// Numbers with a sign, complex ones included.
    Signed,
    /// Integers, floats and complex numbers.
    Number,
}

impl Class {
    pub(super) fn contains(self, dtype: DType) -> bool {
        let is_pred = dtype == DType::Pred;
        match self {
            Class::Any => true,
            Class::Number => !is_pred,
            Class::Integer => is_integer(dtype),
            Class::Unsigned => is_unsigned(dtype),
            Class::Bits => is_pred || is_integer(dtype),
            Class::Float => is_float(dtype),
            Class::FloatOrComplex => is_float(dtype) || is_complex(dtype),
            Class::Complex => is_complex(dtype),
            Class::Signed => !is_pred && !is_unsigned(dtype),
        }
    }

    pub(super) fn describe(self) -> &'static str {
        match self {
            Class::Any => "any type",
            Class::Number => "numbers",
            Class::Integer => "integers",
            Class::Unsigned => "unsigned integers",
            Class::Bits => "pred or integers",
            Class::Float => "floating-point numbers",
            Class::FloatOrComplex => "floating-point or complex numbers",
            Class::Complex => "complex numbers",
            Class::Signed => "signed numbers",
        }
    }
}

pub(super) fn is_complex(dtype: DType) -> bool {
    matches!(dtype, DType::C64 | DType::C128)
}

pub(super) fn is_unsigned(dtype: DType) -> bool {
    matches!(dtype, DType::U1 | DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64)
}

pub(super) fn is_integer(dtype: DType) -> bool {
    is_unsigned(dtype)
        || matches!(dtype, DType::S1 | DType::S2 | DType::S4 | DType::S8 | DType::S16 | DType::S32 | DType::S64)
}

pub(super) fn is_float(dtype: DType) -> bool {
    dtype != DType::Pred && !is_integer(dtype) && !is_complex(dtype)
}
