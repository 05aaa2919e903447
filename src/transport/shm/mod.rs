//! Bytes between two processes of one host through memory that both have mapped.
//!
//! Each direction is a ring in a memory file of its writer's. The file has no name: the other process opens it by way of
//! `/proc` and finds a number in it that it was told beforehand. Nothing stays behind when processes end, however they
//! do.

mod memory;
#[cfg(test)]
mod model;
mod ring;
mod segment;

use std::io::{self, IoSlice};
use std::time::Duration;

use super::EAGER_LIMIT;

pub(super) use memory::{Memory, RUN_LEN, Run};
pub(super) use ring::Seen;
pub(super) use segment::{HOST_LEN, HostId, OFFER_LEN, Offer, Offered, Segment};

/// What the ring is built on.
mod sync {
    pub use std::sync::atomic::{AtomicU32, Ordering, fence};
    use std::time::Duration;

    use rustix::thread::futex::{Flags, Wait, WaitFlags, WaitPtr, WaitvFlags, wait, waitv, wake};
    use rustix::time::{ClockId, Timespec, clock_gettime};

    use super::ring::Seen;

    /// Words that the system watches at a time.
    const MAX_WORDS: usize = 128;

    /// How long a sleep lasts if not all words can be watched.
    const TICK: Duration = Duration::from_millis(2);

    /// Sleeps while all words are as they were seen, for at most `limit`. Whatever ends the sleep, the caller looks again.
    pub fn futex_wait(first: Seen<'_>, others: &[Seen<'_>], limit: Duration) {
        if !others.is_empty() && watch_all(first, others, limit) {
            return;
        }
        let limit = if others.is_empty() { limit } else { limit.min(TICK) };
        let _ = wait(first.0, Flags::empty(), first.1, Some(&limit.try_into().unwrap_or_default()));
    }

    /// `false` if the system (before Linux 5.16) cannot watch several words, or not so many.
    fn watch_all(first: Seen<'_>, others: &[Seen<'_>], limit: Duration) -> bool {
        let mut words = [Wait::new(); MAX_WORDS];
        let Some(words) = words.get_mut(..=others.len()) else { return false };
        for (wait, (word, seen)) in words.iter_mut().zip(std::iter::once(&first).chain(others)) {
            wait.val = u64::from(*seen);
            wait.uaddr = WaitPtr::new(word.as_ptr().cast());
            wait.flags = WaitFlags::SIZE_U32;
        }
        let until = clock_gettime(ClockId::Monotonic) + limit.try_into().unwrap_or(Timespec::default());
        waitv(words, WaitvFlags::empty(), Some(&until), ClockId::Monotonic) != Err(rustix::io::Errno::NOSYS)
    }

    pub fn futex_wake(word: &AtomicU32) {
        let _ = wake(word, Flags::empty(), u32::MAX >> 1);
    }
}

/// A small message with its header fits in this many bytes.
const WHOLE: usize = EAGER_LIMIT + 64;

/// Bytes of a larger message that are written at a time.
const PART: usize = 64 << 10;

/// What two processes of one host share.
pub(super) struct Shared {
    pub writer: Writer,
    pub reader: Reader,
    /// The other process's memory, if this one may read it.
    pub memory: Option<Memory>,
    /// Whether the other process may read this one's memory.
    pub is_readable: bool,
}

/// Writes to the ring of this process.
pub(super) struct Writer {
    segment: Segment,
    own: ring::Writer,
}

/// Reads from the ring of the other process.
pub(super) struct Reader {
    segment: Segment,
    own: ring::Reader,
}

impl Writer {
    pub fn new(segment: Segment) -> Writer {
        Writer { segment, own: ring::Writer::default() }
    }

    /// Writes `slices` if there is room, and returns how many bytes that was. Small messages are written whole, so that
    /// the reader finds them in one piece; of larger ones a part, so that it can begin.
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let wanted = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let (positions, capacity) = (self.segment.positions(), self.segment.capacity());
        let at_once = wanted.min(if wanted <= WHOLE { WHOLE } else { PART });
        if (self.own.space(positions, capacity, at_once as u32).map_err(|_| corrupt())? as usize) < at_once {
            return Ok(0);
        }
        let mut space = at_once;
        let start = self.own.position();
        let mut count = 0;
        for slice in slices {
            let part = &slice[..slice.len().min(space)];
            self.segment.write(start.wrapping_add(count), part);
            count += part.len() as u32;
            space -= part.len();
            if space == 0 {
                break;
            }
        }
        if count > 0 {
            self.own.publish(positions, count);
        }
        Ok(count as usize)
    }

    /// The ring of this process.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Where the reader is, for [`Writer::sleep`].
    pub fn seen(&self) -> u32 {
        self.segment.positions().head()
    }

    /// Sleeps until the reader has gone on from `seen`, or one of `others` has changed.
    pub fn sleep(&self, seen: u32, others: &[Seen<'_>], limit: Duration) {
        self.segment.positions().sleep_until_space(seen, others, limit);
    }
}

impl Reader {
    pub fn new(segment: Segment) -> Reader {
        Reader { segment, own: ring::Reader::default() }
    }

    /// All bytes that have arrived and were not consumed.
    pub fn available(&self) -> io::Result<&[u8]> {
        let count = self.own.available(self.segment.positions(), self.segment.capacity()).map_err(|_| corrupt())?;
        Ok(self.segment.read(self.own.position(), count))
    }

    /// Gives up `count` of the available bytes.
    pub fn consume(&mut self, count: usize) {
        if count > 0 {
            self.own.release(self.segment.positions(), count as u32);
        }
    }

    /// The other process's ring, to wait for what comes.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}

fn corrupt() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the positions in shared memory are impossible")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Writer, Reader) {
        let offered = Offered::new().unwrap();
        let theirs = offered.offer().open().unwrap();
        (Writer::new(offered.into_segment()), Reader::new(theirs))
    }

    #[test]
    fn bytes_go_through_the_end_of_the_ring() {
        let (mut writer, mut reader) = pair();
        let message: Vec<u8> = (0..100_003u32).map(|index| (index % 251) as u8).collect();
        for _ in 0..20 {
            let (head, tail) = message.split_at(777);
            assert_eq!(writer.write(&[IoSlice::new(head), IoSlice::new(tail)]).unwrap(), message.len());
            assert!(reader.available().unwrap() == message);
            reader.consume(message.len());
        }
        assert!(reader.available().unwrap().is_empty());
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let (mut writer, mut reader) = pair();
        let message = vec![7; 3 << 20];
        while writer.write(&[IoSlice::new(&message)]).unwrap() > 0 {}
        assert_eq!(writer.write(&[IoSlice::new(&message[..1])]).unwrap(), 0);
        reader.consume(10);
        assert_eq!(writer.write(&[IoSlice::new(&message[..11])]).unwrap(), 0);
        assert_eq!(writer.write(&[IoSlice::new(&message[..10])]).unwrap(), 10);
    }

    #[test]
    fn an_offer_survives_the_wire_and_is_checked() {
        let offered = Offered::new().unwrap();
        let offer = offered.offer();
        assert_eq!(Offer::from_bytes(&offer.to_bytes()), offer);
        let mut other = offer.clone();
        other.number[0] ^= 1;
        assert!(other.open().is_err());
        let elsewhere = Offer { descriptor: u32::MAX, ..offer };
        assert!(elsewhere.open().is_err());
    }
}
