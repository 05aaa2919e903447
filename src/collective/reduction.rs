//! The collectives that combine elements. Each process combines its local operands in rank order; these partial results
//! are combined in process order, so every process computes the same.

use std::io::IoSlice;
use std::ops::Range;

use crate::dtype::DType;
use crate::transport::{Segment, TransportError};

use super::buffer::Input;
use super::engine::Call;
use super::exchange::Exchange;
use super::group::{Group, Part};
use super::movement::{Blocks, spread};
use super::reduce::{Source, fold, is_widened, partial_size};
use super::scratch::{Scratch, ScratchPool};
use super::spec::{ArraySpec, CollectiveSpec, ReduceOp};

/// Partial results go to whoever combines them, and the combined ones to everyone.
const PARTIAL: u8 = 0;
const COMBINED: u8 = 1;

/// Up to this size every process sends its partial result to every other one: one step instead of two.
const DIRECT_LIMIT: usize = 32 << 10;

/// The same with two processes, where it moves no more bytes.
const DIRECT_LIMIT_OF_TWO: usize = 256 << 10;

/// Whether a process with these members holds its partial results as f32.
fn is_wide(part: &Part, dtype: DType) -> bool {
    part.ranks.len() > 1 && is_widened(dtype)
}

fn width(part: &Part, dtype: DType) -> usize {
    partial_size(dtype, is_wide(part, dtype))
}

fn source<'a>(part: &Part, dtype: DType, bytes: &'a [u8]) -> Source<'a> {
    if is_wide(part, dtype) { Source::Wide(bytes) } else { Source::Native(bytes) }
}

fn scale(elements: &Range<usize>, width: usize) -> Range<usize> {
    elements.start * width..elements.end * width
}

/// The elements that process `index` of `count` combines, of an array of `len`.
fn chunk(len: usize, index: usize, count: usize) -> Range<usize> {
    let start = |index: usize| len / count * index + (len % count).min(index);
    start(index)..start(index + 1)
}

/// One all-reduce between several processes. The results of the first local device serve as memory.
struct AllReduce<'a> {
    spec: &'a CollectiveSpec,
    op: ReduceOp,
    group: &'a Group,
    /// Elements per operand.
    lens: Vec<usize>,
    /// The operands of the only local device, which are the partial results then.
    only: Option<Vec<Input>>,
    /// Widened partial results of several local devices, per operand; the others are in the results.
    wide: Vec<Option<Scratch<'a>>>,
}

/// Runs an all-reduce. `calls` are the local devices' in rank order.
pub(super) fn all_reduce(
    spec: &CollectiveSpec,
    op: ReduceOp,
    group: &Group,
    calls: &mut [Call],
    exchange: &Exchange<'_>,
    scratch: &ScratchPool,
) -> Result<(), TransportError> {
    if group.parts.len() == 1 {
        for (index, array) in spec.operands.iter().enumerate() {
            let operands: Vec<Input> = calls.iter().map(|call| call.args[index]).collect();
            let sources: Vec<Source> = operands.iter().map(|operand| Source::Native(operand.bytes())).collect();
            fold(op, array.dtype, &sources, calls[0].results[index].bytes_mut(), false);
        }
    } else {
        let size: usize = spec.operands.iter().filter_map(ArraySpec::size).sum();
        let limit = if group.parts.len() == 2 { DIRECT_LIMIT_OF_TWO } else { DIRECT_LIMIT };
        let reduction = AllReduce::new(spec, op, group, calls, scratch);
        if size <= limit {
            reduction.directly(calls, exchange, scratch)?;
        } else {
            reduction.by_chunks(calls, exchange, scratch)?;
        }
    }
    spread(calls);
    Ok(())
}

impl<'a> AllReduce<'a> {
    fn new(
        spec: &'a CollectiveSpec,
        op: ReduceOp,
        group: &'a Group,
        calls: &mut [Call],
        scratch: &'a ScratchPool,
    ) -> AllReduce<'a> {
        let lens: Vec<usize> = spec.operands.iter().map(|array| array.num_elements().unwrap_or(0)).collect();
        let mut wide = Vec::new();
        let only = match calls {
            [only] => Some(only.args.clone()),
            _ => None,
        };
        for (index, (array, len)) in spec.operands.iter().zip(&lens).enumerate().filter(|_| only.is_none()) {
            let operands: Vec<Input> = calls.iter().map(|call| call.args[index]).collect();
            let sources: Vec<Source> = operands.iter().map(|operand| Source::Native(operand.bytes())).collect();
            if is_widened(array.dtype) {
                let mut sums = scratch.take(len * size_of::<f32>());
                fold(op, array.dtype, &sources, &mut sums, true);
                wide.push(Some(sums));
            } else {
                fold(op, array.dtype, &sources, calls[0].results[index].bytes_mut(), false);
                wide.push(None);
            }
        }
        AllReduce { spec, op, group, lens, only, wide }
    }

    fn mine(&self) -> &Part {
        &self.group.parts[self.group.mine]
    }

    /// Bytes of a part's partial results for the elements that `elements` picks from each operand.
    fn partial_size(&self, part: &Part, elements: impl Fn(usize) -> Range<usize>) -> usize {
        let arrays = self.spec.operands.iter().zip(&self.lens);
        arrays.map(|(array, &len)| elements(len).len() * width(part, array.dtype)).sum()
    }

    /// This process' partial results for the elements that `elements` picks from each operand.
    fn partials<'b>(&'b self, calls: &'b [Call], elements: impl Fn(usize) -> Range<usize>) -> Vec<IoSlice<'b>> {
        let part = |(index, (array, &len)): (usize, (&ArraySpec, &usize))| {
            let range = scale(&elements(len), width(self.mine(), array.dtype));
            IoSlice::new(match (&self.only, self.wide.get(index)) {
                (Some(operands), _) => &operands[index].bytes()[range],
                (None, Some(Some(sums))) => &sums[range],
                (None, _) => calls[0].results[index].part(range),
            })
        };
        self.spec.operands.iter().zip(&self.lens).enumerate().map(part).collect()
    }

    /// Combines the partial results of all processes for the elements that `elements` picks. `partials` holds the
    /// other processes', in the order of the group's peers.
    fn combine(&self, calls: &mut [Call], partials: &[Scratch<'_>], elements: impl Fn(usize) -> Range<usize>) {
        let mut of_part: Vec<Option<&[u8]>> = vec![None; self.group.parts.len()];
        for (offset, partial) in partials.iter().enumerate() {
            let index = (self.group.mine + 1 + offset) % self.group.parts.len();
            of_part[index] = Some(partial);
        }
        for (index, (array, &len)) in self.spec.operands.iter().zip(&self.lens).enumerate() {
            let elements = elements(len);
            let mut sources = Vec::with_capacity(of_part.len());
            for (part, rest) in self.group.parts.iter().zip(&mut of_part) {
                sources.push(match rest {
                    Some(bytes) => {
                        let (head, tail) = bytes.split_at(elements.len() * width(part, array.dtype));
                        *bytes = tail;
                        source(part, array.dtype, head)
                    }
                    None => self.own_source(index, array, &elements),
                });
            }
            let target = calls[0].results[index].part_mut(scale(&elements, array.dtype.size()));
            fold(self.op, array.dtype, &sources, target, false);
        }
    }

    fn own_source(&self, index: usize, array: &ArraySpec, elements: &Range<usize>) -> Source<'_> {
        match (&self.only, self.wide.get(index)) {
            (Some(operands), _) => Source::Native(&operands[index].bytes()[scale(elements, array.dtype.size())]),
            (None, Some(Some(sums))) => Source::Wide(&sums[scale(elements, size_of::<f32>())]),
            (None, _) => Source::Target,
        }
    }

    /// Every process gets all partial results and combines them.
    fn directly(
        &self,
        calls: &mut [Call],
        exchange: &Exchange<'_>,
        scratch: &ScratchPool,
    ) -> Result<(), TransportError> {
        let all = |len| 0..len;
        let peers = || self.group.peers();
        let mut partials: Vec<Scratch> = peers().map(|part| scratch.take(self.partial_size(part, all))).collect();
        let mut posted = Vec::with_capacity(partials.len());
        for (part, partial) in peers().zip(&mut partials) {
            // SAFETY: scratch memory that is declared before the receives and read only after them.
            posted.push(unsafe { exchange.post(part.process, PARTIAL, vec![Segment::new(partial)])? });
        }
        for part in peers() {
            exchange.send(part.process, PARTIAL, &self.partials(calls, all))?;
        }
        for (part, receive) in peers().zip(posted) {
            exchange.finish(part.process, receive)?;
        }
        self.combine(calls, &partials, all);
        Ok(())
    }

    /// Every process combines one chunk of the elements and hands it to all others.
    fn by_chunks(
        &self,
        calls: &mut [Call],
        exchange: &Exchange<'_>,
        scratch: &ScratchPool,
    ) -> Result<(), TransportError> {
        let count = self.group.parts.len();
        let chunk_of = |index: usize| move |len: usize| chunk(len, index, count);
        let mine = chunk_of(self.group.mine);
        let peers =
            || self.group.peers().enumerate().map(|(offset, part)| ((self.group.mine + 1 + offset) % count, part));
        let mut partials: Vec<Scratch> = peers().map(|(_, part)| scratch.take(self.partial_size(part, mine))).collect();
        let mut posted = Vec::with_capacity(partials.len());
        for ((_, part), partial) in peers().zip(&mut partials) {
            // SAFETY: scratch memory that is declared before the receives and read only after them.
            posted.push(unsafe { exchange.post(part.process, PARTIAL, vec![Segment::new(partial)])? });
        }
        let mut combined = Vec::with_capacity(count);
        for (index, part) in peers() {
            exchange.send(part.process, PARTIAL, &self.partials(calls, chunk_of(index)))?;
            let results = self.results(calls, chunk_of(index));
            // SAFETY: a chunk of the results that nothing here touches any more once its partial result is sent.
            combined.push(unsafe { exchange.post(part.process, COMBINED, results)? });
        }
        for ((_, part), receive) in peers().zip(posted) {
            exchange.finish(part.process, receive)?;
        }
        self.combine(calls, &partials, mine);
        for (_, part) in peers() {
            let ranges = self.native_ranges(mine);
            let results = calls[0].results.iter().zip(ranges);
            let slices: Vec<IoSlice> = results.map(|(result, range)| IoSlice::new(result.part(range))).collect();
            exchange.send(part.process, COMBINED, &slices)?;
        }
        for ((_, part), receive) in peers().zip(combined) {
            exchange.finish(part.process, receive)?;
        }
        Ok(())
    }

    fn native_ranges(&self, elements: impl Fn(usize) -> Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let arrays = self.spec.operands.iter().zip(&self.lens);
        arrays.map(move |(array, &len)| scale(&elements(len), array.dtype.size()))
    }

    fn results(&self, calls: &mut [Call], elements: impl Fn(usize) -> Range<usize>) -> Vec<Segment> {
        let ranges = self.native_ranges(elements);
        let results = calls[0].results.iter_mut().zip(ranges);
        results.map(|(result, range)| Segment::new(result.part_mut(range))).collect()
    }
}

/// Runs a reduce-scatter along `dim`. `calls` are the local devices' in rank order.
pub(super) fn reduce_scatter(
    spec: &CollectiveSpec,
    op: ReduceOp,
    dim: usize,
    group: &Group,
    calls: &mut [Call],
    exchange: &Exchange<'_>,
    scratch: &ScratchPool,
) -> Result<(), TransportError> {
    let scatter = ReduceScatter { spec, op, dim, group };
    let mine = &group.parts[group.mine];
    let mut partials: Vec<Scratch> = group.peers().map(|part| scratch.take(scatter.slices_size(mine, part))).collect();
    let mut posted = Vec::with_capacity(partials.len());
    for (part, partial) in group.peers().zip(&mut partials) {
        // SAFETY: scratch memory that is declared before the receives and read only after them.
        posted.push(unsafe { exchange.post(part.process, PARTIAL, vec![Segment::new(partial)])? });
    }
    for part in group.peers() {
        let operands: Vec<Vec<Input>> = calls.iter().map(|call| call.args.clone()).collect();
        if let Some(slices) = scatter.slices_in_place(&operands, part) {
            exchange.send(part.process, PARTIAL, &slices)?;
        } else {
            let mut own = scratch.take(scatter.slices_size(part, mine));
            scatter.combine_locally(calls, part, &mut own, scratch);
            exchange.send(part.process, PARTIAL, &[IoSlice::new(&own)])?;
        }
    }
    let mut own = scratch.take(scatter.slices_size(mine, mine));
    scatter.combine_locally(calls, mine, &mut own, scratch);
    for (part, receive) in group.peers().zip(posted) {
        exchange.finish(part.process, receive)?;
    }
    scatter.combine(calls, &partials, &own);
    Ok(())
}

struct ReduceScatter<'a> {
    spec: &'a CollectiveSpec,
    op: ReduceOp,
    dim: usize,
    group: &'a Group,
}

impl ReduceScatter<'_> {
    /// Bytes of what `from` sends to `to`: the partial results for each of `to`'s ranks, operand by operand.
    fn slices_size(&self, to: &Part, from: &Part) -> usize {
        let per_rank = |array: &ArraySpec| array.num_elements().unwrap_or(0) * width(from, array.dtype);
        self.spec.results.iter().map(|array| per_rank(array) * to.ranks.len()).sum()
    }

    fn slice(&self, array: &ArraySpec, rank: usize) -> Blocks {
        Blocks::part_of(array, array.dtype.size(), self.dim, rank, self.group.members.len())
    }

    /// The slices for `to` where they lie in the operands, if there is one local device and they are not scattered.
    fn slices_in_place<'b>(&self, operands: &'b [Vec<Input>], to: &Part) -> Option<Vec<IoSlice<'b>>> {
        let [only] = operands else { return None };
        let mut slices = Vec::new();
        for (array, operand) in self.spec.operands.iter().zip(only) {
            for &rank in &to.ranks {
                slices.push(IoSlice::new(&operand.bytes()[self.slice(array, rank).contiguous()?]));
            }
        }
        Some(slices)
    }

    /// Writes this process' partial results for the ranks of `to`.
    fn combine_locally(&self, calls: &[Call], to: &Part, mut target: &mut [u8], scratch: &ScratchPool) {
        let mine = &self.group.parts[self.group.mine];
        for (index, array) in self.spec.operands.iter().enumerate() {
            let operands: Vec<Input> = calls.iter().map(|call| call.args[index]).collect();
            for &rank in &to.ranks {
                let blocks = self.slice(array, rank);
                let mut packed = Vec::new();
                if blocks.contiguous().is_none() {
                    for operand in &operands {
                        let mut slice = scratch.take(blocks.size());
                        blocks.pack(operand.bytes(), &mut slice);
                        packed.push(slice);
                    }
                }
                let sources: Vec<Source> = match blocks.contiguous() {
                    Some(range) => {
                        operands.iter().map(|operand| Source::Native(&operand.bytes()[range.clone()])).collect()
                    }
                    None => packed.iter().map(|slice| Source::Native(slice)).collect(),
                };
                let len = blocks.size() / array.dtype.size() * width(mine, array.dtype);
                let (head, tail) = std::mem::take(&mut target).split_at_mut(len);
                fold(self.op, array.dtype, &sources, head, is_wide(mine, array.dtype));
                target = tail;
            }
        }
    }

    /// Combines the partial results of all processes for the local ranks. `partials` holds the other processes', in the
    /// order of the group's peers.
    fn combine(&self, calls: &mut [Call], partials: &[Scratch<'_>], own: &[u8]) {
        let count = self.group.parts.len();
        let mut of_part: Vec<&[u8]> = vec![own; count];
        for (offset, partial) in partials.iter().enumerate() {
            of_part[(self.group.mine + 1 + offset) % count] = partial;
        }
        for (index, array) in self.spec.results.iter().enumerate() {
            let len = array.num_elements().unwrap_or(0);
            for call in calls.iter_mut() {
                let mut sources = Vec::with_capacity(count);
                for (part, rest) in self.group.parts.iter().zip(&mut of_part) {
                    let (head, tail) = rest.split_at(len * width(part, array.dtype));
                    sources.push(source(part, array.dtype, head));
                    *rest = tail;
                }
                fold(self.op, array.dtype, &sources, call.results[index].bytes_mut(), false);
            }
        }
    }
}
