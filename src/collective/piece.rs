use std::ops::Range;

use crate::transport::EAGER_LIMIT;

use super::reduce::is_widened;
use super::spec::ArraySpec;

/// Elements of one array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Which operand or result.
    pub array: usize,
    /// Which of the receiving process's ranks, where that matters.
    pub rank: usize,
    /// Which elements.
    pub elements: Range<usize>,
}

/// What travels as one message: small enough to travel at once, and to stay in the cache until it is combined.
pub(super) type Piece = Vec<Part>;

/// Bytes that an element takes at most, in whichever form a process sends it: so all cut alike.
fn unit(array: &ArraySpec) -> usize {
    if is_widened(array.dtype) { size_of::<f32>() } else { array.dtype.size() }
}

/// Cuts parts of arrays into pieces; there is at least one, if only an empty one.
pub(super) fn cut(arrays: &[ArraySpec], parts: impl IntoIterator<Item = Part>) -> Vec<Piece> {
    let (mut pieces, mut piece, mut space) = (Vec::new(), Piece::new(), EAGER_LIMIT);
    for Part { array, rank, mut elements } in parts {
        let unit = unit(&arrays[array]);
        while !elements.is_empty() {
            let count = elements.len().min(space / unit);
            if count == 0 {
                pieces.push(std::mem::take(&mut piece));
                space = EAGER_LIMIT;
                continue;
            }
            let end = elements.start + count;
            piece.push(Part { array, rank, elements: elements.start..end });
            elements.start = end;
            space -= count * unit;
        }
    }
    if pieces.is_empty() || !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

/// Bytes of arrays, at most, in whichever form a process sends them.
pub(super) fn largest_size(arrays: &[ArraySpec]) -> usize {
    let size = |array: &ArraySpec| array.num_elements().unwrap_or(0).saturating_mul(unit(array));
    arrays.iter().map(size).fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn part(array: usize, elements: Range<usize>) -> Part {
        Part { array, rank: 0, elements }
    }

    #[test]
    fn pieces_are_full_and_in_order() {
        let arrays = [ArraySpec::new(DType::F32, [100_000]), ArraySpec::new(DType::BF16, [3])];
        let pieces = cut(&arrays, [part(0, 10..100_000), part(1, 0..3)]);
        let full = EAGER_LIMIT / 4;
        let expected = [
            vec![part(0, 10..10 + full)],
            vec![part(0, 10 + full..10 + 2 * full)],
            vec![part(0, 10 + 2 * full..10 + 3 * full)],
            vec![part(0, 10 + 3 * full..100_000), part(1, 0..3)],
        ];
        assert_eq!(pieces, expected);
        assert_eq!(cut(&arrays, [part(0, 0..0)]), [Piece::new()]);
    }
}
