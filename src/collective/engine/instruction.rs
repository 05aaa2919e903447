use std::sync::Mutex;

use crate::collective::buffer::{Input, Output};
use crate::collective::error::CollectiveError;
use crate::collective::exchange::InstanceId;
use crate::collective::group::{Group, World};
use crate::collective::spec::{ArraySpec, CollectiveKind, CollectiveSpec};
use crate::collective::{cost, movement, reduction};

use super::{Algorithm, Choice, lock};

/// A group that has members on this process.
pub(super) struct LocalGroup {
    pub group: Group,
    pub plan: movement::Plan,
    pub pace: Pace,
    /// Whether all processes tell each other that they are there before anything else: those that exchange nothing later
    /// would not see that they disagree, and nobody knew who has yet to come.
    pub meets: bool,
}

/// Who runs a collective, so that no thread of the plugin waits for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// The thread of its last device: there is no other process to wait for.
    Local,
    /// The same thread sends what others need, and finishes unless these take their time.
    OneStep,
    /// The same thread tells the others that it is there, and goes on unless these take their time.
    Brief,
    /// A thread of the engine's.
    Long,
}

/// Messages up to this size travel before anyone knows whether the others are there.
pub(in crate::collective) const ONE_STEP_LIMIT: usize = 64 << 10;

impl LocalGroup {
    fn new(spec: &CollectiveSpec, mut group: Group, algorithm: Algorithm) -> LocalGroup {
        let mut plan = movement::Plan::new(spec, &group);
        // All processes of a group must find the same, as the messages of one step and of a brief one differ. Permutes
        // between more than two are never brief, and the messages of one step and of a long one are the same.
        let is_one_step = match spec.kind {
            _ if algorithm == Algorithm::Hierarchical && !group.islands.is_empty() => false,
            CollectiveKind::AllReduce { .. } | CollectiveKind::ReduceScatter { .. } => {
                reduction::is_one_step(spec, &group, ONE_STEP_LIMIT)
            }
            CollectiveKind::RaggedAllToAll => false,
            _ => movement::largest_message(spec, &group, &plan) <= ONE_STEP_LIMIT,
        };
        if !is_one_step && algorithm != Algorithm::Flat && !group.islands.is_empty() {
            group.is_layered = match spec.kind {
                CollectiveKind::AllReduce { .. } | CollectiveKind::ReduceScatter { .. } => true,
                _ => plan.go_by_islands(spec, &group),
            };
        }
        let is_layered = group.is_layered;
        // That everyone whom a process exchanges messages with is there must mean that all are: nobody then waits for one
        // that has yet to come. Targets of a permute or broadcast meet their source only.
        let knows_some =
            matches!(spec.kind, CollectiveKind::CollectivePermute { .. } | CollectiveKind::CollectiveBroadcast);
        let all_meet = group.parts.len() == 2 || is_layered || !knows_some;
        let pace = if group.parts.len() == 1 {
            Pace::Local
        } else if is_one_step {
            Pace::OneStep
        } else if all_meet && !spec.is_long() {
            Pace::Brief
        } else {
            Pace::Long
        };
        LocalGroup { group, plan, pace, meets: pace == Pace::Brief || is_layered }
    }
}

/// A collective of a program, prepared for this process.
pub(super) struct Instruction {
    pub spec: CollectiveSpec,
    pub digest: u64,
    /// By index; `None` for groups without members on this process.
    pub groups: Vec<Option<LocalGroup>>,
    /// All groups' members, for judging other processes' messages.
    pub members: Vec<Vec<u32>>,
    /// Group and rank of each local device.
    places: Vec<Option<(u32, usize)>>,
    operand_sizes: Vec<usize>,
    result_sizes: Vec<usize>,
    /// Per local device: the last run that called, and its number of calls.
    trips: Mutex<Vec<(u64, u64)>>,
}

impl Instruction {
    pub fn new(
        spec: CollectiveSpec,
        world: &World,
        processes: &[u32],
        islands: &[u32],
        choice: &Choice,
    ) -> Result<Instruction, CollectiveError> {
        let device_count = world.device_count();
        let members =
            if spec.groups.is_empty() { vec![(0..device_count).collect::<Vec<u32>>()] } else { spec.groups.clone() };
        spec.check(&members, device_count)?;
        let algorithm = match choice {
            Choice::Given(algorithm) => *algorithm,
            Choice::Predicted(cluster) if cost::prefers_islands(cluster, &spec, &members) => Algorithm::Hierarchical,
            Choice::Predicted(_) => Algorithm::Flat,
        };
        let with_plan = |members: &Vec<u32>| {
            let group = Group::new(members.clone(), processes, islands, world.process_index)?;
            Some(LocalGroup::new(&spec, group, algorithm))
        };
        let groups = members.iter().map(with_plan).collect();
        let mut places = vec![None; world.local_device_count() as usize];
        for (index, group) in members.iter().enumerate() {
            for (rank, &device) in group.iter().enumerate() {
                let local = device.checked_sub(world.first_local_device());
                if let Some(place) = local.and_then(|local| places.get_mut(local as usize)) {
                    *place = Some((index as u32, rank));
                }
            }
        }
        let sizes = |arrays: &[ArraySpec]| arrays.iter().map(|array| array.size().unwrap_or(0)).collect();
        Ok(Instruction {
            digest: spec.digest(),
            operand_sizes: sizes(&spec.operands),
            result_sizes: sizes(&spec.results),
            trips: Mutex::new(vec![(0, 0); places.len()]),
            groups,
            members,
            places,
            spec,
        })
    }

    /// A group, if it has members here.
    pub fn local(&self, group: u32) -> Option<&LocalGroup> {
        self.groups.get(group as usize)?.as_ref()
    }

    /// The first local device of a group.
    pub fn first_local_device(&self, group: u32) -> u32 {
        let in_group = |(_, place): &(u32, &Option<(u32, usize)>)| place.is_some_and(|(its, _)| its == group);
        (0..).zip(&self.places).find(in_group).map_or(0, |(device, _)| device)
    }

    /// The group and rank of a local device whose buffers fit the instruction.
    pub fn check_call(
        &self,
        local_device: u32,
        args: &[Input],
        results: &[Output],
    ) -> Result<(u32, usize), CollectiveError> {
        let invalid = |problem| CollectiveError::InvalidCall { instruction: self.spec.name.clone(), problem };
        let place = self.places.get(local_device as usize).copied().flatten();
        let place = place.ok_or_else(|| invalid(format!("local device {local_device} is in none of its groups")))?;
        if !args.iter().map(Input::len).eq(self.operand_sizes.iter().copied()) {
            let sizes: Vec<usize> = args.iter().map(Input::len).collect();
            return Err(invalid(format!("operands of {sizes:?} bytes instead of {:?}", self.operand_sizes)));
        }
        if !results.iter().map(Output::len).eq(self.result_sizes.iter().copied()) {
            let sizes: Vec<usize> = results.iter().map(Output::len).collect();
            return Err(invalid(format!("results of {sizes:?} bytes instead of {:?}", self.result_sizes)));
        }
        Ok(place)
    }

    pub fn next_trip(&self, local_device: u32, run: u64) -> Result<u64, String> {
        let mut trips = lock(&self.trips);
        let (last_run, calls) = &mut trips[local_device as usize];
        if run < *last_run {
            return Err(format!("local device {local_device} came from run {last_run} back to run {run}"));
        }
        if run > *last_run {
            (*last_run, *calls) = (run, 0);
        }
        *calls += 1;
        Ok(*calls - 1)
    }

    pub fn has_entered(&self, local_device: u32, id: &InstanceId) -> bool {
        let (last_run, calls) = lock(&self.trips)[local_device as usize];
        last_run > id.run || last_run == id.run && calls > id.trip
    }
}
