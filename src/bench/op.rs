//! The collectives that are measured: programs, engine calls, operands, and what must come out.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::data::{Contents, Numbers};
use crate::collective::{ArraySpec, CollectiveKind, CollectiveSpec, ReduceOp};
use crate::dtype::DType;
use crate::host_array::{ArrayError, HostArray};

/// A collective, as nccl-tests and JAX name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Everyone gets the combination of all operands.
    AllReduce,
    /// Everyone gets all operands, one after the other.
    AllGather,
    /// The rank r gets part r of the combination of all operands.
    ReduceScatter,
    /// Part j of rank i becomes part i of rank j.
    #[serde(rename = "alltoall")]
    AllToAll,
    /// Rank i sends to rank n-1-i of n: with hosts in order, half of all data crosses the middle.
    Ppermute,
    /// Everyone gets the operand of the group's first rank.
    Broadcast,
    /// Each rank sends to the next one, the last one to the first, as in nccl-tests.
    #[serde(rename = "sendrecv")]
    SendRecv,
}

/// A name that is no [`Op`].
#[derive(Debug, thiserror::Error)]
#[error("unknown collective '{0}': known are {names}", names = Op::ALL.map(Op::name).join(", "))]
pub struct UnknownOp(String);

impl FromStr for Op {
    type Err = UnknownOp;

    fn from_str(name: &str) -> Result<Op, UnknownOp> {
        Op::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| UnknownOp(name.to_owned()))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 7] =
        [Op::AllReduce, Op::AllGather, Op::ReduceScatter, Op::AllToAll, Op::Ppermute, Op::Broadcast, Op::SendRecv];

    /// As in `all_reduce`.
    pub fn name(self) -> &'static str {
        match self {
            Op::AllReduce => "all_reduce",
            Op::AllGather => "all_gather",
            Op::ReduceScatter => "reduce_scatter",
            Op::AllToAll => "alltoall",
            Op::Ppermute => "ppermute",
            Op::Broadcast => "broadcast",
            Op::SendRecv => "sendrecv",
        }
    }

    /// Whether operands are combined.
    pub fn reduces(self) -> bool {
        matches!(self, Op::AllReduce | Op::ReduceScatter)
    }

    /// The root's rank in its group; nccl-tests writes -1 where there is none.
    pub fn root(self) -> i32 {
        if self == Op::Broadcast { 0 } else { -1 }
    }

    /// Whether a rank's count of elements is that of its larger buffer divided by the group's ranks.
    fn counts_parts(self) -> bool {
        matches!(self, Op::AllGather | Op::ReduceScatter | Op::AllToAll)
    }
}

/// One collective of one size in one division into groups.
#[derive(Clone, Debug)]
pub struct Case {
    /// The collective.
    pub op: Op,
    /// The element type.
    pub dtype: DType,
    /// How operands are combined, if they are.
    pub reduction: ReduceOp,
    /// Elements, as nccl-tests counts them: of the smaller one of a rank's buffers, or of one part of an alltoall.
    pub count: usize,
    /// Devices of each group in the order of their ranks; all groups have the same size.
    pub groups: Vec<Vec<u32>>,
}

impl Case {
    /// The case whose larger buffer has `size` bytes, rounded down to whole elements for every rank, at least one.
    pub fn new(op: Op, dtype: DType, reduction: ReduceOp, size: usize, groups: Vec<Vec<u32>>) -> Case {
        let mut case = Case { op, dtype, reduction, count: 0, groups };
        let parts = if op.counts_parts() { case.ranks() } else { 1 };
        case.count = (size / dtype.size() / parts).max(1);
        case
    }

    /// Ranks of each group.
    pub fn ranks(&self) -> usize {
        self.groups.first().map_or(1, Vec::len).max(1)
    }

    /// Devices of all groups.
    pub fn devices(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }

    /// Bytes of a rank's larger buffer.
    pub fn size(&self) -> usize {
        self.operand_elements().max(self.result_elements()) * self.dtype.size()
    }

    /// The name of the reduction as nccl-tests has it, `none` where nothing is combined.
    pub fn redop(&self) -> &'static str {
        match self.reduction {
            _ if !self.op.reduces() => "none",
            ReduceOp::Product => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            _ => "sum",
        }
    }

    /// Elements of each rank's operand.
    pub fn operand_elements(&self) -> usize {
        match self.op {
            Op::ReduceScatter | Op::AllToAll => self.count * self.ranks(),
            _ => self.count,
        }
    }

    /// Elements of each rank's result.
    pub fn result_elements(&self) -> usize {
        match self.op {
            Op::AllGather | Op::AllToAll => self.count * self.ranks(),
            _ => self.count,
        }
    }

    /// HLO text of a program that does nothing else, one replica for each device.
    pub fn program(&self) -> String {
        let Case { op, dtype, .. } = self;
        let (operand, result) = (self.operand_elements(), self.result_elements());
        let combiner = match self.reduction {
            ReduceOp::Product => "multiply",
            ReduceOp::Min => "minimum",
            ReduceOp::Max => "maximum",
            _ => "add",
        };
        let groups = format!("replica_groups={}", braces(&self.groups));
        let call = match op {
            Op::AllReduce => format!("all-reduce(x), {groups}, to_apply=combine"),
            Op::ReduceScatter => format!("reduce-scatter(x), {groups}, dimensions={{0}}, to_apply=combine"),
            Op::AllGather => format!("all-gather(x), {groups}, dimensions={{0}}"),
            Op::AllToAll => format!("all-to-all(x), {groups}, dimensions={{0}}"),
            Op::Broadcast => format!("collective-broadcast(x), {groups}"),
            Op::Ppermute | Op::SendRecv => {
                let pairs: Vec<Vec<u32>> = self.pairs().iter().map(|&(source, target)| vec![source, target]).collect();
                format!("collective-permute(x), source_target_pairs={}", braces(&pairs))
            }
        };
        let combine = format!(
            "combine {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n  ROOT c = {dtype}[] {combiner}(a, b)\n}}\n\n"
        );
        format!(
            "HloModule {op}, replica_count={}\n\n{}ENTRY main {{\n  x = {dtype}[{operand}] parameter(0)\n  ROOT y = {dtype}[{result}] {call}\n}}\n",
            self.devices(),
            if op.reduces() { combine.as_str() } else { "" }
        )
    }

    /// The same as a call of the engine.
    pub fn spec(&self) -> CollectiveSpec {
        let op = self.reduction;
        let kind = match self.op {
            Op::AllReduce => CollectiveKind::AllReduce { op },
            Op::ReduceScatter => CollectiveKind::ReduceScatter { op, dim: 0 },
            Op::AllGather => CollectiveKind::AllGather { dim: 0 },
            Op::AllToAll => CollectiveKind::AllToAll { split_dim: Some(0) },
            Op::Broadcast => CollectiveKind::CollectiveBroadcast,
            Op::Ppermute | Op::SendRecv => CollectiveKind::CollectivePermute { pairs: self.pairs() },
        };
        // A permutation concerns all devices at once.
        let groups = if matches!(self.op, Op::Ppermute | Op::SendRecv) { Vec::new() } else { self.groups.clone() };
        CollectiveSpec {
            key: 0,
            name: self.op.name().to_owned(),
            kind,
            groups,
            operands: vec![ArraySpec::new(self.dtype, [self.operand_elements()])],
            results: vec![ArraySpec::new(self.dtype, [self.result_elements()])],
        }
    }

    /// What a device puts in.
    pub fn operand(&self, device: u32) -> Result<HostArray, ArrayError> {
        let elements = self.operand_elements();
        let (group, rank) = self.place(device);
        HostArray::new(self.dtype, vec![elements], self.numbers().operand(group, rank).array(elements))
    }

    /// How many elements of what a device got out are wrong, missing ones included.
    pub fn count_wrong(&self, device: u32, result: &[u8]) -> u64 {
        let (group, rank) = self.place(device);
        let ranks = group.len();
        let numbers = self.numbers();
        let operand = |rank: usize| numbers.operand(group, rank);
        let whole = |contents: Contents| contents.count_wrong(0..self.count, result);
        // Part j of the result against what `contents` has for it.
        let in_parts = |start: usize| {
            let bytes = self.count * self.dtype.size();
            let part = |from: usize| {
                let found = result.get(from * bytes..).unwrap_or_default();
                operand(from).count_wrong(start..start + self.count, &found[..bytes.min(found.len())])
            };
            (0..ranks).map(part).sum()
        };
        match self.op {
            Op::AllReduce => whole(numbers.combined(group)),
            Op::ReduceScatter => {
                let start = rank * self.count;
                numbers.combined(group).count_wrong(start..start + self.count, result)
            }
            Op::AllGather => in_parts(0),
            Op::AllToAll => in_parts(rank * self.count),
            Op::Broadcast => whole(operand(0)),
            Op::Ppermute => whole(operand(ranks - 1 - rank)),
            Op::SendRecv => whole(operand((rank + ranks - 1) % ranks)),
        }
    }

    fn numbers(&self) -> Numbers {
        Numbers::new(self.dtype, self.ranks() as u32, self.op.reduces().then_some(self.reduction))
    }

    /// A device's group and rank; the first place for a device that there is not.
    fn place(&self, device: u32) -> (&[u32], usize) {
        let place = self.groups.iter().find_map(|group| {
            let rank = group.iter().position(|&member| member == device)?;
            Some((&group[..], rank))
        });
        place.unwrap_or((&[0], 0))
    }

    /// Sources and targets of what is sent.
    fn pairs(&self) -> Vec<(u32, u32)> {
        let of_group = |group: &Vec<u32>| -> Vec<(u32, u32)> {
            let ranks = group.len();
            let target = |rank: usize| if self.op == Op::Ppermute { ranks - 1 - rank } else { (rank + 1) % ranks };
            (0..ranks).map(|rank| (group[rank], group[target(rank)])).collect()
        };
        self.groups.iter().flat_map(of_group).collect()
    }
}

/// As HLO text writes lists of lists.
fn braces(lists: &[Vec<u32>]) -> String {
    let list = |list: &Vec<u32>| format!("{{{}}}", list.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
    format!("{{{}}}", lists.iter().map(list).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Split;
    use crate::collective::{Communicator, Limits, World};
    use crate::hlo::{self, Program};

    fn case(op: Op, dtype: DType, size: usize, split: &str) -> Case {
        let groups = split.parse::<Split>().unwrap().groups(4).unwrap();
        Case::new(op, dtype, ReduceOp::Sum, size, groups)
    }

    /// What four devices of one process get out of this call of the engine when they put in what the case says.
    fn results(case: &Case, spec: CollectiveSpec) -> Vec<Vec<u8>> {
        let world = World { process_index: 0, devices_per_process: vec![4], slices: vec![] };
        let communicator = Communicator::new(world, None, Limits::default()).unwrap();
        let operands: Vec<_> = (0..4).map(|device| vec![case.operand(device).unwrap().into_data()]).collect();
        let repeated = communicator.program(0, vec![spec]).unwrap().repeat(0, 0, 2, &operands).unwrap();
        repeated.results.into_iter().flatten().collect()
    }

    fn wrong(case: &Case, results: &[Vec<u8>]) -> u64 {
        (0..).zip(results).map(|(device, result)| case.count_wrong(device, result)).sum()
    }

    #[test]
    fn sizes_and_counts_are_those_of_nccl_tests() {
        let all = |op| {
            let case = case(op, DType::F32, 1024, "DIV:4");
            (case.count, case.operand_elements(), case.result_elements(), case.size())
        };
        assert_eq!(all(Op::AllReduce), (256, 256, 256, 1024));
        assert_eq!(all(Op::AllGather), (64, 64, 256, 1024));
        assert_eq!(all(Op::ReduceScatter), (64, 256, 64, 1024));
        assert_eq!(all(Op::AllToAll), (64, 256, 256, 1024));
        assert_eq!(all(Op::SendRecv), (256, 256, 256, 1024));
        assert_eq!(case(Op::AllGather, DType::F32, 1000, "DIV:4").size(), 992);
        assert_eq!(case(Op::AllGather, DType::F32, 4, "DIV:4").size(), 16);
        let factor = |op| case(op, DType::F32, 1000, "DIV:1").spec().kind.busbw_factor(4);
        assert_eq!([Op::AllReduce, Op::AllToAll, Op::Broadcast].map(factor), [1.5, 0.75, 1.0]);
    }

    #[test]
    fn right_results_pass_the_check() {
        for (op, split) in Op::ALL.into_iter().flat_map(|op| ["DIV:4", "MOD:2", "3,0/1,2"].map(|split| (op, split))) {
            for dtype in [DType::F32, DType::BF16, DType::F8E5M2, DType::C64] {
                let case = case(op, dtype, 10_000 * dtype.size(), split);
                assert_eq!(wrong(&case, &results(&case, case.spec())), 0, "{op} {dtype} {split}");
            }
        }
        for reduction in [ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
            let case = Case { reduction, ..case(Op::ReduceScatter, DType::F16, 40_000, "DIV:4") };
            assert_eq!(wrong(&case, &results(&case, case.spec())), 0, "{reduction}");
        }
    }

    #[test]
    fn wrong_results_do_not() {
        let sum = case(Op::AllReduce, DType::F32, 40_000, "DIV:4");
        let other = Case { reduction: ReduceOp::Max, ..sum.clone() };
        assert!(wrong(&sum, &results(&sum, other.spec())) > 30_000);
        for op in Op::ALL {
            let (case, other) = (case(op, DType::F32, 40_000, "DIV:2"), case(op, DType::F32, 40_000, "MOD:2"));
            assert!(wrong(&case, &results(&case, other.spec())) > 0, "{op} in other groups");
            let mut results = results(&case, case.spec());
            results[2][4001] ^= 1;
            assert_eq!(wrong(&case, &results), 1, "{op} with a wrong element");
            results[1].truncate(16);
            assert_eq!(wrong(&case, &results), 1 + case.result_elements() as u64 - 4, "{op} cut short");
        }
    }

    #[test]
    fn programs_are_valid() {
        for (op, dtype) in Op::ALL.into_iter().flat_map(|op| [DType::F32, DType::S8].map(|dtype| (op, dtype))) {
            let case = case(op, dtype, 4096, "MOD:2");
            let Program::Hlo(module) = hlo::load(case.program().as_bytes(), "bench").unwrap() else { panic!("MLIR") };
            hlo::verify(&module, 4, 1).unwrap_or_else(|error| panic!("{op}: {error}"));
        }
    }
}
