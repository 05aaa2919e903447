//! Jobs on a real Ray cluster of several nodes, whose TPU chips CPU devices stand for.

mod harness;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::job::{Job, Plan, plan, signal};
use harness::ray::RayCluster;
use harness::{command, fails, run, spmd_run};

/// A job of eight devices that runs for minutes when nothing happens to it.
const LONG: [&str; 3] = ["hlo/dp_tp_mlp_step.hlo", "--repeat", "1000000"];
const NOTHING_HELD: &str = r#"{"free": 32.0, "all": 32.0, "heads": 2.0, "groups": 0}"#;

/// One cluster, as it takes long to start.
#[test]
fn jobs_on_a_cluster() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(mut cluster) = RayCluster::start(folder.path()) else { return };
    unusable_clusters_are_explained(&cluster);
    python_gives_the_answers_of_jax(&cluster, folder.path());
    nodes_lack_the_binary_and_the_program(&cluster);
    chips_are_divided(&cluster);
    helpers_clean_up(folder.path());
    // Who is killed cleans up nothing.
    stopped_jobs_free_what_they_have(&mut cluster);
    nodes_that_die_end_the_job(&mut cluster);
}

fn helpers_clean_up(folder: &Path) {
    let left = || {
        let entries = std::fs::read_dir(folder).expect("the folder").flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains('.')).collect::<Vec<_>>()
    };
    let start = Instant::now();
    while !left().is_empty() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(left(), [""; 0], "left behind by helpers");
}

/// `spmd-run` on the cluster.
fn on<'a>(cluster: &RayCluster, arguments: impl IntoIterator<Item = &'a str>) -> Plan {
    let mut plan = plan(arguments);
    plan.command.args(["--launcher", "ray", "--ray-address", &cluster.address]).env("PATH", &cluster.path);
    plan
}

fn unusable_clusters_are_explained(cluster: &RayCluster) {
    let too_many = on(cluster, ["devices", "-n", "8"]).run();
    fails(
        &too_many,
        3,
        &["the cluster has too few nodes: asked for 8 nodes, in one slice", "slice-a  3       TPU 4  TPU 4"],
    );
    let too_many = on(cluster, ["devices", "-n", "3", "--ray-resources", "CPU=1"]).run();
    fails(&too_many, 3, &["asked for 3 nodes; each node gives CPU 1", "CPU 0  CPU 0"]);
    let mut elsewhere = command(["devices", "--launcher", "ray", "--ray-address", "127.0.0.1:1"]);
    elsewhere.env("PATH", &cluster.path);
    fails(&run(elsewhere), 3, &["--ray-address 127.0.0.1:1 cannot be reached: [Errno 111] Connection refused"]);
    let mut nothing = command(["devices", "--launcher", "ray"]);
    nothing.env("PATH", "/no/such/folder");
    fails(&run(nothing), 3, &["Ray: cannot run python3: No such file"]);
    fails(&spmd_run(["devices", "--launcher", "ray", "--hosts", "a"]), 2, &["--hosts: Ray decides where a job runs"]);
}

fn python_gives_the_answers_of_jax(cluster: &RayCluster, folder: &Path) {
    let package = folder.join("package");
    let package = package.to_str().expect("a name");
    spmd_run(["ray", package]).success("a package for ray job submit");
    let program = folder.join("psum.hlo");
    let text = "HloModule psum\n\nadd { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT sum = f32[] add(a, b) }\n\n\
                ENTRY main { one = f32[] constant(1)\n ROOT sum = f32[] all-reduce(one), replica_groups={}, to_apply=add }\n";
    std::fs::write(&program, text).expect("a file");
    let mut python = Command::new("python3");
    python.env("PATH", &cluster.path).env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
    python.arg(harness::root().join("tests/harness/device_counts.py")).arg(&program).arg(&cluster.address);
    let outcome = run(python).success("the examples");
    insta::assert_snapshot!(outcome.stdout, @r"
    [4]
    [16, 16, 16, 16]
    [32, 32, 32, 32, 32, 32, 32, 32]
    [0, 0, 0, 0, 1, 1, 1, 1]
    spmd-run failed with exit code 1
    ");
    std::fs::remove_file(program).expect("it is there");
}

fn nodes_lack_the_binary_and_the_program(cluster: &RayCluster) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = folder.path().display();
    // What is in this folder the launcher sees alone.
    let hide = format!("mount -t tmpfs none {place}");
    if !Command::new("unshare").args(["-m", "sh", "-c", &hide]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no files can be hidden here (unshare -m and mount)");
        return;
    }
    let binary = env!("CARGO_BIN_EXE_spmd-run");
    let script = format!("{hide} && cp {binary} hlo/tp_mlp.hlo {place} && shift && exec {place}/spmd-run \"$@\"");
    let program = folder.path().join("tp_mlp.hlo");
    let plan = on(cluster, ["-n", "2", program.to_str().expect("a name"), "--fill", "ones"]);
    let outcome = plan.behind(&["unshare", "-m", "sh", "-c", &script, "sh"]).run().success("hidden files");
    assert!(outcome.stdout.contains("2 processes × 2 devices"), "{}", outcome.stdout);
}

fn chips_are_divided(cluster: &RayCluster) {
    let mut plan = on(cluster, ["-n", "4", "--per-chip"]);
    // The cluster's nodes have a slice's index of another job.
    let script = "echo chip $TPU_VISIBLE_CHIPS of $TPU_CHIPS_PER_PROCESS_BOUNDS, slice \"$MEGASCALE_SLICE_ID\".";
    plan.command.args(["--", "sh", "-c", script]);
    let outcome = plan.run().success("a process per chip");
    assert_eq!(outcome.stdout, "chip 0 of 1,1,1, slice .\n");
    for chip in 1..4 {
        let line = format!("] chip {chip} of 1,1,1, slice .");
        assert!(outcome.stderr.contains(&line), "{}", outcome.stderr);
    }
}

fn stopped_jobs_free_what_they_have(cluster: &mut RayCluster) {
    let start = |cluster: &RayCluster| {
        let mut plan = on(cluster, ["-n", "2"].into_iter().chain(LONG));
        plan.export_mark();
        let mut job = plan.start();
        job.wait_until_running(2);
        job
    };
    let job = start(cluster);
    signal(job.child.id(), "-INT");
    fails(&job.finish(), 130, &["stopped by signal 2 (SIGINT)"]);
    wait_until_free(cluster, NOTHING_HELD);
    let job = start(cluster);
    signal(job.child.id(), "-KILL");
    assert_eq!(job.finish().code, None);
    wait_until_free(cluster, NOTHING_HELD);
}

fn nodes_that_die_end_the_job(cluster: &mut RayCluster) {
    let mut both = on(cluster, ["-n", "8", "--slices", "2"].into_iter().chain(LONG));
    both.export_mark();
    let mut both: Job = both.start();
    both.wait_until_running(8);
    let in_vain = on(cluster, ["devices", "-n", "4", "--rendezvous-timeout", "2"]).run();
    fails(&in_vain, 3, &["the nodes were not free within 2 s", "slice-a  0       TPU 4  TPU 0"]);
    let waiting = on(cluster, ["devices", "-n", "4"]).start();

    assert_eq!(cluster.ask("kill slice-b 1"), "killed");
    fails(&both.finish(), 3, &["process ", " was lost: its Ray node ", " has died"]);
    let waited = waiting.finish().success("a job that waited");
    assert!(
        waited.stderr.contains("waiting until nodes are free: asked for 4 nodes, in one slice"),
        "{}",
        waited.stderr
    );
    let half = on(cluster, ["devices", "-n", "8", "--slices", "2"]).run();
    fails(&half, 3, &["the cluster has too few nodes: asked for 8 nodes, in 2 slices of equal size"]);
    wait_until_free(cluster, r#"{"free": 28.0, "all": 28.0, "heads": 2.0, "groups": 0}"#);
}

/// Ray takes a moment to free what a process held that was killed.
fn wait_until_free(cluster: &mut RayCluster, wanted: &str) {
    let start = Instant::now();
    loop {
        let answer = cluster.ask("use");
        if answer == wanted {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{answer}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
