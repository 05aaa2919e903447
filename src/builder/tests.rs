//! What is wrong is said at the line that is wrong.

use super::*;
use crate::dtype::DType::{F32, S32, U32};
use crate::hlo::print;
use crate::mesh::{Mesh, PartitionSpec};

/// The first error of a program, without the place.
fn message(program: impl FnOnce(&Builder)) -> String {
    let b = Builder::new("wrong");
    program(&b);
    b.error().expect("the program is wrong").message
}

fn done<T>(_: T) {}

#[test]
fn wrong_calls_are_explained() {
    let xw = |b: &Builder, run: &dyn Fn(Op<'_>, Op<'_>)| {
        run(b.parameter("x", F32, &[2, 3]), b.parameter("w", F32, &[4, 5]));
    };
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(x + w))), @"add: the shapes f32[2,3] and f32[4,5] cannot be broadcast to one");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(x.matmul(w)))), @"matmul: f32[2,3] and f32[4,5]: the dimensions summed over have the sizes 3 and 4");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(x + w.convert(S32)))), @"add: f32[2,3] and s32[4,5] have different element types: convert one of them");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.reshape(&[4, -1])))), @"reshape: f32[2,3] cannot become [4,-1]");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.reshape(&[7])))), @"reshape: it makes f32[7] with 7 elements of f32[2,3] with 6");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.sum(&[2])))), @"reduce: axis 2 is out of bounds for the 2 dimensions of f32[2,3]");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.transpose(&[0, 0])))), @"transpose: axis 0 is named twice");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.transpose(&[0])))), @"transpose: the dimensions are no permutation");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.slice(0, 1..4)))), @"slice: [1:4:1] does not lie within a dimension of 2");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.broadcast_to(&[3, 2])))), @"broadcast: f32[2,3] cannot become [3,2] with its dimensions at [0,1]");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(b.concatenate(&[x, w], 0)))), @"concatenate: the operands have different shapes: f32[4,3] and f32[4,5]");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(b.einsum("ij,jk->ik", x, w)))), @"dot: the contracting dimensions 1 and 0 have the sizes 3 and 4");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(b.einsum("ij->ik", x, w)))), @"einsum: 'ij->ik' is no equation of the form ab,bc->ac");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.convert(S32).exp()))), @"exponential: operand 0 is s32[2,3], and it must be of floating-point or complex numbers");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.take(x, 0)))), @"gather: the indices' type is f32[2,3], and must be an integer");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.split(1, 2)))), @"split: 3 elements do not make 2 equal parts");
    insta::assert_snapshot!(message(|b| done(b.scalar(S32, 0.5))), @"constant: a fraction is no value of s32: expected an integer");
    insta::assert_snapshot!(message(|b| done(b.scalar(DType::U8, 300))), @"constant: 300 is out of range for u8 (0 to 255)");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.element(0)))), @"get-tuple-element: f32[2,3] has no element 0");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(b.grad(x, &[x])))), @"grad: f32[2,3] is no scalar of a floating-point type");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(b.grad(x.reduce(1, &[], |a, b| a * b + a).sum(&[]), &[x])))), @"grad: a reduction by a function of several operations has no derivative here: use stop_gradient where it is to count as a constant");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.reduce_window(0, &[1], &[1], &[(0, 0)], |a, b| a + b)))), @"reduce-window: each dimension of f32[2,3] needs a size, a stride and a padding");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(x.conv(w, &Conv { strides: vec![1], ..Conv::default() })))), @"convolution: strides, padding and dilations must be given for 0 spatial dimensions, or for none");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(x.dot_general(w, &DotDims { lhs_contracting: vec![0], rhs_contracting: vec![5], ..DotDims::default() })))), @"dot: dimension 5 stands there twice or is not below 2");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.pad(0, &[(1, 0, 0)])))), @"pad: the padding and the operand have different ranks");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.squeeze(&[1])))), @"squeeze: dimension 1 of f32[2,3] is not 1");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.dynamic_slice(&[b.scalar(S32, 0)], &[1, 1])))), @"dynamic-slice: it has 1 start indices for 2 dimensions, and needs one scalar for each or one vector");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.mean(&[0]).convert(S32).mean(&[])))), @"mean: s32[3] is of no floating-point type: convert it");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.top_k(4, 1)))), @"slice: [0:4:1] does not lie within a dimension of 3");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(x.gt(0).select(x, w)))), @"select: the shapes f32[2,3] and f32[4,5] cannot be broadcast to one");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.bitcast(DType::F16)))), @"bitcast-convert: its shape is f16[2,3], and its dimensions must be [2,3,2]");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(b.vjp(x, w, &[x])))), @"vjp: the cotangent f32[4,5] must be f32[2,3]");
    insta::assert_snapshot!(message(|b| done(b.iota(S32, &[2], 1))), @"iota: axis 1 is out of bounds for the 1 dimensions");
    insta::assert_snapshot!(message(|b| done(b.concatenate(&[], 0))), @"concatenate: there are no arrays");
    insta::assert_snapshot!(message(|b| done(random::bits(random::key(b, 0), &[1 << 20, 1 << 20]))), @"random: an array of random numbers has 2³² − 1 elements at most");
    insta::assert_snapshot!(message(|b| done(random::bits(b.parameter("x", U32, &[3]), &[4]))), @"random: u32[3] is no key: a key is a u32[2], made by key, split or fold_in");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| b.donate(x + 1))), @"donate: only a parameter can be donated");
    insta::assert_snapshot!(message(|b| {
        let other = Builder::new("other");
        xw(b, &|x, _| done(other.tuple(&[x])));
        done(b.tuple(&[other.scalar(F32, 1)]));
    }), @"tuple: an operand belongs to another builder");
}

#[test]
fn wrong_functions_are_explained() {
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        b.while_loop(&[x], |_| b.scalar(F32, 1), |s| s.to_vec());
    }), @"while: 'condition.3' returns f32[], and it must return pred[]");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        b.while_loop(&[x], |s| s[0].sum(&[]).lt(3), |s| vec![s[0].sum(&[])]);
    }), @"while_loop: array 0 of the state is f32[3], and the body makes f32[] of it");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        b.while_loop(&[x], |s| s[0].sum(&[]).lt(3), |_| vec![]);
    }), @"while_loop: the state has 1 arrays, and the body returns 0");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        let mut inner = None;
        b.fori_loop(0, 3, &[x], |_, s| {
            inner = Some(s[0] + 1);
            vec![s[0]]
        });
        done(inner.unwrap() + 1);
    }), @"add: 'add.16' belongs to 'body.10', which is over: what is needed of it must be its result");
    insta::assert_snapshot!(message(|b| {
        let (x, y) = (b.parameter("x", F32, &[3]), b.parameter("y", F32, &[]));
        x.reduce(0, &[], |a, b| a + b * y);
    }), @"multiply: 'reducer.4' uses 'y.3' from outside, and only constants can be: pass it as an argument");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        b.cond(x.sum(&[]).gt(0), || vec![x], || vec![x.sum(&[])]);
    }), @"conditional: the result of 'on_false.15' has the shape (f32[]), and it must be (f32[3])");
}

#[test]
fn wrong_loops_and_their_derivatives_are_explained() {
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[]);
        let end = b.while_loop(&[x], |s| s[0].lt(3), |s| vec![s[0] * 2]);
        b.grad(end[0], &[x]);
    }), @"grad: while_loop has no derivative, as it is not known how often it runs: use scan, or fori_loop with a fixed start and end");
    insta::assert_snapshot!(message(|b| {
        let (x, y) = (b.parameter("x", F32, &[3, 2]), b.parameter("y", F32, &[2, 2]));
        b.scan(&[], &[x, y], |_, _| (vec![], vec![]));
    }), @"scan: the arrays must have a first dimension, the same and not 0: f32[3,2], f32[2,2]");
    insta::assert_snapshot!(message(|b| {
        b.scan(&[b.scalar(F32, 0)], &[], |s, _| (s.to_vec(), vec![]));
    }), @"scan: the arrays must have a first dimension, the same and not 0: there are none: b.arange(S32, n) makes n turns, as does fori_loop");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3, 2]);
        b.scan(&[b.scalar(F32, 0)], &[x], |_, x| (vec![x[0]], vec![]));
    }), @"scan: array 0 of the state is f32[], and the body makes f32[2] of it");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        let (_, made) = b.scan(&[x.sum(&[])], &[x], |s, x| (vec![s[0].while_less(x[0])], vec![s[0]]));
        b.grad(made[0].sum(&[]), &[x]);
    }), @"grad: while_loop has no derivative, as it is not known how often it runs: use scan, or fori_loop with a fixed start and end");
    insta::assert_snapshot!(message(|b| {
        let mesh = Mesh::new(&[("data", 2)]).unwrap();
        let x = b.parameter("x", F32, &[4]);
        let made = b.shard_map(&mesh, &[(x, ("data",).into())], &[().into()], |x| vec![x[0].pmax(&["data"])]);
        b.grad(made[0].sum(&[]), &[x]);
    }), @"grad: a maximum or minimum over devices has no derivative here: use stop_gradient where it is to count as a constant");
    let of_reduction = |combine: for<'b> fn(Op<'b>, Op<'b>) -> Op<'b>| {
        message(|b| {
            let x = b.parameter("x", F32, &[4]);
            b.grad(x.reduce(0, &[], combine), &[x]);
        })
    };
    insta::assert_snapshot!(of_reduction(|a, b| a.atan2(b)), @"grad: a reduction by 'atan2' has no derivative here: use stop_gradient where it is to count as a constant");
    insta::assert_snapshot!(of_reduction(|a, b| a + b * 2), @"grad: a reduction by a function of several operations has no derivative here: use stop_gradient where it is to count as a constant");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.grad(x.reduce_window(1, &[2], &[1], &[(0, 0)], |a, b| a * b).sum(&[]), &[x]);
    }), @"grad: a reduction over windows by 'multiply' has no derivative here: use stop_gradient where it is to count as a constant");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        let largest = x.reduce_window(f64::NEG_INFINITY, &[2], &[1], &[(0, 0)], |a, b| a.max(b));
        let once = b.grad((largest * largest).sum(&[]), &[x])[0];
        b.grad(once.sum(&[]), &[x]);
    }), @"grad: select-and-scatter has no derivative here: use stop_gradient where it is to count as a constant");
}

impl<'b> Op<'b> {
    /// A loop of unknown length.
    fn while_less(self, other: Op<'b>) -> Op<'b> {
        self.builder.while_loop(&[self], |s| s[0].lt(other), |s| vec![s[0] * 2])[0]
    }
}

#[test]
fn wrong_shardings_are_explained() {
    let mesh = Mesh::new(&[("data", 2), ("model", 4)]).unwrap();
    insta::assert_snapshot!(message(|b| {
        b.sharded_parameter("x", F32, &[3, 8], &mesh.sharding(("data",)).unwrap());
    }), @"parameter: NamedSharding(Mesh('data': 2, 'model': 4), P('data',)) cuts dimension 0 into 2 equal parts, so its size should be divisible by 2, but it is 3 (full shape: (3, 8))");
    insta::assert_snapshot!(message(|b| {
        let x = b.sharded_parameter("x", F32, &[4, 8], &mesh.sharding(("data",)).unwrap());
        let other = Mesh::new(&[("data", 2)]).unwrap();
        x.with_sharding(&other.sharding(()).unwrap());
    }), @"with_sharding: Mesh('data': 2) has 2 devices, and the program uses a mesh of 8 already");
    insta::assert_snapshot!(message(|b| done(b.parameter("x", F32, &[2]).psum(&["data"]))), @"all-reduce: collectives are for the body of shard_map: outside of it, arrays are whole");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.shard_map(&mesh, &[(x, ("data",).into())], &[().into()], |x| vec![x[0].ppermute("model", &[(0, 4)])]);
    }), @"collective-permute: (0, 4) are no places on an axis of 4 devices");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.shard_map(&mesh, &[(x, ("data",).into())], &[().into()], |x| vec![x[0].psum_scatter(&["model"], 0)]);
    }), @"reduce-scatter: dimension 0 of size 2 cannot be split over its groups");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.shard_map(&mesh, &[(x, ("data",).into())], &[().into()], |x| vec![x[0].all_to_all(&["model"], 0, 0)]);
    }), @"all-to-all: dimension 0 of size 2 cannot be split over its groups");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.shard_map(&mesh, &[(x, ("data",).into())], &[], |x| vec![x[0]]);
    }), @"shard_map: there are 0 specs for 1 results");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        b.shard_map(&mesh, &[(x, ("data",).into())], &[().into()], |x| vec![x[0]]);
    }), @"shard_map: NamedSharding(Mesh('data': 2, 'model': 4), P('data',)) cuts dimension 0 into 2 equal parts, so its size should be divisible by 2, but it is 3 (full shape: (3))");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.shard_map(&mesh, &[(x, ("rows",).into())], &[().into()], |x| vec![x[0]]);
    }), @"shard_map: axis rows of P('rows',) is not found in Mesh('data': 2, 'model': 4)");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.shard_map(&mesh, &[(x, ("data",).into())], &[().into()], |x| {
            b.parameter("y", F32, &[]);
            vec![x[0]]
        });
    }), @"parameter: 'y' must be made outside of loops, branches and other functions");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.shard_map(&mesh, &[(x, ("data",).into())], &[().into()], |x| vec![x[0].psum(&["batch"])]);
    }), @"all-reduce: axis batch is not found in Mesh('data': 2, 'model': 4)");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.shard_map(&mesh, &[(x, ("data",).into())], &[().into()], |part| vec![part[0] + x.sum(&[])]);
    }), @"reduce: 'shard_map.5' uses 'x.2' from outside, and only constants can be: pass it as an argument");
    let over = |specs: [PartitionSpec; 2], body: fn(Op<'_>, &Mesh) -> ()| {
        message(|b| {
            let x = b.parameter("x", F32, &[8, 8]);
            let [own, result] = specs;
            b.shard_map_over(&mesh, &["data"], &[(x, own)], &[result], |part| {
                body(part[0], &mesh);
                vec![part[0]]
            });
        })
    };
    let rows = || PartitionSpec::from(("data",));
    insta::assert_snapshot!(over([("model",).into(), rows()], |_, _| ()), @"shard_map: axis 'model' is automatic in this region, which is manual along data only");
    insta::assert_snapshot!(over([rows(), (None, "model").into()], |_, _| ()), @"shard_map: axis 'model' is automatic in this region, which is manual along data only");
    insta::assert_snapshot!(over([rows(), rows()], |x, _| { x.psum(&["model"]); }), @"all-reduce: axis 'model' is automatic in this region, which is manual along data only");
    insta::assert_snapshot!(over([rows(), rows()], |x, mesh| { x.with_sharding(&mesh.sharding(("data",)).unwrap()); }), @"with_sharding: axis 'data' is manual here: values are the parts of one device along it");
    insta::assert_snapshot!(message(|b| {
        b.shard_map_over(&mesh, &["rows"], &[], &[], |_| vec![]);
    }), @"shard_map_over: axis rows is not found in Mesh('data': 2, 'model': 4)");
}

#[test]
fn errors_name_the_line_of_the_call() {
    let b = Builder::new("wrong");
    let x = b.parameter("x", F32, &[2, 3]);
    let line = line!() + 1;
    let y = x.softmax(5) + 1;
    let error = b.build(&[y.tanh()]).unwrap_err();
    assert_eq!((error.location.file(), error.location.line()), (file!(), line));
    assert_eq!(error.message, "reduce: axis 5 is out of bounds for the 2 dimensions of f32[2,3]");
    assert_eq!((y.dims(), y.rank(), format!("{y:?}")), (vec![], 0, "failed".to_owned()));

    let other = Builder::new("other");
    let line = line!() + 1;
    let error = other.build(&[x]).unwrap_err();
    assert_eq!((error.location.file(), error.location.line()), (file!(), line));
    assert_eq!(error.message, "build: an operand belongs to another builder");
}

#[test]
fn a_sharded_program_reads_as_one() {
    let mesh = Mesh::new(&[("data", 2), ("model", 2)]).unwrap();
    let b = Builder::new("sharded");
    let x = b.sharded_parameter("x", F32, &[4, 6], &mesh.sharding(("data",)).unwrap());
    let w = b.sharded_parameter("w", F32, &[6, 2], &mesh.sharding((None, "model")).unwrap());
    b.donate(w);
    let y = x.matmul(w).with_sharding(&mesh.sharding(("data", "model")).unwrap());
    let next = (w - 0.5).with_sharding(&mesh.sharding((None, "model")).unwrap());
    let mut module = b.build(&[y, y.sum(&[]), next]).unwrap();
    assert_eq!(module.config.allow_spmd_sharding_propagation_to_output, [false, true, false]);
    for instruction in module.proto.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        instruction.metadata = None.into();
    }
    insta::assert_snapshot!(print(&module), @r#"
HloModule sharded, input_output_alias={ {2}: (1, {}) }, allow_spmd_sharding_propagation_to_output={false,true,false}, num_partitions=4

%add.10 {
  %argument.11 = f32[] parameter(0)
  %argument.12 = f32[] parameter(1)
  ROOT %add.13 = f32[] add(%argument.11, %argument.12)
}

ENTRY %main.1 {
  %x.2 = f32[4,6] parameter(0), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
  %w.3 = f32[6,2] parameter(1), sharding={devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  %dot.4 = f32[4,2] dot(%x.2, %w.3), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %custom-call.5 = f32[4,2] custom-call(%dot.4), custom_call_target="Sharding", sharding={devices=[2,2]<=[4]}
  %constant.6 = f32[] constant(0.5)
  %broadcast.7 = f32[6,2] broadcast(%constant.6), dimensions={}
  %subtract.8 = f32[6,2] subtract(%w.3, %broadcast.7)
  %custom-call.9 = f32[6,2] custom-call(%subtract.8), custom_call_target="Sharding", sharding={devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  %constant.14 = f32[] constant(0)
  %reduce.15 = f32[] reduce(%custom-call.5, %constant.14), dimensions={0,1}, to_apply=%add.10
  ROOT %results.16 = (f32[4,2], f32[], f32[6,2]) tuple(%custom-call.5, %reduce.15, %custom-call.9), sharding={{devices=[2,2]<=[4]}, {replicated}, {devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}}
}
"#);
}
