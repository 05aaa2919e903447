//! What a collective sends over which links, by this module's algorithms, and how long that takes.
//!
//! Processes are the parts of a group. What process `p` sends to process `q` is a product `u_p × v_q` in each phase of each
//! algorithm, so sums over slices give what everyone sends and receives without a look at each pair.

use std::collections::HashMap;

use serde::Serialize;

use super::cluster::Cluster;
use super::engine::ONE_STEP_LIMIT;
use super::is_widened;
use super::reduction::is_direct;
use super::spec::{ArraySpec, BRIEF_LIMIT, CollectiveKind, CollectiveSpec};
use crate::dtype::DType;
use crate::transport::EAGER_LIMIT;

/// How a collective's processes share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// All devices of each group are in one process, which exchanges nothing.
    InProcess,
    /// Every process sends each other one what that needs.
    Direct,
    /// Every process combines a slice and hands it to all.
    Slices,
    /// The processes of an island, a slice or else a host, act together towards others.
    Islands,
}

impl Algorithm {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::InProcess => "in process",
            Algorithm::Direct => "direct",
            Algorithm::Slices => "slices",
            Algorithm::Islands => "islands",
        }
    }
}

/// What limits a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// It exchanges nothing.
    Nothing,
    /// The rate of the links inside slices.
    IciBandwidth,
    /// Their latency.
    IciLatency,
    /// The rate of the links between slices.
    DcnBandwidth,
    /// Their latency.
    DcnLatency,
}

impl Limit {
    /// Words for it.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Nothing => "-",
            Limit::IciBandwidth => "ICI bandwidth",
            Limit::IciLatency => "ICI latency",
            Limit::DcnBandwidth => "DCN bandwidth",
            Limit::DcnLatency => "DCN latency",
        }
    }
}

/// Collectives of groups, as far as their traffic differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Permute,
}

/// One collective: what each device brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Transfer {
    pub kind: Kind,
    /// Bytes of the operands of one device.
    pub operand_bytes: u64,
    /// How many times as large partial results are that several devices made.
    pub widening: u32,
}

impl Transfer {
    /// What a collective transfers; its groups' members are told elsewhere.
    fn of(spec: &CollectiveSpec) -> Transfer {
        let kind = match spec.kind {
            CollectiveKind::AllReduce { .. } => Kind::AllReduce,
            CollectiveKind::AllGather { .. } => Kind::AllGather,
            CollectiveKind::ReduceScatter { .. } => Kind::ReduceScatter,
            CollectiveKind::AllToAll { .. } | CollectiveKind::RaggedAllToAll => Kind::AllToAll,
            CollectiveKind::CollectiveBroadcast => Kind::Broadcast,
            CollectiveKind::CollectivePermute { .. } => Kind::Permute,
        };
        let sizes = spec.operands.iter().filter_map(ArraySpec::size);
        let operand_bytes = sizes.fold(0, |sum: u64, size| sum.saturating_add(size as u64));
        Transfer { kind, operand_bytes, widening: widening(spec.operands.first().map(|operand| operand.dtype)) }
    }

    /// Bytes of one device's operands or results, whichever are more, in a group of `ranks`.
    fn longest(&self, ranks: f64) -> f64 {
        self.operand_bytes as f64 * if self.kind == Kind::AllGather { ranks } else { 1.0 }
    }
}

/// How many times as large as their operands partial results of several devices are.
pub(crate) fn widening(dtype: Option<DType>) -> u32 {
    dtype.filter(|&dtype| is_widened(dtype)).map_or(1, |dtype| (size_of::<f32>() / dtype.size().max(1)) as u32)
}

/// How long a collective takes, and why.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// Seconds from when all devices are there until all have their results.
    pub seconds: f64,
    /// The algorithm of its largest group.
    pub algorithm: Algorithm,
    /// What it waits for.
    pub limit: Limit,
    /// What the busiest process sends or receives inside its slice, in bytes.
    pub ici_bytes: f64,
    /// What the busiest host sends to or receives from other slices, in bytes.
    pub dcn_bytes: f64,
}

/// What goes out of and into something.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    out: f64,
    into: f64,
}

impl Flow {
    fn most(self) -> f64 {
        self.out.max(self.into)
    }
}

/// The members of a group on one process.
#[derive(Clone, Copy)]
struct Part {
    process: u32,
    devices: f64,
}

/// What the groups of a collective send together.
struct Tally<'a> {
    cluster: &'a Cluster,
    /// Whether islands act together; `None` to decide by the size of messages.
    by_islands: Option<bool>,
    /// By process.
    ici: Vec<Flow>,
    /// By host.
    dcn: Vec<Flow>,
    /// Steps that cannot overlap, by the link that they take.
    ici_steps: f64,
    dcn_steps: f64,
    /// Seconds in which nothing else is on its way.
    alone: f64,
    /// A lower bound of the time on the links between slices, where few pieces are under way.
    turnaround: f64,
    algorithm: Algorithm,
}

/// The time of a collective of these groups, all of which run at once; of a permute the groups are pairs. Between slices it
/// is that of the quicker algorithm, which the engine takes.
pub(crate) fn time(cluster: &Cluster, transfer: Transfer, groups: &[Vec<u32>]) -> Timing {
    if !cluster.has_slices() {
        return time_as(cluster, transfer, groups, None);
    }
    let [flat, by_islands] = [false, true].map(|by_islands| time_as(cluster, transfer, groups, Some(by_islands)));
    if by_islands.seconds < flat.seconds { by_islands } else { flat }
}

/// Whether a collective of these groups is sooner over when the processes of islands act together.
pub(super) fn prefers_islands(cluster: &Cluster, spec: &CollectiveSpec, groups: &[Vec<u32>]) -> bool {
    let transfer = Transfer::of(spec);
    let seconds = |by_islands| time_as(cluster, transfer, groups, Some(by_islands)).seconds;
    has_islands(transfer.kind) && seconds(true) < seconds(false)
}

/// Whether there is an algorithm in which islands act together: not where all that is sent is for one device only.
fn has_islands(kind: Kind) -> bool {
    !matches!(kind, Kind::AllToAll | Kind::Permute)
}

fn time_as(cluster: &Cluster, transfer: Transfer, groups: &[Vec<u32>], by_islands: Option<bool>) -> Timing {
    let mut tally = Tally {
        cluster,
        by_islands,
        ici: vec![Flow::default(); cluster.process_count()],
        dcn: vec![Flow::default(); cluster.host_count()],
        ici_steps: 0.0,
        dcn_steps: 0.0,
        alone: 0.0,
        turnaround: 0.0,
        algorithm: Algorithm::InProcess,
    };
    for group in groups {
        match (transfer.kind, &group[..]) {
            (Kind::Permute, &[source, target]) => tally.pair(source, target, transfer.operand_bytes as f64),
            _ => tally.group(transfer, group),
        }
    }
    tally.timing()
}

impl Tally<'_> {
    fn timing(self) -> Timing {
        let most = |flows: &[Flow]| flows.iter().map(|flow| flow.most()).fold(0.0, f64::max);
        let (ici_bytes, dcn_bytes) = (most(&self.ici), most(&self.dcn));
        let Cluster { ici, dcn, .. } = self.cluster;
        let on_ici = ici_bytes / ici.bytes_per_second;
        let on_dcn = (dcn_bytes / dcn.bytes_per_second).max(self.turnaround);
        let (ici_latency, dcn_latency) = (self.ici_steps * ici.latency_seconds, self.dcn_steps * dcn.latency_seconds);
        let causes = [
            (on_dcn, Limit::DcnBandwidth),
            (on_ici + self.alone, Limit::IciBandwidth),
            (dcn_latency, Limit::DcnLatency),
            (ici_latency, Limit::IciLatency),
        ];
        let limit = causes.into_iter().filter(|(seconds, _)| *seconds > 0.0).max_by(|a, b| a.0.total_cmp(&b.0));
        Timing {
            seconds: on_ici.max(on_dcn) + self.alone + ici_latency + dcn_latency,
            algorithm: self.algorithm,
            limit: limit.map_or(Limit::Nothing, |(_, limit)| limit),
            ici_bytes,
            dcn_bytes,
        }
    }

    fn pair(&mut self, source: u32, target: u32, bytes: f64) {
        let (from, to) = (self.cluster.process_of(source), self.cluster.process_of(target));
        if from == to {
            return;
        }
        self.algorithm = Algorithm::Direct;
        if self.cluster.slice_of(from) == self.cluster.slice_of(to) {
            self.ici[from as usize].out += bytes;
            self.ici[to as usize].into += bytes;
            self.ici_steps = 1.0;
        } else {
            self.dcn[self.cluster.host_of(from) as usize].out += bytes;
            self.dcn[self.cluster.host_of(to) as usize].into += bytes;
            self.dcn_steps = 1.0;
        }
    }

    fn group(&mut self, transfer: Transfer, group: &[u32]) {
        let parts = self.parts(group);
        if parts.len() < 2 {
            return;
        }
        let islands = self.islands(&parts);
        let n = group.len() as f64;
        let bytes = transfer.operand_bytes as f64;
        let wide = |devices: f64| if devices > 1.0 { f64::from(transfer.widening) } else { 1.0 };
        let most = parts.iter().map(|part| part.devices).fold(0.0, f64::max);
        let root = group.first().map(|&device| self.cluster.process_of(device));
        let is_root = |part: &Part| Some(part.process) == root;
        // The largest message decides whether one step is enough.
        let largest = match transfer.kind {
            Kind::AllGather => bytes * most,
            Kind::ReduceScatter => bytes / n * most * f64::from(transfer.widening),
            Kind::AllToAll => bytes / n * most * most,
            _ => bytes * f64::from(transfer.widening),
        };
        let direct = transfer.kind != Kind::AllReduce
            || is_direct((transfer.operand_bytes * u64::from(transfer.widening)) as usize, parts.len(), true);
        let is_one_step = largest <= ONE_STEP_LIMIT as f64 && direct;
        let by_islands = self.by_islands.unwrap_or(!is_one_step);
        let is_layered = !islands.is_empty() && by_islands && has_islands(transfer.kind);
        let algorithm = match transfer.kind {
            _ if is_layered => Algorithm::Islands,
            Kind::AllReduce if !direct => Algorithm::Slices,
            _ => Algorithm::Direct,
        };
        self.algorithm = self.algorithm.max(algorithm);
        let count = parts.len() as f64;
        match (transfer.kind, is_layered) {
            (Kind::AllReduce, true) => self.all_reduce_by_islands(&parts, &islands, bytes, &wide),
            (Kind::ReduceScatter, true) => self.reduce_scatter_by_islands(&parts, &islands, bytes / n, &wide),
            (Kind::AllGather, true) => self.gather_by_islands(&parts, &islands, &|part| bytes * part.devices),
            (Kind::Broadcast, true) => {
                self.gather_by_islands(&parts, &islands, &|part| if is_root(part) { bytes } else { 0.0 });
            }
            (Kind::AllReduce, false) if direct => self.exchange(&parts, |part| bytes * wide(part.devices), |_| 1.0),
            (Kind::AllReduce, false) => {
                self.exchange(&parts, |part| bytes * wide(part.devices), |_| 1.0 / count);
                self.exchange(&parts, |_| bytes / count, |_| 1.0);
            }
            (Kind::ReduceScatter, false) => {
                self.exchange(&parts, |part| bytes / n * wide(part.devices), |part| part.devices);
            }
            (Kind::AllGather, false) => self.exchange(&parts, |part| bytes * part.devices, |_| 1.0),
            (Kind::Broadcast, false) => self.exchange(&parts, |part| if is_root(part) { bytes } else { 0.0 }, |_| 1.0),
            (Kind::AllToAll | Kind::Permute, _) => {
                self.exchange(&parts, |part| bytes / n * part.devices, |part| part.devices);
            }
        }
        let steps = if algorithm == Algorithm::Slices { 2.0 } else { 1.0 };
        let slices = |parts: &[Part]| parts.iter().any(|part| self.slice(part) != self.slice(&parts[0]));
        let (near, far) = match (is_layered, slices(&parts)) {
            (true, crosses) => {
                let there_and_back = if transfer.kind == Kind::AllReduce { 2.0 } else { 1.0 };
                if crosses { (there_and_back, there_and_back) } else { (2.0 * there_and_back, 0.0) }
            }
            (false, true) => (0.0, steps),
            (false, false) => (steps, 0.0),
        };
        // Processes may tell each other first that they are there.
        let is_brief = !is_one_step && transfer.longest(n) <= BRIEF_LIMIT as f64;
        let meeting = if is_layered || is_brief { 1.0 } else { 0.0 };
        let (near, far) = if slices(&parts) { (near, far + meeting) } else { (near + meeting, far) };
        self.ici_steps = self.ici_steps.max(near);
        self.dcn_steps = self.dcn_steps.max(far);
    }

    fn slice(&self, part: &Part) -> u32 {
        self.cluster.slice_of(part.process)
    }

    fn parts(&self, group: &[u32]) -> Vec<Part> {
        let mut processes: Vec<u32> = group.iter().map(|&device| self.cluster.process_of(device)).collect();
        processes.sort_unstable();
        let chunks = processes.chunk_by(|a, b| a == b);
        chunks.map(|chunk| Part { process: chunk[0], devices: chunk.len() as f64 }).collect()
    }

    /// Positions in `parts` by island, where there are several islands and several processes on some of them; else empty.
    fn islands(&self, parts: &[Part]) -> Vec<Vec<usize>> {
        let mut islands: Vec<Vec<usize>> = Vec::new();
        let mut places: HashMap<u32, usize> = HashMap::new();
        for (index, part) in parts.iter().enumerate() {
            let island = if self.cluster.has_slices() { self.slice(part) } else { self.cluster.host_of(part.process) };
            let place = *places.entry(island).or_insert(islands.len());
            match islands.get_mut(place) {
                Some(indices) => indices.push(index),
                None => islands.push(vec![index]),
            }
        }
        if islands.len() > 1 && islands.len() < parts.len() { islands } else { Vec::new() }
    }

    /// Every process `p` sends `u(p) × v(q)` bytes to every other process `q` of these.
    fn exchange(&mut self, parts: &[Part], u: impl Fn(&Part) -> f64, v: impl Fn(&Part) -> f64) {
        let mut sums: HashMap<u32, (f64, f64)> = HashMap::new();
        let mut all = (0.0, 0.0);
        for part in parts {
            let of_slice = sums.entry(self.slice(part)).or_default();
            for sum in [of_slice, &mut all] {
                sum.0 += u(part);
                sum.1 += v(part);
            }
        }
        for part in parts {
            let (u, v) = (u(part), v(part));
            let (slice_u, slice_v) = sums.get(&self.slice(part)).copied().unwrap_or_default();
            self.near(part, u * (slice_v - v), v * (slice_u - u));
            self.far(part, u * (all.1 - slice_v), v * (all.0 - slice_u));
        }
    }

    fn near(&mut self, part: &Part, out: f64, into: f64) {
        let flow = &mut self.ici[part.process as usize];
        flow.out += out;
        flow.into += into;
    }

    fn far(&mut self, part: &Part, out: f64, into: f64) {
        let flow = &mut self.dcn[self.cluster.host_of(part.process) as usize];
        flow.out += out;
        flow.into += into;
    }

    /// Between islands: slices, or hosts of one slice.
    fn between(&mut self, part: &Part, out: f64, into: f64) {
        if self.cluster.has_slices() { self.far(part, out, into) } else { self.near(part, out, into) }
    }

    fn of(&self, parts: &[Part], island: &[usize]) -> Vec<Part> {
        island.iter().map(|&index| parts[index]).collect()
    }

    /// As `Reduction::all_reduce_by_islands`: shares of an island's processes, whose pieces belong to the islands in turn.
    fn all_reduce_by_islands(
        &mut self,
        parts: &[Part],
        islands: &[Vec<usize>],
        bytes: f64,
        wide: &impl Fn(f64) -> f64,
    ) {
        let shares = islands.iter().map(Vec::len).min().unwrap_or(1);
        let share = bytes / shares as f64;
        let pieces = (share / EAGER_LIMIT as f64).ceil().max(1.0);
        let others = islands.len() as f64 - 1.0;
        for (number, island) in islands.iter().enumerate() {
            let mates = self.of(parts, island);
            let devices: f64 = mates.iter().map(|part| part.devices).sum();
            let has_share = |part: &Part| mates[..shares].iter().any(|other| other.process == part.process);
            let (first, rest) = mates.split_at(shares);
            let (holders, all) = (shares as f64, mates.len() as f64);
            for part in first.iter().chain(rest) {
                let own = if has_share(part) { 1.0 } else { 0.0 };
                let partials = share * wide(part.devices);
                let from_mates: f64 = mates.iter().map(|mate| wide(mate.devices)).sum::<f64>() - wide(part.devices);
                self.near(part, partials * (holders - own), own * share * from_mates);
                self.near(part, own * share * (all - 1.0), share * (holders - own));
            }
            // Rounds of which this island combines the partial results.
            let owned = ((pieces - number as f64) / islands.len() as f64).ceil().max(0.0) / pieces;
            let partial = share * wide(devices);
            for part in first {
                self.between(part, (1.0 - owned) * partial, owned * others * partial);
                self.between(part, owned * others * share, (1.0 - owned) * share);
            }
        }
        let piece = share.min(EAGER_LIMIT as f64);
        let together = shares.min(self.cluster.processes_per_host()) as f64;
        if self.cluster.has_slices() {
            self.turnaround = self.turnaround.max(2.0 * piece * together / self.cluster.dcn.bytes_per_second);
        }
        self.alone = self.alone.max(2.0 * piece / self.cluster.ici.bytes_per_second);
    }

    /// As `Reduction::reduce_scatter_by_islands`: `result` bytes are those of one device's result.
    fn reduce_scatter_by_islands(
        &mut self,
        parts: &[Part],
        islands: &[Vec<usize>],
        result: f64,
        wide: &impl Fn(f64) -> f64,
    ) {
        let total = |island: &[usize]| island.iter().map(|&index| parts[index].devices).sum::<f64>();
        let others = islands.len() as f64 - 1.0;
        for island in islands {
            // Devices of other islands whose results each process combines for its own island.
            let mut carried = vec![0.0; island.len()];
            for other in islands.iter().filter(|other| other[0] != island[0]) {
                for (place, &index) in other.iter().enumerate() {
                    carried[place % island.len()] += parts[index].devices;
                }
            }
            let targets: f64 = carried.iter().sum::<f64>() + total(island);
            let sent: f64 = island.iter().map(|&index| wide(parts[index].devices)).sum();
            for (place, &index) in island.iter().enumerate() {
                let part = parts[index];
                let own = carried[place] + part.devices;
                let width = wide(part.devices);
                self.near(&part, result * width * (targets - own), result * own * (sent - width));
                self.between(&part, result * carried[place] * wide(total(island)), 0.0);
                self.between(&part, 0.0, result * part.devices * others * wide(2.0));
            }
        }
        self.alone = self.alone.max(EAGER_LIMIT as f64 / self.cluster.ici.bytes_per_second);
    }

    /// As the relays of all-gathers and broadcasts: everything goes to each island once, and on from who gets it there.
    fn gather_by_islands(&mut self, parts: &[Part], islands: &[Vec<usize>], own: &dyn Fn(&Part) -> f64) {
        let others = islands.len() as f64 - 1.0;
        let mut last_relay = 0.0f64;
        for island in islands {
            let mates = self.of(parts, island);
            let mut carried = vec![0.0f64; island.len()];
            for other in islands.iter().filter(|other| other[0] != island[0]) {
                for (place, &index) in other.iter().enumerate() {
                    carried[place % island.len()] += own(&parts[index]);
                    last_relay = last_relay.max(own(&parts[index]) * (mates.len() as f64 - 1.0));
                }
            }
            self.exchange(&mates, own, |_| 1.0);
            let all: f64 = carried.iter().sum();
            for (part, &carried) in mates.iter().zip(&carried) {
                self.between(part, others * own(part), carried);
                self.near(part, carried * (mates.len() as f64 - 1.0), all - carried);
            }
        }
        // A message goes on when all of it is there.
        self.alone = self.alone.max(last_relay / self.cluster.ici.bytes_per_second);
    }
}
