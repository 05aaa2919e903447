//! Meshes: devices of a job, all or some, as a grid with names for its axes.

use std::fmt;
use std::sync::Arc;

use super::device_order::{grid_size, joined};
use super::{NamedSharding, PartitionSpec, SpecError};

/// Devices in a grid whose axes have names, as `jax.sharding.Mesh`.
///
/// Devices are global ids. A mesh may have a part of the job's devices, and what lies on it concerns the processes only that
/// have some of these. Programs place one partition on each of them, in the order of their ids and wherever they stand in the
/// grid: on all devices of a job, partition d runs on device d. Copies are cheap and share the grid.
///
/// ```
/// use spmd_run::mesh::Mesh;
///
/// let mesh = Mesh::new(&[("data", 2), ("model", 4)])?;
/// assert_eq!(mesh.axis_size("model"), Some(4));
/// let sharding = mesh.sharding(("data", "model"))?;
/// assert_eq!(sharding.shard_shape(&[16, 32])?, [8, 8]);
/// assert_eq!(sharding.index_ranges(&[16, 32], 5)?, [8..16, 8..16]);
/// # Ok::<(), spmd_run::mesh::SpecError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mesh(Arc<Grid>);

#[derive(PartialEq, Eq, Hash)]
struct Grid {
    axes: Vec<(String, usize)>,
    /// Row-major over the axes.
    devices: Vec<u32>,
    /// The same in ascending order.
    sorted: Vec<u32>,
}

impl Mesh {
    /// The devices 0, 1, 2, … in row-major order of these axes, as many as these have places for: neighbours on the last axis
    /// have neighbouring ids.
    ///
    /// # Errors
    /// No axes, an axis of size 0, two axes of one name, or more devices than any machine has.
    pub fn new(axes: &[(&str, usize)]) -> Result<Mesh, SpecError> {
        let count = grid_size(&axes.iter().map(|axis| axis.1).collect::<Vec<_>>())?;
        Mesh::with_devices(axes, (0..count as u32).collect())
    }

    /// The given devices in row-major order of these axes: `jax.sharding.Mesh`. They may be some of the job's only.
    ///
    /// # Errors
    /// As of [`Mesh::new`], the devices are more or fewer than the axes have places for, or one is there twice.
    pub fn with_devices(axes: &[(&str, usize)], devices: Vec<u32>) -> Result<Mesh, SpecError> {
        if axes.is_empty() {
            return Err(SpecError::NoAxes);
        }
        let sizes: Vec<usize> = axes.iter().map(|axis| axis.1).collect();
        let count = grid_size(&sizes)?;
        for (index, (name, _)) in axes.iter().enumerate() {
            if axes[..index].iter().any(|(other, _)| other == name) {
                return Err(SpecError::AxisTwiceInMesh { axis: (*name).to_owned() });
            }
        }
        let mut sorted = devices.clone();
        sorted.sort_unstable();
        if devices.len() != count || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(SpecError::Devices { grid: joined(&sizes, " × "), count, given: joined(&devices, ", ") });
        }
        let axes = axes.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
        Ok(Mesh(Arc::new(Grid { axes, devices, sorted })))
    }

    /// Names and sizes of the axes, outermost first.
    pub fn axes(&self) -> &[(String, usize)] {
        &self.0.axes
    }

    /// The size of an axis; `None` if there is no such axis.
    pub fn axis_size(&self, name: &str) -> Option<usize> {
        self.0.axes.iter().find(|axis| axis.0 == name).map(|axis| axis.1)
    }

    /// The devices, row-major over the axes.
    pub fn devices(&self) -> &[u32] {
        &self.0.devices
    }

    /// The devices in ascending order: that of a program's partitions.
    pub fn sorted_devices(&self) -> &[u32] {
        &self.0.sorted
    }

    /// The partition that a program runs on a device; `None` if the mesh does not have it.
    pub fn partition_of(&self, device: u32) -> Option<usize> {
        self.0.sorted.binary_search(&device).ok()
    }

    /// How many devices the mesh has.
    pub fn device_count(&self) -> usize {
        self.0.devices.len()
    }

    /// An array's sharding over this mesh: what JAX writes as `NamedSharding(mesh, P('data', None))` is
    /// `mesh.sharding(("data", None))`.
    ///
    /// # Errors
    /// The spec names an axis that the mesh does not have, or one axis twice.
    pub fn sharding(&self, spec: impl Into<PartitionSpec>) -> Result<NamedSharding, SpecError> {
        NamedSharding::new(self.clone(), spec.into())
    }

    /// The groups of devices that differ in these axes only, each in row-major order of the axes as they are named: who
    /// takes part together in a collective over the axes.
    ///
    /// # Errors
    /// The mesh does not have an axis, or it is named twice.
    pub fn groups(&self, axes: &[&str]) -> Result<Vec<Vec<u32>>, SpecError> {
        let grouped = self.axis_indices(axes)?;
        let rest = (0..self.0.axes.len()).filter(|axis| !grouped.contains(axis));
        let order: Vec<usize> = rest.chain(grouped.iter().copied()).collect();
        let size: usize = grouped.iter().map(|&axis| self.0.axes[axis].1).product();
        let sizes: Vec<usize> = self.0.axes.iter().map(|axis| axis.1).collect();
        let devices = super::device_order::transposed(&self.0.devices, &sizes, &order);
        Ok(devices.chunks(size).map(<[u32]>::to_vec).collect())
    }

    /// The places of named axes among the mesh's.
    pub(super) fn axis_indices(&self, names: &[&str]) -> Result<Vec<usize>, SpecError> {
        let mut indices = Vec::with_capacity(names.len());
        for name in names {
            let index = self.0.axes.iter().position(|axis| axis.0 == *name);
            let index =
                index.ok_or_else(|| SpecError::NoSuchAxis { axis: (*name).to_owned(), mesh: self.to_string() })?;
            if indices.contains(&index) {
                return Err(SpecError::AxisTwice { axis: (*name).to_owned(), spec: format!("({})", names.join(", ")) });
            }
            indices.push(index);
        }
        Ok(indices)
    }

    /// The partitions of all devices, row-major over the axes after these are put in this order.
    pub(super) fn transposed(&self, order: &[usize]) -> Vec<u32> {
        let sizes: Vec<usize> = self.0.axes.iter().map(|axis| axis.1).collect();
        super::device_order::transposed(&self.partitions(), &sizes, order)
    }

    /// The partitions of all devices, row-major over the axes.
    pub(crate) fn partitions(&self) -> Vec<u32> {
        self.0.devices.iter().filter_map(|&device| self.partition_of(device)).map(|place| place as u32).collect()
    }
}

/// As JAX prints it: `Mesh('data': 2, 'model': 4)`.
impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.0.axes.iter().map(|(name, size)| format!("'{name}': {size}")).collect();
        write!(f, "Mesh({})", axes.join(", "))
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
