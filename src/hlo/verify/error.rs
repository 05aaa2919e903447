//! What a refused module is told: where, and the rule that it breaks.

use super::super::source::{Position, Source, floor_char_boundary};
use crate::proto::{HloComputationProto, HloInstructionProto};

/// A rule of HLO that a module breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", report(.computation, .instruction, .position.as_deref(), .message))]
pub struct VerifyError {
    /// The computation, empty if the module as a whole is meant.
    pub computation: String,
    /// The instruction, empty if the computation as a whole is meant.
    pub instruction: String,
    /// Where its name stands, for modules that were parsed from text.
    pub position: Option<Box<Position>>,
    /// What is wrong.
    pub message: String,
}

/// Bytes of a message; shapes in it can be long.
const LONGEST_MESSAGE: usize = 1000;

impl VerifyError {
    pub(super) fn of_module(message: String) -> VerifyError {
        VerifyError { computation: String::new(), instruction: String::new(), position: None, message: clip(message) }
    }

    pub(super) fn of_computation(
        source: Option<&Source>,
        computation: &HloComputationProto,
        message: String,
    ) -> VerifyError {
        VerifyError {
            computation: computation.name.clone(),
            position: source.and_then(|source| source.locate_computation(computation.id)).map(Box::new),
            ..VerifyError::of_module(message)
        }
    }

    pub(super) fn of_instruction(
        source: Option<&Source>,
        computation: &HloComputationProto,
        instruction: &HloInstructionProto,
        message: String,
    ) -> VerifyError {
        VerifyError {
            computation: computation.name.clone(),
            instruction: instruction.name.to_string(),
            position: source.and_then(|source| source.locate_instruction(instruction.id)).map(Box::new),
            ..VerifyError::of_module(message)
        }
    }
}

fn clip(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        message.truncate(floor_char_boundary(&message, LONGEST_MESSAGE));
        message.push_str("...");
    }
    message
}

fn report(computation: &str, instruction: &str, position: Option<&Position>, message: &str) -> String {
    let message = match (computation, instruction) {
        ("", _) => message.to_owned(),
        (computation, "") => format!("computation '{computation}': {message}"),
        (computation, instruction) => format!("instruction '{instruction}' of '{computation}': {message}"),
    };
    position.map_or(message.clone(), |position| position.report(&message))
}
