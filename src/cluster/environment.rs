use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{ClusterError, Scheduler};

/// What a process can know of where it runs: environment variables, and the files of its host.
#[derive(Clone, Debug)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    root: PathBuf,
}

impl Environment {
    /// That of this process.
    pub fn of_process() -> Environment {
        Environment::of_process_at("/")
    }

    /// The variables of this process, and the files of a host that are kept in a folder.
    pub fn of_process_at(root: impl Into<PathBuf>) -> Environment {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        Environment::new(std::env::vars_os().map(|(name, value)| (text(name), text(value)))).at(root)
    }

    /// These variables, on a host without files.
    pub fn new<N: Into<String>, V: Into<String>>(variables: impl IntoIterator<Item = (N, V)>) -> Environment {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Environment { variables, root: PathBuf::from("/nonexistent") }
    }

    /// The same variables on another host.
    pub fn at(self, root: impl Into<PathBuf>) -> Environment {
        Environment { root: root.into(), ..self }
    }

    /// A variable. One that is empty counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The path of a host's file, given from its root without the leading slash.
    pub fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    /// The folder that holds the host's files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A variable that is a number.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<u32>, ClusterError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| wrong(name, value, "it must be a whole number"))
    }

    /// A variable without which another one, which is set, makes no sense.
    pub(super) fn with(
        &self,
        scheduler: Scheduler,
        present: &'static str,
        absent: &'static str,
        advice: &'static str,
    ) -> Result<&str, ClusterError> {
        let value = || self.get(present).unwrap_or_default().to_owned();
        self.get(absent).ok_or_else(|| ClusterError::Missing { scheduler, present, value: value(), absent, advice })
    }

    /// The same for a number.
    pub(super) fn number_with(
        &self,
        scheduler: Scheduler,
        present: &'static str,
        absent: &'static str,
        advice: &'static str,
    ) -> Result<u32, ClusterError> {
        let value = self.with(scheduler, present, absent, advice)?;
        value.parse().map_err(|_| wrong(absent, value, "it must be a whole number"))
    }

    pub(super) fn contradiction(
        &self,
        scheduler: Scheduler,
        first: &'static str,
        second: &'static str,
        rule: &'static str,
    ) -> ClusterError {
        let value = |name| self.get(name).unwrap_or_default().to_owned();
        let (first_value, second_value) = (value(first), value(second));
        ClusterError::Contradiction { scheduler, first, first_value, second, second_value, rule }
    }
}

pub(super) fn wrong(name: &'static str, value: &str, reason: impl Into<String>) -> ClusterError {
    ClusterError::Value { name, value: value.to_owned(), reason: reason.into() }
}
