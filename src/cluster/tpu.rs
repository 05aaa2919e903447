//! TPU slices on Google's clouds: one process per host, slices in their order.

use super::metadata::Metadata;
use super::{ClusterError, Detected, Environment, Part, Scheduler, environment::wrong, host, port};

const WORKER: &str = "TPU_WORKER_ID";
const HOST_NAMES: &str = "TPU_WORKER_HOSTNAMES";
/// The same with ports; goes first in JAX.
const ADDRESSES: &str = "TPU_PROCESS_ADDRESSES";
const SLICE: &str = "MEGASCALE_SLICE_ID";
/// How many slices a job on TPUs has.
pub const SLICES: &str = "MEGASCALE_NUM_SLICES";
/// On the host of process 0.
const COORDINATOR: &str = "MEGASCALE_COORDINATOR_ADDRESS";
const SKIP_METADATA: &str = "TPU_SKIP_MDS_QUERY";

pub(super) const GKE_VARIABLES: &[&str] = &[WORKER, ADDRESSES, HOST_NAMES, SLICE, SLICES, COORDINATOR, port::VARIABLE];
pub(super) const GCE_VARIABLES: &[&str] =
    &[super::metadata::HOST, super::metadata::IP, SKIP_METADATA, SLICE, SLICES, COORDINATOR, port::VARIABLE];

/// JAX's choice.
const PORT: u16 = 8482;
const ADVICE: &str = ": they come together, has one been removed?";

pub(super) fn detect_gke(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    let Some(set) = [ADDRESSES, HOST_NAMES].into_iter().find(|name| environment.get(name).is_some()) else {
        return Ok(None);
    };
    let scheduler = Scheduler::GkeTpu;
    let worker = environment.number_with(scheduler, set, WORKER, ADVICE)?;
    let hosts: Vec<&str> = environment.get(set).unwrap_or_default().split(',').map(str::trim).collect();
    if hosts.iter().any(|host| host.is_empty()) {
        return Err(wrong(set, &hosts.join(","), "it must be a list of hosts"));
    }
    let worker = Part::new(environment, scheduler, (WORKER, worker), (set, hosts.len() as u32))?;
    place(environment, scheduler, worker, &hosts, |name| Ok(environment.get(name).map(str::to_owned))).map(Some)
}

/// The metadata server is only asked on a machine with TPU chips, or when a variable tells where it is.
pub(super) fn detect_gce(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    let is_given = [super::metadata::HOST, super::metadata::IP].iter().any(|name| environment.get(name).is_some());
    if environment.get(SKIP_METADATA).is_some() || !is_given && host::tpu_chips(environment.root()).is_empty() {
        return Ok(None);
    }
    let metadata = Metadata::new(environment);
    let Some(worker) = metadata.attribute("agent-worker-number")? else { return Ok(None) };
    let endpoints = metadata.attribute("worker-network-endpoints")?.unwrap_or_default();
    let unreadable = |what: &str| metadata.error(format!("'{what}' cannot be read"));
    let hosts: Option<Vec<&str>> = endpoints.split(',').map(endpoint_host).collect();
    let hosts = hosts.ok_or_else(|| unreadable("worker-network-endpoints"))?;
    let index = worker.trim().parse().map_err(|_| unreadable("agent-worker-number"))?;
    let worker = Part { index, count: hosts.len() as u32 };
    if worker.index >= worker.count {
        return Err(metadata.error(format!("worker {} is not one of {}", worker.index, worker.count)));
    }
    let of_metadata = metadata.attribute("tpu-env")?.unwrap_or_default();
    let value = |name: &str| environment.get(name).or_else(|| tpu_env(&of_metadata, name)).map(str::to_owned);
    place(environment, Scheduler::GceTpu, worker, &hosts, |name| Ok(value(name))).map(Some)
}

/// `value` looks up what tells about several slices.
fn place(
    environment: &Environment,
    scheduler: Scheduler,
    worker: Part,
    hosts: &[&str],
    value: impl Fn(&'static str) -> Result<Option<String>, ClusterError>,
) -> Result<Detected, ClusterError> {
    let number = |name: &'static str| match value(name)? {
        Some(text) => text.parse().map(Some).map_err(|_| wrong(name, &text, "it must be a whole number")),
        None => Ok(None),
    };
    let slices = number(SLICES)?.unwrap_or(1);
    let slice = match (number(SLICE)?, slices) {
        (index, 0 | 1) => Part { index: index.unwrap_or(0), count: 1 },
        (Some(index), count) => Part { index, count },
        (None, _) => {
            let value = slices.to_string();
            return Err(ClusterError::Missing { scheduler, present: SLICES, value, absent: SLICE, advice: ADVICE });
        }
    };
    let contradiction = |second, second_value: String, rule| {
        let first_value = slice.index.to_string();
        ClusterError::Contradiction { scheduler, first: SLICE, first_value, second, second_value, rule }
    };
    if slice.index >= slice.count {
        return Err(contradiction(SLICES, slice.count.to_string(), "an index is below its count"));
    }
    let coordinator = match value(COORDINATOR)? {
        Some(address) => port::host_of(&address).to_owned(),
        // The first worker of another slice than the first is not process 0.
        None if slice.count > 1 => {
            let value = slices.to_string();
            let (present, absent) = (SLICES, COORDINATOR);
            return Err(ClusterError::Missing { scheduler, present, value, absent, advice: ADVICE });
        }
        None => port::host_of(hosts[0]).to_owned(),
    };
    let too_many = || contradiction(SLICES, slice.count.to_string(), "the job has more processes than can be counted");
    let count = worker.count.checked_mul(slice.count).ok_or_else(too_many)?;
    let place = Part { index: slice.index * worker.count + worker.index, count };
    let coordinator = Ok(port::join(&coordinator, port::chosen_or(environment, PORT)?));
    let several = (slice.count > 1).then_some(slice);
    // Each slice knows its own hosts only.
    let hosts = if several.is_none() { hosts } else { &[] };
    let hosts = hosts.iter().map(|host| port::host_of(host).to_owned()).collect();
    Ok(Detected { slice: several, hosts, ..Detected::new(scheduler, place, coordinator) })
}

/// The address in `HOST` or in the older `NAME:ID:ADDRESS`.
fn endpoint_host(endpoint: &str) -> Option<&str> {
    let parts: Vec<&str> = endpoint.trim().split(':').collect();
    match parts[..] {
        [host] | [_, _, host] if !host.is_empty() => Some(host),
        _ => None,
    }
}

/// A value of lines like `MEGASCALE_NUM_SLICES: '2'`.
fn tpu_env<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    let value = values.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().trim_matches('\'')).next();
    value.filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    fn gke(variables: &[(&str, &str)]) -> Result<Option<Detected>, ClusterError> {
        detect_gke(&Environment::new(variables.iter().copied()))
    }

    const SLICED: [(&str, &str); 5] = [
        (WORKER, "1"),
        (HOST_NAMES, "job-1-0.job,job-1-1.job"),
        (SLICES, "2"),
        (SLICE, "1"),
        (COORDINATOR, "job-0-0.job:8080"),
    ];

    #[test]
    fn one_slice() {
        let detected = gke(&[(WORKER, "1"), (HOST_NAMES, "10.164.0.2,10.164.0.3")]).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"GKE TPU: process 1 of 2, coordinator 10.164.0.2:8482");
        let detected = gke(&[(WORKER, "0"), (ADDRESSES, "t-0:8471,t-1:8471"), (HOST_NAMES, "x")]).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"GKE TPU: process 0 of 2, coordinator t-0:8482");
        assert_eq!(detected.hosts, ["t-0", "t-1"]);
        assert_eq!(gke(&[(WORKER, "0"), (HOST_NAMES, "localhost")]).unwrap().unwrap().process_count, Some(1));
        assert!(gke(&[(WORKER, "0")]).unwrap().is_none());
    }

    #[test]
    fn slices_come_one_after_the_other() {
        assert!(gke(&SLICED).unwrap().unwrap().hosts.is_empty());
        insta::assert_snapshot!(gke(&SLICED).unwrap().unwrap(), @"GKE TPU: process 3 of 4, slice 1 of 2, coordinator job-0-0.job:8482");
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        insta::assert_snapshot!(gke(&SLICED[1..]).unwrap_err(), @"GKE TPU: TPU_WORKER_HOSTNAMES=job-1-0.job,job-1-1.job is set but TPU_WORKER_ID is not: they come together, has one been removed?");
        insta::assert_snapshot!(gke(&SLICED[..3]).unwrap_err(), @"GKE TPU: MEGASCALE_NUM_SLICES=2 is set but MEGASCALE_SLICE_ID is not: they come together, has one been removed?");
        insta::assert_snapshot!(gke(&SLICED[..4]).unwrap_err(), @"GKE TPU: MEGASCALE_NUM_SLICES=2 is set but MEGASCALE_COORDINATOR_ADDRESS is not: they come together, has one been removed?");
        insta::assert_snapshot!(gke(&[(WORKER, "2"), (HOST_NAMES, "a,b")]).unwrap_err(), @"GKE TPU: TPU_WORKER_ID=2 and TPU_WORKER_HOSTNAMES=a,b contradict each other: an index is below its count");
        insta::assert_snapshot!(gke(&[(WORKER, "0"), (HOST_NAMES, "a,,b")]).unwrap_err(), @"TPU_WORKER_HOSTNAMES=a,,b: it must be a list of hosts");
        let wrong_slice: Vec<_> = SLICED.into_iter().filter(|(name, _)| *name != SLICE).chain([(SLICE, "2")]).collect();
        insta::assert_snapshot!(gke(&wrong_slice).unwrap_err(), @"GKE TPU: MEGASCALE_SLICE_ID=2 and MEGASCALE_NUM_SLICES=2 contradict each other: an index is below its count");
    }

    /// A metadata server with these attributes, and its address.
    fn serve(attributes: &[(&str, &str)]) -> String {
        let attributes: BTreeMap<String, String> =
            attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines: Vec<String> = BufReader::new(&stream)
                    .lines()
                    .map(Result::unwrap)
                    .take_while(|line| !line.is_empty())
                    .map(|line| line.to_ascii_lowercase())
                    .collect();
                assert!(lines.contains(&"metadata-flavor: google".to_owned()), "{lines:?}");
                let path = lines[0].split(' ').nth(1).unwrap();
                let name = path.strip_prefix("/computemetadata/v1/instance/attributes/").unwrap();
                let (status, body) = match attributes.get(name) {
                    Some(body) => ("200 OK", body.as_str()),
                    None => ("404 Not Found", ""),
                };
                let length = body.len();
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
                    .unwrap();
            }
        });
        address
    }

    fn gce(attributes: &[(&str, &str)]) -> Result<Option<Detected>, ClusterError> {
        detect_gce(&Environment::new([(super::super::metadata::IP, serve(attributes))]))
    }

    #[test]
    fn machines_ask_their_metadata_server() {
        let endpoints = "unknown:unknown:10.130.0.21,unknown:unknown:10.130.0.22";
        let attributes = [("agent-worker-number", "1"), ("worker-network-endpoints", endpoints)];
        insta::assert_snapshot!(gce(&attributes).unwrap().unwrap(), @"GCE TPU: process 1 of 2, coordinator 10.130.0.21:8482");
        let env = "ACCELERATOR_TYPE: 'v5litepod-8'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n\
                   MEGASCALE_COORDINATOR_ADDRESS: '10.130.0.11'\n";
        let sliced: Vec<_> = attributes.into_iter().chain([("tpu-env", env)]).collect();
        insta::assert_snapshot!(gce(&sliced).unwrap().unwrap(), @"GCE TPU: process 3 of 4, slice 1 of 2, coordinator 10.130.0.11:8482");
        assert!(gce(&[]).unwrap().is_none());
    }

    #[test]
    fn metadata_that_makes_no_sense_is_an_error() {
        let error = gce(&[("agent-worker-number", "1"), ("worker-network-endpoints", "a:b")]).unwrap_err().to_string();
        assert!(error.contains("'worker-network-endpoints' cannot be read"), "{error}");
        let error = gce(&[("agent-worker-number", "2"), ("worker-network-endpoints", "a,b")]).unwrap_err().to_string();
        assert!(error.contains("worker 2 is not one of 2"), "{error}");
    }

    #[test]
    fn a_server_that_is_not_there_is_an_error() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let environment = Environment::new([(super::super::metadata::IP, address.clone())]);
        let error = detect_gce(&environment).unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("TPU_SKIP_MDS_QUERY"), "{error}");
        let skipped = Environment::new([(super::super::metadata::IP, address), (SKIP_METADATA, "1".to_owned())]);
        assert!(detect_gce(&skipped).unwrap().is_none());
    }
}
