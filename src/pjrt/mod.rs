//! A thin, safe layer over the PJRT C API: plugins, clients, devices, buffers, executables and custom calls.
//!
//! Plugins are shared libraries of any age. Their version and table size are read first; a function or extension that
//! a plugin does not have is [`Error::Lacks`], never a crash. Plugins are never unloaded. Buffers, executables, devices
//! and events keep their client alive, so they may be dropped in any order.

mod buffer;
mod client;
mod custom_call;
mod device;
mod error;
mod event;
mod executable;
mod ffi;
mod key_value;
mod layout;
mod options;
mod plugin;
mod transform;
mod value;

pub use buffer::Buffer;
pub use client::{Client, Place, Program, ProgramFormat};
pub use custom_call::{
    Attr, BufferRef, CallFrame, Completion, Ffi, FfiError, Outcome, Pending, is_packed, pack, unpack,
};
pub use device::{AllocatorStats, Device, Memory};
pub use error::{Error, ErrorCode, Result};
pub use event::Event;
pub(crate) use event::wait_all;
pub use executable::{ExecuteOptions, Execution, LoadedExecutable, MemoryStats};
pub use key_value::KeyValueStore;
pub use layout::{BufferLayout, HostLayout};
pub use options::{CompileOptions, DeviceAssignment};
pub use plugin::{ApiVersion, Extension, Plugin};
pub use value::Value;

/// Copies text that a plugin handed out; bytes that are no UTF-8 are replaced.
///
/// # Safety
/// `text` is null or points to `size` readable bytes.
unsafe fn copy_text(text: *const std::ffi::c_char, size: usize) -> String {
    // SAFETY: passed on from the caller.
    String::from_utf8_lossy(unsafe { borrow(text.cast::<u8>(), size) }).into_owned()
}

/// A slice that a plugin handed out as pointer and length; null is empty.
///
/// # Safety
/// `data` is null or points to `len` values that stay unchanged for `'a`.
unsafe fn borrow<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: passed on from the caller.
    unsafe { std::slice::from_raw_parts(data, len) }
}
