//! Reductions between islands that have several processes: hosts, or slices if the job has several. The processes of an
//! island combine among themselves what leaves it,
//! each one its share, so that everything goes over the network once, and by as many connections as there are processes.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::collective::buffer::Input;
use crate::collective::engine::Call;
use crate::collective::exchange::Exchange;
use crate::collective::piece::{Part, Piece};
use crate::collective::reduce::{Source, fold};
use crate::collective::scratch::Scratch;
use crate::transport::{Receive, TransportError};

use super::{Partial, Reduction, chunk, combined, is_wide, partial, scale, width};

impl<'a> Reduction<'a> {
    /// Every process of an island has a share of the elements, unless another island has fewer processes. It combines its island's
    /// partial results for these with those of its counterparts on the other islands, a piece here and the next one there,
    /// and hands them to all.
    pub(super) fn all_reduce_by_islands(
        &self,
        calls: &mut [Call],
        exchange: &Exchange<'_>,
    ) -> Result<(), TransportError> {
        let (group, islands) = (self.group, &self.group.islands);
        let (island, place) = group.place(group.mine);
        let process = |part: usize| group.parts[part].process;
        let shares = islands.iter().map(Vec::len).min().unwrap_or(1);
        let shares: Vec<Vec<Piece>> = (0..shares).map(|index| self.pieces(|len| chunk(len, index, shares))).collect();
        let mates: Vec<(u32, Option<&Vec<Piece>>)> = islands[island]
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != place)
            .map(|(index, &mate)| (process(mate), shares.get(index)))
            .collect();
        let mine = shares.get(place).map_or(&[][..], Vec::as_slice);
        let counterparts: Vec<(usize, u32)> = (0..islands.len())
            .filter(|other| *other != island && place < shares.len())
            .map(|other| (other, process(islands[other][place])))
            .collect();
        let rounds = shares.iter().map(Vec::len).max().unwrap_or(0);
        let depth = |of: &mut dyn Iterator<Item = u32>| of.map(|process| exchange.depth(process)).max().unwrap_or(1);
        let (near, far) = (depth(&mut mates.iter().map(|(process, _)| *process)), self.depth);
        let mut from_mates: VecDeque<Vec<(u32, Receive)>> = VecDeque::new();
        let mut from_owners: VecDeque<(u32, Receive)> = VecDeque::new();
        let mut kept: VecDeque<Scratch> = VecDeque::new();
        for turn in 0..rounds + near + far {
            let mut receives = Vec::new();
            for (mate, pieces) in &mates {
                let Some(piece) = pieces.and_then(|pieces| pieces.get(turn)) else { continue };
                self.give(
                    calls,
                    exchange,
                    partial(turn),
                    piece,
                    group.parts.iter().filter(|part| part.process == *mate),
                )?;
                // SAFETY: a piece of the results that nothing here touches any more once its partial result is sent.
                let receive = unsafe { exchange.post(*mate, combined(turn), self.result_segments(calls, piece))? };
                receives.push((*mate, receive));
            }
            from_mates.push_back(receives);
            if let Some(round) = turn.checked_sub(near)
                && let Some(piece) = mine.get(round)
            {
                let sums = self.island_partial_of_operands(calls, exchange, round, piece)?;
                let owner = round % islands.len();
                match counterparts.iter().find(|(other, _)| *other == owner) {
                    Some((_, owner)) => {
                        exchange.send(*owner, partial(round), &[IoSlice::new(&sums)])?;
                        let results = self.result_segments(calls, piece);
                        // SAFETY: a piece of the results that only this message is written to.
                        from_owners.push_back((*owner, unsafe { exchange.post(*owner, combined(round), results)? }));
                    }
                    None => kept.push_back(sums),
                }
            }
            let Some(round) = turn.checked_sub(near + far) else { continue };
            if let Some(piece) = mine.get(round) {
                if round % islands.len() == island {
                    let Some(own) = kept.pop_front() else { continue };
                    let from: Vec<(u32, usize)> = counterparts
                        .iter()
                        .map(|(other, process)| (*process, self.size(group.devices_of(*other), piece)))
                        .collect();
                    self.take_from(exchange, partial(round), &from, &mut |theirs| {
                        let mut theirs = theirs.iter();
                        let mut partials = Vec::with_capacity(islands.len());
                        for index in 0..islands.len() {
                            let sums = if index == island { Some(&own[..]) } else { theirs.next().copied() };
                            partials.push(Partial::Sent(sums.unwrap_or_default(), group.devices_of(index)));
                        }
                        self.fold_into_results(calls, piece, &partials, false);
                    })?;
                } else if let Some((owner, receive)) = from_owners.pop_front() {
                    exchange.finish(owner, receive)?;
                }
                let results = self.result_slices(calls, piece);
                let is_owner = round % islands.len() == island;
                let others = counterparts.iter().filter(|_| is_owner).map(|(_, process)| *process);
                for process in others.chain(mates.iter().map(|(mate, _)| *mate)) {
                    exchange.send(process, combined(round), &results)?;
                }
            }
            for (mate, receive) in from_mates.pop_front().into_iter().flatten() {
                exchange.finish(mate, receive)?;
            }
        }
        Ok(())
    }

    /// What the devices of this island contribute to a piece of an all-reduce that this process carries.
    fn island_partial_of_operands(
        &self,
        calls: &mut [Call],
        exchange: &Exchange<'_>,
        round: usize,
        piece: &Piece,
    ) -> Result<Scratch<'a>, TransportError> {
        self.combine_locally(calls, piece);
        let sums = self.wide_partials(calls, piece);
        let operands: Vec<Input> = piece.iter().map(|part| calls[0].args[part.array]).collect();
        let mut own = self.own(piece, &operands, &sums, None);
        if calls.len() > 1 {
            for (own, part) in own.iter_mut().zip(piece) {
                if !is_wide(self.own_devices(), self.dtype(part)) {
                    let range = scale(&part.elements, self.dtype(part).size());
                    *own = Source::Native(calls[0].results[part.array].part(range));
                }
            }
        }
        self.island_partial(exchange, partial(round), piece, &own)
    }

    /// Combines our partial results for a piece with those that the other processes of this island send in `step`.
    fn island_partial(
        &self,
        exchange: &Exchange<'_>,
        step: u32,
        piece: &Piece,
        own: &[Source<'_>],
    ) -> Result<Scratch<'a>, TransportError> {
        let group = self.group;
        let (island, place) = group.place(group.mine);
        let devices = group.devices_of(island);
        let mates = || group.islands[island].iter().map(|&mate| &group.parts[mate]);
        let from: Vec<(u32, usize)> = mates()
            .filter(|mate| mate.process != self.mine().process)
            .map(|mate| (mate.process, self.size(mate.ranks.len(), piece)))
            .collect();
        let mut sums = None;
        self.take_from(exchange, step, &from, &mut |theirs| {
            let mut theirs = theirs.iter();
            let mut partials = Vec::with_capacity(group.islands[island].len());
            for (index, mate) in mates().enumerate() {
                partials.push(if index == place {
                    Partial::Own(own)
                } else {
                    Partial::Sent(theirs.next().copied().unwrap_or_default(), mate.ranks.len())
                });
            }
            sums = Some(self.sums(piece, &partials, devices));
        })?;
        Ok(sums.unwrap_or_else(|| self.scratch.take(0)))
    }

    /// Partial results for a piece, combined into those of so many devices.
    fn sums(&self, piece: &Piece, partials: &[Partial<'_>], devices: usize) -> Scratch<'a> {
        let mut sums = self.scratch.take(self.size(devices, piece));
        let mut rest = &mut sums[..];
        self.fold_parts(piece, partials, |part, dtype, sources| {
            let size = part.elements.len() * width(devices, dtype);
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(size);
            fold(self.op, dtype, sources, head, is_wide(devices, dtype));
            rest = tail;
        });
        sums
    }

    /// Combines all processes' partial results for a piece in the order in which islands that act together do: so it makes
    /// no difference to the results whether they do.
    pub(super) fn fold_all_by_islands(
        &self,
        calls: &mut [Call],
        piece: &Piece,
        partials: &[Partial<'_>],
        is_final: bool,
    ) {
        let group = self.group;
        let (own_island, _) = group.place(group.mine);
        let result = |part: &Part| {
            let range = scale(&part.elements, self.dtype(part).size());
            Source::Native(calls[0].results[part.array].part(range))
        };
        let own: Vec<Source> = match partials[group.mine] {
            Partial::Own(own) => own
                .iter()
                .zip(piece)
                .map(|(source, part)| match source {
                    Source::Target => result(part),
                    source => *source,
                })
                .collect(),
            Partial::Sent(..) => Vec::new(),
        };
        let sums = |(island, parts): (usize, &Vec<usize>)| {
            // A reduce-scatter goes on with the processes of its own island one by one.
            if parts.len() == 1 || self.scatter.is_some() && island == own_island {
                return None;
            }
            let of_part = |&part: &usize| if part == group.mine { Partial::Own(&own) } else { partials[part] };
            let of_parts: Vec<Partial> = parts.iter().map(of_part).collect();
            Some(self.sums(piece, &of_parts, group.devices_of(island)))
        };
        let of_islands: Vec<Option<Scratch>> = group.islands.iter().enumerate().map(sums).collect();
        let mut all = Vec::with_capacity(partials.len());
        for (island, sums) in of_islands.iter().enumerate() {
            match sums {
                Some(sums) => all.push(Partial::Sent(sums, group.devices_of(island))),
                None => all.extend(group.islands[island].iter().map(|&part| partials[part])),
            }
        }
        self.fold_into_results(calls, piece, &all, is_final);
    }

    /// For each process of another island, one process combines what its island's devices contribute to that one's results.
    pub(super) fn reduce_scatter_by_islands(
        &self,
        calls: &mut [Call],
        dim: usize,
        exchange: &Exchange<'_>,
    ) -> Result<(), TransportError> {
        let (group, islands) = (self.group, &self.group.islands);
        let (island, _) = group.place(group.mine);
        let process = |part: usize| group.parts[part].process;
        let slices = |part: usize| self.slices(calls, dim, &group.parts[part]);
        let targets: Vec<_> = group
            .parts
            .iter()
            .enumerate()
            .map(|(index, part)| {
                let carrier = if group.place(index).0 == island { index } else { group.carrier(island, index) };
                (index, carrier, slices(index), self.scattered(part))
            })
            .collect();
        // A process gives to another one pieces for several targets.
        let step = |round: usize, target: usize| (round * group.parts.len() + target) as u32;
        let rounds = targets.iter().map(|(.., pieces)| pieces.len()).max().unwrap_or(0);
        let depth =
            |parts: &mut dyn Iterator<Item = usize>| parts.map(|part| exchange.depth(process(part))).max().unwrap_or(1);
        let near = depth(&mut islands[island].iter().copied().filter(|&part| part != group.mine));
        let far = depth(&mut islands.iter().flatten().copied().filter(|&part| group.place(part).0 != island));
        let operands = calls[0].args.clone();
        for turn in 0..rounds + near + far {
            for (target, carrier, slices, pieces) in targets.iter().filter(|(_, carrier, ..)| *carrier != group.mine) {
                if let Some(piece) = pieces.get(turn) {
                    let to = &group.parts[*target];
                    let slices: Vec<IoSlice> =
                        piece.iter().map(|part| IoSlice::new(self.slice(&operands, dim, to, slices, part))).collect();
                    exchange.send(process(*carrier), step(turn, *target), &slices)?;
                }
            }
            let carried =
                targets.iter().filter(|(target, carrier, ..)| *carrier == group.mine && *target != group.mine);
            for (target, _, slices, pieces) in carried {
                if let Some(round) = turn.checked_sub(near)
                    && let Some(piece) = pieces.get(round)
                {
                    let own = self.own_slices(&operands, dim, &group.parts[*target], slices, piece);
                    let sums = self.island_partial(exchange, step(round, *target), piece, &own)?;
                    exchange.send(process(*target), step(round, *target), &[IoSlice::new(&sums)])?;
                }
            }
            let (_, _, slices, pieces) = &targets[group.mine];
            let Some(round) = turn.checked_sub(near + far) else { continue };
            let Some(piece) = pieces.get(round) else { continue };
            let own = self.own_slices(&operands, dim, self.mine(), slices, piece);
            // Islands in order, and the processes of ours where it stands.
            let mut sources = Vec::with_capacity(group.parts.len());
            for (index, parts) in islands.iter().enumerate() {
                if index == island {
                    sources.extend(parts.iter().map(|&part| (part, group.parts[part].ranks.len())));
                } else {
                    sources.push((group.carrier(index, group.mine), group.devices_of(index)));
                }
            }
            let others = sources.iter().filter(|(part, _)| *part != group.mine);
            let from: Vec<(u32, usize)> =
                others.map(|(part, devices)| (process(*part), self.size(*devices, piece))).collect();
            self.take_from(exchange, step(round, group.mine), &from, &mut |theirs| {
                let mut theirs = theirs.iter();
                let mut partials = Vec::with_capacity(sources.len());
                for (part, devices) in &sources {
                    partials.push(if *part == group.mine {
                        Partial::Own(&own)
                    } else {
                        Partial::Sent(theirs.next().copied().unwrap_or_default(), *devices)
                    });
                }
                self.fold_into_results(calls, piece, &partials, true);
            })?;
        }
        Ok(())
    }
}
