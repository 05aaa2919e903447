//! Jobs under a real Slurm.

mod harness;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::slurm::Slurm;
use harness::{Outcome, fails, run};

const BINARY: &str = env!("CARGO_BIN_EXE_spmd-run");

/// One cluster, as it takes long to start.
#[test]
fn jobs_under_slurm() {
    let Some(slurm) = Slurm::start() else { return };
    steps_know_their_processes(&slurm);
    what_contradicts_slurm_is_refused(&slurm);
    a_preempted_job_goes_on_from_its_checkpoint(&slurm);
}

fn srun(slurm: &Slurm, arguments: &[&str]) -> Outcome {
    let mut srun = slurm.command("srun");
    srun.args(arguments);
    run(srun)
}

fn steps_know_their_processes(slurm: &Slurm) {
    let program = ["hlo/dp_tp_mlp_step.hlo", "--input", "hlo/data/dp_tp_mlp_step.in.npz"];
    let expected = ["--expect", "hlo/data/dp_tp_mlp_step.out.npz", "--rtol", "1e-5", "--atol", "1e-5"];
    let outcome = srun(slurm, &[&["-n", "4", BINARY][..], &program, &expected].concat()).success("a program");
    assert!(outcome.stdout.contains("8 (cpu): 4 processes × 2 devices"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("Slurm: process 0 of 4, 0 of 4 on this host"), "{}", outcome.stderr);
    // In a batch script, outside any step, -n starts processes.
    let outcome = srun(slurm, &["-n", "1", BINARY, "devices", "-n", "2"]).success("a single task");
    assert!(outcome.stdout.contains("process_count  2"), "{}", outcome.stdout);
}

fn what_contradicts_slurm_is_refused(slurm: &Slurm) {
    let outcome = srun(slurm, &["-n", "2", BINARY, "devices", "-n", "3"]);
    fails(&outcome, 2, &["-n 3: Slurm started 2 processes: leave -n out"]);
    let outcome = srun(slurm, &["-n", "2", "env", "SLURM_PROCID=7", BINARY, "devices"]);
    fails(&outcome, 2, &["SLURM_PROCID=7 and SLURM_STEP_NUM_TASKS=2 contradict each other"]);
    let outcome = srun(slurm, &["-n", "2", "env", "-u", "SLURM_PROCID", BINARY, "devices"]);
    fails(&outcome, 2, &["SLURM_PROCID is not"]);
}

/// Slurm requeues the job for one of more importance, and starts it again.
fn a_preempted_job_goes_on_from_its_checkpoint(slurm: &Slurm) {
    let folder = Path::new(BINARY).parent().expect("a folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--example", "resume_after_kill"]).current_dir(harness::root());
    cargo.args(folder.ends_with("release").then_some("--release"));
    assert!(cargo.status().expect("cargo starts").success(), "the example does not build");
    let example = folder.join("examples/resume_after_kill");
    let (output, script) = (slurm.path("output"), slurm.path("script"));
    let text = format!(
        "#!/bin/sh\n#SBATCH --ntasks=2 --requeue --open-mode=append --output={}\n\
         srun {BINARY} -- {} {} 400000\n",
        output.display(),
        example.display(),
        slurm.path("checkpoints").display()
    );
    std::fs::write(&script, text).expect("a script");
    slurm.says("sbatch", &[script.to_str().expect("a name")]);
    let printed = || std::fs::read_to_string(&output).unwrap_or_default();
    wait_until("the job makes steps", || printed().contains("step 20: "));
    srun(slurm, &["-p", "high", "-n", "4", "true"]).success("a job of more importance");
    // From the beginning at first, and then from a checkpoint.
    let from =
        || printed().lines().filter_map(|line| line.strip_prefix("from step ")?.parse().ok()).collect::<Vec<u64>>();
    wait_until("the job is started again", || from().last().is_some_and(|step| *step >= 10));
    wait_until("it makes steps again", || printed().lines().last().is_some_and(|line| line.starts_with("step ")));
    slurm.says("scancel", &["--user=root"]);
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(90), "not: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
