//! Collectives: who takes part, and what that makes of the shapes.

use std::collections::HashMap;

use super::dims::{expect_dim, expect_same, same_dims, text};
use super::reduction::{Reducer, expect_reducer};
use super::transfers::parts;
use super::{Check, Site, ensure, sharding};
use crate::hlo::groups::{self, GroupMode};
use crate::hlo::shape;
use crate::proto::__buffa::oneof::hlo_instruction_details::ReplicaGroupList;
use crate::proto::ShapeProto;

pub(super) fn check(site: &Site, replicas: i64, partitions: i64) -> Check {
    let instruction = site.instruction;
    let opcode = instruction.opcode.as_str();
    ensure!(!site.operands.is_empty(), "it has no operands");
    if opcode.starts_with("collective-permute") {
        return permute(site, replicas, partitions);
    }
    if let Some(ReplicaGroupList::MeshAxesReplicaGroupList(list)) = &instruction.details().replica_group_list {
        sharding::check_mesh(&list.mesh)?;
        sharding::check_axes(&list.axes, &list.mesh, &mut Vec::new())?;
    }
    let everyone = !opcode.starts_with("collective-broadcast");
    let groups = groups::device_groups(instruction, replicas, partitions, everyone).map_err(|error| {
        let message = error.to_string();
        message.strip_prefix(&format!("{}: ", instruction.name)).map_or(message.clone(), str::to_owned)
    })?;
    let size = groups.first().map_or(0, Vec::len);
    let sizes_matter = !matches!(opcode, "all-reduce" | "all-reduce-start");
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
        "all-reduce" | "all-reduce-start" => {
            each_result(site, site.shape(), Ok)?;
            reducers(site)
        }
        "collective-broadcast" if site.instruction.details().has_dynamic_root => dynamic_broadcast(site),
        "collective-broadcast" => each_result(site, site.shape(), Ok),
        "all-gather" => gather(site, site.shape(), size),
        "all-gather-start" => {
            let parts = parts(site.shape(), 2, "the operands and the results")?;
            each_result(site, &parts[0], Ok)?;
            gather(site, &parts[1], size)
        }
        "reduce-scatter" => {
            scaled(site, site.shape(), dim, |found| (found % size == 0).then_some(found / size))?;
            reducers(site)
        }
        "all-to-all" => match dim {
            Some(_) => {
                ensure!(site.operands.len() == 1, "it splits a dimension of {} operands", site.operands.len());
                let dynamic = site.operand(0).is_dynamic_dimension.contains(&true);
                ensure!(!dynamic, "{} has dynamic dimensions, which it cannot split", text(site.operand(0)));
                scaled(site, site.shape(), dim, |found| (found % size == 0).then_some(found))
            }
            None => tuple_all_to_all(site, size),
        },
        "ragged-all-to-all" => ragged_all_to_all(site),
        _ => Ok(()),
    }
}

/// The computation of all-reduce and its kin takes two scalars of any type: it is the operator that counts.
fn reducers(site: &Site) -> Check {
    let Some(called) = site.called.first() else { return Ok(()) };
    let accumulator = called.parameters.first().and_then(|parameter| shape::dtype(&parameter.shape));
    let Some(accumulator) = accumulator else {
        return Err(format!("'{}' must take two scalars", called.computation.name));
    };
    expect_reducer(site, 0, &[Reducer { accumulator, input: accumulator }])
}

fn gather(site: &Site, result: &ShapeProto, size: i64) -> Check {
    scaled(site, result, site.instruction.dimensions.first().copied(), |found| found.checked_mul(size))
}

/// For each operand a result of the dimensions that `expected` makes of the operand's.
fn each_result(site: &Site, result: &ShapeProto, expected: impl Fn(Vec<i64>) -> Result<Vec<i64>, String>) -> Check {
    let count = site.operands.len();
    let results = match &result.tuple_shapes[..] {
        results if shape::is_tuple(result) && (count != 1 || results.len() == 1) => results,
        _ => std::slice::from_ref(result),
    };
    ensure!(results.len() == count, "it has {} results for {count} operands", results.len());
    for (index, result) in results.iter().enumerate() {
        let operand = site.array(index)?;
        let dims = expected(operand.dimensions.clone())?;
        ensure!(
            result.element_type == operand.element_type && same_dims(&result.dimensions, &dims),
            "it makes {} of {}, and the result's dimensions must be [{}]",
            text(result),
            text(operand),
            shape::join(&dims)
        );
    }
    Ok(())
}

/// Results whose dimension `dim` is what `scale` makes of the operand's.
fn scaled(site: &Site, result: &ShapeProto, dim: Option<i64>, scale: impl Fn(i64) -> Option<i64>) -> Check {
    let dim = dim.ok_or("it names no dimension")?;
    each_result(site, result, |mut dims| {
        let index = expect_dim("dimension", dim, dims.len())?;
        let size = dims[index];
        if size != shape::UNBOUNDED {
            dims[index] =
                scale(size).ok_or_else(|| format!("dimension {dim} of size {size} cannot be split over its groups"))?;
        }
        Ok(dims)
    })
}

fn tuple_all_to_all(site: &Site, size: i64) -> Check {
    let count = site.operands.len();
    ensure!(count as i64 == size, "it has {count} operands for groups of {size} devices, one for each is needed");
    for operand in &site.operands {
        expect_same(&format!("operand '{}'", operand.name), &operand.shape, site.operand(0))?;
    }
    ensure!(shape::is_tuple(site.shape()), "its shape is {}, and it must be a tuple", text(site.shape()));
    each_result(site, site.shape(), Ok)
}

/// Data, where it goes, and four vectors of offsets and sizes.
fn ragged_all_to_all(site: &Site) -> Check {
    const OPERANDS: usize = 6;
    let count = site.operands.len();
    ensure!(count == OPERANDS, "it has {count} operands instead of {OPERANDS}");
    let (input, output, offsets) = (site.array(0)?, site.array(1)?, site.array(2)?);
    site.expect_type("operand 1", output, input)?;
    super::elementwise::expect_integers("an offset", offsets)?;
    let rank = offsets.dimensions.len();
    ensure!((1..=2).contains(&rank), "operand 2 is {}, and it must have one dimension or two", text(offsets));
    for index in 3..OPERANDS {
        expect_same(&format!("operand {index}"), site.array(index)?, offsets)?;
    }
    expect_same("it", site.shape(), output)
}

/// The last operand says who sends each of the others.
fn dynamic_broadcast(site: &Site) -> Check {
    let Some((roots, data)) = site.operands.split_last().filter(|(_, data)| !data.is_empty()) else {
        return Err("it needs operands and their roots".to_owned());
    };
    let is_list = shape::dtype(&roots.shape).is_some() && roots.shape.dimensions == [data.len() as i64];
    ensure!(is_list, "its roots are {}, and there must be one for each of {} operands", text(&roots.shape), data.len());
    match data {
        [operand] => expect_same("it", site.shape(), &operand.shape),
        data => site.expect_tuple(data.iter().map(|operand| &**operand.shape)),
    }
}

fn permute(site: &Site, replicas: i64, partitions: i64) -> Check {
    let mode = groups::group_mode(site.instruction).map_err(|error| error.to_string())?;
    let (what, count) = match mode {
        GroupMode::CrossPartition => ("partition", partitions),
        _ => ("replica", replicas),
    };
    // In the form that updates slices in place, the pairs of all slices stand in one list.
    let in_place = !site.instruction.details().dynamic_slice_sizes.is_empty();
    let most = if in_place { slices(site)? } else { 1 };
    let pairs = &site.instruction.details().source_target_pairs;
    for (end, ids) in [
        ("source", pairs.iter().map(|pair| pair.source).collect::<Vec<_>>()),
        ("target", pairs.iter().map(|pair| pair.target).collect()),
    ] {
        let mut seen: HashMap<i64, usize> = HashMap::with_capacity(ids.len());
        for id in ids {
            ensure!(
                (0..count).contains(&id),
                "{end} {id} is no {what}: the program runs as {replicas} replica(s) × {partitions} partition(s)"
            );
            let times = seen.entry(id).or_default();
            *times += 1;
            ensure!(*times <= most, "{what} {id} stands there as {end} twice");
        }
    }
    let start = site.instruction.opcode == "collective-permute-start";
    let parts = if start { parts(site.shape(), 2, "the operands and the results")? } else { &[] };
    match (in_place, start) {
        (false, false) => each_result(site, site.shape(), Ok),
        (false, true) => {
            each_result(site, &parts[0], Ok)?;
            each_result(site, &parts[1], Ok)
        }
        (true, false) => expect_same("it", site.shape(), site.operand(1)),
        (true, true) => expect_same("its second part", &parts[1], site.operand(1)),
    }
}

/// How many slices a permute in place moves for each device: it takes what it sends from and into, and the places of the
/// slices in both.
fn slices(site: &Site) -> Result<usize, String> {
    let count = site.operands.len();
    ensure!(count == 4, "it moves slices in place and has {count} operands instead of 4");
    let mut slices = 0;
    let mut sizes = 0;
    for (data, places) in [(0, 2), (1, 3)] {
        let (data, places) = (site.operand(data), site.operand(places));
        let pairs: Vec<(&ShapeProto, &ShapeProto)> = if shape::is_tuple(data) {
            let (buffers, places) = (&data.tuple_shapes, &places.tuple_shapes);
            ensure!(buffers.len() == places.len(), "it has {} buffers and places in {}", buffers.len(), places.len());
            buffers.iter().zip(places).collect()
        } else {
            vec![(data, places)]
        };
        (slices, sizes) = (0, 0);
        for (buffer, places) in pairs {
            let rank = buffer.dimensions.len();
            ensure!(shape::dtype(buffer).is_some(), "it moves slices of {}, which is no array", text(buffer));
            let nested = !places.tuple_shapes.is_empty() && places.tuple_shapes.iter().all(shape::is_tuple);
            let lists = if nested { &places.tuple_shapes[..] } else { std::slice::from_ref(places) };
            let fits = |list: &ShapeProto| {
                shape::is_tuple(list)
                    && list.tuple_shapes.len() == rank
                    && list.tuple_shapes.iter().all(|index| shape::dtype(index).is_some())
            };
            ensure!(lists.iter().all(fits), "the places {} must have {rank} indices each", text(places));
            // XLA counts the parts of the first list of places, whatever they are.
            slices = slices.max(places.tuple_shapes.len());
            sizes += lists.len() * rank;
        }
    }
    let given = site.instruction.details().dynamic_slice_sizes.len();
    ensure!(given >= sizes, "slice_sizes has {given} sizes instead of {sizes}");
    Ok(slices.max(1))
}
