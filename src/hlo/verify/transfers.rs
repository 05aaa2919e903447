//! Operations in halves, a start and a done, and what goes in and out: asynchronous calls, copies, sends, feeds.

use super::dims::{compatible, expect_array, expect_same, expect_token, text};
use super::{Check, Site, ensure};
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{HloInstructionProto, ShapeProto};

/// `((operands…), results, …)`, where operands and results may come in step by step.
pub(super) fn async_step(site: &Site) -> Check {
    let parts = &site.shape().tuple_shapes;
    ensure!(
        parts.len() >= 2 && shape::is_tuple(site.shape()) && shape::is_tuple(&parts[0]),
        "its shape is {}, and it must be a tuple of the operands' tuple, the results and more",
        text(site.shape())
    );
    let bound = &parts[0].tuple_shapes;
    let added = if site.instruction.opcode == "async-start" {
        if let Some(called) = site.called.first() {
            let (parameters, name) = (&called.parameters, &called.computation.name);
            ensure!(
                bound.len() <= parameters.len(),
                "'{name}' has {} parameters, and {} are passed",
                parameters.len(),
                bound.len()
            );
            for (parameter, bound) in parameters.iter().zip(bound) {
                expect_same(&format!("parameter '{}' of '{name}'", parameter.name), &parameter.shape, bound)?;
            }
            ensure!(
                is_prefix(&parts[1], called.result),
                "its results are {}, and '{name}' returns {}",
                text(&parts[1]),
                text(called.result)
            );
            let (thread, of_computation) =
                (&site.instruction.details().async_execution_thread, &called.computation.execution_thread);
            let main = |thread: &str| if thread.is_empty() { "main".to_owned() } else { thread.to_owned() };
            ensure!(
                main(thread) == main(of_computation),
                "it runs on the thread '{}', and '{name}' on '{}'",
                main(thread),
                main(of_computation)
            );
        }
        &site.operands[..]
    } else {
        if let [before, results, ..] = &started(site)?.tuple_shapes[..] {
            ensure!(
                is_prefix(before, &parts[0]) && is_prefix(results, &parts[1]),
                "its shape is {}, and it continues {}",
                text(site.shape()),
                text(site.operand(0))
            );
        }
        &site.operands[1..]
    };
    let before = bound.len().checked_sub(added.len());
    let Some(before) = before.filter(|&before| before == 0 || site.instruction.opcode == "async-update") else {
        return Err(format!("it is given {} operands for the {} of its shape", added.len(), bound.len()));
    };
    for (operand, bound) in added.iter().zip(&bound[before..]) {
        expect_same(&format!("operand '{}'", operand.name), &operand.shape, bound)?;
    }
    Ok(())
}

/// The shape of the step before, an asynchronous operation or what passed it on.
fn started<'m>(site: &Site<'_, 'm>) -> Result<&'m ShapeProto, String> {
    let before = site.operands.first().copied();
    let before = before.ok_or_else(|| "it continues nothing".to_owned())?;
    let passes_on = matches!(
        before.opcode.as_str(),
        "async-start"
            | "async-update"
            | "get-tuple-element"
            | "parameter"
            | "opt-barrier"
            | "optimization-barrier"
            | "while"
            | "conditional"
            | "call"
            | "copy"
            | "domain"
            | "custom-call"
    );
    let parts = &before.shape.tuple_shapes;
    ensure!(
        passes_on && parts.len() >= 2 && shape::is_tuple(&before.shape) && shape::is_tuple(&parts[0]),
        "it continues '{}', and that is no asynchronous operation",
        before.name
    );
    Ok(&before.shape)
}

pub(super) fn async_done(site: &Site) -> Check {
    let parts = &started(site)?.tuple_shapes;
    expect_same("it", site.shape(), &parts[1])
}

/// Whether the shape is what has come in of the other so far; nothing yet is `()`.
fn is_prefix(shape: &ShapeProto, of: &ShapeProto) -> bool {
    if shape::is_tuple(shape) && shape.tuple_shapes.is_empty() {
        return true;
    }
    if !shape::is_tuple(shape) || !shape::is_tuple(of) {
        return compatible(shape, of);
    }
    shape.tuple_shapes.len() <= of.tuple_shapes.len()
        && shape.tuple_shapes.iter().zip(&of.tuple_shapes).all(|(shape, of)| is_prefix(shape, of))
}

/// The start that this ends.
fn start<'m>(site: &Site<'_, 'm>, opcode: &str) -> Result<&'m HloInstructionProto, String> {
    let start = site.operands.first().copied().ok_or("it ends nothing")?;
    ensure!(start.opcode == opcode, "it ends '{}', which is no {opcode} but {}", start.name, start.opcode);
    Ok(start)
}

/// The parts of a tuple, which must be at least as many as these.
pub(super) fn parts<'m>(shape: &'m ShapeProto, least: usize, what: &str) -> Result<&'m [ShapeProto], String> {
    ensure!(
        shape::is_tuple(shape) && shape.tuple_shapes.len() >= least,
        "its shape is {}, and it must be a tuple of {what}",
        text(shape)
    );
    Ok(&shape.tuple_shapes)
}

pub(super) fn all_reduce_done(site: &Site) -> Check {
    let start = start(site, "all-reduce-start")?;
    expect_same("it", site.shape(), &start.shape)
}

/// Of `all-gather-start` and `collective-permute-start`: the second part.
pub(super) fn collective_done(site: &Site, started_by: &str) -> Check {
    let start = start(site, started_by)?;
    let parts = &start.shape.tuple_shapes;
    ensure!(parts.len() >= 2, "what it ends has the shape {}", text(&start.shape));
    expect_same("it", site.shape(), &parts[1])
}

pub(super) fn copy_start(site: &Site) -> Check {
    let operand = site.operand(0);
    let parts = parts(site.shape(), 3, "the copy, its source and u32[]")?;
    ensure!(parts.len() == 3, "its shape is {}, and it must have 3 parts", text(site.shape()));
    expect_same("the copy", &parts[0], operand)?;
    expect_same("the source", &parts[1], operand)?;
    expect_array("its context", &parts[2], DType::U32, &[])
}

pub(super) fn copy_done(site: &Site) -> Check {
    let start = start(site, "copy-start")?;
    expect_same("it", site.shape(), &start.shape.tuple_shapes[0])
}

pub(super) fn send(site: &Site) -> Check {
    let parts = channel(site)?;
    expect_token("operand 1", site.operand(1))?;
    expect_same("what is sent", &parts[0], site.operand(0))
}

pub(super) fn recv(site: &Site) -> Check {
    channel(site)?;
    expect_token("operand 0", site.operand(0))
}

/// `(data, u32[], token[])`.
fn channel<'m>(site: &Site<'_, 'm>) -> Result<&'m [ShapeProto], String> {
    let parts = parts(site.shape(), 3, "several parts: the data, u32[] and token[]")?;
    ensure!(parts.len() == 3, "its shape is {}, and it must have 3 parts", text(site.shape()));
    expect_array("its context", &parts[1], DType::U32, &[])?;
    expect_token("its last part", &parts[2])?;
    Ok(parts)
}

pub(super) fn send_done(site: &Site) -> Check {
    same_channel(site, start(site, "send")?)?;
    expect_token("it", site.shape())
}

pub(super) fn recv_done(site: &Site) -> Check {
    let start = start(site, "recv")?;
    same_channel(site, start)?;
    let expected = [start.shape.tuple_shapes[0].clone(), shape::token()];
    site.expect_tuple(&expected)
}

fn same_channel(site: &Site, start: &HloInstructionProto) -> Check {
    let (done, start) = (site.instruction, (start.channel_id, start.details().is_host_transfer));
    ensure!(done.channel_id == start.0, "its channel_id is {}, and it ends one of {}", done.channel_id, start.0);
    ensure!(done.details().is_host_transfer == start.1, "it and what it ends disagree on is_host_transfer");
    Ok(())
}

pub(super) fn infeed(site: &Site) -> Check {
    expect_token("operand 0", site.operand(0))?;
    let parts = parts(site.shape(), 2, "the data and token[]")?;
    ensure!(parts.len() == 2, "its shape is {}, and it must have 2 parts", text(site.shape()));
    expect_token("its last part", &parts[1])
}

pub(super) fn outfeed(site: &Site) -> Check {
    expect_token("operand 1", site.operand(1))?;
    let outfeed = &site.instruction.details().outfeed_shape;
    ensure!(outfeed.is_set(), "it has no outfeed_shape");
    super::structure::check_shape(outfeed)?;
    expect_same("outfeed_shape", outfeed, site.operand(0))?;
    expect_token("it", site.shape())
}

/// It waits for values of any kind.
pub(super) fn after_all(site: &Site) -> Check {
    expect_token("it", site.shape())
}

pub(super) fn add_dependency(site: &Site) -> Check {
    expect_token("operand 1", site.operand(1))?;
    expect_same("it", site.shape(), site.operand(0))
}
