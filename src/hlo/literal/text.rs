//! The text form of literals: what stands in `constant(…)`.

use std::fmt::Write;

use super::{LiteralError, Scalar, decode, encode, float, logical_words, words_per_element};
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{LiteralProto, PrimitiveType};

/// The most empty sub-arrays that are spelled out.
const MAX_EMPTY_ARRAYS: i64 = 1 << 20;

/// Appends the literal without its shape: `1.5`, `{{1, 2}, {3, 4}}`, `(7, {true, false})`.
///
/// Each number is the shortest that reads back as the same bits.
///
/// # Errors
/// The literal's data does not fit its shape, or the shape is empty in more than a million places.
pub fn format_literal(literal: &LiteralProto, out: &mut String) -> Result<(), LiteralError> {
    if literal.shape.element_type == PrimitiveType::TUPLE {
        out.push('(');
        for (index, element) in literal.tuple_literals.iter().enumerate() {
            separate(index, out);
            format_literal(element, out)?;
        }
        out.push(')');
        return Ok(());
    }
    let (dtype, words) = logical_words(literal)?;
    let dims = &literal.shape.dimensions;
    if dtype == DType::Pred && dims.is_empty() {
        out.push_str(if words == [0] { "false" } else { "true" });
        return Ok(());
    }
    // An array without elements still has one pair of braces for each of its sub-arrays.
    let braces = dims.iter().take_while(|&&dim| dim > 0).try_fold(1i64, |product, &dim| product.checked_mul(dim));
    if words.is_empty() && braces.is_none_or(|braces| braces > MAX_EMPTY_ARRAYS) {
        return Err(LiteralError::Shape(shape::text(&literal.shape)));
    }
    let mut elements = words.chunks(words_per_element(dtype));
    format_array(dtype, dims, &mut elements, out)
}

fn format_array(
    dtype: DType,
    dims: &[i64],
    elements: &mut std::slice::Chunks<'_, u64>,
    out: &mut String,
) -> Result<(), LiteralError> {
    let Some((&dim, inner)) = dims.split_first() else {
        if let Some(element) = elements.next() {
            format_element(dtype, element, out);
        }
        return Ok(());
    };
    out.push('{');
    for index in 0..dim {
        separate(index as usize, out);
        format_array(dtype, inner, elements, out)?;
    }
    out.push('}');
    Ok(())
}

fn separate(index: usize, out: &mut String) {
    if index > 0 {
        out.push_str(", ");
    }
}

fn format_element(dtype: DType, words: &[u64], out: &mut String) {
    match decode(dtype, words) {
        Scalar::Complex(re, im) => {
            out.push('(');
            format_part(dtype, re, out);
            out.push_str(", ");
            format_part(dtype, im, out);
            out.push(')');
        }
        scalar => format_scalar(dtype, scalar, out),
    }
}

fn format_scalar(dtype: DType, scalar: Scalar, out: &mut String) {
    match scalar {
        Scalar::Bool(value) => out.push(if value { '1' } else { '0' }),
        Scalar::Int(value) => write_to(out, format_args!("{value}")),
        Scalar::NanPayload { negative, payload } => {
            write_to(out, format_args!("{}nan({payload:#x})", if negative { "-" } else { "" }));
        }
        Scalar::Float(value) => format_float(dtype, value, out),
        Scalar::Complex(..) => {}
    }
}

fn format_part(dtype: DType, value: f64, out: &mut String) {
    let payload = value.to_bits() & float::nan_payload_mask(DType::F64);
    if value.is_nan() && payload != float::default_nan_payload(DType::F64) {
        format_scalar(dtype, Scalar::NanPayload { negative: value.is_sign_negative(), payload }, out);
    } else if dtype == DType::C128 || value.abs() == f64::from(f32::MAX) {
        // The shortest f32 spelling of the largest value lies above it, and XLA refuses it in a complex number.
        format_float(DType::F64, value, out);
    } else {
        format_float(DType::F32, value, out);
    }
}

/// Appends a value of this type: the shortest digits that read back, through `f64` as XLA reads them, as the same bits.
fn format_float(dtype: DType, value: f64, out: &mut String) {
    let start = out.len();
    match dtype {
        _ if value.is_nan() => out.push_str(if value.is_sign_negative() { "-nan" } else { "nan" }),
        DType::F64 => write_to(out, format_args!("{value:?}")),
        // The smallest value is subnormal in f32, and XLA rounds every other spelling up to the next power of two.
        DType::F8E8M0FNU if value < f64::from(f32::MIN_POSITIVE) => write_to(out, format_args!("{value:?}")),
        DType::F32 => {
            write_to(out, format_args!("{:?}", value as f32));
            if out[start..].parse::<f64>().is_ok_and(|read| read as f32 != value as f32) {
                out.truncate(start);
                write_to(out, format_args!("{value:?}"));
            }
        }
        _ => {
            let reads_back = |text: &str| {
                text.parse().is_ok_and(|read| encode(dtype, Scalar::Float(read)).ok() == float::encode(dtype, value))
            };
            for digits in 0..17 {
                let text = format!("{value:.digits$e}");
                if reads_back(&text) {
                    write_to(out, format_args!("{:?}", text.parse().unwrap_or(value)));
                    break;
                }
            }
        }
    }
    // An integer's spelling is shorter, but XLA reads "-0" as the integer zero.
    if out.ends_with(".0") && value != 0.0 || value.to_bits() == 0 {
        out.truncate(out.len() - 2);
    }
}

/// Formatting into a `String` cannot fail.
fn write_to(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(arguments);
}
