use std::collections::HashMap;

use super::error::CollectiveError;

/// The processes of a job and their devices. Global device ids are dense, ordered by process, then by local ordinal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Which process this is.
    pub process_index: u32,
    /// Number of devices of each process.
    pub devices_per_process: Vec<u32>,
    /// The slice of each process; empty where all are of one.
    pub slices: Vec<u32>,
}

impl World {
    /// Number of devices of all processes.
    pub fn device_count(&self) -> u32 {
        self.devices_per_process.iter().sum()
    }

    /// Number of devices of this process.
    pub fn local_device_count(&self) -> u32 {
        self.devices_per_process.get(self.process_index as usize).copied().unwrap_or(0)
    }

    /// The global id of local device 0.
    pub fn first_local_device(&self) -> u32 {
        self.devices_per_process.iter().take(self.process_index as usize).sum()
    }

    pub(super) fn check(&self) -> Result<(), CollectiveError> {
        let count = self.devices_per_process.iter().try_fold(0u32, |sum, &devices| sum.checked_add(devices));
        if count.is_none() {
            return Err(CollectiveError::InvalidWorld("the job has more devices than there are ids".to_owned()));
        }
        if self.process_index as usize >= self.devices_per_process.len() {
            return Err(CollectiveError::InvalidWorld(format!(
                "process {} of {} does not exist",
                self.process_index,
                self.devices_per_process.len()
            )));
        }
        Ok(())
    }

    /// The process of every device.
    pub(super) fn processes(&self) -> Vec<u32> {
        let per_process = self.devices_per_process.iter().enumerate();
        per_process.flat_map(|(process, &devices)| std::iter::repeat_n(process as u32, devices as usize)).collect()
    }
}

/// A group of devices that run a collective together.
#[derive(Debug)]
pub(super) struct Group {
    /// Global device ids in rank order.
    pub members: Vec<u32>,
    /// The processes that have members, in process order.
    pub parts: Vec<Part>,
    /// Position of this process in `parts`.
    pub mine: usize,
    /// Positions in `parts` by island, where there are several islands and several processes on some of them; else empty.
    pub islands: Vec<Vec<usize>>,
    /// Whether the processes of an island act together towards others; else islands only tell the order of combining.
    pub is_layered: bool,
}

/// The members of a group on one process.
#[derive(Debug)]
pub(super) struct Part {
    pub process: u32,
    /// Ascending.
    pub ranks: Vec<usize>,
}

impl Group {
    /// The group of these devices; `None` if this process has none of them. `processes` holds every device's process, `islands`
    /// a number for each process's island.
    pub fn new(members: Vec<u32>, processes: &[u32], islands: &[u32], process_index: u32) -> Option<Group> {
        let mut ranks_of: HashMap<u32, Vec<usize>> = HashMap::new();
        for (rank, &device) in members.iter().enumerate() {
            let process = *processes.get(device as usize)?;
            ranks_of.entry(process).or_default().push(rank);
        }
        let mut parts: Vec<Part> = ranks_of.into_iter().map(|(process, ranks)| Part { process, ranks }).collect();
        parts.sort_by_key(|part| part.process);
        let mine = parts.iter().position(|part| part.process == process_index)?;
        let mut by_island: Vec<(Option<&u32>, Vec<usize>)> = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let island = islands.get(part.process as usize);
            match by_island.iter_mut().find(|(other, _)| island.is_some() && *other == island) {
                Some((_, indices)) => indices.push(index),
                None => by_island.push((island, vec![index])),
            }
        }
        let has_islands = by_island.len() > 1 && by_island.len() < parts.len();
        let islands =
            if has_islands { by_island.into_iter().map(|(_, indices)| indices).collect() } else { Vec::new() };
        Some(Group { members, parts, mine, islands, is_layered: false })
    }

    /// The ranks of this process' members.
    pub fn local_ranks(&self) -> &[usize] {
        &self.parts[self.mine].ranks
    }

    /// The island of the part at `index`, and its place among the parts there.
    pub fn place(&self, index: usize) -> (usize, usize) {
        let places = self.islands.iter().enumerate();
        let mut places =
            places.filter_map(|(island, parts)| Some((island, parts.iter().position(|part| *part == index)?)));
        places.next().unwrap_or((0, 0))
    }

    /// Position in `parts` of the process that does on `island` what concerns the part at `index`, which is on another one.
    pub fn carrier(&self, island: usize, index: usize) -> usize {
        let parts = &self.islands[island];
        parts[self.place(index).1 % parts.len()]
    }

    /// Devices of an island.
    pub fn devices_of(&self, island: usize) -> usize {
        self.islands[island].iter().map(|&part| self.parts[part].ranks.len()).sum()
    }

    /// The other processes' parts, beginning with the one after this process, so that not everyone turns to the same
    /// one first.
    pub fn peers(&self) -> impl Iterator<Item = &Part> {
        self.parts[self.mine + 1..].iter().chain(&self.parts[..self.mine])
    }
}
