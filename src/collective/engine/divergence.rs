use crate::collective::exchange::InstanceId;
use crate::collective::group::Group;
use crate::transport::Tag;

use super::instruction::Instruction;
use super::{Shared, State, lock};

impl Shared {
    /// We wait for process `peer` in `id`, and it shows by `tag` where one of its devices is. Says why the two can never
    /// meet, if so: a device of `peer` that has yet to come to `id` waits for one of ours, which waits here.
    pub(super) fn judge(
        &self,
        id: &InstanceId,
        instruction: &Instruction,
        group: &Group,
        peer: u32,
        tag: &Tag,
    ) -> Option<String> {
        let (theirs, digest) = InstanceId::of_tag(tag);
        let here = self.world.process_index;
        let state = lock(&self.state);
        if theirs == *id {
            return (digest != instruction.digest).then(|| {
                format!(
                    "{} is a different instruction on process {peer} than on process {here}: compare its kind, groups, \
                     element types and shapes",
                    state.name(id)
                )
            });
        }
        let other = state.instruction(&theirs)?;
        let members = other.members.get(theirs.group as usize)?;
        let in_both = |process: u32| {
            let shared = members.iter().filter(|device| group.members.contains(device));
            shared.copied().find(|&device| self.processes.get(device as usize) == Some(&process))
        };
        let (ours, their_device) = (in_both(here)?, in_both(peer)?);
        if other.has_entered(ours - self.world.first_local_device(), &theirs) {
            return None;
        }
        Some(format!(
            "device {ours} of process {here} is in {}, device {their_device} of process {peer} is in {}",
            state.name(id),
            state.name(&theirs)
        ))
    }

    /// Says so if `id` waits for a local device that waits for one of `id`'s in another call.
    pub(super) fn local_divergence(&self, state: &State, id: &InstanceId) -> Option<String> {
        let first = self.world.first_local_device();
        let locals = |id: &InstanceId| {
            let instruction = state.instruction(id);
            let members = instruction.and_then(|found| found.members.get(id.group as usize).cloned());
            let locals = members.into_iter().flatten().filter_map(move |device| device.checked_sub(first));
            locals.filter(|&local| (local as usize) < state.current.len()).collect::<Vec<u32>>()
        };
        let members = locals(id);
        let arrived: Vec<u32> =
            state.gathering.get(id)?.waiting.iter().map(|(local_device, _)| *local_device).collect();
        for &local in members.iter().filter(|local| !arrived.contains(local)) {
            let Some(other) = state.current[local as usize] else { continue };
            if !state.gathering.contains_key(&other) {
                continue;
            }
            if let Some(waiting) = locals(&other).into_iter().find(|member| arrived.contains(member)) {
                return Some(format!(
                    "device {} is in {}, device {} is in {}",
                    first + waiting,
                    state.name(id),
                    first + local,
                    state.name(&other)
                ));
            }
        }
        None
    }
}
