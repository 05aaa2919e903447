//! Where am I? What a scheduler tells the processes that it starts: which of how many this one is, where they meet, and
//! which of them share a fast interconnect.
//!
//! [`detect`] reads an [`Environment`] and changes nothing. There is one small function per scheduler; where JAX has a
//! detector of the same scheduler, its rules hold here too (`jax/_src/clusters`), among them those for the coordinator's
//! port. Schedulers nest, as when `mpirun` runs inside a Slurm allocation. The innermost one counts, since the variables
//! of the outer ones are only inherited, and one that started a single process gives way to one that started more.

mod environment;
mod error;
mod jax;
mod kubernetes;
mod metadata;
mod mpich;
mod open_mpi;
mod port;
mod slurm;
mod torch;
mod tpu;

pub mod host;

use std::fmt;

use serde::Serialize;

use crate::rendezvous::JobToken;

pub use environment::Environment;
pub use error::ClusterError;
pub use tpu::SLICES as MEGASCALE_NUM_SLICES;

/// Who starts the processes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "their names are known")]
pub enum Scheduler {
    /// Someone who sets the variables of `jax.distributed.initialize` by hand.
    Jax,
    /// Ray Train, which sets the variables of torchrun.
    Ray,
    /// Also whatever else sets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`.
    Torchrun,
    OpenMpi,
    /// MPICH's Hydra and its relatives.
    Mpich,
    Slurm,
    GkeTpu,
    GceTpu,
    /// Indexed Jobs, also in a JobSet.
    Kubernetes,
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheduler::Jax => "JAX's variables",
            Scheduler::Ray => "Ray",
            Scheduler::Torchrun => "torchrun",
            Scheduler::OpenMpi => "Open MPI",
            Scheduler::Mpich => "MPICH",
            Scheduler::Slurm => "Slurm",
            Scheduler::GkeTpu => "GKE TPU",
            Scheduler::GceTpu => "GCE TPU",
            Scheduler::Kubernetes => "Kubernetes",
        })
    }
}

/// One process's place in a job, as its scheduler says.
#[derive(Clone, Debug)]
pub struct Detected {
    /// Who says so.
    pub scheduler: Scheduler,
    /// This process, from 0.
    pub process_index: u32,
    /// How many processes the job has; `None` where the environment does not tell (Kubernetes).
    pub process_count: Option<u32>,
    /// This process among those of its host.
    pub local: Option<Part>,
    /// This process's slice among those of the job.
    pub slice: Option<Part>,
    /// The hosts of all processes, by index, where the environment tells them; else empty.
    pub hosts: Vec<String>,
    /// Where the coordinator listens, as `HOST:PORT`, or why that cannot be told.
    pub coordinator: Result<String, String>,
    /// A secret that the scheduler made for this job and gave to its processes only.
    pub token: Option<JobToken>,
    /// MPI's process manager started this process, so it may initialize MPI.
    pub speaks_mpi: bool,
}

/// One of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Which, from 0.
    pub index: u32,
    /// How many there are.
    pub count: u32,
}

impl Part {
    /// The slice of a process where all processes are divided into this many slices of equal size, in order; `None` where
    /// they cannot be.
    pub fn slice(process_index: u32, process_count: u32, slices: u32) -> Option<Part> {
        let is_even = slices > 0 && process_count.is_multiple_of(slices);
        is_even.then(|| Part { index: process_index / (process_count / slices), count: slices })
    }

    /// Checks that the index is one of the count.
    fn new(
        environment: &Environment,
        scheduler: Scheduler,
        index: (&'static str, u32),
        count: (&'static str, u32),
    ) -> Result<Part, ClusterError> {
        if index.1 < count.1 {
            return Ok(Part { index: index.1, count: count.1 });
        }
        Err(environment.contradiction(scheduler, index.0, count.0, "an index is below its count"))
    }
}

impl Detected {
    /// A process of a job of which nothing more is known.
    fn new(scheduler: Scheduler, place: Part, coordinator: Result<String, String>) -> Detected {
        Detected {
            scheduler,
            process_index: place.index,
            process_count: Some(place.count),
            local: None,
            slice: None,
            hosts: Vec::new(),
            coordinator,
            token: None,
            speaks_mpi: false,
        }
    }

    /// Whether all processes run on this host.
    pub fn on_one_host(&self) -> bool {
        self.local.is_some_and(|local| Some(local.count) == self.process_count)
    }
}

impl fmt::Display for Detected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: process {}", self.scheduler, self.process_index)?;
        if let Some(count) = self.process_count {
            write!(f, " of {count}")?;
        }
        if let Some(local) = self.local {
            write!(f, ", {} of {} on this host", local.index, local.count)?;
        }
        if let Some(slice) = self.slice {
            write!(f, ", slice {} of {}", slice.index, slice.count)?;
        }
        match &self.coordinator {
            Ok(coordinator) => write!(f, ", coordinator {coordinator}"),
            Err(_) => Ok(()),
        }
    }
}

/// How one scheduler is recognized.
struct Detector {
    scheduler: Scheduler,
    /// The variables that it looks at. The first is its own, others may be set elsewhere too.
    variables: &'static [&'static str],
    /// `None` when this scheduler did not start the process.
    detect: fn(&Environment) -> Result<Option<Detected>, ClusterError>,
}

/// Innermost first: whoever is started by another's process comes before it.
const DETECTORS: [Detector; 9] = [
    Detector { scheduler: Scheduler::Jax, variables: jax::VARIABLES, detect: jax::detect },
    Detector { scheduler: Scheduler::Ray, variables: torch::RAY_VARIABLES, detect: torch::detect_ray },
    Detector { scheduler: Scheduler::Torchrun, variables: torch::VARIABLES, detect: torch::detect },
    Detector { scheduler: Scheduler::OpenMpi, variables: open_mpi::VARIABLES, detect: open_mpi::detect },
    Detector { scheduler: Scheduler::Mpich, variables: mpich::VARIABLES, detect: mpich::detect },
    Detector { scheduler: Scheduler::Slurm, variables: slurm::VARIABLES, detect: slurm::detect },
    Detector { scheduler: Scheduler::GkeTpu, variables: tpu::GKE_VARIABLES, detect: tpu::detect_gke },
    Detector { scheduler: Scheduler::GceTpu, variables: tpu::GCE_VARIABLES, detect: tpu::detect_gce },
    Detector { scheduler: Scheduler::Kubernetes, variables: kubernetes::VARIABLES, detect: kubernetes::detect },
];

/// What one scheduler's variables say.
#[derive(Debug)]
pub struct Finding {
    /// The scheduler.
    pub scheduler: Scheduler,
    /// Those of its variables that are set, with their values; secrets are not shown.
    pub variables: Vec<(&'static str, String)>,
    /// What follows from them; `None` when this scheduler did not start the process.
    pub outcome: Result<Option<Detected>, ClusterError>,
}

/// What the variables of all schedulers say of which there is a trace, in the order in which [`detect`] asks them.
pub fn survey(environment: &Environment) -> Vec<Finding> {
    let findings = DETECTORS.iter().filter_map(|detector| {
        let outcome = (detector.detect)(environment);
        let has_trace = detector.variables.first().is_some_and(|own| environment.get(own).is_some());
        if !has_trace && matches!(outcome, Ok(None)) {
            return None;
        }
        let set = |name: &&'static str| Some((*name, environment.get(name)?));
        let variables = detector.variables.iter().filter_map(set);
        let variables = variables.map(|(name, value)| (name, open_mpi::hide_secret(name, value))).collect();
        Some(Finding { scheduler: detector.scheduler, variables, outcome })
    });
    findings.collect()
}

/// This process's place in the job of the scheduler that started it. `None` when none did.
///
/// Variables that contradict each other or of which some are missing are an error, which names them. As in JAX, the
/// coordinator of `JAX_COORDINATOR_ADDRESS` counts with every scheduler.
pub fn detect(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    let mut found: Option<Detected> = None;
    for detector in &DETECTORS {
        if let Some(detected) = (detector.detect)(environment)? {
            let single = detected.process_count == Some(1);
            found = if single { found.or(Some(detected)) } else { Some(detected) };
            if !single {
                break;
            }
        }
    }
    let Some(mut detected) = found else {
        jax::only_coordinator(environment)?;
        return Ok(None);
    };
    if let Some(coordinator) = jax::coordinator(environment)? {
        detected.coordinator = Ok(coordinator.to_owned());
    }
    Ok(Some(detected))
}

#[cfg(test)]
mod tests;
