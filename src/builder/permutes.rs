//! Collectives made of permutes, for regions with automatic axes: there XLA's partitioner ends the process at an all-gather, an
//! all-to-all and the derivative of a reduce-scatter. As many bytes move as in those.

use super::{Builder, Op};
use crate::dtype::DType;
use crate::proto::{HloInstructionCommon, HloInstructionDetails, HloInstructionProto, SourceTarget};

/// The groups of devices that take part together, by partition.
type Groups = [Vec<i64>];

impl<'b> Op<'b> {
    /// As [`Op::all_gather`].
    #[track_caller]
    pub(super) fn gather_by_permutes(self, groups: &Groups, axes: &[&str], dim: usize) -> Op<'b> {
        let ring = Ring::new(self.builder, groups, axes);
        let (mut dims, size) = (self.dims(), self.dims()[dim]);
        dims[dim] *= ring.size;
        let mut whole = self.builder.zeros(self.dtype(), &dims);
        for step in 0..ring.size {
            whole =
                whole.dynamic_update_slice(ring.moved(self, step), &ring.at(ring.before(step), dim, size, dims.len()));
        }
        whole
    }

    /// As [`Op::psum_scatter`].
    #[track_caller]
    pub(super) fn scatter_by_permutes(self, groups: &Groups, axes: &[&str], dim: usize) -> Op<'b> {
        let ring = Ring::new(self.builder, groups, axes);
        let mut sum = ring.moved(ring.share(self, 0, dim), 0);
        for step in 1..ring.size {
            sum = sum + ring.moved(ring.share(self, step, dim), step);
        }
        sum
    }

    /// As [`Op::all_to_all`].
    #[track_caller]
    pub(super) fn exchange_by_permutes(self, groups: &Groups, axes: &[&str], split: usize, concat: usize) -> Op<'b> {
        let ring = Ring::new(self.builder, groups, axes);
        let mut dims = self.dims();
        dims[split] /= ring.size;
        let size = dims[concat];
        dims[concat] *= ring.size;
        let mut whole = self.builder.zeros(self.dtype(), &dims);
        for step in 0..ring.size {
            let part = ring.moved(ring.share(self, step, split), step);
            whole = whole.dynamic_update_slice(part, &ring.at(ring.before(step), concat, size, dims.len()));
        }
        whole
    }
}

/// The devices of a group, which each send to the one that is some steps further.
struct Ring<'a, 'b> {
    groups: &'a Groups,
    size: i64,
    /// This device's place in its group.
    place: Op<'b>,
}

impl<'b> Ring<'_, 'b> {
    #[track_caller]
    fn new<'a>(builder: &'b Builder, groups: &'a Groups, axes: &[&str]) -> Ring<'a, 'b> {
        let mut place = builder.scalar(DType::S32, 0);
        for axis in axes {
            let size = builder.graph().region().and_then(|region| region.mesh.axis_size(axis)).unwrap_or(1);
            place = place * size as i64 + builder.axis_index(axis);
        }
        Ring { groups, size: groups.first().map_or(1, |group| group.len() as i64), place }
    }

    /// The place of the device whose value arrives after this step.
    #[track_caller]
    fn before(&self, step: i64) -> Op<'b> {
        (self.place + (self.size - step)) % self.size
    }

    /// What the device `step` places before this one has.
    #[track_caller]
    fn moved(&self, value: Op<'b>, step: i64) -> Op<'b> {
        if step == 0 {
            return value;
        }
        let pairs = self.groups.iter().flat_map(|group| {
            let after = move |place: usize| group[(place + step as usize) % group.len()];
            let pair = move |(place, &source): (usize, &i64)| SourceTarget {
                source,
                target: after(place),
                ..SourceTarget::default()
            };
            group.iter().enumerate().map(pair)
        });
        let permute = HloInstructionProto::from(HloInstructionCommon {
            opcode: "collective-permute".into(),
            shape: value.shape().into(),
            channel_id: super::collectives::CHANNEL,
            ..Default::default()
        })
        .with_details(HloInstructionDetails { source_target_pairs: pairs.collect(), ..Default::default() });
        value.builder.push(permute, &[value])
    }

    /// The equal part of a value along a dimension that is for the device `step` places after this one.
    #[track_caller]
    fn share(&self, value: Op<'b>, step: i64, dim: usize) -> Op<'b> {
        let mut sizes = value.dims();
        sizes[dim] /= self.size;
        let to = (self.place + step) % self.size;
        value.dynamic_slice(&self.at(to, dim, sizes[dim], sizes.len()), &sizes)
    }

    /// Where the part of a place begins along a dimension, of which each has `size`.
    #[track_caller]
    fn at(&self, place: Op<'b>, dim: usize, size: i64, rank: usize) -> Vec<Op<'b>> {
        let zero = place.builder.scalar(DType::S32, 0);
        let mut starts = vec![zero; rank];
        starts[dim] = place * size;
        starts
    }
}
