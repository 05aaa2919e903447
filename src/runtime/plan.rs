//! How many devices a program needs, and how they are spread over processes.

use serde::{Deserialize, Serialize};

/// The shape of a job: `replicas × partitions` devices, the same number of them in each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// XLA's `num_replicas`.
    pub replicas: u32,
    /// XLA's `num_partitions`.
    pub partitions: u32,
    /// Controller processes.
    pub processes: u32,
    /// Devices that each process opens.
    pub devices_per_process: u32,
}

/// What the user asked for and what the program says, before they are matched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// `num_replicas` as the program's header says it.
    pub program_replicas: Option<u64>,
    /// `num_partitions` as the program's header or its shardings say it.
    pub program_partitions: Option<u64>,
    /// `--num-replicas`
    pub replicas: Option<u64>,
    /// `--num-partitions`
    pub partitions: Option<u64>,
    /// Controller processes (`-n`).
    pub processes: u32,
    /// `--devices-per-process`
    pub devices_per_process: Option<u32>,
}

/// A program and a set of devices that do not match.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PlanError {
    /// A flag contradicts the program.
    #[error("the program says {name}={program}, but {flag} {given} was given: leave the flag out")]
    Contradiction { name: &'static str, flag: &'static str, program: u64, given: u64 },
    /// The global view has another number of devices than the program needs.
    #[error("the program needs {}, the global view has {found}: {advice}", needs(*replicas, *partitions))]
    DeviceCount { replicas: u64, partitions: u64, found: u64, advice: String },
    /// The program's devices cannot be spread evenly.
    #[error("the program needs {}, which {processes} processes cannot share evenly: {advice}", needs(*replicas, *partitions))]
    Uneven { replicas: u64, partitions: u64, processes: u32, advice: String },
    /// More devices than a process can have.
    #[error(
        "the program needs {}, too many for {}: each has at most {MAX_DEVICES}",
        needs(*replicas, *partitions), count((*processes).into(), "process", "processes")
    )]
    TooMany { replicas: u64, partitions: u64, processes: u32 },
}

/// The most devices that XLA's CPU client makes.
const MAX_DEVICES: u32 = 2048;

fn needs(replicas: u64, partitions: u64) -> String {
    let devices = u128::from(replicas) * u128::from(partitions);
    format!("{} ({})", count(devices, "device", "devices"), parts(replicas, partitions))
}

fn parts(replicas: u64, partitions: u64) -> String {
    format!(
        "{} × {}",
        count(replicas.into(), "replica", "replicas"),
        count(partitions.into(), "partition", "partitions")
    )
}

fn count(number: u128, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

fn agreed(
    name: &'static str,
    flag: &'static str,
    program: Option<u64>,
    given: Option<u64>,
) -> Result<Option<u64>, PlanError> {
    match (program, given) {
        (Some(program), Some(given)) if program != given => {
            Err(PlanError::Contradiction { name, flag, program, given })
        }
        (program, given) => Ok(program.or(given)),
    }
}

impl Plan {
    /// Matches program and devices. A program that says nothing about replicas and partitions runs replicated: every
    /// device computes the same.
    pub fn new(request: &Request) -> Result<Plan, PlanError> {
        let replicas = agreed("replica_count", "--num-replicas", request.program_replicas, request.replicas)?;
        let partitions = agreed("num_partitions", "--num-partitions", request.program_partitions, request.partitions)?;
        let processes = request.processes;
        let (replicas, partitions) = (replicas.unwrap_or(1), partitions.unwrap_or(1));
        let found = u64::from(processes) * u64::from(request.devices_per_process.unwrap_or(1));
        let needed = u128::from(replicas) * u128::from(partitions);
        let too_many = || PlanError::TooMany { replicas, partitions, processes };

        if needed == 1 {
            let devices_per_process = request.devices_per_process.unwrap_or(1);
            let partitions = u32::try_from(found).map_err(|_| too_many())?;
            return Ok(Plan { replicas: 1, partitions, processes, devices_per_process });
        }
        match request.devices_per_process {
            Some(_) if u128::from(found) != needed => {
                Err(PlanError::DeviceCount { replicas, partitions, found, advice: advice(needed, processes) })
            }
            None if needed % u128::from(processes) != 0 => {
                Err(PlanError::Uneven { replicas, partitions, processes, advice: advice(needed, processes) })
            }
            given => {
                let even_share = u32::try_from(needed / u128::from(processes)).ok();
                let devices_per_process = given.or(even_share).filter(|&devices| devices <= MAX_DEVICES);
                match (u32::try_from(replicas), u32::try_from(partitions), devices_per_process) {
                    (Ok(replicas), Ok(partitions), Some(devices_per_process)) => {
                        Ok(Plan { replicas, partitions, processes, devices_per_process })
                    }
                    _ => Err(too_many()),
                }
            }
        }
    }

    /// As in `1 replica × 8 partitions`.
    pub fn parts_text(&self) -> String {
        parts(self.replicas.into(), self.partitions.into())
    }

    /// As in `4 processes × 2 devices`.
    pub fn layout_text(&self) -> String {
        format!(
            "{} × {}",
            count(self.processes.into(), "process", "processes"),
            count(self.devices_per_process.into(), "device", "devices")
        )
    }

    /// Devices of the whole job.
    pub fn device_count(&self) -> u32 {
        self.processes * self.devices_per_process
    }
}

/// What to type: the wanted number of processes if it divides the devices, else the largest smaller one that does.
fn advice(needed: u128, processes: u32) -> String {
    let processes = (1..=u128::from(processes)).rev().find(|n| needed.is_multiple_of(*n)).unwrap_or(1);
    format!("try -n {processes} --devices-per-process {}", needed / processes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(processes: u32) -> Request {
        Request { processes, ..Request::default() }
    }

    #[test]
    fn devices_are_shared_evenly() {
        let plan = Plan::new(&Request { program_partitions: Some(8), ..request(4) }).unwrap();
        assert_eq!(plan, Plan { replicas: 1, partitions: 8, processes: 4, devices_per_process: 2 });
    }

    #[test]
    fn a_program_without_counts_runs_replicated() {
        let plan = Plan::new(&Request { devices_per_process: Some(2), ..request(2) }).unwrap();
        assert_eq!(plan, Plan { replicas: 1, partitions: 4, processes: 2, devices_per_process: 2 });
    }

    #[test]
    fn both_numbers_and_what_to_type() {
        let too_few = Request { program_partitions: Some(8), devices_per_process: Some(1), ..request(4) };
        insta::assert_snapshot!(Plan::new(&too_few).unwrap_err(), @"the program needs 8 devices (1 replica × 8 partitions), the global view has 4: try -n 4 --devices-per-process 2");
        let uneven = Request { program_replicas: Some(2), program_partitions: Some(3), ..request(4) };
        insta::assert_snapshot!(Plan::new(&uneven).unwrap_err(), @"the program needs 6 devices (2 replicas × 3 partitions), which 4 processes cannot share evenly: try -n 3 --devices-per-process 2");
        let huge = Request { program_replicas: Some(1 << 40), program_partitions: Some(1 << 62), ..request(4) };
        insta::assert_snapshot!(Plan::new(&huge).unwrap_err(), @"the program needs 5070602400912917605986812821504 devices (1099511627776 replicas × 4611686018427387904 partitions), too many for 4 processes: each has at most 2048");
        insta::assert_snapshot!(Plan::new(&Request { program_replicas: Some(4098), ..request(2) }).unwrap_err(), @"the program needs 4098 devices (4098 replicas × 1 partition), too many for 2 processes: each has at most 2048");
        let contradiction = Request { program_partitions: Some(8), partitions: Some(4), ..request(4) };
        insta::assert_snapshot!(Plan::new(&contradiction).unwrap_err(), @"the program says num_partitions=8, but --num-partitions 4 was given: leave the flag out");
    }
}
