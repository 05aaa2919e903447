//! Jobs under a real Slurm.

mod harness;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::namespaces::Namespaces;
use harness::slurm::Slurm;
use harness::{Outcome, fails, run};

const BINARY: &str = env!("CARGO_BIN_EXE_spmd-run");
const PROGRAM: [&str; 3] = ["hlo/dp_tp_mlp_step.hlo", "--input", "hlo/data/dp_tp_mlp_step.in.npz"];
const EXPECTED: [&str; 6] = ["--expect", "hlo/data/dp_tp_mlp_step.out.npz", "--rtol", "1e-5", "--atol", "1e-5"];
const TOKEN: &str = "SPMD_JOB_TOKEN";

/// One cluster, as it takes long to start.
#[test]
fn jobs_under_slurm() {
    let Some(slurm) = Slurm::start() else { return };
    steps_know_their_processes(&slurm);
    what_contradicts_slurm_is_refused(&slurm);
    a_preempted_job_goes_on_from_its_checkpoint(&slurm);
}

/// Nodes that are network namespaces, with a cable between them.
#[test]
fn a_step_over_two_nodes() {
    let Some(network) = Namespaces::pair("slurm", 200) else { return };
    let Some(slurm) = Slurm::on(&network) else { return };
    let srun = |token: Option<&str>, arguments: &[&str]| {
        let mut srun = slurm.command("srun");
        srun.env_remove(TOKEN).args(["-N", "2", "-n", "4", "--ntasks-per-node=2", BINARY]).args(arguments);
        srun.envs(token.map(|token| (TOKEN, token)));
        run(srun)
    };
    let secret = Some("0123456789abcdef0123456789abcdef");
    // The nodes are one machine, which has shared memory.
    let outcome = srun(secret, &[&PROGRAM[..], &EXPECTED, &["--transport", "tcp"]].concat()).success("a program");
    assert!(outcome.stdout.contains("8 (cpu): 4 processes × 2 devices, over tcp"), "{}", outcome.stdout);
    assert!(
        outcome.stderr.contains("Slurm: process 0 of 4, 0 of 2 on this host, coordinator n0:"),
        "{}",
        outcome.stderr
    );
    let devices = srun(secret, &["devices", "--format", "json"]).success("devices").stdout;
    let devices: serde_json::Value = serde_json::from_str(&devices).expect("JSON");
    let hosts = devices["processes"].as_array().expect("processes").iter().map(|process| process["host"].as_str());
    assert_eq!(hosts.flatten().collect::<Vec<_>>(), ["n0", "n0", "n1", "n1"]);
    fails(&srun(None, &["devices"]), 3, &["this job has no token: set SPMD_JOB_TOKEN"]);
}

fn srun(slurm: &Slurm, arguments: &[&str]) -> Outcome {
    let mut srun = slurm.command("srun");
    srun.args(arguments);
    run(srun)
}

fn steps_know_their_processes(slurm: &Slurm) {
    let outcome = srun(slurm, &[&["-n", "4", BINARY][..], &PROGRAM, &EXPECTED].concat()).success("a program");
    assert!(outcome.stdout.contains("8 (cpu): 4 processes × 2 devices"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("Slurm: process 0 of 4, 0 of 4 on this host"), "{}", outcome.stderr);
    // Slurm as MPI's process manager, which sets variables of MPICH.
    let outcome = srun(slurm, &["--mpi=pmi2", "-n", "2", BINARY, "devices"]).success("PMI");
    assert!(outcome.stderr.contains("Slurm: process 0 of 2, 0 of 2 on this host"), "{}", outcome.stderr);
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
