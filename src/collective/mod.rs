//! The collective instructions of XLA, carried out by us: between the local devices, then between processes.
//!
//! A [`Communicator`] serves one job. Each program registers its instructions once, and every local device enters each
//! of them when its execution gets there. Once the local devices of a group have arrived, a thread of the communicator
//! combines their operands, exchanges with the other processes of the group, and writes every local result.
//!
//! A call is known by (program, run, key, trip), where the trip counts the calls of one device to one instruction in
//! one run: nothing depends on who arrives first. Results are bitwise the same on every process and every run: local
//! operands are combined in rank order, then processes in order, those of one island (a slice, else a host) first if there
//! are several, unless [`Algorithm::Flat`] is forced. Where participants disagree about what comes next, or about an instruction's operands, every
//! process gets an error that names the instructions.

mod buffer;
mod cluster;
pub(crate) mod cost;
mod engine;
mod error;
mod exchange;
mod group;
mod movement;
mod piece;
mod ragged;
mod reduce;
mod reduction;
mod repeat;
mod scratch;
mod spec;

pub use buffer::{Input, Output};
pub use cluster::{Cluster, Link, Links};
pub(crate) use engine::islands;
pub use engine::{Algorithm, Communicator, Limits, Position, ProgramCollectives};
pub use error::CollectiveError;
pub use group::World;
pub(crate) use reduce::is_widened;
pub use repeat::Repeated;
pub use spec::{ArraySpec, CollectiveKind, CollectiveSpec, ReduceOp};
