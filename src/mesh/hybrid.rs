//! Meshes over several slices.

use super::device_order::{joined, transposed};
use super::{Mesh, SpecError};

impl Mesh {
    /// A mesh over slices, whose devices share a fast interconnect (ICI), while slices talk over the data-center network (DCN):
    /// the axes `dcn` go from slice to slice, those of `ici` inside of each. It is
    /// `jax.experimental.mesh_utils.create_hybrid_device_mesh`, with names.
    ///
    /// `slices` has the slice of every device, by its id: `runtime.topology().device_slices()`. The axes between slices are
    /// the outermost ones. One that is named in both goes over slices first, and then through each of them; it stands where
    /// `ici` has it.
    ///
    /// ```
    /// use spmd_run::mesh::Mesh;
    ///
    /// let mesh = Mesh::hybrid(&[("data", 2), ("model", 2)], &[("replica", 2)], &[0, 0, 0, 0, 1, 1, 1, 1])?;
    /// assert_eq!(mesh.to_string(), "Mesh('replica': 2, 'data': 2, 'model': 2)");
    /// let mesh = Mesh::hybrid(&[("data", 2), ("model", 2)], &[("data", 2)], &[0, 1, 0, 1, 0, 1, 0, 1])?;
    /// assert_eq!(mesh.to_string(), "Mesh('data': 4, 'model': 2)");
    /// assert_eq!(mesh.devices(), [0, 2, 4, 6, 1, 3, 5, 7]);
    /// # Ok::<(), spmd_run::mesh::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// As of [`Mesh::new`], the slices are not as many as the axes between them have places, or one has another number of
    /// devices than the axes inside.
    pub fn hybrid(ici: &[(&str, usize)], dcn: &[(&str, usize)], slices: &[u32]) -> Result<Mesh, SpecError> {
        let mut of_slices: Vec<(u32, Vec<u32>)> = Vec::new();
        for (device, &slice) in (0..).zip(slices) {
            match of_slices.iter_mut().find(|(known, _)| *known == slice) {
                Some((_, devices)) => devices.push(device),
                None => of_slices.push((slice, vec![device])),
            }
        }
        of_slices.sort_by_key(|(slice, _)| *slice);
        let sizes = |axes: &[(&str, usize)]| axes.iter().map(|axis| axis.1).collect::<Vec<_>>();
        let places = |axes| sizes(axes).iter().fold(1usize, |count, &size| count.saturating_mul(size));
        let shape = |axes| format!("({})", joined(&sizes(axes), ", "));
        if of_slices.len() != places(dcn) {
            return Err(SpecError::Slices { slices: of_slices.len(), shape: shape(dcn) });
        }
        if let Some((slice, devices)) = of_slices.iter().find(|(_, devices)| devices.len() != places(ici)) {
            return Err(SpecError::SliceSize { slice: *slice, devices: devices.len(), shape: shape(ici) });
        }
        // The devices lie over the axes between slices, then over those inside. An axis that is both becomes one when its
        // two parts are neighbours.
        let devices: Vec<u32> = of_slices.into_iter().flat_map(|(_, devices)| devices).collect();
        let inside = |name: &str| ici.iter().position(|axis| axis.0 == name);
        let (mut order, mut axes) = (Vec::new(), Vec::new());
        for (place, &axis) in dcn.iter().enumerate().filter(|(_, axis)| inside(axis.0).is_none()) {
            order.push(place);
            axes.push(axis);
        }
        for (place, &(name, size)) in ici.iter().enumerate() {
            let outer = dcn.iter().position(|axis| axis.0 == name);
            order.extend(outer.into_iter().chain([dcn.len() + place]));
            axes.push((name, size * outer.map_or(1, |outer| dcn[outer].1)));
        }
        if let Some(name) = repeated(dcn).or(repeated(ici)) {
            return Err(SpecError::AxisTwiceInMesh { axis: name.to_owned() });
        }
        Mesh::with_devices(&axes, transposed(&devices, &[sizes(dcn), sizes(ici)].concat(), &order))
    }
}

fn repeated<'a>(axes: &[(&'a str, usize)]) -> Option<&'a str> {
    let is_repeated = |&(index, axis): &(usize, &(&str, usize))| axes[..index].iter().any(|other| other.0 == axis.0);
    axes.iter().enumerate().find(is_repeated).map(|(_, axis)| axis.0)
}
