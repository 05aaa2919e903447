//! The collectives that move elements and compute nothing.

use std::collections::HashMap;
use std::io::IoSlice;
use std::ops::Range;

use crate::bulk_copy;
use crate::transport::{Segment, TransportError};

use super::buffer::{Input, Output};
use super::engine::Call;
use super::exchange::Exchange;
use super::group::Group;
use super::scratch::{Scratch, ScratchPool};
use super::spec::{ArraySpec, CollectiveKind, CollectiveSpec};

const STEP: u32 = 0;

/// Equally spaced blocks of bytes in a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    offset: usize,
    /// Bytes in a block.
    len: usize,
    /// Bytes from the start of one to the start of the next.
    stride: usize,
    count: usize,
}

impl Blocks {
    /// Part `index` of `parts` of an array cut along `dim`, with elements of `element_size` bytes.
    pub fn part_of(array: &ArraySpec, element_size: usize, dim: usize, index: usize, parts: usize) -> Blocks {
        let (outer, inner) = array.dims.split_at(dim.min(array.dims.len()));
        let stride = inner.iter().product::<usize>() * element_size;
        let len = stride / parts.max(1);
        Blocks { offset: index * len, len, stride, count: outer.iter().product() }
    }

    fn whole(size: usize) -> Blocks {
        Blocks { offset: 0, len: size, stride: size, count: 1 }
    }

    pub fn size(&self) -> usize {
        self.len * self.count
    }

    /// The bytes as one range, if they are one.
    pub fn contiguous(&self) -> Option<Range<usize>> {
        (self.count == 1 || self.len == self.stride).then(|| self.offset..self.offset + self.size())
    }

    fn offsets(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| self.offset + index * self.stride)
    }

    /// Copies the blocks of `from` one after the other into `packed`.
    pub fn pack(&self, from: &[u8], packed: &mut [u8]) {
        if self.len > 0 {
            for (offset, target) in self.offsets().zip(packed.chunks_exact_mut(self.len)) {
                target.copy_from_slice(&from[offset..offset + self.len]);
            }
        }
    }

    fn unpack(&self, packed: &[u8], to: &mut Output) {
        if self.len > 0 {
            for (offset, source) in self.offsets().zip(packed.chunks_exact(self.len)) {
                to.part_mut(offset..offset + self.len).copy_from_slice(source);
            }
        }
    }
}

/// Bytes that go from an operand of one device to a result of another, or the same one.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: usize,
    operand: usize,
    source: Blocks,
    to: usize,
    result: usize,
    target: Blocks,
}

/// The transfers of one instruction within one group that this process has a part in. Every process derives those
/// between two processes in the same order.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Process, what goes there, what comes from there; processes with neither are left out.
    peers: Vec<(u32, Vec<Transfer>, Vec<Transfer>)>,
    local: Vec<Transfer>,
    /// Local ranks whose results are zeros.
    zero: Vec<usize>,
    /// Everything goes to each island once, and from the process that gets it there to the others.
    by_islands: bool,
    /// What comes, or goes on, that way.
    relays: Vec<Relay>,
    /// The other processes of this island, if there are relays.
    mates: Vec<u32>,
    /// All devices get the same results: only the first one of each process takes part in the transfers, and hands its
    /// results on.
    spread: bool,
}

/// The part of one process of another island.
#[derive(Debug)]
struct Relay {
    step: u32,
    receives: Vec<Transfer>,
    way: Way,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    /// It comes from this process of our island.
    From(u32),
    /// It comes from the process at this place in the plan's peers, and goes on to the others of our island.
    Onward(usize),
}

impl Plan {
    /// Whether processes hand on what they got from other islands.
    pub fn is_by_islands(&self) -> bool {
        self.by_islands
    }

    /// Lets everything that all devices get travel to each island once; `false` if there is nothing of the sort.
    pub fn go_by_islands(&mut self, spec: &CollectiveSpec, group: &Group) -> bool {
        if !same_for_all(&spec.kind) {
            return false;
        }
        let (island, _) = group.place(group.mine);
        let local_ranks = group.local_ranks();
        let between = |from: &[usize], to: &[usize]| transfers(spec, group.members.len(), None, from, to);
        let process = |part: usize| group.parts[part].process;
        let mates = group.islands[island].iter().copied().filter(|&mate| mate != group.mine);
        self.mates = mates.map(process).collect();
        self.by_islands = true;
        self.peers.clear();
        for (index, part) in group.parts.iter().enumerate().filter(|(index, _)| *index != group.mine) {
            let (there, _) = group.place(index);
            let (mut sends, mut receives) = (between(local_ranks, &part.ranks), between(&part.ranks, local_ranks));
            if there != island {
                let carrier = group.carrier(island, index);
                if group.carrier(there, group.mine) != index {
                    sends.clear();
                }
                let way =
                    if carrier == group.mine { Way::Onward(self.peers.len()) } else { Way::From(process(carrier)) };
                if !receives.is_empty() {
                    self.relays.push(Relay { step: 1 + index as u32, receives: receives.clone(), way });
                }
                if carrier != group.mine {
                    receives.clear();
                }
            }
            if !sends.is_empty() || !receives.is_empty() {
                self.peers.push((part.process, sends, receives));
            }
        }
        true
    }

    /// The other processes that take part.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        self.peers.iter().map(|(process, ..)| *process)
    }

    /// The size in bytes of the largest message of this process.
    fn largest_message(&self) -> usize {
        let messages = self.peers.iter().flat_map(|(_, sends, receives)| [sends, receives]);
        let size = |transfers: &Vec<Transfer>| transfers.iter().map(|transfer| transfer.source.size()).sum();
        messages.map(size).max().unwrap_or(0)
    }

    /// The plan of a checked instruction; empty if it does not only move elements.
    pub fn new(spec: &CollectiveSpec, group: &Group) -> Plan {
        let sources = match &spec.kind {
            CollectiveKind::CollectivePermute { pairs } => Some(Sources::new(pairs, group)),
            _ => None,
        };
        let local_ranks = group.local_ranks();
        let transfers = |from: &[usize], to: &[usize]| transfers(spec, group.members.len(), sources.as_ref(), from, to);
        let peers = group
            .peers()
            .map(|part| (part.process, transfers(local_ranks, &part.ranks), transfers(&part.ranks, local_ranks)));
        Plan {
            peers: peers.filter(|(_, sends, receives)| !sends.is_empty() || !receives.is_empty()).collect(),
            local: transfers(local_ranks, local_ranks),
            zero: match &sources {
                Some(sources) => local_ranks.iter().copied().filter(|rank| !sources.0.contains_key(rank)).collect(),
                None => Vec::new(),
            },
            spread: same_for_all(&spec.kind),
            ..Plan::default()
        }
    }
}

/// The size in bytes of the largest message between any two processes of the group, the same on all of them. Of a permute
/// only the messages of this process count, which `plan` has.
pub(super) fn largest_message(spec: &CollectiveSpec, group: &Group, plan: &Plan) -> usize {
    let mut devices: Vec<usize> = group.parts.iter().map(|part| part.ranks.len()).collect();
    devices.sort_unstable_by(|a, b| b.cmp(a));
    let (most, next) = (devices.first().copied().unwrap_or(0), devices.get(1).copied().unwrap_or(0));
    let operands: usize = spec.operands.iter().filter_map(ArraySpec::size).sum();
    match spec.kind {
        CollectiveKind::AllGather { .. } => operands.saturating_mul(most),
        CollectiveKind::AllToAll { .. } => (operands / group.members.len().max(1)).saturating_mul(most * next),
        CollectiveKind::CollectivePermute { .. } => plan.largest_message(),
        _ => operands,
    }
}

/// The source rank of each target rank of a collective-permute.
struct Sources(HashMap<usize, usize>);

impl Sources {
    fn new(pairs: &[(u32, u32)], group: &Group) -> Sources {
        let ranks: HashMap<u32, usize> =
            group.members.iter().enumerate().map(|(rank, &device)| (device, rank)).collect();
        let ranks_of = |&(source, target): &(u32, u32)| Some((*ranks.get(&target)?, *ranks.get(&source)?));
        Sources(pairs.iter().filter_map(ranks_of).collect())
    }
}

fn same_for_all(kind: &CollectiveKind) -> bool {
    matches!(kind, CollectiveKind::AllGather { .. } | CollectiveKind::CollectiveBroadcast)
}

fn transfers(
    spec: &CollectiveSpec,
    ranks: usize,
    permute: Option<&Sources>,
    sources: &[usize],
    targets: &[usize],
) -> Vec<Transfer> {
    let targets = if same_for_all(&spec.kind) { &targets[..1] } else { targets };
    let mut transfers = Vec::new();
    if let Some(Sources(source_of)) = permute {
        for &to in targets {
            if let Some(&from) = source_of.get(&to).filter(|from| sources.contains(from)) {
                transfers.extend(whole_operands(spec, from, to));
            }
        }
        return transfers;
    }
    for &from in sources {
        for &to in targets {
            match spec.kind {
                CollectiveKind::AllGather { dim } => {
                    let part = |array: &ArraySpec| Blocks::part_of(array, array.dtype.size(), dim, from, ranks);
                    let parts = spec.results.iter().map(part);
                    let whole = whole_operands(spec, from, to);
                    transfers.extend(whole.zip(parts).map(|(transfer, target)| Transfer { target, ..transfer }));
                }
                CollectiveKind::AllToAll { split_dim: Some(dim) } => {
                    for (index, array) in spec.operands.iter().enumerate() {
                        let part = |rank| Blocks::part_of(array, array.dtype.size(), dim, rank, ranks);
                        let (source, target) = (part(to), part(from));
                        transfers.push(Transfer { from, operand: index, source, to, result: index, target });
                    }
                }
                CollectiveKind::AllToAll { split_dim: None } => {
                    let whole = Blocks::whole(spec.operands.first().and_then(ArraySpec::size).unwrap_or(0));
                    transfers.push(Transfer { from, operand: to, source: whole, to, result: from, target: whole });
                }
                CollectiveKind::CollectiveBroadcast if from == 0 => transfers.extend(whole_operands(spec, from, to)),
                _ => {}
            }
        }
    }
    transfers
}

fn whole_operands(spec: &CollectiveSpec, from: usize, to: usize) -> impl Iterator<Item = Transfer> {
    spec.operands.iter().enumerate().map(move |(index, array)| {
        let whole = Blocks::whole(array.size().unwrap_or(0));
        Transfer { from, operand: index, source: whole, to, result: index, target: whole }
    })
}

/// Runs an all-gather, all-to-all, collective-permute or collective-broadcast. `calls` are the local devices' in rank
/// order.
pub(super) fn run(
    plan: &Plan,
    calls: &mut [Call],
    exchange: &Exchange<'_>,
    scratch: &ScratchPool,
) -> Result<(), TransportError> {
    let second_hand = plan.relays.iter().filter_map(|relay| match relay.way {
        Way::From(process) => Some((process, relay.step, &relay.receives)),
        Way::Onward(_) => None,
    });
    let first_hand = plan.peers.iter().map(|(process, _, receives)| (*process, STEP, receives));
    let sources: Vec<_> = first_hand.chain(second_hand).collect();
    let mut incoming: Vec<Incoming> = sources.iter().map(|(.., receives)| Incoming::new(receives, scratch)).collect();
    let mut posted = Vec::with_capacity(incoming.len());
    for ((process, step, _), incoming) in sources.iter().zip(&mut incoming) {
        // SAFETY: the segments are parts of results, which live until all calls are done, or of scratch memory that
        // lives as long as `incoming`, declared before `posted`. Nothing else touches these parts of the results
        // meanwhile: each has one source.
        posted.push((*process, unsafe { exchange.post(*process, *step, incoming.segments(calls))? }));
    }
    let mut lent = Vec::with_capacity(plan.peers.len());
    for (process, sends, _) in &plan.peers {
        let outgoing = Outgoing::new(sends, calls, scratch);
        let loan = exchange.lend(*process, STEP, &outgoing.slices(sends))?;
        lent.push((*process, loan, outgoing));
    }
    move_locally(plan, calls);
    let mut handed_on = Vec::new();
    for (index, (process, receive)) in posted.into_iter().enumerate() {
        exchange.finish(process, receive)?;
        for relay in plan.relays.iter().filter(|relay| matches!(relay.way, Way::Onward(peer) if peer == index)) {
            for mate in &plan.mates {
                let loan = exchange.lend(*mate, relay.step, &incoming[index].slices(calls))?;
                handed_on.push((*mate, loan));
            }
        }
    }
    for (process, loan, _outgoing) in lent {
        exchange.reclaim(process, loan)?;
    }
    for (process, loan) in handed_on {
        exchange.reclaim(process, loan)?;
    }
    for incoming in incoming {
        incoming.unpack(calls);
    }
    if plan.spread {
        spread(calls);
    }
    Ok(())
}

/// The first half of a collective whose messages are small: gives away what others need.
pub(super) fn begin(
    plan: &Plan,
    calls: &mut [Call],
    exchange: &Exchange<'_>,
    scratch: &ScratchPool,
) -> Result<(), TransportError> {
    for (process, sends, _) in &plan.peers {
        let outgoing = Outgoing::new(sends, calls, scratch);
        exchange.send(*process, STEP, &outgoing.slices(sends))?;
    }
    move_locally(plan, calls);
    Ok(())
}

/// The second half: puts what others gave where it belongs.
pub(super) fn finish(plan: &Plan, calls: &mut [Call], exchange: &Exchange<'_>) -> Result<(), TransportError> {
    for (process, _, receives) in &plan.peers {
        let len = receives.iter().map(|transfer| transfer.target.size()).sum();
        exchange.take(*process, STEP, len, &mut |message| unpack(message, receives, calls))?;
    }
    if plan.spread {
        spread(calls);
    }
    Ok(())
}

fn move_locally(plan: &Plan, calls: &mut [Call]) {
    for transfer in &plan.local {
        copy_locally(transfer, calls);
    }
    for &rank in &plan.zero {
        call_of(calls, rank).results.iter_mut().for_each(|result| result.bytes_mut().fill(0));
    }
}

/// Copies the first call's results to the other calls.
pub(super) fn spread(calls: &mut [Call]) {
    let Some((first, others)) = calls.split_first_mut() else { return };
    for other in others {
        for (source, target) in first.results.iter_mut().zip(&mut other.results) {
            let source = source.bytes_mut();
            bulk_copy::copy(target.bytes_mut(), source, source.len() >= bulk_copy::LARGE);
        }
    }
}

fn call_of(calls: &mut [Call], rank: usize) -> &mut Call {
    let index = calls.partition_point(|call| call.rank < rank);
    &mut calls[index]
}

fn operand(calls: &[Call], transfer: &Transfer) -> Input {
    calls[calls.partition_point(|call| call.rank < transfer.from)].args[transfer.operand]
}

fn copy_locally(transfer: &Transfer, calls: &mut [Call]) {
    let operand = operand(calls, transfer);
    let result = &mut call_of(calls, transfer.to).results[transfer.result];
    match (transfer.source.contiguous(), transfer.target.contiguous()) {
        (Some(source), Some(target)) => {
            let is_large = source.len() >= bulk_copy::LARGE;
            bulk_copy::copy(result.part_mut(target), &operand.bytes()[source], is_large);
        }
        (Some(source), None) => transfer.target.unpack(&operand.bytes()[source], result),
        // The parts of an all-to-all lie alike in operand and result.
        _ => {
            let len = transfer.source.len;
            for (from, to) in transfer.source.offsets().zip(transfer.target.offsets()) {
                result.part_mut(to..to + len).copy_from_slice(&operand.bytes()[from..from + len]);
            }
        }
    }
}

/// What goes to one process: from the operands where its bytes lie together there, else from memory of its own.
struct Outgoing<'a> {
    operands: Vec<Input>,
    packed: Scratch<'a>,
}

impl<'a> Outgoing<'a> {
    fn new(transfers: &[Transfer], calls: &[Call], scratch: &'a ScratchPool) -> Outgoing<'a> {
        let operands: Vec<Input> = transfers.iter().map(|transfer| operand(calls, transfer)).collect();
        let scattered =
            || transfers.iter().zip(&operands).filter(|(transfer, _)| transfer.source.contiguous().is_none());
        let mut packed = scratch.take(scattered().map(|(transfer, _)| transfer.source.size()).sum());
        let mut free = &mut packed[..];
        for (transfer, operand) in scattered() {
            let (part, rest) = std::mem::take(&mut free).split_at_mut(transfer.source.size());
            transfer.source.pack(operand.bytes(), part);
            free = rest;
        }
        Outgoing { operands, packed }
    }

    /// The bytes of the same transfers.
    fn slices(&self, transfers: &[Transfer]) -> Vec<IoSlice<'_>> {
        let mut packed = &self.packed[..];
        let mut slices = Vec::with_capacity(transfers.len());
        for (transfer, operand) in transfers.iter().zip(&self.operands) {
            slices.push(IoSlice::new(match transfer.source.contiguous() {
                Some(range) => &operand.bytes()[range],
                None => {
                    let (part, rest) = packed.split_at(transfer.source.size());
                    packed = rest;
                    part
                }
            }));
        }
        slices
    }
}

/// What comes from one process: straight into the results where its bytes lie together there, else through memory of
/// its own.
struct Incoming<'a> {
    transfers: &'a [Transfer],
    packed: Option<Scratch<'a>>,
}

impl<'a> Incoming<'a> {
    fn new(transfers: &'a [Transfer], scratch: &'a ScratchPool) -> Incoming<'a> {
        let direct = transfers.iter().all(|transfer| transfer.target.contiguous().is_some());
        let packed = (!direct).then(|| scratch.take(transfers.iter().map(|transfer| transfer.target.size()).sum()));
        Incoming { transfers, packed }
    }

    fn segments(&mut self, calls: &mut [Call]) -> Vec<Segment> {
        if let Some(packed) = &mut self.packed {
            return vec![Segment::new(packed)];
        }
        let mut segments = Vec::with_capacity(self.transfers.len());
        for transfer in self.transfers {
            if let Some(range) = transfer.target.contiguous() {
                let result = &mut call_of(calls, transfer.to).results[transfer.result];
                let is_large = range.len() >= bulk_copy::LARGE;
                segments.push(Segment::new(result.part_mut(range)).part_of_large(is_large));
            }
        }
        segments
    }

    /// What has come, to hand it on.
    fn slices<'b>(&'b self, calls: &'b [Call]) -> Vec<IoSlice<'b>> {
        if let Some(packed) = &self.packed {
            return vec![IoSlice::new(packed)];
        }
        let slice = |transfer: &Transfer| {
            let call = &calls[calls.partition_point(|call| call.rank < transfer.to)];
            Some(IoSlice::new(call.results[transfer.result].part(transfer.target.contiguous()?)))
        };
        self.transfers.iter().filter_map(slice).collect()
    }

    fn unpack(self, calls: &mut [Call]) {
        if let Some(packed) = &self.packed {
            unpack(packed, self.transfers, calls);
        }
    }
}

/// Copies the bytes of transfers, one after the other, to where they belong.
fn unpack(mut packed: &[u8], transfers: &[Transfer], calls: &mut [Call]) {
    for transfer in transfers {
        let (part, rest) = packed.split_at(transfer.target.size());
        transfer.target.unpack(part, &mut call_of(calls, transfer.to).results[transfer.result]);
        packed = rest;
    }
}
