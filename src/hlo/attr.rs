//! The names of instructions' attributes.

use std::collections::HashMap;
use std::sync::LazyLock;

use foldhash::fast::RandomState;

macro_rules! attributes {
    ($($variant:ident $name:literal,)*) => {
        /// The name of an instruction's attribute.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Attr { $($variant,)* }

        const ATTRIBUTES: &[(&str, Attr)] = &[$(($name, Attr::$variant),)*];
    };
}

attributes! {
    Algorithm "algorithm",
    ApiVersion "api_version",
    AsyncExecutionThread "async_execution_thread",
    BackendConfig "backend_config",
    BatchGroupCount "batch_group_count",
    BlockScalingConfig "block_scaling_config",
    Body "body",
    BranchComputations "branch_computations",
    CalledComputations "called_computations",
    Calls "calls",
    ChannelId "channel_id",
    CollapsedSliceDims "collapsed_slice_dims",
    Condition "condition",
    ConstrainLayout "constrain_layout",
    ControlPredecessors "control-predecessors",
    ConvolutionKind "convolution_kind",
    CrossProgramPrefetchIndex "cross_program_prefetch_index",
    CustomCallHasSideEffect "custom_call_has_side_effect",
    CustomCallTarget "custom_call_target",
    Delta "delta",
    DimLabels "dim_labels",
    Dimensions "dimensions",
    Direction "direction",
    Distribution "distribution",
    Domain "domain",
    DynamicSliceSizes "dynamic_slice_sizes",
    Epsilon "epsilon",
    ExponentBits "exponent_bits",
    FalseComputation "false_computation",
    FeatureGroupCount "feature_group_count",
    FeatureIndex "feature_index",
    FftLength "fft_length",
    FftType "fft_type",
    FrontendAttributes "frontend_attributes",
    HasDynamicRoot "has_dynamic_root",
    Index "index",
    IndexVectorDim "index_vector_dim",
    IndicesAreSorted "indices_are_sorted",
    InfeedConfig "infeed_config",
    InferredDimension "inferred_dimension",
    InputBatchingDims "input_batching_dims",
    InsertedWindowDims "inserted_window_dims",
    IotaDimension "iota_dimension",
    IsAssociative "is_associative",
    IsComposite "is_composite",
    IsHostTransfer "is_host_transfer",
    IsReverse "is_reverse",
    IsStable "is_stable",
    K "k",
    Kind "kind",
    Largest "largest",
    LeftSide "left_side",
    LhsBatchDims "lhs_batch_dims",
    LhsContractingDims "lhs_contracting_dims",
    LhsRaggedDims "lhs_ragged_dims",
    Literal "literal",
    Lower "lower",
    MantissaBits "mantissa_bits",
    Metadata "metadata",
    Mode "mode",
    NumCarries "num_carries",
    OffsetDims "offset_dims",
    OperandBatchingDims "operand_batching_dims",
    OperandLayoutConstraints "operand_layout_constraints",
    OperandPrecision "operand_precision",
    Order "order",
    Origin "origin",
    OutfeedConfig "outfeed_config",
    OutfeedShape "outfeed_shape",
    OutputToOperandAliasing "output_to_operand_aliasing",
    Padding "padding",
    PaddingType "padding_type",
    ParameterReplication "parameter_replication",
    ReplicaGroups "replica_groups",
    ResultAccuracy "result_accuracy",
    RhsBatchDims "rhs_batch_dims",
    RhsContractingDims "rhs_contracting_dims",
    RhsGroupDims "rhs_group_dims",
    Scatter "scatter",
    ScatterDimsToOperandDims "scatter_dims_to_operand_dims",
    ScatterIndicesBatchingDims "scatter_indices_batching_dims",
    Schedule "schedule",
    Select "select",
    Sharding "sharding",
    Slice "slice",
    SliceSizes "slice_sizes",
    SourceTargetPairs "source_target_pairs",
    SparsityConfig "sparsity_config",
    StartIndexMap "start_index_map",
    StartIndicesBatchingDims "start_indices_batching_dims",
    Statistics "statistics",
    ToApply "to_apply",
    TransposeA "transpose_a",
    TrueComputation "true_computation",
    Type "type",
    UniqueIndices "unique_indices",
    UnitDiagonal "unit_diagonal",
    UpdateWindowDims "update_window_dims",
    UseGlobalDeviceIds "use_global_device_ids",
    Window "window",
}

static ATTRIBUTE_BY_NAME: LazyLock<HashMap<&str, Attr, RandomState>> = LazyLock::new(|| {
    // Other spellings that XLA has printed at some time.
    let older = [("conv_kind", Attr::ConvolutionKind)];
    ATTRIBUTES.iter().copied().chain(older).collect()
});

impl Attr {
    pub(super) fn from_name(name: &str) -> Option<Attr> {
        ATTRIBUTE_BY_NAME.get(name).copied()
    }
}

/// A set of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttrSet(u128);

impl AttrSet {
    pub(super) const EMPTY: AttrSet = AttrSet(0);

    pub(super) const fn of(attributes: &[Attr]) -> AttrSet {
        let mut bits = 0;
        let mut index = 0;
        while index < attributes.len() {
            bits |= 1 << attributes[index] as u32;
            index += 1;
        }
        AttrSet(bits)
    }

    pub(super) const fn union(self, other: AttrSet) -> AttrSet {
        AttrSet(self.0 | other.0)
    }

    pub(super) const fn without(self, other: AttrSet) -> AttrSet {
        AttrSet(self.0 & !other.0)
    }

    pub(super) fn contains(self, attr: Attr) -> bool {
        self.0 >> attr as u32 & 1 == 1
    }

    /// Adds an attribute; `false` if it is there already.
    pub(super) fn insert(&mut self, attr: Attr) -> bool {
        let new = !self.contains(attr);
        self.0 |= 1 << attr as u32;
        new
    }

    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let (name, _) = ATTRIBUTES.get(bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(*name)
        })
    }
}

/// Attributes that every instruction takes.
pub(super) const COMMON: AttrSet = AttrSet::of(&[
    Attr::BackendConfig,
    Attr::ControlPredecessors,
    Attr::FrontendAttributes,
    Attr::Metadata,
    Attr::Origin,
    Attr::ParameterReplication,
    Attr::Sharding,
    Attr::Statistics,
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_fit_their_set_and_know_their_names() {
        assert!(ATTRIBUTES.len() <= 128);
        for &(name, attr) in ATTRIBUTES {
            assert_eq!(Attr::from_name(name), Some(attr));
            assert_eq!(ATTRIBUTES[attr as usize].0, name);
        }
    }
}
