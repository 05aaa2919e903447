use bytemuck::{Pod, Zeroable};
use num_complex::Complex;

/// A type whose values are made of bytes.
///
/// # Safety
/// Every pattern of bytes is a value, there is no padding, and no part of it is a reference.
pub(super) unsafe trait Element: Copy + 'static {}

/// An element at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(super) struct Packed<T>(pub T);

// SAFETY: an `Element` may be all zeros.
unsafe impl<T: Element> Zeroable for Packed<T> {}
// SAFETY: by the contract of `Element`; packed, so that there is no padding around it.
unsafe impl<T: Element> Pod for Packed<T> {}

/// An operation on elements.
pub(super) trait Combine<T> {
    fn combine(left: T, right: T) -> T;
}

pub(super) struct Sum;
pub(super) struct Product;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct And;
pub(super) struct Or;
pub(super) struct Xor;

/// XLA's `pred`: zero is false.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Pred(u8);

/// A signed integer of fewer than 8 bits, in the low bits of a byte; results are sign-extended.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Int<const BITS: u32>(i8);

/// An unsigned integer of fewer than 8 bits, in the low bits of a byte.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Uint<const BITS: u32>(u8);

impl<const BITS: u32> Int<BITS> {
    fn value(self) -> i8 {
        self.0 << (8 - BITS) >> (8 - BITS)
    }
}

impl<const BITS: u32> Uint<BITS> {
    fn value(self) -> u8 {
        self.0 << (8 - BITS) >> (8 - BITS)
    }
}

// SAFETY: a byte.
unsafe impl Element for Pred {}
// SAFETY: a byte.
unsafe impl<const BITS: u32> Element for Int<BITS> {}
// SAFETY: a byte.
unsafe impl<const BITS: u32> Element for Uint<BITS> {}
// SAFETY: two numbers of the same type.
unsafe impl Element for Complex<f32> {}
// SAFETY: two numbers of the same type.
unsafe impl Element for Complex<f64> {}

macro_rules! combine {
    ($element:ty, $generics:tt $($op:ident = |$left:ident, $right:ident| $value:expr;)*) => {
        $(combine! { @one $element, $generics, $op, $left, $right, $value })*
    };
    (@one $element:ty, [$($generics:tt)*], $op:ident, $left:ident, $right:ident, $value:expr) => {
        impl<$($generics)*> Combine<$element> for $op {
            #[inline(always)]
            fn combine($left: $element, $right: $element) -> $element {
                $value
            }
        }
    };
}

macro_rules! integers {
    ($($int:ty)*) => {$(
        // SAFETY: an integer.
        unsafe impl Element for $int {}
        combine! { $int, []
            Sum = |a, b| a.wrapping_add(b);
            Product = |a, b| a.wrapping_mul(b);
            Min = |a, b| a.min(b);
            Max = |a, b| a.max(b);
            And = |a, b| a & b;
            Or = |a, b| a | b;
            Xor = |a, b| a ^ b;
        }
    )*};
}

macro_rules! floats {
    ($($float:ty)*) => {$(
        // SAFETY: a number.
        unsafe impl Element for $float {}
        combine! { $float, []
            Sum = |a, b| a + b;
            Product = |a, b| a * b;
            Min = |a, b| if a <= b || a.is_nan() { a } else { b };
            Max = |a, b| if a >= b || a.is_nan() { a } else { b };
        }
        combine! { Complex<$float>, []
            Sum = |a, b| Complex::new(a.re + b.re, a.im + b.im);
            Product = |a, b| Complex::new(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
        }
    )*};
}

integers! { i8 i16 i32 i64 u8 u16 u32 u64 }
floats! { f32 f64 }

impl Pred {
    fn new(value: bool) -> Pred {
        Pred(u8::from(value))
    }

    fn value(self) -> bool {
        self.0 != 0
    }
}

combine! { Pred, []
    Sum = |a, b| Pred::new(a.value() | b.value());
    Product = |a, b| Pred::new(a.value() & b.value());
    Min = |a, b| Pred::new(a.value() & b.value());
    Max = |a, b| Pred::new(a.value() | b.value());
    And = |a, b| Pred::new(a.value() & b.value());
    Or = |a, b| Pred::new(a.value() | b.value());
    Xor = |a, b| Pred::new(a.value() ^ b.value());
}

macro_rules! narrow_integers {
    ($($narrow:ident)*) => {$(
        combine! { $narrow<BITS>, [const BITS: u32]
            Sum = |a, b| $narrow($narrow::<BITS>(a.value().wrapping_add(b.value())).value());
            Product = |a, b| $narrow($narrow::<BITS>(a.value().wrapping_mul(b.value())).value());
            Min = |a, b| $narrow(a.value().min(b.value()));
            Max = |a, b| $narrow(a.value().max(b.value()));
            And = |a, b| $narrow(a.value() & b.value());
            Or = |a, b| $narrow(a.value() | b.value());
            Xor = |a, b| $narrow(a.value() ^ b.value());
        }
    )*};
}

narrow_integers! { Int Uint }
