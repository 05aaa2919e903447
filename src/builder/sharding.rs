//! Where values lie on the devices.

use super::region::{Region, annotation};
use super::{Builder, Op};
use crate::hlo::shape;
use crate::mesh::{Mesh, NamedSharding, PartitionSpec};
use crate::proto::HloInstructionProto;

impl<'b> Op<'b> {
    /// The value, which then lies on the devices as `sharding` says: `jax.lax.with_sharding_constraint`. As a result of the
    /// program it is what `out_shardings` of `jax.jit` is.
    #[track_caller]
    pub fn with_sharding(self, sharding: &NamedSharding) -> Op<'b> {
        let Some((_, dims)) = self.array("with_sharding") else { return self.builder.failed() };
        let region = self.builder.graph().region().cloned();
        let proto = match region {
            None => self.builder.checked_sharding(sharding, &dims),
            Some(region) if region.is_full() || *sharding.mesh() != region.mesh => {
                let message = "inside shard_map, values are those of one device";
                return self.builder.fail("with_sharding", message);
            }
            Some(region) => {
                let checked = sharding.check(&dims).map_err(|error| error.to_string());
                checked.and_then(|()| region.sharding(sharding.spec(), dims.len()))
            }
        };
        match proto {
            Ok(proto) => self.builder.push(annotation("Sharding", self.shape(), proto, None), &[self]),
            Err(message) => self.builder.fail("with_sharding", message),
        }
    }
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
        self.region(Region::full(mesh), arguments, result_specs, body)
    }

    /// As [`shard_map`](Self::shard_map), written for one device along these axes only, as `jax.shard_map` with `axis_names`:
    /// along the other axes of the mesh, which are automatic, values are whole and XLA divides the work. Specs and collectives
    /// name the former ones, [`Op::with_sharding`] inside names the latter.
    ///
    /// ```
    /// use spmd_run::builder::Builder;
    /// use spmd_run::dtype::DType::F32;
    /// use spmd_run::mesh::{Mesh, PartitionSpec};
    ///
    /// let mesh = Mesh::new(&[("data", 2), ("model", 4)])?;
    /// let b = Builder::new("layer");
    /// let x = b.sharded_parameter("x", F32, &[8, 16], &mesh.sharding(("data", None))?);
    /// let w = b.sharded_parameter("w", F32, &[16, 12], &mesh.sharding((None, "model"))?);
    /// let arguments = [(x, ("data",).into()), (w, ().into())];
    /// let mean = b.shard_map_over(&mesh, &["data"], &arguments, &[PartitionSpec::from(())], |part| {
    ///     let y = part[0].matmul(part[1]); // divided by columns over "model"
    ///     assert_eq!(y.dims(), [4, 12]);
    ///     vec![y.mean(&[0]).pmean(&["data"])]
    /// });
    /// b.build(&mean)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn shard_map_over<'b>(
        &'b self,
        mesh: &Mesh,
        axes: &[&str],
        arguments: &[(Op<'b>, PartitionSpec)],
        result_specs: &[PartitionSpec],
        body: impl FnOnce(&[Op<'b>]) -> Vec<Op<'b>>,
    ) -> Vec<Op<'b>> {
        match Region::over(mesh, axes) {
            Ok(region) => self.region(region, arguments, result_specs, body),
            Err(message) => {
                self.fail("shard_map_over", message);
                vec![self.failed(); result_specs.len()]
            }
        }
    }

    #[track_caller]
    fn region<'b>(
        &'b self,
        region: Region,
        arguments: &[(Op<'b>, PartitionSpec)],
        result_specs: &[PartitionSpec],
        body: impl FnOnce(&[Op<'b>]) -> Vec<Op<'b>>,
    ) -> Vec<Op<'b>> {
        let failed = || vec![self.failed(); result_specs.len()];
        if self.graph().region().is_some() {
            self.fail("shard_map", "there is one around it already");
            return failed();
        }
        let mut parts = Vec::with_capacity(arguments.len());
        let mut shapes = Vec::with_capacity(arguments.len());
        for (argument, spec) in arguments {
            let part = self.part_of(&region, *argument, spec);
            let Some(shape) = part.shape() else { return failed() };
            parts.push(part);
            shapes.push(shape);
        }
        let mut results = 0;
        let function = self.function("shard_map", &shapes, Some(region.clone()), |arguments| {
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
            wholes.push(self.whole_of(&region, made.element(index), spec));
        }
        wholes
    }

    /// Each device's part of an array, in a manual region.
    #[track_caller]
    pub(super) fn part_of<'b>(&'b self, region: &Region, whole: Op<'b>, spec: &PartitionSpec) -> Op<'b> {
        let Some((dtype, dims)) = whole.array("shard_map") else { return self.failed() };
        let rank = dims.len();
        let open = (!region.is_full()).then_some(rank);
        let made = self.border_sharding(region, spec).and_then(|sharding| {
            let part = sharding.shard_shape(&dims).map_err(|error| error.to_string())?;
            Ok((self.checked_sharding(&sharding, &dims)?, part, region.sharding((), rank)?))
        });
        match made {
            Ok((proto, part, own)) => {
                let cut = self.push(annotation("Sharding", whole.shape(), proto, open), &[whole]);
                if region.is_trivial() {
                    return cut;
                }
                let part = Some(shape::array(dtype, &part).into());
                let part = self.push(annotation("SPMDFullToShardShape", part, own, open), &[cut]);
                self.at_border(part, region, spec)
            }
            Err(message) => self.fail("shard_map", message),
        }
    }

    /// The array of which each device has a part, outside of the manual region.
    #[track_caller]
    pub(super) fn whole_of<'b>(&'b self, region: &Region, part: Op<'b>, spec: &PartitionSpec) -> Op<'b> {
        let Some((dtype, dims)) = part.array("shard_map") else { return self.failed() };
        let rank = dims.len();
        let open = (!region.is_full()).then_some(rank);
        let made = self.border_sharding(region, spec).and_then(|sharding| {
            let whole = sharding.whole_shape(&dims).map_err(|error| error.to_string())?;
            Ok((self.checked_sharding(&sharding, &whole)?, whole, region.sharding((), rank)?))
        });
        match made {
            Ok((proto, whole, own)) => {
                let part = self.push(annotation("Sharding", part.shape(), own, open), &[part]);
                if region.is_trivial() {
                    return part;
                }
                let whole = Some(shape::array(dtype, &whole).into());
                let whole = self.push(annotation("SPMDShardToFullShape", whole, proto, open), &[part]);
                self.at_border(whole, region, spec)
            }
            Err(message) => self.fail("shard_map", message),
        }
    }

    /// How arrays lie on the devices where they enter or leave a region.
    fn border_sharding(&self, region: &Region, spec: &PartitionSpec) -> Result<NamedSharding, String> {
        let sharding = region.mesh.sharding(spec).map_err(|error| error.to_string())?;
        region.check_manual(spec.axes())?;
        Ok(sharding)
    }

    fn at_border<'b>(&self, op: Op<'b>, region: &Region, spec: &PartitionSpec) -> Op<'b> {
        if let Some(id) = op.id {
            self.graph().borders.insert(id, (region.clone(), spec.clone()));
        }
        op
    }
}
