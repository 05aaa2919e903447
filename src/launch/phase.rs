//! What a controller is doing, written where its launcher finds it when the controller is gone.
//!
//! A compiler that crashes takes the controller with it, and so does the system when memory runs out. So a controller
//! notes what it does in a page of memory that the launcher gave it; that costs no system call, also not at every step.
//! Without a launcher the page is the controller's own, which its signs of life tell of.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// The shared memory. The launcher's architecture is the controller's.
#[repr(C)]
struct Page {
    /// The number of the step that runs, from 1; 0 outside steps.
    step: AtomicU64,
    /// How many steps there will be; 0 where nobody knows.
    steps: AtomicU64,
    /// Whether the process has come to join its job.
    has_come: AtomicU8,
    phase: Text<500>,
    collective: Text<128>,
}

/// A text that one thread writes. Whoever reads it meanwhile may find it empty.
#[repr(C)]
struct Text<const N: usize> {
    length: AtomicU16,
    bytes: [AtomicU8; N],
}

/// What a process is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// As in `compiling 'main'`; empty if it has said nothing.
    pub text: String,
    /// The step that it entered last, from 1; 0 before the first.
    pub step: u64,
    /// The collective that it entered last.
    pub collective: String,
}

static OWN: Page = Page {
    step: AtomicU64::new(0),
    steps: AtomicU64::new(0),
    has_come: AtomicU8::new(0),
    phase: Text::new(),
    collective: Text::new(),
};
static SHARED: OnceLock<&Page> = OnceLock::new();

fn page() -> &'static Page {
    SHARED.get().copied().unwrap_or(&OWN)
}

/// Says what this process does from now on, as in `compiling 'main'`.
pub fn enter(phase: &str) {
    page().enter(phase);
}

/// Says which step of the phase begins, from 1.
pub fn step(number: u64) {
    page().step.store(number, Ordering::Relaxed);
}

/// Says that this process has come to join its job.
pub fn come() {
    page().has_come.store(1, Ordering::Relaxed);
}

/// Says how many steps there will be in all.
pub fn expect_steps(count: u64) {
    page().steps.store(count, Ordering::Relaxed);
}

/// Says which collective of the step begins. One thread at a time.
pub fn collective(name: &str) {
    page().collective.write(name);
}

/// What this process has said last.
pub fn now() -> Phase {
    page().read()
}

/// Uses the launcher's memory for this process from now on.
pub(super) fn share(memory: OwnedFd) -> io::Result<()> {
    let page = Page::map(memory)?;
    SHARED.get_or_init(|| page);
    Ok(())
}

impl<const N: usize> Text<N> {
    const fn new() -> Self {
        Self { length: AtomicU16::new(0), bytes: [const { AtomicU8::new(0) }; N] }
    }

    fn write(&self, text: &str) {
        self.length.store(0, Ordering::Relaxed);
        let mut length = 0;
        for (stored, byte) in self.bytes.iter().zip(text.bytes()) {
            stored.store(byte, Ordering::Relaxed);
            length += 1;
        }
        self.length.store(length, Ordering::Relaxed);
    }

    fn read(&self) -> String {
        let length = usize::from(self.length.load(Ordering::Relaxed));
        let bytes: Vec<u8> = self.bytes.iter().take(length).map(|byte| byte.load(Ordering::Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
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
        self.phase.write("");
        self.step.store(0, Ordering::Relaxed);
        self.collective.write("");
        self.phase.write(phase);
    }

    fn read(&self) -> Phase {
        let step = self.step.load(Ordering::Relaxed);
        Phase { text: self.phase.read(), step, collective: self.collective.read() }
    }
}

/// The launcher's end.
pub(super) struct Memory {
    file: File,
    page: &'static Page,
}

impl Memory {
    pub(super) fn create() -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("spmd-run phase", MemfdFlags::CLOEXEC)?);
        file.set_len(size_of::<Page>() as u64)?;
        let page = Page::map(file.try_clone()?.into())?;
        Ok(Self { file, page })
    }

    /// How far the controller is, to be looked at also when this is gone.
    pub(super) fn watched(&self) -> Watched {
        Watched(self.page)
    }

    /// What the controller did last; `None` if it has said nothing.
    pub(super) fn read(&self) -> Option<String> {
        let Phase { text, step, collective } = self.page.read();
        match step {
            _ if text.is_empty() => None,
            0 => Some(text),
            step if collective.is_empty() => Some(format!("{text}, step {step}")),
            step => Some(format!("{text}, last in {collective}, step {step}")),
        }
    }
}

/// How far a controller is.
#[derive(Clone, Copy)]
pub(super) struct Watched(&'static Page);

impl Watched {
    pub fn now(self) -> Phase {
        self.0.read()
    }

    pub fn has_come(self) -> bool {
        self.0.has_come.load(Ordering::Relaxed) != 0
    }

    /// How many steps there will be, if it has said so.
    pub fn steps(self) -> Option<u64> {
        Some(self.0.steps.load(Ordering::Relaxed)).filter(|steps| *steps > 0)
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
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
        page.collective.write("all-reduce.3");
        assert_eq!(memory.read().unwrap(), "compiling 'main', last in all-reduce.3, step 7");
        page.enter(&"x".repeat(1000));
        assert_eq!(memory.read().unwrap(), "x".repeat(500));
        let other = File::from(rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        assert!(Page::map(other.into()).is_err());
    }
}
