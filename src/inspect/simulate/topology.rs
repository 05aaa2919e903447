//! The cluster that a program is thought to run on.

use serde::Serialize;

use crate::collective::{Cluster, Link, Links};

/// A cluster whose hosts are all alike. Devices are numbered by slice, host and process, as in a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// Slices: groups of hosts that share a fast interconnect.
    pub slices: u32,
    /// Hosts of each slice.
    pub hosts_per_slice: u32,
    /// Controller processes of each host.
    pub processes_per_host: u32,
    /// Devices of each process.
    pub devices_per_process: u32,
    /// Between processes of a slice, for each process.
    pub ici: Link,
    /// Between slices, for each host: its processes share it.
    pub dcn: Link,
}

impl Topology {
    /// Devices of all slices.
    pub fn device_count(&self) -> u64 {
        self.process_count() * u64::from(self.devices_per_process)
    }

    /// Processes of all slices.
    pub fn process_count(&self) -> u64 {
        u64::from(self.host_count()) * u64::from(self.processes_per_host)
    }

    /// The same, device by device.
    pub(super) fn cluster(&self) -> Cluster {
        let numbers = |count: u64, each: u32| (0..count).map(|index| (index / u64::from(each.max(1))) as u32).collect();
        let hosts: Vec<u32> = numbers(self.process_count(), self.processes_per_host);
        let slices = hosts.iter().map(|host| host / self.hosts_per_slice.max(1)).collect();
        let links = Links { ici: self.ici, dcn: self.dcn };
        Cluster::new(numbers(self.device_count(), self.devices_per_process), hosts, slices, links)
    }

    fn host_count(&self) -> u32 {
        self.slices.saturating_mul(self.hosts_per_slice)
    }
}
