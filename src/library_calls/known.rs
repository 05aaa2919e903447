//! What is known about custom-call targets.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::targets;
use crate::hlo::{self, HloModule};
use crate::lower::{COLLECTIVE_TARGET, LOGICAL_ID_TARGET, MARKER_TARGET};
use crate::proto::{HloComputationProto, HloInstructionProto};

/// Whether custom calls to a target can run on a plugin for CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Availability {
    /// XLA's compiler or we bring what it needs.
    Always,
    /// It needs something that no process of ours has.
    Never,
    /// Only the plugin can tell.
    Unknown,
}

/// A custom-call target of a module that neither XLA's compiler for CPUs nor we are known to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownTarget {
    /// The target's name.
    pub target: String,
    /// How many instructions call it.
    pub count: usize,
    /// Whether a plugin for CPUs might have it.
    pub on_cpu: Availability,
    /// What the target is, and what can be done about it.
    pub known: String,
}

/// Names or, with a star, beginnings of names, whether plugins for CPUs have such targets, and what they are. XLA's own
/// were tried with plugins of PJRT C API 0.81 to 0.115. The first that fits counts.
const FAMILIES: &[(&[&str], Availability, &str)] = &[
    (
        &["Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"],
        Availability::Always,
        "an annotation for XLA's partitioner",
    ),
    (&["xla.sdy.*"], Availability::Always, "an annotation for Shardy"),
    (
        &[
            "CreateBuffer",
            "Eigh",
            "GetRngSeed",
            "LayoutConstraint",
            "MoveToDevice",
            "MoveToHost",
            "Pin",
            "ProductOfElementaryHouseholderReflectors",
            "Qr",
            "SetBound",
            "SliceToDynamic",
            "TopK",
            "Unpin",
            "__onednn$*",
            "annotate_device_placement",
        ],
        Availability::Always,
        "XLA's own",
    ),
    (
        &["xla_python_cpu_callback", "xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback"],
        Availability::Never,
        "a call back into the Python process that made the program (pure_callback, io_callback, debug.print): take it \
         out of the program",
    ),
    (
        &["xla_python_gpu_callback", "xla_ffi_python_gpu_callback"],
        Availability::Never,
        "a call back into Python from a GPU: make the program for CPU, without callbacks",
    ),
    (
        &["tpu_custom_call", "mosaic_*"],
        Availability::Never,
        "a Pallas kernel for TPU or GPU: make the program for CPU, where Pallas interprets it",
    ),
    (
        &[
            "__cublas$*",
            "__cudnn$*",
            "__cusolver$*",
            "__cub$*",
            "__gpu$*",
            "__triton*",
            "triton_kernel_call*",
            "cublas_*",
            "cu_*",
            "cudnn*",
            "cusolver_*",
            "cusparse_*",
            "hip_*",
            "hipblas*",
            "hipsolver_*",
            "hipsparse_*",
            "te_*",
        ],
        Availability::Never,
        "a kernel for GPUs: make the program for CPU",
    ),
    (
        &["lapack_*"],
        Availability::Unknown,
        "a LAPACK routine in a form that is not provided here; JAX 0.4.36 and later make the provided ones, \
         lapack_*_ffi",
    ),
    (
        &["ducc_fft", "dynamic_ducc_fft", "pocketfft"],
        Availability::Unknown,
        "JAX's own Fourier transform of older versions; newer ones make an fft instruction",
    ),
    (
        &["cpu_csr_*", "cpu_sparse_*", "tridiagonal_solve_perturbed*"],
        Availability::Unknown,
        "a kernel of the jaxlib package",
    ),
    (
        &["ApproxTopK", "PartialReduce"],
        Availability::Unknown,
        "approximate top-k as TPUs have it; StableHLO made for CPU has a form that is expanded",
    ),
    (
        &["mhlo.*", "chlo.*", "stablehlo.*"],
        Availability::Unknown,
        "an operation that HLO lacks: give the program as StableHLO",
    ),
];

/// The custom-call targets of a module, but for calls that nothing needs, that are not sure to run on CPUs, by name.
pub fn unknown_targets(module: &HloModule) -> Vec<UnknownTarget> {
    let needed = module.proto.computations.iter().flat_map(needed_instructions);
    let unknown = count_targets(needed).into_iter().filter_map(|(target, count)| {
        let (on_cpu, known) = about(target).unwrap_or((Availability::Unknown, "nothing is known about it"));
        let unknown = UnknownTarget { target: target.to_owned(), count, on_cpu, known: known.to_owned() };
        (on_cpu != Availability::Always).then_some(unknown)
    });
    unknown.collect()
}

/// Whether plugins for CPUs can run custom calls to a target, and what it is.
pub fn about(target: &str) -> Option<(Availability, &'static str)> {
    if targets().any(|ours| ours == target) {
        return Some((Availability::Always, "a LAPACK routine, computed by spmd-run"));
    }
    if [COLLECTIVE_TARGET, LOGICAL_ID_TARGET, MARKER_TARGET].contains(&target) {
        return Some((Availability::Always, "spmd-run's own"));
    }
    let fits = |name: &&str| match name.strip_suffix('*') {
        Some(beginning) => target.starts_with(beginning),
        None => target == *name,
    };
    let family = FAMILIES.iter().find(|(names, ..)| names.iter().any(fits));
    family.map(|(_, on_cpu, about)| (*on_cpu, *about))
}

/// How many of the instructions call each custom-call target, by name.
pub fn count_targets<'a>(instructions: impl Iterator<Item = &'a HloInstructionProto>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for instruction in instructions.filter(|instruction| instruction.opcode == "custom-call") {
        *counts.entry(instruction.details().custom_call_target.as_str()).or_default() += 1;
    }
    counts
}

/// What a computation's result or an effect depends on; the compiler removes the others.
fn needed_instructions(computation: &HloComputationProto) -> impl Iterator<Item = &HloInstructionProto> {
    let needed = hlo::needed_instructions(computation, |it| it.details().custom_call_has_side_effect);
    computation.instructions.iter().filter(move |it| needed.contains(&it.id))
}

impl fmt::Display for UnknownTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} call{}): {}", self.target, self.count, if self.count == 1 { "" } else { "s" }, self.known)
    }
}
