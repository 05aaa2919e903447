//! Derivatives of products, reductions, gathers and scatters.

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
    pub(super) fn reduce(&self) -> Derivatives<'b> {
        let (g, x, y) = (self.derivative, self.operands[0], self.result);
        let dims = x.dims();
        let reduced = &self.instruction.dimensions;
        let kept: Vec<i64> = (0..dims.len() as i64).filter(|dim| !reduced.contains(dim)).collect();
        if self.operands.len() != 2 || self.wanted[1] {
            return Err(not_differentiable("a reduction with such operands"));
        }
        let spread = g.broadcast_in_dim(&dims, &kept);
        let derivative = match self.reducer().as_deref() {
            Some("add") => spread,
            Some("maximum" | "minimum") => {
                let is_chosen = x.eq(y.broadcast_in_dim(&dims, &kept)).convert(x.dtype());
                let count = is_chosen.sum(reduced).broadcast_in_dim(&dims, &kept);
                spread * is_chosen / count
            }
            _ => return Err(not_differentiable("a reduction by other than sum, maximum and minimum")),
        };
        Ok(vec![Some(derivative), None])
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
        vec![Some(operand.zeros_like().scatter_add(indices, self.derivative, &dims)), None]
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
        let of_updates = if self.wanted[2] { Some(self.derivative.gather(indices, &dims, &sizes)) } else { None };
        Ok(vec![Some(self.derivative), None, of_updates])
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
