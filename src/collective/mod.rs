//! collective

use crate::dtype::DType;

/// One collective of a program, as every process knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveSpec {
    /// Unique in its program.
    pub key: u32,
    /// The instruction's name.
    pub name: String,
    /// What it does.
    pub kind: CollectiveKind,
    /// Global device ids in rank order.
    pub groups: Vec<Vec<u32>>,
    /// Operands of one device.
    pub operands: Vec<ArraySpec>,
    /// Results of one device.
    pub results: Vec<ArraySpec>,
}

/// Element type and dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub dims: Vec<usize>,
}

/// What a collective does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CollectiveKind {
    AllReduce { op: ReduceOp },
    AllGather { dim: usize },
    ReduceScatter { op: ReduceOp, dim: usize },
    AllToAll { split_dim: Option<usize> },
    CollectivePermute { pairs: Vec<(u32, u32)> },
    CollectiveBroadcast,
    RaggedAllToAll,
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ReduceOp {
    Sum,
    Product,
    Min,
    Max,
    And,
    Or,
    Xor,
}
