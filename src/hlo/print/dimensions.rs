//! Attributes that say which dimensions an operation works on.

use super::attributes::lower_case;
use super::{Attributes, Scope, braced};
use crate::hlo::MAX_LABELS;
use crate::proto::sparsity_config::TensorSparsityConfig;
use crate::proto::{ConvolutionDimensionNumbers, ConvolutionKind, HloInstructionProto, Window, WindowDimension};

pub(super) fn window(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if !i.details().window.dimensions.is_empty() {
        out.set("window", format_args!("{{{}}}", window_text(&i.details().window)));
    }
}

fn window_text(window: &Window) -> String {
    let field =
        |value: fn(&WindowDimension) -> String| window.dimensions.iter().map(value).collect::<Vec<_>>().join("x");
    let mut out = format!("size={}", field(|dim| dim.size.to_string()));
    let mut add = |name: &str, is_set: fn(&WindowDimension) -> bool, value: fn(&WindowDimension) -> String| {
        if window.dimensions.iter().any(is_set) {
            out += &format!(" {name}={}", field(value));
        }
    };
    add("stride", |dim| dim.stride != 1, |dim| dim.stride.to_string());
    add(
        "pad",
        |dim| dim.padding_low != 0 || dim.padding_high != 0,
        |dim| format!("{}_{}", dim.padding_low, dim.padding_high),
    );
    add("lhs_dilate", |dim| dim.base_dilation != 1, |dim| dim.base_dilation.to_string());
    add("rhs_dilate", |dim| dim.window_dilation != 1, |dim| dim.window_dilation.to_string());
    add("rhs_reversal", |dim| dim.window_reversal, |dim| u8::from(dim.window_reversal).to_string());
    out
}

pub(super) fn convolution(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    if let Some(numbers) = i.details().convolution_dimension_numbers.as_option() {
        out.set("dim_labels", dim_labels(numbers));
    }
    for (name, count) in
        [("feature_group_count", i.details().feature_group_count), ("batch_group_count", i.details().batch_group_count)]
    {
        if count > 1 {
            out.set(name, count);
        }
    }
    if i.details().conv_kind != ConvolutionKind::CONVOLUTION_KIND_UNSET {
        out.set("convolution_kind", lower_case(&i.details().conv_kind, "CONVOLUTION_KIND_"));
    }
}

/// `b01f_01io->b01f`: for each dimension of input, kernel and output what it is; `?` where nothing says so.
fn dim_labels(numbers: &ConvolutionDimensionNumbers) -> String {
    let labels = |named: [(i64, char); 2], spatial: &[i64]| {
        let spatial = spatial.iter().enumerate().map(|(number, &dim)| (dim, number.to_string()));
        let all: Vec<(i64, String)> =
            named.iter().map(|&(dim, label)| (dim, label.to_string())).chain(spatial).collect();
        let rank = all.iter().map(|&(dim, _)| dim.saturating_add(1)).max().unwrap_or(0).clamp(0, MAX_LABELS as i64);
        let label = |dim| all.iter().rev().find(|(at, _)| *at == dim).map_or("?", |(_, label)| label);
        (0..rank).map(label).collect::<String>()
    };
    let input = labels(
        [(numbers.input_batch_dimension, 'b'), (numbers.input_feature_dimension, 'f')],
        &numbers.input_spatial_dimensions,
    );
    let kernel = labels(
        [(numbers.kernel_input_feature_dimension, 'i'), (numbers.kernel_output_feature_dimension, 'o')],
        &numbers.kernel_spatial_dimensions,
    );
    let output = labels(
        [(numbers.output_batch_dimension, 'b'), (numbers.output_feature_dimension, 'f')],
        &numbers.output_spatial_dimensions,
    );
    format!("{input}_{kernel}->{output}")
}

pub(super) fn dot(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let ragged = &i.details().ragged_dot_dimension_numbers;
    let numbers = if ragged.is_set() { &*ragged.dot_dimension_numbers } else { &*i.dot_dimension_numbers };
    let lists = [
        ("lhs_batch_dims", &numbers.lhs_batch_dimensions),
        ("lhs_contracting_dims", &numbers.lhs_contracting_dimensions),
        ("rhs_batch_dims", &numbers.rhs_batch_dimensions),
        ("rhs_contracting_dims", &numbers.rhs_contracting_dimensions),
        ("lhs_ragged_dims", &ragged.lhs_ragged_dimensions),
        ("rhs_group_dims", &ragged.rhs_group_dimensions),
    ];
    for (name, dims) in lists {
        if !dims.is_empty() {
            out.set(name, braced(dims));
        }
    }
}

pub(super) fn gather(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let numbers = &i.details().gather_dimension_numbers;
    out.set("offset_dims", braced(&numbers.offset_dims));
    out.set("collapsed_slice_dims", braced(&numbers.collapsed_slice_dims));
    out.set("start_index_map", braced(&numbers.start_index_map));
    for (name, dims) in [
        ("operand_batching_dims", &numbers.operand_batching_dims),
        ("start_indices_batching_dims", &numbers.start_indices_batching_dims),
    ] {
        if !dims.is_empty() {
            out.set(name, braced(dims));
        }
    }
    out.set("index_vector_dim", numbers.index_vector_dim);
    out.set("slice_sizes", braced(&i.details().gather_slice_sizes));
    out.set_if("indices_are_sorted", i.details().indices_are_sorted);
}

pub(super) fn scatter(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let numbers = &i.details().scatter_dimension_numbers;
    out.set("update_window_dims", braced(&numbers.update_window_dims));
    out.set("inserted_window_dims", braced(&numbers.inserted_window_dims));
    out.set("scatter_dims_to_operand_dims", braced(&numbers.scatter_dims_to_operand_dims));
    for (name, dims) in [
        ("input_batching_dims", &numbers.input_batching_dims),
        ("scatter_indices_batching_dims", &numbers.scatter_indices_batching_dims),
    ] {
        if !dims.is_empty() {
            out.set(name, braced(dims));
        }
    }
    out.set("index_vector_dim", numbers.index_vector_dim);
    out.set_if("indices_are_sorted", i.details().indices_are_sorted);
    out.set_if("unique_indices", i.details().unique_indices);
}

pub(super) fn padding(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let dims = &i.details().padding_config.dimensions;
    let interior = dims.iter().any(|dim| dim.interior_padding != 0);
    let dims = dims.iter().map(|dim| {
        let edges = format!("{}_{}", dim.edge_padding_low, dim.edge_padding_high);
        if interior { format!("{edges}_{}", dim.interior_padding) } else { edges }
    });
    out.set("padding", dims.collect::<Vec<_>>().join("x"));
}

pub(super) fn slice(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let strided = i.details().slice_dimensions.iter().any(|dim| dim.stride != 1);
    let dims = i.details().slice_dimensions.iter().map(|dim| match strided {
        true => format!("[{}:{}:{}]", dim.start, dim.limit, dim.stride),
        false => format!("[{}:{}]", dim.start, dim.limit),
    });
    out.set("slice", format_args!("{{{}}}", dims.collect::<Vec<_>>().join(", ")));
}

pub(super) fn sparsity(_: &Scope, i: &HloInstructionProto, out: &mut Attributes) {
    let text = |config: &TensorSparsityConfig| {
        let (sparsity, block) = (config.num_non_zero, config.block_size);
        let idx = if config.idx == 0 { String::new() } else { format!(" idx={}", config.idx) };
        format!("{{sparsity={sparsity}x{block} dimension={} stride={}{idx}}}", config.dimension, config.stride)
    };
    let config = &i.details().sparsity_config;
    let sides = [("lhs", config.lhs.as_option()), ("rhs", config.rhs.as_option())];
    let sides = sides.iter().filter_map(|(name, side)| Some(format!("{name}={}", text((*side)?))));
    let sides: Vec<String> = sides.collect();
    if !sides.is_empty() {
        out.set("sparsity_config", format_args!("{{{}}}", sides.join(" ")));
    }
}
