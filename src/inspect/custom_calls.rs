//! The library functions that a program calls.

use serde::Serialize;

use crate::library_calls::{about, count_targets};
use crate::proto::HloInstructionProto;

/// A library function that a program calls.
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
    count_targets(instructions)
        .into_iter()
        .map(|(target, instructions)| CustomCall {
            target: target.to_owned(),
            instructions,
            about: about(target).map(|(_, about)| about),
        })
        .collect()
}
