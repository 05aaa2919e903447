//! What a refused module says: where, and the rule that it breaks.

/// A rule of HLO that a module breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", place(.computation, .instruction))]
pub struct VerifyError {
    /// The computation, empty if the module as a whole is meant.
    pub computation: String,
    /// The instruction, empty if the computation as a whole is meant.
    pub instruction: String,
    /// What is wrong.
    pub message: String,
}

fn place(computation: &str, instruction: &str) -> String {
    match (computation, instruction) {
        ("", _) => String::new(),
        (computation, "") => format!("computation '{computation}': "),
        (computation, instruction) => format!("instruction '{instruction}' of '{computation}': "),
    }
}
