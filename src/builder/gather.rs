//! Elements picked and placed by index.

use super::Op;
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{GatherDimensionNumbers, HloInstructionDetails, HloInstructionProto, ScatterDimensionNumbers};

/// Which dimensions of a gather's operand, indices and result belong together: XLA's `GatherDimensionNumbers`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names and their meaning are XLA's")]
pub struct GatherDims {
    pub offset_dims: Vec<i64>,
    pub collapsed_slice_dims: Vec<i64>,
    pub start_index_map: Vec<i64>,
    pub index_vector_dim: i64,
    pub operand_batching_dims: Vec<i64>,
    pub start_indices_batching_dims: Vec<i64>,
}

/// Which dimensions of a scatter's operand, indices and updates belong together: XLA's `ScatterDimensionNumbers`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names and their meaning are XLA's")]
pub struct ScatterDims {
    pub update_window_dims: Vec<i64>,
    pub inserted_window_dims: Vec<i64>,
    pub scatter_dims_to_operand_dims: Vec<i64>,
    pub index_vector_dim: i64,
    pub input_batching_dims: Vec<i64>,
    pub scatter_indices_batching_dims: Vec<i64>,
}

impl<'b> Op<'b> {
    /// The slices with these indices along an axis, as `jax.numpy.take(…, mode="clip")`: the indices' dimensions take the
    /// place of the axis. Indices beyond the ends mean the first or last slice.
    #[track_caller]
    pub fn take(self, indices: Op<'b>, axis: i64) -> Op<'b> {
        let (Some((_, dims)), Some(axis)) = (self.array("take"), self.axis("take", axis)) else {
            return self.builder.failed();
        };
        let Some((_, picked)) = indices.array("take") else { return self.builder.failed() };
        let (before, rank, picked) = (axis as i64, dims.len() as i64, picked.len() as i64);
        let mut sizes = dims;
        sizes[axis] = 1;
        let numbers = GatherDims {
            offset_dims: (0..before).chain(before + picked..rank - 1 + picked).collect(),
            collapsed_slice_dims: vec![before],
            start_index_map: vec![before],
            index_vector_dim: picked,
            ..GatherDims::default()
        };
        self.gather(indices, &numbers, &sizes)
    }

    /// XLA's general gather: slices of these sizes, which start at the index vectors; they are moved to lie inside.
    #[track_caller]
    pub fn gather(self, indices: Op<'b>, dims: &GatherDims, sizes: &[i64]) -> Op<'b> {
        let GatherDims {
            offset_dims,
            collapsed_slice_dims,
            start_index_map,
            index_vector_dim,
            operand_batching_dims,
            start_indices_batching_dims,
        } = dims.clone();
        let numbers = GatherDimensionNumbers {
            offset_dims,
            collapsed_slice_dims,
            start_index_map,
            index_vector_dim,
            operand_batching_dims,
            start_indices_batching_dims,
            ..GatherDimensionNumbers::default()
        };
        let gather = HloInstructionProto::new("gather").with_details(HloInstructionDetails {
            gather_dimension_numbers: Some(numbers).into(),
            gather_slice_sizes: sizes.to_vec(),
            ..Default::default()
        });
        self.builder.push(gather, &[self, indices])
    }

    /// XLA's general scatter: the updates are combined with the elements at the index vectors, in any order; what would lie
    /// outside is left out. `combine` gets the element and the update, both scalars.
    #[track_caller]
    pub fn scatter(
        self,
        indices: Op<'b>,
        updates: Op<'b>,
        dims: &ScatterDims,
        combine: impl FnOnce(Op<'b>, Op<'b>) -> Op<'b>,
    ) -> Op<'b> {
        let Some((dtype, _)) = self.array("scatter") else { return self.builder.failed() };
        let scalars = [shape::scalar(dtype), shape::scalar(dtype)];
        match self.builder.function("combine", &scalars, None, |pair| combine(pair[0], pair[1])) {
            Some(function) => self.scatter_by(function, indices, updates, dims),
            None => self.builder.failed(),
        }
    }

    /// As [`Op::scatter`]: the updates are added.
    #[track_caller]
    pub fn scatter_add(self, indices: Op<'b>, updates: Op<'b>, dims: &ScatterDims) -> Op<'b> {
        let Some((dtype, _)) = self.array("scatter") else { return self.builder.failed() };
        match self.builder.reducer("add", dtype) {
            Some(function) => self.scatter_by(function, indices, updates, dims),
            None => self.builder.failed(),
        }
    }

    #[track_caller]
    fn scatter_by(self, function: u32, indices: Op<'b>, updates: Op<'b>, dims: &ScatterDims) -> Op<'b> {
        let ScatterDims {
            update_window_dims,
            inserted_window_dims,
            scatter_dims_to_operand_dims,
            index_vector_dim,
            input_batching_dims,
            scatter_indices_batching_dims,
        } = dims.clone();
        let numbers = ScatterDimensionNumbers {
            update_window_dims,
            inserted_window_dims,
            scatter_dims_to_operand_dims,
            index_vector_dim,
            input_batching_dims,
            scatter_indices_batching_dims,
            ..ScatterDimensionNumbers::default()
        };
        let scatter = HloInstructionProto::new("scatter").with_details(HloInstructionDetails {
            scatter_dimension_numbers: Some(numbers).into(),
            ..Default::default()
        });
        self.builder.push_calling(scatter, &[self, indices, updates], &[function])
    }

    /// For each integer a new last dimension of `classes` elements that are 0, but 1 where the integer says; all 0 if it is
    /// none of `0..classes`.
    #[track_caller]
    pub fn one_hot(self, dtype: DType, classes: i64) -> Op<'b> {
        let Some((own, dims)) = self.array("one_hot") else { return self.builder.failed() };
        let classes = self.builder.iota(own, &[&dims[..], &[classes]].concat(), -1);
        self.expand_dims(-1).eq(classes).convert(dtype)
    }
}
