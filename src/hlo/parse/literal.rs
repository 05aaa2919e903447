//! Constants.

use half::{bf16, f16};

use super::Parser;
use super::cursor::fail;
use super::error::Result;
use crate::dtype::DType;
use crate::hlo::literal::{DenseWriter, Scalar};
use crate::hlo::shape::{dtype, is_tuple, num_elements, text};
use crate::proto::{LiteralProto, ShapeProto, SharedShape};

/// Constants whose values the text leaves out, and the filler they get.
#[derive(Default)]
pub(super) struct Elided {
    /// The constants' names in the module.
    pub(super) names: Vec<String>,
    /// Whether the last literal was one.
    pub(super) last: bool,
    elements: u64,
    counter: u32,
}

/// Elements of filler that a text may ask for, each of which takes up to 16 bytes: a short text cannot take all memory.
const MAX_FILLER: u64 = if cfg!(fuzzing) { 1 << 16 } else { 8 << 20 };

impl<'a> Parser<'a> {
    /// A literal of this shape: `1.5`, `{ {1, 2}, {3, 4} }`, `(1, {2, 3})`.
    pub(super) fn literal(&mut self, shape: &SharedShape) -> Result<LiteralProto> {
        if !is_tuple(shape) {
            return self.dense_literal(shape);
        }
        let start = self.pos();
        let mut shapes = shape.tuple_shapes.iter();
        let tuple_literals = self.nested(|parser| {
            parser.list(b'(', b')', "tuple literal", |parser| match shapes.next() {
                Some(shape) => parser.literal(&shape.clone().into()),
                None => Err(fail(parser.pos(), "the tuple literal has more elements than its shape")),
            })
        })?;
        if shapes.next().is_some() {
            return Err(fail(start, "the tuple literal has fewer elements than its shape"));
        }
        Ok(LiteralProto { shape: shape.clone().into(), tuple_literals, ..Default::default() })
    }

    /// A literal with its shape in front, as in a custom call's `literal=s32[2]{0} {1, 2}`.
    pub(super) fn literal_with_shape(&mut self) -> Result<LiteralProto> {
        if !self.at(b'(') {
            let shape = self.shared_shape()?;
            return self.literal(&shape);
        }
        let tuple_literals: Vec<LiteralProto> =
            self.nested(|parser| parser.list(b'(', b')', "tuple literal", Parser::literal_with_shape))?;
        let shape = crate::hlo::shape::tuple(tuple_literals.iter().map(|literal| (**literal.shape).clone()).collect());
        Ok(LiteralProto { shape: shape.into(), tuple_literals, ..Default::default() })
    }

    fn dense_literal(&mut self, shape: &SharedShape) -> Result<LiteralProto> {
        let start = self.pos();
        let element_type = dtype(shape).ok_or_else(|| fail(start, format!("{} has no values", text(shape))))?;
        let hint = num_elements(shape).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let mut writer = DenseWriter::new(element_type, hint);
        let dims = &shape.dimensions;
        if dims.is_empty() {
            self.element(&mut writer)?;
        } else if !self.at(b'{') {
            // As XLA has it, a lone value is the first one and all others are zero.
            let count = self.count_of_filler(shape)?;
            self.element(&mut writer)?;
            let zero = if matches!(element_type, DType::C64 | DType::C128) {
                Scalar::Complex(0.0, 0.0)
            } else {
                Scalar::Int(0)
            };
            for _ in 1..count {
                writer.push(zero).map_err(|error| fail(start, error.to_string()))?;
            }
        } else if self.peek_second() == Some(b'.') {
            self.elided_elements(shape, element_type, &mut writer)?;
        } else {
            self.dense_elements(dims, &mut writer)?;
        }
        writer.finish(shape.clone()).map_err(|error| fail(start, error.to_string()))
    }

    /// Nested braces, one level for each dimension. Counting them needs no recursion.
    fn dense_elements(&mut self, dims: &[i64], writer: &mut DenseWriter) -> Result<()> {
        let mut seen = vec![0i64; dims.len()];
        let mut level = 0;
        loop {
            let start = self.pos();
            if self.at(b'}') {
                if level == 0 {
                    return Err(self.expected("a value"));
                }
                level -= 1;
                if seen[level] != dims[level] {
                    let message =
                        format!("expected {} elements in dimension {level}, found {}", dims[level], seen[level]);
                    return Err(fail(start, message));
                }
                seen[level] = 0;
                self.eat(b'}');
                if level == 0 {
                    return Ok(());
                }
            } else {
                let opens = self.at(b'{');
                if opens == (level == dims.len()) {
                    let message = format!("the shape has {} dimensions, the braces do not", dims.len());
                    return Err(fail(start, message));
                }
                if level > 0 {
                    seen[level - 1] += 1;
                    if seen[level - 1] > dims[level - 1] {
                        let message = format!("expected only {} elements in dimension {}", dims[level - 1], level - 1);
                        return Err(fail(start, message));
                    }
                }
                if opens {
                    self.eat(b'{');
                    level += 1;
                    continue;
                }
                self.element(writer)?;
            }
            self.eat(b',');
        }
    }

    fn element(&mut self, writer: &mut DenseWriter) -> Result<()> {
        let start = self.pos();
        let value = match self.peek() {
            Some(b'(') => {
                self.eat(b'(');
                let re = self.number()?;
                self.expect(b',', "after the real part")?;
                let im = self.number()?;
                self.expect(b')', "after the imaginary part")?;
                Scalar::Complex(re, im)
            }
            Some(b't' | b'f') => Scalar::Bool(self.boolean()?),
            _ => {
                let negative = self.at(b'-');
                match self.scalar()? {
                    // XLA prints negative zeros as "-0", though its own parser takes that for the integer.
                    Scalar::Int(0) if negative && writer.is_of_floats() => Scalar::Float(-0.0),
                    value => value,
                }
            }
        };
        writer.push(value).map_err(|error| fail(start, error.to_string()))
    }

    /// A number, an infinity or a NaN.
    fn scalar(&mut self) -> Result<Scalar> {
        if let Some(value) = self.eat_short_integer() {
            return Ok(Scalar::Int(value.into()));
        }
        let number = self.peek_number();
        let signless = number.strip_prefix('-').unwrap_or(number);
        if signless.is_empty() {
            let negative = self.eat(b'-');
            if self.eat_word("inf") {
                return Ok(Scalar::Float(if negative { f64::NEG_INFINITY } else { f64::INFINITY }));
            }
            if !self.eat_word("nan") {
                return Err(self.expected("a value"));
            }
            if self.at(b'(') {
                return Ok(Scalar::NanPayload { negative, payload: self.nan_payload()? });
            }
            return Ok(Scalar::Float(if negative { -f64::NAN.abs() } else { f64::NAN.abs() }));
        }
        if let (19..=20, Ok(value)) = (signless.len(), number.parse()) {
            self.run("a number", |byte| byte.is_ascii_digit() || byte == b'-')?;
            return Ok(Scalar::Int(value));
        }
        Ok(Scalar::Float(self.float(number)?))
    }

    /// A floating-point number where no payload can be kept.
    pub(super) fn number(&mut self) -> Result<f64> {
        let start = self.pos();
        let negative = self.at(b'-');
        match self.scalar()? {
            Scalar::Int(0) if negative => Ok(-0.0),
            Scalar::Int(value) => Ok(value as f64),
            Scalar::Float(value) => Ok(value),
            _ => Err(fail(start, "expected a number without a payload")),
        }
    }

    /// `(0x1ff)`
    fn nan_payload(&mut self) -> Result<u64> {
        self.expect(b'(', "before the NaN payload")?;
        let start = self.pos();
        let run = self.run("a payload in hexadecimal, such as 0x1", |byte| byte.is_ascii_alphanumeric())?;
        let digits = run.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let payload = digits.filter(|&payload| payload > 0);
        let payload = payload.ok_or_else(|| fail(start, "expected a payload in hexadecimal, such as 0x1"))?;
        self.expect(b')', "after the NaN payload")?;
        Ok(payload)
    }

    /// `{...}`. XLA fills such constants with the bits of a running number, and so do we.
    fn elided_elements(&mut self, shape: &ShapeProto, element_type: DType, writer: &mut DenseWriter) -> Result<()> {
        let start = self.pos();
        self.expect(b'{', "before the dots")?;
        if !self.eat_str("...") {
            return Err(self.expected("'...'"));
        }
        self.expect(b'}', "after the dots")?;
        self.elided.last = true;
        let count = self.count_of_filler(shape)?;
        let mut bits = FillerBits { counter: &mut self.elided.counter, word: 0, left: 0 };
        for _ in 0..count {
            let value = filler(element_type, &mut bits);
            writer.push(value).map_err(|error| fail(start, error.to_string()))?;
        }
        Ok(())
    }

    /// The number of elements of a shape whose values do not stand in the text.
    fn count_of_filler(&mut self, shape: &ShapeProto) -> Result<u64> {
        let left = MAX_FILLER - self.elided.elements;
        match num_elements(shape).filter(|count| *count <= left) {
            Some(count) => {
                self.elided.elements += count;
                Ok(count)
            }
            None => Err(fail(self.pos(), "the values of this constant are left out and it is too large to fill")),
        }
    }
}

/// Consecutive 32-bit numbers as a stream of bits.
struct FillerBits<'c> {
    counter: &'c mut u32,
    word: u32,
    left: usize,
}

impl FillerBits<'_> {
    fn take(&mut self, bits: usize) -> u64 {
        if bits > 32 {
            return self.take(32) | self.take(32) << 32;
        }
        if self.left == 0 {
            self.word = *self.counter;
            self.left = 32;
            *self.counter = self.counter.wrapping_add(1);
        }
        let value = u64::from(self.word) & (u64::MAX >> (64 - bits));
        self.word = self.word.checked_shr(bits as u32).unwrap_or(0);
        self.left -= bits;
        value
    }
}

fn filler(element_type: DType, bits: &mut FillerBits) -> Scalar {
    let mut float32 = || f64::from(f32::from_bits(bits.take(32) as u32));
    match element_type {
        DType::Pred => Scalar::Bool(bits.take(8) & 1 == 1),
        DType::F32 => Scalar::Float(float32()),
        DType::C64 => Scalar::Complex(float32(), float32()),
        DType::F64 => Scalar::Float(f64::from_bits(bits.take(64))),
        DType::C128 => Scalar::Complex(f64::from_bits(bits.take(64)), f64::from_bits(bits.take(64))),
        DType::F16 => Scalar::Float(f16::from_bits(bits.take(16) as u16).to_f64()),
        DType::BF16 => Scalar::Float(bf16::from_bits(bits.take(16) as u16).to_f64()),
        DType::S64 => Scalar::Int(bits.take(64).cast_signed().into()),
        DType::S32 => Scalar::Int((bits.take(32) as i32).into()),
        DType::S16 => Scalar::Int((bits.take(16) as i16).into()),
        DType::S8 => Scalar::Int((bits.take(8) as i8).into()),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => Scalar::Int(bits.take(element_type.bits()).into()),
        _ => Scalar::Int(0),
    }
}
