//! Sums and other reductions.

use std::panic::Location;

use super::graph::{OpId, Scope};
use super::region::Region;
use super::{Builder, Op, Operand};
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{
    HloInstructionCommon, HloInstructionDetails, HloInstructionProto, SharedShape, Window, WindowDimension,
};

impl Builder {
    /// Builds a computation of its own, whose result is what `body` makes of its arguments; `None` if that fails.
    #[track_caller]
    pub(super) fn function<'b>(
        &'b self,
        name: &str,
        arguments: &[impl Into<SharedShape> + Clone],
        region: Option<Region>,
        body: impl FnOnce(&[Op<'b>]) -> Op<'b>,
    ) -> Option<u32> {
        let location = Location::caller();
        let computation = self.graph().open(name, Scope::Function, region);
        let mut handles = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let added = self.graph().argument(argument.clone(), location);
            handles.push(self.handle(name, added, location));
        }
        let root = self.import_result(name, body(&handles), location);
        self.graph().close(computation, root);
        root.map(|_| computation)
    }

    /// The result of a computation that is being built, as a value of it.
    pub(super) fn import_result(&self, name: &str, root: Op<'_>, location: &'static Location<'static>) -> Option<OpId> {
        if !std::ptr::eq(root.builder, self) {
            self.graph().fail(location, format!("{name}: the result belongs to another builder"));
            return None;
        }
        let imported = self.graph().import_here(root.id?, location);
        self.handle(name, imported, location).id
    }

    /// The computation that applies an operation to two scalars; there is one for each operation and type.
    #[track_caller]
    pub(super) fn reducer(&self, opcode: &str, dtype: DType) -> Option<u32> {
        let key = (opcode.to_owned(), dtype.primitive_type());
        let known = self.graph().reducers.get(&key).copied();
        if known.is_some() {
            return known;
        }
        let scalars = [shape::scalar(dtype), shape::scalar(dtype)];
        let made = self.function(opcode, &scalars, None, |pair| pair[0].binary(opcode, pair[1]))?;
        self.graph().reducers.insert(key, made);
        Some(made)
    }
}

impl<'b> Op<'b> {
    /// The axes, or all of them if none are named, as HLO's dimensions.
    #[track_caller]
    fn reduced_axes(self, what: &str, axes: &[i64]) -> Option<Vec<i64>> {
        if axes.is_empty() {
            return Some((0..self.array(what)?.1.len() as i64).collect());
        }
        Some(self.axes(what, axes)?.into_iter().map(|axis| axis as i64).collect())
    }

    #[track_caller]
    fn reduce_by(self, opcode: &str, init: Operand<'b>, axes: &[i64]) -> Op<'b> {
        let (Some((dtype, _)), Some(axes)) = (self.array("reduce"), self.reduced_axes("reduce", axes)) else {
            return self.builder.failed();
        };
        let Some(reducer) = self.builder.reducer(opcode, dtype) else { return self.builder.failed() };
        let init = self.builder.scalar(dtype, init);
        let reduce = HloInstructionProto::from(HloInstructionCommon {
            opcode: "reduce".into(),
            dimensions: axes,
            ..Default::default()
        });
        self.builder.push_calling(reduce, &[self, init], &[reducer])
    }

    /// The sum over these axes, which go; over all if none are named. Types narrower than `f32` are summed in `f32`.
    #[track_caller]
    pub fn sum(self, axes: &[i64]) -> Op<'b> {
        match self.dtype() {
            narrow @ (DType::F16 | DType::BF16) => self.convert(DType::F32).sum(axes).convert(narrow),
            _ => self.reduce_by("add", 0.into(), axes),
        }
    }

    /// The product over these axes, which go; over all if none are named.
    #[track_caller]
    pub fn product(self, axes: &[i64]) -> Op<'b> {
        self.reduce_by("multiply", 1.into(), axes)
    }

    /// The largest element over these axes, which go; over all if none are named.
    #[track_caller]
    pub fn reduce_max(self, axes: &[i64]) -> Op<'b> {
        self.reduce_by("maximum", limit(self.dtype(), false), axes)
    }

    /// The smallest element over these axes, which go; over all if none are named.
    #[track_caller]
    pub fn reduce_min(self, axes: &[i64]) -> Op<'b> {
        self.reduce_by("minimum", limit(self.dtype(), true), axes)
    }

    /// Whether an element over these axes, which go, is true; over all if none are named.
    #[track_caller]
    pub fn any(self, axes: &[i64]) -> Op<'b> {
        self.reduce_by("or", false.into(), axes)
    }

    /// Whether all elements over these axes, which go, are true; over all if none are named.
    #[track_caller]
    pub fn all(self, axes: &[i64]) -> Op<'b> {
        self.reduce_by("and", true.into(), axes)
    }

    /// The mean over these axes, which go; over all if none are named. The elements are floats.
    #[track_caller]
    pub fn mean(self, axes: &[i64]) -> Op<'b> {
        let (Some((dtype, dims)), Some(axes)) = (self.array("mean"), self.reduced_axes("mean", axes)) else {
            return self.builder.failed();
        };
        if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return self.builder.fail("mean", format!("{} is of no floating-point type: convert it", self.text()));
        }
        let count: i64 = axes.iter().map(|&axis| dims[axis as usize]).product();
        self.sum(&axes) / count as f64
    }

    /// A reduction over these axes, which go, or over all if none are named: `combine` makes one scalar of two, in any
    /// order, and `init` changes nothing.
    #[track_caller]
    pub fn reduce(
        self,
        init: impl Into<Operand<'b>>,
        axes: &[i64],
        combine: impl FnOnce(Op<'b>, Op<'b>) -> Op<'b>,
    ) -> Op<'b> {
        let (Some((dtype, _)), Some(axes)) = (self.array("reduce"), self.reduced_axes("reduce", axes)) else {
            return self.builder.failed();
        };
        let scalars = [shape::scalar(dtype), shape::scalar(dtype)];
        let function = self.builder.function("reducer", &scalars, None, |pair| combine(pair[0], pair[1]));
        let Some(function) = function else { return self.builder.failed() };
        let init = self.builder.scalar(dtype, init);
        let reduce = HloInstructionProto::from(HloInstructionCommon {
            opcode: "reduce".into(),
            dimensions: axes,
            ..Default::default()
        });
        self.builder.push_calling(reduce, &[self, init], &[function])
    }

    /// A reduction over windows of these sizes, one for each dimension, `strides` apart, with so many elements of `init`
    /// before and after.
    #[track_caller]
    pub fn reduce_window(
        self,
        init: impl Into<Operand<'b>>,
        sizes: &[i64],
        strides: &[i64],
        padding: &[(i64, i64)],
        combine: impl FnOnce(Op<'b>, Op<'b>) -> Op<'b>,
    ) -> Op<'b> {
        let Some((dtype, dims)) = self.array("reduce-window") else { return self.builder.failed() };
        if [sizes.len(), strides.len(), padding.len()] != [dims.len(); 3] {
            let message = format!("each dimension of {} needs a size, a stride and a padding", self.text());
            return self.builder.fail("reduce-window", message);
        }
        let scalars = [shape::scalar(dtype), shape::scalar(dtype)];
        let function = self.builder.function("reducer", &scalars, None, |pair| combine(pair[0], pair[1]));
        let Some(function) = function else { return self.builder.failed() };
        let init = self.builder.scalar(dtype, init);
        let dimension = |dim: usize| WindowDimension {
            size: sizes[dim],
            stride: strides[dim],
            padding_low: padding[dim].0,
            padding_high: padding[dim].1,
            window_dilation: 1,
            base_dilation: 1,
            ..WindowDimension::default()
        };
        let window = Window { dimensions: (0..dims.len()).map(dimension).collect(), ..Window::default() };
        let instruction = HloInstructionProto::new("reduce-window")
            .with_details(HloInstructionDetails { window: Some(window).into(), ..Default::default() });
        self.builder.push_calling(instruction, &[self, init], &[function])
    }

    /// Sums of all elements so far along an axis.
    #[track_caller]
    pub fn cumsum(self, axis: i64) -> Op<'b> {
        let (Some((_, dims)), Some(axis)) = (self.array("cumsum"), self.axis("cumsum", axis)) else {
            return self.builder.failed();
        };
        let (mut sizes, mut padding) = (vec![1; dims.len()], vec![(0, 0); dims.len()]);
        sizes[axis] = dims[axis].max(1);
        padding[axis].0 = sizes[axis] - 1;
        self.reduce_window(0, &sizes, &vec![1; dims.len()], &padding, |a, b| a + b)
    }

    /// The index, as `s32`, of the largest element along an axis, which goes; the first of several, or the first NaN.
    #[track_caller]
    pub fn argmax(self, axis: i64) -> Op<'b> {
        let (Some((dtype, dims)), Some(axis)) = (self.array("argmax"), self.axis("argmax", axis)) else {
            return self.builder.failed();
        };
        let builder = self.builder;
        let of_value = shape::scalar(dtype);
        let of_index = shape::scalar(DType::S32);
        let scalars = [of_value.clone(), of_index.clone(), of_value, of_index];
        let function = builder.function("argmax", &scalars, None, |pairs| {
            let [value, index, other, other_index] = [pairs[0], pairs[1], pairs[2], pairs[3]];
            let is_nan = value.ne(value);
            let wins = value.gt(other) | is_nan;
            let ties = value.eq(other) | (is_nan & other.ne(other));
            let first = wins & !(ties & index.gt(other_index)) | (ties & index.lt(other_index));
            builder.tuple(&[wins.select(value, other), first.select(index, other_index)])
        });
        let Some(function) = function else { return builder.failed() };
        let indices = builder.iota(DType::S32, &dims, axis as i64);
        let init = [builder.scalar(dtype, limit(dtype, false)), builder.scalar(DType::S32, 0)];
        let reduce = HloInstructionProto::from(HloInstructionCommon {
            opcode: "reduce".into(),
            dimensions: vec![axis as i64],
            ..Default::default()
        });
        builder.push_calling(reduce, &[self, indices, init[0], init[1]], &[function]).element(1)
    }
}

/// The largest value of a type, or its smallest one: infinite for floats.
fn limit<'b>(dtype: DType, largest: bool) -> Operand<'b> {
    let bits = dtype.bits() as u32;
    match dtype {
        DType::Pred => largest.into(),
        DType::S1 | DType::S2 | DType::S4 | DType::S8 | DType::S16 | DType::S32 | DType::S64 => {
            let largest_signed = i64::MAX >> (64 - bits);
            (if largest { largest_signed } else { -largest_signed - 1 }).into()
        }
        DType::U1 | DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64 => {
            (if largest { u64::MAX >> (64 - bits) } else { 0 }).into()
        }
        _ => (if largest { f64::INFINITY } else { f64::NEG_INFINITY }).into(),
    }
}
