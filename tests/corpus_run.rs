//! The corpus's programs that run on CPU give their results with one process and with several.

mod harness;

use harness::{corpus, spmd_run, tsv};

#[test]
fn runnable_programs_give_their_results_with_one_process_and_with_two() {
    let Some(corpus) = corpus() else { return };
    let mut failures = Vec::new();
    for row in tsv(&corpus.join("MANIFEST.tsv")).iter().filter(|row| row["expect"] == "works") {
        for processes in ["1", "2"] {
            let path = |name: &str| corpus.join(&row[name]).display().to_string();
            let mut arguments = vec!["-n".to_owned(), processes.to_owned(), path("file")];
            for (option, column) in [("--input", "inputs"), ("--expect", "expected")] {
                if row[column] != "-" {
                    arguments.extend([option.to_owned(), path(column)]);
                }
            }
            if row["expected"] != "-" {
                arguments.extend(["--rtol".to_owned(), row["rtol"].clone(), "--atol".to_owned(), row["atol"].clone()]);
            }
            let outcome = spmd_run(&arguments);
            if outcome.code != Some(0) {
                failures.push(format!("{} -n {processes}:\n{}{}", row["id"], outcome.stdout, outcome.stderr));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
