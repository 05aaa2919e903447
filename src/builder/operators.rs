//! Operators on handles and numbers.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

use super::Op;

// One type of fractions and one of integers: with more of them Rust could not tell the type of `x * 2.0`.
macro_rules! operators {
    ($($operator:ident $function:ident $opcode:literal,)*) => {
        $(
            impl<'b> $operator for Op<'b> {
                type Output = Op<'b>;

                #[track_caller]
                fn $function(self, other: Op<'b>) -> Op<'b> {
                    self.binary($opcode, other)
                }
            }

            operators!(@number $operator $function $opcode, f64 i64);
        )*
    };
    (@number $operator:ident $function:ident $opcode:literal, $($number:ty)*) => {
        $(
            impl<'b> $operator<$number> for Op<'b> {
                type Output = Op<'b>;

                #[track_caller]
                fn $function(self, other: $number) -> Op<'b> {
                    self.binary($opcode, other)
                }
            }

            impl<'b> $operator<Op<'b>> for $number {
                type Output = Op<'b>;

                #[track_caller]
                fn $function(self, other: Op<'b>) -> Op<'b> {
                    other.builder.scalar(other.dtype(), self).binary($opcode, other)
                }
            }
        )*
    };
}

operators! {
    Add add "add",
    Sub sub "subtract",
    Mul mul "multiply",
    Div div "divide",
    Rem rem "remainder",
    BitAnd bitand "and",
    BitOr bitor "or",
    BitXor bitxor "xor",
}

impl<'b> Neg for Op<'b> {
    type Output = Op<'b>;

    #[track_caller]
    fn neg(self) -> Op<'b> {
        self.unary("negate")
    }
}

impl<'b> Not for Op<'b> {
    type Output = Op<'b>;

    #[track_caller]
    fn not(self) -> Op<'b> {
        self.unary("not")
    }
}
