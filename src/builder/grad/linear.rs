//! Derivatives of products, gathers and scatters.

use super::{Derivatives, Op, Site, not_differentiable};
use crate::builder::{DotDims, GatherDims, ScatterDims};

impl<'b> Site<'b> {
    #[track_caller]
    pub(super) fn dot(&self) -> Vec<Option<Op<'b>>> {
        let [lhs, rhs] = [self.operands[0], self.operands[1]];
        let numbers = &*self.instruction.dot_dimension_numbers;
        let lhs_side = Side {
            operand: lhs,
            batch: &numbers.lhs_batch_dimensions,
            contracting: &numbers.lhs_contracting_dimensions,
        };
        let rhs_side = Side {
            operand: rhs,
            batch: &numbers.rhs_batch_dimensions,
            contracting: &numbers.rhs_contracting_dimensions,
        };
        // The result has the batch dimensions, then the left side's free ones, then the right side's.
        let left_first = numbers.lhs_batch_dimensions.len() as i64;
        let right_first = left_first + lhs_side.free().len() as i64;
        vec![
            if self.wanted[0] { Some(lhs_side.derivative(self.derivative, &rhs_side, right_first)) } else { None },
            if self.wanted[1] { Some(rhs_side.derivative(self.derivative, &lhs_side, left_first)) } else { None },
        ]
    }

    #[track_caller]
    pub(super) fn gather(&self) -> Vec<Option<Op<'b>>> {
        let numbers = &*self.instruction.details().gather_dimension_numbers;
        let dims = ScatterDims {
            update_window_dims: numbers.offset_dims.clone(),
            inserted_window_dims: numbers.collapsed_slice_dims.clone(),
            scatter_dims_to_operand_dims: numbers.start_index_map.clone(),
            index_vector_dim: numbers.index_vector_dim,
            input_batching_dims: numbers.operand_batching_dims.clone(),
            scatter_indices_batching_dims: numbers.start_indices_batching_dims.clone(),
        };
        let [operand, indices] = [self.operands[0], self.operands[1]];
        let sizes = &self.instruction.details().gather_slice_sizes;
        let limits = limits(operand, indices, &dims.scatter_dims_to_operand_dims, sizes, dims.index_vector_dim);
        // A gather moves its slices inside, a scatter would leave them out.
        let inside = indices.max(0).min(limits);
        vec![Some(operand.zeros_like().scatter_add(inside, self.derivative, &dims)), None]
    }

    #[track_caller]
    pub(super) fn scatter(&self) -> Derivatives<'b> {
        if self.operands.len() != 3 || self.reducer().as_deref() != Some("add") {
            return Err(not_differentiable("a scatter other than scatter_add"));
        }
        let numbers = &*self.instruction.details().scatter_dimension_numbers;
        let [operand, indices, updates] = [self.operands[0], self.operands[1], self.operands[2]];
        let dims = GatherDims {
            offset_dims: numbers.update_window_dims.clone(),
            collapsed_slice_dims: numbers.inserted_window_dims.clone(),
            start_index_map: numbers.scatter_dims_to_operand_dims.clone(),
            index_vector_dim: numbers.index_vector_dim,
            operand_batching_dims: numbers.input_batching_dims.clone(),
            start_indices_batching_dims: numbers.scatter_indices_batching_dims.clone(),
        };
        let mut windows = numbers.update_window_dims.iter().map(|&dim| updates.dim(dim));
        let mut sizes = Vec::with_capacity(operand.rank());
        for dim in 0..operand.rank() as i64 {
            let dropped = numbers.inserted_window_dims.contains(&dim) || numbers.input_batching_dims.contains(&dim);
            sizes.push(if dropped { 1 } else { windows.next().unwrap_or(1) });
        }
        if !self.wanted[2] {
            return Ok(vec![Some(self.derivative), None, None]);
        }
        let vector = dims.index_vector_dim;
        let limits = limits(operand, indices, &dims.start_index_map, &sizes, vector);
        let is_inside = indices.ge(0) & indices.le(limits);
        let is_inside = if (vector as usize) < indices.rank() { is_inside.all(&[vector]) } else { is_inside };
        let places: Vec<i64> = (0..updates.rank() as i64).filter(|dim| !dims.offset_dims.contains(dim)).collect();
        let is_inside = is_inside.broadcast_in_dim(&updates.dims(), &places);
        let of_updates = is_inside.select(self.derivative.gather(indices, &dims, &sizes), 0);
        Ok(vec![Some(self.derivative), None, Some(of_updates)])
    }
}

/// The largest indices at which slices of these sizes lie inside, in the shape of the indices.
#[track_caller]
fn limits<'b>(operand: Op<'b>, indices: Op<'b>, index_map: &[i64], sizes: &[i64], vector: i64) -> Op<'b> {
    let b = operand.builder();
    let mut limits = Vec::with_capacity(index_map.len());
    for &dim in index_map {
        limits.push(b.scalar(indices.dtype(), operand.dim(dim) - sizes[dim as usize]));
    }
    let limits = b.stack(&limits, 0);
    if (vector as usize) < indices.rank() {
        limits.broadcast_in_dim(&indices.dims(), &[vector])
    } else {
        limits.squeeze(&[0]).broadcast_to(&indices.dims())
    }
}

/// One side of a dot product.
struct Side<'a, 'b> {
    operand: Op<'b>,
    batch: &'a [i64],
    contracting: &'a [i64],
}

impl<'b> Side<'_, 'b> {
    /// Dimensions that are neither batch nor contracting.
    fn free(&self) -> Vec<i64> {
        let is_free = |dim: &i64| !self.batch.contains(dim) && !self.contracting.contains(dim);
        (0..self.operand.rank() as i64).filter(is_free).collect()
    }

    /// The derivative by this side: the result's, multiplied with the other side over the other side's free dimensions,
    /// which begin at `other_first` in the result.
    #[track_caller]
    fn derivative(&self, g: Op<'b>, other: &Side<'_, 'b>, other_first: i64) -> Op<'b> {
        let other_free = other.free();
        let dims = DotDims {
            lhs_contracting: (other_first..other_first + other_free.len() as i64).collect(),
            rhs_contracting: other_free,
            lhs_batch: (0..self.batch.len() as i64).collect(),
            rhs_batch: other.batch.to_vec(),
        };
        // It has the batch dimensions, this side's free ones, and those that were contracted, in the other side's order.
        let mut pairs: Vec<(i64, i64)> =
            other.contracting.iter().copied().zip(self.contracting.iter().copied()).collect();
        pairs.sort_unstable();
        let contracted = pairs.into_iter().map(|(_, own)| own);
        let order: Vec<i64> = self.batch.iter().copied().chain(self.free()).chain(contracted).collect();
        let mut places = vec![0; order.len()];
        for (place, &dim) in order.iter().enumerate() {
            places[dim as usize] = place as i64;
        }
        g.dot_general(other.operand, &dims).transpose(&places)
    }
}
