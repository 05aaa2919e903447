//! What libtpu reads from its environment: which of a slice's processes this is, where the others are, and which of several
//! slices this one is.
//!
//! The names are those that GKE sets and that JAX's `test_multiprocess.py` uses for several processes on one host. What is set
//! already counts: a scheduler knows better.

use std::env;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Introduction;
use crate::cluster::host;

const VISIBLE: &str = "TPU_VISIBLE_CHIPS";
const BOUNDS: &str = "TPU_PROCESS_BOUNDS";
const PORT: &str = "TPU_PROCESS_PORT";
const ADDRESSES: &str = "TPU_PROCESS_ADDRESSES";
const TASK: &str = "CLOUD_TPU_TASK_ID";
const WORKER: &str = "TPU_WORKER_ID";
const HOST_NAMES: &str = "TPU_WORKER_HOSTNAMES";
const SLICE: &str = "MEGASCALE_SLICE_ID";
const SLICES: &str = "MEGASCALE_NUM_SLICES";
const COORDINATOR: &str = "MEGASCALE_COORDINATOR_ADDRESS";
const SKIP_METADATA: &str = "TPU_SKIP_MDS_QUERY";

/// A process's share of its host's chips, if it has only a part of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Chips {
    visible: Option<u32>,
    port: Option<String>,
}

impl Chips {
    pub fn of_environment() -> Chips {
        let visible = env::var(VISIBLE).ok().map(|chips| chips.split(',').count() as u32);
        Chips { visible, port: env::var(PORT).ok() }
    }
}

/// Whether this file is libtpu, by its name.
pub(super) fn is_libtpu(plugin: &Path) -> bool {
    plugin.file_name().is_some_and(|name| name.to_string_lossy().contains("libtpu"))
}

type Variables = Vec<(&'static str, String)>;

/// For a process alone: a host without chips is none of Google's, and nobody answers questions about it.
pub(super) fn without_peers() -> Variables {
    let is_asked = env::var_os(SKIP_METADATA).is_none() && host::tpu_chips(Path::new("/")).is_empty();
    if is_asked { vec![(SKIP_METADATA, "1".to_owned())] } else { Vec::new() }
}

/// The variables of one process of several that are not set yet.
pub(super) fn variables(all: &[Introduction], mine: usize) -> Variables {
    let mut variables = place(all, mine);
    // What the launcher gave to a process that is alone with its chips does not hold for one of several.
    variables.retain(|(name, _)| matches!(*name, BOUNDS | ADDRESSES | TASK) || env::var_os(name).is_none());
    variables.extend(without_peers());
    variables
}

fn place(all: &[Introduction], mine: usize) -> Variables {
    let Some(own) = all.get(mine) else { return Vec::new() };
    let mates: Vec<&Introduction> = all.iter().filter(|other| other.slice == own.slice).collect();
    let rank = all[..mine].iter().filter(|other| other.slice == own.slice).count().to_string();
    let slices = all.iter().map(|other| other.slice).max().map_or(1, |last| last + 1);
    let mut variables = Vec::new();
    if let Some(chips) = own.tpu.visible {
        // Several processes of one host share its chips, in rectangles.
        let bounds = match (mates.len(), chips) {
            (1, _) => "1,1,1",
            (2, 1) => "1,2,1",
            (2, 2) => "2,1,1",
            (4, 1) => "2,2,1",
            (8, 1) => "4,2,1",
            (2, 4) => "1,2,1",
            _ => return Vec::new(),
        };
        let address = |mate: &&Introduction| Some(format!("{}:{}", mate.address, mate.tpu.port.as_ref()?));
        let Some(addresses) = mates.iter().map(address).collect::<Option<Vec<_>>>() else { return Vec::new() };
        variables.extend([(BOUNDS, bounds.to_owned()), (ADDRESSES, addresses.join(",")), (TASK, rank)]);
    } else {
        let names: Vec<String> = mates.iter().map(|mate| mate.address.to_string()).collect();
        variables.extend([(WORKER, rank), (HOST_NAMES, names.join(","))]);
    }
    if slices > 1 {
        let first = all.first().map_or_else(String::new, |first| first.address.to_string());
        variables.extend([(SLICES, slices.to_string()), (SLICE, own.slice.to_string()), (COORDINATOR, first)]);
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(all: &[Introduction], mine: usize) -> String {
        place(all, mine).into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    fn process(slice: u32, host: u8, chip: Option<u16>) -> Introduction {
        let tpu = Chips { visible: chip.map(|_| 1), port: chip.map(|chip| (8476 + chip).to_string()) };
        Introduction { slice, address: [10, 0, 0, host].into(), tpu }
    }

    #[test]
    fn hosts_of_several_slices() {
        let all: Vec<_> = [(0, 1), (0, 2), (1, 3), (1, 4)].map(|(slice, host)| process(slice, host, None)).into();
        insta::assert_snapshot!(text(&all, 3), @"TPU_WORKER_ID=1 TPU_WORKER_HOSTNAMES=10.0.0.3,10.0.0.4 MEGASCALE_NUM_SLICES=2 MEGASCALE_SLICE_ID=1 MEGASCALE_COORDINATOR_ADDRESS=10.0.0.1");
        insta::assert_snapshot!(text(&all[..2], 0), @"TPU_WORKER_ID=0 TPU_WORKER_HOSTNAMES=10.0.0.1,10.0.0.2");
    }

    #[test]
    fn processes_that_share_the_chips_of_a_host() {
        let all: Vec<_> = (0..4).map(|chip| process(0, 1, Some(chip))).collect();
        insta::assert_snapshot!(text(&all, 2), @"TPU_PROCESS_BOUNDS=2,2,1 TPU_PROCESS_ADDRESSES=10.0.0.1:8476,10.0.0.1:8477,10.0.0.1:8478,10.0.0.1:8479 CLOUD_TPU_TASK_ID=2");
    }
}
