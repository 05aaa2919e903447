use super::*;

const SLURM: [(&str, &str); 6] = [
    ("SLURM_JOB_ID", "7"),
    ("SLURM_STEP_NODELIST", "a,b"),
    ("SLURM_NTASKS", "2"),
    ("SLURM_PROCID", "1"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "1"),
];
const MPIRUN: [(&str, &str); 3] =
    [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_NAMESPACE", "prterun-a-77@1")];

fn environment(variables: &[&[(&str, &str)]]) -> Environment {
    Environment::new(variables.concat())
}

fn detected(variables: &[&[(&str, &str)]]) -> String {
    detect(&environment(variables)).unwrap().unwrap().to_string()
}

#[test]
fn nobody_started_this_process() {
    assert!(detect(&environment(&[&[("PATH", "/bin"), ("HOSTNAME", "a")]])).unwrap().is_none());
}

#[test]
fn the_innermost_scheduler_counts() {
    assert_eq!(detected(&[&SLURM]), "Slurm: process 1 of 2, coordinator a:61447");
    assert_eq!(detected(&[&SLURM, &MPIRUN]), "Open MPI: process 2 of 4, coordinator a:61517");
    let torchrun = [("RANK", "5"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "29500")];
    assert_eq!(detected(&[&SLURM, &torchrun]), "torchrun: process 5 of 8, coordinator a:29500");
}

#[test]
fn a_single_process_gives_way_to_more() {
    let single = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    assert_eq!(detected(&[&SLURM, &single]), "Slurm: process 1 of 2, coordinator a:61447");
    assert_eq!(detected(&[&single]), "Open MPI: process 0 of 1");
}

#[test]
fn the_users_coordinator_counts_with_every_scheduler() {
    let address = [("JAX_COORDINATOR_ADDRESS", "c:1")];
    assert_eq!(detected(&[&SLURM, &address]), "Slurm: process 1 of 2, coordinator c:1");
    let error = detect(&environment(&[&address])).unwrap_err();
    insta::assert_snapshot!(error, @"JAX's variables: JAX_COORDINATOR_ADDRESS=c:1 is set but JAX_NUM_PROCESSES is not: a process needs all three of JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID");
}

#[test]
fn a_survey_shows_all_and_no_secret() {
    let key = ("OMPI_MCA_orte_precondition_transports", "85310d584d03a365-a932bd50d01b5864");
    let elsewhere = ("HOSTNAME", "a");
    let findings = survey(&environment(&[&SLURM, &MPIRUN, &[key, elsewhere]]));
    let schedulers: Vec<Scheduler> = findings.iter().map(|finding| finding.scheduler).collect();
    assert_eq!(schedulers, [Scheduler::OpenMpi, Scheduler::Slurm]);
    let shown = format!("{findings:?}");
    assert!(shown.contains("OMPI_MCA_orte_precondition_transports") && !shown.contains("a932bd50d01b5864"));
}
