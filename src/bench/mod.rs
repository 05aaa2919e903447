//! Measures the job: its collectives in the manner of nccl-tests, how long it takes to start, and what a step costs.
//!
//! Sizes, counts and bandwidths are those of nccl-tests (its `doc/PERFORMANCE.md`): a rank is a device, the size is that
//! of the larger one of a rank's two buffers, `algbw` is size over time, and `busbw` weighs it by what an algorithm that
//! wastes nothing moves.

mod collectives;
mod data;
mod dispatch;
mod op;
mod split;

pub use collectives::{BenchError, Collectives, Measurement, Settings, SettingsError, Way};
pub use dispatch::{Dispatch, dispatch};
pub use op::{Case, Op, UnknownOp};
pub use split::{ParseSplitError, Split, SplitError};
