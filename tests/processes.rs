//! Arrays, checkpoints and what else takes several processes. Each test starts itself again in all processes of a job.

mod harness;

use std::ops::Range;
use std::path::Path;

use half::bf16;
use num_complex::Complex32;
use spmd_run::builder::Builder;
use spmd_run::checkpoint::{CheckpointError, Checkpoints, Snapshot};
use spmd_run::dtype::DType::{BF16, F32};
use spmd_run::host_array::{HostArray, npz, safetensors};
use spmd_run::mesh::{Mesh, PartitionSpec};
use spmd_run::runtime::{Array, Program, Runtime, multihost};

use harness::itself::{PART, job, on};

fn counted(dims: &[usize]) -> HostArray {
    let elements: Vec<f32> = (0..dims.iter().product::<usize>()).map(|element| element as f32).collect();
    HostArray::from_elements(dims, &elements).unwrap()
}

/// The part of what [`counted`] makes of 8 × 12.
fn part(index: &[Range<i64>]) -> HostArray {
    let places = index[0].clone().flat_map(|i| index[1].clone().map(move |j| (i * 12 + j) as f32));
    let dims = [index[0].clone().count(), index[1].clone().count()];
    HostArray::from_elements(&dims, &places.collect::<Vec<_>>()).unwrap()
}

#[test]
fn arrays_of_several_processes() {
    let folder = tempfile::tempdir().unwrap();
    safetensors::write(&folder.path().join("a.safetensors"), &[("a".to_owned(), counted(&[8, 12]))]).unwrap();
    npz::write_npz(&folder.path().join("a.npz"), [("a".to_owned(), &counted(&[8, 12]))]).unwrap();
    on("arrays_of_several_processes", "all", (2, 2), folder.path(), |runtime, folder| {
        let mesh = Mesh::new(&[("x", 2), ("y", 2)]).unwrap();
        let whole = counted(&[8, 12]);
        let stored = [
            safetensors::open(&folder.join("a.safetensors")).unwrap().remove("a").unwrap(),
            npz::open_npz(&folder.join("a.npz")).unwrap().remove("a").unwrap(),
        ];
        let specs: [PartitionSpec; 6] = [
            ("x", "y").into(),
            ("y",).into(),
            (None, "x").into(),
            (["y", "x"],).into(),
            (["x", "y"], None).into(),
            ().into(),
        ];
        let mut moved = Array::replicated(runtime, &whole).unwrap();
        for spec in &specs {
            let sharding = mesh.sharding(spec).unwrap();
            // The block that the devices of this process hold.
            let indices = runtime.local_device_ids();
            let indices = indices.iter().map(|&device| sharding.index_ranges(&[8, 12], device as usize).unwrap());
            let block = indices
                .reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a.start.min(b.start)..a.end.max(b.end)).collect())
                .unwrap();
            moved = moved.reshard(runtime, &sharding).unwrap();
            let arrays = [
                Array::from_host(runtime, &whole, &sharding).unwrap(),
                Array::from_callback(runtime, F32, &[8, 12], &sharding, part).unwrap(),
                Array::from_local(runtime, &part(&block), &[8, 12], &sharding).unwrap(),
                Array::from_stored(runtime, &stored[0], F32, &sharding).unwrap(),
                Array::from_stored(runtime, &stored[1], F32, &sharding).unwrap(),
            ];
            for array in arrays.iter().chain([&moved]) {
                assert_eq!(array.all_gather_to_host(runtime).unwrap(), whole, "{spec}");
                for shard in array.addressable_shards().unwrap() {
                    assert_eq!(shard.data, part(&shard.index), "{spec}");
                }
            }
        }
        let of_job = Array::from_host(runtime, &whole, &mesh.sharding(("x",)).unwrap()).unwrap();
        insta::assert_snapshot!(of_job.to_host().unwrap_err(), @"the parts of f32[8,12] on this process's devices do not make up the whole: take Array::addressable_shards for what is here, or Array::all_gather_to_host, which all processes call");
        insta::assert_snapshot!(Array::from_local(runtime, &whole, &[8, 12], &mesh.sharding(("x",)).unwrap()).unwrap_err().to_string().replace("0:4", "4:8"), @"the part of f32[8,12] at [4:8, 0:12] is f32[4,12], and f32[8,12] was given");
        let rows = mesh.sharding(("x",)).unwrap();
        let wrong = Array::from_stored(runtime, &stored[0], BF16, &rows).unwrap_err().to_string();
        assert!(wrong.ends_with("a.safetensors: a is f32[8,12], the program's is bf16[8,12]"), "{wrong}");

        let b = Builder::new("double");
        let x = b.sharded_parameter("x", F32, &[8, 12], &rows);
        b.donate(x);
        let double = Program::compile(runtime, b.build(&[(x + x).with_sharding(&rows)]).unwrap()).unwrap();
        let doubled = double.run(&[&of_job]).unwrap();
        assert_eq!(doubled[0].all_gather_to_host(runtime).unwrap().to_elements::<f32>().unwrap()[95], 190.0);
        insta::assert_snapshot!(of_job.addressable_shards().unwrap_err(), @"f32[8,12] was donated to a run, which has used up its memory: take the result that has its place");
        insta::assert_snapshot!(of_job.all_gather_to_host(runtime).unwrap_err(), @"f32[8,12] was donated to a run, which has used up its memory: take the result that has its place");
        insta::assert_snapshot!(double.run(&[&of_job]).unwrap_err(), @"argument 0: was donated to an earlier run, which has used up its memory");

        let b = Builder::new("other");
        let x = b.sharded_parameter("x", F32, &[8, 12], &rows);
        let other = b.build(&[if runtime.process_index() == 0 { x + 1 } else { x * 2 }]).unwrap();
        let error = Program::compile(runtime, other).err().unwrap().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines[4], "the first difference of process 0 and 1 in ENTRY %main.1:", "{error}");
        assert!(
            lines[5].starts_with("  %constant.3 = f32[] constant(1), metadata={source_file=\"tests/processes.rs\"")
        );
        assert!(
            lines[6].starts_with("  %constant.3 = f32[] constant(2), metadata={source_file=\"tests/processes.rs\"")
        );

        let halves = HostArray::from_elements(&[4], &[0.5, -1.5, 3.25, 1e30].map(bf16::from_f32)).unwrap();
        let complex = HostArray::from_elements(&[4], &[0f32, 1.0, 2.0, 3.0].map(|re| Complex32::new(re, -re))).unwrap();
        for whole in [halves, complex] {
            let b = Builder::new("same");
            let x = b.sharded_parameter("x", whole.dtype(), &[4], &rows);
            let same = Program::compile(runtime, b.build(&[x]).unwrap()).unwrap();
            let array = Array::from_host(runtime, &whole, &rows).unwrap();
            let array = same.run(&[&array]).unwrap().remove(0);
            assert_eq!(array.reshard(runtime, &mesh.sharding(()).unwrap()).unwrap().to_host().unwrap(), whole);
        }
    });
}

#[test]
fn values_of_several_processes() {
    let nowhere = Path::new("/");
    on("values_of_several_processes", "all", (3, 1), nowhere, |runtime, _| {
        let this = runtime.process_index();
        let own = HostArray::from_elements(&[1, 2], &[this, this * 10]).unwrap();
        let first = multihost::broadcast_one_to_all(runtime, &if this == 0 { counted(&[3]) } else { own.clone() });
        assert_eq!(first.unwrap(), counted(&[3]));
        let stacked = multihost::process_allgather(runtime, &own, false).unwrap();
        let tiled = multihost::process_allgather(runtime, &own, true).unwrap();
        assert_eq!((stacked.dims(), tiled.dims()), (&[3, 1, 2][..], &[3, 2][..]));
        assert_eq!(stacked.to_elements::<u32>().unwrap(), [0, 0, 1, 10, 2, 20]);
        assert_eq!(stacked.data(), tiled.data());
        multihost::sync_global_devices(runtime, "before").unwrap();
        multihost::assert_equal(runtime, "step", &HostArray::scalar(7)).unwrap();

        let elsewhere = multihost::sync_global_devices(runtime, if this == 2 { "after" } else { "before" });
        let message = |error: &dyn std::fmt::Display| {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            error.to_string().replace(&host, "host")
        };
        insta::assert_snapshot!(message(&elsewhere.unwrap_err()), @"
        the processes do not do the same job:
        waits for all at
          process 0, 1 (host): before
          process 2 (host): after
        ");
        insta::assert_snapshot!(message(&multihost::assert_equal(runtime, "the row", &own).unwrap_err()), @"
        the processes do not do the same job:
        the row
          process 0 (host): u32[1,2] [[0 0]]
          process 1 (host): u32[1,2] [[ 1 10]]
          process 2 (host): u32[1,2] [[ 2 20]]
        ");
        let uneven = counted(&[this as usize / 2 + 1]);
        insta::assert_snapshot!(message(&multihost::process_allgather(runtime, &uneven, true).unwrap_err()), @"
        the processes do not do the same job:
        the array to be gathered
          process 0, 1 (host): f32[1]
          process 2 (host): f32[2]
        ");
        insta::assert_snapshot!(multihost::process_allgather(runtime, &HostArray::scalar(1), true).unwrap_err(), @"scalars have no first dimension along which to put them together: gather them without `tiled`");
    });
}

#[test]
fn a_signal_to_one_process_stops_all_at_one_step() {
    let nowhere = Path::new("/");
    on("a_signal_to_one_process_stops_all_at_one_step", "all", (3, 1), nowhere, |runtime, _| {
        let this = runtime.process_index();
        let mut at = Vec::new();
        for step in 0..400 {
            if step == 20 && this == 1 {
                signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
            }
            if runtime.reached_preemption_sync_point(step).unwrap() {
                at.push(step);
            }
            // Not all are as fast, and nothing but the signal holds them together.
            std::thread::sleep(std::time::Duration::from_millis(1 + u64::from(this)));
        }
        assert_eq!(at.len(), 1, "{at:?}");
        multihost::assert_equal(runtime, "the step at which they save", &HostArray::scalar(at[0])).unwrap();
        assert!(at[0] > 20, "{at:?}");
    });
}

/// Values that tell where they came from, in a sharding for so many devices.
fn state(runtime: &Runtime, scale: f32) -> (Mesh, Vec<(&'static str, Array)>) {
    let devices = runtime.device_count();
    let mesh = Mesh::new(&[("x", devices / 2), ("y", 2)]).unwrap();
    let scaled = |index: &[Range<i64>]| {
        let part = part(index);
        let elements: Vec<f32> = part.to_elements::<f32>().unwrap().iter().map(|element| element * scale).collect();
        HostArray::from_elements(part.dims(), &elements).unwrap()
    };
    let array = |spec: PartitionSpec| {
        Array::from_callback(runtime, F32, &[8, 12], &mesh.sharding(spec).unwrap(), scaled).unwrap()
    };
    let arrays =
        vec![("rows", array(("x",).into())), ("columns", array((None, "y").into())), ("whole", array(().into()))];
    (mesh, arrays)
}

fn check(runtime: &Runtime, saved: &spmd_run::checkpoint::Checkpoint<'_>, mesh: &Mesh, scale: f32) {
    let mut expected = counted(&[8, 12]).to_elements::<f32>().unwrap();
    expected.iter_mut().for_each(|element| *element *= scale);
    let specs: [PartitionSpec; 4] = [("x", "y").into(), (None, "y").into(), (["y", "x"],).into(), ().into()];
    for name in ["rows", "columns", "whole"] {
        for spec in &specs {
            let array = saved.array(name, &mesh.sharding(spec).unwrap()).unwrap();
            let array = array.all_gather_to_host(runtime).unwrap();
            assert_eq!(array.to_elements::<f32>().unwrap(), expected, "{name} {spec}");
        }
    }
    saved.verify().unwrap();
}

#[test]
fn a_checkpoint_is_restored_on_other_numbers_of_devices() {
    const TEST: &str = "a_checkpoint_is_restored_on_other_numbers_of_devices";
    let folder = tempfile::tempdir().unwrap();
    on(TEST, "four", (4, 1), folder.path(), |runtime, folder| {
        let checkpoints = Checkpoints::new(runtime, folder.join("deep/er")).keep(2);
        assert!(checkpoints.latest().unwrap().is_none());
        for step in [1, 5, 30] {
            let (_, arrays) = state(runtime, step as f32);
            let arrays = arrays.iter().map(|(name, array)| (*name, array));
            let snapshot = Snapshot::new().arrays(arrays).value("row", step * 2).value("rate", 0.1);
            checkpoints.save(step, snapshot).unwrap();
        }
        checkpoints.wait().unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [5, 30]);
    });
    let manifest = folder.path().join("deep/er/step-00000005/manifest.json");
    if std::env::var_os(PART).is_none() {
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let lines = manifest.lines().map(|line| match line.split_once("\"blake3\": ") {
            Some((before, _)) => format!("{before}\"blake3\": …"),
            None => line.to_owned(),
        });
        insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"));
    }
    on(TEST, "two", (2, 1), folder.path(), |runtime, folder| {
        let checkpoints = Checkpoints::new(runtime, folder.join("deep/er"));
        let saved = checkpoints.latest().unwrap().unwrap();
        assert_eq!((saved.step(), saved.value("row").unwrap(), saved.value("rate").unwrap()), (30, 60, 0.1));
        let (mesh, _) = state(runtime, 1.0);
        check(runtime, &saved, &mesh, 30.0);
        check(runtime, &checkpoints.open(5).unwrap(), &mesh, 5.0);
        let names = ["rows", "columns", "whole"];
        let arrays = names.map(|name| saved.array(name, &mesh.sharding(("y",)).unwrap()).unwrap());
        // Nobody waits for it here: the runtime does.
        checkpoints.save(31, Snapshot::new().arrays(names.into_iter().zip(&arrays))).unwrap();
    });
    on(TEST, "eight", (2, 4), folder.path(), |runtime, folder| {
        let checkpoints = Checkpoints::new(runtime, folder.join("deep/er"));
        let saved = checkpoints.latest().unwrap().unwrap();
        assert_eq!(saved.step(), 31);
        let (mesh, _) = state(runtime, 1.0);
        check(runtime, &saved, &mesh, 30.0);
    });
}

#[test]
fn what_is_wrong_with_a_checkpoint_is_told() {
    const TEST: &str = "what_is_wrong_with_a_checkpoint_is_told";
    let folder = tempfile::tempdir().unwrap();
    on(TEST, "all", (2, 1), folder.path(), |runtime, folder| {
        let this = runtime.process_index();
        let place = folder.display().to_string();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let text = |error: CheckpointError| error.to_string().replace(&place, "").replace(&host, "host");
        let mesh = Mesh::new(&[("x", 2)]).unwrap();
        let rows = mesh.sharding(("x",)).unwrap();
        let w = Array::from_host(runtime, &counted(&[8]), &rows).unwrap();
        let checkpoints = Checkpoints::new(runtime, folder);
        let snapshot = || Snapshot::new().array("w", &w);

        insta::assert_snapshot!(text(checkpoints.save(1, snapshot().array("w", &w)).unwrap_err()), @"a checkpoint has the name 'w' twice");
        checkpoints.save(1, snapshot().value("row", 7 + this)).unwrap();
        insta::assert_snapshot!(text(checkpoints.wait().unwrap_err()), @"
        the processes do not do the same job:
        value 'row'
          process 0 (host): 7
          process 1 (host): 8
        ");
        checkpoints.save(1, snapshot().value("row", 7)).unwrap();
        checkpoints.save(1, snapshot()).unwrap();
        let again = text(checkpoints.save(2, snapshot()).unwrap_err());
        let again = again.strip_prefix("process 0 failed with a checkpoint: ").unwrap_or(&again);
        insta::assert_snapshot!(again, @"a checkpoint of step 1 is there already: /step-00000001; remove it, or count steps on from it");
        insta::assert_snapshot!(text(checkpoints.open(3).err().unwrap()), @"there is no checkpoint of step 3 in ");

        let saved = checkpoints.latest().unwrap().unwrap();
        insta::assert_snapshot!(text(saved.array("v", &rows).unwrap_err()), @"the checkpoint of step 1 has no array 'v', it has 'w'");
        insta::assert_snapshot!(text(saved.value::<u64>("seed").unwrap_err()), @"the checkpoint of step 1 has no value 'seed', it has 'row'");
        insta::assert_snapshot!(text(saved.value::<String>("row").unwrap_err()), @"the value 'row' of the checkpoint of step 1 is another one: invalid type: integer `7`, expected a string");

        // What a crash would leave, and damage that no crash can do.
        multihost::sync_global_devices(runtime, "before the damage").unwrap();
        let (one, two) = (folder.join("step-00000001"), folder.join("step-00000002"));
        if this == 0 {
            std::fs::create_dir(folder.join(".unfinished-abc")).unwrap();
            std::fs::write(folder.join(".unfinished-abc/process-00000.safetensors"), "half").unwrap();
        }
        checkpoints.save(2, snapshot()).unwrap();
        checkpoints.wait().unwrap();
        assert!(!folder.join(".unfinished-abc").exists());
        if this == 0 {
            let file = one.join("process-00001.safetensors");
            let mut bytes = std::fs::read(&file).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&file, bytes).unwrap();
            let file = two.join("process-00001.safetensors");
            std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(60).unwrap();
        }
        multihost::sync_global_devices(runtime, "after the damage").unwrap();
        let whole = mesh.sharding(()).unwrap();
        insta::assert_snapshot!(text(checkpoints.open(1).unwrap().array("w", &whole).unwrap_err()), @"/step-00000001/process-00001.safetensors: the tensor 'w[4:8]' has changed since it was written; remove this checkpoint to go back to the one before");
        insta::assert_snapshot!(text(checkpoints.open(2).unwrap().verify().unwrap_err()), @"/step-00000002/process-00001.safetensors: not a safetensors file, or not whole: a header of 64 bytes in a file of 60; remove this checkpoint to go back to the one before");
        if this == 0 {
            std::fs::write(two.join("manifest.json"), "{}").unwrap();
        }
        multihost::sync_global_devices(runtime, "without a manifest").unwrap();
        insta::assert_snapshot!(text(checkpoints.latest().err().unwrap()), @"/step-00000002/manifest.json: missing field `format` at line 1 column 2; remove this checkpoint to go back to the one before");
    });
}

/// A checkpoint that nobody waited for and that cannot be written.
#[test]
fn an_error_in_the_background_fails_the_job() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "not a folder").unwrap();
    let outcome = job("an_error_in_the_background_fails_the_job", "all", (2, 1), folder.path(), |runtime, folder| {
        Checkpoints::new(runtime, folder.join("file")).save(1, Snapshot::new()).unwrap();
    });
    if let Some(outcome) = outcome {
        assert_ne!(outcome.code, Some(0));
        assert!(outcome.stderr.contains("file: File exists (os error 17)"), "{}", outcome.stderr);
    }
}
