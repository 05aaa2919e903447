use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::quantity::{InvalidQuantity, parse_bandwidth, parse_seconds};

/// What a link carries, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Seconds until the first byte of a message arrives.
    pub latency_seconds: f64,
}

impl FromStr for Link {
    type Err = InvalidQuantity;

    /// Bandwidth and latency, as in `100GB/s,1us` or `10Gbit/s,0.2ms`.
    fn from_str(text: &str) -> Result<Link, InvalidQuantity> {
        let wrong = || InvalidQuantity::new(text, "a bandwidth and a latency, as in 100GB/s,1us or 10Gbit/s,0.2ms");
        let (bandwidth, latency) = text.split_once(',').ok_or_else(wrong)?;
        let latency_seconds = parse_seconds(latency).map_err(|_| wrong())?;
        Ok(Link { bytes_per_second: parse_bandwidth(bandwidth).map_err(|_| wrong())?, latency_seconds })
    }
}

/// The links of a job: inside islands, which are slices or else hosts, and between them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// Between processes of an island, for each process while all use it.
    pub ici: Link,
    /// Between islands, for each host: its processes share it.
    pub dcn: Link,
}

/// Where processes are and what connects them, for predictions. The same on every process of a job.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The process of each device.
    processes: Vec<u32>,
    /// The host of each process.
    hosts: Vec<u32>,
    /// The slice of each process.
    slices: Vec<u32>,
    host_count: usize,
    processes_per_host: usize,
    pub(super) ici: Link,
    pub(super) dcn: Link,
}

impl Cluster {
    /// A cluster by the process of each device, and the host and slice of each process, hosts numbered from 0.
    pub fn new(processes: Vec<u32>, hosts: Vec<u32>, slices: Vec<u32>, links: Links) -> Cluster {
        let mut of_hosts = vec![0; hosts.iter().max().map_or(0, |&last| last as usize + 1)];
        hosts.iter().for_each(|&host| of_hosts[host as usize] += 1);
        Cluster {
            processes,
            hosts,
            slices,
            host_count: of_hosts.len(),
            processes_per_host: of_hosts.into_iter().max().unwrap_or(1),
            ici: links.ici,
            dcn: links.dcn,
        }
    }

    pub(super) fn has_slices(&self) -> bool {
        self.slices.iter().any(|slice| Some(slice) != self.slices.first())
    }

    pub(super) fn process_count(&self) -> usize {
        self.hosts.len()
    }

    pub(super) fn host_count(&self) -> usize {
        self.host_count
    }

    pub(super) fn processes_per_host(&self) -> usize {
        self.processes_per_host
    }

    pub(super) fn process_of(&self, device: u32) -> u32 {
        self.processes.get(device as usize).copied().unwrap_or(0)
    }

    pub(super) fn host_of(&self, process: u32) -> u32 {
        self.hosts.get(process as usize).copied().unwrap_or(0)
    }

    pub(super) fn slice_of(&self, process: u32) -> u32 {
        self.slices.get(process as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_a_bandwidth_and_a_latency() {
        let link = |text: &str| text.parse::<Link>();
        assert_eq!(link("100GB/s,1us"), Ok(Link { bytes_per_second: 1e11, latency_seconds: 1e-6 }));
        assert_eq!(link("1Gbit/s, 0.5ms"), Ok(Link { bytes_per_second: 1.25e8, latency_seconds: 5e-4 }));
        assert_eq!(link("6GB/s,0").unwrap().latency_seconds, 0.0);
        insta::assert_snapshot!(link("100,1us").unwrap_err(), @"'100,1us' is not a bandwidth and a latency, as in 100GB/s,1us or 10Gbit/s,0.2ms");
        assert!(link("-1GB/s,1us").is_err() && link("1GB/s").is_err() && link("nanGB/s,1us").is_err());
    }
}
