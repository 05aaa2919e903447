//! What is wrong is said at the line that is wrong.

use super::*;
use crate::dtype::DType::{F32, S32};
use crate::hlo::print;
use crate::mesh::Mesh;

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
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(x + w))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(x.matmul(w)))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(x + w.convert(S32)))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.reshape(&[4, -1])))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.reshape(&[7])))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.sum(&[2])))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.transpose(&[0, 0])))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.transpose(&[0])))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.slice(0, 1..4)))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.broadcast_to(&[3, 2])))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(b.concatenate(&[x, w], 0)))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(b.einsum("ij,jk->ik", x, w)))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, w| done(b.einsum("ij->ik", x, w)))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.convert(S32).exp()))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.take(x, 0)))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.split(1, 2)))), @"");
    insta::assert_snapshot!(message(|b| done(b.scalar(S32, 0.5))), @"");
    insta::assert_snapshot!(message(|b| done(b.scalar(DType::U8, 300))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(x.element(0)))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(b.grad(x, &[x])))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| done(b.grad(x.sort(0).sum(&[]), &[x])))), @"");
    insta::assert_snapshot!(message(|b| xw(b, &|x, _| b.donate(x + 1))), @"");
    insta::assert_snapshot!(message(|b| {
        let other = Builder::new("other");
        xw(b, &|x, _| done(other.tuple(&[x])));
        done(b.tuple(&[other.scalar(F32, 1)]));
    }), @"");
}

#[test]
fn wrong_functions_are_explained() {
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        b.while_loop(&[x], |_| b.scalar(F32, 1), |s| s.to_vec());
    }), @"");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        b.while_loop(&[x], |s| s[0].sum(&[]).lt(3), |s| vec![s[0].sum(&[])]);
    }), @"");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        b.while_loop(&[x], |s| s[0].sum(&[]).lt(3), |_| vec![]);
    }), @"");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        let mut inner = None;
        b.fori_loop(0, 3, &[x], |_, s| {
            inner = Some(s[0] + 1);
            vec![s[0]]
        });
        done(inner.unwrap() + 1);
    }), @"");
    insta::assert_snapshot!(message(|b| {
        let (x, y) = (b.parameter("x", F32, &[3]), b.parameter("y", F32, &[]));
        x.reduce(0, &[], |a, b| a + b * y);
    }), @"");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[3]);
        b.cond(x.sum(&[]).gt(0), || vec![x], || vec![x.sum(&[])]);
    }), @"");
}

#[test]
fn wrong_shardings_are_explained() {
    let mesh = Mesh::new(&[("data", 2), ("model", 4)]).unwrap();
    insta::assert_snapshot!(message(|b| {
        b.sharded_parameter("x", F32, &[3, 8], &mesh.sharding(("data",)).unwrap());
    }), @"");
    insta::assert_snapshot!(message(|b| {
        let x = b.sharded_parameter("x", F32, &[4, 8], &mesh.sharding(("data",)).unwrap());
        let other = Mesh::new(&[("data", 2)]).unwrap();
        x.with_sharding(&other.sharding(()).unwrap());
    }), @"");
    insta::assert_snapshot!(message(|b| done(b.parameter("x", F32, &[2]).psum(&["data"]))), @"");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.shard_map(&mesh, &[(x, ("data",).into())], &[().into()], |x| vec![x[0].psum(&["batch"])]);
    }), @"");
    insta::assert_snapshot!(message(|b| {
        let x = b.parameter("x", F32, &[4]);
        b.shard_map(&mesh, &[(x, ("data",).into())], &[().into()], |part| vec![part[0] + x]);
    }), @"");
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
    insta::assert_snapshot!(print(&module), @"");
}
