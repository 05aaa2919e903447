//! Values that are no operations on others: numbers, arrays, counters.

use super::op::axis_of;
use super::{Builder, Op, Operand};
use crate::dtype::DType;
use crate::hlo::literal::{self, DenseWriter, LiteralError, Scalar};
use crate::hlo::shape;
use crate::host_array::HostArray;
use crate::proto::{HloInstructionCommon, HloInstructionProto, LiteralProto};

impl Builder {
    /// A scalar of this type. It is an error if the type cannot hold the number: a fraction as an integer, 300 as `u8`.
    #[track_caller]
    pub fn scalar<'b>(&'b self, dtype: DType, number: impl Into<Operand<'b>>) -> Op<'b> {
        match number.into() {
            Operand::Op(op) => op.convert(dtype),
            Operand::Number(number) => match scalar_literal(dtype, number) {
                Ok(literal) => self.literal(literal),
                Err(error) => self.fail("constant", error),
            },
        }
    }

    /// An array of this shape, a number in all its elements; see [`Builder::scalar`].
    #[track_caller]
    pub fn full<'b>(&'b self, dtype: DType, dims: &[i64], number: impl Into<Operand<'b>>) -> Op<'b> {
        self.scalar(dtype, number).broadcast_to(dims)
    }

    /// An array of zeros.
    #[track_caller]
    pub fn zeros(&self, dtype: DType, dims: &[i64]) -> Op<'_> {
        self.full(dtype, dims, zero_of(dtype))
    }

    /// An array of ones.
    #[track_caller]
    pub fn ones(&self, dtype: DType, dims: &[i64]) -> Op<'_> {
        self.full(dtype, dims, if dtype == DType::Pred { Operand::from(true) } else { 1.into() })
    }

    /// A constant array, which becomes part of the program. Large ones are better parameters.
    #[track_caller]
    pub fn constant(&self, array: &HostArray) -> Op<'_> {
        match literal::from_bytes(array.dtype(), &array.dims_i64(), array.data()) {
            Ok(literal) => self.literal(literal),
            Err(error) => self.fail("constant", error),
        }
    }

    /// An array in which each element is its index along `axis`.
    #[track_caller]
    pub fn iota(&self, dtype: DType, dims: &[i64], axis: i64) -> Op<'_> {
        match axis_of(axis, dims.len()) {
            Ok(axis) => {
                let instruction = HloInstructionProto::from(HloInstructionCommon {
                    opcode: "iota".into(),
                    shape: shape::array(dtype, dims).into(),
                    dimensions: vec![axis as i64],
                    ..Default::default()
                });
                self.push(instruction, &[])
            }
            Err(message) => self.fail("iota", message),
        }
    }

    /// The integers `0..size`.
    #[track_caller]
    pub fn arange(&self, dtype: DType, size: i64) -> Op<'_> {
        self.iota(dtype, &[size], 0)
    }

    #[track_caller]
    fn literal(&self, literal: LiteralProto) -> Op<'_> {
        let instruction = HloInstructionProto::from(HloInstructionCommon {
            opcode: "constant".into(),
            shape: Some((*literal.shape).clone()).into(),
            literal: Some(literal).into(),
            ..Default::default()
        });
        self.push(instruction, &[])
    }
}

impl<'b> Op<'b> {
    /// An array of the value's shape and type, a number in all its elements.
    #[track_caller]
    pub fn full_like(self, number: impl Into<Operand<'b>>) -> Op<'b> {
        match self.array("full_like") {
            Some((dtype, dims)) => self.builder.full(dtype, &dims, number),
            None => self.builder.failed(),
        }
    }

    /// An array of zeros of the value's shape and type.
    #[track_caller]
    pub fn zeros_like(self) -> Op<'b> {
        self.full_like(zero_of(self.dtype()))
    }

    /// An array of ones of the value's shape and type.
    #[track_caller]
    pub fn ones_like(self) -> Op<'b> {
        self.full_like(1)
    }
}

fn zero_of<'b>(dtype: DType) -> Operand<'b> {
    if dtype == DType::Pred { false.into() } else { 0.into() }
}

/// The literal of an `s32`.
pub(super) fn integer(number: i32) -> Result<LiteralProto, LiteralError> {
    scalar_literal(DType::S32, Scalar::Int(number.into()))
}

/// The literal of a zero of this type.
pub(super) fn zero(dtype: DType) -> Result<LiteralProto, LiteralError> {
    scalar_literal(dtype, if dtype == DType::Pred { Scalar::Bool(false) } else { Scalar::Int(0) })
}

fn scalar_literal(dtype: DType, number: Scalar) -> Result<LiteralProto, LiteralError> {
    let mut writer = DenseWriter::new(dtype, 1);
    writer.push(match (dtype, number) {
        (DType::C64 | DType::C128, Scalar::Int(number)) => Scalar::Complex(number as f64, 0.0),
        (DType::C64 | DType::C128, Scalar::Float(number)) => Scalar::Complex(number, 0.0),
        (_, number) => number,
    })?;
    writer.finish(shape::scalar(dtype))
}
