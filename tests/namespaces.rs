//! Jobs between two hosts that are network namespaces, with a cable of limited speed between them.

mod harness;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use harness::job::{Plan, plan};
use harness::ssh::SshServer;
use harness::{fails, root};
use serde::Deserialize;
use serde_json::Value;

const SLOW: [&str; 5] = ["tbf", "rate", "200mbit", "burst", "64kb"];
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Two hosts, `10.77.0.1` and `10.77.0.2`.
struct Network {
    hosts: [String; 2],
}

impl Network {
    /// `None` where the system does not allow it.
    fn new(name: &str) -> Option<Network> {
        let id = std::process::id();
        let network = Network { hosts: [1, 2].map(|host| format!("spmd-{id}-{name}-{host}")) };
        let [first, second] = &network.hosts;
        let cable = format!("type veth peer name eth0 netns {second}");
        let steps = [
            format!("ip netns add {first}"),
            format!("ip netns add {second}"),
            format!("ip -n {first} link add eth0 {cable}"),
        ];
        let made = steps.iter().all(|step| succeeds(step))
            && [1, 2].into_iter().zip(&network.hosts).all(|(number, host)| {
                let steps = [
                    format!("ip -n {host} address add 10.77.0.{number}/24 dev eth0"),
                    format!("ip -n {host} link set eth0 up"),
                    format!("ip -n {host} link set lo up"),
                    format!("ip netns exec {host} tc qdisc add dev eth0 root {} latency 400ms", SLOW.join(" ")),
                ];
                steps.iter().all(|step| succeeds(step))
            });
        if !made {
            eprintln!("skipped: no network namespaces with veth and tbf can be made here");
            return None;
        }
        Some(network)
    }

    /// The command that runs others on a host.
    fn on(&self, host: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.hosts[host]]
    }

    /// Where files lie that a host has in place of those in `/etc`.
    fn files(&self, host: usize) -> PathBuf {
        let folder = PathBuf::from("/etc/netns").join(&self.hosts[host]);
        fs::create_dir_all(&folder).expect("a folder for the namespace's files");
        folder
    }

    fn pull_cable(&self) {
        assert!(succeeds(&format!("ip -n {} link set eth0 down", self.hosts[1])));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            succeeds(&format!("ip netns delete {host}"));
            let _ = fs::remove_dir_all(PathBuf::from("/etc/netns").join(host));
        }
    }
}

fn succeeds(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().expect("a command")).args(words).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim());
            false
        }
        Err(error) => {
            eprintln!("{command}: {error}");
            false
        }
    }
}

#[test]
fn a_pulled_cable_ends_the_job_on_both_sides() {
    let Some(network) = Network::new("cable") else { return };
    let Some(server) = SshServer::start("10.77.0.2", &network.on(1)) else { return };
    let ssh = server.client("user", "known_hosts");
    let job = |arguments: &[&str]| {
        // The hosts are one machine, which has shared memory.
        let mut plan = plan(["--hosts", "localhost,b", "--ssh", &ssh, "--transport", "tcp"].iter().chain(arguments));
        plan.export_mark();
        plan.behind(&network.on(0))
    };
    let outcome = job(&["hlo/tp_mlp.hlo", "--fill", "ones"]).run().success("over a cable");
    assert!(outcome.stdout.contains("2 processes × 2 devices, over tcp"), "{}", outcome.stdout);

    let mut running = job(&["hlo/scan_layers.hlo", "--repeat", "1000000"]).start();
    running.wait_until_running(2);
    network.pull_cable();
    let outcome = running.finish();
    assert!(matches!(outcome.code, Some(3)), "{:?} {}", outcome.code, outcome.stderr);
    assert!(outcome.stderr.contains("process 1 "), "{}", outcome.stderr);
}

/// Process `index` of a job of `count`, started by hand on one of the hosts.
fn by_hand(network: &Network, host: usize, index: u32, count: u32) -> Plan {
    let (index, count) = (index.to_string(), count.to_string());
    let place = ["-n", &count, "--coordinator", "10.77.0.1:47000", "--process-id", &index];
    let mut plan = plan(place.iter().chain(&["hlo/tp_mlp.hlo", "--fill", "ones"]));
    plan.command.env("SPMD_JOB_TOKEN", TOKEN);
    plan.behind(&network.on(host))
}

#[test]
fn a_late_process_is_waited_for() {
    let Some(network) = Network::new("late") else { return };
    let first = by_hand(&network, 0, 0, 2).start();
    std::thread::sleep(Duration::from_secs(3));
    let second = by_hand(&network, 1, 1, 2).start();
    let first = first.finish().success("process 0");
    second.finish().success("process 1");
    assert!(first.stdout.contains("2 processes × 2 devices"), "{}", first.stdout);
}

#[test]
fn a_missing_process_is_named_on_both_hosts() {
    let Some(network) = Network::new("missing") else { return };
    let limited = |host, index| {
        let mut plan = by_hand(&network, host, index, 4);
        plan.command.args(["--rendezvous-timeout", "5"]);
        plan.start()
    };
    let jobs = [limited(0, 0), limited(1, 2)];
    for job in jobs {
        fails(&job.finish(), 3, &["missing 2 of 4: process 1, 3"]);
    }
}

/// The pods of a manifest, each a host with what Kubernetes gives it. The first one's name is not known at once.
#[test]
fn pods_of_an_indexed_job_find_each_other() {
    let Some(network) = Network::new("pods") else { return };
    let manifest = fs::read_to_string(root().join("deploy/kubernetes/indexed-job.yaml")).expect("the manifest");
    let documents = serde_yaml_ng::Deserializer::from_str(&manifest);
    let documents: Vec<Value> = documents.map(|document| Value::deserialize(document).expect("YAML")).collect();
    let [service, job] = &documents[..] else { panic!("a service and a job, not {}", documents.len()) };
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let (name, pod) = (text(&job["metadata"]["name"]), &job["spec"]["template"]["spec"]);
    assert_eq!(service["metadata"]["name"], pod["subdomain"], "the service gives the pods their names");
    assert_eq!(service["spec"]["selector"]["job-name"], name.as_str());
    assert_eq!(job["spec"]["completions"], 2);
    let container = &pod["containers"][0];
    assert_eq!(container["env"][0]["name"], "SPMD_JOB_TOKEN");
    let arguments: Vec<String> = container["args"].as_array().expect("arguments").iter().map(text).collect();
    let arguments = arguments.iter().map(|argument| argument.replace("/programs/", "hlo/"));

    let domain = format!("{}.default.svc.cluster.local", text(&pod["subdomain"]));
    let line = |index: usize| format!("10.77.0.{} {name}-{index}.{domain} {name}-{index}\n", index + 1);
    let start = |index: usize| {
        let files = network.files(index);
        fs::write(files.join("hosts"), format!("127.0.0.1 localhost\n{}", line(index))).expect("hosts");
        fs::write(files.join("nsswitch.conf"), "hosts: files\n").expect("nsswitch.conf");
        let mut plan = plan(arguments.clone());
        plan.command.env("JOB_COMPLETION_INDEX", index.to_string()).env("HOSTNAME", format!("{name}-{index}"));
        plan.command.env("SPMD_JOB_TOKEN", TOKEN);
        plan.behind(&network.on(index)).start()
    };
    let pods = [start(0), start(1)];
    std::thread::sleep(Duration::from_secs(1));
    let hosts = fs::OpenOptions::new().append(true).open(network.files(1).join("hosts"));
    hosts.and_then(|mut hosts| hosts.write_all(line(0).as_bytes())).expect("hosts");
    let [first, second] = pods.map(|pod| pod.finish().success("a pod"));
    assert!(first.stdout.contains("2 processes × 2 devices"), "{}", first.stdout);
    assert_eq!(second.stdout, "");
}
