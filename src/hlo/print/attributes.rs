//! The attributes of instructions: which opcode has which, and how each is spelled.

use buffa::{EnumValue, Enumeration};

use super::dimensions::{convolution, dot, gather, padding, scatter, slice, sparsity, window};
use super::metadata::{frontend_attributes, metadata, original_value, payload, string_or_json};
use super::sharding::{replica_groups, sharding};
use super::{Attributes, MAIN_THREAD, Scope, braced, literal_or_dots, quoted};
use crate::hlo::shape;
use crate::proto::hlo_instruction_details::OptionalCrossProgramPrefetchIndex;
use crate::proto::result_accuracy::{Mode, Specs};
use crate::proto::{
    CustomCallApiVersion, CustomCallSchedule, HloInstructionProto, LiteralProto, OpSharding, PaddingType,
    PrimitiveType, TriState,
};

/// Appends one or several attributes if the instruction has them.
pub(super) type Attribute = fn(&Scope, &HloInstructionProto, &mut Attributes);

/// The attributes that only this opcode has.
pub(super) fn attributes_of(opcode: &str) -> &'static [Attribute] {
    match opcode {
        "all-gather" | "all-gather-start" => &[collective, dimensions],
        "all-reduce" | "all-reduce-start" => &[collective, to_apply],
        "all-to-all" | "ragged-all-to-all" => &[collective, dimensions_if_any],
        "async-start" => &[calls, async_thread, output_aliasing],
        "async-update" => &[output_aliasing],
        "async-done" => &[],
        "batch-norm-grad" | "batch-norm-inference" | "batch-norm-training" => &[batch_norm],
        "broadcast" | "concatenate" | "get-dimension-size" | "reverse" | "set-dimension-size" | "transpose" => {
            &[dimensions]
        }
        "call" => &[to_apply, is_composite],
        "cholesky" => &[cholesky],
        "collective-broadcast" => &[collective, dynamic_root],
        "collective-permute" | "collective-permute-start" => &[channel, permute],
        "compare" => &[comparison],
        "conditional" => &[branches],
        "convolution" => &[window, convolution, precision, sparsity],
        "copy-start" => &[prefetch],
        "custom-call" => &[window, convolution, precision, custom_call, output_aliasing],
        "domain" => &[domain],
        "dot" | "ragged-dot" | "scaled-dot" => &[dot, precision],
        "dynamic-slice" => &[dynamic_slice],
        "fft" => &[fft],
        "fusion" => &[fusion_kind, output_aliasing, calls],
        "gather" => &[gather],
        "get-tuple-element" => &[tuple_index],
        "infeed" => &[infeed],
        "iota" => &[iota],
        "map" | "reduce" => &[dimensions, to_apply],
        "outfeed" => &[outfeed],
        "pad" => &[padding],
        "parameter" => &[replication],
        "recv" | "recv-done" | "send" | "send-done" => &[channel, host_transfer],
        "reduce-precision" => &[reduce_precision],
        "reduce-scatter" => &[collective, dimensions, to_apply],
        "reduce-window" => &[window, to_apply],
        "reshape" => &[inferred_dimension],
        "rng" => &[distribution],
        "rng-bit-generator" => &[rng_algorithm],
        "rng-get-and-update-state" => &[delta],
        "scan" => &[dimensions, scan, to_apply],
        "scatter" => &[scatter, to_apply],
        "select-and-scatter" => &[window, select_and_scatter],
        "slice" => &[slice],
        "sort" => &[dimensions, stable, to_apply],
        "topk" => &[topk],
        "triangular-solve" => &[triangular_solve],
        "while" => &[loop_computations],
        _ => &[calls],
    }
}

/// The attributes that every opcode has, in the order in which they are printed after its own.
pub(super) const COMMON: &[Attribute] = &[
    |scope, i, out| {
        if let Some(value) = i.sharding.as_option() {
            out.set("sharding", sharding(value, scope.module));
        }
    },
    |_, i, out| frontend_attributes(&i.frontend_attributes, out),
    |scope, i, out| {
        if !i.control_predecessor_ids.is_empty() {
            out.set("control-predecessors", format_args!("{{{}}}", scope.names_of(&i.control_predecessor_ids)));
        }
    },
    statistics,
    result_accuracy,
    |_, i, out| {
        if let Some(value) = i.details().original_value.as_option() {
            out.set("origin", original_value(value, &i.shape));
        }
    },
    |scope, i, out| {
        let text = metadata(&i.metadata, scope.module);
        if !text.is_empty() {
            out.set("metadata", format_args!("{{{text}}}"));
        }
    },
    |scope, i, out| {
        let config = payload(&i.details().backend_config_payload, scope.module).unwrap_or(&i.details().backend_config);
        if !config.is_empty() {
            out.set("backend_config", string_or_json(config));
        }
    },
];

fn enum_name<E: Enumeration>(value: &EnumValue<E>) -> &'static str {
    value.as_known().map_or("UNKNOWN", |value| value.proto_name())
}

pub(super) fn lower_case<E: Enumeration>(value: &EnumValue<E>, prefix: &str) -> String {
    let name = enum_name(value);
    name.strip_prefix(prefix).unwrap_or(name).to_ascii_lowercase()
}

fn dimensions(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("dimensions", braced(&i.dimensions));
}

fn dimensions_if_any(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if !i.dimensions.is_empty() {
        out.set("dimensions", braced(&i.dimensions));
    }
}

fn iota(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("iota_dimension", i.dimensions.first().unwrap_or(&0));
}

fn inferred_dimension(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if let Some(dimension) = i.dimensions.first() {
        out.set("inferred_dimension", dimension);
    }
}

/// The computation in this place of the instruction's list.
fn computation(scope: &Scope, i: &HloInstructionProto, place: usize, name: &str, out: &mut Attributes) {
    if let Some(&id) = i.called_computation_ids.get(place) {
        out.set(name, scope.names.computation(id));
    }
}

fn computations(scope: &Scope, i: &HloInstructionProto) -> String {
    let names: Vec<String> = i.called_computation_ids.iter().map(|&id| scope.names.computation(id)).collect();
    names.join(", ")
}

fn to_apply(scope: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    computation(scope, i, 0, "to_apply", out);
}

fn calls(scope: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    computation(scope, i, 0, "calls", out);
}

fn loop_computations(scope: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    computation(scope, i, 1, "condition", out);
    computation(scope, i, 0, "body", out);
}

fn select_and_scatter(scope: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    computation(scope, i, 0, "select", out);
    computation(scope, i, 1, "scatter", out);
}

fn branches(scope: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if scope.operand(i, 0).is_some_and(|predicate| predicate.shape.element_type == PrimitiveType::PRED) {
        computation(scope, i, 0, "true_computation", out);
        computation(scope, i, 1, "false_computation", out);
    } else {
        out.set("branch_computations", format_args!("{{{}}}", computations(scope, i)));
    }
}

fn channel(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if i.channel_id > 0 {
        out.set("channel_id", i.channel_id);
    }
}

fn collective(scope: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    channel(scope, i, out);
    out.set("replica_groups", replica_groups(i));
    out.set_if("constrain_layout", i.details().constrain_layout);
    out.set_if("use_global_device_ids", i.details().use_global_device_ids);
}

fn dynamic_root(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set_if("has_dynamic_root", i.details().has_dynamic_root);
}

fn permute(scope: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let pairs = i.details().source_target_pairs.iter().map(|pair| format!("{{{},{}}}", pair.source, pair.target));
    out.set("source_target_pairs", braced(&pairs.collect::<Vec<_>>()));
    // One list for each slice, each as long as the array's rank.
    let rank = scope.operand(i, 0).map_or(0, |operand| shape::leaves(&operand.shape)[0].dimensions.len());
    if !i.details().dynamic_slice_sizes.is_empty() {
        let lists: Vec<String> = i.details().dynamic_slice_sizes.chunks(rank.max(1)).map(braced).collect();
        out.set("slice_sizes", braced(&lists));
    }
}

fn host_transfer(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set_if("is_host_transfer", i.details().is_host_transfer);
}

fn async_thread(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if !matches!(i.details().async_execution_thread.as_str(), "" | MAIN_THREAD) {
        out.set("async_execution_thread", quoted(i.details().async_execution_thread.as_bytes()));
    }
}

fn output_aliasing(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let entries = i.details().output_operand_aliasing.iter().map(|alias| {
        let operand = braced(&alias.operand_shape_index);
        format!("{}: ({}, {operand})", braced(&alias.output_shape_index), alias.operand_index)
    });
    let entries: Vec<String> = entries.collect();
    if !entries.is_empty() {
        out.set("output_to_operand_aliasing", format_args!("{{{}}}", entries.join(", ")));
    }
}

fn batch_norm(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("epsilon", i.details().epsilon);
    out.set("feature_index", i.details().feature_index);
}

fn is_composite(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set_if("is_composite", i.details().is_composite);
}

fn cholesky(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set_if("lower", i.details().cholesky_options.lower);
}

fn triangular_solve(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let options = &i.details().triangular_solve_options;
    out.set_if("left_side", options.left_side);
    out.set_if("lower", options.lower);
    out.set_if("unit_diagonal", options.unit_diagonal);
    out.set("transpose_a", enum_name(&options.transpose_a));
}

fn comparison(scope: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("direction", &i.details().comparison_direction);
    let dtype = scope.operand(i, 0).and_then(|operand| shape::dtype(&operand.shape));
    let default = dtype.map_or("", |dtype| match dtype.name().as_bytes() {
        [b's', ..] => "SIGNED",
        [b'u', ..] | b"pred" => "UNSIGNED",
        _ => "FLOAT",
    });
    if !i.details().comparison_type.is_empty() && i.details().comparison_type != default {
        out.set("type", &i.details().comparison_type);
    }
    if !i.details().comparison_order.is_empty() {
        out.set("order", &i.details().comparison_order);
    }
}

fn precision(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let config = &i.precision_config;
    if config.operand_precision.iter().any(|precision| precision.to_i32() != 0) {
        let names: Vec<String> = config.operand_precision.iter().map(|value| lower_case(value, "")).collect();
        out.set("operand_precision", braced(&names));
    }
    if config.algorithm.to_i32() != 0 {
        out.set("algorithm", lower_case(&config.algorithm, "ALG_"));
    }
}

fn prefetch(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if let Some(OptionalCrossProgramPrefetchIndex::CrossProgramPrefetchIndex(index)) =
        i.details().optional_cross_program_prefetch_index
    {
        out.set("cross_program_prefetch_index", index);
    }
}

fn custom_call(scope: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if i.details().padding_type != PaddingType::PADDING_INVALID {
        out.set("padding_type", enum_name(&i.details().padding_type));
    }
    out.set("custom_call_target", quoted(i.details().custom_call_target.as_bytes()));
    if i.details().constrain_layout {
        let shapes: Vec<String> = i.details().operand_shapes_with_layout.iter().map(shape::text_with_layout).collect();
        out.set("operand_layout_constraints", format_args!("{{{}}}", shapes.join(", ")));
    }
    out.set_if("custom_call_has_side_effect", i.details().custom_call_has_side_effect);
    if let Some(value) = i.literal.as_option() {
        out.set("literal", literal_with_shape(value));
    }
    if i.details().custom_call_schedule != CustomCallSchedule::SCHEDULE_NONE {
        out.set("schedule", enum_name(&i.details().custom_call_schedule));
    }
    let default = [CustomCallApiVersion::API_VERSION_UNSPECIFIED, CustomCallApiVersion::API_VERSION_ORIGINAL];
    if !default.iter().any(|version| i.details().custom_call_api_version == *version) {
        out.set("api_version", enum_name(&i.details().custom_call_api_version));
    }
    if !i.called_computation_ids.is_empty() {
        out.set("called_computations", format_args!("{{{}}}", computations(scope, i)));
    }
}

/// `s32[2]{0} {1, 2}`. The layout has to stand there, or the parser takes the value for one.
fn literal_with_shape(value: &LiteralProto) -> String {
    if shape::is_tuple(&value.shape) {
        let elements: Vec<String> = value.tuple_literals.iter().map(literal_with_shape).collect();
        return format!("({})", elements.join(", "));
    }
    let mut shape = (*value.shape).clone();
    if shape.layout.is_unset() {
        shape::set_row_major(&mut shape);
    }
    let mut out = shape::text_with_layout(&shape) + " ";
    literal_or_dots(value, &mut out);
    out
}

/// XLA spells the two sides the other way round than it stores them.
fn domain(scope: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let text = |side: &OpSharding| sharding(side, scope.module);
    let (entry, exit) = (text(&i.details().domain_exit_sharding), text(&i.details().domain_entry_sharding));
    out.set("domain", format_args!("{{kind=\"sharding\", entry={entry}, exit={exit}}}"));
}

fn dynamic_slice(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("dynamic_slice_sizes", braced(&i.details().dynamic_slice_sizes));
}

fn fft(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("fft_type", enum_name(&i.details().fft_type));
    out.set("fft_length", braced(&i.details().fft_length));
}

fn fusion_kind(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("kind", &i.details().fusion_kind);
}

fn tuple_index(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("index", i.tuple_index);
}

fn infeed(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if !i.details().infeed_config.is_empty() {
        out.set("infeed_config", quoted(&i.details().infeed_config));
    }
}

fn outfeed(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("outfeed_shape", shape::text_with_layout(&i.details().outfeed_shape));
    if !i.details().outfeed_config.is_empty() {
        out.set("outfeed_config", quoted(&i.details().outfeed_config));
    }
}

fn replication(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if !i.details().parameter_replication.replicated_at_leaf_buffers.is_empty() {
        out.set("parameter_replication", braced(&i.details().parameter_replication.replicated_at_leaf_buffers));
    }
}

fn reduce_precision(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("exponent_bits", i.details().exponent_bits);
    out.set("mantissa_bits", i.details().mantissa_bits);
}

fn distribution(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("distribution", lower_case(&i.details().distribution, ""));
}

fn rng_algorithm(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("algorithm", lower_case(&i.details().rng_algorithm, ""));
}

fn delta(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("delta", i.details().delta);
}

fn scan(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("num_carries", i.details().num_carries);
    out.set_if("is_reverse", i.details().is_reverse);
    if i.details().is_associative != TriState::TRI_STATE_UNSPECIFIED {
        out.set("is_associative", i.details().is_associative == TriState::TRI_STATE_TRUE);
    }
}

fn stable(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set_if("is_stable", i.details().is_stable);
}

fn topk(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    out.set("k", i.details().k);
    out.set("largest", i.details().largest);
    // Parsers of early 2026 refuse `is_stable`; later ones take its absence for true, which is also right for false.
}

fn statistics(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let statistics = &i.details().statistics_viz;
    if !statistics.statistics.is_empty() {
        let values = statistics.statistics.iter().map(|one| format!(",{}={}", one.stat_name, one.stat_val));
        let index = statistics.stat_index_to_visualize;
        out.set("statistics", format_args!("{{visualizing_index={index}{}}}", values.collect::<String>()));
    }
}

fn result_accuracy(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    match &i.details().result_accuracy.specs {
        Some(Specs::Tolerance(tolerance)) => {
            let (atol, rtol, ulps) = (tolerance.atol, tolerance.rtol, tolerance.ulps);
            out.set("result_accuracy", format_args!("{{tolerance={{atol={atol:?},rtol={rtol:?},ulps={ulps}}}}}"));
        }
        Some(Specs::Mode(mode)) if *mode != Mode::DEFAULT => {
            out.set("result_accuracy", format_args!("{{mode={}}}", lower_case(mode, "")));
        }
        _ => {}
    }
}
