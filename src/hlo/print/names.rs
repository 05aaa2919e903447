//! Names that XLA's parser takes, unique where they have to be.

use std::collections::{HashMap, HashSet};

use crate::dtype::DType;
use crate::proto::HloModuleProto;

/// The printed names of a module's computations and instructions, each with its `%`.
pub(super) struct Names {
    computations: HashMap<i64, String>,
    /// By computation and instruction: older modules number their instructions per computation.
    instructions: HashMap<(i64, i64), String>,
}

impl Names {
    pub(super) fn of(module: &HloModuleProto) -> Names {
        let mut names = Names { computations: HashMap::new(), instructions: HashMap::new() };
        let mut taken = HashSet::new();
        for computation in &module.computations {
            names.computations.insert(computation.id, unique(&computation.name, &mut taken));
            let mut taken = HashSet::with_capacity(computation.instructions.len());
            for instruction in &computation.instructions {
                let name = if instruction.name.is_empty() { &instruction.opcode } else { &instruction.name };
                names.instructions.insert((computation.id, instruction.id), unique(name, &mut taken));
            }
        }
        names
    }

    pub(super) fn computation(&self, id: i64) -> String {
        self.computations.get(&id).cloned().unwrap_or_else(|| missing(id))
    }

    pub(super) fn instruction(&self, computation: i64, id: i64) -> String {
        self.instructions.get(&(computation, id)).cloned().unwrap_or_else(|| missing(id))
    }
}

fn missing(id: i64) -> String {
    format!("%missing.{id}")
}

fn unique(name: &str, taken: &mut HashSet<String>) -> String {
    let name = format!("%{}", legal(name));
    let mut candidate = name.clone();
    for number in 1.. {
        if taken.insert(candidate.clone()) {
            break;
        }
        candidate = format!("{name}.clone{number}");
    }
    candidate
}

/// The name as XLA would make it legal.
pub(super) fn legal(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let mut legal: String = name.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    if !legal.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        legal.replace_range(..legal.len().min(1), "_");
    }
    let is_type = legal.parse::<DType>().is_ok() || matches!(legal.as_str(), "token" | "opaque");
    if is_type {
        legal.push('_');
    }
    if legal.starts_with("__") && !legal.starts_with("__xla_") {
        legal.replace_range(..1, "a");
    }
    legal
}
