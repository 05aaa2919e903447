//! Processes that a scheduler starts find their place by themselves.

mod harness;

use std::net::TcpListener;
use std::process::Command;

use harness::mpirun::mpirun;
use harness::{Outcome, command, fails, finish, run};

const PROGRAM: [&str; 3] = ["hlo/replica_all_reduce.hlo", "--fill", "ones"];

fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port().to_string()
}

/// Runs a process for each set of variables, all with the same arguments.
fn run_all(arguments: &[&str], processes: &[Vec<(&str, &str)>]) -> Vec<Outcome> {
    let start = |variables: &Vec<(&str, &str)>| {
        let mut command = command(arguments);
        command.envs(variables.iter().copied());
        harness::start(command)
    };
    let children: Vec<_> = processes.iter().map(start).collect();
    children.into_iter().map(finish).collect()
}

/// Two processes that know their place from these variables run a program together.
#[track_caller]
fn meet(scheduler: &str, first: Vec<(&str, &str)>, second: Vec<(&str, &str)>) {
    let outcomes = run_all(&[&PROGRAM[..], &["--devices-per-process", "2"]].concat(), &[first, second]);
    for outcome in &outcomes {
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
    assert!(outcomes[0].stderr.contains(&format!("{scheduler}: process 0 of 2")), "{outcomes:?}");
    assert!(outcomes[0].stdout.contains("2 processes × 2 devices"), "{outcomes:?}");
    assert_eq!(outcomes[1].stdout, "");
}

#[test]
fn jax() {
    let address = format!("127.0.0.1:{}", free_port());
    let of =
        |index| vec![("JAX_COORDINATOR_ADDRESS", &*address), ("JAX_NUM_PROCESSES", "2"), ("JAX_PROCESS_ID", index)];
    meet("JAX's variables", of("0"), of("1"));
}

#[test]
fn torchrun() {
    let port = free_port();
    let of = |rank| vec![("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &*port)];
    meet("torchrun", of("0"), of("1"));
}

#[test]
fn mpich() {
    let mpirun = |before: &[&str], arguments: &[&str]| {
        let mut mpirun = Command::new("mpirun.mpich");
        mpirun.args(["-n", "2"]).args(before).arg(env!("CARGO_BIN_EXE_spmd-run")).args(PROGRAM).args(arguments);
        mpirun.current_dir(harness::root());
        run(mpirun)
    };
    if Command::new("mpirun.mpich").arg("--version").output().is_err() {
        eprintln!("skipped: mpirun.mpich is not installed (Debian: mpich)");
        return;
    }
    let coordinator = format!("127.0.0.1:{}", free_port());
    // What stands between, as scripts do, hides no place in a job.
    let between = ["sh", "-c", "\"$@\"; exit $?", "sh"];
    for (before, arguments) in [(&[][..], &[][..]), (&between, &[]), (&[], &["--coordinator", &coordinator])] {
        let outcome = mpirun(before, arguments).success("MPICH");
        assert!(outcome.stdout.contains("2 processes × 2 devices"), "{}", outcome.stdout);
        assert!(outcome.stderr.contains("MPICH: process 0 of 2, 0 of 2 on this host"), "{}", outcome.stderr);
    }
    fails(&mpirun(&[], &["-n", "3"]), 2, &["-n 3: MPICH started 2 processes: leave -n out"]);
    let two_hosts = mpirun(&["-launcher", "fork", "-hosts", "a,b"], &[]);
    let reason = "MPICH does not tell its processes the name of any host: give --coordinator HOST:PORT";
    fails(&two_hosts, 2, &[reason]);
}

#[test]
fn a_loopback_coordinator_for_several_hosts_is_refused() {
    let variables = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
    ];
    let outcome = run_all(&PROGRAM, &[variables.into()]).remove(0);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("is a loopback address, which leads every host to itself"), "{outcome:?}");
}

#[test]
fn slurm() {
    let port = free_port();
    let of = |rank| {
        vec![
            ("SLURM_JOB_ID", "1234567"),
            ("SLURM_STEP_NODELIST", "node[001-002]"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_PROCID", rank),
            ("SLURM_LOCALID", rank),
            ("SLURM_NODEID", "0"),
            ("SLURM_STEP_TASKS_PER_NODE", "2"),
            ("JAX_COORDINATOR_PORT", &*port),
        ]
    };
    meet("Slurm", of("0"), of("1"));
}

/// Between hosts the user has to bring a secret.
#[test]
fn a_coordinator_that_strangers_reach_needs_a_token() {
    let variables = vec![("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1"), ("MASTER_PORT", "29500")];
    let outcome = &run_all(&PROGRAM, &[variables])[0];
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("this job has no token: set SPMD_JOB_TOKEN"), "{outcome:?}");
}

#[test]
fn options_that_contradict_the_scheduler() {
    let torchrun = vec![("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    let pod = vec![("JOB_COMPLETION_INDEX", "1"), ("HOSTNAME", "mlp-1")];
    let part = vec![("OMPI_COMM_WORLD_RANK", "1")];
    let cases = [
        (&torchrun, &["-n", "3"][..], "-n 3: torchrun started 2 processes: leave -n out, or give --cluster none"),
        (&torchrun, &["--process-id", "0"], "--process-id 0: torchrun says that this is process 1: leave it out"),
        (&pod, &[], "Kubernetes started this process and does not tell how many there are: give -n"),
        (&pod, &["-n", "2"], "make a headless service"),
        (&part, &[], "OMPI_COMM_WORLD_RANK=1 is set but OMPI_COMM_WORLD_SIZE is not"),
    ];
    for (variables, options, message) in cases {
        let outcome = &run_all(&[options, &PROGRAM].concat(), std::slice::from_ref(variables))[0];
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains(message), "{message}\n{outcome:?}");
    }
    let outcome = run(command(["--process-id", "0"].iter().chain(&PROGRAM)));
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("--process-id: no scheduler started this process"), "{outcome:?}");
}

#[test]
fn a_scheduler_can_be_left_aside() {
    let torchrun = vec![("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    let arguments = [&["--cluster", "none", "-n", "4"][..], &PROGRAM].concat();
    let outcome = run_all(&arguments, &[torchrun]).remove(0).success("four processes of its own");
    assert!(outcome.stdout.contains("4 processes × 1 device"), "{outcome:?}");
}

#[test]
fn a_single_process_starts_more() {
    let single = vec![("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    let outcome = run_all(&[&["-n", "2"][..], &PROGRAM].concat(), &[single]).remove(0).success("two processes");
    assert!(outcome.stderr.contains("Open MPI started one process: -n 2 starts 2 on this host"), "{outcome:?}");
}

fn under_mpirun(arguments: &[&str]) -> Option<Outcome> {
    mpirun(4, [&[env!("CARGO_BIN_EXE_spmd-run")], arguments].concat()).map(run)
}

#[test]
fn open_mpi() {
    let data = ["--input", "hlo/data/dp_tp_mlp_step.in.npz", "--expect", "hlo/data/dp_tp_mlp_step.out.npz"];
    let arguments = [&["hlo/dp_tp_mlp_step.hlo"], &data[..], &["--rtol", "1e-5", "--atol", "1e-5"]].concat();
    let Some(outcome) = under_mpirun(&arguments) else { return };
    let outcome = outcome.success("a sample under mpirun");
    assert!(outcome.stdout.contains("4 processes × 2 devices"), "{outcome:?}");
    assert!(outcome.stderr.contains("Open MPI: process 0 of 4, 0 of 4 on this host"), "{outcome:?}");
}

#[test]
fn open_mpi_with_another_count() {
    let Some(outcome) = under_mpirun(&[&["-n", "3"][..], &PROGRAM].concat()) else { return };
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("-n 3: Open MPI started 4 processes"), "{outcome:?}");
}

#[test]
fn a_process_of_mpirun_that_dies_ends_the_job() {
    let script = format!(
        "[ $OMPI_COMM_WORLD_RANK = 2 ] && (sleep 1; kill -9 $$) & exec {} hlo/dp_mlp_step.hlo --repeat 1000000",
        env!("CARGO_BIN_EXE_spmd-run")
    );
    let Some(outcome) = mpirun(4, ["sh", "-c", &script]).map(run) else { return };
    assert_eq!(outcome.code, Some(137), "{outcome:?}");
}

#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_there_is_no_such_transport() {
    let outcome = run(command(["-n", "2", "--transport", "mpi"].iter().chain(&PROGRAM)));
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("build it with `cargo install --path . --features mpi`"), "{outcome:?}");
}
