//! Operations on each element by itself.

use super::dims::{compatible, expect_dims, expect_same, same_dims, text};
use super::types::{Class, is_complex, is_float, is_integer, is_unsigned};
use super::{Check, Site, ensure};
use crate::dtype::DType;
use crate::hlo::opcode::Rule;
use crate::hlo::shape;
use crate::proto::ShapeProto;

/// What the operands of an elementwise operation are made of.
fn class_of(opcode: &str) -> Class {
    match opcode {
        "cbrt" | "ceil" | "erf" | "floor" | "is-finite" | "reduce-precision" | "round-nearest-afz"
        | "round-nearest-even" => Class::Float,
        "acos"
        | "acosh"
        | "asin"
        | "asinh"
        | "atan2"
        | "atanh"
        | "cosh"
        | "cosine"
        | "exponential"
        | "exponential-minus-one"
        | "imag"
        | "log"
        | "log-plus-one"
        | "logistic"
        | "real"
        | "rsqrt"
        | "sine"
        | "sinh"
        | "sqrt"
        | "tan"
        | "tanh" => Class::FloatOrComplex,
        "abs" | "sign" => Class::Signed,
        "count-leading-zeros" | "popcnt" | "shift-left" | "shift-right-arithmetic" | "shift-right-logical" => {
            Class::Integer
        }
        "divide" | "negate" | "power" | "remainder" | "subtract" => Class::Number,
        "and" | "not" | "or" | "xor" => Class::Bits,
        _ => Class::Any,
    }
}

/// All operands have the same shape, and so has the result but for its element type.
pub(super) fn elementwise(site: &Site, rule: Rule) -> Check {
    let first = site.array(0)?;
    let dtype = site.dtype(0)?;
    for index in 1..site.operands.len() {
        let other = site.array(index)?;
        ensure!(compatible(first, other), "the operands have different shapes: {} and {}", text(first), text(other));
    }
    expect_class("operand 0", first, class_of(&site.instruction.opcode))?;
    let element = match rule {
        Rule::IsFinite | Rule::Compare => DType::Pred,
        Rule::RealPart => real_part(dtype),
        Rule::Complex => match dtype {
            DType::F32 => DType::C64,
            DType::F64 => DType::C128,
            _ => return Err(format!("operand 0 is {}, and complex numbers are made of f32 or f64", text(first))),
        },
        _ => dtype,
    };
    site.expect_result(element, &first.dimensions)?;
    match rule {
        Rule::Compare => comparison(site, dtype),
        _ => Ok(()),
    }
}

fn real_part(dtype: DType) -> DType {
    match dtype {
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        other => other,
    }
}

pub(super) fn expect_class(what: &str, shape: &ShapeProto, class: Class) -> Check {
    let fits = shape::dtype(shape).is_some_and(|dtype| class.contains(dtype));
    ensure!(fits, "{what} is {}, and it must be of {}", text(shape), class.describe());
    Ok(())
}

fn comparison(site: &Site, dtype: DType) -> Check {
    let direction = site.instruction.details().comparison_direction.as_str();
    ensure!(
        matches!(direction, "EQ" | "NE" | "GE" | "GT" | "LE" | "LT"),
        "its direction is '{direction}', and it must be EQ, NE, GE, GT, LE or LT"
    );
    let equality = matches!(direction, "EQ" | "NE");
    ensure!(equality || !is_complex(dtype), "complex numbers have no order to compare by {direction}");
    let kind = site.instruction.details().comparison_type.as_str();
    let accepted: &[&str] = match dtype {
        dtype if is_float(dtype) => &["", "FLOAT", "TOTALORDER"],
        dtype if is_complex(dtype) => &["", "FLOAT"],
        dtype if dtype == DType::Pred || is_unsigned(dtype) => &["", "UNSIGNED"],
        _ => &["", "SIGNED"],
    };
    ensure!(accepted.contains(&kind), "it compares {dtype} as {kind}, and that must be {}", accepted[1..].join(" or "));
    Ok(())
}

/// `select`: a predicate for all or for each element.
pub(super) fn select(site: &Site) -> Check {
    let (predicate, on_true) = (site.array(0)?, site.array(1)?);
    ensure!(shape::dtype(predicate) == Some(DType::Pred), "it selects by {}, and that must be pred", text(predicate));
    ensure!(
        predicate.dimensions.is_empty() || same_dims(&predicate.dimensions, &on_true.dimensions),
        "the predicate {} must be a scalar or have the dimensions of {}",
        text(predicate),
        text(on_true)
    );
    expect_same("the other choice", site.array(2)?, on_true)?;
    expect_same("it", site.shape(), on_true)
}

pub(super) fn clamp(site: &Site) -> Check {
    let operand = site.array(1)?;
    for index in [0, 2] {
        let bound = site.array(index)?;
        if bound.dimensions.is_empty() {
            site.expect_type("a bound", bound, operand)?;
        } else {
            expect_same("a bound", bound, operand)?;
        }
    }
    let dtype = site.dtype(1)?;
    ensure!(!is_complex(dtype), "complex numbers have no order to clamp {} by", text(operand));
    expect_same("it", site.shape(), operand)
}

pub(super) fn convert(site: &Site) -> Check {
    site.array(0)?;
    expect_dims(site.array_result()?, &site.operand(0).dimensions)
}

pub(super) fn stochastic_convert(site: &Site) -> Check {
    let (operand, random) = (site.array(0)?, site.array(1)?);
    expect_class("operand 0", operand, Class::Float)?;
    expect_class("operand 1", random, Class::Unsigned)?;
    let (bits, random_bits) = (site.dtype(0)?.bits(), site.dtype(1)?.bits());
    ensure!(bits == random_bits, "its random numbers have {random_bits} bits and its operand {bits}");
    ensure!(
        same_dims(&operand.dimensions, &random.dimensions),
        "the operands have different shapes: {} and {}",
        text(operand),
        text(random)
    );
    convert(site)
}

pub(super) fn reduce_precision(site: &Site) -> Check {
    let (exponent, mantissa) = (site.instruction.details().exponent_bits, site.instruction.details().mantissa_bits);
    ensure!(exponent >= 1, "exponent_bits is {exponent}, and it must be at least 1");
    ensure!(mantissa >= 0, "mantissa_bits is {mantissa}, and it must not be negative");
    elementwise(site, Rule::Elementwise)
}

/// Bits change their type: narrower elements stand in a new last dimension, wider ones take the last one up.
pub(super) fn bitcast_convert(site: &Site) -> Check {
    let (operand, result) = (site.array(0)?, site.array_result()?);
    let (from, to) = (site.dtype(0)?, shape::dtype(result).unwrap_or(DType::Pred));
    ensure!(
        is_complex(from) == is_complex(to),
        "it makes {} of {}, and complex numbers can become complex numbers only",
        text(result),
        text(operand)
    );
    let (from, to) = (from.bits(), to.bits());
    ensure!(
        from.max(to).is_multiple_of(from.min(to)),
        "it makes {to} bits of {from}, and one must be a multiple of the other"
    );
    let mut expected = operand.dimensions.clone();
    if from > to {
        expected.push((from / to) as i64);
    } else if from < to {
        let minor = expected.pop();
        ensure!(minor == Some((to / from) as i64), "the last dimension of {} must be {}", text(operand), to / from);
    }
    expect_dims(result, &expected)
}

pub(super) fn expect_integers(what: &str, shape: &ShapeProto) -> Check {
    let fits = shape::dtype(shape).is_some_and(is_integer);
    ensure!(fits, "{what} is {}, and must be an integer", text(shape));
    Ok(())
}
