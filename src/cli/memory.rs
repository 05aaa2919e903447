//! Memory of results is used again for later ones.
//!
//! By default the C library takes large blocks from the system and gives them back when they are freed, so each step of
//! a program would fault in its results anew, page by page. That costs several times what computing them does.

/// Tells the C library to keep freed memory. To be called before any other thread starts.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn keep_freed() {
    // The system's heap for all threads and all sizes, never made smaller: other heaps cannot hold large blocks.
    for (parameter, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_MAX, 0), (libc::M_TRIM_THRESHOLD, -1)] {
        // SAFETY: changes numbers that the allocator looks at; a refusal leaves them as they are.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Other C libraries have no such setting.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_freed() {}
