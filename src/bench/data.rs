//! What ranks put into a collective, and what they must get out of it.
//!
//! Rank r holds at index i a small whole number that depends on both. The numbers are chosen so that no order of
//! combining them rounds or overflows in the type at hand: results are known exactly, without the engine's kernels.
//! Contents repeat after a prime number of elements, so that large arrays are made and compared block by block while a
//! piece that ends up in another place still differs.

use std::ops::Range;

use crate::collective::ReduceOp;
use crate::dtype::DType;
use crate::narrow_float::{Format, Specials};

/// Elements after which contents repeat.
const PERIOD: usize = 8191;

/// More different numbers than this tell no more errors apart.
const MAX_NUMBER: u32 = 1 << 10;

/// An array's contents: its element i is element i mod [`PERIOD`] of these bytes.
#[derive(Clone, Debug)]
pub struct Contents {
    bytes: Vec<u8>,
    element: usize,
}

/// What the ranks of a group hold, element by element.
#[derive(Clone, Debug)]
pub struct Numbers {
    /// Size of an element in bytes.
    element: usize,
    /// The bytes of 0, 1, 2, … as far as the type holds them exactly.
    patterns: Vec<[u8; 16]>,
    /// Ranks of a group.
    ranks: u32,
    /// How they are combined; `None` if they are only moved.
    reduction: Option<ReduceOp>,
    /// Numbers are at most this.
    largest: u32,
    /// At each index so many ranks hold a number that counts; the others have what changes nothing.
    counting: u32,
}

/// The bytes of a whole number in this type; `None` if it is not exact.
fn encode(dtype: DType, number: u32) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    let real = match dtype {
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        real => real,
    };
    let pattern = match Format::of(real) {
        Some(format) => {
            let pattern = format.encode(number.into());
            (format.decode(pattern) == f64::from(number)).then_some(pattern)?
        }
        None => {
            let signed = real.name().starts_with('s');
            let largest = u64::MAX >> (64 - real.bits() + usize::from(signed));
            Some(u64::from(number)).filter(|&pattern| pattern <= largest)?
        }
    };
    bytes[..8].copy_from_slice(&pattern.to_le_bytes());
    Some(bytes)
}

impl Numbers {
    /// Whether collectives of this type can be measured: it has whole numbers and fills whole bytes.
    pub fn supports(dtype: DType) -> bool {
        let is_power = Format::of(dtype).is_some_and(|format| format.specials == Specials::PowersOfTwo);
        dtype != DType::Pred && dtype.bits() >= 8 && !is_power
    }

    /// The numbers of groups of `ranks` ranks whose operands are combined by `reduction` or, without one, only moved.
    pub fn new(dtype: DType, ranks: u32, reduction: Option<ReduceOp>) -> Numbers {
        let patterns: Vec<_> = (0..MAX_NUMBER).map_while(|number| encode(dtype, number)).collect();
        let exact = (patterns.len() as u32).saturating_sub(1).max(1);
        let (largest, counting) = match reduction {
            Some(ReduceOp::Sum) => {
                let counting = ranks.clamp(1, exact);
                (exact / counting, counting)
            }
            // Powers of two up to the largest exact one.
            Some(ReduceOp::Product) => (2, ranks.min(exact.ilog2())),
            _ => (exact, ranks),
        };
        Numbers { element: dtype.size(), patterns, ranks, reduction, largest, counting }
    }

    /// What rank `rank` of the group holds at `index`; `device` makes different groups differ.
    fn number(&self, rank: u32, device: u32, index: usize) -> u32 {
        let index = index as u32;
        if (index + rank) % self.ranks.max(1) >= self.counting {
            return match self.reduction {
                Some(ReduceOp::Product) => 1,
                _ => 0,
            };
        }
        // Two rounds of a multiplicative hash.
        let mixed = (index ^ device.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b1);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0xc2b2_ae35) >> 8;
        mixed % self.largest + 1
    }

    /// The operand of a rank of the group whose devices these are.
    pub fn operand(&self, group: &[u32], rank: usize) -> Contents {
        let device = group.get(rank).copied().unwrap_or(0);
        self.contents(|index| self.number(rank as u32, device, index))
    }

    /// All operands of the group combined.
    pub fn combined(&self, group: &[u32]) -> Contents {
        self.contents(|index| {
            let numbers = (0..).zip(group).map(|(rank, &device)| self.number(rank, device, index));
            match self.reduction {
                Some(ReduceOp::Product) => numbers.product(),
                Some(ReduceOp::Min) => numbers.min().unwrap_or(0),
                Some(ReduceOp::Max) => numbers.max().unwrap_or(0),
                _ => numbers.sum(),
            }
        })
    }

    fn contents(&self, number: impl Fn(usize) -> u32) -> Contents {
        let mut bytes = Vec::with_capacity(PERIOD * self.element);
        for index in 0..PERIOD {
            // Numbers are chosen so that there is a pattern for each.
            let pattern = self.patterns.get(number(index) as usize).copied().unwrap_or_default();
            bytes.extend_from_slice(&pattern[..self.element]);
        }
        Contents { bytes, element: self.element }
    }
}

impl Contents {
    /// The first `count` elements.
    pub fn array(&self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count * self.element);
        for block in self.blocks(0..count) {
            bytes.extend_from_slice(block);
        }
        bytes
    }

    /// How many elements of `found` are not those of this range.
    pub fn count_wrong(&self, range: Range<usize>, found: &[u8]) -> u64 {
        let mut rest = found;
        let mut wrong = 0;
        for block in self.blocks(range) {
            let (here, after) = rest.split_at(block.len().min(rest.len()));
            if here != block {
                let mut here = here.chunks(self.element);
                wrong += block.chunks(self.element).filter(|element| here.next() != Some(element)).count() as u64;
            }
            rest = after;
        }
        wrong
    }

    fn blocks(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let mut index = range.start;
        std::iter::from_fn(move || {
            let start = index % PERIOD;
            let len = (PERIOD - start).min(range.end.saturating_sub(index));
            index += len;
            (len > 0).then(|| &self.bytes[start * self.element..(start + len) * self.element])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supported() -> impl Iterator<Item = DType> {
        DType::all().filter(|&dtype| Numbers::supports(dtype))
    }

    #[test]
    fn no_combination_leaves_the_exact_numbers() {
        for (dtype, ranks) in supported().flat_map(|dtype| [1, 3, 40].map(|ranks| (dtype, ranks))) {
            for reduction in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
                let numbers = Numbers::new(dtype, ranks, Some(reduction));
                let group: Vec<u32> = (0..ranks).collect();
                let combined = numbers.combined(&group);
                // No number is zero, so zero is what has no pattern.
                let zeros = combined.bytes.chunks(dtype.size()).filter(|element| element.iter().all(|&byte| byte == 0));
                assert_eq!(zeros.count(), 0, "{dtype} {reduction} {ranks}");
            }
        }
    }

    #[test]
    fn operands_differ_between_ranks_and_groups() {
        for dtype in supported() {
            let numbers = Numbers::new(dtype, 2, None);
            let [a, b, c] =
                [(&[0, 1], 0), (&[0, 1], 1), (&[2, 3], 0)].map(|(group, rank)| numbers.operand(group, rank));
            assert!(a.bytes != b.bytes && a.bytes != c.bytes && b.bytes != c.bytes, "{dtype}");
        }
    }

    #[test]
    fn wrong_elements_are_counted() {
        let contents = Numbers::new(DType::F32, 2, None).operand(&[0, 1], 1);
        let all = 3 * PERIOD + 5;
        let mut bytes = contents.array(all);
        assert_eq!(contents.count_wrong(0..all, &bytes), 0);
        assert_eq!(contents.count_wrong(7..all, &bytes[28..]), 0);
        assert_eq!(contents.count_wrong(0..all, &bytes[..bytes.len() - 8]), 2);
        bytes[4 * PERIOD] ^= 1;
        bytes[4 * PERIOD + 3] ^= 1;
        bytes[8] ^= 0x80;
        assert_eq!(contents.count_wrong(0..all, &bytes), 2);
        let moved = contents.count_wrong(1..all, &bytes[..bytes.len() - 4]);
        assert!(moved > all as u64 / 2, "{moved}");
    }
}
