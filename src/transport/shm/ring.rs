//! The positions of a ring of bytes with one writer and one reader in different processes, and how they wait for each
//! other. The bytes themselves are the callers' business. Compiled a second time for the model checker in `model.rs`.

use std::time::Duration;

use super::sync::{AtomicU32, Ordering, fence, futex_wait, futex_wake};

/// Shared by writer and reader. All zeros is an empty ring. Positions count bytes since the start, modulo 2³².
#[repr(C)]
pub(in crate::transport) struct Positions {
    /// Up to where the writer has written.
    tail: Line,
    /// Up to where the reader has read.
    head: Line,
    /// Not zero while the reader sleeps on `tail`.
    reader_sleeps: Line,
    /// Goes up when the writer begins to sleep on `head`, and when it is awake again: odd while it sleeps.
    writer_naps: Line,
    /// Not zero once the writer has taken memory back that the reader was to read.
    withdrawn: Line,
    /// One more than the number of the core that the writer last waited on.
    core: Line,
}

/// A word and its value at a glance. A sleep that it is given to ends when it is no longer so.
pub(in crate::transport) type Seen<'a> = (&'a AtomicU32, u32);

/// A word whose cache line, and the one fetched along with it, holds nothing else.
#[repr(C, align(128))]
struct Line(AtomicU32);

/// The other side of the ring moved its position to where it cannot be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Corrupt;

/// The writer's own view.
#[derive(Debug, Default)]
pub(super) struct Writer {
    tail: u32,
    head_seen: u32,
}

/// The reader's own view.
#[derive(Debug, Default)]
pub(super) struct Reader {
    head: u32,
}

impl Positions {
    #[cfg(test)]
    #[allow(dead_code, reason = "outside the model, positions are mapped")]
    pub fn new() -> Positions {
        let zero = || Line(AtomicU32::new(0));
        Positions {
            tail: zero(),
            head: zero(),
            reader_sleeps: zero(),
            writer_naps: zero(),
            withdrawn: zero(),
            core: zero(),
        }
    }

    /// Where the writer is, to be handed to [`Positions::sleep_until_data`].
    pub fn tail(&self) -> u32 {
        self.tail.0.load(Ordering::Acquire)
    }

    /// Sleeps until the writer is no longer at `seen` or one of `others` has changed, for at most `limit`; may return
    /// earlier.
    pub fn sleep_until_data(&self, seen: u32, others: &[Seen<'_>], limit: Duration) {
        self.reader_sleeps.0.store(1, Ordering::Relaxed);
        sleep((&self.tail.0, seen), others, limit);
        self.reader_sleeps.0.store(0, Ordering::Relaxed);
    }

    /// Sleeps until the reader is no longer at `seen` or one of `others` has changed, for at most `limit`; may return
    /// earlier.
    pub fn sleep_until_space(&self, seen: u32, others: &[Seen<'_>], limit: Duration) {
        let naps = &self.writer_naps.0;
        let before = naps.load(Ordering::Relaxed);
        naps.store(before.wrapping_add(1), Ordering::SeqCst);
        // The reader may sleep for the sake of another ring.
        futex_wake(naps);
        sleep((&self.head.0, seen), others, limit);
        naps.store(before.wrapping_add(2), Ordering::Relaxed);
    }

    /// What changes when the writer begins to sleep for want of room, and whether it sleeps.
    pub fn writer_naps(&self) -> (Seen<'_>, bool) {
        let naps = self.writer_naps.0.load(Ordering::SeqCst);
        ((&self.writer_naps.0, naps), naps % 2 == 1)
    }

    /// Says, before the writer touches memory again that it had told the reader to read, that the reader did not do so.
    pub fn withdraw(&self) {
        self.withdrawn.0.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether what was read until now may be something else than what was there when the writer told of it.
    pub fn is_withdrawn(&self) -> bool {
        fence(Ordering::SeqCst);
        self.withdrawn.0.load(Ordering::SeqCst) != 0
    }

    /// Ends the reader's sleep, if it sleeps.
    pub fn wake_reader(&self) {
        futex_wake(&self.tail.0);
    }

    /// Says which core the writer of this ring waits on. Whether that is where the writer of `theirs` waited last.
    pub fn shares_core(&self, theirs: &Positions) -> bool {
        let here = rustix::thread::sched_getcpu() as u32 + 1;
        self.core.0.store(here, Ordering::Relaxed);
        theirs.core.0.load(Ordering::Relaxed) == here
    }

    /// Where the reader is, to be handed to [`Positions::sleep_until_space`].
    pub fn head(&self) -> u32 {
        self.head.0.load(Ordering::Acquire)
    }
}

/// The sleeper has raised its flag, and now looks at the position again; the mover moves and then looks at the flag. With
/// the fences between, one of them sees the other. Only the sleeper, of which there is one at a time, lowers the flag:
/// a mover could lower it for a sleep that has begun since.
fn sleep(position: Seen<'_>, others: &[Seen<'_>], limit: Duration) {
    fence(Ordering::SeqCst);
    let (word, seen) = position;
    if word.load(Ordering::Relaxed) == seen {
        futex_wait(position, others, limit);
    }
}

fn wake(position: &AtomicU32, is_asleep: impl Fn() -> bool) {
    fence(Ordering::SeqCst);
    if is_asleep() {
        futex_wake(position);
    }
}

impl Writer {
    /// Where the next byte goes.
    pub fn position(&self) -> u32 {
        self.tail
    }

    /// How many bytes may be written, at least `wanted` if there is room for that many.
    pub fn space(&mut self, positions: &Positions, capacity: u32, wanted: u32) -> Result<u32, Corrupt> {
        let left = |head: u32, tail: u32| capacity.checked_sub(tail.wrapping_sub(head)).ok_or(Corrupt);
        if left(self.head_seen, self.tail)? < wanted {
            self.head_seen = positions.head();
        }
        left(self.head_seen, self.tail)
    }

    /// Makes `count` more written bytes visible to the reader.
    pub fn publish(&mut self, positions: &Positions, count: u32) {
        self.tail = self.tail.wrapping_add(count);
        positions.tail.0.store(self.tail, Ordering::Release);
        wake(&positions.tail.0, || positions.reader_sleeps.0.load(Ordering::Relaxed) != 0);
    }
}

impl Reader {
    /// Where the next byte is.
    pub fn position(&self) -> u32 {
        self.head
    }

    /// How many bytes there are.
    pub fn available(&self, positions: &Positions, capacity: u32) -> Result<u32, Corrupt> {
        let count = positions.tail().wrapping_sub(self.head);
        if count <= capacity { Ok(count) } else { Err(Corrupt) }
    }

    /// Gives `count` bytes back to the writer.
    pub fn release(&mut self, positions: &Positions, count: u32) {
        self.head = self.head.wrapping_add(count);
        positions.head.0.store(self.head, Ordering::Release);
        wake(&positions.head.0, || positions.writer_naps.0.load(Ordering::Relaxed) % 2 == 1);
    }
}
