//! Events of fixed size, pushed by any thread without a lock. The newest are kept.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// 64-bit words of one event.
pub const WORDS: usize = 8;

/// Words of a slot: the event's number plus one, 0 while it is written, and the event.
const SLOT: usize = WORDS + 1;

/// Memory for a number of events. Pages that no event has come to are not there yet.
pub struct Ring {
    words: Box<[AtomicU64]>,
    capacity: u64,
    /// Events that have been pushed.
    next: AtomicU64,
}

impl Ring {
    /// Room for this many events, at least one.
    pub fn new(capacity: usize) -> Ring {
        let capacity = capacity.max(1);
        let words = Box::into_raw(vec![0u64; capacity * SLOT].into_boxed_slice());
        // SAFETY: an atomic has the size and alignment of its number here (x86-64), and any bits are valid for both; the
        // box is given away above and comes back once.
        let words = unsafe { Box::from_raw(words as *mut [AtomicU64]) };
        Ring { words, capacity: capacity as u64, next: AtomicU64::new(0) }
    }

    fn slot(&self, number: u64) -> &[AtomicU64] {
        let start = (number % self.capacity) as usize * SLOT;
        &self.words[start..start + SLOT]
    }

    /// Adds an event, in place of the oldest one if there is no more room.
    pub fn push(&self, event: [u64; WORDS]) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if let [stamp, words @ ..] = self.slot(number) {
            stamp.store(0, Ordering::Relaxed);
            fence(Ordering::Release);
            for (stored, word) in words.iter().zip(event) {
                stored.store(word, Ordering::Relaxed);
            }
            stamp.store(number + 1, Ordering::Release);
        }
    }

    /// The events that are there, oldest first, and how many are there no more. One that is being written is left out.
    pub fn read(&self) -> (Vec<[u64; WORDS]>, u64) {
        let next = self.next.load(Ordering::Acquire);
        let first = next.saturating_sub(self.capacity);
        let event = |number| {
            let [stamp, words @ ..] = self.slot(number) else { return None };
            let before = stamp.load(Ordering::Acquire);
            let event = std::array::from_fn(|index| words[index].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            (before == number + 1 && stamp.load(Ordering::Relaxed) == before).then_some(event)
        };
        ((first..next).filter_map(event).collect(), first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let ring = Ring::new(4);
        assert_eq!(ring.read(), (vec![], 0));
        (0..3).for_each(|number| ring.push([number; WORDS]));
        assert_eq!(ring.read(), ((0..3).map(|number| [number; WORDS]).collect(), 0));
        (3..10).for_each(|number| ring.push([number; WORDS]));
        assert_eq!(ring.read(), ((6..10).map(|number| [number; WORDS]).collect(), 6));
    }

    #[test]
    fn threads_do_not_mix_their_events() {
        let ring = Ring::new(64);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let ring = &ring;
                scope.spawn(move || (0..20_000).for_each(|number| ring.push([thread << 32 | number; WORDS])));
            }
            for _ in 0..200 {
                for event in ring.read().0 {
                    assert!(event.iter().all(|word| *word == event[0]), "{event:?}");
                }
            }
        });
        let (events, dropped) = ring.read();
        assert_eq!((events.len(), dropped), (64, 80_000 - 64));
    }
}
