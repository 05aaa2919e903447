//! Copies of boxes between row-major arrays.

/// Where a box lies on one side of a copy: in an array of `dims`, from the element `start` on.
pub(crate) struct Side<'a> {
    pub dims: &'a [usize],
    pub start: &'a [usize],
}

/// Copies a box of `extent` elements of `element_size` bytes, in runs as long as both layouts allow.
///
/// The three shapes have one rank, the box lies inside both arrays and both slices hold their whole array.
pub(crate) fn copy_region(
    extent: &[usize],
    element_size: usize,
    (source, from): (&[u8], Side<'_>),
    (target, to): (&mut [u8], Side<'_>),
) {
    if extent.contains(&0) {
        return;
    }
    let (source_strides, mut source_at) = strides(&from, element_size);
    let (target_strides, mut target_at) = strides(&to, element_size);

    let mut outer = extent.len();
    let mut run = element_size;
    while outer > 0 {
        outer -= 1;
        run *= extent[outer];
        if extent[outer] != from.dims[outer] || extent[outer] != to.dims[outer] {
            break;
        }
    }

    let mut index = vec![0; outer];
    'runs: loop {
        target[target_at..target_at + run].copy_from_slice(&source[source_at..source_at + run]);
        for dim in (0..outer).rev() {
            index[dim] += 1;
            source_at += source_strides[dim];
            target_at += target_strides[dim];
            if index[dim] < extent[dim] {
                continue 'runs;
            }
            index[dim] = 0;
            source_at -= source_strides[dim] * extent[dim];
            target_at -= target_strides[dim] * extent[dim];
        }
        return;
    }
}

/// Strides in bytes, and the byte at which the box starts.
fn strides(side: &Side<'_>, element_size: usize) -> (Vec<usize>, usize) {
    let mut strides = vec![element_size; side.dims.len()];
    for dim in (1..side.dims.len()).rev() {
        strides[dim - 1] = strides[dim] * side.dims[dim];
    }
    let start = strides.iter().zip(side.start).map(|(stride, start)| stride * start).sum();
    (strides, start)
}
