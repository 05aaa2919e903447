//! The devices that arrays lie on and programs run on, and the processes that have them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use crate::collective::{CollectiveKind, CollectiveSpec};
use crate::mesh::Mesh;
use crate::pjrt::DeviceAssignment;

use super::{Runtime, RuntimeError, Topology, World};

/// Devices of a job, all or those of a mesh. What lies on them concerns the processes that have some of them: only these
/// number, compare and wait for what they do there, so that others can do something else at the same time.
pub(super) struct DeviceList {
    /// Global ids in ascending order: a program's partition d runs on the d-th.
    ids: Vec<u32>,
    /// The processes that have them, in order.
    processes: Vec<u32>,
    /// How many each of these has, if all have as many.
    per_process: Option<u32>,
    /// These processes.
    world: World,
    is_whole: bool,
    programs: AtomicU64,
    gatherings: AtomicU64,
}

impl DeviceList {
    /// The devices of the whole job.
    pub fn whole(topology: &Topology, world: &World) -> Result<DeviceList, RuntimeError> {
        let ids: Vec<u32> = (0..topology.device_count() as u32).collect();
        DeviceList::new(&ids, topology, world)
    }

    fn new(ids: &[u32], topology: &Topology, world: &World) -> Result<DeviceList, RuntimeError> {
        let owner = |&device: &u32| {
            let missing = RuntimeError::NoSuchDevice { device, count: topology.device_count() };
            topology.process_of(device).ok_or(missing)
        };
        let owners: Vec<u32> = ids.iter().map(owner).collect::<Result<_, _>>()?;
        let mut processes = owners.clone();
        processes.dedup();
        let share = |process: &u32| owners.iter().filter(|owner| *owner == process).count() as u32;
        let first = processes.first().map(share);
        let is_even = processes.iter().all(|process| Some(share(process)) == first);
        let is_whole = ids.len() == topology.device_count();
        Ok(DeviceList {
            ids: ids.to_vec(),
            per_process: first.filter(|_| is_even),
            world: if is_whole { world.clone() } else { world.among(&processes) },
            processes,
            is_whole,
            programs: AtomicU64::new(0),
            gatherings: AtomicU64::new(0),
        })
    }

    /// Global ids in ascending order.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The processes that have them, in order.
    pub fn processes(&self) -> &[u32] {
        &self.processes
    }

    /// These processes as a world of their own.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// How many devices each process has; a program needs the same number on each.
    pub fn per_process(&self) -> Result<u32, RuntimeError> {
        self.per_process.ok_or_else(|| RuntimeError::UnevenMesh { devices: self.ids.clone() })
    }

    /// The partition on a device.
    pub fn partition_of(&self, device: u32) -> Option<usize> {
        self.ids.binary_search(&device).ok()
    }

    /// The process that has the device of a partition.
    pub fn process_of(&self, partition: usize, topology: &Topology) -> u32 {
        self.ids.get(partition).and_then(|&id| topology.process_of(id)).unwrap_or(0)
    }

    /// Those of this process, with their partitions.
    pub fn of(&self, process: u32, topology: &Topology) -> Vec<(u32, usize)> {
        let own = topology.device_ids(process).into_iter();
        own.filter_map(|id| Some((id, self.partition_of(id)?))).collect()
    }

    /// The collectives of a program, which name partitions, between devices of the job.
    pub fn of_job(&self, mut collectives: Vec<CollectiveSpec>) -> Vec<CollectiveSpec> {
        let id = |number: &mut u32| *number = self.ids.get(*number as usize).copied().unwrap_or(*number);
        for spec in &mut collectives {
            if spec.groups.is_empty() {
                spec.groups = vec![(0..self.ids.len() as u32).collect()];
            }
            spec.groups.iter_mut().flatten().for_each(id);
            if let CollectiveKind::CollectivePermute { pairs } = &mut spec.kind {
                pairs.iter_mut().flat_map(|(source, target)| [source, target]).for_each(id);
            }
        }
        collectives
    }

    /// Which of this process's devices run a program that is compiled for so many partitions, as the plugin numbers them;
    /// `None` if all do.
    pub fn assignment_on(&self, runtime: &Runtime, partitions: i64) -> Option<DeviceAssignment> {
        let (own, local) = (self.of(runtime.process_index(), &runtime.topology), runtime.local_device_ids());
        if own.len() == local.len() {
            return None;
        }
        let devices = runtime.client.addressable_devices();
        let plugin_id = |(id, _): &(u32, usize)| {
            let place = local.iter().position(|other| other == id)?;
            Some(devices.get(place)?.id().into())
        };
        let ids: Vec<i64> = own.iter().filter_map(plugin_id).collect();
        Some(DeviceAssignment(ids.chunks(partitions.max(1) as usize).map(<[i64]>::to_vec).collect()))
    }

    /// A number that all its processes give the same program, and no other one of the job has.
    pub fn next_program(&self) -> u64 {
        self.unique(self.programs.fetch_add(1, Ordering::Relaxed))
    }

    /// The number that the next program will have.
    pub fn coming_program(&self) -> u64 {
        self.unique(self.programs.load(Ordering::Relaxed))
    }

    /// As [`next_program`](Self::next_program), of a gathering of arrays or another thing that they do together once.
    pub fn next_gathering(&self) -> u64 {
        self.unique(self.gatherings.fetch_add(1, Ordering::Relaxed))
    }

    /// Processes count by device list, as nobody knows what others do on theirs.
    fn unique(&self, number: u64) -> u64 {
        if self.is_whole {
            return number;
        }
        let mut hasher = blake3::Hasher::new();
        self.ids.iter().for_each(|id| {
            hasher.update(&id.to_le_bytes());
        });
        hasher.update(&number.to_le_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first) | 1 << 63
    }
}

impl Runtime {
    /// Whether this process has devices of the mesh. Those that have make arrays and programs on it, the others do not.
    pub fn takes_part(&self, mesh: &Mesh) -> bool {
        self.local_device_ids().into_iter().any(|device| mesh.partition_of(device).is_some())
    }

    /// The list of these devices, in ascending order, of which this process has some.
    pub(super) fn device_list(&self, ids: &[u32]) -> Result<Arc<DeviceList>, RuntimeError> {
        if ids == self.devices.ids() {
            return Ok(Arc::clone(&self.devices));
        }
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = parts.iter().find(|list| list.ids() == ids) {
            return Ok(Arc::clone(known));
        }
        let list = Arc::new(DeviceList::new(ids, &self.topology, &self.world)?);
        if !list.processes().contains(&self.process_index()) {
            let (process, devices) = (self.process_index(), ids.to_vec());
            return Err(RuntimeError::NotTakingPart { process, devices });
        }
        parts.push(Arc::clone(&list));
        Ok(list)
    }
}
