//! Reduce-scatters: every process combines what its own devices get, of slices that lie apart in the operands.

use std::io::IoSlice;

use crate::collective::buffer::Input;
use crate::collective::engine::Call;
use crate::collective::exchange::Exchange;
use crate::collective::group;
use crate::collective::movement::Blocks;
use crate::collective::piece::{Part, Piece, cut};
use crate::collective::reduce::{Source, fold};
use crate::collective::scratch::Scratch;
use crate::collective::spec::ArraySpec;
use crate::transport::TransportError;

use super::{Reduction, is_wide, partial, scale, source, width};

/// What this process contributes to pieces for one process of a reduce-scatter: where it lies in the only operand, or
/// packed or combined in memory of its own.
pub(super) enum Slices<'a> {
    InPlace,
    Combined { bytes: Scratch<'a>, starts: Vec<usize> },
}

impl<'a> Reduction<'a> {
    /// The first half of a reduce-scatter in one step.
    pub(super) fn begin_scatter(
        &self,
        calls: &[Call],
        dim: usize,
        exchange: &Exchange<'_>,
    ) -> Result<(), TransportError> {
        self.group.peers().try_for_each(|part| {
            let slices = self.slices(calls, dim, part);
            self.give_slices(calls, dim, part, &slices, 0, &self.all_scattered(part).collect(), exchange)
        })
    }

    /// The second half.
    pub(super) fn finish_scatter(
        &self,
        calls: &mut [Call],
        dim: usize,
        exchange: &Exchange<'_>,
    ) -> Result<(), TransportError> {
        let mine = self.mine();
        let slices = self.slices(calls, dim, mine);
        self.combine_slices(calls, dim, &slices, 0, &self.all_scattered(mine).collect(), exchange)
    }

    /// Runs the whole of a reduce-scatter.
    pub(super) fn reduce_scatter(
        &self,
        calls: &mut [Call],
        dim: usize,
        exchange: &Exchange<'_>,
    ) -> Result<(), TransportError> {
        let mine = self.mine();
        let slices = self.slices(calls, dim, mine);
        let pieces = self.scattered(mine);
        let peers = self.group.peers().map(|part| (part, self.slices(calls, dim, part), self.scattered(part)));
        let peers: Vec<_> = peers.collect();
        let rounds = peers.iter().map(|(.., pieces)| pieces.len()).max().unwrap_or(0).max(pieces.len());
        for round in 0..rounds + self.depth {
            for (part, slices, pieces) in &peers {
                if let Some(piece) = pieces.get(round) {
                    self.give_slices(calls, dim, part, slices, round, piece, exchange)?;
                }
            }
            if let Some(before) = round.checked_sub(self.depth)
                && let Some(piece) = pieces.get(before)
            {
                self.combine_slices(calls, dim, &slices, before, piece, exchange)?;
            }
        }
        Ok(())
    }

    /// The pieces of a reduce-scatter that a process combines.
    pub(super) fn scattered(&self, to: &group::Part) -> Vec<Piece> {
        cut(&self.spec.results, self.all_scattered(to))
    }

    /// The elements of a reduce-scatter that a process combines.
    fn all_scattered(&self, to: &group::Part) -> impl Iterator<Item = Part> {
        let ranks = to.ranks.len();
        self.spec.results.iter().enumerate().flat_map(move |(array, result)| {
            let elements = 0..result.num_elements().unwrap_or(0);
            (0..ranks).map(move |rank| Part { array, rank, elements: elements.clone() })
        })
    }

    fn blocks(&self, dim: usize, array: &ArraySpec, rank: usize) -> Blocks {
        Blocks::part_of(array, array.dtype.size(), dim, rank, self.group.members.len())
    }

    /// This process's partial results for the ranks of `to`.
    pub(super) fn slices(&self, calls: &[Call], dim: usize, to: &group::Part) -> Slices<'a> {
        let scattered = |array: &ArraySpec| self.blocks(dim, array, 0).contiguous().is_none();
        if calls.len() == 1 && !self.spec.operands.iter().any(scattered) {
            return Slices::InPlace;
        }
        let size = |array: &ArraySpec| array.num_elements().unwrap_or(0) * width(self.own_devices(), array.dtype);
        let mut starts = Vec::with_capacity(self.spec.results.len());
        let mut total = 0;
        for array in &self.spec.results {
            starts.push(total);
            total += size(array) * to.ranks.len();
        }
        let mut bytes = self.scratch.take(total);
        let mut rest = &mut bytes[..];
        for (index, array) in self.spec.operands.iter().enumerate() {
            let operands: Vec<Input> = calls.iter().map(|call| call.args[index]).collect();
            for &rank in &to.ranks {
                let blocks = self.blocks(dim, array, rank);
                let (head, tail) = std::mem::take(&mut rest).split_at_mut(size(&self.spec.results[index]));
                self.combine_blocks(array, &operands, &blocks, head);
                rest = tail;
            }
        }
        Slices::Combined { bytes, starts }
    }

    fn combine_blocks(&self, array: &ArraySpec, operands: &[Input], blocks: &Blocks, target: &mut [u8]) {
        let mut packed = Vec::new();
        if blocks.contiguous().is_none() {
            for operand in operands {
                let mut slice = self.scratch.take(blocks.size());
                blocks.pack(operand.bytes(), &mut slice);
                packed.push(slice);
            }
        }
        let sources: Vec<Source> = match blocks.contiguous() {
            Some(range) => operands.iter().map(|operand| Source::Native(&operand.bytes()[range.clone()])).collect(),
            None => packed.iter().map(|slice| Source::Native(slice)).collect(),
        };
        fold(self.op, array.dtype, &sources, target, is_wide(self.own_devices(), array.dtype));
    }

    /// Our partial results for a part of a piece of `to`.
    pub(super) fn slice<'b>(
        &self,
        operands: &'b [Input],
        dim: usize,
        to: &group::Part,
        slices: &'b Slices<'_>,
        part: &Part,
    ) -> &'b [u8] {
        let array = &self.spec.operands[part.array];
        let range = scale(&part.elements, width(self.own_devices(), array.dtype));
        match slices {
            Slices::InPlace => {
                let start = self.blocks(dim, array, to.ranks[part.rank]).contiguous().unwrap_or_default().start;
                &operands[part.array].bytes()[start + range.start..start + range.end]
            }
            Slices::Combined { bytes, starts } => {
                let of_rank = self.spec.results[part.array].num_elements().unwrap_or(0);
                let start = starts[part.array] + part.rank * of_rank * width(self.own_devices(), array.dtype);
                &bytes[start + range.start..start + range.end]
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one message")]
    fn give_slices(
        &self,
        calls: &[Call],
        dim: usize,
        to: &group::Part,
        slices: &Slices<'_>,
        index: usize,
        piece: &Piece,
        exchange: &Exchange<'_>,
    ) -> Result<(), TransportError> {
        let operands = &calls[0].args;
        let slice = |part: &Part| IoSlice::new(self.slice(operands, dim, to, slices, part));
        exchange.send(to.process, partial(index), &piece.iter().map(slice).collect::<Vec<_>>())
    }

    fn combine_slices(
        &self,
        calls: &mut [Call],
        dim: usize,
        slices: &Slices<'_>,
        index: usize,
        piece: &Piece,
        exchange: &Exchange<'_>,
    ) -> Result<(), TransportError> {
        let operands = calls[0].args.clone();
        let own = self.own_slices(&operands, dim, self.mine(), slices, piece);
        self.take_all(exchange, index, piece, &mut |theirs| self.fold_all(calls, piece, theirs, &own))
    }

    /// Our partial results for each part of a piece of `to`.
    pub(super) fn own_slices<'b>(
        &self,
        operands: &'b [Input],
        dim: usize,
        to: &group::Part,
        slices: &'b Slices<'_>,
        piece: &Piece,
    ) -> Vec<Source<'b>> {
        let own = |part| source(self.own_devices(), self.dtype(part), self.slice(operands, dim, to, slices, part));
        piece.iter().map(own).collect()
    }
}
