//! Who takes part in a collective, in words.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use super::traffic::Places;
use crate::hlo::groups::{self, GroupError, GroupMode};
use crate::lower::Layout;
use crate::proto::HloInstructionProto;

/// More groups than these are not all listed.
const LISTED_GROUPS: usize = 4;
/// More members or pairs than these are not all listed.
const LISTED_MEMBERS: usize = 8;

/// Who takes part in a collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Participants {
    /// What the ids of its groups mean, by XLA's name of it.
    pub id_mode: &'static str,
    /// The groups or pairs in the ids that the program spells, long lists shortened.
    pub description: String,
    /// In which processes their devices are, and in which slices.
    pub placement: String,
    /// Some groups cross the border of a slice and others do not, or their devices are divided unevenly over slices: an
    /// axis that belongs inside a slice does not fit.
    pub straddles_slices: bool,
    /// The groups as global device ids, in rank order; of a collective-permute the (source, target) pairs.
    pub device_ids: Vec<Vec<u32>>,
}

/// What the ids of groups mean, in words.
pub fn explain_id_mode(mode: &str) -> &'static str {
    match mode {
        "cross_replica" => "ids are replicas, the same partition of each (no channel_id)",
        "cross_partition" => "ids are partitions of one replica (channel_id)",
        "cross_replica_and_partition" => "ids are replicas, with all their partitions (channel_id)",
        _ => "ids are replica × partitions + partition (channel_id, use_global_device_ids)",
    }
}

fn name(mode: GroupMode) -> &'static str {
    match mode {
        GroupMode::CrossReplica => "cross_replica",
        GroupMode::CrossPartition => "cross_partition",
        GroupMode::CrossReplicaAndPartition => "cross_replica_and_partition",
        GroupMode::FlattenedId => "flattened_id",
    }
}

/// The participants of a collective in a program for this layout.
pub(super) fn participants(
    instruction: &HloInstructionProto,
    layout: &Layout,
    places: Places,
) -> Result<Participants, GroupError> {
    let (replicas, partitions) = (layout.replicas, layout.partitions);
    let mode = groups::group_mode(instruction)?;
    let noun = match mode {
        GroupMode::CrossPartition => "partition",
        GroupMode::FlattenedId if replicas == 1 => "partition",
        GroupMode::FlattenedId if partitions > 1 => "device",
        _ => "replica",
    };
    let copies = match mode {
        GroupMode::CrossReplica if partitions > 1 => format!(", for each of {partitions} partitions"),
        GroupMode::CrossPartition if replicas > 1 => format!(", in each of {replicas} replicas"),
        GroupMode::CrossReplicaAndPartition if partitions > 1 => format!(", with all {partitions} partitions of each"),
        GroupMode::FlattenedId if replicas > 1 && partitions > 1 => {
            format!(" (device = replica × {partitions} + partition)")
        }
        _ => String::new(),
    };
    if instruction.opcode.starts_with("collective-permute") {
        let spelled: Vec<_> =
            instruction.details().source_target_pairs.iter().map(|pair| (pair.source, pair.target)).collect();
        let pairs = groups::device_pairs(instruction, replicas, partitions)?;
        let description = format!("{}{copies}", pairs_text(&spelled, noun));
        let device_ids: Vec<_> = pairs.into_iter().map(|(source, target)| vec![source, target]).collect();
        let placement = pairs_placement(&device_ids, layout, places);
        return Ok(Participants { id_mode: name(mode), description, placement, straddles_slices: false, device_ids });
    }
    let spelled = groups::replica_groups(instruction)?;
    let all_take_part = instruction.opcode != "collective-broadcast";
    let device_ids = groups::device_groups(instruction, replicas, partitions, all_take_part)?;
    let everyone = match mode {
        GroupMode::CrossReplica | GroupMode::CrossReplicaAndPartition => replicas,
        GroupMode::CrossPartition => partitions,
        GroupMode::FlattenedId => replicas * partitions,
    };
    let description = match &spelled[..] {
        [] => format!("all {} in one group{copies}", counted(everyone as usize, noun)),
        groups => format!("{}{copies}", groups_text(groups, noun)),
    };
    let placement = groups_placement(&device_ids, layout, places);
    let straddles_slices = straddles_slices(&device_ids, places);
    Ok(Participants { id_mode: name(mode), description, placement, straddles_slices, device_ids })
}

/// As in `4 groups of 2 partitions: {0,1} {2,3} {4,5} {6,7}`.
fn groups_text(groups: &[Vec<i64>], noun: &str) -> String {
    let least = groups.iter().map(Vec::len).min().unwrap_or(0);
    let most = groups.iter().map(Vec::len).max().unwrap_or(0);
    let sizes = if least == most { counted(most, noun) } else { format!("{least} to {}", counted(most, noun)) };
    let mut text = format!("{} of {sizes}:", counted(groups.len(), "group"));
    let group = |text: &mut String, members: &[i64]| {
        let _ = write!(text, " {{{}}}", shortened(members, ",", i64::to_string));
    };
    if groups.len() > LISTED_GROUPS {
        groups[..LISTED_GROUPS - 1].iter().for_each(|members| group(&mut text, members));
        text += " …";
        groups[groups.len() - 1..].iter().for_each(|members| group(&mut text, members));
    } else {
        groups.iter().for_each(|members| group(&mut text, members));
    }
    text
}

/// As in `4 pairs of partitions: 0→1 1→2 2→3 3→0`.
fn pairs_text(pairs: &[(i64, i64)], noun: &str) -> String {
    if pairs.is_empty() {
        return "no pairs".to_owned();
    }
    let listed = shortened(pairs, " ", |(source, target)| format!("{source}→{target}"));
    format!("{} of {noun}s: {listed}", counted(pairs.len(), "pair"))
}

fn shortened<T>(items: &[T], between: &str, text: impl Fn(&T) -> String) -> String {
    let mut parts: Vec<String>;
    if items.len() > LISTED_MEMBERS {
        parts = items[..LISTED_MEMBERS / 2].iter().map(&text).collect();
        parts.push("…".to_owned());
        parts.extend(items.last().map(&text));
    } else {
        parts = items.iter().map(&text).collect();
    }
    parts.join(between)
}

/// Whether the members that groups have in each slice differ in number, within a group or between groups of equal size.
fn straddles_slices(groups: &[Vec<u32>], places: Places) -> bool {
    let shares = groups.iter().map(|group| {
        let mut members: BTreeMap<u32, usize> = BTreeMap::new();
        group.iter().for_each(|&device| *members.entry(places.slice_of(device)).or_default() += 1);
        (group.len(), members.into_values().collect::<Vec<_>>())
    });
    let mut share_of_size: BTreeMap<usize, usize> = BTreeMap::new();
    shares.into_iter().any(|(size, shares)| {
        let share = *share_of_size.entry(size).or_insert(shares.first().copied().unwrap_or(0));
        shares.iter().any(|&other| other != share)
    })
}

fn groups_placement(groups: &[Vec<u32>], layout: &Layout, places: Places) -> String {
    let text = placement_in_processes(groups, layout, places);
    let slices = |group: &Vec<u32>| group.iter().map(|&device| places.slice_of(device)).collect::<BTreeSet<_>>().len();
    match groups.iter().map(slices).max() {
        Some(slices) if slices > 1 => format!("{text}, across {slices} slices"),
        _ => text,
    }
}

fn placement_in_processes(groups: &[Vec<u32>], layout: &Layout, places: Places) -> String {
    let processes = layout.devices_per_process.len();
    if processes == 1 {
        return "in one process".to_owned();
    }
    let spans: Vec<BTreeSet<u32>> =
        groups.iter().map(|group| group.iter().map(|&device| places.process_of(device)).collect()).collect();
    let across: Vec<&BTreeSet<u32>> = spans.iter().filter(|span| span.len() > 1).collect();
    let Some(first) = across.first() else {
        return "each group inside one process".to_owned();
    };
    let uniform = across.iter().all(|span| span.len() == first.len());
    let many = match uniform {
        true if first.len() == processes => format!("all {processes} processes"),
        true => format!("{} processes", first.len()),
        false => "several processes".to_owned(),
    };
    let inside = spans.len() - across.len();
    let who = match (spans.len(), inside) {
        (1, _) => "the group spans".to_owned(),
        (_, 0) => "each group spans".to_owned(),
        _ => format!("{inside} inside a process, {} across", across.len()),
    };
    let names: Vec<u32> = first.iter().copied().collect();
    let example = shortened(&names, ", ", u32::to_string);
    match (across.len(), first.len() == processes) {
        (_, true) => format!("{who} {many}"),
        (1, _) => format!("{who} processes {example}"),
        _ => format!("{who} {many}, the first processes {example}"),
    }
}

fn pairs_placement(pairs: &[Vec<u32>], layout: &Layout, places: Places) -> String {
    if layout.devices_per_process.len() == 1 {
        return "in one process".to_owned();
    }
    let same = |pair: &&Vec<u32>, part_of: &dyn Fn(u32) -> u32| {
        pair.iter().map(|&device| part_of(device)).collect::<BTreeSet<_>>().len() == 1
    };
    let inside = pairs.iter().filter(|pair| same(pair, &|device| places.process_of(device))).count();
    let text = match (inside, pairs.len() - inside) {
        (_, 0) => "all pairs inside a process".to_owned(),
        (0, _) => "all pairs between processes".to_owned(),
        (inside, across) => format!("{} inside a process, {across} between processes", counted(inside, "pair")),
    };
    match pairs.iter().filter(|pair| !same(pair, &|device| places.slice_of(device))).count() {
        0 => text,
        far => format!("{text}, {far} of them between slices"),
    }
}

fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo;

    /// The participants of a collective with these attributes, for processes of two devices.
    fn words(opcode: &str, attributes: &str, replicas: i64, partitions: i64) -> String {
        words_in_slices(opcode, attributes, replicas, partitions, u32::MAX)
    }

    fn words_in_slices(
        opcode: &str,
        attributes: &str,
        replicas: i64,
        partitions: i64,
        devices_per_slice: u32,
    ) -> String {
        let to_apply = if opcode == "all-reduce" { ", to_apply=add" } else { "" };
        let text = format!(
            "HloModule m

add {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}}

ENTRY main {{
  p = f32[4] parameter(0)
  ROOT it = f32[4] {opcode}(p), {attributes}{to_apply}
}}"
        );
        let module = hlo::parse(&text, "m.hlo").unwrap_or_else(|error| panic!("{error}"));
        let instructions = module.proto.computations.iter().flat_map(|computation| &computation.instructions);
        let instruction = instructions.into_iter().find(|instruction| instruction.name == "it").unwrap();
        let devices_per_process = vec![2; (replicas * partitions / 2) as usize];
        let places = Places { devices_per_process: 2, devices_per_slice };
        let found = participants(instruction, &Layout { replicas, partitions, devices_per_process }, places).unwrap();
        let straddles = if found.straddles_slices { "; straddles" } else { "" };
        format!("{}; {}; {}{straddles}", found.id_mode, found.description, found.placement)
    }

    #[test]
    fn slices() {
        let words = |groups: &str, devices_per_slice| {
            let attributes = format!("channel_id=1, use_global_device_ids=true, replica_groups={groups}");
            words_in_slices("all-reduce", &attributes, 1, 8, devices_per_slice)
        };
        insta::assert_snapshot!(words("[2,4]<=[8]", 4), @"flattened_id; 2 groups of 4 partitions: {0,1,2,3} {4,5,6,7}; each group spans 2 processes, the first processes 0, 1");
        insta::assert_snapshot!(words("[4,2]<=[2,4]T(1,0)", 4), @"flattened_id; 4 groups of 2 partitions: {0,4} {1,5} {2,6} {3,7}; each group spans 2 processes, the first processes 0, 2, across 2 slices");
        insta::assert_snapshot!(words("[1,8]<=[8]", 4), @"flattened_id; 1 group of 8 partitions: {0,1,2,3,4,5,6,7}; the group spans all 4 processes, across 2 slices");
        // Four devices of a mesh axis, two slices of six and two devices.
        insta::assert_snapshot!(words("[2,4]<=[8]", 6), @"flattened_id; 2 groups of 4 partitions: {0,1,2,3} {4,5,6,7}; each group spans 2 processes, the first processes 0, 1, across 2 slices; straddles");
        insta::assert_snapshot!(words("{{0,1,4},{2,3},{5,6,7}}", 4), @"flattened_id; 3 groups of 2 to 3 partitions: {0,1,4} {2,3} {5,6,7}; 1 inside a process, 2 across 2 processes, the first processes 0, 2, across 2 slices; straddles");
        insta::assert_snapshot!(
            words_in_slices("collective-permute", "channel_id=1, source_target_pairs={{0,1},{1,2},{3,4},{7,0}}", 1, 8, 4),
            @"cross_partition; 4 pairs of partitions: 0→1 1→2 3→4 7→0; 1 pair inside a process, 3 between processes, 2 of them between slices"
        );
    }

    #[test]
    fn replicas() {
        insta::assert_snapshot!(
            words("all-reduce", "replica_groups={{0,1},{2,3}}", 4, 1),
            @"cross_replica; 2 groups of 2 replicas: {0,1} {2,3}; each group inside one process"
        );
        insta::assert_snapshot!(
            words("all-reduce", "replica_groups={}", 2, 2),
            @"cross_replica; all 2 replicas in one group, for each of 2 partitions; each group spans all 2 processes"
        );
    }

    #[test]
    fn partitions() {
        insta::assert_snapshot!(
            words("all-to-all", "channel_id=1, dimensions={0}, replica_groups={{0,2},{1,3}}", 1, 4),
            @"cross_partition; 2 groups of 2 partitions: {0,2} {1,3}; each group spans all 2 processes"
        );
        insta::assert_snapshot!(
            words("all-to-all", "channel_id=1, dimensions={0}, replica_groups={{0,1},{2,3}}", 2, 4),
            @"cross_partition; 2 groups of 2 partitions: {0,1} {2,3}, in each of 2 replicas; each group inside one process"
        );
    }

    #[test]
    fn replicas_with_their_partitions() {
        insta::assert_snapshot!(
            words("all-reduce", "channel_id=1, replica_groups={{0,1},{2,3}}", 4, 2),
            @"cross_replica_and_partition; 2 groups of 2 replicas: {0,1} {2,3}, with all 2 partitions of each; each group spans 2 processes, the first processes 0, 1"
        );
    }

    #[test]
    fn flattened_ids() {
        let attributes = "channel_id=1, use_global_device_ids=true, replica_groups=";
        insta::assert_snapshot!(
            words("all-reduce", &format!("{attributes}[4,2]<=[8]"), 1, 8),
            @"flattened_id; 4 groups of 2 partitions: {0,1} {2,3} {4,5} {6,7}; each group inside one process"
        );
        insta::assert_snapshot!(
            words("all-reduce", &format!("{attributes}[8,8]<=[64]"), 4, 16),
            @"flattened_id; 8 groups of 8 devices: {0,1,2,3,4,5,6,7} {8,9,10,11,12,13,14,15} {16,17,18,19,20,21,22,23} … {56,57,58,59,60,61,62,63} (device = replica × 16 + partition); each group spans 4 processes, the first processes 0, 1, 2, 3"
        );
        insta::assert_snapshot!(
            words("all-reduce", &format!("{attributes}{{{{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14}},{{15}}}}"), 1, 16),
            @"flattened_id; 2 groups of 1 to 15 partitions: {0,1,2,3,…,14} {15}; 1 inside a process, 1 across all 8 processes"
        );
    }

    #[test]
    fn pairs() {
        insta::assert_snapshot!(
            words("collective-permute", "channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}", 1, 4),
            @"cross_partition; 4 pairs of partitions: 0→1 1→2 2→3 3→0; 2 pairs inside a process, 2 between processes"
        );
        insta::assert_snapshot!(
            words("collective-permute", "source_target_pairs={{0,1}}", 2, 2),
            @"cross_replica; 1 pair of replicas: 0→1, for each of 2 partitions; all pairs between processes"
        );
    }
}
