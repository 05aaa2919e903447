//! HLO modules: the protobuf model, its text form and the checks before a plugin sees it.

pub mod groups;
pub mod literal;
pub mod shape;

use crate::proto;

/// An HLO module, and what its text header says beyond the protobuf.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HloModule {
    /// The module.
    pub proto: proto::HloModuleProto,
    /// What only the header says.
    pub config: ModuleConfig,
}

/// What a module's text header says and the protobuf has no field for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleConfig {
    /// `replica_count`.
    pub replica_count: Option<i64>,
    /// `num_partitions`.
    pub num_partitions: Option<i64>,
    /// `allow_spmd_sharding_propagation_to_parameters`.
    pub allow_spmd_sharding_propagation_to_parameters: Vec<bool>,
    /// `allow_spmd_sharding_propagation_to_output`.
    pub allow_spmd_sharding_propagation_to_output: Vec<bool>,
    /// `is_scheduled`.
    pub is_scheduled: bool,
}

/// A program as it was loaded.
#[derive(Clone, Debug)]
pub enum Program {
    /// An HLO module.
    Hlo(HloModule),
    /// StableHLO, as text or as bytecode.
    Mlir(Vec<u8>),
}
