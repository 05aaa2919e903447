//! The opcodes, and which attributes each one takes.

use std::collections::HashMap;
use std::sync::LazyLock;

use foldhash::fast::RandomState;

use super::attr::{Attr, AttrSet};

/// How many operands an instruction takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operands {
    Exactly(usize),
    AtLeast(usize),
    Even,
    Odd,
}

impl Operands {
    pub(super) fn accepts(self, count: usize) -> bool {
        match self {
            Operands::Exactly(expected) => count == expected,
            Operands::AtLeast(least) => count >= least,
            Operands::Even => count > 0 && count.is_multiple_of(2),
            Operands::Odd => !count.is_multiple_of(2),
        }
    }

    pub(super) fn describe(self) -> String {
        match self {
            Operands::Exactly(1) => "1 operand".to_owned(),
            Operands::Exactly(count) => format!("{count} operands"),
            Operands::AtLeast(1) => "at least 1 operand".to_owned(),
            Operands::AtLeast(count) => format!("at least {count} operands"),
            Operands::Even => "an even number of operands".to_owned(),
            Operands::Odd => "an odd number of operands".to_owned(),
        }
    }
}

/// What an opcode has of its own: which defaults its protobuf form takes, and how its shape follows from its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Nothing; the text must give the shape.
    Plain,
    /// The result has the first operand's shape.
    LikeFirst,
    /// All operands and the result have the same shape.
    Elementwise,
    /// The result has the second operand's shape.
    LikeSecond,
    AfterAll,
    AsyncDone,
    AsyncStart,
    AsyncUpdate,
    BatchNorm,
    Broadcast,
    Call,
    Cholesky,
    Collective,
    Compare,
    Complex,
    Concatenate,
    Conditional,
    Constant,
    Convolution,
    CustomCall,
    DeviceId,
    Dot,
    Fft,
    Fusion,
    Gather,
    GetDimensionSize,
    GetTupleElement,
    IsFinite,
    Map,
    Outfeed,
    Pad,
    Parameter,
    RaggedDot,
    RealPart,
    Recv,
    RecvDone,
    Reduce,
    ReduceWindow,
    ScaledDot,
    Scan,
    Scatter,
    SelectAndScatter,
    Send,
    SendDone,
    SetDimensionSize,
    Sort,
    TopK,
    Transpose,
    TriangularSolve,
    Tuple,
    While,
}

/// One opcode.
#[derive(Debug)]
pub(super) struct Opcode {
    pub(super) name: &'static str,
    pub(super) rule: Rule,
    pub(super) operands: Operands,
    pub(super) required: AttrSet,
    /// Required ones included, those common to all instructions not.
    pub(super) allowed: AttrSet,
}

impl Opcode {
    pub(super) fn from_name(name: &str) -> Option<&'static Opcode> {
        OPCODE_BY_NAME.get(name).copied()
    }

    /// Does `NAME-start` stand for an async-start around it? Not where XLA has asynchronous opcodes of its own.
    pub(super) fn can_be_wrapped(&self) -> bool {
        const OWN_PAIRS: [&str; 6] = ["all-gather", "all-reduce", "collective-permute", "copy", "recv", "send"];
        let no_operation = matches!(
            self.rule,
            Rule::Parameter | Rule::Constant | Rule::AsyncStart | Rule::AsyncUpdate | Rule::AsyncDone
        );
        !no_operation && !OWN_PAIRS.contains(&self.name)
    }

    /// Is `dimensions=` one dimension?
    pub(super) fn has_one_dimension(&self) -> bool {
        const ONE: [&str; 9] = [
            "all-gather",
            "all-gather-start",
            "all-to-all",
            "concatenate",
            "get-dimension-size",
            "reduce-scatter",
            "scan",
            "set-dimension-size",
            "sort",
        ];
        ONE.contains(&self.name)
    }

    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        OPCODES.iter().map(|opcode| opcode.name)
    }
}

static OPCODE_BY_NAME: LazyLock<HashMap<&str, &Opcode, RandomState>> =
    LazyLock::new(|| OPCODES.iter().map(|opcode| (opcode.name, opcode)).collect());

const fn op(
    name: &'static str,
    rule: Rule,
    operands: Operands,
    required: &'static [Attr],
    optional: &'static [Attr],
) -> Opcode {
    let required = AttrSet::of(required);
    Opcode { name, rule, operands, required, allowed: required.union(AttrSet::of(optional)) }
}

/// An operation without attributes.
const fn plain(name: &'static str, rule: Rule, operands: usize) -> Opcode {
    op(name, rule, Exactly(operands), &[], &[])
}

/// A function of one operand whose accuracy can be asked for.
const fn math(name: &'static str) -> Opcode {
    op(name, Rule::Elementwise, Exactly(1), &[], &[Attr::ResultAccuracy])
}

use Operands::{AtLeast, Even, Exactly, Odd};

const ANY: Operands = AtLeast(0);

#[rustfmt::skip]
static OPCODES: &[Opcode] = &[
    plain("abs", Rule::RealPart, 1),
    math("acos"),
    math("acosh"),
    plain("add", Rule::Elementwise, 2),
    plain("add-dependency", Rule::LikeFirst, 2),
    op("after-all", Rule::AfterAll, ANY, &[], &[]),
    op("all-gather", Rule::Collective, ANY, &[Attr::Dimensions],
        &[Attr::ReplicaGroups, Attr::ChannelId, Attr::ConstrainLayout, Attr::UseGlobalDeviceIds]),
    plain("all-gather-done", Rule::Plain, 1),
    op("all-gather-start", Rule::Collective, ANY, &[Attr::Dimensions],
        &[Attr::ReplicaGroups, Attr::ChannelId, Attr::ConstrainLayout, Attr::UseGlobalDeviceIds]),
    op("all-reduce", Rule::Collective, ANY, &[Attr::ToApply],
        &[Attr::ReplicaGroups, Attr::ChannelId, Attr::ConstrainLayout, Attr::UseGlobalDeviceIds, Attr::Mode]),
    plain("all-reduce-done", Rule::Plain, 1),
    op("all-reduce-start", Rule::Collective, ANY, &[Attr::ToApply],
        &[Attr::ReplicaGroups, Attr::ChannelId, Attr::ConstrainLayout, Attr::UseGlobalDeviceIds, Attr::Mode]),
    op("all-to-all", Rule::Collective, ANY, &[],
        &[Attr::ReplicaGroups, Attr::ChannelId, Attr::Dimensions, Attr::ConstrainLayout]),
    plain("and", Rule::Elementwise, 2),
    math("asin"),
    math("asinh"),
    op("async-done", Rule::AsyncDone, AtLeast(1), &[], &[Attr::Calls, Attr::AsyncExecutionThread]),
    op("async-start", Rule::AsyncStart, ANY, &[Attr::Calls],
        &[Attr::AsyncExecutionThread, Attr::OutputToOperandAliasing]),
    op("async-update", Rule::AsyncUpdate, AtLeast(1), &[],
        &[Attr::Calls, Attr::AsyncExecutionThread, Attr::OutputToOperandAliasing]),
    plain("atan2", Rule::Elementwise, 2),
    math("atanh"),
    op("batch-norm-grad", Rule::BatchNorm, Exactly(5), &[Attr::Epsilon, Attr::FeatureIndex], &[]),
    op("batch-norm-inference", Rule::LikeFirst, Exactly(5), &[Attr::Epsilon, Attr::FeatureIndex], &[]),
    op("batch-norm-training", Rule::BatchNorm, Exactly(3), &[Attr::Epsilon, Attr::FeatureIndex], &[]),
    plain("bitcast", Rule::Plain, 1),
    plain("bitcast-convert", Rule::Plain, 1),
    op("broadcast", Rule::Broadcast, Exactly(1), &[], &[Attr::Dimensions]),
    op("call", Rule::Call, ANY, &[Attr::ToApply], &[Attr::IsComposite]),
    math("cbrt"),
    plain("ceil", Rule::Elementwise, 1),
    op("cholesky", Rule::Cholesky, Exactly(1), &[], &[Attr::Lower]),
    plain("clamp", Rule::LikeSecond, 3),
    op("collective-broadcast", Rule::Collective, ANY, &[],
        &[Attr::ReplicaGroups, Attr::ChannelId, Attr::HasDynamicRoot]),
    op("collective-permute", Rule::Plain, ANY, &[Attr::SourceTargetPairs], &[Attr::ChannelId, Attr::SliceSizes]),
    plain("collective-permute-done", Rule::Plain, 1),
    op("collective-permute-start", Rule::Plain, ANY, &[Attr::SourceTargetPairs],
        &[Attr::ChannelId, Attr::SliceSizes]),
    op("compare", Rule::Compare, Exactly(2), &[Attr::Direction], &[Attr::Type, Attr::Order]),
    plain("complex", Rule::Complex, 2),
    op("concatenate", Rule::Concatenate, AtLeast(1), &[Attr::Dimensions], &[]),
    op("conditional", Rule::Conditional, AtLeast(2), &[],
        &[Attr::TrueComputation, Attr::FalseComputation, Attr::BranchComputations]),
    plain("constant", Rule::Constant, 0),
    plain("convert", Rule::Plain, 1),
    op("convolution", Rule::Convolution, AtLeast(2), &[Attr::DimLabels],
        &[Attr::Window, Attr::FeatureGroupCount, Attr::BatchGroupCount, Attr::ConvolutionKind, Attr::OperandPrecision,
          Attr::Algorithm, Attr::SparsityConfig, Attr::BlockScalingConfig]),
    plain("copy", Rule::LikeFirst, 1),
    plain("copy-done", Rule::Plain, 1),
    op("copy-start", Rule::Plain, Exactly(1), &[], &[Attr::CrossProgramPrefetchIndex]),
    math("cosh"),
    math("cosine"),
    plain("count-leading-zeros", Rule::Elementwise, 1),
    op("custom-call", Rule::CustomCall, ANY, &[Attr::CustomCallTarget],
        &[Attr::Window, Attr::DimLabels, Attr::FeatureGroupCount, Attr::BatchGroupCount, Attr::OperandLayoutConstraints,
          Attr::CustomCallHasSideEffect, Attr::ToApply, Attr::CalledComputations, Attr::OutputToOperandAliasing,
          Attr::PaddingType, Attr::Literal, Attr::OperandPrecision, Attr::Schedule, Attr::ApiVersion]),
    plain("divide", Rule::Elementwise, 2),
    op("domain", Rule::LikeFirst, Exactly(1), &[Attr::Domain], &[]),
    op("dot", Rule::Dot, Exactly(2), &[],
        &[Attr::LhsContractingDims, Attr::RhsContractingDims, Attr::LhsBatchDims, Attr::RhsBatchDims,
          Attr::OperandPrecision, Attr::Algorithm]),
    op("dynamic-reshape", Rule::Plain, AtLeast(1), &[], &[]),
    op("dynamic-slice", Rule::Plain, AtLeast(1), &[Attr::DynamicSliceSizes], &[]),
    op("dynamic-update-slice", Rule::Plain, AtLeast(2), &[], &[]),
    math("erf"),
    math("exponential"),
    math("exponential-minus-one"),
    op("fft", Rule::Fft, Exactly(1), &[Attr::FftType, Attr::FftLength], &[]),
    plain("floor", Rule::Elementwise, 1),
    op("fusion", Rule::Fusion, ANY, &[Attr::Calls, Attr::Kind], &[Attr::OutputToOperandAliasing]),
    op("gather", Rule::Gather, Exactly(2),
        &[Attr::OffsetDims, Attr::CollapsedSliceDims, Attr::StartIndexMap, Attr::IndexVectorDim, Attr::SliceSizes],
        &[Attr::IndicesAreSorted, Attr::OperandBatchingDims, Attr::StartIndicesBatchingDims]),
    op("get-dimension-size", Rule::GetDimensionSize, Exactly(1), &[Attr::Dimensions], &[]),
    op("get-tuple-element", Rule::GetTupleElement, Exactly(1), &[Attr::Index], &[]),
    plain("imag", Rule::RealPart, 1),
    op("infeed", Rule::Plain, Exactly(1), &[], &[Attr::InfeedConfig]),
    op("iota", Rule::Plain, Exactly(0), &[Attr::IotaDimension], &[]),
    plain("is-finite", Rule::IsFinite, 1),
    math("log"),
    math("log-plus-one"),
    math("logistic"),
    op("map", Rule::Map, AtLeast(1), &[Attr::ToApply], &[Attr::Dimensions]),
    plain("maximum", Rule::Elementwise, 2),
    plain("minimum", Rule::Elementwise, 2),
    plain("mulhi", Rule::Elementwise, 2),
    plain("multiply", Rule::Elementwise, 2),
    plain("negate", Rule::Elementwise, 1),
    plain("not", Rule::Elementwise, 1),
    plain("opt-barrier", Rule::LikeFirst, 1),
    plain("or", Rule::Elementwise, 2),
    op("outfeed", Rule::Outfeed, Exactly(2), &[], &[Attr::OutfeedConfig, Attr::OutfeedShape]),
    op("pad", Rule::Pad, Exactly(2), &[Attr::Padding], &[]),
    plain("parameter", Rule::Parameter, 0),
    plain("partition-id", Rule::DeviceId, 0),
    plain("popcnt", Rule::Elementwise, 1),
    plain("power", Rule::Elementwise, 2),
    op("ragged-all-to-all", Rule::Collective, ANY, &[], &[Attr::ReplicaGroups, Attr::ChannelId, Attr::Dimensions]),
    op("ragged-dot", Rule::RaggedDot, Exactly(3), &[],
        &[Attr::LhsContractingDims, Attr::RhsContractingDims, Attr::LhsBatchDims, Attr::RhsBatchDims,
          Attr::LhsRaggedDims, Attr::RhsGroupDims, Attr::OperandPrecision]),
    plain("real", Rule::RealPart, 1),
    op("recv", Rule::Recv, Exactly(1), &[], &[Attr::ChannelId, Attr::IsHostTransfer]),
    op("recv-done", Rule::RecvDone, Exactly(1), &[], &[Attr::ChannelId, Attr::IsHostTransfer]),
    op("reduce", Rule::Reduce, Even, &[Attr::ToApply, Attr::Dimensions], &[]),
    op("reduce-precision", Rule::Plain, Exactly(1), &[Attr::ExponentBits, Attr::MantissaBits], &[]),
    op("reduce-scatter", Rule::Collective, ANY, &[Attr::ToApply, Attr::Dimensions],
        &[Attr::ReplicaGroups, Attr::ChannelId, Attr::ConstrainLayout, Attr::UseGlobalDeviceIds, Attr::Mode]),
    op("reduce-window", Rule::ReduceWindow, Even, &[Attr::ToApply], &[Attr::Window]),
    plain("remainder", Rule::Elementwise, 2),
    plain("replica-id", Rule::DeviceId, 0),
    op("reshape", Rule::Plain, Exactly(1), &[], &[Attr::InferredDimension]),
    op("reverse", Rule::LikeFirst, Exactly(1), &[Attr::Dimensions], &[]),
    op("rng", Rule::Plain, ANY, &[Attr::Distribution], &[]),
    op("rng-bit-generator", Rule::Plain, AtLeast(1), &[Attr::Algorithm], &[]),
    op("rng-get-and-update-state", Rule::Plain, Exactly(0), &[Attr::Delta], &[]),
    plain("round-nearest-afz", Rule::Elementwise, 1),
    plain("round-nearest-even", Rule::Elementwise, 1),
    math("rsqrt"),
    op("scaled-dot", Rule::ScaledDot, Exactly(4), &[],
        &[Attr::LhsContractingDims, Attr::RhsContractingDims, Attr::LhsBatchDims, Attr::RhsBatchDims,
          Attr::OperandPrecision, Attr::Algorithm]),
    op("scan", Rule::Scan, ANY, &[Attr::ToApply, Attr::Dimensions, Attr::NumCarries],
        &[Attr::IsReverse, Attr::IsAssociative]),
    op("scatter", Rule::Scatter, Odd,
        &[Attr::UpdateWindowDims, Attr::InsertedWindowDims, Attr::ScatterDimsToOperandDims, Attr::IndexVectorDim,
          Attr::ToApply],
        &[Attr::IndicesAreSorted, Attr::UniqueIndices, Attr::InputBatchingDims, Attr::ScatterIndicesBatchingDims]),
    plain("select", Rule::LikeSecond, 3),
    op("select-and-scatter", Rule::SelectAndScatter, Exactly(3), &[Attr::Select, Attr::Scatter], &[Attr::Window]),
    op("send", Rule::Send, Exactly(2), &[], &[Attr::ChannelId, Attr::IsHostTransfer]),
    op("send-done", Rule::SendDone, Exactly(1), &[], &[Attr::ChannelId, Attr::IsHostTransfer]),
    op("set-dimension-size", Rule::SetDimensionSize, Exactly(2), &[Attr::Dimensions], &[]),
    plain("shift-left", Rule::Elementwise, 2),
    plain("shift-right-arithmetic", Rule::Elementwise, 2),
    plain("shift-right-logical", Rule::Elementwise, 2),
    plain("sign", Rule::Elementwise, 1),
    math("sine"),
    math("sinh"),
    op("slice", Rule::Plain, Exactly(1), &[Attr::Slice], &[]),
    op("sort", Rule::Sort, AtLeast(1), &[Attr::Dimensions, Attr::ToApply], &[Attr::IsStable]),
    math("sqrt"),
    plain("stochastic-convert", Rule::Plain, 2),
    plain("subtract", Rule::Elementwise, 2),
    math("tan"),
    math("tanh"),
    op("topk", Rule::TopK, Exactly(1), &[Attr::K], &[Attr::Largest, Attr::IsStable]),
    op("transpose", Rule::Transpose, Exactly(1), &[Attr::Dimensions], &[]),
    op("triangular-solve", Rule::TriangularSolve, Exactly(2), &[],
        &[Attr::LeftSide, Attr::Lower, Attr::UnitDiagonal, Attr::TransposeA]),
    op("tuple", Rule::Tuple, ANY, &[], &[]),
    op("while", Rule::While, Exactly(1), &[Attr::Condition, Attr::Body], &[]),
    plain("xor", Rule::Elementwise, 2),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_sorted_and_unique() {
        assert!(OPCODES.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
