//! Constants: `LiteralProto` from elements and back, for every element type.
//!
//! Inside this module an element is one bit pattern (two for complex types) in a `u64`; only the functions that touch
//! the protobuf fields know how XLA stores each type.

mod float;
mod text;

use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{LiteralProto, ShapeProto, SharedShape};

#[cfg(test)]
mod tests;

pub use text::format_literal;

/// One element of a constant, as HLO text can spell it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// `true` or `false`.
    Bool(bool),
    /// A number without fraction and exponent.
    Int(i128),
    /// Any other number, an infinity, or the default NaN of either sign.
    Float(f64),
    /// A NaN with a payload of its own: the mantissa's bits, never 0.
    NanPayload {
        /// The sign bit.
        negative: bool,
        /// The mantissa in the width of the literal's type.
        payload: u64,
    },
    /// Real and imaginary part.
    Complex(f64, f64),
}

/// An element that its literal cannot hold, or a literal whose parts disagree.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum LiteralError {
    /// The spelling does not belong to the type.
    #[error("{found} is no value of {dtype}: expected {expected}")]
    Kind {
        /// The literal's type.
        dtype: DType,
        /// What stands there.
        found: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// The number is too large or too small.
    #[error("{value} is out of range for {dtype} ({range})")]
    Range {
        /// The literal's type.
        dtype: DType,
        /// The number.
        value: String,
        /// What the type can hold.
        range: String,
    },
    /// The NaN payload does not fit.
    #[error("the NaN payload {payload:#x} does not fit {dtype}, whose largest is {largest:#x}")]
    Payload {
        /// The literal's type.
        dtype: DType,
        /// The payload.
        payload: u64,
        /// The largest payload, 0 if the type has none.
        largest: u64,
    },
    /// The data has another length than the shape asks for.
    #[error("the literal holds {found} elements, its shape {shape} has {expected}")]
    Length {
        /// The shape in text form.
        shape: String,
        /// Elements of the shape.
        expected: u64,
        /// Elements in the data.
        found: u64,
    },
    /// The shape is no array of a known element type, or too large.
    #[error("a literal cannot have the shape {0}")]
    Shape(String),
}

/// Collects the elements of a dense literal in row-major order.
pub struct DenseWriter {
    dtype: DType,
    words: Vec<u64>,
}

impl DenseWriter {
    /// A writer for elements of this type; `len_hint` elements are expected, which reserves a bounded amount only.
    pub fn new(dtype: DType, len_hint: usize) -> DenseWriter {
        DenseWriter { dtype, words: Vec::with_capacity(len_hint.min(1 << 16)) }
    }

    /// Whether the elements are real floating-point numbers.
    pub fn is_of_floats(&self) -> bool {
        self.dtype != DType::Pred && integer_is_signed(self.dtype).is_none() && part_of_complex(self.dtype).is_none()
    }

    /// Elements so far.
    pub fn len(&self) -> usize {
        self.words.len() / words_per_element(self.dtype)
    }

    /// Whether there are no elements yet.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Adds an element, rounded to the literal's type as XLA does.
    ///
    /// # Errors
    /// The spelling does not belong to the type, or the value is out of its range.
    pub fn push(&mut self, value: Scalar) -> Result<(), LiteralError> {
        if let (Some(part), Scalar::Complex(re, im)) = (part_of_complex(self.dtype), value) {
            let words = [encode_part(self.dtype, part, re)?, encode_part(self.dtype, part, im)?];
            self.words.extend(words);
        } else {
            self.words.push(encode(self.dtype, value)?);
        }
        Ok(())
    }

    /// The literal of this shape, its data in the order of the shape's layout.
    ///
    /// # Errors
    /// The shape is no array of the writer's type or has another number of elements.
    pub fn finish(self, shape: impl Into<SharedShape>) -> Result<LiteralProto, LiteralError> {
        let shape = shape.into();
        let elements = shape::num_elements(&shape).filter(|_| shape::dtype(&shape) == Some(self.dtype));
        let expected = elements.ok_or_else(|| LiteralError::Shape(shape::text(&shape)))?;
        if expected != self.len() as u64 {
            return Err(LiteralError::Length { shape: shape::text(&shape), expected, found: self.len() as u64 });
        }
        let words = match physical_order(&shape) {
            Some(order) => {
                let mut words = vec![0; self.words.len()];
                let width = words_per_element(self.dtype);
                for (element, &place) in self.words.chunks(width).zip(&order) {
                    words[place * width..][..width].copy_from_slice(element);
                }
                words
            }
            None => self.words,
        };
        let mut literal = LiteralProto::default();
        store(&mut literal, self.dtype, &words);
        literal.shape = shape.into();
        Ok(literal)
    }
}

/// The row-major literal of an array whose elements are these little-endian bytes, [`DType::size`] for each.
///
/// # Errors
/// The shape has another number of elements, or more than a literal can have.
pub fn from_bytes(dtype: DType, dims: &[i64], bytes: &[u8]) -> Result<LiteralProto, LiteralError> {
    let shape = shape::array(dtype, dims);
    let (_, expected) = dense_shape(&shape)?;
    let found = (bytes.len() / dtype.size()) as u64;
    if expected != found || !bytes.len().is_multiple_of(dtype.size()) {
        return Err(LiteralError::Length { shape: shape::text(&shape), expected, found });
    }
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let size = dtype.size() / words_per_element(dtype);
    let mask = part_of_complex(dtype).map_or(mask(dtype), mask);
    let words: Vec<u64> = bytes.chunks(size).map(|bytes| word(bytes) & mask).collect();
    let mut literal = LiteralProto::default();
    store(&mut literal, dtype, &words);
    literal.shape = shape.into();
    Ok(literal)
}

/// Calls `visit` with each element of an array literal, in row-major order whatever its layout.
///
/// # Errors
/// The literal has no array shape, or its data is not as long as its shape says.
pub fn for_each_element(literal: &LiteralProto, mut visit: impl FnMut(Scalar)) -> Result<(), LiteralError> {
    let (dtype, words) = logical_words(literal)?;
    for element in words.chunks(words_per_element(dtype)) {
        visit(decode(dtype, element));
    }
    Ok(())
}

/// Checks that a literal's data is as long as its shape says.
///
/// # Errors
/// It is not, or the shape is none that a literal can have.
pub fn check_length(literal: &LiteralProto) -> Result<(), LiteralError> {
    if shape::is_tuple(&literal.shape) {
        let (expected, found) = (literal.shape.tuple_shapes.len() as u64, literal.tuple_literals.len() as u64);
        if expected != found {
            return Err(LiteralError::Length { shape: shape::text(&literal.shape), expected, found });
        }
        return literal.tuple_literals.iter().try_for_each(check_length);
    }
    let (dtype, expected) = dense_shape(&literal.shape)?;
    let found = (stored_words(literal, dtype) / words_per_element(dtype)) as u64;
    if expected != found {
        return Err(LiteralError::Length { shape: shape::text(&literal.shape), expected, found });
    }
    Ok(())
}

/// Puts the data of a literal into row-major order.
///
/// # Errors
/// The data is not as long as the shape says.
pub fn set_row_major(literal: &mut LiteralProto) -> Result<(), LiteralError> {
    literal.tuple_literals.iter_mut().try_for_each(set_row_major)?;
    if !shape::is_tuple(&literal.shape) && physical_order(&literal.shape).is_some() {
        let (dtype, words) = logical_words(literal)?;
        *literal = LiteralProto { shape: std::mem::take(&mut literal.shape), ..LiteralProto::default() };
        store(literal, dtype, &words);
    }
    shape::set_row_major(literal.shape.get_or_insert_default());
    Ok(())
}

fn dense_shape(shape: &ShapeProto) -> Result<(DType, u64), LiteralError> {
    let elements = shape::dtype(shape).zip(shape::num_elements(shape));
    elements.ok_or_else(|| LiteralError::Shape(shape::text(shape)))
}

/// The patterns of an array literal in row-major order.
fn logical_words(literal: &LiteralProto) -> Result<(DType, Vec<u64>), LiteralError> {
    check_length(literal)?;
    let shape = &literal.shape;
    let (dtype, _) = dense_shape(shape)?;
    let words = load(literal, dtype);
    let width = words_per_element(dtype);
    let Some(order) = physical_order(shape) else { return Ok((dtype, words)) };
    let logical = order.iter().flat_map(|&place| &words[place * width..][..width]).copied().collect();
    Ok((dtype, logical))
}

/// For each element in row-major order its place in the data; `None` if the layout is row-major.
///
/// The element count of the shape must be known to be small enough to index memory.
fn physical_order(shape: &ShapeProto) -> Option<Vec<usize>> {
    let minor_to_major = &shape.layout.minor_to_major;
    let rank = shape.dimensions.len();
    let row_major = minor_to_major.iter().rev().copied().eq(0..rank as i64);
    if row_major || !shape::is_permutation(minor_to_major, rank) {
        return None;
    }
    let dims: Vec<usize> = shape.dimensions.iter().map(|&dim| dim as usize).collect();
    let mut strides = vec![0; rank];
    let mut stride = 1;
    for &dim in minor_to_major {
        strides[dim as usize] = stride;
        stride *= dims[dim as usize];
    }
    let mut index = vec![0; rank];
    let mut place = 0;
    let mut order = Vec::with_capacity(stride);
    for _ in 0..stride {
        order.push(place);
        for dim in (0..rank).rev() {
            index[dim] += 1;
            place += strides[dim];
            if index[dim] < dims[dim] {
                break;
            }
            place -= strides[dim] * dims[dim];
            index[dim] = 0;
        }
    }
    Some(order)
}

fn words_per_element(dtype: DType) -> usize {
    if part_of_complex(dtype).is_some() { 2 } else { 1 }
}

fn part_of_complex(dtype: DType) -> Option<DType> {
    match dtype {
        DType::C64 => Some(DType::F32),
        DType::C128 => Some(DType::F64),
        _ => None,
    }
}

/// Whether the type is an integer, and whether it has a sign.
fn integer_is_signed(dtype: DType) -> Option<bool> {
    match dtype {
        DType::S1 | DType::S2 | DType::S4 | DType::S8 | DType::S16 | DType::S32 | DType::S64 => Some(true),
        DType::U1 | DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64 => Some(false),
        _ => None,
    }
}

fn integer_range(dtype: DType, signed: bool) -> (i128, i128) {
    let bits = dtype.bits();
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn encode(dtype: DType, value: Scalar) -> Result<u64, LiteralError> {
    let kind = |found, expected| Err(LiteralError::Kind { dtype, found, expected });
    if dtype == DType::Pred {
        return match value {
            Scalar::Bool(value) => Ok(u64::from(value)),
            Scalar::Int(value) => Ok(u64::from(value != 0)),
            _ => kind(describe(value), "true, false, 1 or 0"),
        };
    }
    if part_of_complex(dtype).is_some() {
        return kind(describe(value), "a complex number such as (1, -2)");
    }
    if let Some(signed) = integer_is_signed(dtype) {
        let Scalar::Int(value) = value else { return kind(describe(value), "an integer") };
        let (low, high) = integer_range(dtype, signed);
        // XLA reads the 64-bit types through int64 and so takes either spelling of a pattern.
        let wraps = dtype.bits() == 64 && (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value);
        if !wraps && !(low..=high).contains(&value) {
            return Err(LiteralError::Range { dtype, value: value.to_string(), range: format!("{low} to {high}") });
        }
        return Ok(value as u64 & mask(dtype));
    }
    match value {
        Scalar::Int(value) => encode_float(dtype, value as f64),
        Scalar::Float(value) => encode_float(dtype, value),
        Scalar::NanPayload { negative, payload } => encode_nan(dtype, negative, payload),
        Scalar::Bool(_) | Scalar::Complex(..) => kind(describe(value), "a number"),
    }
}

fn encode_float(dtype: DType, value: f64) -> Result<u64, LiteralError> {
    float::encode(dtype, value).ok_or_else(|| {
        let range = match dtype {
            DType::F8E8M0FNU => "powers of two from 2^-127 to 2^127".to_owned(),
            _ => format!("at most {:?} in magnitude", float::max(dtype)),
        };
        LiteralError::Range { dtype, value: format!("{value:?}"), range }
    })
}

fn encode_nan(dtype: DType, negative: bool, payload: u64) -> Result<u64, LiteralError> {
    let largest = float::nan_payload_mask(dtype);
    if payload == 0 || payload > largest {
        return Err(LiteralError::Payload { dtype, payload, largest });
    }
    Ok(float::nan_with_payload(dtype, negative, payload))
}

/// One part of a complex number. XLA carries a payload in the mantissa of the `f64`, and does not round towards the
/// largest value.
fn encode_part(dtype: DType, part: DType, value: f64) -> Result<u64, LiteralError> {
    let payload = value.to_bits() & float::nan_payload_mask(DType::F64);
    if value.is_nan() && payload != float::default_nan_payload(DType::F64) {
        return encode_nan(part, value.is_sign_negative(), payload);
    }
    if value.is_finite() && value.abs() > float::max(part) {
        let range = format!("at most {:?} in each part", float::max(part));
        return Err(LiteralError::Range { dtype, value: format!("{value:?}"), range });
    }
    encode_float(part, value)
}

fn describe(value: Scalar) -> &'static str {
    match value {
        Scalar::Bool(_) => "a truth value",
        Scalar::Int(_) => "an integer",
        Scalar::Float(value) if value.is_nan() => "nan",
        Scalar::Float(value) if value.is_infinite() => "inf",
        Scalar::Float(_) => "a fraction",
        Scalar::NanPayload { .. } => "nan",
        Scalar::Complex(..) => "a complex number",
    }
}

fn mask(dtype: DType) -> u64 {
    u64::MAX >> (64 - dtype.bits())
}

/// The element of these patterns: one, or two for complex types.
fn decode(dtype: DType, words: &[u64]) -> Scalar {
    if let (Some(part), [re, im]) = (part_of_complex(dtype), words) {
        return Scalar::Complex(decode_part(part, *re), decode_part(part, *im));
    }
    let word = words[0];
    if dtype == DType::Pred {
        return Scalar::Bool(word != 0);
    }
    if let Some(signed) = integer_is_signed(dtype) {
        let shift = 64 - dtype.bits();
        let value = word << shift;
        return Scalar::Int(if signed { i128::from(value as i64 >> shift) } else { i128::from(value >> shift) });
    }
    match float::nan_parts(dtype, word) {
        Some((negative, payload)) if payload != float::default_nan_payload(dtype) => {
            Scalar::NanPayload { negative, payload }
        }
        _ => Scalar::Float(float::decode(dtype, word)),
    }
}

fn decode_part(part: DType, word: u64) -> f64 {
    match float::nan_parts(part, word) {
        Some((negative, payload)) if payload != float::default_nan_payload(part) => {
            f64::from_bits(float::nan_with_payload(DType::F64, negative, payload))
        }
        _ => float::decode(part, word),
    }
}

/// The types whose elements stand as little-endian bytes in a field of their own.
macro_rules! byte_fields {
    ($($dtype:ident $field:ident),* $(,)?) => {
        fn bytes(literal: &LiteralProto, dtype: DType) -> Option<&Vec<u8>> {
            match dtype {
                $(DType::$dtype => Some(&literal.$field),)*
                _ => None,
            }
        }

        fn bytes_mut(literal: &mut LiteralProto, dtype: DType) -> Option<&mut Vec<u8>> {
            match dtype {
                $(DType::$dtype => Some(&mut literal.$field),)*
                _ => None,
            }
        }
    };
}

byte_fields! {
    S1 s1s, S2 s2s, S4 s4s, S8 s8s, S16 s16s, U1 u1s, U2 u2s, U4 u4s, U8 u8s, U16 u16s,
    F4E2M1FN f4e2m1fns, F6E2M3FN f6e2m3fns, F6E3M2FN f6e3m2fns, F8E3M4 f8e3m4s, F8E4M3 f8e4m3s,
    F8E4M3B11FNUZ f8e4m3b11fnuzs, F8E4M3FN f8e4m3fns, F8E4M3FNUZ f8e4m3fnuzs, F8E5M2 f8e5m2s,
    F8E5M2FNUZ f8e5m2fnuzs, F8E8M0FNU f8e8m0fnus, F16 f16s, BF16 bf16s,
}

fn store(literal: &mut LiteralProto, dtype: DType, words: &[u64]) {
    if let Some(bytes) = bytes_mut(literal, dtype) {
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes().into_iter().take(dtype.size())));
        return;
    }
    let words = words.iter().copied();
    match dtype {
        DType::Pred => literal.preds = words.map(|word| word != 0).collect(),
        DType::S32 => literal.s32s = words.map(|word| word as i32).collect(),
        DType::S64 => literal.s64s = words.map(|word| word as i64).collect(),
        DType::U32 => literal.u32s = words.map(|word| word as u32).collect(),
        DType::U64 => literal.u64s = words.collect(),
        DType::F32 => literal.f32s = words.map(|word| f32::from_bits(word as u32)).collect(),
        DType::F64 => literal.f64s = words.map(f64::from_bits).collect(),
        DType::C64 => literal.c64s = words.map(|word| f32::from_bits(word as u32)).collect(),
        DType::C128 => literal.c128s = words.map(f64::from_bits).collect(),
        _ => unreachable!("{dtype} stands in a byte field"),
    }
}

fn load(literal: &LiteralProto, dtype: DType) -> Vec<u64> {
    if let Some(bytes) = bytes(literal, dtype) {
        let element = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        return bytes.chunks(dtype.size()).map(element).collect();
    }
    match dtype {
        DType::Pred => literal.preds.iter().map(|&value| u64::from(value)).collect(),
        DType::S32 => literal.s32s.iter().map(|&value| u64::from(value as u32)).collect(),
        DType::S64 => literal.s64s.iter().map(|&value| value as u64).collect(),
        DType::U32 => literal.u32s.iter().map(|&value| u64::from(value)).collect(),
        DType::U64 => literal.u64s.clone(),
        DType::F32 => literal.f32s.iter().map(|value| u64::from(value.to_bits())).collect(),
        DType::F64 => literal.f64s.iter().map(|value| value.to_bits()).collect(),
        DType::C64 => literal.c64s.iter().map(|value| u64::from(value.to_bits())).collect(),
        DType::C128 => literal.c128s.iter().map(|value| value.to_bits()).collect(),
        _ => unreachable!("{dtype} stands in a byte field"),
    }
}

/// How many patterns [`load`] would give.
fn stored_words(literal: &LiteralProto, dtype: DType) -> usize {
    match dtype {
        DType::Pred => literal.preds.len(),
        DType::S32 => literal.s32s.len(),
        DType::S64 => literal.s64s.len(),
        DType::U32 => literal.u32s.len(),
        DType::U64 => literal.u64s.len(),
        DType::F32 => literal.f32s.len(),
        DType::F64 => literal.f64s.len(),
        DType::C64 => literal.c64s.len(),
        DType::C128 => literal.c128s.len(),
        _ => bytes(literal, dtype).map_or(0, |bytes| bytes.len().div_ceil(dtype.size())),
    }
}
