//! Floating-point operations, counted as XLA's `HloCostAnalysis` counts them.

use serde::Serialize;

use super::graph::{Graph, Walk};
use crate::hlo::shape;
use crate::proto::{HloInstructionProto, ShapeProto, WindowDimension};

/// Positions of a convolution's window that are looked at one by one; of larger ones the padding is counted too.
const MAX_WINDOW_POSITIONS: i64 = 1 << 20;

/// The work of one execution on each device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Arithmetic operations, a multiply-add counting as two. Data movement and custom calls count as none.
    pub flops: u64,
    /// Functions such as `exponential`, per element.
    pub transcendentals: u64,
    /// Some work stands in loops whose trip count is not known, and is counted for one turn.
    pub has_unknown_loops: bool,
    /// Some work stands in branches, and is counted as if these were taken.
    pub has_branches: bool,
}

/// The work of everything that runs.
pub(super) fn cost(graph: &Graph, walk: &Walk) -> Cost {
    let mut cost = Cost::default();
    for &(at, instruction) in &walk.order {
        let runs = walk.runs[at];
        let (flops, transcendentals) = of_instruction(graph, at, instruction);
        cost.flops = cost.flops.saturating_add(flops.saturating_mul(runs.times));
        cost.transcendentals = cost.transcendentals.saturating_add(transcendentals.saturating_mul(runs.times));
        if flops > 0 || transcendentals > 0 {
            cost.has_unknown_loops |= runs.in_unknown_loop;
            cost.has_branches |= runs.in_branch;
        }
    }
    cost
}

/// Arithmetic operations and transcendental functions of one instruction.
fn of_instruction(graph: &Graph, at: usize, instruction: &HloInstructionProto) -> (u64, u64) {
    let operand = |index: usize| {
        let id = *instruction.operand_ids.get(index)?;
        Some(&**graph.instruction(at, id)?.shape)
    };
    let out = elements(&instruction.shape);
    let input = operand(0).map_or(0, elements);
    // Operations of the computation that combines two elements, at least one.
    let combiner = || {
        let called = instruction.called_computation_ids.first().and_then(|&id| graph.find(id));
        let operations = called.map_or(1, |called| {
            let passive = ["parameter", "constant", "tuple", "get-tuple-element", "convert", "copy"];
            let instructions = &graph.computation(called).instructions;
            instructions.iter().filter(|it| !passive.contains(&it.opcode.as_str())).count()
        });
        (operations as u64).max(1)
    };
    let flops = match instruction.opcode.as_str() {
        "abs"
        | "add"
        | "and"
        | "ceil"
        | "clamp"
        | "clz"
        | "compare"
        | "complex"
        | "divide"
        | "floor"
        | "imag"
        | "is-finite"
        | "maximum"
        | "minimum"
        | "multiply"
        | "negate"
        | "not"
        | "or"
        | "popcnt"
        | "real"
        | "remainder"
        | "round-nearest-afz"
        | "round-nearest-even"
        | "select"
        | "shift-left"
        | "shift-right-arithmetic"
        | "shift-right-logical"
        | "sign"
        | "subtract"
        | "xor" => out,
        "acos"
        | "acosh"
        | "asin"
        | "asinh"
        | "atan2"
        | "atanh"
        | "cbrt"
        | "cosh"
        | "cosine"
        | "erf"
        | "exponential"
        | "exponential-minus-one"
        | "log"
        | "log-plus-one"
        | "logistic"
        | "power"
        | "rsqrt"
        | "sine"
        | "sinh"
        | "sqrt"
        | "tan"
        | "tanh" => return (0, out),
        "dot" => {
            let contracted = |&dim: &i64| extent(operand(0)?, dim);
            let dims = instruction.dot_dimension_numbers.lhs_contracting_dimensions.iter().map(contracted);
            product(dims).saturating_mul(out).saturating_mul(2)
        }
        "convolution" => convolution(instruction, operand(0), operand(1)),
        "map" => out.saturating_mul(combiner()),
        "reduce" | "all-reduce" | "all-reduce-start" | "reduce-scatter" => {
            let combined =
                if instruction.opcode == "reduce" { input.saturating_sub(first_elements(instruction)) } else { out };
            combined.saturating_mul(combiner())
        }
        "reduce-window" => {
            let window =
                product(instruction.details().window.dimensions.iter().map(|dim| u64::try_from(dim.size).ok()));
            first_elements(instruction).saturating_mul(window.saturating_sub(1)).saturating_mul(combiner())
        }
        "scatter" => operand(2).map_or(0, elements).saturating_mul(combiner()),
        "cholesky" => {
            let n = operand(0).and_then(|shape| extent(shape, shape.dimensions.len() as i64 - 1)).unwrap_or(0);
            input.saturating_mul(n) / 3
        }
        "triangular-solve" => {
            let n = operand(0).and_then(|shape| extent(shape, shape.dimensions.len() as i64 - 1)).unwrap_or(0);
            out.saturating_mul(n)
        }
        "fft" => {
            let length = product(instruction.details().fft_length.iter().map(|&length| u64::try_from(length).ok()));
            out.max(input).saturating_mul(5 * u64::from(length.max(1).ilog2()))
        }
        _ => 0,
    };
    (flops, 0)
}

/// Two operations for each product: output elements × inputs under the window that are no padding × input features.
fn convolution(instruction: &HloInstructionProto, input: Option<&ShapeProto>, kernel: Option<&ShapeProto>) -> u64 {
    let (Some(input), Some(kernel)) = (input, kernel) else { return 0 };
    let dims = &instruction.details().convolution_dimension_numbers;
    let output = &instruction.shape;
    let mut products = product([
        extent(output, dims.output_batch_dimension),
        extent(output, dims.output_feature_dimension),
        extent(kernel, dims.kernel_input_feature_dimension),
    ]);
    for (index, window) in instruction.details().window.dimensions.iter().enumerate() {
        let size = |shape: &ShapeProto, dims: &[i64]| dims.get(index).and_then(|&dim| extent(shape, dim)).unwrap_or(0);
        let (input, output) =
            (size(input, &dims.input_spatial_dimensions), size(output, &dims.output_spatial_dimensions));
        products = products.saturating_mul(valid_positions(window, input as i64, output as i64));
    }
    // Each group of the batch meets its own kernels only.
    products.saturating_mul(2) / u64::try_from(instruction.details().batch_group_count).unwrap_or(1).max(1)
}

/// Pairs of an output position and a kernel position along one dimension that meet an input element.
fn valid_positions(window: &WindowDimension, input: i64, output: i64) -> u64 {
    let kernel = window.size.max(0);
    let all = (kernel as u64).saturating_mul(output as u64);
    if all > MAX_WINDOW_POSITIONS as u64 {
        return all;
    }
    let base = window.base_dilation.max(1);
    let dilated = input.saturating_sub(1).saturating_mul(base).saturating_add(1);
    let is_valid = |output: i64, kernel: i64| {
        let start = output.saturating_mul(window.stride).saturating_sub(window.padding_low);
        let at = kernel.saturating_mul(window.window_dilation.max(1)).saturating_add(start);
        (0..dilated).contains(&at) && at % base == 0
    };
    (0..output).map(|output| (0..kernel).filter(|&kernel| is_valid(output, kernel)).count() as u64).sum()
}

/// Elements of all arrays of a shape.
fn elements(shape: &ShapeProto) -> u64 {
    let arrays = shape::leaves(shape).into_iter().filter_map(shape::num_elements);
    arrays.fold(0, u64::saturating_add)
}

/// Elements of the first array of an instruction's shape.
fn first_elements(instruction: &HloInstructionProto) -> u64 {
    shape::leaves(&instruction.shape).first().and_then(|shape| shape::num_elements(shape)).unwrap_or(0)
}

fn extent(shape: &ShapeProto, dim: i64) -> Option<u64> {
    let extent = *shape.dimensions.get(usize::try_from(dim).ok()?)?;
    u64::try_from(extent).ok()
}

/// The product of all that is known.
fn product(factors: impl IntoIterator<Item = Option<u64>>) -> u64 {
    factors.into_iter().flatten().fold(1, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo;

    fn cost_of(instructions: &str) -> Cost {
        let text = format!(
            "HloModule m\n\nadd {{\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT sum = f32[] add(x, y)\n}}\n\n\
             ENTRY main {{\n  {}\n}}",
            instructions.replace("; ", "\n  ")
        );
        let module = hlo::parse(&text, "m.hlo").unwrap_or_else(|error| panic!("{error}"));
        hlo::verify(&module, 1, 1).unwrap_or_else(|error| panic!("{error}"));
        let graph = Graph::new(&module.proto);
        cost(&graph, &graph.walk())
    }

    fn flops(instructions: &str) -> u64 {
        cost_of(instructions).flops
    }

    #[test]
    fn products_of_matrices() {
        let dot = "a = f32[3,8,16] parameter(0); b = f32[3,16,4] parameter(1); ROOT c = f32[3,8,4] dot(a, b), \
                   lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}";
        assert_eq!(flops(dot), 2 * 3 * 8 * 4 * 16);
    }

    #[test]
    fn convolutions_without_their_padding() {
        let conv = |window: &str, out: &str| {
            flops(&format!(
                "x = f32[2,5,3] parameter(0); k = f32[3,3,7] parameter(1); ROOT c = f32[2,{out},7] convolution(x, k), \
                 window={{{window}}}, dim_labels=b0f_0io->b0f"
            ))
        };
        assert_eq!(conv("size=3", "3"), 2 * 2 * 3 * 7 * 3 * 3);
        // Of the 15 positions that the kernel has over 5 outputs, one at each end lies in the padding.
        assert_eq!(conv("size=3 pad=1_1", "5"), 2 * 2 * 7 * 3 * 13);
        assert_eq!(conv("size=3 stride=2 pad=1_1", "3"), 2 * 2 * 7 * 3 * 7);
    }

    #[test]
    fn elements_and_reductions() {
        let body = "x = f32[8,4] parameter(0); z = f32[] constant(0); e = f32[8,4] exponential(x); \
                    m = f32[8,4] multiply(e, x); ROOT r = f32[8] reduce(m, z), dimensions={1}, to_apply=add";
        let expected = Cost { flops: 32 + 24, transcendentals: 32, ..Cost::default() };
        assert_eq!(cost_of(body), expected);
    }
}
