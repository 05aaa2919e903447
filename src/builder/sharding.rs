//! Where values lie on the devices.

use super::{Builder, Op};
use crate::hlo::shape;
use crate::mesh::{Mesh, NamedSharding, PartitionSpec};
use crate::proto::op_sharding::Type;
use crate::proto::{HloInstructionCommon, HloInstructionDetails, HloInstructionProto, OpSharding, SharedShape};

impl<'b> Op<'b> {
    /// The value, which then lies on the devices as `sharding` says: `jax.lax.with_sharding_constraint`. As a result of the
    /// program it is what `out_shardings` of `jax.jit` is.
    #[track_caller]
    pub fn with_sharding(self, sharding: &NamedSharding) -> Op<'b> {
        let Some((_, dims)) = self.array("with_sharding") else { return self.builder.failed() };
        if self.builder.graph().manual_mesh().is_some() {
            return self.builder.fail("with_sharding", "inside shard_map, values are those of one device");
        }
        match self.builder.checked_sharding(sharding, &dims) {
            Ok(proto) => self.resharded("Sharding", self.shape(), proto),
            Err(message) => self.builder.fail("with_sharding", message),
        }
    }

    #[track_caller]
    pub(super) fn resharded(self, target: &str, shape: Option<SharedShape>, sharding: OpSharding) -> Op<'b> {
        let call = HloInstructionProto::from(HloInstructionCommon {
            opcode: "custom-call".into(),
            shape: shape.into(),
            sharding: Some(sharding).into(),
            ..Default::default()
        })
        .with_details(HloInstructionDetails { custom_call_target: target.to_owned(), ..Default::default() });
        self.builder.push(call, &[self])
    }
}

fn manual() -> OpSharding {
    OpSharding { r#type: Type::MANUAL.into(), ..OpSharding::default() }
}

impl Builder {
    /// A part of the program that is written for one device, as `jax.shard_map`: `body` gets each device's part of the
    /// arguments, cut by their specs, may use collectives over the mesh's axes ([`Op::psum`] and others), and gives each
    /// device's part of the results, which are put together by `result_specs`.
    ///
    /// Along axes that a result's spec does not name, all devices must compute the same. From outside, `body` can use
    /// constants only: all else is passed as an argument.
    ///
    /// ```
    /// use spmd_run::builder::Builder;
    /// use spmd_run::dtype::DType::F32;
    /// use spmd_run::mesh::{Mesh, PartitionSpec};
    ///
    /// let mesh = Mesh::new(&[("data", 4)])?;
    /// let b = Builder::new("global_mean");
    /// let x = b.sharded_parameter("x", F32, &[8, 3], &mesh.sharding(("data",))?);
    /// let specs = [PartitionSpec::from(())];
    /// let mean = b.shard_map(&mesh, &[(x, ("data",).into())], &specs, |part| {
    ///     assert_eq!(part[0].dims(), [2, 3]);
    ///     vec![part[0].mean(&[0]).pmean(&["data"])]
    /// });
    /// assert_eq!(mean[0].dims(), [3]);
    /// b.build(&mean)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn shard_map<'b>(
        &'b self,
        mesh: &Mesh,
        arguments: &[(Op<'b>, PartitionSpec)],
        result_specs: &[PartitionSpec],
        body: impl FnOnce(&[Op<'b>]) -> Vec<Op<'b>>,
    ) -> Vec<Op<'b>> {
        let failed = || vec![self.failed(); result_specs.len()];
        if self.graph().manual_mesh().is_some() {
            self.fail("shard_map", "there is one around it already");
            return failed();
        }
        let mut parts = Vec::with_capacity(arguments.len());
        let mut shapes = Vec::with_capacity(arguments.len());
        for (argument, spec) in arguments {
            let part = self.part_of(mesh, *argument, spec);
            let Some(shape) = part.shape() else { return failed() };
            parts.push(part);
            shapes.push(shape);
        }
        let mut results = 0;
        let function = self.function("shard_map", &shapes, Some(mesh.clone()), |arguments| {
            let made = body(arguments);
            results = made.len();
            self.tuple(&made)
        });
        let Some(function) = function else { return failed() };
        if results != result_specs.len() {
            self.fail("shard_map", format!("there are {} specs for {results} results", result_specs.len()));
            return failed();
        }
        let call = HloInstructionProto::new("call");
        let made = self.push_calling(call, &parts, &[function]);
        let mut wholes = Vec::with_capacity(results);
        for (index, spec) in result_specs.iter().enumerate() {
            wholes.push(self.whole_of(mesh, made.element(index), spec));
        }
        wholes
    }

    /// Each device's part of an array, in a manual region.
    #[track_caller]
    pub(super) fn part_of<'b>(&'b self, mesh: &Mesh, whole: Op<'b>, spec: &PartitionSpec) -> Op<'b> {
        let Some((dtype, dims)) = whole.array("shard_map") else { return self.failed() };
        let made = mesh.sharding(spec).map_err(|error| error.to_string()).and_then(|sharding| {
            let proto = self.checked_sharding(&sharding, &dims)?;
            Ok((proto, sharding.shard_shape(&dims).map_err(|error| error.to_string())?))
        });
        match made {
            Ok((proto, part)) => {
                let cut = whole.resharded("Sharding", whole.shape(), proto);
                let part = Some(shape::array(dtype, &part).into());
                self.at_border(cut.resharded("SPMDFullToShardShape", part, manual()), mesh, spec)
            }
            Err(message) => self.fail("shard_map", message),
        }
    }

    /// The array of which each device has a part, outside of the manual region.
    #[track_caller]
    pub(super) fn whole_of<'b>(&'b self, mesh: &Mesh, part: Op<'b>, spec: &PartitionSpec) -> Op<'b> {
        let Some((dtype, dims)) = part.array("shard_map") else { return self.failed() };
        let made = mesh.sharding(spec).map_err(|error| error.to_string()).and_then(|sharding| {
            let whole = sharding.whole_shape(&dims).map_err(|error| error.to_string())?;
            Ok((self.checked_sharding(&sharding, &whole)?, whole))
        });
        match made {
            Ok((proto, whole)) => {
                let part = part.resharded("Sharding", part.shape(), manual());
                let whole = Some(shape::array(dtype, &whole).into());
                self.at_border(part.resharded("SPMDShardToFullShape", whole, proto), mesh, spec)
            }
            Err(message) => self.fail("shard_map", message),
        }
    }

    fn at_border<'b>(&self, op: Op<'b>, mesh: &Mesh, spec: &PartitionSpec) -> Op<'b> {
        if let Some(id) = op.id {
            self.graph().borders.insert(id, (mesh.clone(), spec.clone()));
        }
        op
    }
}
