//! Jobs of several slices.

mod harness;

use std::path::Path;

use harness::{command, run, spmd_run};
use spmd_run::dtype::DType;
use spmd_run::host_array::{HostArray, npz};

#[test]
fn devices_know_their_slices() {
    let arguments = ["devices", "-n", "4", "--slices", "2", "--devices-per-process", "2", "--format", "json"];
    let outcome = spmd_run(arguments).success("devices");
    let view: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(view["slice_count"], 2);
    let processes = view["processes"].as_array().expect("processes");
    let devices = processes.iter().flat_map(|process| process["devices"].as_array().expect("devices"));
    let slices: Vec<u64> = devices.map(|device| device["slice_index"].as_u64().expect("an index")).collect();
    assert_eq!(slices, [0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn a_program_gives_the_same_over_two_slices() {
    let data = |kind: &str| format!("hlo/data/dp_tp_mlp_step.{kind}.npz");
    let (input, expected) = (data("in"), data("out"));
    let slices = ["-n", "4", "--slices", "2", "hlo/dp_tp_mlp_step.hlo"];
    let files = ["--input", &input, "--expect", &expected, "--rtol", "1e-5", "--atol", "1e-5"];
    spmd_run([&slices[..], &files].concat()).success("two slices");
}

/// The losses of some steps of training, each of which begins with the parameters that the one before it has left.
fn losses(options: &[&str], steps: usize) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let file = |step: usize| folder.path().join(format!("{step}.npz"));
    let array = |npz: &Path, name: &str| {
        let array = npz::read_npz(npz).unwrap().remove(name).unwrap();
        let dims = array.dims().to_vec();
        array.into_host_array(DType::F32, &dims).unwrap()
    };
    let batch = Path::new("hlo/data/dp_tp_mlp_step.in.npz");
    let mut losses = Vec::new();
    for step in 0..steps {
        let argument = |index: usize| match step {
            0 => array(batch, &format!("arg{index}")),
            _ if index < 4 => array(&file(step - 1), &format!("out{index}")),
            _ => array(batch, &format!("arg{index}")),
        };
        let arguments: Vec<HostArray> = (0..6).map(argument).collect();
        let input = folder.path().join("in.npz");
        npz::write_npz(&input, arguments.iter().enumerate().map(|(index, it)| (format!("arg{index}"), it))).unwrap();
        let (input, output) = (input.display().to_string(), file(step).display().to_string());
        let run = ["-n", "4", "--input", &input, "--output", &output, "hlo/dp_tp_mlp_step.hlo"];
        spmd_run([options, &run].concat()).success("a step");
        let loss = array(&file(step), "out4").into_data();
        losses.push(f32::from_le_bytes(loss.try_into().unwrap()));
    }
    losses
}

#[test]
fn training_gives_the_same_losses_in_slices() {
    let one = losses(&[], 3);
    assert!(one[2] < one[0], "{one:?}");
    // Data parallel over slices, tensor parallel inside.
    for (options, tolerance) in [(&["--algorithm", "flat"][..], 0.0), (&["--algorithm", "hierarchical"], 1e-5)] {
        let slices = losses(&[&["--slices", "2"], options].concat(), 3);
        let same = one.iter().zip(&slices).all(|(a, b)| (a - b).abs() <= tolerance * a.abs());
        assert!(same, "{options:?}: {slices:?} instead of {one:?}");
    }
}

#[test]
fn inspect_tells_what_crosses_between_slices() {
    let report = |slices| {
        let arguments = ["inspect", "-n", "4", "--slices", slices, "--no-compile", "hlo/dp_tp_mlp_step.hlo"];
        let report = spmd_run(arguments).success("inspect").stdout;
        let (_, collectives) = report.split_once("\ncollective ").expect("a table of collectives");
        collectives.split_once("\nwork ").expect("a line on work").0.to_owned()
    };
    insta::assert_snapshot!(report("2"));
    // Pairs of devices along one axis, which slices of one process divide no further.
    assert!(!report("4").contains("warning:"));
}

#[test]
fn slices_must_be_equal() {
    for arguments in [
        &["-n", "3", "--slices", "2", "hlo/tp_mlp.hlo"][..],
        &["devices", "-n", "3", "--slices", "2"],
        &["inspect", "-n", "3", "--slices", "2", "hlo/tp_mlp.hlo"],
    ] {
        let outcome = spmd_run(arguments);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    }
    let outcome = spmd_run(["-n", "3", "--slices", "2", "hlo/tp_mlp.hlo"]);
    let message = "--slices 2: 3 process(es) cannot be divided into that many of equal size";
    assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
}

#[test]
fn variables_of_another_job_are_noticed() {
    let warning = "MEGASCALE_NUM_SLICES=2 is set, and this job has 1 slice(s)";
    let devices = |slices| {
        let mut devices = command(["devices", "-n", "2", "--slices", slices]);
        devices.env("MEGASCALE_NUM_SLICES", "2");
        run(devices).success("devices").stderr
    };
    let stderr = devices("1");
    assert!(stderr.contains(warning), "{stderr}");
    let stderr = devices("2");
    assert!(!stderr.contains("MEGASCALE"), "{stderr}");
}
