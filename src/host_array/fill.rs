//! Arrays made from nothing but a rule, the same on every host.

use std::str::FromStr;

use half::{bf16, f16};

use super::element::SmallFloat;
use super::{ArrayError, HostArray};
use crate::dtype::DType;

/// A rule that gives every element of an array its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zero bytes.
    Zeros,
    /// Ones; `true` for `pred`. The 1-bit type `s1` has no one and takes -1.
    Ones,
    /// The row-major linear index. It starts again at 0 where the type would overflow or lose exactness: after
    /// 2^bits for integers, after 2^(digits of the significand) for floats; `pred` tells odd from even.
    Iota,
    /// Random values: uniform in [0, 1) for floats and both parts of complex numbers, uniform in `0..16` or as far as
    /// the type goes for integers, even odds for `pred`. Element i depends on the seed, the argument's number and i
    /// only.
    Random {
        /// Chooses the values.
        seed: u64,
    },
}

/// Text that names no [`Fill`].
#[derive(Debug, thiserror::Error)]
#[error("unknown fill '{0}': write zeros, ones, iota, random or random:SEED with a whole number as seed")]
pub struct ParseFillError(String);

impl FromStr for Fill {
    type Err = ParseFillError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "zeros" => Ok(Fill::Zeros),
            "ones" => Ok(Fill::Ones),
            "iota" => Ok(Fill::Iota),
            "random" => Ok(Fill::Random { seed: 0 }),
            _ => text
                .strip_prefix("random:")
                .and_then(|seed| seed.parse().ok())
                .map(|seed| Fill::Random { seed })
                .ok_or_else(|| ParseFillError(text.to_owned())),
        }
    }
}

impl HostArray {
    /// An array filled by a rule; `argument` is the program argument it stands for, so that a random fill gives each
    /// argument values of its own.
    pub fn filled(fill: Fill, argument: usize, dtype: DType, dims: &[usize]) -> Result<HostArray, ArrayError> {
        let mut array = HostArray::zeros(dtype, dims)?;
        match fill {
            Fill::Zeros => {}
            Fill::Ones => fill_with(&mut array, Numbers::Ones),
            Fill::Iota => fill_with(&mut array, Numbers::Iota),
            Fill::Random { seed } => fill_with(&mut array, Numbers::Random(Stream::new(seed, argument as u64))),
        }
        Ok(array)
    }
}

/// Random words that can be asked for in any order: SplitMix64 with the element's index as its counter.
#[derive(Clone, Copy)]
struct Stream(u64);

impl Stream {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    fn new(seed: u64, argument: u64) -> Stream {
        Stream(mix(mix(seed.wrapping_add(Self::STEP)).wrapping_add(argument.wrapping_mul(Self::STEP))))
    }

    fn word(self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index.wrapping_add(1).wrapping_mul(Self::STEP)))
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[derive(Clone, Copy)]
enum Numbers {
    Ones,
    Iota,
    Random(Stream),
}

impl Numbers {
    /// Integers of a type with values up to `largest`; the caller drops the bits that its type has not.
    fn integer(self, index: u64, largest: u64) -> u64 {
        match self {
            Numbers::Ones => 1,
            Numbers::Iota => index,
            Numbers::Random(stream) => (stream.word(index) >> 60).min(15) & largest,
        }
    }

    /// Floats that a significand of `digits` bits holds exactly.
    fn float(self, index: u64, digits: u32) -> f64 {
        match self {
            Numbers::Ones => 1.0,
            Numbers::Iota => (index & ((1 << digits) - 1)) as f64,
            Numbers::Random(stream) => (stream.word(index) >> (64 - digits)) as f64 / (1u64 << digits) as f64,
        }
    }
}

fn fill_with(array: &mut HostArray, numbers: Numbers) {
    let dtype = array.dtype();
    let data = array.data_mut();
    match dtype {
        DType::Pred | DType::U1 => set(data, |i| [numbers.integer(i, 1) as u8 & 1]),
        DType::S1 => set(data, |i| [sign_extended(numbers.integer(i, 1), 1)]),
        DType::S2 => set(data, |i| [sign_extended(numbers.integer(i, 1), 2)]),
        DType::U2 => set(data, |i| [numbers.integer(i, 3) as u8 & 3]),
        DType::S4 => set(data, |i| [sign_extended(numbers.integer(i, 7), 4)]),
        DType::U4 => set(data, |i| [numbers.integer(i, 15) as u8 & 15]),
        DType::S8 | DType::U8 => set(data, |i| [numbers.integer(i, 15) as u8]),
        DType::S16 | DType::U16 => set(data, |i| (numbers.integer(i, 15) as u16).to_le_bytes()),
        DType::S32 | DType::U32 => set(data, |i| (numbers.integer(i, 15) as u32).to_le_bytes()),
        DType::S64 | DType::U64 => set(data, |i| numbers.integer(i, 15).to_le_bytes()),
        DType::F16 => set(data, |i| f16::from_f64(numbers.float(i, 11)).to_le_bytes()),
        DType::BF16 => set(data, |i| bf16::from_f64(numbers.float(i, 8)).to_le_bytes()),
        DType::F32 => set(data, |i| (numbers.float(i, 24) as f32).to_le_bytes()),
        DType::F64 => set(data, |i| numbers.float(i, 53).to_le_bytes()),
        DType::C64 => set::<8>(data, |i| complex(numbers, i, 24, |part| (part as f32).to_le_bytes())),
        DType::C128 => set::<16>(data, |i| complex(numbers, i, 53, f64::to_le_bytes)),
        DType::F8E8M0FNU => set(data, |i| [power_of_two(numbers, i)]),
        _ => {
            if let Some(format) = SmallFloat::of(dtype) {
                let table = small_floats(numbers, &format);
                set(data, |i| [small_float(numbers, &table, i)]);
            }
        }
    }
}

fn set<const SIZE: usize>(data: &mut [u8], element: impl Fn(u64) -> [u8; SIZE]) {
    for (index, target) in data.as_chunks_mut::<SIZE>().0.iter_mut().enumerate() {
        *target = element(index as u64);
    }
}

fn sign_extended(value: u64, bits: u32) -> u8 {
    (((value as u8) << (8 - bits)).cast_signed() >> (8 - bits)).cast_unsigned()
}

/// The real part carries the rule; random numbers have an imaginary part of their own.
fn complex<const PART: usize, const SIZE: usize>(
    numbers: Numbers,
    index: u64,
    digits: u32,
    encode: impl Fn(f64) -> [u8; PART],
) -> [u8; SIZE] {
    let (real, imaginary) = match numbers {
        Numbers::Random(_) => (numbers.float(2 * index, digits), numbers.float(2 * index + 1, digits)),
        _ => (numbers.float(index, digits), 0.0),
    };
    let mut bytes = [0; SIZE];
    bytes[..PART].copy_from_slice(&encode(real));
    bytes[PART..].copy_from_slice(&encode(imaginary));
    bytes
}

/// `f8e8m0fnu` has powers of two only: the rule picks among the eight from 1 up, or from 1/2 down when random.
fn power_of_two(numbers: Numbers, index: u64) -> u8 {
    const ONE: u8 = 127;
    match numbers {
        Numbers::Ones => ONE,
        Numbers::Iota => ONE + (index % 8) as u8,
        Numbers::Random(stream) => ONE - 1 - (stream.word(index) >> 61) as u8,
    }
}

/// The patterns that a rule chooses from in a type of at most a byte.
fn small_floats(numbers: Numbers, format: &SmallFloat) -> Vec<u8> {
    let pattern = |value: f64| format.pattern_of(value).unwrap_or(0);
    match numbers {
        Numbers::Ones => vec![pattern(1.0)],
        Numbers::Iota => (0..format.consecutive_integers()).map(|integer| pattern(integer as f64)).collect(),
        Numbers::Random(_) => {
            let steps = format.steps_of_one();
            (0..steps).map(|step| pattern(step as f64 / steps as f64)).collect()
        }
    }
}

fn small_float(numbers: Numbers, table: &[u8], index: u64) -> u8 {
    let pick = match numbers {
        Numbers::Random(stream) => stream.word(index) >> 32,
        _ => index,
    };
    table[(pick % table.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::super::element::{Value, value};
    use super::*;

    fn values(fill: Fill, dtype: DType, count: usize) -> Vec<Value> {
        let array = HostArray::filled(fill, 0, dtype, &[count]).unwrap();
        array.elements().map(|bytes| value(dtype, bytes)).collect()
    }

    fn real(value: Value) -> f64 {
        match value {
            Value::Bool(value) => f64::from(u8::from(value)),
            Value::Int(value) => value as f64,
            Value::Float(value) | Value::Complex(value, _) => value,
        }
    }

    #[test]
    fn ones_are_one_in_every_type() {
        for dtype in DType::all() {
            let expected = if dtype == DType::S1 { -1.0 } else { 1.0 };
            assert_eq!(real(values(Fill::Ones, dtype, 3)[2]), expected, "{dtype}");
        }
    }

    #[test]
    fn iota_counts_and_wraps() {
        for dtype in DType::all().filter(|&dtype| dtype != DType::F8E8M0FNU) {
            let counted: Vec<f64> = values(Fill::Iota, dtype, 300).into_iter().map(real).collect();
            let modulus = match dtype {
                DType::Pred => 2,
                _ if SmallFloat::of(dtype).is_some() => SmallFloat::of(dtype).unwrap().consecutive_integers(),
                DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::C64 | DType::C128 => {
                    256.max(if dtype == DType::BF16 { 256 } else { 2048 })
                }
                _ => 1 << dtype.bits().min(32),
            };
            let signed = dtype.name().starts_with('s');
            for (index, &got) in counted.iter().enumerate() {
                let wrapped = index as u64 % modulus;
                let expected =
                    if signed && wrapped >= modulus / 2 { wrapped as f64 - modulus as f64 } else { wrapped as f64 };
                assert_eq!(got, expected, "{dtype} at {index}");
            }
        }
    }

    #[test]
    fn random_values_lie_in_their_range_and_vary() {
        for dtype in DType::all() {
            let drawn: Vec<f64> = values(Fill::Random { seed: 7 }, dtype, 500).into_iter().map(real).collect();
            let limit = match dtype.name().as_bytes()[0] {
                b's' | b'u' => 16.0,
                b'p' => 2.0,
                _ => 1.0,
            };
            let lowest = if dtype == DType::S1 { -1.0 } else { 0.0 };
            assert!(drawn.iter().all(|&value| lowest <= value && value < limit), "{dtype}: {drawn:?}");
            assert!(drawn.iter().any(|&value| value != drawn[0]), "{dtype}");
        }
    }

    #[test]
    fn an_element_depends_on_seed_argument_and_index_only() {
        let random = |seed, argument, dims: &[usize]| {
            HostArray::filled(Fill::Random { seed }, argument, DType::F32, dims).unwrap().into_data()
        };
        assert_eq!(random(1, 2, &[4, 6]), random(1, 2, &[24]));
        assert_eq!(random(1, 2, &[24])[..40], random(1, 2, &[10])[..]);
        assert_ne!(random(1, 2, &[24]), random(1, 3, &[24]));
        assert_ne!(random(1, 2, &[24]), random(2, 2, &[24]));
        let fixed = HostArray::filled(Fill::Random { seed: 0 }, 0, DType::F32, &[4]).unwrap();
        insta::assert_snapshot!(fixed, @"[0.33805245 0.26913023 0.27156657 0.48016953]");
    }

    #[test]
    fn fills_are_read_from_text() {
        for (text, fill) in [
            ("zeros", Fill::Zeros),
            ("ones", Fill::Ones),
            ("iota", Fill::Iota),
            ("random", Fill::Random { seed: 0 }),
            ("random:18446744073709551615", Fill::Random { seed: u64::MAX }),
        ] {
            assert_eq!(text.parse::<Fill>().unwrap(), fill);
        }
        for text in ["", "one", "random:", "random:x", "random:-1", "iota:1"] {
            assert!(text.parse::<Fill>().is_err(), "{text}");
        }
        insta::assert_snapshot!("rand".parse::<Fill>().unwrap_err(), @"unknown fill 'rand': write zeros, ones, iota, random or random:SEED with a whole number as seed");
    }
}
