//! Collectives between the devices of a mesh, inside [`Builder::shard_map`].

use super::region::annotation;
use super::{Builder, Op};
use crate::dtype::DType;
use crate::hlo::groups::set_replica_groups;
use crate::hlo::shape;
use crate::host_array::HostArray;
use crate::mesh::Mesh;
use crate::proto::op_sharding::Type;
use crate::proto::{
    HloInstructionCommon, HloInstructionDetails, HloInstructionProto, OpSharding, ShapeProto, SourceTarget,
};

/// Marks a collective as one between partitions, as JAX does.
pub(super) const CHANNEL: i64 = 1;

fn manual() -> OpSharding {
    OpSharding { r#type: Type::MANUAL.into(), ..OpSharding::default() }
}

impl Builder {
    /// The mesh of the region that is being built, and the groups of its devices along these axes, by partition.
    #[track_caller]
    fn groups(&self, what: &str, axes: &[&str]) -> Option<(Mesh, Vec<Vec<i64>>)> {
        let region = self.graph().region().cloned();
        let Some(region) = region else {
            self.fail(what, "collectives are for the body of shard_map: outside of it, arrays are whole");
            return None;
        };
        let groups = region.mesh.groups(axes).map_err(|error| error.to_string());
        match groups.and_then(|groups| region.check_manual(axes.iter().copied()).map(|()| groups)) {
            Ok(groups) => {
                let mesh = region.mesh;
                let partition = |device: u32| mesh.partition_of(device).map(|partition| partition as i64);
                let group = |group: Vec<u32>| group.into_iter().filter_map(partition).collect();
                let groups = groups.into_iter().map(group).collect();
                Some((mesh, groups))
            }
            Err(error) => {
                self.fail(what, error);
                None
            }
        }
    }

    /// Whether the region that is being built is manual along some axes only.
    fn has_automatic_axes(&self) -> bool {
        self.graph().marking_region().is_some()
    }

    /// This device's place along an axis of the mesh, an `s32`, as `jax.lax.axis_index`. Only inside [`Builder::shard_map`].
    #[track_caller]
    pub fn axis_index(&self, axis: &str) -> Op<'_> {
        let Some((mesh, groups)) = self.groups("axis_index", &[axis]) else { return self.failed() };
        if are_single(&groups) {
            return self.scalar(DType::S32, 0);
        }
        let mut places = vec![0i32; mesh.device_count()];
        let inner: usize =
            mesh.axes().iter().rev().take_while(|(name, _)| name != axis).map(|(_, size)| size).product();
        let size = mesh.axis_size(axis).unwrap_or(1);
        for (place, partition) in mesh.partitions().into_iter().enumerate() {
            places[partition as usize] = (place / inner % size) as i32;
        }
        let bytes = places.iter().flat_map(|place| place.to_le_bytes()).collect();
        let table = match HostArray::new(DType::S32, vec![places.len()], bytes) {
            Ok(table) => table,
            Err(error) => return self.fail("axis_index", error),
        };
        let partial = self.graph().marking_region().cloned();
        let Some(region) = partial else { return self.place_in(&table) };
        // What is looked up by the device's number is manual along all axes, and then along some only.
        let Some(function) = self.function("axis_index", &[] as &[ShapeProto], None, |_| self.place_in(&table)) else {
            return self.failed();
        };
        let place = self.push_calling(HloInstructionProto::new("call"), &[], &[function]);
        let shape = place.shape();
        match region.sharding((), 0) {
            Ok(own) => {
                let place = self.push(annotation("Sharding", shape.clone(), manual(), None), &[place]);
                self.push(annotation("SPMDShardToFullShape", shape, own, None), &[place])
            }
            Err(message) => self.fail("axis_index", message),
        }
    }

    /// The entry of this device in a table of all.
    #[track_caller]
    fn place_in(&self, table: &HostArray) -> Op<'_> {
        // The partitioner refuses the instruction where it is not clear whose place it is.
        let device = HloInstructionProto::from(HloInstructionCommon {
            opcode: "partition-id".into(),
            sharding: Some(manual()).into(),
            ..Default::default()
        });
        let device = self.push(device, &[]).convert(DType::S32);
        self.constant(table).dynamic_slice(&[device], &[1]).reshape(&[])
    }
}

impl<'b> Op<'b> {
    #[track_caller]
    fn all_reduce(self, opcode: &str, axes: &[&str]) -> Op<'b> {
        let (Some((dtype, _)), Some((_, groups))) = (self.array(opcode), self.builder.groups("all-reduce", axes))
        else {
            return self.builder.failed();
        };
        let Some(reducer) = self.builder.reducer(opcode, dtype) else { return self.builder.failed() };
        if are_single(&groups) {
            return self;
        }
        let mut reduce = collective("all-reduce", groups);
        reduce.shape = self.shape().into();
        self.builder.push_calling(reduce, &[self], &[reducer])
    }

    /// The sum over the devices along these axes of the mesh, the same on each, as `jax.lax.psum`.
    #[track_caller]
    pub fn psum(self, axes: &[&str]) -> Op<'b> {
        self.all_reduce("add", axes)
    }

    /// The largest over the devices along these axes, element by element, as `jax.lax.pmax`.
    #[track_caller]
    pub fn pmax(self, axes: &[&str]) -> Op<'b> {
        self.all_reduce("maximum", axes)
    }

    /// The smallest over the devices along these axes, element by element, as `jax.lax.pmin`.
    #[track_caller]
    pub fn pmin(self, axes: &[&str]) -> Op<'b> {
        self.all_reduce("minimum", axes)
    }

    /// The mean over the devices along these axes, as `jax.lax.pmean`.
    #[track_caller]
    pub fn pmean(self, axes: &[&str]) -> Op<'b> {
        match self.builder.groups("pmean", axes) {
            Some((_, groups)) => self.psum(axes) / groups.first().map_or(1, Vec::len) as f64,
            None => self.builder.failed(),
        }
    }

    /// The values of all devices along these axes one after the other along a dimension, as
    /// `jax.lax.all_gather(…, tiled=True)`.
    #[track_caller]
    pub fn all_gather(self, axes: &[&str], dim: i64) -> Op<'b> {
        let (Some((dtype, mut dims)), Some(dim)) = (self.array("all-gather"), self.axis("all-gather", dim)) else {
            return self.builder.failed();
        };
        let Some((_, groups)) = self.builder.groups("all-gather", axes) else { return self.builder.failed() };
        if are_single(&groups) {
            return self;
        }
        if self.builder.has_automatic_axes() {
            return self.gather_by_permutes(&groups, axes, dim);
        }
        dims[dim] = dims[dim].saturating_mul(groups.first().map_or(1, Vec::len) as i64);
        let mut gather = collective("all-gather", groups);
        gather.shape = shape::array(dtype, &dims).into();
        gather.dimensions = vec![dim as i64];
        self.builder.push(gather, &[self])
    }

    /// The sum over the devices along these axes, of which each gets an equal part along a dimension, as
    /// `jax.lax.psum_scatter(…, tiled=True)`.
    #[track_caller]
    pub fn psum_scatter(self, axes: &[&str], dim: i64) -> Op<'b> {
        let (Some((dtype, mut dims)), Some(dim)) = (self.array("reduce-scatter"), self.axis("reduce-scatter", dim))
        else {
            return self.builder.failed();
        };
        let Some((_, groups)) = self.builder.groups("reduce-scatter", axes) else { return self.builder.failed() };
        let parts = groups.first().map_or(1, Vec::len) as i64;
        if self.builder.has_automatic_axes() && dims[dim] % parts == 0 {
            return self.scatter_by_permutes(&groups, axes, dim);
        }
        dims[dim] /= parts;
        let Some(reducer) = self.builder.reducer("add", dtype) else { return self.builder.failed() };
        if are_single(&groups) {
            return self;
        }
        let mut scatter = collective("reduce-scatter", groups);
        scatter.shape = shape::array(dtype, &dims).into();
        scatter.dimensions = vec![dim as i64];
        self.builder.push_calling(scatter, &[self], &[reducer])
    }

    /// Each device's value cut along dimension `split` into a part for each device along these axes; those received are put
    /// together along dimension `concat`, as `jax.lax.all_to_all(…, tiled=True)`.
    #[track_caller]
    pub fn all_to_all(self, axes: &[&str], split: i64, concat: i64) -> Op<'b> {
        let (Some((_, dims)), Some(split)) = (self.array("all-to-all"), self.axis("all-to-all", split)) else {
            return self.builder.failed();
        };
        let Some(concat) = self.axis("all-to-all", concat) else { return self.builder.failed() };
        let Some((_, groups)) = self.builder.groups("all-to-all", axes) else { return self.builder.failed() };
        if are_single(&groups) {
            return self;
        }
        let parts = groups.first().map_or(1, Vec::len) as i64;
        if self.builder.has_automatic_axes() && dims[split] % parts == 0 {
            return self.exchange_by_permutes(&groups, axes, split, concat);
        }
        let mut exchange = collective("all-to-all", groups);
        exchange.shape = self.shape().into();
        exchange.dimensions = vec![split as i64];
        exchange.details_mut().use_global_device_ids = false;
        let received = self.builder.push(exchange, &[self]);
        if split == concat || received.id.is_none() {
            return received;
        }
        // The parts lie along the dimension that was split: they move in front of the other one.
        let mut apart = dims.clone();
        apart[split] /= parts;
        apart.insert(split, parts);
        let mut order: Vec<i64> = (0..apart.len() as i64).filter(|&dim| dim != split as i64).collect();
        order.insert(concat, split as i64);
        let mut whole = dims;
        whole[split] /= parts;
        whole[concat] *= parts;
        received.reshape(&apart).transpose(&order).reshape(&whole)
    }

    /// The value of another device along an axis: each pair names a sender and its receiver by their places on the axis, as
    /// `jax.lax.ppermute`. Devices that receive nothing get zeros.
    #[track_caller]
    pub fn ppermute(self, axis: &str, pairs: &[(usize, usize)]) -> Op<'b> {
        let Some((_, groups)) = self.builder.groups("collective-permute", &[axis]) else {
            return self.builder.failed();
        };
        let mut source_target_pairs = Vec::new();
        for group in &groups {
            for &(source, target) in pairs {
                let (Some(&source), Some(&target)) = (group.get(source), group.get(target)) else {
                    let message = format!("({source}, {target}) are no places on an axis of {} devices", group.len());
                    return self.builder.fail("collective-permute", message);
                };
                source_target_pairs.push(SourceTarget { source, target, ..SourceTarget::default() });
            }
        }
        if are_single(&groups) {
            return if pairs.is_empty() { self.zeros_like() } else { self };
        }
        let permute = HloInstructionProto::from(HloInstructionCommon {
            opcode: "collective-permute".into(),
            shape: self.shape().into(),
            channel_id: CHANNEL,
            ..Default::default()
        })
        .with_details(HloInstructionDetails { source_target_pairs, ..Default::default() });
        self.builder.push(permute, &[self])
    }
}

/// Whether each device is in a group of its own, so that there is nobody to exchange values with.
fn are_single(groups: &[Vec<i64>]) -> bool {
    groups.iter().all(|group| group.len() == 1)
}

fn collective(opcode: &str, groups: Vec<Vec<i64>>) -> HloInstructionProto {
    let mut instruction = HloInstructionProto::from(HloInstructionCommon {
        opcode: opcode.into(),
        channel_id: CHANNEL,
        ..Default::default()
    })
    .with_details(HloInstructionDetails { use_global_device_ids: true, ..Default::default() });
    set_replica_groups(&mut instruction, groups);
    instruction
}
