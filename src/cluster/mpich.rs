//! MPICH's Hydra (`mpiexec`), and those that speak its PMI: Intel MPI, MVAPICH.

use std::fs::read_to_string;

use super::{ClusterError, Detected, Environment, Part, Scheduler, port, slurm};

const RANK: &str = "PMI_RANK";
const SIZE: &str = "PMI_SIZE";
/// What `-pmi-port` gives instead of a rank.
const ID: &str = "PMI_ID";
const LOCAL_RANK: &str = "MPI_LOCALRANKID";
const LOCAL_SIZE: &str = "MPI_LOCALNRANKS";
/// Hydra's process on each host that starts those of the job there.
const PROXY: &str = "hydra_pmi_proxy";

pub(super) const VARIABLES: &[&str] = &[RANK, SIZE, ID, LOCAL_RANK, LOCAL_SIZE, port::VARIABLE];

const SCHEDULER: Scheduler = Scheduler::Mpich;

pub(super) fn detect(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    let set = [RANK, SIZE, ID].into_iter().find(|name| environment.get(name).is_some());
    let Some(set) = set else { return Ok(None) };
    // `srun --mpi=pmi2` gives the same variables, but for the local ones.
    if environment.get(LOCAL_SIZE).is_none() && environment.get(slurm::NODE_LIST).is_some() {
        return Ok(None);
    }
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
    let mut detected = Detected { local, speaks_mpi: true, ..Detected::new(SCHEDULER, place, Err(String::new())) };
    detected.coordinator = coordinator(environment, detected.on_one_host())?;
    Ok(Some(detected))
}

/// On one host the loopback address, and a port made of the proxy's process id, as no variable tells one job from another.
fn coordinator(environment: &Environment, on_one_host: bool) -> Result<Result<String, String>, ClusterError> {
    if !on_one_host {
        return Ok(Err("MPICH does not tell its processes the name of any host".to_owned()));
    }
    let port = match (environment.get(port::VARIABLE), proxy(environment)) {
        (None, None) => return Ok(Err(format!("{PROXY} is none of this process's ancestors"))),
        (_, job) => port::of_job(environment, job.unwrap_or_default())?,
    };
    Ok(Ok(port::join("127.0.0.1", port)))
}

/// The process id of the proxy, which is an ancestor of this process.
fn proxy(environment: &Environment) -> Option<u64> {
    let parent_of = |process: &str| -> Option<u64> {
        let status = read_to_string(environment.path(&format!("proc/{process}/status"))).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    let name = |process: u64| read_to_string(environment.path(&format!("proc/{process}/comm"))).ok();
    let ancestors = std::iter::successors(parent_of("self"), |process| parent_of(&process.to_string()));
    // More generations than any job has, in case they form a circle.
    ancestors.take(64).find(|process| name(*process).is_some_and(|name| name.trim() == PROXY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Result<Option<Detected>, ClusterError> {
        super::detect(&Environment::new(variables.iter().copied()))
    }

    const HYDRA: [(&str, &str); 5] = [(RANK, "1"), (SIZE, "2"), ("PMI_FD", "8"), (LOCAL_RANK, "1"), (LOCAL_SIZE, "2")];

    /// A host where this process's ancestors, the next one first, have these process ids and names.
    fn host(ancestors: &[(u32, &str)]) -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        let mut process = "self".to_owned();
        for (parent, name) in ancestors {
            std::fs::create_dir_all(host.path().join(format!("proc/{parent}"))).unwrap();
            std::fs::create_dir_all(host.path().join(format!("proc/{process}"))).unwrap();
            let status = format!("Name:\tx\nPid:\t7\nPPid:\t{parent}\n");
            std::fs::write(host.path().join(format!("proc/{process}/status")), status).unwrap();
            std::fs::write(host.path().join(format!("proc/{parent}/comm")), format!("{name}\n")).unwrap();
            process = parent.to_string();
        }
        host
    }

    fn coordinator_on(host: &tempfile::TempDir) -> Result<String, String> {
        let environment = Environment::new(HYDRA).at(host.path());
        super::detect(&environment).unwrap().unwrap().coordinator
    }

    #[test]
    fn on_one_host_the_proxy_tells_the_job() {
        let job = host(&[(5001, "sh"), (5000, PROXY), (4999, "mpiexec")]);
        assert_eq!(coordinator_on(&job).unwrap(), format!("127.0.0.1:{}", 61440 + 5000 % 4096));
        for ancestors in [&[][..], &[(9, "sh"), (1, "init")], &[(9, "sh"), (8, "sh"), (9, "sh")]] {
            let reason = coordinator_on(&host(ancestors)).unwrap_err();
            assert_eq!(reason, "hydra_pmi_proxy is none of this process's ancestors");
        }
    }

    #[test]
    fn hydra() {
        let detected = detect(&HYDRA).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"MPICH: process 1 of 2, 1 of 2 on this host");
        assert!(detected.speaks_mpi);
        let with_port: Vec<_> = HYDRA.into_iter().chain([(port::VARIABLE, "4000")]).collect();
        assert_eq!(detect(&with_port).unwrap().unwrap().coordinator.unwrap(), "127.0.0.1:4000");
        let of_two_hosts = [(RANK, "1"), (SIZE, "4"), (LOCAL_RANK, "1"), (LOCAL_SIZE, "2")];
        let reason = detect(&of_two_hosts).unwrap().unwrap().coordinator.unwrap_err();
        assert_eq!(reason, "MPICH does not tell its processes the name of any host");
    }

    #[test]
    fn slurm_speaks_pmi_too() {
        let pmi2 = [(RANK, "1"), (SIZE, "2"), ("PMI_FD", "8"), (slurm::NODE_LIST, "n[0-1]")];
        assert!(detect(&pmi2).unwrap().is_none());
        // Hydra starts its proxies by srun inside an allocation.
        let hydra: Vec<_> = HYDRA.into_iter().chain([(slurm::NODE_LIST, "n[0-1]")]).collect();
        assert!(detect(&hydra).unwrap().is_some());
    }

    #[test]
    fn what_is_missing_is_named() {
        insta::assert_snapshot!(detect(&[(RANK, "1")]).unwrap_err(), @"MPICH: PMI_RANK=1 is set but PMI_SIZE is not: mpiexec sets both, has one been removed?");
        insta::assert_snapshot!(detect(&[(ID, "0"), ("PMI_PORT", "vm:36531")]).unwrap_err(), @"MPICH: PMI_ID=0 is set but PMI_RANK is not: start without -pmi-port");
        insta::assert_snapshot!(detect(&[(RANK, "2"), (SIZE, "2")]).unwrap_err(), @"MPICH: PMI_RANK=2 and PMI_SIZE=2 contradict each other: an index is below its count");
    }
}
