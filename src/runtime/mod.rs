//! Global device view and program life cycle.

pub mod bridge;
mod handoff;
