use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

use super::error::CollectiveError;

/// The element type and dimensions of one operand or result on one device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArraySpec {
    /// Element type.
    pub dtype: DType,
    /// Sizes of the dimensions, major to minor.
    pub dims: Vec<usize>,
}

impl ArraySpec {
    /// An array of `dtype` with these dimensions.
    pub fn new(dtype: DType, dims: impl Into<Vec<usize>>) -> ArraySpec {
        ArraySpec { dtype, dims: dims.into() }
    }

    /// Number of elements; `None` if it does not fit a `usize`.
    pub fn num_elements(&self) -> Option<usize> {
        self.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))
    }

    /// Size in bytes, one byte per element for types narrower than that; `None` if it does not fit an `isize`.
    pub fn size(&self) -> Option<usize> {
        self.num_elements()?.checked_mul(self.dtype.size()).filter(|&size| isize::try_from(size).is_ok())
    }
}

/// Up to this size in bytes of its larger arrays, a collective is over sooner than another thread is awake.
pub(super) const BRIEF_LIMIT: usize = 2 << 20;

impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (index, dim) in self.dims.iter().enumerate() {
            write!(f, "{}{dim}", if index == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// Addition; integers wrap, `pred` is or.
    Sum,
    /// Multiplication; integers wrap, `pred` is and.
    Product,
    /// The smaller one; NaN if either is NaN.
    Min,
    /// The greater one; NaN if either is NaN.
    Max,
    /// Bitwise and, of integers and `pred`.
    And,
    /// Bitwise or, of integers and `pred`.
    Or,
    /// Bitwise exclusive or, of integers and `pred`.
    Xor,
}

impl ReduceOp {
    /// Whether XLA defines the operation for elements of this type.
    pub fn supports(self, dtype: DType) -> bool {
        match self {
            ReduceOp::Sum | ReduceOp::Product => true,
            ReduceOp::Min | ReduceOp::Max => !matches!(dtype, DType::C64 | DType::C128),
            ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
                use DType::*;
                matches!(dtype, Pred | S1 | S2 | S4 | S8 | S16 | S32 | S64 | U1 | U2 | U4 | U8 | U16 | U32 | U64)
            }
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Product => "product",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::And => "and",
            ReduceOp::Or => "or",
            ReduceOp::Xor => "xor",
        })
    }
}

/// What a collective does, as XLA's operation semantics define it. A device's rank is its position in its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CollectiveKind {
    /// Every device gets the element-wise combination of the group's operands.
    AllReduce {
        /// The combiner.
        op: ReduceOp,
    },
    /// Every device gets the group's operands concatenated in rank order.
    AllGather {
        /// The dimension along which they are concatenated.
        dim: usize,
    },
    /// The device of rank r gets the r-th part of what an all-reduce would give.
    ReduceScatter {
        /// The combiner.
        op: ReduceOp,
        /// The dimension that is cut into one part per rank.
        dim: usize,
    },
    /// Part j of the device of rank i goes to the device of rank j, as its part i.
    AllToAll {
        /// The dimension that is cut into parts; `None` if there is one operand and one result per part (tuple form).
        split_dim: Option<usize>,
    },
    /// Operands go from source to target; devices that are nobody's target get zeros.
    CollectivePermute {
        /// (source, target) pairs of global device ids.
        pairs: Vec<(u32, u32)>,
    },
    /// Every device gets the operands of the group's first device.
    CollectiveBroadcast,
    /// Rows go to the other devices of the group at offsets that are known at run time only. The operands are input,
    /// output, input_offsets, send_sizes, output_offsets and recv_sizes; the result is the output with the rows that
    /// arrived written into it. Entry `j * k + u` of the last four is update `u` of `k` to (recv_sizes: from) rank `j`;
    /// output offsets are those in the target's output.
    RaggedAllToAll,
}

impl CollectiveKind {
    /// The bus bandwidth as a multiple of the algorithm bandwidth (bytes of the larger buffer of a rank ÷ time), for
    /// groups of `ranks` ranks: nccl-tests' `doc/PERFORMANCE.md`.
    pub fn busbw_factor(&self, ranks: usize) -> f64 {
        let others = ranks.saturating_sub(1) as f64 / ranks.max(1) as f64;
        match self {
            CollectiveKind::AllReduce { .. } => 2.0 * others,
            CollectiveKind::AllGather { .. }
            | CollectiveKind::ReduceScatter { .. }
            | CollectiveKind::AllToAll { .. }
            | CollectiveKind::RaggedAllToAll => others,
            CollectiveKind::CollectivePermute { .. } | CollectiveKind::CollectiveBroadcast => 1.0,
        }
    }

    /// XLA's name of the operation.
    pub fn opcode(&self) -> &'static str {
        match self {
            CollectiveKind::AllReduce { .. } => "all-reduce",
            CollectiveKind::AllGather { .. } => "all-gather",
            CollectiveKind::ReduceScatter { .. } => "reduce-scatter",
            CollectiveKind::AllToAll { .. } => "all-to-all",
            CollectiveKind::CollectivePermute { .. } => "collective-permute",
            CollectiveKind::CollectiveBroadcast => "collective-broadcast",
            CollectiveKind::RaggedAllToAll => "ragged-all-to-all",
        }
    }
}

/// One collective instruction of a program; identical on every process of the job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CollectiveSpec {
    /// The number by which the program's custom call names it; unique within the program.
    pub key: u32,
    /// The instruction's name, for messages.
    pub name: String,
    /// What it does.
    pub kind: CollectiveKind,
    /// Groups of global device ids; no groups mean one of all devices.
    pub groups: Vec<Vec<u32>>,
    /// The operands on each device.
    pub operands: Vec<ArraySpec>,
    /// The results on each device.
    pub results: Vec<ArraySpec>,
}

impl fmt::Display for CollectiveSpec {
    /// As in `all-reduce.3 = all-reduce sum (f32[8,4], f32[2])`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ", self.name, self.kind.opcode())?;
        if let CollectiveKind::AllReduce { op } | CollectiveKind::ReduceScatter { op, .. } = self.kind {
            write!(f, "{op} ")?;
        }
        f.write_str("(")?;
        for (index, operand) in self.operands.iter().enumerate() {
            write!(f, "{}{operand}", if index == 0 { "" } else { ", " })?;
        }
        f.write_str(")")
    }
}

impl CollectiveSpec {
    /// Whether it takes so long that a device can do something else meanwhile.
    pub fn is_long(&self) -> bool {
        let size = |arrays: &[ArraySpec]| arrays.iter().filter_map(ArraySpec::size).fold(0, usize::saturating_add);
        size(&self.operands).max(size(&self.results)) > BRIEF_LIMIT
    }

    /// A number that differs between instructions that do not fit together.
    pub(super) fn digest(&self) -> u64 {
        let text = format!("{:?} {:?} {:?} {:?}", self.kind, self.groups, self.operands, self.results);
        let mut first = [0; 8];
        first.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..8]);
        u64::from_le_bytes(first)
    }

    /// Checks that the instruction means something on `device_count` devices. `groups` are the resolved ones.
    pub(super) fn check(&self, groups: &[Vec<u32>], device_count: u32) -> Result<(), CollectiveError> {
        self.problem(groups, device_count)
            .map_err(|problem| CollectiveError::InvalidSpec { instruction: self.name.clone(), problem })
    }

    fn problem(&self, groups: &[Vec<u32>], device_count: u32) -> Result<(), String> {
        let mut seen = HashSet::new();
        for &device in groups.iter().flatten() {
            if device >= device_count {
                return Err(format!("its groups name device {device}, the job has {device_count} devices"));
            }
            if !seen.insert(device) {
                return Err(format!("its groups name device {device} twice"));
            }
        }
        if groups.iter().any(Vec::is_empty) {
            return Err("one of its groups is empty".to_owned());
        }
        for array in self.operands.iter().chain(&self.results) {
            if array.size().is_none() {
                return Err(format!("{array} is larger than memory"));
            }
        }
        match &self.kind {
            CollectiveKind::AllReduce { op } => {
                self.check_reduction(*op)?;
                self.check_results(|operand| Some(operand.dims.clone()))
            }
            CollectiveKind::AllGather { dim } => {
                let ranks = self.uniform_group_size(groups)?;
                self.check_results(|operand| scaled(operand, *dim, |size| size.checked_mul(ranks)))
            }
            CollectiveKind::ReduceScatter { op, dim } => {
                self.check_reduction(*op)?;
                let ranks = self.uniform_group_size(groups)?;
                self.check_results(|operand| scaled(operand, *dim, |size| exact_part(size, ranks)))
            }
            CollectiveKind::AllToAll { split_dim: Some(dim) } => {
                let ranks = self.uniform_group_size(groups)?;
                self.check_results(|operand| {
                    scaled(operand, *dim, |size| exact_part(size, ranks)).map(|_| operand.dims.clone())
                })
            }
            CollectiveKind::AllToAll { split_dim: None } => {
                let ranks = self.uniform_group_size(groups)?;
                if self.operands.len() != ranks {
                    return Err(format!("it has {} operands for {ranks} devices in a group", self.operands.len()));
                }
                if self.operands.iter().any(|operand| *operand != self.operands[0]) {
                    return Err("its operands differ in type or shape".to_owned());
                }
                self.check_results(|operand| Some(operand.dims.clone()))
            }
            CollectiveKind::CollectivePermute { pairs } => {
                self.check_pairs(pairs, groups)?;
                self.check_results(|operand| Some(operand.dims.clone()))
            }
            CollectiveKind::CollectiveBroadcast => self.check_results(|operand| Some(operand.dims.clone())),
            CollectiveKind::RaggedAllToAll => self.check_ragged(groups),
        }
    }

    fn check_reduction(&self, op: ReduceOp) -> Result<(), String> {
        match self.operands.iter().find(|operand| !op.supports(operand.dtype)) {
            Some(operand) => Err(format!("{op} is not defined for {}", operand.dtype)),
            None => Ok(()),
        }
    }

    /// The results have the operands' types and the dimensions that `expected` makes of the operands'.
    fn check_results(&self, expected: impl Fn(&ArraySpec) -> Option<Vec<usize>>) -> Result<(), String> {
        if self.operands.len() != self.results.len() {
            return Err(format!("it has {} operands and {} results", self.operands.len(), self.results.len()));
        }
        for (operand, result) in self.operands.iter().zip(&self.results) {
            if operand.dtype != result.dtype || expected(operand).is_none_or(|dims| dims != result.dims) {
                return Err(format!("{operand} as operand and {result} as result do not fit its groups"));
            }
        }
        Ok(())
    }

    fn uniform_group_size(&self, groups: &[Vec<u32>]) -> Result<usize, String> {
        let size = groups.first().map_or(0, Vec::len);
        match groups.iter().find(|group| group.len() != size) {
            Some(other) => Err(format!("its groups have different sizes, {size} and {}", other.len())),
            None => Ok(size),
        }
    }

    fn check_pairs(&self, pairs: &[(u32, u32)], groups: &[Vec<u32>]) -> Result<(), String> {
        let mut targets = HashSet::new();
        for &(source, target) in pairs {
            if !targets.insert(target) {
                return Err(format!("device {target} is the target of two pairs"));
            }
            if !groups.iter().any(|group| group.contains(&source) && group.contains(&target)) {
                return Err(format!("no group holds both devices of the pair {{{source},{target}}}"));
            }
        }
        Ok(())
    }

    fn check_ragged(&self, groups: &[Vec<u32>]) -> Result<(), String> {
        let ([input, output, numbers @ ..], [result]) = (&self.operands[..], &self.results[..]) else {
            return Err("it needs six operands and one result".to_owned());
        };
        let ranks = self.uniform_group_size(groups)?;
        if input.dtype != output.dtype || input.dims.is_empty() || input.dims.get(1..) != output.dims.get(1..) {
            return Err(format!("rows of {input} do not fit {output}"));
        }
        if result != output {
            return Err(format!("the result {result} is not like the output operand {output}"));
        }
        let [first, ..] = numbers else { return Err("it needs six operands".to_owned()) };
        let whole = first.dims.len() == 1 && exact_part(first.dims[0], ranks).is_some();
        if numbers.len() != 4 || !whole || numbers.iter().any(|array| array != first) {
            return Err(format!("it needs four lists of offsets and sizes with a multiple of {ranks} entries"));
        }
        if !matches!(first.dtype, DType::S32 | DType::S64 | DType::U32 | DType::U64) {
            return Err(format!("offsets and sizes cannot be {}", first.dtype));
        }
        Ok(())
    }
}

fn scaled(array: &ArraySpec, dim: usize, scale: impl Fn(usize) -> Option<usize>) -> Option<Vec<usize>> {
    let mut dims = array.dims.clone();
    let size = dims.get_mut(dim)?;
    *size = scale(*size)?;
    Some(dims)
}

fn exact_part(size: usize, parts: usize) -> Option<usize> {
    (parts != 0 && size.is_multiple_of(parts)).then(|| size / parts)
}
