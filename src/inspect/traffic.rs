//! How many bytes a collective moves, and over which links.
//!
//! The figures are what an algorithm that wastes nothing moves: those of nccl-tests' bus bandwidth. A device sends
//!
//! | collective | bytes, for `n` devices in a group |
//! |---|---|
//! | all-reduce | 2(n-1)/n × the operand |
//! | all-gather | (n-1)/n × the result |
//! | reduce-scatter, all-to-all | (n-1)/n × the operand |
//! | collective-permute | the operand, for every pair whose source it is |
//! | collective-broadcast | the operand, to every device but the first |
//!
//! What must cross between processes crosses once and is shared by the `m` devices that the group has in a process:
//! of the `n - 1` in these figures, `(n-m)/m` are between processes. With all-to-all nothing can be shared: `n-m` are.
//! The same holds of slices, and what crosses between these is not counted as between processes.

use std::collections::HashMap;
use std::ops::AddAssign;

use serde::Serialize;

/// Bytes by the kind of link that they move over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LinkBytes {
    /// Between devices of one process.
    pub inside_process: u64,
    /// Between devices of different processes of one slice.
    pub between_processes: u64,
    /// Between devices of different slices.
    pub between_slices: u64,
}

impl LinkBytes {
    /// Over all links.
    pub fn total(self) -> u64 {
        self.inside_process.saturating_add(self.between_processes).saturating_add(self.between_slices)
    }

    /// The same, several times.
    pub(super) fn times(self, times: u64) -> LinkBytes {
        LinkBytes {
            inside_process: self.inside_process.saturating_mul(times),
            between_processes: self.between_processes.saturating_mul(times),
            between_slices: self.between_slices.saturating_mul(times),
        }
    }
}

impl AddAssign for LinkBytes {
    fn add_assign(&mut self, other: LinkBytes) {
        self.inside_process = self.inside_process.saturating_add(other.inside_process);
        self.between_processes = self.between_processes.saturating_add(other.between_processes);
        self.between_slices = self.between_slices.saturating_add(other.between_slices);
    }
}

/// How a collective of groups moves its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
}

impl Pattern {
    /// The bytes of one device, in words.
    pub fn formula(self) -> &'static str {
        match self {
            Pattern::AllReduce => "2(n-1)/n × operand",
            Pattern::AllGather => "(n-1)/n × result",
            Pattern::ReduceScatter | Pattern::AllToAll => "(n-1)/n × operand",
            Pattern::Broadcast => "operand",
        }
    }
}

/// Where devices are: ids are dense, processes have equally many of them, and so have slices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub devices_per_process: u32,
    pub devices_per_slice: u32,
}

impl Places {
    pub fn process_of(self, device: u32) -> u32 {
        device / self.devices_per_process.max(1)
    }

    pub fn slice_of(self, device: u32) -> u32 {
        device / self.devices_per_slice.max(1)
    }
}

/// What each device of a group moves, for operands of `operand_bytes` on each.
pub(super) fn of_group(
    pattern: Pattern,
    group: &[u32],
    operand_bytes: u64,
    places: Places,
    mut add: impl FnMut(u32, LinkBytes),
) {
    let processes = Crossing::new(pattern, group, operand_bytes, |device| places.process_of(device));
    let slices = Crossing::new(pattern, group, operand_bytes, |device| places.slice_of(device));
    let devices = Crossing::new(pattern, group, operand_bytes, |device| device);
    for (rank, &device) in group.iter().enumerate() {
        let [all, outside, far] = [devices.of(rank), processes.of(rank), slices.of(rank)];
        let moved = LinkBytes {
            inside_process: all.saturating_sub(outside),
            between_processes: outside.saturating_sub(far),
            between_slices: far,
        };
        add(device, moved);
    }
}

/// What a collective moves between the parts that its group is in: devices, processes or slices.
struct Crossing {
    pattern: Pattern,
    operand_bytes: u64,
    /// The part of each member, by rank.
    parts: Vec<u32>,
    /// Members of each part.
    members: HashMap<u32, u128>,
}

impl Crossing {
    fn new(pattern: Pattern, group: &[u32], operand_bytes: u64, part_of: impl Fn(u32) -> u32) -> Crossing {
        let parts: Vec<u32> = group.iter().map(|&device| part_of(device)).collect();
        let mut members = HashMap::new();
        for &part in &parts {
            *members.entry(part).or_insert(0) += 1;
        }
        Crossing { pattern, operand_bytes, parts, members }
    }

    /// The share of the member of this rank.
    fn of(&self, rank: usize) -> u64 {
        let (n, bytes) = (self.parts.len() as u128, u128::from(self.operand_bytes));
        let m = self.members.get(&self.parts[rank]).copied().unwrap_or(1);
        match self.pattern {
            Pattern::AllReduce => fraction(2 * (n - m), n * m, bytes),
            Pattern::AllGather => fraction(n - m, m, bytes),
            Pattern::ReduceScatter => fraction(n - m, n * m, bytes),
            Pattern::AllToAll => fraction(n - m, n, bytes),
            Pattern::Broadcast if self.parts.first() == Some(&self.parts[rank]) => 0,
            Pattern::Broadcast => fraction(1, m, bytes),
        }
    }
}

/// What a device moves that sends its operand to another.
pub(super) fn of_pair(source: u32, target: u32, operand_bytes: u64, places: Places) -> LinkBytes {
    if source == target {
        LinkBytes::default()
    } else if places.process_of(source) == places.process_of(target) {
        LinkBytes { inside_process: operand_bytes, ..LinkBytes::default() }
    } else if places.slice_of(source) == places.slice_of(target) {
        LinkBytes { between_processes: operand_bytes, ..LinkBytes::default() }
    } else {
        LinkBytes { between_slices: operand_bytes, ..LinkBytes::default() }
    }
}

/// `bytes × numerator / denominator`, rounded up.
fn fraction(numerator: u128, denominator: u128, bytes: u128) -> u64 {
    let part = bytes.saturating_mul(numerator).div_ceil(denominator.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All in one slice.
    fn processes_of(devices_per_process: u32) -> Places {
        Places { devices_per_process, devices_per_slice: u32::MAX }
    }

    fn busiest_of(pattern: Pattern, group: &[u32], bytes: u64, places: Places) -> LinkBytes {
        let mut most = LinkBytes::default();
        of_group(pattern, group, bytes, places, |_, moved| most = most.max(moved));
        most
    }

    /// What the busiest device moves: (inside, between).
    fn busiest(pattern: Pattern, group: &[u32], bytes: u64, devices_per_process: u32) -> (u64, u64) {
        let most = busiest_of(pattern, group, bytes, processes_of(devices_per_process));
        (most.inside_process, most.between_processes)
    }

    /// Two slices of two processes of two devices: a quarter of what crosses between slices for each device of a slice.
    #[test]
    fn devices_of_a_slice_share_what_leaves_it() {
        let all: Vec<u32> = (0..8).collect();
        let places = Places { devices_per_process: 2, devices_per_slice: 4 };
        let bytes = |inside_process, between_processes, between_slices| LinkBytes {
            inside_process,
            between_processes,
            between_slices,
        };
        assert_eq!(busiest_of(Pattern::AllReduce, &all, 800, places), bytes(800, 400, 200));
        assert_eq!(busiest_of(Pattern::AllGather, &all, 100, places), bytes(400, 200, 100));
        assert_eq!(busiest_of(Pattern::AllToAll, &all, 800, places), bytes(100, 200, 400));
        // A mesh axis over slices: one device of each.
        assert_eq!(busiest_of(Pattern::AllReduce, &[0, 4], 800, places), bytes(0, 0, 800));
        assert_eq!(of_pair(1, 2, 64, places), bytes(0, 64, 0));
        assert_eq!(of_pair(1, 5, 64, places), bytes(0, 0, 64));
    }

    #[test]
    fn one_process_moves_what_nccl_tests_count() {
        let all: Vec<u32> = (0..8).collect();
        assert_eq!(busiest(Pattern::AllReduce, &all, 800, 8), (1400, 0));
        assert_eq!(busiest(Pattern::AllGather, &all, 100, 8), (700, 0));
        assert_eq!(busiest(Pattern::ReduceScatter, &all, 800, 8), (700, 0));
        assert_eq!(busiest(Pattern::AllToAll, &all, 800, 8), (700, 0));
        assert_eq!(busiest(Pattern::Broadcast, &all, 800, 8), (800, 0));
        assert_eq!(busiest(Pattern::AllReduce, &[3], 800, 8), (0, 0));
    }

    #[test]
    fn one_device_per_process_moves_all_between_processes() {
        let all: Vec<u32> = (0..4).collect();
        assert_eq!(busiest(Pattern::AllReduce, &all, 400, 1), (0, 600));
        assert_eq!(busiest(Pattern::AllGather, &all, 100, 1), (0, 300));
        assert_eq!(busiest(Pattern::AllToAll, &all, 400, 1), (0, 300));
    }

    /// Two processes of four: each must send 2 × 1/2 × 800 bytes to the other, a quarter of that for each device.
    #[test]
    fn devices_of_a_process_share_what_crosses() {
        let all: Vec<u32> = (0..8).collect();
        assert_eq!(busiest(Pattern::AllReduce, &all, 800, 4), (1200, 200));
        assert_eq!(busiest(Pattern::AllGather, &all, 100, 4), (600, 100));
        assert_eq!(busiest(Pattern::ReduceScatter, &all, 800, 4), (600, 100));
        // Each device has 100 bytes for each of the four devices of the other process.
        assert_eq!(busiest(Pattern::AllToAll, &all, 800, 4), (300, 400));
    }

    #[test]
    fn processes_with_few_members_cross_more() {
        let mut moved = Vec::new();
        of_group(Pattern::AllGather, &[0, 1, 2], 60, processes_of(2), |device, bytes| moved.push((device, bytes)));
        let bytes =
            |inside_process, between_processes| LinkBytes { inside_process, between_processes, between_slices: 0 };
        assert_eq!(moved, [(0, bytes(90, 30)), (1, bytes(90, 30)), (2, bytes(0, 120))]);
    }

    #[test]
    fn pairs() {
        assert_eq!(of_pair(0, 0, 64, processes_of(2)), LinkBytes::default());
        assert_eq!(of_pair(0, 1, 64, processes_of(2)), LinkBytes { inside_process: 64, ..LinkBytes::default() });
        assert_eq!(of_pair(1, 2, 64, processes_of(2)), LinkBytes { between_processes: 64, ..LinkBytes::default() });
    }

    #[test]
    fn sizes_that_overflow_saturate() {
        assert_eq!(busiest(Pattern::AllGather, &[0, 1, 2], u64::MAX, 4), (u64::MAX, 0));
    }
}
