//! Element-wise combination of buffers, for every element type and operation.
//!
//! Types narrower than f32 are combined in f32 and rounded once: a partial result can stay f32 ([`Source::Wide`]) until
//! the last combination.

mod element;
mod narrow;

use std::ops::Range;

use num_complex::Complex;

use crate::bulk_copy;
use crate::dtype::DType;

use super::spec::ReduceOp;
use element::{And, Combine, Element, Int, Max, Min, Or, Packed, Pred, Product, Sum, Uint, Xor};
use narrow::{Bf16, Codec, Half, Small};

/// A buffer to combine.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Elements of the array's type.
    Native(&'a [u8]),
    /// The same number of f32, for a type that [`is_widened`].
    Wide(&'a [u8]),
    /// What the target holds already.
    Target,
}

/// Whether partial results of this type are kept as f32.
pub(crate) fn is_widened(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16) || Small::of(dtype).is_some()
}

/// Bytes per element of a partial result.
pub(super) fn partial_size(dtype: DType, wide: bool) -> usize {
    if wide { size_of::<f32>() } else { dtype.size() }
}

/// Combines the sources, in their order, into `target`. All hold the same number of elements; `wide` says that the
/// target holds f32 for a type that is widened. Operations that the type does not have leave the target as it is.
pub(super) fn fold(op: ReduceOp, dtype: DType, sources: &[Source<'_>], target: &mut [u8], wide: bool) {
    match dtype {
        DType::Pred => fold_bits::<Pred>(op, sources, target),
        DType::S1 => fold_bits::<Int<1>>(op, sources, target),
        DType::S2 => fold_bits::<Int<2>>(op, sources, target),
        DType::S4 => fold_bits::<Int<4>>(op, sources, target),
        DType::S8 => fold_bits::<i8>(op, sources, target),
        DType::S16 => fold_bits::<i16>(op, sources, target),
        DType::S32 => fold_bits::<i32>(op, sources, target),
        DType::S64 => fold_bits::<i64>(op, sources, target),
        DType::U1 => fold_bits::<Uint<1>>(op, sources, target),
        DType::U2 => fold_bits::<Uint<2>>(op, sources, target),
        DType::U4 => fold_bits::<Uint<4>>(op, sources, target),
        DType::U8 => fold_bits::<u8>(op, sources, target),
        DType::U16 => fold_bits::<u16>(op, sources, target),
        DType::U32 => fold_bits::<u32>(op, sources, target),
        DType::U64 => fold_bits::<u64>(op, sources, target),
        DType::F32 => fold_ordered::<f32>(op, sources, target),
        DType::F64 => fold_ordered::<f64>(op, sources, target),
        DType::C64 => fold_field::<Complex<f32>>(op, sources, target),
        DType::C128 => fold_field::<Complex<f64>>(op, sources, target),
        DType::F16 => fold_widened(op, &Half, sources, target, wide),
        DType::BF16 => fold_widened(op, &Bf16, sources, target, wide),
        _ => {
            if let Some(codec) = Small::of(dtype) {
                fold_widened(op, codec, sources, target, wide);
            }
        }
    }
}

/// As [`fold`], into native elements of an array that is larger than the caches.
pub(super) fn fold_large(op: ReduceOp, dtype: DType, sources: &[Source<'_>], target: &mut [u8]) {
    let mut block = [0; BLOCK];
    let mut parts = Vec::with_capacity(sources.len());
    for (index, out) in target.chunks_mut(BLOCK).enumerate() {
        let block = &mut block[..out.len()];
        if sources.iter().any(|source| matches!(source, Source::Target)) {
            block.copy_from_slice(out);
        }
        let elements = index * BLOCK / dtype.size()..(index * BLOCK + out.len()) / dtype.size();
        let range = |width: usize| elements.start * width..elements.end * width;
        parts.clear();
        parts.extend(sources.iter().map(|source| match *source {
            Source::Native(bytes) => Source::Native(&bytes[range(dtype.size())]),
            Source::Wide(bytes) => Source::Wide(&bytes[range(size_of::<f32>())]),
            Source::Target => Source::Target,
        }));
        fold(op, dtype, &parts, block, false);
        bulk_copy::copy(out, block, true);
    }
}

fn fold_bits<T: Element>(op: ReduceOp, sources: &[Source<'_>], target: &mut [u8])
where
    Sum: Combine<T>,
    Product: Combine<T>,
    Min: Combine<T>,
    Max: Combine<T>,
    And: Combine<T>,
    Or: Combine<T>,
    Xor: Combine<T>,
{
    match op {
        ReduceOp::And => fold_with::<T, And>(sources, target),
        ReduceOp::Or => fold_with::<T, Or>(sources, target),
        ReduceOp::Xor => fold_with::<T, Xor>(sources, target),
        _ => fold_ordered::<T>(op, sources, target),
    }
}

fn fold_ordered<T: Element>(op: ReduceOp, sources: &[Source<'_>], target: &mut [u8])
where
    Sum: Combine<T>,
    Product: Combine<T>,
    Min: Combine<T>,
    Max: Combine<T>,
{
    match op {
        ReduceOp::Min => fold_with::<T, Min>(sources, target),
        ReduceOp::Max => fold_with::<T, Max>(sources, target),
        _ => fold_field::<T>(op, sources, target),
    }
}

fn fold_field<T: Element>(op: ReduceOp, sources: &[Source<'_>], target: &mut [u8])
where
    Sum: Combine<T>,
    Product: Combine<T>,
{
    match op {
        ReduceOp::Sum => fold_with::<T, Sum>(sources, target),
        ReduceOp::Product => fold_with::<T, Product>(sources, target),
        _ => {}
    }
}

/// Bytes that are combined at a time, so that the target stays in the cache while all sources pass by.
const BLOCK: usize = 16 << 10;

fn fold_with<T: Element, O: Combine<T>>(sources: &[Source<'_>], target: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the instructions.
        return unsafe { fold_blocks_avx2::<T, O>(sources, target) };
    }
    fold_blocks::<T, O>(sources, target);
}

/// The same loop, compiled for vectors of 32 bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fold_blocks_avx2<T: Element, O: Combine<T>>(sources: &[Source<'_>], target: &mut [u8]) {
    fold_blocks::<T, O>(sources, target);
}

#[inline(always)]
fn fold_blocks<T: Element, O: Combine<T>>(sources: &[Source<'_>], target: &mut [u8]) {
    let own_is_later = sources.iter().skip(1).any(|source| matches!(source, Source::Target));
    let mut saved = vec![0; if own_is_later { BLOCK.min(target.len()) } else { 0 }];
    for (index, out) in target.chunks_mut(BLOCK).enumerate() {
        if own_is_later {
            saved[..out.len()].copy_from_slice(out);
        }
        let range = index * BLOCK..index * BLOCK + out.len();
        let out: &mut [Packed<T>] = bytemuck::cast_slice_mut(out);
        let rest = match sources {
            [] => return,
            [Source::Target, rest @ ..] => rest,
            [only] => {
                out.copy_from_slice(part::<T>(only, &range, &saved));
                continue;
            }
            [first, second, rest @ ..] => {
                for ((out, a), b) in
                    out.iter_mut().zip(part::<T>(first, &range, &saved)).zip(part::<T>(second, &range, &saved))
                {
                    out.0 = O::combine(a.0, b.0);
                }
                rest
            }
        };
        for source in rest {
            for (out, b) in out.iter_mut().zip(part::<T>(source, &range, &saved)) {
                out.0 = O::combine(out.0, b.0);
            }
        }
    }
}

/// The elements of a source in a range of bytes; `saved` are those that the target had there.
fn part<'a, T: Element>(source: &Source<'a>, range: &Range<usize>, saved: &'a [u8]) -> &'a [Packed<T>] {
    match *source {
        Source::Native(bytes) | Source::Wide(bytes) => cast(&bytes[range.clone()]),
        Source::Target => cast(&saved[..range.len()]),
    }
}

fn cast<T: Element>(bytes: &[u8]) -> &[Packed<T>] {
    bytemuck::cast_slice(bytes)
}

fn fold_widened(op: ReduceOp, codec: &impl Codec, sources: &[Source<'_>], target: &mut [u8], wide: bool) {
    match op {
        ReduceOp::Sum => fold_through_f32::<Sum>(codec, sources, target, wide),
        ReduceOp::Product => fold_through_f32::<Product>(codec, sources, target, wide),
        ReduceOp::Min => fold_through_f32::<Min>(codec, sources, target, wide),
        ReduceOp::Max => fold_through_f32::<Max>(codec, sources, target, wide),
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {}
    }
}

/// Elements that are widened at a time.
const WIDE_BLOCK: usize = 2048;

fn fold_through_f32<O: Combine<f32>>(codec: &impl Codec, sources: &[Source<'_>], target: &mut [u8], wide: bool) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the instructions.
        return unsafe { fold_f32_blocks_avx2::<O>(codec, sources, target, wide) };
    }
    fold_f32_blocks::<O>(codec, sources, target, wide);
}

/// The same loop, compiled for vectors of 32 bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fold_f32_blocks_avx2<O: Combine<f32>>(codec: &impl Codec, sources: &[Source<'_>], target: &mut [u8], wide: bool) {
    fold_f32_blocks::<O>(codec, sources, target, wide);
}

#[inline(always)]
fn fold_f32_blocks<O: Combine<f32>>(codec: &impl Codec, sources: &[Source<'_>], target: &mut [u8], wide: bool) {
    let target_size = if wide { size_of::<f32>() } else { codec.size() };
    let [first, rest @ ..] = sources else { return };
    if let (Source::Native(bytes), [], false) = (first, rest, wide) {
        target.copy_from_slice(bytes);
        return;
    }
    let (mut sums, mut values) = ([0f32; WIDE_BLOCK], [0f32; WIDE_BLOCK]);
    for (index, out) in target.chunks_mut(WIDE_BLOCK * target_size).enumerate() {
        let (start, count) = (index * WIDE_BLOCK, out.len() / target_size);
        let load = |source: &Source<'_>, values: &mut [f32], out: &[u8]| {
            let part = |bytes: &[u8], size: usize| start * size..(start * size + count * size).min(bytes.len());
            match *source {
                Source::Native(bytes) => codec.decode(&bytes[part(bytes, codec.size())], values),
                Source::Wide(bytes) => load_f32(&bytes[part(bytes, size_of::<f32>())], values),
                Source::Target if wide => load_f32(out, values),
                Source::Target => codec.decode(out, values),
            }
        };
        let (sums, values) = (&mut sums[..count], &mut values[..count]);
        load(first, sums, out);
        for source in rest {
            load(source, values, out);
            for (sum, value) in sums.iter_mut().zip(&*values) {
                *sum = O::combine(*sum, *value);
            }
        }
        if wide {
            out.copy_from_slice(bytemuck::cast_slice(sums));
        } else {
            codec.encode(sums, out);
        }
    }
}

fn load_f32(bytes: &[u8], values: &mut [f32]) {
    for (value, packed) in values.iter_mut().zip(cast::<f32>(bytes)) {
        *value = packed.0;
    }
}
