//! Removes what no result needs.
//!
//! XLA's compilers run some passes before they remove dead code, and those refuse dead instructions that they cannot
//! compile. Front ends that go through StableHLO never show them such code, because its import removes it.

use std::collections::{HashMap, HashSet};

use crate::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, InlineList};

/// Instructions that compute a value from their operands and do nothing else. All others are kept.
const PURE: &[&str] = &[
    "abs",
    "add",
    "and",
    "atan2",
    "bitcast",
    "bitcast-convert",
    "broadcast",
    "cbrt",
    "ceil",
    "clamp",
    "compare",
    "complex",
    "concatenate",
    "constant",
    "convert",
    "convolution",
    "copy",
    "cosine",
    "count-leading-zeros",
    "divide",
    "dot",
    "dynamic-slice",
    "dynamic-update-slice",
    "erf",
    "exponential",
    "exponential-minus-one",
    "fft",
    "floor",
    "gather",
    "get-tuple-element",
    "imag",
    "iota",
    "is-finite",
    "log",
    "log-plus-one",
    "logistic",
    "map",
    "maximum",
    "minimum",
    "multiply",
    "negate",
    "not",
    "or",
    "pad",
    "popcnt",
    "power",
    "real",
    "reduce",
    "reduce-precision",
    "reduce-window",
    "remainder",
    "reshape",
    "reverse",
    "rng-bit-generator",
    "round-nearest-afz",
    "round-nearest-even",
    "rsqrt",
    "scatter",
    "select",
    "select-and-scatter",
    "shift-left",
    "shift-right-arithmetic",
    "shift-right-logical",
    "sign",
    "sine",
    "slice",
    "sort",
    "sqrt",
    "subtract",
    "tan",
    "tanh",
    "transpose",
    "tuple",
    "xor",
];

/// Removes the instructions of each computation that its root does not need. Elements of tuples made in the same
/// computation are taken from where they come, so that a tuple needs only what is used of it. Modules with a schedule
/// are left as they are.
pub fn remove_dead_code(module: &mut HloModuleProto) {
    if module.schedule.is_set() {
        return;
    }
    for computation in &mut module.computations {
        bypass_tuples(computation);
        remove_unused(computation);
    }
}

fn bypass_tuples(computation: &mut HloComputationProto) {
    let mut tuples: HashMap<i64, InlineList<i64>> = HashMap::new();
    let mut sources: HashMap<i64, i64> = HashMap::new();
    for instruction in &mut computation.instructions {
        for operand in &mut instruction.operand_ids {
            *operand = *sources.get(operand).unwrap_or(operand);
        }
        match instruction.opcode.as_str() {
            "tuple" => {
                tuples.insert(instruction.id, instruction.operand_ids.clone());
            }
            "get-tuple-element" if !instruction.sharding.is_set() => {
                let elements = instruction.operand_ids.first().and_then(|tuple| tuples.get(tuple));
                let index = usize::try_from(instruction.tuple_index).ok();
                if let Some(&source) = elements.zip(index).and_then(|(elements, index)| elements.get(index)) {
                    sources.insert(instruction.id, source);
                }
            }
            _ => {}
        }
    }
}

fn remove_unused(computation: &mut HloComputationProto) {
    let needed = needed_instructions(computation, |instruction| !PURE.contains(&instruction.opcode.as_str()));
    computation.instructions.retain(|instruction| needed.contains(&instruction.id));
}

/// The ids of what a computation's result depends on, or one of the instructions that are kept in any case.
pub(crate) fn needed_instructions(
    computation: &HloComputationProto,
    is_kept: impl Fn(&HloInstructionProto) -> bool,
) -> HashSet<i64> {
    let mut needed = HashSet::from([computation.root_id]);
    // Operands and control predecessors stand before their users.
    for instruction in computation.instructions.iter().rev() {
        if needed.contains(&instruction.id) || is_kept(instruction) {
            needed.insert(instruction.id);
            needed.extend(&instruction.operand_ids);
            needed.extend(&instruction.control_predecessor_ids);
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_what_the_root_needs_stays() {
        let text = "HloModule m\n\nENTRY e {\n  p = f32[4] parameter(0)\n  unused = f32[4] parameter(1)\n  \
                    dead = f32[4] negate(p)\n  live = f32[4] abs(p)\n  pair = (f32[4], f32[4]) tuple(dead, live)\n  \
                    element = f32[4] get-tuple-element(pair), index=1\n  ROOT sum = f32[4] add(element, p)\n}\n";
        let mut module = crate::hlo::parse(text, "m.hlo").unwrap().proto;
        super::remove_dead_code(&mut module);
        let names: Vec<&str> = module.computations[0].instructions.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["p", "unused", "live", "sum"]);
    }
}
