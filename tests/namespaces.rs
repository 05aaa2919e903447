//! Jobs between two hosts that are network namespaces, with a cable of limited speed between them.

mod harness;

use std::fs;
use std::io::Write;
use std::time::Duration;

use harness::by_hand::{self, TOKEN};
use harness::job::{Plan, plan};
use harness::namespaces::{CABLE, Namespaces};
use harness::ssh::SshServer;
use harness::{behind, fails, root};
use serde::Deserialize;
use serde_json::Value;
use spmd_run::rendezvous::JobToken;

/// What the cable between two hosts carries, in Mbit/s.
const RATE: u32 = 200;

#[test]
fn a_pulled_cable_ends_the_job_on_both_sides() {
    let Some(network) = Namespaces::pair("cable", RATE) else { return };
    let Some(server) = SshServer::start("10.78.0.2", &network.on(1)) else { return };
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
    network.set_cable(CABLE, "down");
    let outcome = running.finish();
    assert!(matches!(outcome.code, Some(3)), "{:?} {}", outcome.code, outcome.stderr);
    assert!(outcome.stderr.contains("process 1 "), "{}", outcome.stderr);
}

/// What process 0 prints of a job of two slices, a host with two processes each.
fn in_slices(network: &Namespaces, port: u16, arguments: &[&str]) -> String {
    let coordinator = format!("10.78.0.1:{port}");
    let start = |index: usize| {
        let mut plan = plan(arguments);
        // The hosts are one machine, which has shared memory.
        plan.command.args(by_hand::place(&coordinator, index, 4)).args(["--slices", "2", "--transport", "tcp"]);
        plan.command.env(JobToken::VARIABLE, TOKEN);
        plan.behind(&network.on(index / 2)).start()
    };
    let jobs: Vec<_> = (0..4).map(start).collect();
    let outcomes: Vec<_> = jobs.into_iter().map(|job| job.finish().success("a process")).collect();
    outcomes[0].stdout.clone()
}

#[test]
fn links_between_slices_are_measured() {
    let Some(network) = Namespaces::pair("links", RATE) else { return };
    let measured = |port| {
        let view = in_slices(&network, port, &["devices", "--format", "json"]);
        let view: Value = serde_json::from_str(&view).expect("JSON");
        assert_eq!(view["links"]["is_measured"], true, "{view}");
        let rate = |link: &str| view["links"][link]["bytes_per_second"].as_f64().expect("a rate");
        assert!(rate("ici") > rate("dcn"), "{view}");
        rate("dcn")
    };
    let fast = measured(47001);
    assert!(network.limit(CABLE, RATE / 10));
    let slow = measured(47002);
    assert!((2.5..20.0).contains(&(fast / slow)), "200 Mbit/s are {fast:.0} B/s, 20 Mbit/s {slow:.0} B/s");
}

#[test]
fn given_links_decide_what_crosses_between_slices() {
    let Some(network) = Namespaces::pair("given", RATE) else { return };
    let sent = |port, ici, dcn| {
        let bytes = || network.bytes(0, CABLE, "tx");
        let before = bytes();
        let size = ["--minbytes", "1M", "--maxbytes", "1M", "--iters", "8", "--measure", "engine", "--format", "json"];
        let links = ["bench", "collectives", "all_reduce", "--ici", ici, "--dcn", dcn];
        let report: Value =
            serde_json::from_str(&in_slices(&network, port, &[&links[..], &size].concat())).expect("JSON");
        assert_eq!(report["links"]["is_measured"], false, "{report}");
        bytes() - before
    };
    let flat = sent(47003, "1MB/s,10ms", "100GB/s,1us");
    let by_islands = sent(47004, "100GB/s,1us", "1MB/s,1us");
    assert!(2 * flat > 3 * by_islands, "{flat} bytes flat, {by_islands} by islands");
}

const COORDINATOR: &str = "10.78.0.1:47000";

/// Process `index` of a job of `count`, started by hand on one of the hosts.
fn by_hand(network: &Namespaces, host: usize, index: usize, count: usize) -> Plan {
    let mut plan = plan(by_hand::place(COORDINATOR, index, count));
    plan.command.env(JobToken::VARIABLE, TOKEN);
    plan.behind(&network.on(host))
}

const SHORT: [&str; 3] = ["hlo/tp_mlp.hlo", "--fill", "ones"];

#[test]
fn both_sides_of_a_cut_cable_end() {
    let Some(network) = Namespaces::pair("cut", RATE) else { return };
    let jobs = [0, 1].map(|index| {
        let mut plan = by_hand(&network, index, index, 2);
        plan.command.args(["hlo/scan_layers.hlo", "--repeat", "1000000", "--timeout", "300"]);
        plan.start()
    });
    by_hand::wait_for_steps(|| behind(&network.on(1), &by_hand::status(COORDINATOR)), 2);
    network.set_cable(CABLE, "down");
    let lost = ["process 1 (", &format!("lost the coordinator at {COORDINATOR}")];
    for (job, words) in jobs.into_iter().zip(lost) {
        fails(&job.finish(), 3, &[words, "its host cannot be reached any more"]);
    }
}

#[test]
fn a_late_process_is_waited_for() {
    let Some(network) = Namespaces::pair("late", RATE) else { return };
    let start = |index| {
        let mut plan = by_hand(&network, index, index, 2);
        plan.command.args(SHORT);
        plan.start()
    };
    let first = start(0);
    std::thread::sleep(Duration::from_secs(3));
    let second = start(1);
    let first = first.finish().success("process 0");
    second.finish().success("process 1");
    assert!(first.stdout.contains("2 processes × 2 devices"), "{}", first.stdout);
}

#[test]
fn a_missing_process_is_named_on_both_hosts() {
    let Some(network) = Namespaces::pair("missing", RATE) else { return };
    let limited = |host, index| {
        let mut plan = by_hand(&network, host, index, 4);
        plan.command.args(SHORT).args(["--rendezvous-timeout", "5"]);
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
    let Some(network) = Namespaces::pair("pods", RATE) else { return };
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
    let line = |index: usize| format!("10.78.0.{} {name}-{index}.{domain} {name}-{index}\n", index + 1);
    let start = |index: usize| {
        let files = network.files(index);
        fs::write(files.join("hosts"), format!("127.0.0.1 localhost\n{}", line(index))).expect("hosts");
        fs::write(files.join("nsswitch.conf"), "hosts: files\n").expect("nsswitch.conf");
        let mut plan = plan(arguments.clone());
        plan.command.env("JOB_COMPLETION_INDEX", index.to_string()).env("HOSTNAME", format!("{name}-{index}"));
        plan.command.env(JobToken::VARIABLE, TOKEN);
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
