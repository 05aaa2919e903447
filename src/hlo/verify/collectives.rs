//! Collectives: who takes part, and what that makes of the shapes.

use super::dims::{expect_dim, text};
use super::{Check, Site, ensure};
use crate::hlo::groups::{self, GroupMode};
use crate::hlo::shape;
use crate::proto::ShapeProto;

pub(super) fn check(site: &Site, replicas: i64, partitions: i64) -> Check {
    let instruction = site.instruction;
    if !groups::is_collective(instruction) {
        return Ok(());
    }
    if instruction.opcode.starts_with("collective-permute") {
        return permute(site, replicas, partitions);
    }
    let everyone = !instruction.opcode.starts_with("collective-broadcast");
    let groups = groups::device_groups(instruction, replicas, partitions, everyone).map_err(|error| {
        let message = error.to_string();
        message.strip_prefix(&format!("{}: ", instruction.name)).map_or(message.clone(), str::to_owned)
    })?;
    let size = groups.first().map_or(0, Vec::len);
    let sizes_matter = !matches!(instruction.opcode.as_str(), "all-reduce" | "all-reduce-start");
    ensure!(
        !sizes_matter || groups.iter().all(|group| group.len() == size),
        "its groups have different sizes, which only all-reduce can have"
    );
    shapes(site, size as i64)
}

/// The shapes of a collective in groups of this size.
fn shapes(site: &Site, size: i64) -> Check {
    let dim = site.instruction.dimensions.first().copied();
    match site.instruction.opcode.as_str() {
        "all-reduce" | "collective-broadcast" => each_result(site, Ok),
        "all-gather" => scaled(site, dim, |found| found.checked_mul(size)),
        "reduce-scatter" => scaled(site, dim, |found| (found % size == 0).then_some(found / size)),
        "all-to-all" => match dim {
            Some(_) => scaled(site, dim, |found| (found % size == 0).then_some(found)),
            None => tuple_all_to_all(site, size),
        },
        _ => Ok(()),
    }
}

/// For each operand a result of the dimensions that `expected` makes of the operand's.
fn each_result(site: &Site, expected: impl Fn(Vec<i64>) -> Result<Vec<i64>, String>) -> Check {
    let results = match site.operands.len() {
        1 if !shape::is_tuple(site.shape()) => vec![site.shape()],
        _ => site.shape().tuple_shapes.iter().collect(),
    };
    let count = site.operands.len();
    ensure!(results.len() == count, "it has {} results for {count} operands", results.len());
    for (operand, result) in site.operands.iter().zip(results) {
        let operand: &ShapeProto = &operand.shape;
        if [operand, result].iter().any(|shape| shape.dimensions.contains(&shape::UNBOUNDED)) {
            continue;
        }
        let dims = expected(operand.dimensions.clone())?;
        ensure!(
            result.element_type == operand.element_type && result.dimensions == dims,
            "it makes {} of {}, and the result's dimensions must be [{}]",
            text(result),
            text(operand),
            shape::join(&dims)
        );
    }
    Ok(())
}

/// Results whose dimension `dim` is what `scale` makes of the operand's.
fn scaled(site: &Site, dim: Option<i64>, scale: impl Fn(i64) -> Option<i64>) -> Check {
    let dim = dim.ok_or("it names no dimension")?;
    each_result(site, |mut dims| {
        let index = expect_dim("dimension", dim, dims.len())?;
        let size = dims[index];
        dims[index] =
            scale(size).ok_or_else(|| format!("dimension {dim} of size {size} cannot be split over its groups"))?;
        Ok(dims)
    })
}

fn tuple_all_to_all(site: &Site, size: i64) -> Check {
    let count = site.operands.len();
    ensure!(count as i64 == size, "it has {count} operands for groups of {size} devices, one for each is needed");
    each_result(site, Ok)
}

fn permute(site: &Site, replicas: i64, partitions: i64) -> Check {
    let mode = groups::group_mode(site.instruction).map_err(|error| error.to_string())?;
    let (what, count) = match mode {
        GroupMode::CrossPartition => ("partition", partitions),
        _ => ("replica", replicas),
    };
    let pairs = &site.instruction.source_target_pairs;
    for (end, ids) in [
        ("source", pairs.iter().map(|pair| pair.source).collect::<Vec<_>>()),
        ("target", pairs.iter().map(|pair| pair.target).collect()),
    ] {
        let mut seen = std::collections::HashSet::with_capacity(ids.len());
        for id in ids {
            ensure!(
                (0..count).contains(&id),
                "{end} {id} is no {what}: the program runs as {replicas} replica(s) × {partitions} partition(s)"
            );
            // In the form that updates slices in place, the pairs of all slices stand in one list.
            let in_place = !site.instruction.dynamic_slice_sizes.is_empty();
            ensure!(seen.insert(id) || in_place, "{what} {id} stands there as {end} twice");
        }
    }
    Ok(())
}
