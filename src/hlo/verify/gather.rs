//! Gather and scatter.

use super::dims::{expect_distinct, expect_rising, expect_same, same_size, text};
use super::elementwise::expect_integers;
use super::movement::within;
use super::reduction::{Reducer, expect_reducer};
use super::{Check, Site, ensure};
use crate::hlo::shape::{self, join};
use crate::proto::ShapeProto;

/// The indices' dimensions, with one for the index vectors in any case, and which of them that is.
struct Indices {
    dims: Vec<i64>,
    vector: usize,
}

impl Indices {
    fn new(indices: &ShapeProto, vector_dim: i64) -> Result<Indices, String> {
        expect_integers("the indices' type", indices)?;
        let rank = indices.dimensions.len();
        let vector = usize::try_from(vector_dim).ok().filter(|&dim| dim <= rank);
        let vector = vector.ok_or_else(|| format!("index_vector_dim {vector_dim} must lie within the rank {rank}"))?;
        let mut dims = indices.dimensions.clone();
        if vector == rank {
            dims.push(1);
        }
        Ok(Indices { dims, vector })
    }

    /// The dimensions besides the index vectors'.
    fn batch(&self) -> impl Iterator<Item = i64> {
        let dims = self.dims.iter().enumerate().filter(|&(dim, _)| dim != self.vector);
        dims.map(|(_, &size)| size)
    }

    /// The map names an operand's dimension for each component of an index vector; batching dimensions stand in pairs.
    fn check(
        &self,
        operand: &ShapeProto,
        map: (&str, &[i64]),
        batching: (&str, &[i64]),
        indices_batching: (&str, &[i64]),
    ) -> Check {
        let rank = operand.dimensions.len();
        expect_distinct(map.0, map.1, rank)?;
        let components = self.dims[self.vector];
        ensure!(
            same_size(components, map.1.len() as i64),
            "{} names {} dimensions, and its index vectors have {components} components",
            map.0,
            map.1.len()
        );
        let (left, right) = (batching.1, indices_batching.1);
        ensure!(
            left.len() == right.len(),
            "{} and {} name {} and {} dimensions",
            batching.0,
            indices_batching.0,
            left.len(),
            right.len()
        );
        let of_operand = expect_rising(batching.0, left, rank)?;
        let of_indices = expect_distinct(indices_batching.0, right, self.dims.len())?;
        for (operand_dim, dim) in of_operand.into_iter().zip(of_indices) {
            ensure!(dim != self.vector, "{} names index_vector_dim {dim}", indices_batching.0);
            let (a, b) = (operand.dimensions[operand_dim], self.dims[dim]);
            ensure!(same_size(a, b), "the batching dimensions {operand_dim} and {dim} have the sizes {a} and {b}");
        }
        let twice = left.iter().find(|dim| map.1.contains(dim));
        ensure!(twice.is_none(), "{} and {} both name dimension {}", map.0, batching.0, twice.copied().unwrap_or(0));
        Ok(())
    }
}

pub(super) fn gather(site: &Site) -> Check {
    let (operand, indices) = (site.array(0)?, site.array(1)?);
    let numbers = &*site.instruction.details().gather_dimension_numbers;
    let sizes = &site.instruction.details().gather_slice_sizes;
    let indices = Indices::new(indices, numbers.index_vector_dim)?;
    let rank = operand.dimensions.len();
    indices.check(
        operand,
        ("start_index_map", &numbers.start_index_map),
        ("operand_batching_dims", &numbers.operand_batching_dims),
        ("start_indices_batching_dims", &numbers.start_indices_batching_dims),
    )?;
    within("the slice sizes", sizes, operand)?;
    expect_rising("collapsed_slice_dims", &numbers.collapsed_slice_dims, rank)?;
    let dropped = [numbers.collapsed_slice_dims.as_slice(), &numbers.operand_batching_dims].concat();
    let dropped = expect_distinct("collapsed or batching dimension", &dropped, rank)?;
    let collapsed = dropped.iter().find(|&&dim| sizes[dim] > 1);
    if let Some(&dim) = collapsed {
        return Err(format!("the slices have {} elements in the dimension {dim}, which collapses", sizes[dim]));
    }
    let result_rank = numbers.offset_dims.len() + indices.dims.len() - 1;
    let offsets = expect_rising("offset_dims", &numbers.offset_dims, result_rank)?;
    ensure!(
        offsets.len() + dropped.len() == rank,
        "offset_dims={{{}}} and {} collapsed or batching dimensions do not make up the rank {rank} of {}",
        join(&numbers.offset_dims),
        dropped.len(),
        text(operand)
    );
    let mut window = (0..rank).filter(|dim| !dropped.contains(dim)).map(|dim| sizes[dim]);
    let mut batch = indices.batch();
    let dim = |dim| if offsets.binary_search(&dim).is_ok() { window.next() } else { batch.next() };
    let expected: Vec<i64> = (0..result_rank).filter_map(dim).collect();
    site.expect_result(site.dtype(0)?, &expected)
}

pub(super) fn scatter(site: &Site) -> Check {
    let count = site.operands.len() / 2;
    let numbers = &*site.instruction.details().scatter_dimension_numbers;
    let indices = Indices::new(site.array(count)?, numbers.index_vector_dim)?;
    let mut reducers = Vec::with_capacity(count);
    for index in 0..count {
        let (operand, updates) = (site.array(index)?, site.array(count + 1 + index)?);
        scatter_one(&indices, operand, updates, site)?;
        reducers.push(Reducer { accumulator: site.dtype(index)?, input: site.dtype(count + 1 + index)? });
    }
    expect_reducer(site, 0, &reducers)?;
    match site.operands.as_slice() {
        [operand, _, _] => expect_same("it", site.shape(), &operand.shape),
        operands => site.expect_tuple(operands[..count].iter().map(|operand| &**operand.shape)),
    }
}

fn scatter_one(indices: &Indices, operand: &ShapeProto, updates: &ShapeProto, site: &Site) -> Check {
    let numbers = &*site.instruction.details().scatter_dimension_numbers;
    let (rank, updates_rank) = (operand.dimensions.len(), updates.dimensions.len());
    indices.check(
        operand,
        ("scatter_dims_to_operand_dims", &numbers.scatter_dims_to_operand_dims),
        ("input_batching_dims", &numbers.input_batching_dims),
        ("scatter_indices_batching_dims", &numbers.scatter_indices_batching_dims),
    )?;
    expect_rising("inserted_window_dims", &numbers.inserted_window_dims, rank)?;
    let dropped = [numbers.inserted_window_dims.as_slice(), &numbers.input_batching_dims].concat();
    let dropped = expect_distinct("inserted or batching dimension", &dropped, rank)?;
    let expected_rank = numbers.update_window_dims.len() + indices.dims.len() - 1;
    ensure!(
        updates_rank == expected_rank,
        "the updates {} must have {expected_rank} dimensions: those of the window and of the indices",
        text(updates)
    );
    let window = expect_rising("update_window_dims", &numbers.update_window_dims, updates_rank)?;
    ensure!(
        window.len() + dropped.len() == rank,
        "update_window_dims={{{}}} and {} inserted or batching dimensions do not make up the rank {rank} of {}",
        join(&numbers.update_window_dims),
        dropped.len(),
        text(operand)
    );
    let kept = (0..rank).filter(|dim| !dropped.contains(dim)).map(|dim| operand.dimensions[dim]);
    for (&dim, bound) in window.iter().zip(kept) {
        let size = updates.dimensions[dim];
        ensure!(
            bound == shape::UNBOUNDED || size <= bound,
            "the updates {} have {size} elements in the dimension {dim}, more than the {bound} of {}",
            text(updates),
            text(operand)
        );
    }
    let others = (0..updates_rank).filter(|dim| window.binary_search(dim).is_err());
    for (dim, expected) in others.zip(indices.batch()) {
        let size = updates.dimensions[dim];
        ensure!(
            same_size(size, expected),
            "the updates {} have {size} elements in the dimension {dim}, and the indices {expected}",
            text(updates)
        );
    }
    Ok(())
}
