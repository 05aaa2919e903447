//! Arrays and programs on the devices of one process; `tests/examples.rs` has those of several.

mod common;

use spmd_run::builder::{Builder, random};
use spmd_run::dtype::DType::{F32, S32};
use spmd_run::host_array::HostArray;
use spmd_run::mesh::{Mesh, PartitionSpec};
use spmd_run::runtime::{Array, DataPlaneOptions, Program, Runtime, World};

fn open(devices: u32) -> Runtime {
    Runtime::open(World::alone(), common::plugin().path(), devices, DataPlaneOptions::default()).unwrap()
}

fn counted(dims: &[usize]) -> HostArray {
    let elements: Vec<f32> = (0..dims.iter().product::<usize>()).map(|element| element as f32).collect();
    HostArray::from_elements(dims, &elements).unwrap()
}

#[test]
fn an_array_comes_back_however_it_was_made() {
    let runtime = open(8);
    let mesh = Mesh::new(&[("x", 2), ("y", 4)]).unwrap();
    let whole = counted(&[8, 12]);
    let specs: [PartitionSpec; 6] = [
        ("x", "y").into(),
        ("y",).into(),
        (None, "x").into(),
        (["y", "x"],).into(),
        (["x", "y"], None).into(),
        ().into(),
    ];
    for spec in specs {
        let sharding = mesh.sharding(&spec).unwrap();
        let part = |index: &[std::ops::Range<i64>]| {
            let places = index[0].clone().flat_map(|i| index[1].clone().map(move |j| (i * 12 + j) as f32));
            let dims = [index[0].clone().count(), index[1].clone().count()];
            HostArray::from_elements(&dims, &places.collect::<Vec<_>>()).unwrap()
        };
        let arrays = [
            Array::from_host(&runtime, &whole, &sharding).unwrap(),
            Array::from_callback(&runtime, F32, &[8, 12], &sharding, part).unwrap(),
            Array::from_local(&runtime, &whole, &[8, 12], &sharding).unwrap(),
        ];
        for array in arrays {
            assert_eq!(array.to_host().unwrap(), whole, "{spec}");
            assert_eq!(array.all_gather_to_host(&runtime).unwrap(), whole, "{spec}");
            let shards = array.addressable_shards().unwrap();
            assert_eq!(shards.len(), 8);
            for shard in shards {
                assert_eq!(shard.index, sharding.index_ranges(&[8, 12], shard.device).unwrap(), "{spec}");
                assert_eq!(shard.data, part(&shard.index), "{spec}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_explained() {
    let runtime = open(4);
    let mesh = Mesh::new(&[("x", 4)]).unwrap();
    let rows = mesh.sharding(("x",)).unwrap();
    let other = Mesh::new(&[("x", 2)]).unwrap().sharding(("x",)).unwrap();
    let error = |result: Result<Array, spmd_run::runtime::ArrayError>| result.unwrap_err().to_string();
    insta::assert_snapshot!(error(Array::from_host(&runtime, &counted(&[6]), &rows)), @"NamedSharding(Mesh('x': 4), P('x',)) cuts dimension 0 into 4 equal parts, so its size should be divisible by 4, but it is 6 (full shape: (6))");
    let elsewhere = Mesh::with_devices(&[("x", 2)], vec![2, 4]).unwrap().sharding(("x",)).unwrap();
    insta::assert_snapshot!(error(Array::from_host(&runtime, &counted(&[8]), &elsewhere)), @"the mesh names device 4, and the job has 4 devices");
    insta::assert_snapshot!(error(Array::from_local(&runtime, &counted(&[4]), &[8], &rows)), @"the part of f32[8] at [0:8] is f32[8], and f32[4] was given");
    insta::assert_snapshot!(error(Array::from_callback(&runtime, F32, &[8], &rows, |_| counted(&[3]))), @"the part of f32[8] at [0:2] is f32[2], and f32[3] was given");

    let b = Builder::new("double");
    let x = b.sharded_parameter("x", F32, &[8], &rows);
    b.donate(x);
    let program = Program::compile(&runtime, b.build(&[(x * 2).with_sharding(&rows)]).unwrap()).unwrap();
    let error = |arguments: &[&Array]| program.run(arguments).unwrap_err().to_string();
    insta::assert_snapshot!(error(&[]), @"the program takes 1 arguments, 0 were given");
    insta::assert_snapshot!(error(&[&Array::replicated(&runtime, &counted(&[4])).unwrap()]), @"argument 0: is f32[4], the program takes f32[8]");
    insta::assert_snapshot!(error(&[&Array::replicated(&runtime, &counted(&[8])).unwrap()]), @"argument 0: lies on the devices as {replicated}, the program takes it as {devices=[4]<=[4]}: see Array::reshard");
    let x = Array::from_host(&runtime, &counted(&[8]), &rows).unwrap();
    let doubled = program.run(&[&x]).unwrap();
    assert_eq!(doubled[0].to_host().unwrap().to_elements::<f32>().unwrap()[7], 14.0);
    assert!(x.is_donated().unwrap());
    insta::assert_snapshot!(error(&[&x]), @"argument 0: was donated to an earlier run, which has used up its memory");

    let b = Builder::new("small");
    let y = b.sharded_parameter("y", F32, &[8], &other);
    let small = Program::compile(&runtime, b.build(&[y]).unwrap()).unwrap();
    insta::assert_snapshot!(small.run(&[&doubled[0]]).unwrap_err(), @"argument 0: lies on the devices [0, 1, 2, 3], the program runs on [0, 1]");
}

/// Programs on other devices of one process each, two of them and one.
#[test]
fn a_program_runs_on_the_devices_of_its_mesh() {
    let runtime = open(4);
    for (devices, turns) in [(vec![0, 1], false), (vec![3, 1], false), (vec![2], false), (vec![3, 0], true)] {
        let mesh = Mesh::with_devices(&[("x", devices.len())], devices.clone()).unwrap();
        let columns = mesh.sharding((None, "x")).unwrap();
        let b = Builder::new("product");
        let x = b.sharded_parameter("x", F32, &[2, 4], &columns);
        let product = x.matmul(x.transpose(&[1, 0]));
        let specs = [(None, "x").into()];
        let places = b.shard_map(&mesh, &[(x, (None, "x").into())], &specs, |part| {
            let place = part[0].zeros_like() + b.axis_index("x").convert(F32);
            // The plugin has no such collective: it becomes one of ours.
            let turned = if turns { place.ppermute("x", &[(0, 1), (1, 0)]) } else { place };
            vec![turned]
        });
        let program = Program::compile(&runtime, b.build(&[product, places[0]]).unwrap()).unwrap();
        let x = Array::from_host(&runtime, &counted(&[2, 4]), &columns).unwrap();
        let results = program.run(&[&x]).unwrap();
        assert_eq!(results[0].to_host().unwrap().to_elements::<f32>().unwrap(), [14.0, 38.0, 38.0, 126.0]);
        for shard in results[1].addressable_shards().unwrap() {
            let place = devices.iter().position(|&device| device as usize == shard.device).unwrap();
            let place = if turns { 1 - place } else { place };
            assert!(shard.data.to_elements::<f32>().unwrap().iter().all(|&element| element == place as f32));
            assert_eq!(shard.index, columns.index_ranges(&[2, 4], shard.device).unwrap());
        }
    }
}

#[test]
fn an_array_moves_to_another_sharding() {
    let runtime = open(4);
    let mesh = Mesh::new(&[("x", 2), ("y", 2)]).unwrap();
    let whole = counted(&[8, 4]);
    let mut array = Array::replicated(&runtime, &whole).unwrap();
    let specs: [PartitionSpec; 4] = [("x", "y").into(), (["y", "x"],).into(), (None, "y").into(), ().into()];
    for spec in specs {
        let sharding = mesh.sharding(spec).unwrap();
        array = array.reshard(&runtime, &sharding).unwrap();
        assert_eq!(*array.sharding(), sharding.to_hlo(2).unwrap());
        assert_eq!(array.to_host().unwrap(), whole);
    }
}

/// Each collective against what it is of the whole array, on a mesh whose devices are not in order.
#[test]
fn collectives_of_a_manual_region() {
    let runtime = open(8);
    let mesh = Mesh::with_devices(&[("x", 4), ("y", 2)], vec![0, 4, 1, 5, 2, 6, 3, 7]).unwrap();
    let sharding = mesh.sharding(("x", "y")).unwrap();
    let b = Builder::new("collectives");
    let x = b.sharded_parameter("x", F32, &[16, 8], &sharding);
    let both: PartitionSpec = ("x", "y").into();
    let specs: [PartitionSpec; 9] = [
        (None, "y").into(),
        ("x",).into(),
        (["x", "y"],).into(),
        (None, "y").into(),
        ().into(),
        (None, ["y", "x"]).into(),
        both.clone(),
        both.clone(),
        both.clone(),
    ];
    let results = b.shard_map(&mesh, &[(x, both)], &specs, |part| {
        let part = part[0];
        let index = b.axis_index("x") * 10 + b.axis_index("y");
        vec![
            part.psum(&["x"]),
            part.all_gather(&["y"], 1),
            part.all_gather(&["y"], 1).psum_scatter(&["y"], 0),
            part.pmean(&["x"]),
            part.reduce_max(&[]).pmax(&["x", "y"]) - part.reduce_min(&[]).pmin(&["x", "y"]),
            part.all_to_all(&["x"], 0, 1),
            part.ppermute("x", &[(0, 1), (1, 2), (2, 3), (3, 0)]),
            part.ppermute("x", &[(0, 2)]),
            index.convert(F32).broadcast_to(&[4, 4]),
        ]
    });
    let program = Program::compile(&runtime, b.build(&results).unwrap()).unwrap();
    let x = Array::from_host(&runtime, &counted(&[16, 8]), &sharding).unwrap();
    let results: Vec<Vec<f32>> = program
        .run(&[&x])
        .unwrap()
        .iter()
        .map(|result| result.to_host().unwrap().to_elements::<f32>().unwrap())
        .collect();

    let element = |i: usize, j: usize| (i * 8 + j) as f32;
    let all = |rows: usize, columns: usize, element: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
        (0..rows * columns).map(|place| element(place / columns, place % columns)).collect()
    };
    let over_x = |i: usize, j: usize| (0..4).map(|x| element(4 * x + i, j)).sum::<f32>();
    assert_eq!(results[0], all(4, 8, &over_x), "psum");
    assert_eq!(results[1], all(16, 8, &element), "all_gather");
    assert_eq!(results[2], all(16, 8, &|i, j| 2.0 * element(i, j)), "psum_scatter");
    assert_eq!(results[3], all(4, 8, &|i, j| over_x(i, j) / 4.0), "pmean");
    assert_eq!(results[4], [127.0], "pmax and pmin");
    // Row r of the part at place x goes to place r: it has a row of each, side by side.
    assert_eq!(results[5].len(), 128);
    let moved = |i: usize, j: usize| element((i + 12) % 16, j);
    assert_eq!(results[6], all(16, 8, &moved), "ppermute around");
    assert_eq!(results[7], all(16, 8, &|i, j| if i / 4 == 2 { element(i - 8, j) } else { 0.0 }), "ppermute of one");
    assert_eq!(results[8], all(16, 8, &|i, j| (i / 4 * 10 + j / 4) as f32), "axis_index");
}

/// What all_to_all does twice is nothing.
#[test]
fn all_to_all_goes_there_and_back() {
    let runtime = open(4);
    let mesh = Mesh::new(&[("x", 4)]).unwrap();
    let rows = mesh.sharding(("x",)).unwrap();
    let b = Builder::new("all_to_all");
    let x = b.sharded_parameter("x", F32, &[8, 12], &rows);
    let specs: [PartitionSpec; 2] = [(None, "x").into(), ("x",).into()];
    let results = b.shard_map(&mesh, &[(x, ("x",).into())], &specs, |part| {
        let columns = part[0].all_to_all(&["x"], 1, 0);
        vec![columns, columns.all_to_all(&["x"], 0, 1)]
    });
    let program = Program::compile(&runtime, b.build(&results).unwrap()).unwrap();
    let whole = counted(&[8, 12]);
    let results = program.run(&[&Array::from_host(&runtime, &whole, &rows).unwrap()]).unwrap();
    assert_eq!(results[0].to_host().unwrap(), whole);
    assert_eq!(results[1].to_host().unwrap(), whole);
}

/// Random numbers do not depend on how the array is cut, and a program without a mesh runs on every device.
#[test]
fn numbers_do_not_depend_on_shardings() {
    let runtime = open(4);
    let mesh = Mesh::new(&[("x", 2), ("y", 2)]).unwrap();
    let made = |spec: Option<PartitionSpec>| {
        let b = Builder::new("random");
        let numbers = random::normal(random::key(&b, 3), F32, &[8, 4]);
        let numbers = match spec {
            Some(spec) => numbers.with_sharding(&mesh.sharding(spec).unwrap()),
            None => numbers,
        };
        let program = Program::compile(&runtime, b.build(&[numbers]).unwrap()).unwrap();
        program.run(&[]).unwrap()[0].to_host().unwrap()
    };
    let whole = made(None);
    for spec in [PartitionSpec::from(("x", "y")), (["y", "x"],).into(), ().into()] {
        assert_eq!(made(Some(spec)), whole);
    }
}

#[test]
fn loops_and_branches_in_a_manual_region() {
    let runtime = open(2);
    let mesh = Mesh::new(&[("x", 2)]).unwrap();
    let b = Builder::new("loop");
    let x = b.sharded_parameter("x", S32, &[4], &mesh.sharding(("x",)).unwrap());
    let results = b.shard_map(&mesh, &[(x, ("x",).into())], &[("x",).into()], |part| {
        let start = part[0];
        let sums = b.fori_loop(0, 3, &[start], |_, state| vec![state[0].psum(&["x"]) + start]);
        b.cond(b.axis_index("x").eq(0), || vec![sums[0] * 10], || vec![sums[0]])
    });
    let program = Program::compile(&runtime, b.build(&results).unwrap()).unwrap();
    let x = HostArray::from_elements(&[4], &[1i32, 2, 3, 4]).unwrap();
    let x = Array::from_host(&runtime, &x, &mesh.sharding(("x",)).unwrap()).unwrap();
    let result = program.run(&[&x]).unwrap()[0].to_host().unwrap().to_elements::<i32>().unwrap();
    let serial = |mut a: i32, mut b: i32| {
        let (first, second) = (a, b);
        for _ in 0..3 {
            (a, b) = (a + b + first, a + b + second);
        }
        (a * 10, b)
    };
    let ((a, b), (c, d)) = (serial(1, 3), serial(2, 4));
    assert_eq!(result, [a, c, b, d]);
}

/// A program that is brought as StableHLO takes its shardings from the mesh.
#[test]
fn shardings_are_written_into_programs_for_shardy() {
    let runtime = open(4);
    let mesh = Mesh::with_devices(&[("data", 2), ("model", 2)], vec![1, 0, 3, 2]).unwrap();
    let (rows, columns) = (mesh.sharding(("data", None)).unwrap(), mesh.sharding((None, "model")).unwrap());
    let both = mesh.sharding(("data", "model")).unwrap();
    let [x, w, y] = [&rows, &columns, &both].map(|sharding| sharding.to_shardy("mesh", 2).unwrap());
    let text = format!(
        "module @product attributes {{mhlo.num_partitions = 4 : i32}} {{
           sdy.mesh @mesh = {}
           func.func public @main(%x: tensor<4x3xf32> {{sdy.sharding = {x}}}, %w: tensor<3x2xf32> {{sdy.sharding = {w}}})
               -> (tensor<4x2xf32> {{sdy.sharding = {y}}}) {{
             %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
             return %y : tensor<4x2xf32>
           }}
         }}",
        mesh.to_shardy()
    );
    let source = spmd_run::hlo::load(text.as_bytes(), "product.mlir").unwrap();
    let program = Program::from_source(&runtime, source).unwrap();
    let x = Array::from_host(&runtime, &counted(&[4, 3]), &rows).unwrap();
    let w = program.argument(1, &counted(&[3, 2])).unwrap();
    assert_eq!(*w.sharding(), columns.to_hlo(2).unwrap());
    let result = program.run(&[&x, &w]).unwrap().remove(0);
    assert_eq!(*result.sharding(), both.to_hlo(2).unwrap());
    let expected = HostArray::from_elements(&[4, 2], &[10f32, 13.0, 28.0, 40.0, 46.0, 67.0, 64.0, 94.0]).unwrap();
    assert_eq!(result.to_host().unwrap(), expected);
    let wrong = program.argument(2, &counted(&[1])).unwrap_err();
    insta::assert_snapshot!(wrong, @"the program takes 2 arguments, 3 were given");
}
