//! Open MPI's `mpirun`, versions 4 (ORTE) and 5 (PRRTE).

use super::{ClusterError, Detected, Environment, Part, Scheduler, port};
use crate::rendezvous::JobToken;

const RANK: &str = "OMPI_COMM_WORLD_RANK";
const SIZE: &str = "OMPI_COMM_WORLD_SIZE";
const LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";
const LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
/// Version 4: the job family and where `mpirun` listens, `1207631872.0;tcp://192.0.2.2:37873;tcp6://[fd00::2]:34437`.
const HNP_URI: &str = "OMPI_MCA_orte_hnp_uri";
const PMIX_RANK: &str = "PMIX_RANK";
/// Version 5: the host and process id of `mpirun`, `prterun-HOST-PID@JOB`; version 4: a number.
const NAMESPACE: &str = "PMIX_NAMESPACE";
/// 128 random bits of this job, by which processes of fabrics without other protection know each other.
const TRANSPORT_KEY: &str = "OMPI_MCA_orte_precondition_transports";

pub(super) const VARIABLES: &[&str] =
    &[RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, PMIX_RANK, NAMESPACE, HNP_URI, TRANSPORT_KEY, port::VARIABLE];

const ADVICE: &str = ": mpirun sets both, has one been removed?";
const SCHEDULER: Scheduler = Scheduler::OpenMpi;

pub(super) fn detect(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    let (rank, size) = match (environment.number(RANK)?, environment.number(SIZE)?) {
        (None, None) => return Ok(None),
        (Some(_), None) => (0, environment.number_with(SCHEDULER, RANK, SIZE, ADVICE)?),
        (None, Some(_)) => (environment.number_with(SCHEDULER, SIZE, RANK, ADVICE)?, 0),
        (Some(rank), Some(size)) => (rank, size),
    };
    let place = Part::new(environment, SCHEDULER, (RANK, rank), (SIZE, size))?;
    // Slurm's own PMIx numbers the daemons of an mpirun that it starts; those have no OMPI_COMM_WORLD_RANK.
    if environment.number(PMIX_RANK)?.is_some_and(|pmix| pmix != rank) {
        return Err(environment.contradiction(SCHEDULER, RANK, PMIX_RANK, "both are the rank in MPI_COMM_WORLD"));
    }
    let local = match (environment.number(LOCAL_RANK)?, environment.number(LOCAL_SIZE)?) {
        (Some(rank), Some(size)) => Some(Part::new(environment, SCHEDULER, (LOCAL_RANK, rank), (LOCAL_SIZE, size))?),
        _ => None,
    };
    if local.is_some_and(|local| local.count > place.count) {
        return Err(environment.contradiction(
            SCHEDULER,
            LOCAL_SIZE,
            SIZE,
            "a host has no more processes than the job",
        ));
    }
    let mut detected = Detected { local, speaks_mpi: true, ..Detected::new(SCHEDULER, place, Err(String::new())) };
    detected.token = environment.get(TRANSPORT_KEY).and_then(token_of);
    detected.coordinator = coordinator(environment, detected.on_one_host())?;
    Ok(Some(detected))
}

/// On one host the loopback address, else the host of `mpirun`, as in JAX; the port comes from the job's number.
fn coordinator(environment: &Environment, on_one_host: bool) -> Result<Result<String, String>, ClusterError> {
    let launcher = environment.get(HNP_URI).and_then(of_hnp_uri).or_else(|| {
        let namespace = environment.get(NAMESPACE)?;
        of_prrte_namespace(namespace).or_else(|| of_orte_namespace(namespace))
    });
    let Some(Launcher { host, job }) = launcher else {
        return Ok(Err(format!("neither {HNP_URI} nor {NAMESPACE} tells where mpirun runs")));
    };
    let port = port::of_job(environment, job)?;
    Ok(match host {
        _ if on_one_host => Ok(port::join("127.0.0.1", port)),
        Some(host) => Ok(port::join(&host, port)),
        None => Err(format!("{HNP_URI} is not set, so the host of mpirun is not known")),
    })
}

/// Where `mpirun` runs, and a number that tells its job from others.
#[derive(Debug, PartialEq)]
struct Launcher {
    host: Option<String>,
    job: u64,
}

/// The number in front is a multiple of 2^12, as the low bits count the jobs of one `mpirun`.
fn of_hnp_uri(uri: &str) -> Option<Launcher> {
    let (name, contacts) = uri.split_once(';')?;
    let job: u64 = name.split('.').next()?.parse().ok()?;
    let host = contacts.split(';').find_map(|contact| {
        let address = match contact.strip_prefix("tcp6://[") {
            Some(addresses) => addresses.split([',', ']']).next()?,
            None => contact.strip_prefix("tcp://")?.split([',', ':']).next()?,
        };
        (!address.is_empty()).then(|| address.to_owned())
    });
    Some(Launcher { host, job: job >> 12 })
}

fn of_orte_namespace(namespace: &str) -> Option<Launcher> {
    Some(Launcher { host: None, job: namespace.parse::<u64>().ok()? >> 12 })
}

fn of_prrte_namespace(namespace: &str) -> Option<Launcher> {
    let (launcher, _) = namespace.split_once('@')?;
    let (host, pid) = launcher.split_once('-')?.1.rsplit_once('-')?;
    (!host.is_empty()).then_some(())?;
    Some(Launcher { host: Some(host.to_owned()), job: pid.parse().ok()? })
}

/// Two times 16 hexadecimal digits and a dash, which Open MPI reads from the kernel's generator.
fn token_of(key: &str) -> Option<JobToken> {
    let (high, low) = key.split_once('-')?;
    let is_word = |word: &str| word.len() == 16 && u64::from_str_radix(word, 16).is_ok_and(|word| word != 0);
    if !is_word(high) || !is_word(low) {
        return None;
    }
    key.parse().ok()
}

/// The value of a variable, fit to be shown.
pub(super) fn hide_secret(name: &str, value: &str) -> String {
    if name == TRANSPORT_KEY { "(hidden)".to_owned() } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Result<Option<Detected>, ClusterError> {
        super::detect(&Environment::new(variables.iter().copied()))
    }

    const VERSION_4: [(&str, &str); 9] = [
        (RANK, "1"),
        (SIZE, "2"),
        (LOCAL_RANK, "1"),
        (LOCAL_SIZE, "2"),
        (PMIX_RANK, "1"),
        (NAMESPACE, "1207631873"),
        (HNP_URI, "1207631872.0;tcp://192.0.2.2:37873;tcp6://[fd00::2]:34437"),
        (TRANSPORT_KEY, "85310d584d03a365-a932bd50d01b5864"),
        ("OMPI_COMM_WORLD_NODE_RANK", "1"),
    ];

    fn changed(name: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
        VERSION_4.into_iter().map(|(other, old)| (other, if other == name { value } else { old })).collect()
    }

    #[test]
    fn version_4_on_one_host() {
        let detected = detect(&VERSION_4).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"Open MPI: process 1 of 2, 1 of 2 on this host, coordinator 127.0.0.1:65456");
        assert_eq!(detected.token.unwrap().reveal(), "85310d584d03a365-a932bd50d01b5864");
    }

    #[test]
    fn version_4_on_several_hosts_meets_at_mpirun() {
        let detected = detect(&changed(LOCAL_SIZE, "1").into_iter().chain([(LOCAL_RANK, "0")]).collect::<Vec<_>>());
        let detected = detected.unwrap().unwrap();
        insta::assert_snapshot!(detected, @"Open MPI: process 1 of 2, 0 of 1 on this host, coordinator 192.0.2.2:65456");
    }

    #[test]
    fn addresses_of_mpirun() {
        let launcher = |host: &str, job| Some(Launcher { host: Some(host.to_owned()), job });
        let uri = "1531576320.0;tcp://10.96.0.1,10.148.0.1,10.108.0.1:34911";
        assert_eq!(of_hnp_uri(uri), launcher("10.96.0.1", 1_531_576_320 >> 12));
        let uri = "1314521088.0;tcp6://[fe80::b9b:ac5d:9cf0:b858,2620:10d:c083:150e::3000:2]:43370";
        assert_eq!(of_hnp_uri(uri), launcher("fe80::b9b:ac5d:9cf0:b858", 1_314_521_088 >> 12));
        assert_eq!(of_prrte_namespace("prterun-hydra-3874047@1"), launcher("hydra", 3_874_047));
        assert_eq!(of_prrte_namespace("prterun-node-a-1-77@1"), launcher("node-a-1", 77));
        for malformed in ["", ";", "x.0;tcp://1.2.3.4:5", "@", "prterun@1", "prterun--1@1", "prterun-host-x@1"] {
            assert_eq!(of_hnp_uri(malformed), None, "{malformed}");
            assert_eq!(of_prrte_namespace(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn version_5_on_several_hosts() {
        let variables = [
            (RANK, "3"),
            (SIZE, "4"),
            (LOCAL_RANK, "1"),
            (LOCAL_SIZE, "2"),
            (PMIX_RANK, "3"),
            (NAMESPACE, "prterun-hydra-3874047@1"),
            ("PMIX_SERVER_URI2", "prterun-hydra-3874047@0.0;tcp4://118.143.212.23:49157"),
            ("PMIX_VERSION", "5.0.5rc10"),
        ];
        let detected = detect(&variables).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"Open MPI: process 3 of 4, 1 of 2 on this host, coordinator hydra:64767");
        assert!(detected.token.is_none());
    }

    #[test]
    fn a_port_that_the_user_chose() {
        let variables: Vec<_> = VERSION_4.into_iter().chain([(port::VARIABLE, "4000")]).collect();
        assert_eq!(detect(&variables).unwrap().unwrap().coordinator.unwrap(), "127.0.0.1:4000");
        let variables: Vec<_> = VERSION_4.into_iter().chain([(port::VARIABLE, "0")]).collect();
        insta::assert_snapshot!(detect(&variables).unwrap_err(), @"JAX_COORDINATOR_PORT=0: it must be a port, 1 to 65535");
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        insta::assert_snapshot!(detect(&VERSION_4[..1]).unwrap_err(), @"Open MPI: OMPI_COMM_WORLD_RANK=1 is set but OMPI_COMM_WORLD_SIZE is not: mpirun sets both, has one been removed?");
        insta::assert_snapshot!(detect(&VERSION_4[1..2]).unwrap_err(), @"Open MPI: OMPI_COMM_WORLD_SIZE=2 is set but OMPI_COMM_WORLD_RANK is not: mpirun sets both, has one been removed?");
        insta::assert_snapshot!(detect(&changed(RANK, "two")).unwrap_err(), @"OMPI_COMM_WORLD_RANK=two: it must be a whole number");
        insta::assert_snapshot!(detect(&changed(SIZE, "1")).unwrap_err(), @"Open MPI: OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=1 contradict each other: an index is below its count");
        insta::assert_snapshot!(detect(&changed(PMIX_RANK, "0")).unwrap_err(), @"Open MPI: OMPI_COMM_WORLD_RANK=1 and PMIX_RANK=0 contradict each other: both are the rank in MPI_COMM_WORLD");
        insta::assert_snapshot!(detect(&changed(LOCAL_SIZE, "3")).unwrap_err(), @"Open MPI: OMPI_COMM_WORLD_LOCAL_SIZE=3 and OMPI_COMM_WORLD_SIZE=2 contradict each other: a host has no more processes than the job");
        assert!(detect(&[("PATH", "/bin")]).unwrap().is_none());
    }

    #[test]
    fn only_a_whole_key_is_a_token() {
        for key in ["", "0000000000000000-0000000000000000", "85310d584d03a365", "85310d584d03a365-a932bd50d01b586"] {
            assert!(token_of(key).is_none(), "{key}");
        }
    }
}
