//! Handles of the values of a program.

use std::fmt;

use super::Builder;
use super::graph::OpId;
use crate::dtype::DType;
use crate::hlo::literal::Scalar;
use crate::hlo::shape;
use crate::proto::SharedShape;

/// A value of a program that is being built: an array of known shape, or a tuple of arrays.
///
/// Handles are small, are copied freely and take part in formulas with `+`, `-`, `*`, `/`, `%`, `&`, `|`, `^` and `!`.
#[derive(Clone, Copy)]
pub struct Op<'b> {
    pub(super) builder: &'b Builder,
    /// `None` for what could not be built.
    pub(super) id: Option<OpId>,
}

/// An operand: a value of the program, or a number that takes the type of the operand beside it.
#[derive(Clone, Copy)]
pub enum Operand<'b> {
    /// A value.
    Op(Op<'b>),
    /// A number.
    Number(Scalar),
}

impl<'b> Op<'b> {
    /// The builder that the value belongs to.
    pub fn builder(self) -> &'b Builder {
        self.builder
    }

    /// The sizes of the dimensions. After an error there are none, as nothing is known of the value.
    pub fn dims(self) -> Vec<i64> {
        self.shape().map(|shape| shape.dimensions.clone()).unwrap_or_default()
    }

    /// The size of a dimension, which counts from the end if it is negative. It is an error if there is no such dimension,
    /// and the size is then 1.
    #[track_caller]
    pub fn dim(self, axis: i64) -> i64 {
        let Some(shape) = self.shape() else { return 1 };
        match axis_of(axis, shape.dimensions.len()) {
            Ok(axis) => shape.dimensions[axis],
            Err(message) => {
                self.builder.fail("dim", message);
                1
            }
        }
    }

    /// The number of dimensions.
    pub fn rank(self) -> usize {
        self.dims().len()
    }

    /// The number of elements.
    pub fn num_elements(self) -> i64 {
        self.dims().iter().fold(1, |count, &dim| count.saturating_mul(dim))
    }

    /// The element type; that of `f32` after an error and for a tuple.
    pub fn dtype(self) -> DType {
        self.shape().and_then(|shape| shape::dtype(&shape)).unwrap_or(DType::F32)
    }

    /// The shape; `None` after an error.
    pub(super) fn shape(self) -> Option<SharedShape> {
        let id = self.id?;
        Some((*self.builder.graph().instruction(id).shape).clone())
    }

    /// Element type and dimensions of an array; `None` after an error, and for a tuple, which is one.
    #[track_caller]
    pub(super) fn array(self, what: &str) -> Option<(DType, Vec<i64>)> {
        let shape = self.shape()?;
        let Some(dtype) = shape::dtype(&shape) else {
            self.builder.fail(what, format!("{} is no array", shape::text_without_layout(&shape)));
            return None;
        };
        Some((dtype, shape.dimensions.clone()))
    }

    /// As in `f32[8,4]`, for messages.
    pub(super) fn text(self) -> String {
        self.shape().map_or("nothing".to_owned(), |shape| shape::text_without_layout(&shape))
    }

    /// Axes as indices below the rank, each once; `None` after an error.
    #[track_caller]
    pub(super) fn axes(self, what: &str, axes: &[i64]) -> Option<Vec<usize>> {
        let rank = self.array(what)?.1.len();
        let mut found = Vec::with_capacity(axes.len());
        for &axis in axes {
            match axis_of(axis, rank) {
                Ok(axis) if found.contains(&axis) => {
                    self.builder.fail(what, format!("axis {axis} is named twice"));
                    return None;
                }
                Ok(axis) => found.push(axis),
                Err(message) => {
                    self.builder.fail(what, format!("{message} of {}", self.text()));
                    return None;
                }
            }
        }
        Some(found)
    }

    /// One axis, as [`Op::axes`].
    #[track_caller]
    pub(super) fn axis(self, what: &str, axis: i64) -> Option<usize> {
        self.axes(what, &[axis])?.first().copied()
    }
}

/// An axis as an index below the rank; negative ones count from the end.
pub(super) fn axis_of(axis: i64, rank: usize) -> Result<usize, String> {
    let from_start = if axis < 0 { axis + rank as i64 } else { axis };
    let index = usize::try_from(from_start).ok().filter(|&index| index < rank);
    index.ok_or_else(|| format!("axis {axis} is out of bounds for the {rank} dimensions"))
}

/// The shape, and the instruction's name.
impl fmt::Debug for Op<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            Some(id) => write!(f, "{}: {}", self.builder.graph().instruction(id).name, self.text()),
            None => f.write_str("failed"),
        }
    }
}

impl<'b> From<Op<'b>> for Operand<'b> {
    fn from(op: Op<'b>) -> Operand<'b> {
        Operand::Op(op)
    }
}

macro_rules! numbers {
    ($($number:ty: $kind:ident),*) => {
        $(impl From<$number> for Operand<'_> {
            fn from(number: $number) -> Self {
                Operand::Number(Scalar::$kind(number.into()))
            }
        })*
    };
}

numbers!(bool: Bool, i32: Int, i64: Int, u32: Int, u64: Int, f32: Float, f64: Float);
