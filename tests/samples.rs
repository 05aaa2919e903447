//! Every sample of `hlo/` gives the results that JAX or NumPy computed, in every layout of processes and devices that
//! fits, and with every CPU plugin that the tests are given.

mod harness;

use std::collections::HashMap;
use std::path::PathBuf;

use harness::{root, spmd_run, tsv};

type Sample = HashMap<String, String>;

#[test]
fn one_process_gives_the_expected_results() {
    check(|layout| layout.starts_with("1x"), None);
}

#[test]
fn two_processes_give_the_expected_results() {
    check(|layout| layout.starts_with("2x"), None);
}

#[test]
fn four_processes_give_the_expected_results() {
    check(|layout| layout.starts_with("4x"), None);
}

#[test]
fn older_plugins_give_the_expected_results() {
    let plugins = std::env::var_os("SPMD_TEST_PLUGINS").unwrap_or_default();
    let plugins: Vec<PathBuf> = std::env::split_paths(&plugins).collect();
    if plugins.is_empty() {
        eprintln!("skipped: SPMD_TEST_PLUGINS names no further plugins");
    }
    for plugin in plugins {
        check(|layout| layout.starts_with("2x"), Some(plugin));
    }
}

/// Runs all samples in the layouts that are wanted and fails with everything that went wrong.
fn check(wanted: impl Fn(&str) -> bool, plugin: Option<PathBuf>) {
    let samples = tsv(&root().join("hlo/samples.tsv"));
    let runs: Vec<(&Sample, &str)> = samples
        .iter()
        .flat_map(|sample| sample["layouts"].split(',').map(move |layout| (sample, layout)))
        .filter(|(_, layout)| wanted(layout))
        .collect();
    assert!(!runs.is_empty(), "no sample has such a layout");
    let failures: Vec<String> =
        runs.iter().filter_map(|(sample, layout)| run(sample, layout, plugin.as_ref())).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Runs a sample over `PROCESSESxDEVICES`; says what went wrong.
fn run(sample: &Sample, layout: &str, plugin: Option<&PathBuf>) -> Option<String> {
    let name = &sample["name"];
    let (processes, devices) = layout.split_once('x').expect("a layout is PROCESSESxDEVICES");
    let program = format!("hlo/{}", sample["file"]);
    let (input, expected) = (format!("hlo/data/{name}.in.npz"), format!("hlo/data/{name}.out.npz"));
    let mut arguments = vec!["-n", processes, "--devices-per-process", devices, &program, "--input", &input];
    arguments.extend(["--expect", &expected, "--rtol", &sample["rtol"], "--atol", &sample["atol"]]);
    let plugin = plugin.map(|plugin| plugin.display().to_string());
    arguments.extend(plugin.iter().flat_map(|plugin| ["--plugin", plugin]));
    let outcome = spmd_run(&arguments);
    let context = || format!("{arguments:?}: exit {:?}\n{}{}", outcome.code, outcome.stdout, outcome.stderr);
    (outcome.code != Some(0)).then(context)
}
