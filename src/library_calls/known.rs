//! What is known about custom-call targets.

use std::collections::BTreeMap;

use super::targets;
use crate::hlo::HloModule;

/// Whether a plugin for CPUs can run a custom call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Availability {
    /// It cannot.
    Never,
    /// Only the plugin can tell.
    Unknown,
}

/// A custom-call target that we have no handler for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UnknownTarget {
    /// The target's name.
    pub target: String,
    /// How many custom calls have it.
    pub count: usize,
    /// Whether a plugin might have it.
    pub on_cpu: Availability,
    /// What the calls are and what can be done.
    pub known: String,
}
