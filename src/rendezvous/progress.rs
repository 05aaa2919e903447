//! What a process tells of itself with each sign of life.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far a process has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What it does, as in `compiling 'main'`.
    pub phase: String,
    /// The step that it entered last, from 1; 0 before the first.
    pub step: u64,
    /// The collective that it entered last, by the name of its instruction.
    pub collective: Option<String>,
    /// Whether it is in that collective now, and waits for others.
    pub waits: bool,
    /// Devices of this process that the others of this process wait for there, by global id.
    pub late_devices: Vec<u32>,
    /// How often its devices have entered a collective. It has moved on when this, the step or the phase has changed.
    pub entered: u64,
    /// Bytes that it has sent to other processes in collectives.
    pub sent_bytes: u64,
    /// How many devices it has.
    pub device_count: u32,
}

impl Progress {
    /// Whether nothing has happened between two signs of life.
    pub(super) fn is_at(&self, other: &Progress) -> bool {
        (self.entered, self.step, self.waits) == (other.entered, other.step, other.waits) && self.phase == other.phase
    }

    /// Where it was seen last; `None` if it has told nothing.
    pub(super) fn last_seen(&self) -> Option<LastSeen<'_>> {
        (self.step > 0 || !self.phase.is_empty()).then_some(LastSeen(self))
    }
}

/// `last in all-reduce.3, step 5`
pub(super) struct LastSeen<'a>(&'a Progress);

impl fmt::Display for LastSeen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Progress { step: 0, phase, .. } => write!(f, "last seen {phase}"),
            Progress { step, collective: Some(collective), .. } => write!(f, "last in {collective}, step {step}"),
            Progress { step, .. } => write!(f, "last in step {step}"),
        }
    }
}
