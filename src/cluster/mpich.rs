//! MPICH's Hydra (`mpiexec`), and those that speak its PMI: Intel MPI, MVAPICH, Slurm's pmi2.

use super::{ClusterError, Detected, Environment, Part, Scheduler, port};

const RANK: &str = "PMI_RANK";
const SIZE: &str = "PMI_SIZE";
/// What `-pmi-port` gives instead of a rank.
const ID: &str = "PMI_ID";
const LOCAL_RANK: &str = "MPI_LOCALRANKID";
const LOCAL_SIZE: &str = "MPI_LOCALNRANKS";

pub(super) const VARIABLES: &[&str] = &[RANK, SIZE, ID, LOCAL_RANK, LOCAL_SIZE, port::VARIABLE];

const SCHEDULER: Scheduler = Scheduler::Mpich;

pub(super) fn detect(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    let set = [RANK, SIZE, ID].into_iter().find(|name| environment.get(name).is_some());
    let Some(set) = set else { return Ok(None) };
    let advice = match set {
        ID => ": start without -pmi-port",
        _ => ": mpiexec sets both, has one been removed?",
    };
    let rank = environment.number_with(SCHEDULER, set, RANK, advice)?;
    let size = environment.number_with(SCHEDULER, set, SIZE, advice)?;
    let place = Part::new(environment, SCHEDULER, (RANK, rank), (SIZE, size))?;
    let local = match (environment.number(LOCAL_RANK)?, environment.number(LOCAL_SIZE)?) {
        (Some(rank), Some(size)) => Some(Part::new(environment, SCHEDULER, (LOCAL_RANK, rank), (LOCAL_SIZE, size))?),
        _ => None,
    };
    // Nothing in the environment tells one job of Hydra from another, so no port can be derived.
    let coordinator = match environment.get(port::VARIABLE) {
        Some(_) if local.is_some_and(|local| local.count == size) => {
            Ok(port::join("127.0.0.1", port::chosen_or(environment, 0)?))
        }
        _ => Err("MPICH's variables name no host and no job".to_owned()),
    };
    Ok(Some(Detected { local, speaks_mpi: true, ..Detected::new(SCHEDULER, place, coordinator) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Result<Option<Detected>, ClusterError> {
        super::detect(&Environment::new(variables.iter().copied()))
    }

    #[test]
    fn hydra() {
        let hydra = [(RANK, "1"), (SIZE, "2"), ("PMI_FD", "8"), (LOCAL_RANK, "1"), (LOCAL_SIZE, "2")];
        let detected = detect(&hydra).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"MPICH: process 1 of 2, 1 of 2 on this host");
        assert!(detected.coordinator.is_err() && detected.speaks_mpi);
        let with_port: Vec<_> = hydra.into_iter().chain([(port::VARIABLE, "4000")]).collect();
        assert_eq!(detect(&with_port).unwrap().unwrap().coordinator.unwrap(), "127.0.0.1:4000");
    }

    #[test]
    fn what_is_missing_is_named() {
        insta::assert_snapshot!(detect(&[(RANK, "1")]).unwrap_err(), @"MPICH: PMI_RANK=1 is set but PMI_SIZE is not: mpiexec sets both, has one been removed?");
        insta::assert_snapshot!(detect(&[(ID, "0"), ("PMI_PORT", "vm:36531")]).unwrap_err(), @"MPICH: PMI_ID=0 is set but PMI_RANK is not: start without -pmi-port");
        insta::assert_snapshot!(detect(&[(RANK, "2"), (SIZE, "2")]).unwrap_err(), @"MPICH: PMI_RANK=2 and PMI_SIZE=2 contradict each other: an index is below its count");
    }
}
