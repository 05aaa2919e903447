//! Which rules hold for which opcode.

use super::dims::{expect_same, text};
use super::{
    Check, Site, algebra, calls, collectives, contraction, elementwise, ensure, gather, movement, reduction, sharding,
    structure, transfers,
};
use crate::dtype::DType;
use crate::hlo::opcode::Rule;
use crate::hlo::shape::is_tuple;

/// Checks an instruction whose references have been resolved.
pub(super) fn check(site: &Site, replicas: i64, partitions: i64) -> Check {
    structure::check_instruction(site)?;
    own_rules(site, replicas, partitions)?;
    check_uses(site)?;
    if let Some(sharding) = site.instruction.sharding.as_option() {
        sharding::check(sharding, site.shape(), partitions)?;
    }
    Ok(())
}

/// The control dependencies that XLA's first passes cannot keep, and end the process over: what they replace must not be
/// a predecessor or have one. Scheduled modules are past them.
pub(super) fn check_order(site: &Site) -> Check {
    for before in &site.control_predecessors {
        let replaced = matches!(before.opcode.as_str(), "bitcast-convert" | "gather" | "scatter");
        ensure!(!replaced, "'{}', a {}, cannot be its control predecessor", before.name, before.opcode);
        let opcode = site.instruction.opcode.as_str();
        let is_replaced = opcode == "gather" || opcode == "bitcast-convert" && changes_width(site);
        ensure!(!is_replaced, "a {opcode} cannot have a control predecessor, '{}'", before.name);
    }
    if !matches!(site.instruction.opcode.as_str(), "call" | "conditional") {
        return Ok(());
    }
    match site.called.iter().find_map(|called| Some((called, called.control_parameter?))) {
        Some((called, parameter)) => Err(format!(
            "'{}' has the parameter '{}' as a control predecessor, so it cannot be inlined",
            called.computation.name, parameter.name
        )),
        None => Ok(()),
    }
}

/// Bitcasts between element types of different sizes are written in terms of others.
fn changes_width(site: &Site) -> bool {
    site.operands.first().is_some_and(|operand| operand.shape.dimensions.len() != site.shape().dimensions.len())
}

/// The parts of some results must be taken one by one: XLA's rewrites of them know no other use.
fn check_uses(site: &Site) -> Check {
    if site.instruction.opcode == "get-tuple-element" {
        return Ok(());
    }
    let whole = site.operands.iter().find(|operand| operand.opcode == "topk");
    match whole {
        Some(operand) => {
            Err(format!("it uses the whole of '{}', a topk: take its parts by get-tuple-element", operand.name))
        }
        None => Ok(()),
    }
}

fn own_rules(site: &Site, replicas: i64, partitions: i64) -> Check {
    let Some(opcode) = site.opcode else { return Ok(()) };
    match opcode.rule {
        rule @ (Rule::Elementwise | Rule::RealPart | Rule::IsFinite | Rule::Compare | Rule::Complex) => {
            return elementwise::elementwise(site, rule);
        }
        Rule::Collective => return collectives::check(site, replicas, partitions),
        Rule::BatchNorm => return algebra::batch_norm(site),
        Rule::DeviceId => return site.expect_result(DType::U32, &[]),
        _ => {}
    }
    match opcode.name {
        "add-dependency" => transfers::add_dependency(site),
        "after-all" => transfers::after_all(site),
        "all-gather-done" => transfers::collective_done(site, "all-gather-start"),
        "all-reduce-done" => transfers::all_reduce_done(site),
        "async-done" => transfers::async_done(site),
        "async-start" | "async-update" => transfers::async_step(site),
        "batch-norm-inference" => algebra::batch_norm(site),
        "bitcast" => movement::bitcast(site),
        "bitcast-convert" => elementwise::bitcast_convert(site),
        "broadcast" => movement::broadcast(site),
        "call" => calls::call(site),
        "cholesky" => algebra::cholesky(site),
        "clamp" => elementwise::clamp(site),
        "collective-permute" | "collective-permute-start" => collectives::check(site, replicas, partitions),
        "collective-permute-done" => transfers::collective_done(site, "collective-permute-start"),
        "concatenate" => movement::concatenate(site),
        "conditional" => calls::conditional(site),
        "convert" => elementwise::convert(site),
        "convolution" => contraction::convolution(site),
        "copy" | "opt-barrier" => expect_same("it", site.shape(), site.operand(0)),
        "copy-done" => transfers::copy_done(site),
        "copy-start" => transfers::copy_start(site),
        "custom-call" => calls::custom_call(site),
        "domain" => domain(site, partitions),
        "dot" => contraction::dot(site),
        "dynamic-reshape" => movement::dynamic_reshape(site),
        "dynamic-slice" => movement::dynamic_slice(site),
        "dynamic-update-slice" => movement::dynamic_update_slice(site),
        "fft" => algebra::fft(site),
        "fusion" => calls::fusion(site),
        "gather" => gather::gather(site),
        "get-dimension-size" | "set-dimension-size" => movement::dimension_size(site),
        "get-tuple-element" => tuple_element(site),
        "infeed" => transfers::infeed(site),
        "iota" => movement::iota(site),
        "map" => reduction::map(site),
        "outfeed" => transfers::outfeed(site),
        "pad" => movement::pad(site),
        "ragged-dot" => contraction::ragged_dot(site),
        "recv" => transfers::recv(site),
        "recv-done" => transfers::recv_done(site),
        "reduce" => reduction::reduce(site),
        "reduce-precision" => elementwise::reduce_precision(site),
        "reduce-window" => reduction::reduce_window(site),
        "reshape" => movement::reshape(site),
        "reverse" => movement::reverse(site),
        "rng" => algebra::rng(site),
        "rng-bit-generator" => algebra::rng_bit_generator(site),
        "rng-get-and-update-state" => algebra::rng_state(site),
        "scaled-dot" => contraction::scaled_dot(site),
        "scan" => reduction::scan(site),
        "scatter" => gather::scatter(site),
        "select" => elementwise::select(site),
        "select-and-scatter" => reduction::select_and_scatter(site),
        "send" => transfers::send(site),
        "send-done" => transfers::send_done(site),
        "slice" => movement::slice(site),
        "sort" => reduction::sort(site),
        "stochastic-convert" => elementwise::stochastic_convert(site),
        "topk" => reduction::top_k(site),
        "transpose" => movement::transpose(site),
        "triangular-solve" => algebra::triangular_solve(site),
        "tuple" => site.expect_tuple(site.operands.iter().map(|operand| &**operand.shape)),
        "while" => calls::while_loop(site),
        // Constants and parameters are what they say.
        _ => Ok(()),
    }
}

fn tuple_element(site: &Site) -> Check {
    let tuple = site.operand(0);
    let index = site.instruction.tuple_index;
    let element = usize::try_from(index).ok().and_then(|index| tuple.tuple_shapes.get(index));
    let Some(element) = element.filter(|_| is_tuple(tuple)) else {
        return Err(format!("{} has no element {index}", text(tuple)));
    };
    expect_same("it", site.shape(), element)
}

fn domain(site: &Site, partitions: i64) -> Check {
    for sharding in
        [&site.instruction.details().domain_entry_sharding, &site.instruction.details().domain_exit_sharding]
    {
        if let Some(sharding) = sharding.as_option() {
            sharding::well_formed(sharding, partitions)?;
        }
    }
    ensure!(
        super::dims::compatible(site.shape(), site.operand(0)),
        "it has the shape {}, and it must be {}",
        text(site.shape()),
        text(site.operand(0))
    );
    Ok(())
}
