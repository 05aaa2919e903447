//! `spmd-run doctor`.

mod harness;

use std::path::Path;

use harness::{command, run};

/// A host with two TPU chips and one GPU.
fn host_with_chips(root: &Path) {
    let chips = [
        ("0000:00:04.0", "0x1ae0", "0x0063"),
        ("0000:00:05.0", "0x1ae0", "0x0063"),
        ("0000:01:00.0", "0x10de", "0x2335"),
    ];
    for (address, vendor, device) in chips {
        let folder = root.join("sys/bus/pci/devices").join(address);
        std::fs::create_dir_all(&folder).expect("a folder");
        for (file, value) in [("vendor", vendor), ("device", device), ("class", "0x030200")] {
            std::fs::write(folder.join(file), value).expect("a file");
        }
    }
    let files = root.join("proc/4711/fd");
    std::fs::create_dir_all(&files).expect("a folder");
    std::fs::write(root.join("proc/4711/comm"), "python3\n").expect("a file");
    std::os::unix::fs::symlink("/dev/vfio/1", files.join("5")).expect("a link");
}

#[test]
fn a_process_of_slurm_on_a_host_with_chips() {
    let root = tempfile::tempdir().expect("a folder");
    host_with_chips(root.path());
    let mut doctor = command(["doctor", "--format", "json", "--root", root.path().to_str().expect("text")]);
    doctor.envs([
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_NODELIST", "node[1-2]"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_PROCID", "1"),
        ("SLURM_LOCALID", "0"),
        ("TPU_SKIP_MDS_QUERY", "1"),
    ]);
    let outcome = run(doctor).success("doctor");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(report["joins"]["scheduler"], "slurm");
    assert_eq!(report["joins"]["coordinator"], "node1:61447");
    assert_eq!(report["schedulers"][0]["variables"]["SLURM_PROCID"], "1");
    assert_eq!(report["chips"].as_array().expect("chips").len(), 3);
    assert_eq!(report["chips"][0]["kind"], "TPU v5e");
    let advice = report["advice"].to_string();
    for expected in ["SPMD_JOB_TOKEN", "2 TPU chips", "1 NVIDIA GPUs", "process 4711 (python3) has /dev/vfio/1 open"] {
        assert!(advice.contains(expected), "{expected}: {advice}");
    }
}

#[test]
fn what_contradicts_itself_is_an_error() {
    let mut doctor = command(["doctor", "--root", "/nonexistent"]);
    doctor.envs([("OMPI_COMM_WORLD_RANK", "4"), ("OMPI_COMM_WORLD_SIZE", "4")]);
    doctor.env("OMPI_MCA_orte_precondition_transports", "85310d584d03a365-a932bd50d01b5864");
    let outcome = run(doctor);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stdout.contains("OMPI_COMM_WORLD_RANK=4 and OMPI_COMM_WORLD_SIZE=4 contradict"), "{outcome:?}");
    assert!(outcome.stdout.contains("none on the PCI bus"), "{outcome:?}");
    assert!(!outcome.stdout.contains("85310d584d03a365"), "{outcome:?}");
}

#[test]
fn a_machine_on_its_own() {
    let outcome = run(command(["doctor"])).success("doctor");
    assert!(outcome.stdout.contains("no scheduler's: -n starts processes on this host"), "{outcome:?}");
    assert!(outcome.stdout.contains("lo 127.0.0.1"), "{outcome:?}");
}
