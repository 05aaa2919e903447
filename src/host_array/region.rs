//! Copies of boxes between row-major arrays.

/// Where a box lies on one side of a copy: in an array of `dims`, from the element `start` on.
pub(crate) struct Side<'a> {
    pub dims: &'a [usize],
    pub start: &'a [usize],
}

/// Copies a box of `extent` elements of `element_size` bytes, in runs as long as both layouts allow.
///
/// The three shapes have one rank, the box lies inside both arrays and both slices hold it where their array has it.
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

    // The innermost dimension of what remains is a row of runs, evenly spaced on both sides.
    let row = outer.saturating_sub(1);
    let spacing = |strides: &[usize]| if outer > 0 { strides[row] } else { 0 };
    let (source_spacing, target_spacing) = (spacing(&source_strides), spacing(&target_strides));
    let runs = if outer > 0 { extent[row] } else { 1 };

    let mut index = vec![0; row];
    'rows: loop {
        let (from, to) = (&source[source_at..], &mut target[target_at..]);
        match run {
            1 => copy_row::<1>(runs, (from, source_spacing), (to, target_spacing)),
            2 => copy_row::<2>(runs, (from, source_spacing), (to, target_spacing)),
            4 => copy_row::<4>(runs, (from, source_spacing), (to, target_spacing)),
            8 => copy_row::<8>(runs, (from, source_spacing), (to, target_spacing)),
            16 => copy_row::<16>(runs, (from, source_spacing), (to, target_spacing)),
            _ => {
                for nth in 0..runs {
                    let (from, to) = (&from[nth * source_spacing..], &mut to[nth * target_spacing..]);
                    to[..run].copy_from_slice(&from[..run]);
                }
            }
        }
        for dim in (0..row).rev() {
            index[dim] += 1;
            source_at += source_strides[dim];
            target_at += target_strides[dim];
            if index[dim] < extent[dim] {
                continue 'rows;
            }
            index[dim] = 0;
            source_at -= source_strides[dim] * extent[dim];
            target_at -= target_strides[dim] * extent[dim];
        }
        return;
    }
}

/// Copies runs too short for a call of `memcpy` each.
fn copy_row<const RUN: usize>(
    runs: usize,
    (source, source_spacing): (&[u8], usize),
    (target, target_spacing): (&mut [u8], usize),
) {
    for nth in 0..runs {
        let (from, to) = (nth * source_spacing, nth * target_spacing);
        target[to..to + RUN].copy_from_slice(&source[from..from + RUN]);
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
