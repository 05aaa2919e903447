//! Programs built in Rust compute what JAX does, gradients included (`tests/data/builder/generate.py`).

#[path = "common/mod.rs"]
mod common;

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use spmd_run::builder::{Builder, Conv, DotDims, Op, ScatterDims, random};
use spmd_run::dtype::DType::{self, BF16, F32, S32, U32};
use spmd_run::hlo::{self, HloModule, Program};
use spmd_run::host_array::npz::read_npz;
use spmd_run::host_array::{Fill, HostArray, compare};
use spmd_run::mesh::{Mesh, PartitionSpec};
use spmd_run::runtime::{DataPlaneOptions, Executable, Plan, Runtime, World};

fn devices(count: u32) -> Runtime {
    Runtime::open(World::alone(), common::plugin().path(), count, DataPlaneOptions::default()).unwrap()
}

/// Runs a module on the devices that it is for, after it went through its text.
fn run(module: HloModule, arguments: &[HostArray]) -> Vec<HostArray> {
    run_on(&devices(module.config.num_partitions.unwrap_or(1) as u32), module, arguments)
}

fn run_on(runtime: &Runtime, module: HloModule, arguments: &[HostArray]) -> Vec<HostArray> {
    let partitions = module.config.num_partitions.unwrap_or(1);
    let parsed = hlo::parse(&hlo::print(&module), "built.hlo").unwrap();
    hlo::verify(&parsed, 1, partitions).unwrap();
    let plan =
        Plan { replicas: 1, partitions: partitions as u32, processes: 1, devices_per_process: partitions as u32 };
    let executable = Executable::compile(runtime, plan, Some(Program::Hlo(parsed))).unwrap();
    let results = executable.run(&executable.load(arguments).unwrap()).unwrap();
    executable.gather(&results).unwrap()
}

/// Builds the program of a case, whose parameters are the case's inputs, and compares its results with JAX's. They may
/// differ by `tolerance`, relative to the largest magnitude in the array.
fn check<F>(case: &str, tolerance: f64, program: F)
where
    F: for<'b> FnOnce(&'b Builder, &[Op<'b>]) -> Vec<Op<'b>>,
{
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/builder/jax_values.npz");
    let mut arrays = read_npz(&file).unwrap();
    let mut all = |kind: &str| {
        let mut found = Vec::new();
        while let Some(array) = arrays.remove(&format!("{case}.{kind}{}", found.len())) {
            let (dtype, dims) = (array.dtype().unwrap(), array.dims().to_vec());
            found.push(array.into_host_array(dtype, &dims).unwrap());
        }
        found
    };
    let (inputs, expected) = (all("in"), all("out"));
    assert!(!expected.is_empty(), "{case}");
    let b = Builder::new(case);
    let parameter =
        |(index, input): (usize, &HostArray)| b.parameter(&format!("in{index}"), input.dtype(), &input.dims_i64());
    let parameters: Vec<Op> = inputs.iter().enumerate().map(parameter).collect();
    let results = program(&b, &parameters);
    let module = b.build(&results).unwrap();
    let results = run(module, &inputs);
    assert_eq!(results.len(), expected.len(), "{case}");
    for (index, (result, expected)) in results.iter().zip(&expected).enumerate() {
        let comparison = compare(result, expected, tolerance, tolerance * magnitude(expected)).unwrap();
        assert!(
            comparison.is_close(),
            "{case}.out{index} {}: {comparison}\n{result}\n{expected}",
            expected.shape_text()
        );
    }
}

fn magnitude(array: &HostArray) -> f64 {
    match array.dtype() {
        F32 => common::floats_of(array.data()).iter().map(|value| f64::from(value.abs())).fold(0.0, f64::max),
        _ => 0.0,
    }
}

/// A scalar that depends on every element in its own way.
fn weighted<'b>(b: &'b Builder, values: &[Op<'b>]) -> Op<'b> {
    let weigh = |value: &Op<'b>| {
        let weights = b.arange(F32, value.num_elements()).cos().reshape(&value.dims());
        (*value * weights).sum(&[])
    };
    values.iter().map(weigh).reduce(|sum, value| sum + value).unwrap()
}

fn with_gradients<'b>(b: &'b Builder, loss: Op<'b>, by: &[Op<'b>]) -> Vec<Op<'b>> {
    [vec![loss], b.grad(loss, by)].concat()
}

#[test]
fn gradients_of_a_perceptron() {
    check("mlp", 1e-5, |b, p| {
        let [w1, b1, w2, b2, x, y] = p[..] else { unreachable!() };
        let error = (x.matmul(w1) + b1).tanh().matmul(w2) + b2 - y;
        with_gradients(b, (error * error).mean(&[]), &p[..4])
    });
}

#[test]
fn gradients_of_a_transformer_block() {
    check("transformer", 1e-5, |b, p| {
        let [embedding, scale1, qkv, projection, scale2, up, down, tokens, targets] = p[..] else { unreachable!() };
        let x = embedding.take(tokens, 0);
        let heads = (x.normalize(-1, 1e-5) * scale1).matmul(qkv).reshape(&[2, 6, 2, 12]).split(-1, 3);
        let scores = b.einsum("bqhd,bkhd->bhqk", heads[0], heads[1]) / 2.0;
        let mask = b.iota(S32, &[6, 6], 0).ge(b.iota(S32, &[6, 6], 1));
        let weights = mask.select(scores, -1e9).softmax(-1);
        let x = x + b.einsum("bhqk,bkhd->bqhd", weights, heads[2]).reshape(&[2, 6, 8]).matmul(projection);
        let x = x + (x.normalize(-1, 1e-5) * scale2).matmul(up).gelu().matmul(down);
        let log_probabilities = x.matmul(embedding.t()).log_softmax(-1);
        let loss = -(log_probabilities * targets.one_hot(F32, 11)).sum(&[-1]).mean(&[]);
        with_gradients(b, loss, &p[..7])
    });
}

#[test]
fn elementwise_operations_and_their_derivatives() {
    check("elementwise", 1e-5, |b, v| {
        let (x, y) = (v[0], v[1]);
        let p = y.abs() + 0.5;
        let values = [
            x.exp(),
            x.expm1(),
            p.log(),
            p.log1p(),
            p.sqrt(),
            p.rsqrt(),
            p.cbrt(),
            x.sin(),
            x.cos(),
            x.tan(),
            x.tanh(),
            x.sigmoid(),
            x.erf(),
            p.pow(x),
            x / p,
            x * y - y,
            x.max(y),
            x.min(y),
            x.atan2(y),
            x % p,
            x.abs(),
            x.gt(y).select(x * 3, y * 2),
            x.floor() * y,
            x.relu(),
            x.silu(),
            x.clamp(-0.5, 0.5),
        ];
        with_gradients(b, weighted(b, &values), v)
    });
}

#[test]
fn movement_and_its_derivatives() {
    check("movement", 1e-5, |b, v| {
        let (x, y) = (v[0], v[1]);
        let at = |start: [i32; 3]| start.map(|start| b.scalar(S32, start));
        let values = [
            x.reshape(&[5, -1]),
            x.transpose(&[2, 0, 1]),
            x.slice(0, 1..3).strided_slice(&[0, 0, 1], &[2, 3, 5], &[1, 2, 1]),
            x.pad(0, &[(1, -1, 0), (0, 2, 1), (-1, 1, 2)]),
            b.concatenate(&[x, y, x * 2], 1),
            x.reverse(&[0, -1]),
            x.slice(1, 0..1).broadcast_to(&[2, 4, 3, 5]) * y.index(0, 0).index(0, 0),
            x.dynamic_slice(&at([1, 7, 0]), &[2, 2, 3]),
            (x * 3).dynamic_update_slice(y.slice(0, 0..2).slice(1, 0..2), &at([2, 1, 0])),
            x.slice(1, 1..2).squeeze(&[1]),
            b.stack(&[x, y], 2),
        ];
        with_gradients(b, weighted(b, &values), v)
    });
}

#[test]
fn reductions_and_their_derivatives() {
    check("reductions", 1e-5, |b, v| {
        let (x, ties) = (v[0], v[1]);
        let values = [
            x.sum(&[0, 2]),
            x.mean(&[1]),
            x.reduce_max(&[2]),
            x.reduce_min(&[0, 1]),
            x.logsumexp(1),
            x.softmax(0),
            x.log_softmax(2),
            ties.reduce_max(&[1]),
            ties.reduce_min(&[0]),
            x.sum(&[]),
        ];
        with_gradients(b, weighted(b, &values), v)
    });
}

#[test]
fn products_and_their_derivatives() {
    check("products", 1e-5, |b, v| {
        let [left, right, other] = v[..] else { unreachable!() };
        let dims = DotDims {
            lhs_contracting: vec![1, 3],
            rhs_contracting: vec![2, 0],
            lhs_batch: vec![0],
            rhs_batch: vec![3],
        };
        let values = [
            left.dot_general(right, &dims),
            b.einsum("abcd,cfbi->fdai", left, other),
            left.matmul(right.index(1, 0).index(1, 0).index(1, 0)),
            b.einsum("abcd,cfbi->d", left, other),
        ];
        with_gradients(b, weighted(b, &values), v)
    });
}

#[test]
fn indexing_and_its_derivatives() {
    check("indexing", 1e-5, |b, v| {
        let [table, updates, indices] = v[..] else { unreachable!() };
        let dims = ScatterDims {
            update_window_dims: vec![1],
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![0],
            index_vector_dim: 1,
            ..ScatterDims::default()
        };
        let values = [table.take(indices, 1), table.scatter_add(indices.reshape(&[-1, 1]), updates, &dims)];
        with_gradients(b, weighted(b, &values), &v[..2])
    });
}

#[test]
fn gradients_of_convolutions() {
    check("convolution", 1e-5, |b, v| {
        let (x, kernel) = (v[0], v[1]);
        let first =
            Conv { strides: vec![2, 1], padding: vec![(1, 0), (0, 2)], rhs_dilation: vec![1, 2], ..Conv::default() };
        let second =
            Conv { strides: vec![1, 2], padding: vec![(2, 1), (-1, 3)], lhs_dilation: vec![2, 1], ..Conv::default() };
        with_gradients(b, weighted(b, &[x.conv(kernel, &first), x.conv(kernel, &second)]), v)
    });
}

#[test]
fn gradients_of_convolutions_in_groups() {
    check("grouped", 1e-5, |b, v| {
        let [x, kernel, depthwise, shared] = v[..] else { unreachable!() };
        let first = Conv {
            strides: vec![2, 1],
            padding: vec![(1, 0), (0, 2)],
            rhs_dilation: vec![1, 2],
            feature_groups: 2,
            ..Conv::default()
        };
        let second = Conv {
            strides: vec![1, 2],
            padding: vec![(2, 1), (-1, 3)],
            lhs_dilation: vec![2, 1],
            feature_groups: 4,
            ..Conv::default()
        };
        let third = Conv { strides: vec![2, 1], padding: vec![(1, 0), (0, 2)], batch_groups: 2, ..Conv::default() };
        let values = [x.conv(kernel, &first), x.conv(depthwise, &second), x.conv(shared, &third)];
        with_gradients(b, weighted(b, &values), v)
    });
}

#[test]
fn maxima_in_windows_and_their_derivatives() {
    check("windows", 1e-5, |b, v| {
        let mut values = Vec::new();
        for of in v {
            let padding = [(0, 0), (1, 1), (0, 1)];
            values.push(of.reduce_window(f64::NEG_INFINITY, &[1, 3, 2], &[1, 2, 1], &padding, |a, b| a.max(b)));
            values.push(of.reduce_window(f64::INFINITY, &[2, 2, 2], &[1, 2, 2], &[(0, 0); 3], |a, b| a.min(b)));
        }
        with_gradients(b, weighted(b, &values), v)
    });
}

#[test]
fn loops_of_known_length_and_their_derivatives() {
    check("scans", 1e-5, |b, v| {
        let [w, state, inputs, scale] = v[..] else { unreachable!() };
        let (last, made) = b.scan(&[state], &[inputs], |s, x| {
            let next = (w.matmul(s[0]) + x[0]).tanh() * scale;
            (vec![next], vec![next.sum(&[]), x[0] * next])
        });
        let power = b.fori_loop(2, 5, &[state], |i, s| vec![s[0].sin() * s[0] + i.convert(F32) * scale]);
        let (nested, squares) = b.scan(&[state], &[inputs], |s, x| {
            let pair = b.stack(&[x[0], x[0] * scale], 0);
            let (inner, all) =
                b.scan(&[s[0]], &[pair], |s, x| (vec![(s[0] * x[0]).cos() + w.index(0, 0)], vec![s[0] * s[0]]));
            (vec![inner[0] * s[0]], all)
        });
        let (chosen, _) = b.scan(&[state], &[inputs], |s, x| {
            let is_positive = x[0].index(0, 0).gt(0);
            (b.cond(is_positive, || vec![(-s[0]).exp() * w.index(0, 1)], || vec![s[0] * x[0]]), vec![])
        });
        let values = [last[0], made[0], made[1], power[0], nested[0], squares[0], chosen[0]];
        with_gradients(b, weighted(b, &values), v)
    });
}

#[test]
fn branches_and_their_derivatives() {
    check("branches", 1e-5, |b, v| {
        let [x, y, z, n] = v[..] else { unreachable!() };
        let either = |k: i64| b.cond(n.gt(k), || vec![x.sin() * y], || vec![y.exp() / (1 + z * z)])[0];
        with_gradients(b, weighted(b, &[either(2), either(9)]), &v[..3])
    });
}

#[test]
fn sorts_products_and_windows_and_their_derivatives() {
    check("orders", 1e-5, |b, v| {
        let [x, y, zeros] = v[..] else { unreachable!() };
        let pairs = b.sort_by(&[x, y], 1, |pairs| pairs[0].lt(pairs[1]));
        let (top, at) = x.top_k(2, -1);
        let padding = [(0, 0), (1, 0), (0, 2)];
        let values = [
            x.sort(0),
            pairs[0],
            pairs[1] * y,
            top,
            at.convert(F32),
            x.cumsum(1),
            zeros.product(&[1]),
            zeros.product(&[]),
            y.product(&[0, 2]),
            y.reduce_window(0, &[1, 2, 2], &[1, 2, 1], &padding, |a, b| a + b),
        ];
        with_gradients(b, weighted(b, &values), v)
    });
}

#[test]
fn derivatives_of_what_lies_outside() {
    check("outside", 1e-5, |b, v| {
        let [table, updates, indices] = v[..] else { unreachable!() };
        let rows = ScatterDims {
            update_window_dims: vec![1],
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![0],
            index_vector_dim: 1,
            ..ScatterDims::default()
        };
        let single = ScatterDims {
            inserted_window_dims: vec![0, 1],
            scatter_dims_to_operand_dims: vec![0, 1],
            index_vector_dim: 1,
            ..ScatterDims::default()
        };
        let pairs = b.stack(&[indices, indices - 1], 1);
        let values = [
            table.take(indices, 0),
            table.scatter_add(indices.expand_dims(1), updates * 2, &rows),
            table.scatter_add(pairs, updates.index(1, 0), &single),
        ];
        with_gradients(b, weighted(b, &values), &v[..2])
    });
}

#[test]
fn manual_regions_and_their_derivatives() {
    let mesh = Mesh::new(&[("x", 2), ("y", 2)]).unwrap();
    check("manual", 1e-5, |b, v| {
        let arguments = [(v[0], ("x", None).into()), (v[1], (None, "y").into()), (v[2], ().into())];
        let specs = [("x",).into(), (None, "y").into(), ("x", "y").into(), ("x", "y").into(), PartitionSpec::from(())];
        let made = b.shard_map(&mesh, &arguments, &specs, |part| {
            let [x, w, scale] = part[..] else { unreachable!() };
            let h = (x.matmul(w) * scale).tanh() + b.axis_index("y").convert(F32);
            let whole = h.all_gather(&["x"], 0);
            let looped = b.fori_loop(0, 3, &[h.index(0, 1)], |_, s| {
                vec![(s[0] * h.index(0, 0)).ppermute("y", &[(0, 1), (1, 0)]) * s[0].cos()]
            });
            vec![
                h.psum(&["y"]).sum(&[0]),
                (whole * whole).psum_scatter(&["y"], 1),
                h.sin().ppermute("x", &[(0, 1)]),
                h.all_to_all(&["y"], 0, 1),
                looped[0].pmean(&["x", "y"]),
            ]
        });
        with_gradients(b, weighted(b, &made), v)
    });
}

/// Along "y", values are whole and XLA divides the work.
#[test]
fn regions_over_some_axes_and_their_derivatives() {
    let mesh = Mesh::new(&[("x", 2), ("y", 2)]).unwrap();
    check("partial", 1e-5, |b, v| {
        let arguments = [(v[0], ("x", None).into()), (v[1], ().into()), (v[2], ().into())];
        let rows: PartitionSpec = ("x",).into();
        let specs = [().into(), rows.clone(), ().into(), rows.clone(), (None, "x").into(), rows];
        let made = b.shard_map_over(&mesh, &["x"], &arguments, &specs, |part| {
            let [x, w, scale] = part[..] else { unreachable!() };
            let w = w.with_sharding(&mesh.sharding((None, "y")).unwrap());
            let h = (x.matmul(w) * scale).tanh() + b.axis_index("x").convert(F32);
            let looped = b.fori_loop(0, 3, &[h.index(0, 1)], |_, s| {
                vec![(s[0] * h.index(0, 0)).ppermute("x", &[(0, 1), (1, 0)]) * s[0].cos()]
            });
            let (last, all) = b.scan(&looped, &[h], |s, row| {
                let next = (s[0] * row[0]).sin() + row[0].pmean(&["x"]);
                (vec![next], vec![next * row[0]])
            });
            let whole = h.all_gather(&["x"], 0);
            vec![
                h.psum(&["x"]).sum(&[0]),
                (-h * h).exp(),
                last[0].pmean(&["x"]),
                all[0].sum(&[1]),
                (whole * whole).psum_scatter(&["x"], 1),
                h.sin().all_to_all(&["x"], 1, 0),
            ]
        });
        with_gradients(b, weighted(b, &made), v)
    });
}

/// Where the manual axes have one device, the program is the one without them, its derivatives too.
#[test]
fn regions_over_axes_of_one_device() {
    let mesh = Mesh::new(&[("x", 1), ("y", 2), ("z", 1)]).unwrap();
    let build = |is_manual: bool| {
        let b = Builder::new("single");
        let (x, w) = (b.parameter("x", F32, &[4, 6]), b.parameter("w", F32, &[6, 8]));
        let made = if is_manual {
            let arguments = [(x, ("x", "z").into()), (w, ().into())];
            let specs = [PartitionSpec::from(()), ("x",).into(), (None, "x").into(), ().into()];
            b.shard_map_over(&mesh, &["x", "z"], &arguments, &specs, |part| {
                let w = part[1].with_sharding(&mesh.sharding((None, "y")).unwrap());
                let h = part[0].matmul(w).tanh() + b.axis_index("x").convert(F32);
                let gathered = h.psum(&["x"]).all_gather(&["z"], 0).all_to_all(&["x"], 0, 1);
                let looped = b.fori_loop(0, 3, &[h], |_, s| vec![s[0].ppermute("x", &[(0, 0)]).sin()])[0];
                vec![gathered, looped.psum_scatter(&["x"], 1), h.pmean(&["x", "z"]).exp(), h.ppermute("z", &[])]
            })
        } else {
            let h = x.matmul(w).tanh();
            vec![h, h.sin().sin().sin(), h.exp(), h.zeros_like()]
        };
        let results = with_gradients(&b, weighted(&b, &made), &[x, w]);
        b.build(&results).unwrap()
    };
    let filled = |index, dims: &[usize]| HostArray::filled(Fill::Random { seed: 0 }, index, F32, dims).unwrap();
    let arguments = [filled(0, &[4, 6]), filled(1, &[6, 8])];
    let manual = build(true);
    assert_eq!(manual.config.num_partitions, Some(2));
    for (found, expected) in run(manual, &arguments).iter().zip(run(build(false), &arguments)) {
        let comparison = compare(found, &expected, 1e-5, 1e-5).unwrap();
        assert!(comparison.is_close(), "{comparison}\n{found}\n{expected}");
    }
}

#[test]
fn what_has_no_derivative() {
    check("forward", 1e-5, |b, v| {
        let [x, kernel, integers] = v[..] else { unreachable!() };
        let conv =
            Conv { strides: vec![2, 1], padding: vec![(1, 0), (0, 2)], rhs_dilation: vec![1, 2], ..Conv::default() };
        let (window, none) = ([1, 2, 2, 1], [(0, 0); 4]);
        vec![
            x.conv(kernel, &conv),
            x.sort(1),
            x.argsort(-1),
            x.argmax(2),
            x.cumsum(1),
            x.reduce_window(f64::NEG_INFINITY, &window, &window, &none, |a, b| a.max(b)),
            integers.one_hot(F32, 5),
            integers.reduce_max(&[]),
            integers % 3,
            integers.gt(3).any(&[0]),
            integers.gt(0).all(&[]),
            x.product(&[3]),
            x.convert(BF16).sum(&[0]).convert(F32),
            integers.shift_right_arithmetic(1),
            x.convert(S32),
        ]
        .into_iter()
        .inspect(|op| assert!(b.error().is_none(), "{op:?}"))
        .collect()
    });
}

#[test]
fn loops_and_branches_use_values_around_them() {
    check("control", 1e-6, |b, v| {
        let (x, n) = (v[0], v[1]);
        let start = [b.scalar(S32, 0), x];
        let end = b.while_loop(&start, |s| s[0].lt(n), |s| vec![s[0] + 1, s[1].sin() * x]);
        let (i, y) = (end[0], end[1]);
        let z = b.fori_loop(0, 3, &[y], |i, s| vec![s[0] + x * i.convert(F32)])[0];
        let chosen = b.cond(n.gt(2), || vec![x + y], || vec![x - z])[0];
        vec![i, y, z, chosen]
    });
}

#[test]
fn random_numbers_are_those_of_jax() {
    check("random", 2e-6, |b, _| {
        let key = random::key(b, 7);
        let keys = random::split(key, 2);
        vec![
            keys[0],
            keys[1],
            random::fold_in(key, b.scalar(S32, 3)),
            random::bits(keys[0], &[3, 5]),
            random::uniform(keys[0], F32, &[4, 7]),
            random::normal(keys[1], F32, &[50, 8]),
        ]
    });
}

/// A second derivative, by differentiating a gradient.
#[test]
fn gradients_have_gradients() {
    let b = Builder::new("second");
    let x = b.parameter("x", F32, &[3]);
    let first = b.grad((x * x * x).sum(&[]), &[x])[0];
    let second = b.grad(first.sum(&[]), &[x])[0];
    let array = HostArray::new(F32, vec![3], common::bytes_of(&[1.0, 2.0, -3.0])).unwrap();
    let results = run(b.build(&[first, second]).unwrap(), &[array]);
    assert_eq!(common::floats_of(results[0].data()), [3.0, 12.0, 27.0]);
    assert_eq!(common::floats_of(results[1].data()), [6.0, 12.0, -18.0]);
}

/// x³ by multiplying in a loop, in which a branch and a loop inside take part.
#[test]
fn gradients_of_loops_have_gradients() {
    let b = Builder::new("second");
    let x = b.parameter("x", F32, &[3]);
    let cube = b.fori_loop(0, 3, &[x.ones_like()], |i, s| {
        let times = b.fori_loop(0, 1, &[s[0]], |_, s| vec![s[0] * x])[0];
        b.cond(i.lt(5), || vec![times], || vec![s[0].sin()])
    })[0];
    let first = b.grad(cube.sum(&[]), &[x])[0];
    let second = b.grad(first.sum(&[]), &[x])[0];
    let third = b.grad(second.sum(&[]), &[x])[0];
    let array = HostArray::new(F32, vec![3], common::bytes_of(&[1.0, 2.0, -3.0])).unwrap();
    let results = run(b.build(&[cube, first, second, third]).unwrap(), &[array]);
    let expected = [[1.0, 8.0, -27.0], [3.0, 12.0, 27.0], [6.0, 12.0, -18.0], [6.0, 6.0, 6.0]];
    for (result, expected) in results.iter().zip(expected) {
        assert_eq!(common::floats_of(result.data()), expected);
    }
}

/// Training inside of a loop: each turn takes a gradient.
#[test]
fn a_loop_may_take_gradients() {
    let b = Builder::new("descent");
    let (x, rate) = (b.parameter("x", F32, &[2]), b.parameter("rate", F32, &[]));
    let end = b.fori_loop(0, 3, &[x], |_, s| {
        let squares = b.fori_loop(0, 2, &[s[0]], |_, inner| vec![inner[0] * s[0]])[0];
        vec![s[0] - b.grad(squares.sum(&[]), &[s[0]])[0] * rate]
    })[0];
    let by_rate = b.grad(end.sum(&[]), &[rate])[0];
    let arguments = [(vec![2], vec![1.0, 2.0]), (vec![], vec![0.125])]
        .map(|(dims, values)| HostArray::new(F32, dims, common::bytes_of(&values)).unwrap());
    let results = run(b.build(&[end, by_rate]).unwrap(), &arguments);
    let (mut at, mut slope) = ([1.0f32, 2.0], [0.0f32; 2]);
    for _ in 0..3 {
        for (x, slope) in at.iter_mut().zip(&mut slope) {
            *slope += -3.0 * *x * *x - 0.125 * 6.0 * *x * *slope;
            *x -= 0.125 * 3.0 * *x * *x;
        }
    }
    for (found, expected) in common::floats_of(results[0].data()).into_iter().zip(at) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
    let found = common::floats_of(results[1].data())[0];
    assert!((found - slope[0] - slope[1]).abs() < 1e-4, "{found} {slope:?}");
}

/// Every element type that arithmetic knows goes through constants and a sum.
#[test]
fn numbers_take_the_type_beside_them() {
    let types = [DType::F64, F32, DType::F16, BF16, S32, DType::S64, DType::U8, U32, DType::C64];
    let b = Builder::new("types");
    let sums: Vec<Op> = types.iter().map(|&dtype| (b.ones(dtype, &[2]) * 2 + 1).sum(&[]).convert(F32)).collect();
    let module = b.build(&sums[..8]).unwrap();
    for result in run(module, &[]) {
        assert_eq!(common::floats_of(result.data()), [6.0]);
    }
}

/// Smooth steps of a computation on an array of three dimensions, in f64.
const STEPS: [for<'b> fn(&'b Builder, Op<'b>) -> Op<'b>; 24] = [
    |_, x| x.tanh(),
    |_, x| x.sin() * x,
    |_, x| x.sigmoid() / (x * x + 1),
    |_, x| (x * 0.3).exp(),
    |_, x| (x * x + 0.5).log(),
    |_, x| (x * x + 0.5).rsqrt() - x,
    |_, x| (x.cos() + 2).pow(x * 0.5),
    |_, x| x.softmax(1) * 3,
    |_, x| x.log_softmax(-1),
    |_, x| x.normalize(0, 0.1),
    |_, x| x - x.logsumexp(2).expand_dims(2),
    |_, x| x.transpose(&[2, 0, 1]),
    |_, x| x.matmul(x.t()) * 0.3,
    |b, x| b.einsum("abc,adc->bda", x, x.sin()) * 0.3,
    |b, x| b.concatenate(&[x, x.reverse(&[1]) * 0.5], 0).slice(0, 1..4),
    |_, x| x.pad(0, &[(1, 0, 0), (0, 1, 1), (0, 0, 0)]).slice(0, 0..2),
    |b, x| x.take(b.iota(S32, &[3], 0) % 2, 1),
    |_, x| x.max(x.sin()) + x.erf() - (x * 0.1).expm1(),
    |b, x| b.fori_loop(-1, 2, &[x], |i, s| vec![(s[0] * x).sin() + i.convert(DType::F64)])[0],
    |b, x| {
        let scanned = b.scan(&[x.index(0, 0)], &[x], |s, x| (vec![(s[0] * x[0]).tanh()], vec![s[0].cos() * x[0]]));
        scanned.1[0] + scanned.0[0]
    },
    // Which branch is taken must not depend on x: between two branches lies a jump.
    |b, x| {
        let zero = b.iota(S32, &[1], 0).sum(&[]);
        let first = b.cond(zero.eq(0), || vec![x.sin() * x], || vec![x])[0];
        b.cond(zero.gt(0), || vec![first], || vec![(first * 0.5).exp()])[0]
    },
    |_, x| x.sort(-1) * x,
    |_, x| x.cumsum(1) * 0.5,
    |_, x| (x * 0.2 + 1).product(&[0]).expand_dims(0) * x,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Along a random direction v, (f(x + hv) − f(x − hv)) / 2h is the gradient times v.
    #[test]
    fn gradients_are_those_of_finite_differences(steps in prop::collection::vec(0..STEPS.len(), 1..4), seed in any::<u64>()) {
        const H: f64 = 1e-5;
        let b = Builder::new("finite_differences");
        let numbers = [0, 1].map(|number| HostArray::filled(Fill::Random { seed }, number, DType::F64, &[2, 3, 4]).unwrap());
        let x = b.parameter("x", DType::F64, &[2, 3, 4]) * 4.0 - 2.0;
        let v = b.parameter("v", DType::F64, &[2, 3, 4]) * 4.0 - 2.0;
        let loss = |x| {
            let y = steps.iter().fold(x, |x, &step| STEPS[step](&b, x));
            let weights = b.arange(DType::F64, y.num_elements()).cos().reshape(&y.dims());
            (y * weights).sum(&[])
        };
        let expected = (loss(x + v * H) - loss(x - v * H)) / (2.0 * H);
        let value = loss(x);
        let found = (b.grad(value, &[x])[0] * v).sum(&[]);
        let scale = (b.grad(value, &[x])[0] * v).abs().sum(&[]);
        let results = run_on(&DEVICE, b.build(&[found, expected, scale]).unwrap(), &numbers);
        let number = |index: usize| results[index].to_elements::<f64>().unwrap()[0];
        let (found, expected, scale) = (number(0), number(1), number(2));
        prop_assert!((found - expected).abs() <= 1e-6 * (1.0 + scale), "{found} {expected} {scale}");
    }
}

static DEVICE: LazyLock<Runtime> = LazyLock::new(|| devices(1));
