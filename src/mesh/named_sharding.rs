//! Shardings by the axes of a mesh.

use std::fmt;
use std::ops::Range;

use super::device_order::joined;
use super::{HloSharding, Mesh, PartitionSpec, ShardingError, SpecError, Subgroup};

/// How an array lies on a mesh, as `jax.sharding.NamedSharding`.
///
/// The array's dimension i is cut into as many equal parts as the axes of the spec's entry i have devices; devices that
/// differ in other axes only hold the same part.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NamedSharding {
    mesh: Mesh,
    spec: PartitionSpec,
}

impl NamedSharding {
    /// A sharding over a mesh.
    ///
    /// # Errors
    /// The spec names an axis that the mesh does not have, or one axis twice.
    pub fn new(mesh: Mesh, spec: PartitionSpec) -> Result<NamedSharding, SpecError> {
        let names: Vec<&str> = spec.axes().collect();
        mesh.axis_indices(&names).map_err(|error| match error {
            SpecError::AxisTwice { axis, .. } => SpecError::AxisTwice { axis, spec: spec.to_string() },
            SpecError::NoSuchAxis { axis, mesh } => SpecError::NoSuchAxis { axis: format!("{axis} of {spec}"), mesh },
            other => other,
        })?;
        Ok(NamedSharding { mesh, spec })
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The spec.
    pub fn spec(&self) -> &PartitionSpec {
        &self.spec
    }

    /// How many parts the spec makes of dimension `dim`.
    fn parts(&self, dim: usize) -> usize {
        let cut = self.spec.cuts().get(dim);
        cut.map_or(1, |cut| cut.0.iter().filter_map(|axis| self.mesh.axis_size(axis)).product())
    }

    /// Checks that an array of this shape can be sharded so.
    ///
    /// # Errors
    /// It has fewer dimensions than the spec, or a dimension that its axes do not divide.
    pub fn check(&self, dims: &[i64]) -> Result<(), SpecError> {
        let shape = || format!("({})", joined(dims, ", "));
        self.check_rank(dims.len(), shape)?;
        for (dim, &size) in dims.iter().enumerate() {
            let parts = self.parts(dim);
            if size < 0 || size % parts as i64 != 0 {
                return Err(SpecError::Indivisible { sharding: self.to_string(), dim, parts, size, shape: shape() });
            }
        }
        Ok(())
    }

    /// Checks that an array has a dimension for each entry of the spec.
    pub(super) fn check_rank(&self, rank: usize, shape: impl FnOnce() -> String) -> Result<(), SpecError> {
        let entries = self.spec.cuts().len();
        if entries > rank {
            return Err(SpecError::Rank { spec: self.spec.to_string(), entries, shape: shape(), rank });
        }
        Ok(())
    }

    /// The same in XLA's terms, for an array of `rank` dimensions: its devices are the partitions of a program.
    ///
    /// # Errors
    /// The spec has more entries than that.
    pub fn to_hlo(&self, rank: usize) -> Result<HloSharding, SpecError> {
        self.to_hlo_within(&[], rank)
    }

    /// As [`to_hlo`](Self::to_hlo), of an array that is each device's own along the `manual` axes, which the spec does not name.
    pub(crate) fn to_hlo_within(&self, manual: &[&str], rank: usize) -> Result<HloSharding, SpecError> {
        self.check_rank(rank, || format!("of {rank} dimensions"))?;
        let names: Vec<&str> = self.spec.axes().collect();
        let mut order = self.mesh.axis_indices(&names)?;
        let manual = self.mesh.axis_indices(manual)?;
        let size = |axes: &[usize]| axes.iter().map(|&axis| self.mesh.axes()[axis].1).product();
        let is_unused = |axis: &usize| !order.contains(axis) && !manual.contains(axis);
        let unused: Vec<usize> = (0..self.mesh.axes().len()).filter(is_unused).collect();
        let subgroups = [(Subgroup::Manual, size(&manual)), (Subgroup::Replicated, size(&unused))];
        order.extend(manual.into_iter().chain(unused));
        let tiles = (0..rank).map(|dim| self.parts(dim)).collect();
        Ok(HloSharding::tiled(tiles, &subgroups, self.mesh.transposed(&order))?)
    }

    /// The shape of the part on each device of an array of shape `dims`.
    ///
    /// # Errors
    /// As of [`NamedSharding::check`].
    pub fn shard_shape(&self, dims: &[i64]) -> Result<Vec<i64>, SpecError> {
        self.check(dims)?;
        Ok(dims.iter().enumerate().map(|(dim, size)| size / self.parts(dim) as i64).collect())
    }

    /// The shape of the array whose part on each device has the shape `dims`.
    ///
    /// # Errors
    /// The part has fewer dimensions than the spec, or the array is too large.
    pub fn whole_shape(&self, dims: &[i64]) -> Result<Vec<i64>, SpecError> {
        self.to_hlo(dims.len())?;
        let sizes = dims.iter().enumerate().map(|(dim, size)| size.checked_mul(self.parts(dim) as i64));
        let too_large = || ShardingError::Dimension { shape: format!("[{}] of a part", joined(dims, ",")) };
        Ok(sizes.collect::<Option<_>>().ok_or_else(too_large)?)
    }

    /// Which part of an array of shape `dims` lies on a device: a range of indices for each dimension.
    ///
    /// # Errors
    /// As of [`NamedSharding::check`], or the mesh does not have the device.
    pub fn index_ranges(&self, dims: &[i64], device: usize) -> Result<Vec<Range<i64>>, SpecError> {
        self.check(dims)?;
        let partition = u32::try_from(device).ok().and_then(|device| self.mesh.partition_of(device));
        let missing = || SpecError::NoSuchDevice { device, mesh: self.mesh.to_string() };
        let ranges = self.to_hlo(dims.len())?.index_range(dims, partition.ok_or_else(missing)?)?;
        Ok(ranges.unwrap_or_default())
    }
}

impl fmt::Display for NamedSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamedSharding({}, {})", self.mesh, self.spec)
    }
}

impl fmt::Debug for NamedSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
