//! Compilations that end before code is generated, for those who want only what XLA's passes dump.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::ErrorCode;
use super::ffi;
use super::plugin::Plugin;

/// The version of the extension that the callbacks are made for.
const VERSION: i64 = 1;

const MESSAGE: &str = "stopped before code generation";

static CALLBACKS: ffi::TransformCallbacks = ffi::TransformCallbacks { version: VERSION, dtor: None, transform };

thread_local! {
    static STOPS: Cell<bool> = const { Cell::new(false) };
}

impl Plugin {
    /// Runs `compile`, whose compilations on this thread then fail before they generate code, which is most of their
    /// work. With plugins that offer no way to end a compilation they run to their end.
    pub fn without_code_generation<T>(&self, compile: impl FnOnce() -> T) -> T {
        let registered = Registered::new(self);
        STOPS.set(registered.is_some());
        let result = compile();
        STOPS.set(false);
        result
    }
}

/// Our transform in the plugin's list. It slows all compilations down, so it leaves as soon as it can.
struct Registered<'a> {
    plugin: &'a Plugin,
    clear: unsafe extern "C" fn(*mut ffi::ClearTransformArgs) -> *mut ffi::Error,
    name: String,
}

impl<'a> Registered<'a> {
    fn new(plugin: &'a Plugin) -> Option<Registered<'a>> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let size = size_of::<ffi::XlaTransformExtension>();
        let extension = plugin.extension(ffi::EXTENSION_XLA_TRANSFORM, size)?;
        // SAFETY: the extension is at least as long as our struct, and lives as long as the plugin: for ever.
        let extension = unsafe { &*extension.cast::<ffi::XlaTransformExtension>() };
        let (register, clear) = (extension.register?, extension.clear?);
        let name = format!("spmd_run.stop.{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut args = ffi::RegisterTransformArgs {
            struct_size: size_of::<ffi::RegisterTransformArgs>(),
            name: name.as_ptr().cast(),
            name_size: name.len(),
            stage: ffi::TRANSFORM_BEFORE_SCHEDULING,
            callbacks: &CALLBACKS,
        };
        // SAFETY: the name lives through the call, the callbacks for ever.
        let result = unsafe { plugin.check(register(&mut args), "PJRT_Register_Xla_Transform") };
        result.ok().map(|()| Registered { plugin, clear, name })
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let mut args = ffi::ClearTransformArgs {
            struct_size: std::mem::offset_of!(ffi::ClearTransformArgs, cleared) + size_of::<bool>(),
            stage: ffi::TRANSFORM_BEFORE_SCHEDULING,
            name: self.name.as_ptr().cast(),
            name_size: self.name.len(),
            callbacks: &CALLBACKS,
            cleared: false,
        };
        // SAFETY: the name lives through the call. A transform that stays is slow, but does nothing.
        let _ = unsafe { self.plugin.check((self.clear)(&mut args), "PJRT_Clear_Xla_Transform") };
    }
}

unsafe extern "C" fn transform(_: *mut ffi::TransformCallbacks, args: *mut ffi::TransformArgs) {
    // SAFETY: XLA passes arguments that are valid for this call.
    let args = unsafe { &mut *args };
    args.changed = false;
    if STOPS.get() {
        args.has_error = true;
        args.code = ErrorCode::Aborted as i32;
        args.error_message = ffi::TransformText { data: MESSAGE.as_ptr().cast(), size: MESSAGE.len() };
    }
}
