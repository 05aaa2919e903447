//! Which accelerator chips of its host each controller sees.
//!
//! The variables for TPUs are those of libtpu, as JAX's own tests of several processes on one host (`test_multiprocess.py`)
//! and Ray set them: a part of the chips takes all of them together. Each controller is an island of its own, with
//! no links between chips of different ones.

use std::env;
use std::path::Path;

use crate::cluster::host::{self, Vendor};

/// Chips that the controllers cannot have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChipsError {
    /// There are none of a kind that can be divided.
    #[error("--chips: this host has neither TPU chips nor NVIDIA GPUs")]
    None,
    /// One that the host does not have, or that this process may not use.
    #[error("--chips: there is no chip {chip}: this host has {count}, from 0 to {}{}", .count - 1, of_visible(.visible))]
    NoSuch {
        /// The chip.
        chip: u32,
        /// How many there are.
        count: usize,
        /// The variable that says so, with its value.
        visible: Option<String>,
    },
    /// More or fewer than one share for each controller.
    #[error("--chips: {processes} processes cannot share {chips} chips evenly")]
    Uneven {
        /// How many chips were asked for.
        chips: usize,
        /// How many controllers this host has.
        processes: u32,
    },
    /// A number of TPU chips that make no rectangle.
    #[error("--chips: a process takes 1, 2, 4 or 8 TPU chips, not {0}")]
    NoRectangle(usize),
}

fn of_visible(visible: &Option<String>) -> String {
    visible.as_ref().map_or(String::new(), |visible| format!(" of {visible}"))
}

/// How a controller's environment must change: variables to set, and those to remove.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub set: Vec<(&'static str, String)>,
    pub remove: &'static [&'static str],
}

const CUDA_VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
const TPU_VISIBLE: &str = "TPU_VISIBLE_CHIPS";
/// Where libtpu's part of a process listens, plus the process's first chip.
const TPU_PORT: u32 = 8476;
/// Older names of what is set, which would contradict it.
const TPU_OLD: [&str; 3] = ["TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS", "TPU_VISIBLE_DEVICES"];

/// Divides these chips of this host in order among its controllers. The numbers are places in the list of visible chips,
/// where the environment has one, as schedulers set it.
pub fn divide(chips: &[u32], processes: u32) -> Result<Vec<Change>, ChipsError> {
    let all = host::chips(Path::new("/"));
    let on_bus = |vendor| all.iter().filter(|chip| chip.vendor == vendor).count();
    let visible = |name| env::var(name).ok().filter(|visible| !visible.trim().is_empty());
    // In a container the bus may not be seen, and what Ray or Kubernetes gives counts.
    let is_tpu = on_bus(Vendor::Google) > 0 || on_bus(Vendor::Nvidia) == 0 && visible(TPU_VISIBLE).is_some();
    let (vendor, variable) = if is_tpu { (Vendor::Google, TPU_VISIBLE) } else { (Vendor::Nvidia, CUDA_VISIBLE) };
    let visible = visible(variable);
    let count = on_bus(vendor).max(visible.iter().flat_map(|visible| visible.split(',')).count());
    divide_among(vendor, count, visible.as_deref(), chips, processes)
}

fn divide_among(
    vendor: Vendor,
    count: usize,
    visible: Option<&str>,
    chips: &[u32],
    processes: u32,
) -> Result<Vec<Change>, ChipsError> {
    if count == 0 {
        return Err(ChipsError::None);
    }
    let variable = if vendor == Vendor::Google { TPU_VISIBLE } else { CUDA_VISIBLE };
    let all: Vec<String> = match visible {
        Some(visible) => visible.split(',').map(|chip| chip.trim().to_owned()).collect(),
        None => (0..count).map(|chip| chip.to_string()).collect(),
    };
    let named = |&chip: &u32| {
        let visible = || visible.map(|visible| format!("{variable}={visible}"));
        all.get(chip as usize).cloned().ok_or_else(|| ChipsError::NoSuch { chip, count: all.len(), visible: visible() })
    };
    let names = chips.iter().map(named).collect::<Result<Vec<_>, _>>()?;
    let processes_here = processes as usize;
    if names.is_empty() || names.len() % processes_here != 0 {
        return Err(ChipsError::Uneven { chips: names.len(), processes });
    }
    let each = names.len() / processes_here;
    let change = |(names, chips): (&[String], &[u32])| match vendor {
        Vendor::Nvidia => Ok(Change { set: vec![(CUDA_VISIBLE, names.join(","))], remove: &[] }),
        // libtpu knows best how all chips of a host are linked.
        Vendor::Google if each == count => Ok(Change { set: Vec::new(), remove: &TPU_OLD }),
        Vendor::Google => {
            let bounds = match each {
                1 => "1,1,1",
                2 => "1,2,1",
                4 => "2,2,1",
                8 => "2,4,1",
                _ => return Err(ChipsError::NoRectangle(each)),
            };
            let port = TPU_PORT + chips.first().copied().unwrap_or_default();
            let set = vec![
                (TPU_VISIBLE, names.join(",")),
                ("TPU_CHIPS_PER_PROCESS_BOUNDS", bounds.to_owned()),
                ("TPU_PROCESS_BOUNDS", "1,1,1".to_owned()),
                ("TPU_PROCESS_ADDRESSES", format!("localhost:{port}")),
                ("TPU_PROCESS_PORT", port.to_string()),
                ("CLOUD_TPU_TASK_ID", "0".to_owned()),
                // Its lock file is one for the whole host.
                ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1".to_owned()),
            ];
            Ok(Change { set, remove: &TPU_OLD })
        }
    };
    names.chunks(each).zip(chips.chunks(each)).map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(vendor: Vendor, count: usize, visible: Option<&str>, chips: &[u32], processes: u32) -> String {
        let line = |change: &Change| {
            let set: Vec<_> = change.set.iter().map(|(name, value)| format!("{name}={value}")).collect();
            set.join(" ")
        };
        match divide_among(vendor, count, visible, chips, processes) {
            Ok(changes) => changes.iter().map(line).collect::<Vec<_>>().join("\n"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn tpu_chips() {
        let tpu = |chips: &[u32], processes| variables(Vendor::Google, 4, None, chips, processes);
        insta::assert_snapshot!(tpu(&[1, 3], 2), @r"
        TPU_VISIBLE_CHIPS=1 TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 TPU_PROCESS_BOUNDS=1,1,1 TPU_PROCESS_ADDRESSES=localhost:8477 TPU_PROCESS_PORT=8477 CLOUD_TPU_TASK_ID=0 ALLOW_MULTIPLE_LIBTPU_LOAD=1
        TPU_VISIBLE_CHIPS=3 TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 TPU_PROCESS_BOUNDS=1,1,1 TPU_PROCESS_ADDRESSES=localhost:8479 TPU_PROCESS_PORT=8479 CLOUD_TPU_TASK_ID=0 ALLOW_MULTIPLE_LIBTPU_LOAD=1
        ");
        insta::assert_snapshot!(tpu(&[2, 3], 1), @"TPU_VISIBLE_CHIPS=2,3 TPU_CHIPS_PER_PROCESS_BOUNDS=1,2,1 TPU_PROCESS_BOUNDS=1,1,1 TPU_PROCESS_ADDRESSES=localhost:8478 TPU_PROCESS_PORT=8478 CLOUD_TPU_TASK_ID=0 ALLOW_MULTIPLE_LIBTPU_LOAD=1");
        assert_eq!(tpu(&[0, 1, 2, 3], 1), "");
        insta::assert_snapshot!(tpu(&[0, 4], 2), @"--chips: there is no chip 4: this host has 4, from 0 to 3");
        insta::assert_snapshot!(tpu(&[0, 1, 2], 2), @"--chips: 2 processes cannot share 3 chips evenly");
        insta::assert_snapshot!(tpu(&[0, 1, 2], 1), @"--chips: a process takes 1, 2, 4 or 8 TPU chips, not 3");
        insta::assert_snapshot!(variables(Vendor::Google, 0, None, &[0], 1), @"--chips: this host has neither TPU chips nor NVIDIA GPUs");
    }

    #[test]
    fn gpus_that_a_scheduler_gave() {
        let gpu = |visible, chips: &[u32]| variables(Vendor::Nvidia, 8, visible, chips, 2);
        assert_eq!(gpu(None, &[0, 1, 6, 7]), "CUDA_VISIBLE_DEVICES=0,1\nCUDA_VISIBLE_DEVICES=6,7");
        assert_eq!(gpu(Some("5, GPU-1234"), &[0, 1]), "CUDA_VISIBLE_DEVICES=5\nCUDA_VISIBLE_DEVICES=GPU-1234");
        insta::assert_snapshot!(gpu(Some("5,6"), &[5, 6]), @"--chips: there is no chip 5: this host has 2, from 0 to 1 of CUDA_VISIBLE_DEVICES=5,6");
    }
}
