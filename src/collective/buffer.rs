use std::ops::Range;

/// A device's operand: row-major elements in host memory.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    start: *const u8,
    len: usize,
}

// SAFETY: the constructor's contract allows reads from any thread until the call is done.
unsafe impl Send for Input {}
// SAFETY: as above.
unsafe impl Sync for Input {}

impl Input {
    /// The `len` bytes at `start`; `start` may be anything if `len` is 0.
    ///
    /// # Safety
    /// The memory stays valid, and nobody writes to it, until the `done` of the call that this is passed to is called.
    pub unsafe fn new(start: *const u8, len: usize) -> Input {
        Input { start, len }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: by the constructor's contract; the engine drops its copy before it calls `done`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

/// Where a device's result goes: row-major elements in host memory.
#[derive(Debug)]
pub struct Output {
    start: *mut u8,
    len: usize,
}

// SAFETY: the constructor's contract gives the memory to the call, whichever thread runs it.
unsafe impl Send for Output {}
// SAFETY: shared references give only the length.
unsafe impl Sync for Output {}

impl Output {
    /// The `len` bytes at `start`; `start` may be anything if `len` is 0.
    ///
    /// # Safety
    /// The memory stays valid, nobody else touches it, and it overlaps no other operand or result, until the `done` of
    /// the call that this is passed to is called.
    pub unsafe fn new(start: *mut u8, len: usize) -> Output {
        Output { start, len }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.part_mut(0..self.len)
    }

    /// A part of it that has been written.
    pub(super) fn part(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        if range.is_empty() {
            return &[];
        }
        // SAFETY: by the constructor's contract and the check above.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// A part of it, without touching the others: messages may be coming in there.
    pub(super) fn part_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        if range.is_empty() {
            return &mut [];
        }
        // SAFETY: by the constructor's contract and the check above; the engine drops it before it calls `done`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
