//! Meshes that have a part of the job's devices. Each test starts itself again in all processes of a job.

mod harness;

use std::path::Path;

use spmd_run::builder::Builder;
use spmd_run::checkpoint::{Checkpoints, Snapshot};
use spmd_run::dtype::DType::F32;
use spmd_run::host_array::HostArray;
use spmd_run::mesh::{Mesh, PartitionSpec};
use spmd_run::runtime::{Array, Program, Runtime, RuntimeError, multihost};

use harness::itself::{on, wait_for};

fn counted(dims: &[usize]) -> HostArray {
    let elements: Vec<f32> = (0..dims.iter().product::<usize>()).map(|element| element as f32).collect();
    HostArray::from_elements(dims, &elements).unwrap()
}

/// `x · xᵀ` with the columns of x cut over the axis "x", so that it takes a sum over devices; and beside it what each device of a
/// manual region makes of its place and of its neighbour's part.
fn gram<'a>(runtime: &'a Runtime, mesh: &Mesh) -> Program<'a> {
    let b = Builder::new("gram");
    let columns = mesh.sharding((None, "x")).unwrap();
    let x = b.sharded_parameter("x", F32, &[4, 8], &columns);
    let product = x.matmul(x.transpose(&[1, 0])).with_sharding(&mesh.sharding(()).unwrap());
    let places = mesh.axis_size("x").unwrap();
    let around: Vec<(usize, usize)> = (0..places).map(|place| (place, (place + 1) % places)).collect();
    let spec: PartitionSpec = (None, "x").into();
    let turned = b.shard_map(mesh, &[(x, spec.clone())], &[spec], |part| {
        vec![part[0].ppermute("x", &around) + b.axis_index("x").convert(F32) * 100.0]
    });
    Program::compile(runtime, b.build(&[product, turned[0]]).unwrap()).unwrap()
}

fn check(runtime: &Runtime, mesh: &Mesh, program: &Program) {
    let whole = counted(&[4, 8]);
    let x = Array::from_host(runtime, &whole, &mesh.sharding((None, "x")).unwrap()).unwrap();
    assert_eq!(x.devices(), mesh.sorted_devices());
    assert_eq!(x.all_gather_to_host(runtime).unwrap(), whole);
    let results = program.run(&[&x]).unwrap();
    let element = |i: usize, j: usize| (i * 8 + j) as f32;
    let product = |at: usize| (0..8).map(|k| element(at / 4, k) * element(at % 4, k)).sum::<f32>();
    let product: Vec<f32> = (0..16).map(product).collect();
    assert_eq!(results[0].to_host().unwrap().to_elements::<f32>().unwrap(), product);
    let width = 8 / mesh.axis_size("x").unwrap();
    let turned = |at: usize| element(at / 8, (at % 8 + 8 - width) % 8) + (at % 8 / width) as f32 * 100.0;
    let turned: Vec<f32> = (0..32).map(turned).collect();
    let of_all = results[1].all_gather_to_host(runtime).unwrap();
    assert_eq!(of_all.to_elements::<f32>().unwrap(), turned);
    for shard in results[1].addressable_shards().unwrap() {
        let device = shard.device as u32;
        assert!(runtime.local_device_ids().contains(&device) && mesh.devices().contains(&device));
        let (rows, columns) = (shard.index[0].clone(), shard.index[1].clone());
        let part = rows.flat_map(|i| columns.clone().map(move |j| (i * 8 + j) as usize));
        let part: Vec<f32> = part.map(|at| turned[at]).collect();
        assert_eq!(shard.data.to_elements::<f32>().unwrap(), part);
    }
}

/// Each half compiles and runs while the other one is between its own compilations and runs: neither waits for the other in
/// anything but the notices that they put up for each other here.
#[test]
fn two_halves_work_at_the_same_time() {
    let test = "two_halves_work_at_the_same_time";
    for (part, layout) in [("of one device each", (4, 1)), ("of two devices each", (2, 2))] {
        on(test, part, layout, Path::new(""), |runtime, _| {
            let halves = [[0, 1], [3, 2]].map(|devices| Mesh::with_devices(&[("x", 2)], devices.to_vec()).unwrap());
            let own = halves.iter().position(|mesh| runtime.takes_part(mesh)).unwrap();
            let (mesh, others) = (&halves[own], &halves[1 - own]);
            assert!(!runtime.takes_part(others));
            let programs = 1 + own;
            for number in 0..3 {
                runtime.world().post(&format!("{number} of half {own}")).unwrap();
                wait_for(runtime, &format!("{number} of half {}", 1 - own));
                // The halves make different numbers of programs.
                for _ in 0..programs {
                    let program = gram(runtime, mesh);
                    (0..=own).for_each(|_| check(runtime, mesh, &program));
                }
            }
            let elsewhere = Array::from_host(runtime, &counted(&[2]), &others.sharding(("x",)).unwrap()).unwrap_err();
            assert!(elsewhere.to_string().contains("has none of the devices ["), "{elsewhere}");
            // All together go on as if nothing had been.
            let all = Mesh::new(&[("x", 4)]).unwrap();
            check(runtime, &all, &gram(runtime, &all));
            multihost::sync_global_devices(runtime, "the end").unwrap();
        });
    }
}

/// One device of each process, then the other one; and all devices in one program afterwards.
#[test]
fn a_mesh_has_some_devices_of_each_process() {
    on("a_mesh_has_some_devices_of_each_process", "all", (2, 2), Path::new(""), |runtime, _| {
        for devices in [vec![2, 0], vec![1, 3], vec![0, 3], vec![2, 1]] {
            let mesh = Mesh::with_devices(&[("x", 2)], devices).unwrap();
            check(runtime, &mesh, &gram(runtime, &mesh));
        }
        let all = Mesh::with_devices(&[("x", 4)], vec![3, 1, 2, 0]).unwrap();
        check(runtime, &all, &gram(runtime, &all));
    });
}

#[test]
fn what_a_part_of_the_devices_cannot_do_is_named() {
    let folder = tempfile::tempdir().unwrap();
    on("what_a_part_of_the_devices_cannot_do_is_named", "all", (2, 2), folder.path(), |runtime, folder| {
        let mesh = |devices: &[u32]| Mesh::with_devices(&[("x", devices.len())], devices.to_vec()).unwrap();
        let compile = |mesh: &Mesh| {
            let b = Builder::new("double");
            let x = b.sharded_parameter("x", F32, &[12], &mesh.sharding(("x",)).unwrap());
            Program::compile(runtime, b.build(&[x * 2]).unwrap())
        };
        let error = |result: Result<Program, RuntimeError>| result.err().unwrap().to_string();
        insta::assert_snapshot!(error(compile(&mesh(&[0, 2, 1]))), @"a program on the devices [0, 1, 2] would have more of them in one process than in another: it needs the same number in each process that takes part");
        insta::assert_snapshot!(error(compile(&mesh(&[0, 4]))), @"the mesh names device 4, and the job has 4 devices");
        if runtime.process_index() == 1 {
            insta::assert_snapshot!(error(compile(&mesh(&[0, 1]))), @"process 1 has none of the devices [0, 1]: arrays and programs on a mesh are for the processes that have devices in it (Runtime::takes_part)");
        }
        let (even, odd) = (mesh(&[0, 2]), mesh(&[1, 3]));
        let x = Array::from_host(runtime, &counted(&[12]), &even.sharding(("x",)).unwrap()).unwrap();
        let moved = x.reshard(runtime, &odd.sharding(("x",)).unwrap()).unwrap_err();
        insta::assert_snapshot!(moved, @"the array lies on the devices [0, 2], and NamedSharding(Mesh('x': 2), P('x',)) is for [1, 3]: other devices get it by way of the host, with Array::all_gather_to_host and Array::from_host");
        insta::assert_snapshot!(compile(&odd).unwrap().run(&[&x]).unwrap_err(), @"argument 0: lies on the devices [0, 2], the program runs on [1, 3]");
        // Checkpoints are of all processes, whichever of their devices have the arrays.
        let checkpoints = Checkpoints::new(runtime, folder);
        checkpoints.save(1, Snapshot::new().array("x", &x)).unwrap();
        let saved = checkpoints.latest().unwrap().unwrap();
        let restored = saved.array("x", &odd.sharding(("x",)).unwrap()).unwrap();
        assert_eq!(restored.all_gather_to_host(runtime).unwrap(), counted(&[12]));
        if runtime.process_index() == 0 {
            let own = Array::from_host(runtime, &counted(&[12]), &mesh(&[0, 1]).sharding(("x",)).unwrap()).unwrap();
            let error = checkpoints.save(2, Snapshot::new().array("x", &own)).unwrap_err();
            insta::assert_snapshot!(error, @"f32[12] lies on the devices [0, 1], which are not of all processes, and only arrays of all can be saved");
        }
    });
}

/// Processes that compile other programs on their mesh are told so, and the third one is not asked.
#[test]
fn processes_of_a_mesh_must_agree() {
    on("processes_of_a_mesh_must_agree", "all", (3, 1), Path::new(""), |runtime, _| {
        let mesh = Mesh::with_devices(&[("x", 2)], vec![1, 2]).unwrap();
        if !runtime.takes_part(&mesh) {
            return;
        }
        let b = Builder::new("program");
        let x = b.sharded_parameter("x", F32, &[4], &mesh.sharding(("x",)).unwrap());
        let program = b.build(&[x * f64::from(runtime.process_index())]).unwrap();
        let error = Program::compile(runtime, program).err().unwrap().to_string();
        assert!(error.contains("the first difference of process 1 and 2 "), "{error}");
    });
}
