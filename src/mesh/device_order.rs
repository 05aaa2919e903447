//! Devices in the order of a grid, and the short notation for it.

use std::fmt;

use super::ShardingError;

/// More devices than any machine has; what a program may make us allocate ends here.
const MAX_DEVICES: usize = 1 << 20;

/// Checks that a grid of `dims` has a sensible number of points, and returns it.
pub(super) fn grid_size(dims: &[usize]) -> Result<usize, ShardingError> {
    let too_many = || ShardingError::TooManyDevices { devices: joined(dims, " × "), limit: MAX_DEVICES };
    let size = dims.iter().try_fold(1usize, |size, &dim| size.checked_mul(dim)).ok_or_else(too_many)?;
    match size {
        0 => Err(ShardingError::Invalid(format!("a grid of {} devices", joined(dims, " × ")))),
        1..=MAX_DEVICES => Ok(size),
        _ => Err(too_many()),
    }
}

/// The points of a row-major grid of `dims` after its dimensions are put in the order `permutation`, as
/// `numpy.transpose` does.
pub(super) fn transposed(points: &[u32], dims: &[usize], permutation: &[usize]) -> Vec<u32> {
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim];
    }
    let mut result = Vec::with_capacity(points.len());
    let mut index = vec![0; permutation.len()];
    let mut at = 0;
    'points: loop {
        result.push(points[at]);
        for (nth, &dim) in permutation.iter().enumerate().rev() {
            index[nth] += 1;
            at += strides[dim];
            if index[nth] < dims[dim] {
                continue 'points;
            }
            at -= strides[dim] * dims[dim];
            index[nth] = 0;
        }
        return result;
    }
}

/// Whether `numbers` holds each of `0..numbers.len()` once.
pub(super) fn is_permutation(numbers: &[usize]) -> bool {
    let mut seen = vec![false; numbers.len()];
    numbers.iter().all(|&number| seen.get_mut(number).is_some_and(|seen| !std::mem::replace(seen, true)))
}

/// Writes devices as XLA does: `<=[8]` or `<=[2,4]T(1,0)` where they are a transposed iota, else as a list.
pub(super) fn write_devices(devices: &[u32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match transposed_iota(devices) {
        Some((dims, _)) if dims.len() == 1 => write!(f, "<=[{}]", devices.len()),
        Some((dims, permutation)) => write!(f, "<=[{}]T({})", joined(&dims, ","), joined(&permutation, ",")),
        None => f.write_str(&joined(devices, ",")),
    }
}

/// Dimensions and permutation, as few as possible, of the grid whose transposition lists `devices`; `None` if there is
/// no such grid.
pub(super) fn transposed_iota(devices: &[u32]) -> Option<(Vec<usize>, Vec<usize>)> {
    let count = devices.len();
    // Minor to major: the list is the previous block, repeated `size` times, each `stride` further on.
    let mut digits: Vec<(u32, usize)> = Vec::new();
    let mut block = 1;
    while block < count {
        let stride = *devices.get(block)?;
        let repeats = |nth: usize| {
            let shift = stride.checked_mul(nth as u32)?;
            let (first, rest) = (devices.get(..block)?, devices.get(nth * block..(nth + 1) * block)?);
            first.iter().zip(rest).all(|(a, b)| a + shift == *b).then_some(())
        };
        let size = 1 + (1..).take_while(|&nth| repeats(nth).is_some()).count();
        if size == 1 || !count.is_multiple_of(block * size) {
            return None;
        }
        digits.push((stride, size));
        block *= size;
    }
    if devices.first() != Some(&0) {
        return None;
    }
    let mut by_stride: Vec<usize> = (0..digits.len()).collect();
    by_stride.sort_by_key(|&digit| digits[digit].0);
    let mut expected = 1;
    for &digit in &by_stride {
        let (stride, size) = digits[digit];
        if stride as usize != expected {
            return None;
        }
        expected *= size;
    }
    by_stride.reverse();
    let dims = by_stride.iter().map(|&digit| digits[digit].1).collect();
    let permutation =
        (0..digits.len()).rev().filter_map(|digit| by_stride.iter().position(|&at| at == digit)).collect();
    Some((dims, permutation))
}

/// The items, with a separator between them.
pub(super) fn joined<T: ToString>(items: &[T], separator: &str) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(separator)
}
