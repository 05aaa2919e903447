//! Whether all processes do the same job, found out before its first step.

use std::fmt::Write;

use crate::hlo;
use crate::rendezvous::ProcessList;

use super::{RuntimeError, World, WorldError};

/// Something in which all processes must be alike: its name and its value.
pub type Fact = (String, String);

/// Processes that do not do the same job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the processes do not do the same job:{table}")]
pub struct Disagreement {
    /// The names of the facts in which they differ.
    pub facts: Vec<String>,
    /// The first process that differs from the first one.
    pub process_index: u32,
    /// Each fact on a line of its own, then a line for each of its values.
    table: String,
}

impl World {
    /// Compares facts of this process, by name, with those of all others. All processes call it with the same `name`, which
    /// is used once in a job, and come to the same result.
    ///
    /// # Errors
    /// The processes differ, or the rendezvous failed.
    pub fn agree(&self, name: &str, facts: &[Fact]) -> Result<(), RuntimeError> {
        let mut hasher = blake3::Hasher::new();
        for text in facts.iter().flat_map(|(fact, value)| [fact, value]) {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        let digests = self.all_gather(name, *hasher.finalize().as_bytes())?;
        if digests.iter().all(|digest| Some(digest) == digests.first()) {
            return Ok(());
        }
        let all: Vec<Vec<Fact>> = self.all_gather(&format!("{name}/facts"), facts.to_vec())?;
        match disagreement(&self.processes(), &all) {
            Some(disagreement) => Err(disagreement.into()),
            None => Ok(()),
        }
    }

    /// Where the programs of process 0 and of the first one that differs from it begin to differ, as a sentence. All
    /// processes call it after [`agree`](Self::agree) under the same `name`, each with its own program.
    ///
    /// # Errors
    /// The rendezvous failed.
    pub fn program_difference(
        &self,
        name: &str,
        disagreement: &Disagreement,
        program: &[u8],
    ) -> Result<String, WorldError> {
        let (reference, other) = (self.first(), disagreement.process_index);
        let theirs: Vec<u8> =
            self.from_process(other, &format!("{name}/theirs"), || Ok::<_, WorldError>(program.to_vec()))?;
        self.from_first(&format!("{name}/difference"), || {
            Ok(match (hlo::load(program, ""), hlo::load(&theirs, "")) {
                (Ok(first), Ok(second)) => match hlo::first_difference(&first, &second) {
                    Some(difference) => format!("the first difference of process {reference} and {other} {difference}"),
                    None => "they differ in how they are written down only".to_owned(),
                },
                (Err(error), _) | (_, Err(error)) => format!("one of them cannot be read: {error}"),
            })
        })
    }
}

fn disagreement(processes: &[(u32, &str)], all: &[Vec<Fact>]) -> Option<Disagreement> {
    let mut names: Vec<&String> = all.iter().flatten().map(|(name, _)| name).collect();
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(*name));
    let mut found = Disagreement { facts: Vec::new(), process_index: u32::MAX, table: String::new() };
    for name in names {
        let value = |facts: &Vec<Fact>| {
            let fact = facts.iter().find(|(other, _)| other == name);
            fact.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
        };
        let values: Vec<String> = all.iter().map(value).collect();
        let Some(differs) = values.iter().position(|value| Some(value) != values.first()) else { continue };
        let differs = processes.get(differs).map_or(differs as u32, |(process, _)| *process);
        found.process_index = found.process_index.min(differs);
        found.facts.push(name.clone());
        let _ = write!(found.table, "\n{name}\n{}", by_value(processes, &values));
    }
    (!found.facts.is_empty()).then_some(found)
}

/// A line for each value, with the processes that have it, which are given with their hosts.
pub(super) fn by_value(processes: &[(u32, &str)], values: &[String]) -> String {
    let mut groups: Vec<(&String, Vec<(u32, &str)>)> = Vec::new();
    for (&process, value) in processes.iter().zip(values) {
        match groups.iter_mut().find(|(other, _)| *other == value) {
            Some((_, processes)) => processes.push(process),
            None => groups.push((value, vec![process])),
        }
    }
    let lines: Vec<String> =
        groups.into_iter().map(|(value, processes)| format!("  {}: {value}", ProcessList(&processes))).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_who_differs_and_in_what() {
        let facts = |program: &str, transport: &str| {
            vec![("program".to_owned(), program.to_owned()), ("--transport".to_owned(), transport.to_owned())]
        };
        let hosts = [(0, "host-a"), (1, "host-a"), (2, "host-b"), (3, "host-b")];
        assert_eq!(disagreement(&hosts, &vec![facts("a", "auto"); 4]), None);
        let mut extra = facts("b", "auto");
        extra.push(("arg0".into(), "f32[4]".into()));
        let all = [facts("a", "auto"), facts("b", "auto"), facts("a", "tcp"), extra];
        let found = disagreement(&hosts, &all).unwrap();
        assert_eq!(
            (found.process_index, &found.facts[..]),
            (1, &["program", "--transport", "arg0"].map(str::to_owned)[..])
        );
        insta::assert_snapshot!(found, @"
        the processes do not do the same job:
        program
          process 0 (host-a), 2 (host-b): a
          process 1 (host-a), 3 (host-b): b
        --transport
          process 0, 1 (host-a), 3 (host-b): auto
          process 2 (host-b): tcp
        arg0
          process 0, 1 (host-a), 2 (host-b): nothing
          process 3 (host-b): f32[4]
        ");
    }
}
