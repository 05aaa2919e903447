//! Jobs on a real Ray cluster of several nodes, whose TPU chips CPU devices stand for.

mod harness;

use std::ffi::OsStr;
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
    a_cluster_that_goes_away_ends_the_job(cluster);
}

/// Each of them ends by itself, whatever it is that is no cluster.
#[test]
fn what_is_no_cluster_is_told() {
    let told = |mut plan: Plan, path: &OsStr, message: &str| {
        plan.command.args(["--launcher", "ray", "--rendezvous-timeout", "1"]).env("PATH", path);
        plan.command.env_remove("RAY_ADDRESS");
        fails(&plan.run(), 3, &[message]);
    };
    let devices = || plan(["devices"]);
    told(devices(), OsStr::new("/no/such/folder"), "Ray: cannot run python3: No such file");
    let other_python = |script: &str| {
        let plan = devices();
        let folder = plan.script("python3", script).parent().expect("a folder").to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(&path))).expect("a PATH");
        (plan, path)
    };
    let (plan, path) = other_python("echo 'no Python for this machine' >&2\nexit 3\n");
    told(plan, &path, "Ray: python3 has ended: no Python for this machine");
    // Whatever the real one has.
    let (plan, path) = other_python("PATH=${PATH#*:}\nexport PYTHONPATH=$(dirname $0)/none\nexec python3 \"$@\"\n");
    let none = Path::new(path.to_str().expect("text").split(':').next().expect("a folder")).join("none");
    std::fs::create_dir(&none).expect("a folder");
    std::fs::write(none.join("ray.py"), "raise ImportError('not installed')").expect("a file");
    told(plan, &path, "has no Ray (not installed): put the Python that has it first on the PATH");

    let Some(path) = harness::ray::path() else { return };
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = mute.local_addr().expect("its address").to_string();
    let mut at_mute = devices();
    at_mute.command.args(["--ray-address", &address]);
    told(at_mute, &path, &format!("--ray-address {address}: no answer within 1 s: is a Ray cluster there"));
    // Where nobody sees the processes of other clusters.
    let alone = ["unshare", "--pid", "--fork", "--mount-proc"];
    if !Command::new(alone[0]).args(&alone[1..]).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no process namespace can be made here (unshare --pid)");
        return;
    }
    told(devices().behind(&alone), &path, "no Ray cluster runs on this machine: start one (ray start --head)");
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

/// Nobody is left to say what has become of a node.
fn a_cluster_that_goes_away_ends_the_job(mut cluster: RayCluster) {
    let mut job = on(&cluster, ["-n", "4"].into_iter().chain(LONG));
    job.export_mark();
    let mut job = job.start();
    job.wait_until_running(4);
    assert_eq!(cluster.ask("end"), "ended");
    let outcome = job.finish();
    fails(&outcome, 3, &["process ", " (", ": "]);
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
