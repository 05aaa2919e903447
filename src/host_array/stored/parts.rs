//! Reading boxes of row-major arrays that lie in files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::host_array::region::{Side, copy_region};

/// Bytes that are rather read and dropped than skipped by another call.
const GAP: usize = 32 << 10;
/// Bytes that are read at once if only some of them are wanted.
const SPAN: usize = 4 << 20;

/// Bytes by their offset.
pub(super) trait ReadAt {
    /// Fills the buffer with what begins at the offset. Offsets ascend from call to call.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for &File {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

/// What can only be read from its beginning.
pub(super) struct Forward<R> {
    reader: R,
    at: u64,
}

impl<R: Read> Forward<R> {
    pub fn new(reader: R) -> Forward<R> {
        Forward { reader, at: 0 }
    }
}

impl<R: Read> ReadAt for Forward<R> {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        io::copy(&mut self.reader.by_ref().take(offset.saturating_sub(self.at)), &mut io::sink())?;
        self.reader.read_exact(buffer)?;
        self.at = offset + buffer.len() as u64;
        Ok(())
    }
}

/// A file with a position of its own, however many share its descriptor.
pub(in crate::host_array) struct Positioned {
    file: Arc<File>,
    at: u64,
}

impl Positioned {
    /// At the file's beginning.
    pub fn new(file: Arc<File>) -> Positioned {
        Positioned { file, at: 0 }
    }
}

impl Read for Positioned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Positioned {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(offset) => self.file.metadata()?.len().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Reads `extent` elements of `size` bytes from the element `start` on, of a row-major array of `dims` that begins at
/// `offset`. The box lies inside the array. Takes few calls, and little memory beside the result.
pub(super) fn read_box(
    source: &mut impl ReadAt,
    offset: u64,
    dims: &[usize],
    start: &[usize],
    extent: &[usize],
    size: usize,
) -> io::Result<Vec<u8>> {
    if extent.contains(&0) {
        return Ok(Vec::new());
    }
    let mut strides = vec![size; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim];
    }
    // The dimensions from `outer` on are read by one call, from their first element wanted to the last.
    let (mut outer, mut span, mut wanted) = (dims.len(), size, size);
    for dim in (0..dims.len()).rev() {
        let spread = (extent[dim] - 1) * strides[dim] + span;
        let is_dense = spread == wanted * extent[dim];
        if !is_dense && (strides[dim] - span > GAP || spread > SPAN) {
            break;
        }
        (outer, span, wanted) = (dim, spread, wanted * extent[dim]);
    }
    let calls: usize = extent[..outer].iter().product();
    let total = calls.checked_mul(wanted).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut data = Vec::new();
    data.try_reserve_exact(total).map_err(|_| io::ErrorKind::OutOfMemory)?;
    data.resize(total, 0);

    let first: u64 = offset + start.iter().zip(&strides).map(|(&index, &stride)| (index * stride) as u64).sum::<u64>();
    let origin = vec![0; dims.len() - outer];
    let mut scratch = vec![0; if span == wanted { 0 } else { span }];
    let mut index = vec![0; outer];
    for part in data.chunks_exact_mut(wanted) {
        let at = first + index.iter().zip(&strides).map(|(&index, &stride)| (index * stride) as u64).sum::<u64>();
        if span == wanted {
            source.read_at(part, at)?;
        } else {
            source.read_at(&mut scratch, at)?;
            let from = Side { dims: &dims[outer..], start: &origin };
            let to = Side { dims: &extent[outer..], start: &origin };
            copy_region(&extent[outer..], size, (&scratch, from), (part, to));
        }
        for dim in (0..outer).rev() {
            index[dim] += 1;
            if index[dim] < extent[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Counted<'a> {
        bytes: &'a [u8],
        read: usize,
        calls: usize,
    }

    impl ReadAt for Counted<'_> {
        fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            buffer.copy_from_slice(&self.bytes[offset as usize..][..buffer.len()]);
            self.read += buffer.len();
            self.calls += 1;
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn a_box_is_what_a_copy_of_it_is(
            shape in prop::collection::vec((1usize..6, 0usize..6, 0usize..6), 0..5),
            size in prop::sample::select(vec![1usize, 2, 4, 8, 16]),
        ) {
            let dims: Vec<usize> = shape.iter().map(|dim| dim.0).collect();
            let start: Vec<usize> = shape.iter().map(|&(dim, start, _)| start % dim).collect();
            let extent: Vec<usize> =
                shape.iter().zip(&start).map(|(&(dim, _, extent), start)| extent % (dim - start + 1)).collect();
            let length = dims.iter().product::<usize>() * size;
            let bytes: Vec<u8> = (0..3 + length).map(|byte| byte as u8).collect();
            let mut expected = vec![0; extent.iter().product::<usize>() * size];
            copy_region(
                &extent,
                size,
                (&bytes[3..], Side { dims: &dims, start: &start }),
                (&mut expected, Side { dims: &extent, start: &vec![0; extent.len()] }),
            );
            let mut counted = Counted { bytes: &bytes, read: 0, calls: 0 };
            prop_assert_eq!(&read_box(&mut counted, 3, &dims, &start, &extent, size).unwrap(), &expected);
            let mut forward = Forward::new(&bytes[..]);
            prop_assert_eq!(&read_box(&mut forward, 3, &dims, &start, &extent, size).unwrap(), &expected);
        }
    }

    #[test]
    fn far_rows_are_read_one_by_one_and_near_ones_together() {
        let read = |dims: &[usize], start: &[usize], extent: &[usize]| {
            let bytes = vec![0; dims.iter().product()];
            let mut counted = Counted { bytes: &bytes, read: 0, calls: 0 };
            read_box(&mut counted, 0, dims, start, extent, 1).unwrap();
            (counted.calls, counted.read)
        };
        assert_eq!(read(&[1000, 100], &[0, 50], &[1000, 50]), (1, 99_950));
        assert_eq!(read(&[4, 1 << 20], &[0, 0], &[4, 1000]), (4, 4000));
        assert_eq!(read(&[8, 1 << 20], &[2, 0], &[4, 1 << 20]), (1, 4 << 20));
        assert_eq!(read(&[2, 1 << 21, 2], &[0, 0, 1], &[2, 1 << 21, 1]).0, 2);
    }
}
