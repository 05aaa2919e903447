//! The collectives that combine elements. Each process combines its local operands in rank order; these partial results
//! are combined in process order, so every process computes the same.
//!
//! Arrays go in pieces: while one is combined, the next one is on its way.

mod islands;
mod scatter;

use std::io::IoSlice;
use std::ops::Range;

use crate::bulk_copy;
use crate::dtype::DType;
use crate::transport::{Segment, TransportError};

use crate::collective::buffer::Input;
use crate::collective::engine::Call;
use crate::collective::exchange::Exchange;
use crate::collective::group::{self, Group};
use crate::collective::movement::spread;
use crate::collective::piece::{Part, Piece, cut, largest_size};
use crate::collective::reduce::{Source, fold, fold_large, is_widened, partial_size};
use crate::collective::scratch::{Scratch, ScratchPool};
use crate::collective::spec::{ArraySpec, CollectiveKind, CollectiveSpec, ReduceOp};

/// Up to this size every process sends its partial result to every other one: one step instead of two.
const DIRECT_LIMIT: usize = 32 << 10;

/// The same for two processes, which move no more bytes that way, but each combine all elements instead of half of them. The
/// limit is lower where their bytes pass through the system, which leaves none of them in the cache.
const DIRECT_LIMIT_OF_TWO: usize = 1 << 20;
const DIRECT_LIMIT_OF_TWO_OVER_NETWORK: usize = 256 << 10;

/// The step in which a piece's partial results go to whoever combines them, and the one in which these hand it on.
fn partial(piece: usize) -> u32 {
    2 * piece as u32
}

fn combined(piece: usize) -> u32 {
    2 * piece as u32 + 1
}

/// Whether the partial results of this many devices are held as f32.
fn is_wide(devices: usize, dtype: DType) -> bool {
    devices > 1 && is_widened(dtype)
}

fn width(devices: usize, dtype: DType) -> usize {
    partial_size(dtype, is_wide(devices, dtype))
}

fn source(devices: usize, dtype: DType, bytes: &[u8]) -> Source<'_> {
    if is_wide(devices, dtype) { Source::Wide(bytes) } else { Source::Native(bytes) }
}

/// Partial results for a piece.
#[derive(Clone, Copy)]
enum Partial<'a> {
    /// This process's, for each part of the piece.
    Own(&'a [Source<'a>]),
    /// Those of this many devices elsewhere, as they were sent.
    Sent(&'a [u8], usize),
}

fn scale(elements: &Range<usize>, width: usize) -> Range<usize> {
    elements.start * width..elements.end * width
}

/// A reduction within one group. `calls` are the local devices' in rank order everywhere.
pub(super) struct Reduction<'a> {
    spec: &'a CollectiveSpec,
    op: ReduceOp,
    /// The dimension that a reduce-scatter cuts; `None` for an all-reduce.
    scatter: Option<usize>,
    group: &'a Group,
    scratch: &'a ScratchPool,
    /// How many pieces are given away before the first one is combined.
    depth: usize,
    /// Every process combines the whole of an all-reduce, rather than a slice.
    is_direct: bool,
    /// Results leave the caches before anyone reads them.
    is_large: bool,
}

/// Whether one message to each process and one from each, none longer than `limit`, is all that a reduction takes.
pub(super) fn is_one_step(spec: &CollectiveSpec, group: &Group, limit: usize) -> bool {
    match spec.kind {
        CollectiveKind::ReduceScatter { .. } => {
            let ranks = group.parts.iter().map(|part| part.ranks.len()).max().unwrap_or(1);
            largest_size(&spec.results).saturating_mul(ranks) <= limit
        }
        _ => {
            let size = largest_size(&spec.operands);
            size <= limit && is_direct(size, group.parts.len(), true)
        }
    }
}

/// Whether each of so many processes combines the whole of an all-reduce of `size` bytes.
pub(in crate::collective) fn is_direct(size: usize, processes: usize, over_network: bool) -> bool {
    size <= match (processes, over_network) {
        (2, false) => DIRECT_LIMIT_OF_TWO,
        (2, true) => DIRECT_LIMIT_OF_TWO_OVER_NETWORK,
        _ => DIRECT_LIMIT,
    }
}

impl<'a> Reduction<'a> {
    /// The reduction of a spec whose operation is `op`; `scatter` is the dimension that a reduce-scatter cuts, `None` for an
    /// all-reduce.
    pub fn new(
        spec: &'a CollectiveSpec,
        op: ReduceOp,
        scatter: Option<usize>,
        group: &'a Group,
        scratch: &'a ScratchPool,
        exchange: &Exchange<'_>,
    ) -> Reduction<'a> {
        let is_large = spec.results.iter().filter_map(ArraySpec::size).sum::<usize>() >= bulk_copy::LARGE;
        let depth = group.peers().map(|part| exchange.depth(part.process)).max().unwrap_or(1);
        let is_direct = is_direct(largest_size(&spec.operands), group.parts.len(), depth > 1);
        Reduction { spec, op, scatter, group, scratch, depth, is_direct, is_large }
    }

    /// The first half of a reduction in one step: gives away what others need.
    pub fn begin(&self, calls: &mut [Call], exchange: &Exchange<'_>) -> Result<(), TransportError> {
        match self.scatter {
            Some(dim) => self.begin_scatter(calls, dim, exchange),
            None => self.give_to_all(calls, exchange, 0, &self.all(|len| 0..len).collect()),
        }
    }

    /// The second half: combines what others gave.
    pub fn finish(&self, calls: &mut [Call], exchange: &Exchange<'_>) -> Result<(), TransportError> {
        match self.scatter {
            Some(dim) => self.finish_scatter(calls, dim, exchange),
            None => {
                self.combine(calls, exchange, 0, &self.all(|len| 0..len).collect())?;
                spread(calls);
                Ok(())
            }
        }
    }

    /// Runs the whole reduction.
    pub fn run(&self, calls: &mut [Call], exchange: &Exchange<'_>) -> Result<(), TransportError> {
        let is_layered = self.group.is_layered;
        if let Some(dim) = self.scatter {
            return if is_layered {
                self.reduce_scatter_by_islands(calls, dim, exchange)
            } else {
                self.reduce_scatter(calls, dim, exchange)
            };
        }
        if is_layered {
            self.all_reduce_by_islands(calls, exchange)?;
        } else if self.group.parts.len() == 1 {
            self.whole().iter().for_each(|piece| self.combine_locally(calls, piece));
        } else if self.is_direct {
            self.directly(calls, exchange)?;
        } else {
            self.by_slices(calls, exchange)?;
        }
        spread(calls);
        Ok(())
    }

    /// Combines sources into results, of which nobody reads soon what `is_final`.
    fn fold_results(&self, dtype: DType, sources: &[Source<'_>], target: &mut [u8], is_final: bool) {
        if is_final && self.is_large {
            fold_large(self.op, dtype, sources, target);
        } else {
            fold(self.op, dtype, sources, target, false);
        }
    }

    fn mine(&self) -> &group::Part {
        &self.group.parts[self.group.mine]
    }

    /// Number of this process's devices.
    fn own_devices(&self) -> usize {
        self.mine().ranks.len()
    }

    fn dtype(&self, part: &Part) -> DType {
        self.spec.operands[part.array].dtype
    }

    /// Bytes of a piece with the partial results of this many devices.
    fn size(&self, devices: usize, piece: &Piece) -> usize {
        piece.iter().map(|part| part.elements.len() * width(devices, self.dtype(part))).sum()
    }

    /// The pieces of all operands.
    fn whole(&self) -> Vec<Piece> {
        self.pieces(|len| 0..len)
    }

    /// The pieces of those elements that `elements` picks from each operand.
    fn pieces(&self, elements: impl Fn(usize) -> Range<usize>) -> Vec<Piece> {
        cut(&self.spec.operands, self.all(elements))
    }

    /// Those elements that `elements` picks from each operand.
    fn all(&self, elements: impl Fn(usize) -> Range<usize>) -> impl Iterator<Item = Part> {
        let lens = self.spec.operands.iter().map(|array| array.num_elements().unwrap_or(0));
        lens.enumerate().map(move |(array, len)| Part { array, rank: 0, elements: elements(len) })
    }

    /// Combines the local operands of an all-reduce into the first device's results, unless there is only one device or
    /// the partial results are wider.
    fn combine_locally(&self, calls: &mut [Call], piece: &Piece) {
        let alone = self.group.parts.len() == 1;
        for part in piece {
            let dtype = self.dtype(part);
            if alone || calls.len() > 1 && !is_widened(dtype) {
                let range = scale(&part.elements, dtype.size());
                let operands: Vec<Input> = calls.iter().map(|call| call.args[part.array]).collect();
                let sources: Vec<Source> =
                    operands.iter().map(|operand| Source::Native(&operand.bytes()[range.clone()])).collect();
                let target = calls[0].results[part.array].part_mut(range);
                self.fold_results(dtype, &sources, target, alone);
            }
        }
    }

    /// Combines the local operands of an all-reduce that are to be wider, one part of the piece after the other.
    fn wide_partials(&self, calls: &[Call], piece: &Piece) -> Scratch<'a> {
        let wide = |part: &&Part| is_wide(self.own_devices(), self.dtype(part));
        let size = |part: &Part| part.elements.len() * size_of::<f32>();
        let mut sums = self.scratch.take(piece.iter().filter(wide).map(size).sum());
        let mut rest = &mut sums[..];
        for part in piece.iter().filter(wide) {
            let dtype = self.dtype(part);
            let range = scale(&part.elements, dtype.size());
            let operands: Vec<Input> = calls.iter().map(|call| call.args[part.array]).collect();
            let sources: Vec<Source> =
                operands.iter().map(|operand| Source::Native(&operand.bytes()[range.clone()])).collect();
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(size(part));
            fold(self.op, dtype, &sources, head, true);
            rest = tail;
        }
        sums
    }

    /// Sends our partial results for a piece of an all-reduce to one process, or to every other one.
    fn give(
        &self,
        calls: &mut [Call],
        exchange: &Exchange<'_>,
        step: u32,
        piece: &Piece,
        mut to: impl Iterator<Item = &'a group::Part>,
    ) -> Result<(), TransportError> {
        self.combine_locally(calls, piece);
        let sums = self.wide_partials(calls, piece);
        let mut rest = &sums[..];
        let calls = &*calls;
        let mut slices = Vec::with_capacity(piece.len());
        for part in piece {
            let dtype = self.dtype(part);
            let range = scale(&part.elements, dtype.size());
            slices.push(IoSlice::new(if is_wide(self.own_devices(), dtype) {
                let (head, tail) = rest.split_at(part.elements.len() * size_of::<f32>());
                rest = tail;
                head
            } else if calls.len() > 1 {
                calls[0].results[part.array].part(range)
            } else {
                &calls[0].args[part.array].bytes()[range]
            }));
        }
        to.try_for_each(|to| exchange.send(to.process, step, &slices))
    }

    /// Where a piece of the first device's results is to be written.
    fn result_segments(&self, calls: &mut [Call], piece: &Piece) -> Vec<Segment> {
        let segment = |part: &Part| {
            let range = scale(&part.elements, self.dtype(part).size());
            Segment::new(calls[0].results[part.array].part_mut(range)).part_of_large(self.is_large)
        };
        piece.iter().map(segment).collect()
    }

    /// A piece of the first device's results.
    fn result_slices<'c>(&self, calls: &'c [Call], piece: &Piece) -> Vec<IoSlice<'c>> {
        let slice = |part: &Part| {
            let range = scale(&part.elements, self.dtype(part).size());
            IoSlice::new(calls[0].results[part.array].part(range))
        };
        piece.iter().map(slice).collect()
    }

    fn give_to_all(
        &self,
        calls: &mut [Call],
        exchange: &Exchange<'_>,
        index: usize,
        piece: &Piece,
    ) -> Result<(), TransportError> {
        self.give(calls, exchange, partial(index), piece, self.group.peers())
    }

    /// Combines all processes' partial results for a piece of an all-reduce.
    fn combine(
        &self,
        calls: &mut [Call],
        exchange: &Exchange<'_>,
        index: usize,
        piece: &Piece,
    ) -> Result<(), TransportError> {
        let sums = self.wide_partials(calls, piece);
        let operands: Vec<Input> = piece.iter().map(|part| calls[0].args[part.array]).collect();
        let own = self.own(piece, &operands, &sums, if calls.len() > 1 { Some(Source::Target) } else { None });
        self.take_all(exchange, index, piece, &mut |theirs| self.fold_all(calls, piece, theirs, &own))
    }

    /// Our partial results for each part of a piece of an all-reduce: what is wider, else `combined` if there are several
    /// devices, else the only device's operand.
    fn own<'b>(
        &self,
        piece: &Piece,
        operands: &'b [Input],
        mut sums: &'b [u8],
        combined: Option<Source<'b>>,
    ) -> Vec<Source<'b>> {
        let mut own = Vec::with_capacity(piece.len());
        for (part, operand) in piece.iter().zip(operands) {
            let dtype = self.dtype(part);
            own.push(if is_wide(self.own_devices(), dtype) {
                let (head, tail) = sums.split_at(part.elements.len() * size_of::<f32>());
                sums = tail;
                Source::Wide(head)
            } else {
                combined.unwrap_or(Source::Native(&operand.bytes()[scale(&part.elements, dtype.size())]))
            });
        }
        own
    }

    /// Takes the other processes' partial results for a piece, in the order of the group's peers.
    fn take_all(
        &self,
        exchange: &Exchange<'_>,
        index: usize,
        piece: &Piece,
        with: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<(), TransportError> {
        let from: Vec<(u32, usize)> =
            self.group.peers().map(|part| (part.process, self.size(part.ranks.len(), piece))).collect();
        self.take_from(exchange, partial(index), &from, with)
    }

    /// Takes the messages of a step from some processes, of known sizes.
    fn take_from(
        &self,
        exchange: &Exchange<'_>,
        step: u32,
        from: &[(u32, usize)],
        with: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<(), TransportError> {
        if let [(process, size)] = *from {
            return exchange.take(process, step, size, &mut |bytes| with(&[bytes]));
        }
        let mut copies = Vec::with_capacity(from.len());
        for &(process, size) in from {
            let mut copy = self.scratch.take(size);
            exchange.take(process, step, size, &mut |bytes| copy.copy_from_slice(bytes))?;
            copies.push(copy);
        }
        with(&copies.iter().map(|copy| &copy[..]).collect::<Vec<_>>());
        Ok(())
    }

    /// Combines all processes' partial results for a piece: the other processes' in the order of the group's peers, and ours
    /// for each part of the piece.
    fn fold_all(&self, calls: &mut [Call], piece: &Piece, theirs: &[&[u8]], own: &[Source<'_>]) {
        let (parts, mine) = (&self.group.parts, self.group.mine);
        let partial = |(index, process): (usize, &group::Part)| match theirs
            .get((index + parts.len() - mine - 1) % parts.len())
        {
            Some(bytes) if index != mine => Partial::Sent(bytes, process.ranks.len()),
            _ => Partial::Own(own),
        };
        let partials: Vec<Partial> = parts.iter().enumerate().map(partial).collect();
        // What goes on to other processes is better left in the cache.
        let is_final = self.scatter.is_some() || self.is_direct;
        if self.group.islands.is_empty() {
            self.fold_into_results(calls, piece, &partials, is_final);
        } else {
            self.fold_all_by_islands(calls, piece, &partials, is_final);
        }
    }

    /// Combines partial results of a piece, in their order, into the results.
    fn fold_into_results(&self, calls: &mut [Call], piece: &Piece, partials: &[Partial<'_>], is_final: bool) {
        self.fold_parts(piece, partials, |part, dtype, sources| {
            let target = calls[part.rank].results[part.array].part_mut(scale(&part.elements, dtype.size()));
            self.fold_results(dtype, sources, target, is_final);
        });
    }

    /// Shows the partial results for each part of a piece.
    fn fold_parts(&self, piece: &Piece, partials: &[Partial<'_>], mut fold: impl FnMut(&Part, DType, &[Source<'_>])) {
        let mut partials = partials.to_vec();
        for (index, part) in piece.iter().enumerate() {
            let dtype = self.dtype(part);
            let mut sources = Vec::with_capacity(partials.len());
            for partial in &mut partials {
                sources.push(match partial {
                    Partial::Own(sources) => sources[index],
                    Partial::Sent(bytes, devices) => {
                        let (head, tail) = bytes.split_at(part.elements.len() * width(*devices, dtype));
                        *bytes = tail;
                        source(*devices, dtype, head)
                    }
                });
            }
            fold(part, dtype, &sources);
        }
    }

    /// Every process gets all partial results and combines them.
    fn directly(&self, calls: &mut [Call], exchange: &Exchange<'_>) -> Result<(), TransportError> {
        let pieces = self.whole();
        for index in 0..pieces.len() + self.depth {
            if let Some(piece) = pieces.get(index) {
                self.give_to_all(calls, exchange, index, piece)?;
            }
            if let Some(before) = index.checked_sub(self.depth)
                && let Some(piece) = pieces.get(before)
            {
                self.combine(calls, exchange, before, piece)?;
            }
        }
        Ok(())
    }

    /// Every process combines one slice of the elements and hands it to all others.
    fn by_slices(&self, calls: &mut [Call], exchange: &Exchange<'_>) -> Result<(), TransportError> {
        let count = self.group.parts.len();
        let slices: Vec<Vec<Piece>> = (0..count).map(|index| self.pieces(|len| chunk(len, index, count))).collect();
        let mine = &slices[self.group.mine];
        let rounds = slices.iter().map(Vec::len).max().unwrap_or(0);
        let mut incoming = Vec::new();
        for round in 0..rounds + self.depth {
            for (offset, part) in self.group.peers().enumerate() {
                let Some(piece) = slices[(self.group.mine + 1 + offset) % count].get(round) else { continue };
                self.give(calls, exchange, partial(round), piece, std::iter::once(part))?;
                let results = self.result_segments(calls, piece);
                // SAFETY: a piece of the results that nothing here touches any more once its partial result is sent.
                incoming.push((part.process, unsafe { exchange.post(part.process, combined(round), results)? }));
            }
            let Some(before) = round.checked_sub(self.depth) else { continue };
            let Some(piece) = mine.get(before) else { continue };
            self.combine_locally(calls, piece);
            self.combine(calls, exchange, before, piece)?;
            let results = self.result_slices(calls, piece);
            for part in self.group.peers() {
                exchange.send(part.process, combined(before), &results)?;
            }
        }
        for (process, receive) in incoming {
            exchange.finish(process, receive)?;
        }
        Ok(())
    }
}

/// The `index`-th of `count` ranges that cover `len` elements.
fn chunk(len: usize, index: usize, count: usize) -> Range<usize> {
    let start = |index: usize| len / count * index + (len % count).min(index);
    start(index)..start(index + 1)
}
