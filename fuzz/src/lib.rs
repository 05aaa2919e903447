//! What the fuzz targets share: an allocator that knows how much memory its caller holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Memory that an input of any length may take, in bytes: the values of a text that are left out are at most
/// 65,536 here, of 16 bytes each, which are held three times while they are put into the order of their layout.
const CONSTANT: isize = 4 << 20;
/// Memory that each byte of input may take on top of it.
const FACTOR: isize = 16;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static LIMIT: Cell<isize> = const { Cell::new(isize::MAX) };
}

struct Bounded;

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

fn take(bytes: isize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    if bytes > 0 && held > LIMIT.get() {
        LIMIT.set(isize::MAX);
        panic!("{held} bytes of memory are held after a request for {bytes}");
    }
}

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size() as isize);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size() as isize);
        // SAFETY: the caller keeps the rules of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        take(-(layout.size() as isize));
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        take(new_size as isize - layout.size() as isize);
        // SAFETY: the caller keeps the rules of `realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Runs `work`, which may hold no more memory than 16 times `length` bytes and a constant.
///
/// # Panics
/// It does hold more.
pub fn within_bounds<T>(length: usize, work: impl FnOnce() -> T) -> T {
    HELD.set(0);
    LIMIT.set(CONSTANT + FACTOR * length as isize);
    let result = work();
    LIMIT.set(isize::MAX);
    result
}
