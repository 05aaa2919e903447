//! Every sample of `hlo/`, in every layout of processes and devices that fits, gives the results that JAX or NumPy
//! computed.

mod harness;

use harness::{root, spmd_run, tsv};

#[test]
fn samples_give_the_expected_results_in_every_layout() {
    let failures: Vec<String> = tsv(&root().join("hlo/samples.tsv"))
        .iter()
        .flat_map(|row| {
            let layouts = row["layouts"].split(',');
            layouts.filter_map(|layout| run(row, layout)).collect::<Vec<_>>()
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Runs a sample over `processes × devices`; says what went wrong.
fn run(row: &std::collections::HashMap<String, String>, layout: &str) -> Option<String> {
    let name = &row["name"];
    let (processes, devices) = layout.split_once('x').expect("a layout is PROCESSESxDEVICES");
    let outcome = spmd_run([
        "-n",
        processes,
        "--devices-per-process",
        devices,
        &format!("hlo/{}", row["file"]),
        "--input",
        &format!("hlo/data/{name}.in.npz"),
        "--expect",
        &format!("hlo/data/{name}.out.npz"),
        "--rtol",
        &row["rtol"],
        "--atol",
        &row["atol"],
    ]);
    let context = || format!("{name} {layout}: exit {:?}\n{}{}", outcome.code, outcome.stdout, outcome.stderr);
    (outcome.code != Some(0)).then(context)
}
