//! The global device view: which process has which devices.

use std::collections::HashSet;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::agreement::by_value;

/// One controller process and the devices that it opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Name of its host.
    pub host: String,
    /// Its process id on that host.
    pub pid: u32,
    /// Version of this crate that it runs.
    pub tool_version: String,
    /// PJRT's platform name: `cpu`, `cuda`, `tpu`.
    pub platform: String,
    /// The plugin's own words on its version.
    pub platform_version: String,
    /// Version of the PJRT C API that the plugin implements.
    pub pjrt_api_version: (i32, i32),
    /// Its devices, in the order of their local ordinals.
    pub devices: Vec<Device>,
    /// Where it accepts data from other processes; `None` in a job of one process.
    pub data_address: Option<SocketAddr>,
}

/// A device as the process that opened it sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Dense over the whole job, ordered by (process_index, local ordinal).
    pub id: u32,
    /// The plugin's own id, which is unique in the job only where the plugin sees all processes.
    pub plugin_id: i32,
    /// PJRT's device kind, e.g. `cpu`.
    pub kind: String,
    /// Its slice, from 0: devices of one slice share a fast interconnect.
    pub slice_index: u32,
}

/// All processes of a job, in the order of their indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    processes: Vec<Process>,
}

/// Processes that cannot form one job.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TopologyError {
    /// They run different software or platforms.
    #[error("processes differ in their {what}, which one job cannot have:\n{table}")]
    Mixed { what: &'static str, table: String },
    /// They have different numbers of devices.
    #[error("processes have different numbers of devices:\n{table}")]
    UnevenDevices { table: String },
}

impl Topology {
    /// Checks that the processes can work together and numbers their devices.
    pub fn new(mut processes: Vec<Process>) -> Result<Topology, TopologyError> {
        same(&processes, "spmd-run version", |process| process.tool_version.clone())?;
        same(&processes, "platform", |process| process.platform.clone())?;
        same(&processes, "plugin", |process| {
            let (major, minor) = process.pjrt_api_version;
            format!("PJRT C API {major}.{minor}, {}", process.platform_version)
        })?;
        same(&processes, "device count", |process| process.devices.len().to_string()).map_err(|error| match error {
            TopologyError::Mixed { table, .. } => TopologyError::UnevenDevices { table },
            other => other,
        })?;
        for (id, device) in (0..).zip(processes.iter_mut().flat_map(|process| &mut process.devices)) {
            device.id = id;
        }
        Ok(Topology { processes })
    }

    /// All processes, in the order of their indices.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// How many slices the devices belong to.
    pub fn slice_count(&self) -> usize {
        self.device_slices().into_iter().collect::<HashSet<_>>().len()
    }

    /// The slice of each device, by its id: what [`Mesh::hybrid`](crate::mesh::Mesh::hybrid) takes.
    pub fn device_slices(&self) -> Vec<u32> {
        self.processes.iter().flat_map(|process| &process.devices).map(|device| device.slice_index).collect()
    }

    /// The slice of each process.
    pub fn slices(&self) -> Vec<u32> {
        let slice = |process: &Process| process.devices.first().map_or(0, |device| device.slice_index);
        self.processes.iter().map(slice).collect()
    }

    /// Devices of the whole job.
    pub fn device_count(&self) -> usize {
        self.processes.iter().map(|process| process.devices.len()).sum()
    }

    /// How many devices each process has.
    pub fn devices_per_process(&self) -> Vec<u32> {
        self.processes.iter().map(|process| process.devices.len() as u32).collect()
    }

    /// The process that has a device; `None` if there is no such device.
    pub fn process_of(&self, device: u32) -> Option<u32> {
        let has = |process: &Process| process.devices.iter().any(|own| own.id == device);
        self.processes.iter().position(has).map(|process| process as u32)
    }

    /// Global ids of the devices of one process; empty for a process that there is not.
    pub fn device_ids(&self, process_index: u32) -> Vec<u32> {
        let process = self.processes.get(process_index as usize);
        process.map(|process| process.devices.iter().map(|device| device.id).collect()).unwrap_or_default()
    }
}

fn same(processes: &[Process], what: &'static str, property: impl Fn(&Process) -> String) -> Result<(), TopologyError> {
    let values: Vec<String> = processes.iter().map(property).collect();
    if values.iter().all(|value| Some(value) == values.first()) {
        return Ok(());
    }
    let hosts: Vec<(u32, &str)> = (0..).zip(processes.iter().map(|process| &*process.host)).collect();
    Err(TopologyError::Mixed { what, table: by_value(&hosts, &values) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(host: &str, devices: usize) -> Process {
        Process {
            host: host.into(),
            pid: 1,
            tool_version: "0.1.0".into(),
            platform: "cpu".into(),
            platform_version: "XLA".into(),
            pjrt_api_version: (0, 115),
            devices: vec![Device { id: 0, plugin_id: 0, kind: "cpu".into(), slice_index: 0 }; devices],
            data_address: None,
        }
    }

    #[test]
    fn ids_are_dense_over_processes() {
        let topology = Topology::new(vec![process("a", 2), process("b", 2)]).unwrap();
        assert_eq!(topology.device_count(), 4);
        assert_eq!(topology.device_ids(1), [2, 3]);
    }

    #[test]
    fn differences_are_shown_by_process() {
        let mut newer = process("b", 2);
        newer.pjrt_api_version = (0, 116);
        insta::assert_snapshot!(Topology::new(vec![process("a", 2), newer]).unwrap_err(), @r"
        processes differ in their plugin, which one job cannot have:
          process 0 (a): PJRT C API 0.115, XLA
          process 1 (b): PJRT C API 0.116, XLA
        ");
        insta::assert_snapshot!(Topology::new(vec![process("a", 2), process("b", 1)]).unwrap_err(), @r"
        processes have different numbers of devices:
          process 0 (a): 2
          process 1 (b): 1
        ");
    }
}
