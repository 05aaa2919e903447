//! Checks the ring under every interleaving and memory order that the language allows.

#[path = "ring.rs"]
#[allow(dead_code, clippy::duplicate_mod, reason = "the same code over other atomics; the model uses a part of it")]
mod ring;

/// What the ring is built on, as the model checker has it.
mod sync {
    use std::time::Duration;

    pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
    use loom::sync::{Condvar, Mutex};

    use super::ring::Seen;

    loom::lazy_static! {
        static ref SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    /// Without a limit: a lost wake-up is a deadlock, which the checker reports.
    pub fn futex_wait(first: Seen<'_>, others: &[Seen<'_>], _limit: Duration) {
        let guard = SLEEPERS.0.lock().unwrap();
        if std::iter::once(&first).chain(others).all(|(word, seen)| word.load(Ordering::SeqCst) == *seen) {
            drop(SLEEPERS.1.wait(guard).unwrap());
        }
    }

    pub fn futex_wake(_word: &AtomicU32) {
        drop(SLEEPERS.0.lock().unwrap());
        SLEEPERS.1.notify_all();
    }
}

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use ring::{Positions, Reader, Writer};

const CAPACITY: u32 = 2;

/// A ring of two bytes; the cells are watched by the checker.
struct Shared {
    positions: Positions,
    bytes: [UnsafeCell<u8>; CAPACITY as usize],
}

// SAFETY: what the checker is to confirm.
unsafe impl Sync for Shared {}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { positions: Positions::new(), bytes: [UnsafeCell::new(0), UnsafeCell::new(0)] })
}

fn write(shared: &Shared, writer: &mut Writer, byte: u8) {
    let positions = &shared.positions;
    loop {
        let seen = positions.head();
        if writer.space(positions, CAPACITY, 1).unwrap() > 0 {
            break;
        }
        positions.sleep_until_space(seen, &[], Duration::MAX);
    }
    // SAFETY: the space is the writer's until it is published.
    shared.bytes[(writer.position() % CAPACITY) as usize].with_mut(|cell| unsafe { *cell = byte });
    writer.publish(positions, 1);
}

fn read(shared: &Shared, reader: &mut Reader) -> u8 {
    let positions = &shared.positions;
    loop {
        let seen = positions.tail();
        if reader.available(positions, CAPACITY).unwrap() > 0 {
            break;
        }
        positions.sleep_until_data(seen, &[], Duration::MAX);
    }
    // SAFETY: published bytes are the reader's until it releases them.
    let byte = shared.bytes[(reader.position() % CAPACITY) as usize].with(|cell| unsafe { *cell });
    reader.release(positions, 1);
    byte
}

/// Every byte arrives once and in order, nobody touches a byte of the other, nobody sleeps through a wake-up.
#[test]
fn bytes_arrive_in_order() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let shared = shared();
        let at_writer = Arc::clone(&shared);
        let writer = thread::spawn(move || {
            let mut writer = Writer::default();
            (1..=3).for_each(|byte| write(&at_writer, &mut writer, byte));
        });
        let mut reader = Reader::default();
        for expected in 1..=3 {
            assert_eq!(read(&shared, &mut reader), expected);
        }
        writer.join().unwrap();
    });
}

/// A writer that finds no room reaches a reader that waits for something else.
#[test]
fn a_blocked_writer_wakes_a_reader_of_another_ring() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (full, awaited) = (shared(), shared());
        let at_writer = (Arc::clone(&full), Arc::clone(&awaited));
        let writer = thread::spawn(move || {
            let mut writer = Writer::default();
            (1..=3).for_each(|byte| write(&at_writer.0, &mut writer, byte));
            write(&at_writer.1, &mut Writer::default(), 4);
        });
        let (mut relieved, mut reader) = (Reader::default(), Reader::default());
        let mut taken = 0;
        loop {
            let seen = awaited.positions.tail();
            if reader.available(&awaited.positions, CAPACITY).unwrap() > 0 {
                break;
            }
            let (naps, blocked) = full.positions.writer_naps();
            while blocked && relieved.available(&full.positions, CAPACITY).unwrap() > 0 {
                taken += 1;
                assert_eq!(read(&full, &mut relieved), taken);
            }
            awaited.positions.sleep_until_data(seen, &[naps], Duration::MAX);
        }
        assert_eq!(read(&awaited, &mut reader), 4);
        writer.join().unwrap();
    });
}

#[test]
fn impossible_positions_are_noticed() {
    loom::model(|| {
        let positions = Positions::new();
        let mut writer = Writer::default();
        writer.publish(&positions, CAPACITY + 1);
        assert!(Reader::default().available(&positions, CAPACITY).is_err());
        assert!(writer.space(&positions, CAPACITY, 1).is_err());
    });
}
