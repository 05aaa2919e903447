//! Copies of large arrays.
//!
//! An ordinary store first reads the cache line that it changes. A copy that is larger than the caches gains nothing from
//! that and pays for it with a third of the memory's bandwidth, so it stores past the caches instead.

/// Arrays of at least this many bytes leave little of themselves in a core's caches.
pub const LARGE: usize = 4 << 20;

/// Shorter runs of bytes are not worth the effort.
#[cfg(target_arch = "x86_64")]
const SHORT: usize = 1 << 10;

/// Copies bytes of an array that `is_large` to memory of the same length.
///
/// # Panics
/// The lengths differ.
pub fn copy(to: &mut [u8], from: &[u8], is_large: bool) {
    #[cfg(target_arch = "x86_64")]
    if is_large && from.len() >= SHORT && std::arch::is_x86_feature_detected!("avx") {
        assert_eq!(to.len(), from.len());
        // SAFETY: the processor has the instructions.
        return unsafe { copy_past_caches(to, from) };
    }
    let _ = is_large;
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    /// Two cache lines.
    const STEP: usize = 128;
    let start = to.as_ptr().align_offset(64).min(to.len());
    let (head, to) = to.split_at_mut(start);
    let (from_head, from) = from.split_at(start);
    head.copy_from_slice(from_head);
    let (to, tail) = to.as_chunks_mut::<STEP>();
    let (from, from_tail) = from.as_chunks::<STEP>();
    for (to, from) in to.iter_mut().zip(from) {
        let (to, from) = (to.as_mut_ptr().cast::<__m256i>(), from.as_ptr().cast::<__m256i>());
        // SAFETY: four vectors within the chunks; the target is aligned, as its first chunk is and chunks are multiples of
        // the alignment.
        unsafe {
            let vectors = [0, 1, 2, 3].map(|index| _mm256_loadu_si256(from.add(index)));
            for (index, vector) in vectors.into_iter().enumerate() {
                _mm256_stream_si256(to.add(index), vector);
            }
        }
    }
    tail.copy_from_slice(from_tail);
    // Such stores are not ordered with what follows, which may tell another thread or process that they are there.
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_arrive_wherever_they_start_and_end() {
        let from: Vec<u8> = (0..6000u32).map(|index| (index % 251) as u8).collect();
        for start in [0, 1, 31, 64, 100] {
            for end in [5000, 5001, 5999] {
                for is_large in [false, true] {
                    let mut to = vec![255; 6000];
                    copy(&mut to[start..end], &from[start..end], is_large);
                    assert!(to[start..end] == from[start..end], "{start}..{end}");
                    assert!(to[..start].iter().chain(&to[end..]).all(|byte| *byte == 255), "{start}..{end}");
                }
            }
        }
        copy(&mut [], &[], true);
    }
}
