//! Executables that are kept for later jobs.

mod harness;

use std::path::{Path, PathBuf};

use harness::{Outcome, command, fails, run, spmd_run};

const PROGRAM: &str = "hlo/dp_tp_mlp_step.hlo";

/// Runs the sample over two processes, checks its results, and tells how it ended.
fn job(cache: &Path, flags: &str) -> Outcome {
    let data = "hlo/data/dp_tp_mlp_step";
    let (input, expected) = (format!("{data}.in.npz"), format!("{data}.out.npz"));
    let mut command = command(["-n", "2", "--devices-per-process", "4", PROGRAM]);
    command.args(["--input", &input, "--expect", &expected, "--rtol", "1e-5", "--atol", "1e-5"]);
    command.arg("--compilation-cache").arg(cache).env("XLA_FLAGS", flags);
    run(command).success("the results are right")
}

fn is_recalled(outcome: &Outcome) -> bool {
    outcome.stderr.contains("'dp_tp_mlp_step' was compiled before")
}

fn files(cache: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cache).expect("the cache's folder");
    entries.map(|entry| entry.expect("a file of the cache").path()).collect()
}

#[test]
fn a_program_is_compiled_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = folder.path().join("of/the/job");
    assert!(!is_recalled(&job(&cache, "")));
    let kept = files(&cache);
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(is_recalled(&job(&cache, "")));
    assert!(!is_recalled(&job(&cache, "--xla_cpu_enable_fast_math=true")), "flags change what is compiled");
    assert_eq!(files(&cache).len(), 2);

    let whole = std::fs::read(&kept[0]).expect("the executable");
    std::fs::write(&kept[0], &whole[..whole.len() / 2]).expect("half an executable");
    let outcome = job(&cache, "");
    assert!(outcome.stderr.contains("it is damaged; the program is compiled again"), "{}", outcome.stderr);
    assert!(is_recalled(&job(&cache, "")));
}

#[test]
fn a_cache_that_cannot_be_written_is_an_error() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let outcome =
        spmd_run(["-n", "2", "--compilation-cache", &file.path().display().to_string(), "hlo/bf16_matmul.hlo"]);
    fails(&outcome, 1, &["executables cannot be kept there"]);
}
