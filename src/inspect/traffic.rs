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

use std::ops::AddAssign;

use serde::Serialize;

/// Bytes by the kind of link that they move over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LinkBytes {
    /// Between devices of one process.
    pub inside_process: u64,
    /// Between devices of different processes.
    pub between_processes: u64,
}

impl LinkBytes {
    /// Over all links.
    pub fn total(self) -> u64 {
        self.inside_process.saturating_add(self.between_processes)
    }

    /// The same, several times.
    pub(super) fn times(self, times: u64) -> LinkBytes {
        LinkBytes {
            inside_process: self.inside_process.saturating_mul(times),
            between_processes: self.between_processes.saturating_mul(times),
        }
    }
}

impl AddAssign for LinkBytes {
    fn add_assign(&mut self, other: LinkBytes) {
        self.inside_process = self.inside_process.saturating_add(other.inside_process);
        self.between_processes = self.between_processes.saturating_add(other.between_processes);
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

/// Which process has a device: ids are dense and processes have equally many.
pub(super) fn process_of(device: u32, devices_per_process: u32) -> u32 {
    device / devices_per_process.max(1)
}

/// What each device of a group moves, for operands of `operand_bytes` on each.
pub(super) fn of_group(
    pattern: Pattern,
    group: &[u32],
    operand_bytes: u64,
    devices_per_process: u32,
    mut add: impl FnMut(u32, LinkBytes),
) {
    let n = group.len() as u128;
    let bytes = u128::from(operand_bytes);
    let mut members = std::collections::HashMap::new();
    for &device in group {
        *members.entry(process_of(device, devices_per_process)).or_insert(0u128) += 1;
    }
    let first = group.first().map(|&device| process_of(device, devices_per_process));
    for (rank, &device) in group.iter().enumerate() {
        let process = process_of(device, devices_per_process);
        let m = members.get(&process).copied().unwrap_or(1);
        // Bytes for each of the others, as a fraction of n, before and after sharing within the process.
        let (whole, between) = match pattern {
            Pattern::AllReduce => (part(2 * (n - 1), n, bytes), part(2 * (n - m), n * m, bytes)),
            Pattern::AllGather => (part(n - 1, 1, bytes), part(n - m, m, bytes)),
            Pattern::ReduceScatter => (part(n - 1, n, bytes), part(n - m, n * m, bytes)),
            Pattern::AllToAll => (part(n - 1, n, bytes), part(n - m, n, bytes)),
            Pattern::Broadcast if rank == 0 => (0, 0),
            Pattern::Broadcast if Some(process) == first => (operand_bytes, 0),
            Pattern::Broadcast => (operand_bytes, part(1, m, bytes)),
        };
        add(device, LinkBytes { inside_process: whole.saturating_sub(between), between_processes: between });
    }
}

/// What a device moves that sends its operand to another.
pub(super) fn of_pair(source: u32, target: u32, operand_bytes: u64, devices_per_process: u32) -> LinkBytes {
    if source == target {
        LinkBytes::default()
    } else if process_of(source, devices_per_process) == process_of(target, devices_per_process) {
        LinkBytes { inside_process: operand_bytes, ..LinkBytes::default() }
    } else {
        LinkBytes { between_processes: operand_bytes, ..LinkBytes::default() }
    }
}

/// `bytes × numerator / denominator`, rounded up.
fn part(numerator: u128, denominator: u128, bytes: u128) -> u64 {
    let part = bytes.saturating_mul(numerator).div_ceil(denominator.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the busiest device moves: (inside, between).
    fn busiest(pattern: Pattern, group: &[u32], bytes: u64, devices_per_process: u32) -> (u64, u64) {
        let mut most = LinkBytes::default();
        of_group(pattern, group, bytes, devices_per_process, |_, moved| most = most.max(moved));
        (most.inside_process, most.between_processes)
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
        of_group(Pattern::AllGather, &[0, 1, 2], 60, 2, |device, bytes| moved.push((device, bytes)));
        let bytes = |inside_process, between_processes| LinkBytes { inside_process, between_processes };
        assert_eq!(moved, [(0, bytes(90, 30)), (1, bytes(90, 30)), (2, bytes(0, 120))]);
    }

    #[test]
    fn pairs() {
        assert_eq!(of_pair(0, 0, 64, 2), LinkBytes::default());
        assert_eq!(of_pair(0, 1, 64, 2), LinkBytes { inside_process: 64, between_processes: 0 });
        assert_eq!(of_pair(1, 2, 64, 2), LinkBytes { inside_process: 0, between_processes: 64 });
    }

    #[test]
    fn sizes_that_overflow_saturate() {
        assert_eq!(busiest(Pattern::AllGather, &[0, 1, 2], u64::MAX, 4), (u64::MAX, 0));
    }
}
