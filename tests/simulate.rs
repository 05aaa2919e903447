//! `spmd-run simulate` on programs of this repository.

mod harness;

use harness::{fails, spmd_run};

const CLUSTER: [&str; 6] = ["--slices", "2", "--hosts-per-slice", "2", "--dcn", "1Gbit/s,100us"];

#[test]
fn a_step_on_two_slices() {
    let rates = ["--flops", "1T", "--memory-bandwidth", "100GB/s", "hlo/dp_tp_mlp_step.hlo"];
    let report = spmd_run([&["simulate"], &CLUSTER[..], &rates].concat()).success("simulate").stdout;
    insta::assert_snapshot!(report);
}

#[test]
fn the_json_has_what_the_text_has() {
    let rest = ["--slices", "2", "--per-chip", "--compute", "3ms", "--format", "json", "hlo/scan_layers.hlo"];
    let report = spmd_run([&["simulate"], &rest[..]].concat()).success("simulate").stdout;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["compute_seconds"], 0.003);
    assert_eq!(report["topology"]["processes_per_host"], 2);
    let collectives = report["collectives"].as_array().unwrap();
    assert!(!collectives.is_empty());
    let sum: f64 = collectives.iter().map(|collective| collective["step_seconds"].as_f64().unwrap()).sum();
    assert!((sum - report["collective_seconds"].as_f64().unwrap()).abs() < 1e-12);
    // What stands in the loop over layers runs once for each of them.
    assert!(collectives.iter().any(|collective| collective["runs"]["times"].as_u64() > Some(1)));
}

#[test]
fn wrong_clusters_are_told() {
    let simulate = |arguments: &[&str]| spmd_run([&["simulate"], arguments].concat());
    let other = simulate(&["--slices", "3", "--devices-per-host", "4", "hlo/dp_tp_mlp_step.hlo"]);
    fails(&other, 2, &["the program is for 8 devices, and 3 slices × 1 hosts × 4 devices are 12", "change --slices"]);
    fails(&simulate(&["--dcn", "6GB", "hlo/tp_mlp.hlo"]), 2, &["'6GB' is not a bandwidth and a latency"]);
    let huge =
        ["--num-partitions", "4096", "--slices", "4", "--devices-per-host", "1024", "hlo/replica_all_reduce.hlo"];
    assert_ne!(simulate(&huge).code, Some(0));
}
