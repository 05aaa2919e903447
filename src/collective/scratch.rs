use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Memory for intermediate data that is kept between calls: fresh memory costs a page fault per 4 KiB.
#[derive(Default)]
pub(super) struct ScratchPool {
    free: Mutex<Vec<Vec<u8>>>,
}

/// More buffers than this are given back to the system.
const KEPT: usize = 32;

impl ScratchPool {
    /// A buffer of `len` bytes with arbitrary contents.
    pub fn take(&self, len: usize) -> Scratch<'_> {
        if len == 0 {
            return Scratch { pool: self, memory: Vec::new(), len };
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = (0..free.len()).filter(|&index| free[index].len() >= len).min_by_key(|&index| free[index].len());
        let largest = (0..free.len()).max_by_key(|&index| free[index].len());
        let mut memory = match fitting.or(largest) {
            Some(index) => free.swap_remove(index),
            None => Vec::new(),
        };
        drop(free);
        if memory.len() < len {
            memory = vec![0; len];
        }
        Scratch { pool: self, memory, len }
    }

    fn give_back(&self, memory: Vec<u8>) {
        if memory.is_empty() {
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(memory);
        }
    }
}

/// A buffer that goes back to its pool when dropped.
pub(super) struct Scratch<'a> {
    pool: &'a ScratchPool,
    memory: Vec<u8>,
    len: usize,
}

impl Deref for Scratch<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Scratch<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.memory));
    }
}
