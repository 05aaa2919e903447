//! HLO modules: the protobuf model, its text form and the checks before a plugin sees it.

pub mod literal;
mod parse;
mod print;
pub mod shape;

use crate::proto::HloModuleProto;

pub use parse::{ParseError, parse};
pub use print::print;

/// One HLO module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HloModule {
    /// The module as XLA serializes it.
    pub proto: HloModuleProto,
    /// What a text's header says and the protobuf form has no field for.
    pub config: ModuleConfig,
    /// Constants whose values the text leaves out (`constant({...})`). They hold the filler that XLA's own parser puts
    /// in, so the module compiles, but its results mean nothing.
    pub elided_constants: Vec<String>,
}

/// What a text's header says and `HloModuleProto` has no field for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleConfig {
    /// `replica_count=`
    pub replica_count: Option<i64>,
    /// `num_partitions=`
    pub num_partitions: Option<i64>,
    /// May the partitioner choose the shardings of the parameters: one value for all or one for each.
    pub allow_spmd_sharding_propagation_to_parameters: Vec<bool>,
    /// May the partitioner choose the shardings of the results: one value for all or one for each.
    pub allow_spmd_sharding_propagation_to_output: Vec<bool>,
    /// The order of the instructions is a schedule: the text was written after compiling.
    pub is_scheduled: bool,
}
