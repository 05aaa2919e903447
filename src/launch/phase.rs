//! What a controller is doing, written where its launcher finds it when the controller is gone.
//!
//! A compiler that crashes takes the controller with it, and so does the system when memory runs out. So a controller
//! notes what it does in a page of memory that the launcher gave it; that costs no system call, also not at every step.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// The longest text, in bytes.
const TEXT: usize = 500;

/// The shared memory. The launcher's architecture is the controller's.
#[repr(C)]
struct Page {
    /// The number of the step that runs, from 1; 0 outside steps.
    step: AtomicU64,
    length: AtomicU16,
    text: [AtomicU8; TEXT],
}

static PAGE: OnceLock<&Page> = OnceLock::new();

/// Says what this process does from now on, as in `compiling 'main'`. Does nothing in a process without a launcher.
pub fn enter(phase: &str) {
    if let Some(page) = PAGE.get() {
        page.enter(phase);
    }
}

/// Says which step of the phase begins, from 1.
pub fn step(number: u64) {
    if let Some(page) = PAGE.get() {
        page.step.store(number, Ordering::Relaxed);
    }
}

/// Uses the launcher's memory for this process from now on.
pub(super) fn share(memory: OwnedFd) -> io::Result<()> {
    let page = Page::map(memory)?;
    PAGE.get_or_init(|| page);
    Ok(())
}

impl Page {
    fn map(memory: OwnedFd) -> io::Result<&'static Page> {
        if rustix::fs::fstat(&memory)?.st_size != size_of::<Page>() as i64 {
            return Err(io::Error::other("it is no memory of a launcher"));
        }
        // SAFETY: a new mapping, at an address that the system chooses.
        let page = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &memory,
                0,
            )?
        };
        // SAFETY: the mapping has this size, is aligned to pages and never undone; its bytes are zero or were written by
        // such a process, and atomics of any value are valid.
        Ok(unsafe { &*page.cast::<Page>() })
    }

    fn enter(&self, phase: &str) {
        self.length.store(0, Ordering::Relaxed);
        self.step.store(0, Ordering::Relaxed);
        let mut length = 0;
        for (stored, byte) in self.text.iter().zip(phase.bytes()) {
            stored.store(byte, Ordering::Relaxed);
            length += 1;
        }
        self.length.store(length, Ordering::Relaxed);
    }
}

/// The launcher's end.
pub(super) struct Memory(File);

impl Memory {
    pub(super) fn create() -> io::Result<Self> {
        let memory = File::from(rustix::fs::memfd_create("spmd-run phase", MemfdFlags::CLOEXEC)?);
        memory.set_len(size_of::<Page>() as u64)?;
        Ok(Self(memory))
    }

    /// What the controller did last; `None` if it has said nothing.
    pub(super) fn read(&self) -> Option<String> {
        let mut bytes = [0; size_of::<Page>()];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        let (step, rest) = bytes.split_first_chunk()?;
        let (length, text) = rest.split_first_chunk()?;
        let text = text.get(..usize::from(u16::from_ne_bytes(*length)))?;
        let text = String::from_utf8_lossy(text);
        match u64::from_ne_bytes(*step) {
            _ if text.is_empty() => None,
            0 => Some(text.into_owned()),
            step => Some(format!("{text}, step {step}")),
        }
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_reads_what_the_controller_wrote() {
        let memory = Memory::create().unwrap();
        let page = Page::map(memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(memory.read(), None);
        page.enter("compiling 'main'");
        assert_eq!(memory.read().unwrap(), "compiling 'main'");
        page.step.store(7, Ordering::Relaxed);
        assert_eq!(memory.read().unwrap(), "compiling 'main', step 7");
        page.enter(&"x".repeat(TEXT + 1));
        assert_eq!(memory.read().unwrap(), "x".repeat(TEXT));
        let other = File::from(rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        assert!(Page::map(other.into()).is_err());
    }
}
