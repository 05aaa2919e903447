//! Operations on each element by itself.

use super::{Op, Operand};
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{HloInstructionCommon, HloInstructionDetails, HloInstructionProto};

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident $opcode:literal;)*) => {
        impl<'b> Op<'b> {
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $name(self) -> Op<'b> {
                    self.unary($opcode)
                }
            )*
        }
    };
}

functions! {
    /// The magnitude of signed or complex numbers; of complex ones it is real.
    abs "abs";
    /// −1, 0 or 1.
    sign "sign";
    /// The next integer below.
    floor "floor";
    /// The next integer above.
    ceil "ceil";
    /// The nearest integer, the even one of two.
    round "round-nearest-even";
    /// eˣ.
    exp "exponential";
    /// eˣ − 1, precise near 0.
    expm1 "exponential-minus-one";
    /// The natural logarithm.
    log "log";
    /// log(1 + x), precise near 0.
    log1p "log-plus-one";
    /// The square root.
    sqrt "sqrt";
    /// 1 / √x.
    rsqrt "rsqrt";
    /// The cube root.
    cbrt "cbrt";
    /// The sine of an angle in radians.
    sin "sine";
    /// The cosine of an angle in radians.
    cos "cosine";
    /// The tangent of an angle in radians.
    tan "tan";
    /// The hyperbolic tangent.
    tanh "tanh";
    /// The logistic function 1 / (1 + e⁻ˣ).
    sigmoid "logistic";
    /// The error function.
    erf "erf";
    /// Whether a number is neither infinite nor NaN.
    is_finite "is-finite";
    /// The real parts.
    real "real";
    /// The imaginary parts.
    imag "imag";
}

macro_rules! functions_of_two {
    ($($(#[$doc:meta])* $name:ident $opcode:literal;)*) => {
        impl<'b> Op<'b> {
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $name(self, other: impl Into<Operand<'b>>) -> Op<'b> {
                    self.binary($opcode, other)
                }
            )*
        }
    };
}

functions_of_two! {
    /// The larger of two numbers; NaN if one is.
    max "maximum";
    /// The smaller of two numbers; NaN if one is.
    min "minimum";
    /// The value to the power of another.
    pow "power";
    /// The angle, in radians, of the point with the value as its y and another as its x.
    atan2 "atan2";
    /// Bits shifted up.
    shift_left "shift-left";
    /// Bits shifted down, zeros coming in.
    shift_right_logical "shift-right-logical";
    /// Bits shifted down, copies of the sign coming in.
    shift_right_arithmetic "shift-right-arithmetic";
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident $direction:literal;)*) => {
        impl<'b> Op<'b> {
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $name(self, other: impl Into<Operand<'b>>) -> Op<'b> {
                    self.compare($direction, other.into())
                }
            )*
        }
    };
}

comparisons! {
    /// Whether the value equals another, as `pred`.
    eq "EQ";
    /// Whether the value differs from another, as `pred`.
    ne "NE";
    /// Whether the value is less than another, as `pred`.
    lt "LT";
    /// Whether the value is less than another or equal, as `pred`.
    le "LE";
    /// Whether the value is greater than another, as `pred`.
    gt "GT";
    /// Whether the value is greater than another or equal, as `pred`.
    ge "GE";
}

impl<'b> Op<'b> {
    #[track_caller]
    pub(super) fn unary(self, opcode: &str) -> Op<'b> {
        let instruction = HloInstructionProto::new(opcode);
        self.builder.push(instruction, &[self])
    }

    /// An operation on two operands of one type, broadcast to one shape.
    #[track_caller]
    pub(super) fn binary(self, opcode: &str, other: impl Into<Operand<'b>>) -> Op<'b> {
        let Some((left, right)) = self.alike(opcode, other.into()) else { return self.builder.failed() };
        let instruction = HloInstructionProto::new(opcode);
        self.builder.push(instruction, &[left, right])
    }

    #[track_caller]
    fn compare(self, direction: &str, other: Operand<'b>) -> Op<'b> {
        let Some((left, right)) = self.alike("compare", other) else { return self.builder.failed() };
        let instruction = HloInstructionProto::new("compare")
            .with_details(HloInstructionDetails { comparison_direction: direction.to_owned(), ..Default::default() });
        self.builder.push(instruction, &[left, right])
    }

    /// Both operands, of one type and shape.
    #[track_caller]
    fn alike(self, what: &str, other: Operand<'b>) -> Option<(Op<'b>, Op<'b>)> {
        let (dtype, dims) = self.array(what)?;
        let other = match other {
            Operand::Op(other) => other,
            number => self.builder.scalar(dtype, number),
        };
        let (other_dtype, other_dims) = other.array(what)?;
        if dtype != other_dtype {
            let (left, right) = (self.text(), other.text());
            self.builder.fail(what, format!("{left} and {right} have different element types: convert one of them"));
            return None;
        }
        let Some(common) = broadcast_dims(&dims, &other_dims) else {
            let (left, right) = (self.text(), other.text());
            self.builder.fail(what, format!("the shapes {left} and {right} cannot be broadcast to one"));
            return None;
        };
        Some((self.broadcast_to(&common), other.broadcast_to(&common)))
    }

    /// The elements of `on_true` where the value, a `pred`, is true, and those of `on_false` elsewhere. All are broadcast
    /// to one shape.
    #[track_caller]
    pub fn select(self, on_true: impl Into<Operand<'b>>, on_false: impl Into<Operand<'b>>) -> Op<'b> {
        let pair = match (on_true.into(), on_false.into()) {
            (Operand::Op(on_true), on_false) => on_true.alike("select", on_false),
            (number, Operand::Op(on_false)) => {
                self.builder.scalar(on_false.dtype(), number).alike("select", on_false.into())
            }
            _ => {
                self.builder.fail("select", "two numbers have no element type: make one a value with Builder::scalar");
                None
            }
        };
        let (Some((on_true, on_false)), Some((_, dims))) = (pair, self.array("select")) else {
            return self.builder.failed();
        };
        let Some(common) = broadcast_dims(&dims, &on_true.dims()) else {
            let (predicate, choice) = (self.text(), on_true.text());
            let message = format!("the shapes {predicate} and {choice} cannot be broadcast to one");
            return self.builder.fail("select", message);
        };
        let operands = [self, on_true, on_false].map(|operand| operand.broadcast_to(&common));
        self.builder.push(HloInstructionProto::new("select"), &operands)
    }

    /// The value kept between two bounds.
    #[track_caller]
    pub fn clamp(self, low: impl Into<Operand<'b>>, high: impl Into<Operand<'b>>) -> Op<'b> {
        self.max(low).min(high)
    }

    /// The value in another element type: floats are rounded to the nearest, and towards zero as integers.
    #[track_caller]
    pub fn convert(self, dtype: DType) -> Op<'b> {
        self.retyped("convert", dtype)
    }

    /// The value's bits read as another element type of the same width.
    #[track_caller]
    pub fn bitcast(self, dtype: DType) -> Op<'b> {
        self.retyped("bitcast-convert", dtype)
    }

    #[track_caller]
    fn retyped(self, opcode: &str, dtype: DType) -> Op<'b> {
        let Some((own, dims)) = self.array(opcode) else { return self.builder.failed() };
        if own == dtype {
            return self;
        }
        let instruction = HloInstructionProto::from(HloInstructionCommon {
            opcode: opcode.into(),
            shape: shape::array(dtype, &dims).into(),
            ..Default::default()
        });
        self.builder.push(instruction, &[self])
    }
}

/// The shape that both shapes can be broadcast to, as in NumPy.
pub(super) fn broadcast_dims(a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let rank = a.len().max(b.len());
    let size = |dims: &[i64], dim: usize| (dim + dims.len()).checked_sub(rank).map_or(1, |dim| dims[dim]);
    let common = |dim| match (size(a, dim), size(b, dim)) {
        (a, b) if a == b => Some(a),
        (1, size) | (size, 1) => Some(size),
        _ => None,
    };
    (0..rank).map(common).collect()
}
