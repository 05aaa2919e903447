//! Modules that XLA has compiled run again and give what they gave.

mod harness;

use harness::{root, spmd_run, tsv};

#[test]
fn compiled_dumps_give_their_results() {
    let mut failures = Vec::new();
    for dump in tsv(&root().join("tests/data/replay/dumps.tsv")) {
        let devices: u32 = dump["devices"].parse().expect("a count");
        for processes in (1..=2).filter(|&processes| devices.is_multiple_of(processes)) {
            let path = |file: &str| format!("tests/data/replay/{file}");
            let arguments = [
                "-n".to_owned(),
                processes.to_string(),
                path(&dump["file"]),
                "--input".to_owned(),
                path(&format!("{}.in.npz", dump["name"])),
                "--expect".to_owned(),
                path(&format!("{}.out.npz", dump["name"])),
                "--rtol".to_owned(),
                dump["tolerance"].clone(),
                "--atol".to_owned(),
                dump["tolerance"].clone(),
            ];
            let outcome = spmd_run(&arguments);
            let told = outcome.stderr.matches("compiled dump (is_scheduled=true)").count();
            if outcome.code != Some(0) || told != 1 {
                let (out, err) = (outcome.stdout, outcome.stderr);
                failures.push(format!("{arguments:?}: exit {:?}\n{out}{err}", outcome.code));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn results_without_a_sharding_are_said_to_be_of_one_device() {
    let dump = "tests/data/replay/reshape.hlo";
    let outcome = spmd_run(["-n", "2", dump, "--format", "json"]).success(dump);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let notes = report["notes"].as_array().expect("notes");
    let about_results =
        notes.iter().filter_map(|note| note.as_str()).find(|note| note.starts_with("partitioned before"));
    assert!(about_results.is_some_and(|note| note.contains("those of partition 0 are given")), "{notes:?}");
}
