//! Manual regions: parts of a program that are written for one device along axes of a mesh.

use crate::mesh::{HloSharding, Mesh, PartitionSpec};
use crate::proto::{HloInstructionCommon, HloInstructionDetails, HloInstructionProto, OpSharding, SharedShape};

/// The axes of a mesh along which a part of the program is written for one device. Along the others, which are automatic, its
/// values are whole and XLA divides the work.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub mesh: Mesh,
    /// Names of the manual axes.
    pub axes: Vec<String>,
}

impl Region {
    /// A region that is manual along all axes.
    pub fn full(mesh: &Mesh) -> Region {
        Region { mesh: mesh.clone(), axes: mesh.axes().iter().map(|(name, _)| name.clone()).collect() }
    }

    /// A region that is manual along these axes.
    pub fn over(mesh: &Mesh, axes: &[&str]) -> Result<Region, String> {
        mesh.groups(axes).map_err(|error| error.to_string())?;
        if axes.is_empty() {
            return Err("no axis is manual".to_owned());
        }
        Ok(Region { mesh: mesh.clone(), axes: axes.iter().map(|&axis| axis.to_owned()).collect() })
    }

    /// Whether no axis is automatic.
    pub fn is_full(&self) -> bool {
        self.axes.len() == self.mesh.axes().len()
    }

    /// Whether the manual axes have one device in all. Values are then whole, and collectives have nobody to reach: there is
    /// nothing to tell the partitioner, which knows no manual axes of size 1.
    pub fn is_trivial(&self) -> bool {
        !self.is_full() && self.axes.iter().all(|axis| self.mesh.axis_size(axis) == Some(1))
    }

    fn is_manual(&self, axis: &str) -> bool {
        self.axes.iter().any(|manual| manual == axis)
    }

    /// Checks that these axes are manual.
    pub fn check_manual<'a>(&self, axes: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
        match axes.into_iter().find(|axis| !self.is_manual(axis)) {
            Some(axis) if self.mesh.axis_size(axis).is_some() => Err(format!(
                "axis '{axis}' is automatic in this region, which is manual along {} only",
                self.axes.join(", ")
            )),
            _ => Ok(()),
        }
    }

    /// The manual axes that a spec does not name: along them, devices hold the same.
    pub fn others<'a>(&'a self, spec: &PartitionSpec) -> Vec<&'a str> {
        let names = self.axes.iter().map(String::as_str);
        names.filter(|name| !spec.axes().any(|axis| axis == *name)).collect()
    }

    /// How a value of the region lies on the devices, an array of `rank` dimensions that automatic axes cut by `spec`.
    pub fn sharding(&self, spec: impl Into<PartitionSpec>, rank: usize) -> Result<OpSharding, String> {
        let spec = spec.into();
        if let Some(axis) = spec.axes().find(|axis| self.is_manual(axis)) {
            return Err(format!("axis '{axis}' is manual here: values are the parts of one device along it"));
        }
        let sharding = self.mesh.sharding(&spec).map_err(|error| error.to_string())?;
        let axes: Vec<&str> = self.axes.iter().map(String::as_str).collect();
        let hlo: HloSharding = sharding.to_hlo_within(&axes, rank).map_err(|error| error.to_string())?;
        Ok(hlo.to_proto())
    }

    /// The instruction that says of a value of the region that it is one, and leaves to XLA how automatic axes cut it. Without
    /// it the partitioner could take a value that does not follow from others of the region for one of the whole program.
    pub fn mark(&self, shape: SharedShape) -> Result<HloInstructionProto, String> {
        let rank = shape.dimensions.len();
        let sharding = self.sharding((), rank)?;
        Ok(annotation("Sharding", Some(shape), sharding, if self.is_full() { None } else { Some(rank) }))
    }
}

/// An instruction of the partitioner's. With `open`, it may cut this many dimensions further.
pub(super) fn annotation(
    target: &str,
    shape: Option<SharedShape>,
    sharding: OpSharding,
    open: Option<usize>,
) -> HloInstructionProto {
    let dims = |rank: usize| (0..rank).map(|dim| dim.to_string()).collect::<Vec<_>>().join(",");
    let open = open.filter(|&rank| rank > 0).map(|rank| format!("unspecified_dims=[{}]", dims(rank)));
    HloInstructionProto::from(HloInstructionCommon {
        opcode: "custom-call".into(),
        shape: shape.into(),
        sharding: Some(sharding).into(),
        ..Default::default()
    })
    .with_details(HloInstructionDetails {
        custom_call_target: target.to_owned(),
        backend_config: open.unwrap_or_default().into_bytes(),
        ..Default::default()
    })
}

/// Whether an instruction only says where a value lies.
pub(super) fn is_mark(instruction: &HloInstructionProto) -> bool {
    instruction.opcode == "custom-call" && instruction.details().custom_call_target == "Sharding"
}
