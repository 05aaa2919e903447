//! The library functions that a program calls.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::proto::HloInstructionProto;

/// Targets that XLA or a framework is known to bring, by how their names begin.
const KNOWN: [(&str, &str); 12] = [
    ("Sharding", "an annotation for XLA's partitioner"),
    ("SPMDFullToShardShape", "an annotation for XLA's partitioner"),
    ("SPMDShardToFullShape", "an annotation for XLA's partitioner"),
    ("xla.sdy.", "an annotation for Shardy"),
    ("TopK", "XLA's own"),
    ("lapack_", "linear algebra that JAX registers on CPU"),
    ("cusolver_", "linear algebra that JAX registers on CUDA devices"),
    ("cu_", "a function that JAX registers on CUDA devices"),
    ("hip", "a function that JAX registers on ROCm devices"),
    ("xla_python_", "a callback into Python"),
    ("xla_ffi_python_", "a callback into Python"),
    ("tpu_custom_call", "a Pallas kernel for TPU"),
];

/// A library function that a program calls, which the plugin must bring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CustomCall {
    /// Its `custom_call_target`.
    pub target: String,
    /// Instructions that call it.
    pub instructions: usize,
    /// What is known about it; `None` for targets unknown to this tool.
    pub about: Option<&'static str>,
}

/// The targets of custom calls, by name.
pub(super) fn custom_calls<'a>(instructions: impl Iterator<Item = &'a HloInstructionProto>) -> Vec<CustomCall> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for instruction in instructions.filter(|instruction| instruction.opcode == "custom-call") {
        *counts.entry(&instruction.custom_call_target).or_default() += 1;
    }
    let about = |target: &str| KNOWN.iter().find(|(start, _)| target.starts_with(start)).map(|(_, about)| *about);
    let calls = counts.into_iter();
    calls
        .map(|(target, instructions)| CustomCall { target: target.to_owned(), instructions, about: about(target) })
        .collect()
}
