//! Indexed Jobs of Kubernetes, also those of a JobSet.

use super::{ClusterError, Detected, Environment, Scheduler, environment::wrong, port};

const INDEX: &str = "JOB_COMPLETION_INDEX";
/// `JOB-INDEX` in a pod of an Indexed Job.
const HOST: &str = "HOSTNAME";

pub(super) const VARIABLES: &[&str] = &[INDEX, HOST, port::VARIABLE];

/// JAX's choice.
const PORT: u16 = 55527;
const HOSTS_FILE: &str = "etc/hosts";
const SCHEDULER: Scheduler = Scheduler::Kubernetes;

pub(super) fn detect(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    let Some(process_index) = environment.number(INDEX)? else { return Ok(None) };
    let host = environment.with(SCHEDULER, INDEX, HOST, ": Kubernetes sets both, has one been removed?")?;
    let Some(job) = host.strip_suffix(&process_index.to_string()).and_then(|job| job.strip_suffix('-')) else {
        return Err(wrong(HOST, host, format!("the host name of pod {process_index} ends in -{process_index}")));
    };
    let port = port::chosen_or(environment, PORT)?;
    let hosts = std::fs::read_to_string(environment.path(HOSTS_FILE)).unwrap_or_default();
    let coordinator = domain_of(&hosts, host).map(|domain| format!("{job}-0.{domain}:{port}")).ok_or_else(|| {
        "the pods of this job cannot find each other: make a headless service (clusterIP: None) for them and name it \
         as `subdomain` in the pod template"
            .to_owned()
    });
    Ok(Some(Detected {
        scheduler: SCHEDULER,
        process_index,
        // Only the cluster's API server tells.
        process_count: None,
        local: None,
        slice: None,
        hosts: Vec::new(),
        coordinator,
        token: None,
        speaks_mpi: false,
    }))
}

/// The domain of this host, which the kubelet writes to the hosts file when the pod has a subdomain:
/// `10.4.0.7 job-1.service.namespace.svc.cluster.local job-1`.
fn domain_of<'a>(hosts: &'a str, host: &str) -> Option<&'a str> {
    let names =
        hosts.lines().filter_map(|line| line.split('#').next()).flat_map(|line| line.split_whitespace().skip(1));
    names.filter_map(|name| name.strip_prefix(host)?.strip_prefix('.')).find(|domain| !domain.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)], hosts: &str) -> Result<Option<Detected>, ClusterError> {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join(HOSTS_FILE), hosts).unwrap();
        super::detect(&Environment::new(variables.iter().copied()).at(root.path()))
    }

    const HOSTS: &str = "127.0.0.1\tlocalhost\n10.4.0.7\tmlp-1.pods.default.svc.cluster.local\tmlp-1\n";

    #[test]
    fn pods_meet_at_the_first_one() {
        let detected = detect(&[(INDEX, "1"), (HOST, "mlp-1")], HOSTS).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"Kubernetes: process 1, coordinator mlp-0.pods.default.svc.cluster.local:55527");
        assert_eq!(detected.process_count, None);
        let of_job_set = "10.4.0.9 train-workers-0-3.train.ml.svc.cluster.local train-workers-0-3";
        let detected = detect(&[(INDEX, "3"), (HOST, "train-workers-0-3")], of_job_set).unwrap().unwrap();
        assert_eq!(detected.coordinator.unwrap(), "train-workers-0-0.train.ml.svc.cluster.local:55527");
    }

    #[test]
    fn without_a_service_nobody_is_found() {
        let detected = detect(&[(INDEX, "1"), (HOST, "mlp-1")], "10.4.0.7 mlp-1 # mlp-1.x").unwrap().unwrap();
        insta::assert_snapshot!(detected.coordinator.unwrap_err(), @"the pods of this job cannot find each other: make a headless service (clusterIP: None) for them and name it as `subdomain` in the pod template");
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        insta::assert_snapshot!(detect(&[(INDEX, "1")], "").unwrap_err(), @"Kubernetes: JOB_COMPLETION_INDEX=1 is set but HOSTNAME is not: Kubernetes sets both, has one been removed?");
        insta::assert_snapshot!(detect(&[(INDEX, "1"), (HOST, "mlp-2")], "").unwrap_err(), @"HOSTNAME=mlp-2: the host name of pod 1 ends in -1");
        insta::assert_snapshot!(detect(&[(INDEX, "-1"), (HOST, "mlp-1")], "").unwrap_err(), @"JOB_COMPLETION_INDEX=-1: it must be a whole number");
    }
}
