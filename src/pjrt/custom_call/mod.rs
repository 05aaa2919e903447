//! Typed custom calls: programs that call back into this process.
//!
//! A handler is registered under a target name, once for each plugin and for the life of the process. In a program a
//! custom call with that target and `api_version=API_VERSION_TYPED_FFI` (4 in StableHLO) then runs it, on every device
//! at once, each on a thread of the plugin's.

#[macro_use]
mod frame;
mod call;
mod packing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::error::{Error, ErrorCode, Result};
use super::ffi::{self, xla};
use super::plugin::Plugin;

use call::Waiting;
pub use call::{Completion, FfiError, Outcome, Pending};
pub use frame::{Attr, BufferRef, CallFrame};
pub use packing::{is_packed, pack, unpack};

/// Extension, target and platform.
type Registration = (usize, String, String);

/// The addresses of all handlers. Not every plugin refuses a second handler for a target.
static REGISTERED: LazyLock<Mutex<HashMap<Registration, usize>>> = LazyLock::new(Mutex::default);

/// A plugin's custom-call registry.
pub struct Ffi {
    plugin: Plugin,
    extension: NonNull<ffi::FfiExtension>,
}

impl Plugin {
    /// The plugin's custom-call registry; `None` when it has none.
    pub fn ffi(&self) -> Option<Ffi> {
        let extension = self.extension(ffi::EXTENSION_FFI, size_of::<ffi::FfiExtension>())?;
        Some(Ffi { plugin: self.clone(), extension: NonNull::new(extension.cast_mut().cast())? })
    }
}

impl Ffi {
    /// Registers `handler` for custom calls to `target` on `platform` (`Host` for CPUs, `CUDA`, `ROCM`).
    ///
    /// A handler captures nothing (a `fn` item or a closure without captures), for the plugin calls it by address
    /// alone; captures are a compile error. A target keeps its handler: registering another one is an error.
    pub fn register<H>(&self, target: &str, platform: &str, _handler: H) -> Result<()>
    where
        H: Fn(&CallFrame<'_>) -> Outcome + Copy + Send + Sync + 'static,
    {
        const { assert!(size_of::<H>() == 0, "a custom-call handler captures nothing") };
        // SAFETY: the extension is at least as long as our struct, and lives as long as the plugin: for ever.
        let register = unsafe { self.extension.as_ref() }.register_handler;
        let register = register.ok_or_else(|| self.plugin.lacks("PJRT_FFI_Register_Handler"))?;
        let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        let handler = entry::<H> as *const () as usize;
        let key = (self.extension.as_ptr() as usize, target.to_owned(), platform.to_owned());
        if registered.get(&key).is_some_and(|other| *other != handler) {
            return Err(Error::Invalid(format!("custom calls to {target} on {platform} have another handler already")));
        }
        let mut args = ffi::RegisterHandlerArgs {
            struct_size: std::mem::offset_of!(ffi::RegisterHandlerArgs, traits) + size_of::<c_int>(),
            target_name: target.as_ptr().cast(),
            target_name_size: target.len(),
            handler: handler as *mut c_void,
            platform_name: platform.as_ptr().cast(),
            platform_name_size: platform.len(),
            traits: 0,
        };
        // SAFETY: names live through the call, and `entry` is a function.
        unsafe {
            let error = register(&mut args);
            self.plugin.check(error, "PJRT_FFI_Register_Handler")?;
        }
        registered.insert(key, handler);
        Ok(())
    }
}

/// What the plugin calls for the handler `H`.
unsafe extern "C" fn entry<H>(frame: *mut xla::CallFrame) -> *mut xla::Error
where
    H: Fn(&CallFrame<'_>) -> Outcome + Copy + Send + Sync + 'static,
{
    // SAFETY: H has no bytes that a reference would have to point to, and `register` was given one, so it is
    // inhabited; it is Copy, so this one more is allowed.
    let handler: &H = unsafe { NonNull::dangling().as_ref() };
    // SAFETY: the plugin passes a frame that is valid for this call.
    unsafe { handle(frame, handler) }
}

/// # Safety
/// `frame` is what a plugin passed to a handler.
unsafe fn handle(frame: *mut xla::CallFrame, handler: &dyn Fn(&CallFrame<'_>) -> Outcome) -> *mut xla::Error {
    // SAFETY: passed on from the caller.
    unsafe {
        if answer_metadata(frame) || (*frame).stage != xla::STAGE_EXECUTE {
            return null_mut();
        }
        let outcome = {
            let frame = CallFrame::new(&*frame);
            catch_unwind(AssertUnwindSafe(|| handler(&frame)))
                .unwrap_or_else(|_| Outcome::failed(ErrorCode::Internal, "the handler of a custom call panicked"))
        };
        let result = match outcome {
            Outcome::Done(result) => result,
            Outcome::Pending(Pending(Waiting::Future(future))) => {
                (*frame).future = future.as_ptr();
                return null_mut();
            }
            Outcome::Pending(Pending(Waiting::Thread(shared))) => shared.wait(),
        };
        result.err().map_or(null_mut(), |error| error.to_raw((*frame).api))
    }
}

/// Before first use the plugin calls a handler only to learn what it was built for.
///
/// # Safety
/// As for [`handle`].
unsafe fn answer_metadata(frame: *mut xla::CallFrame) -> bool {
    // SAFETY: the chain of extensions is null-terminated; a metadata extension says where the answer goes.
    unsafe {
        let mut extension = (*frame).extension_start;
        while !extension.is_null() {
            if (*extension).kind == xla::EXTENSION_METADATA {
                let metadata = (*extension.cast::<xla::MetadataExtension>()).metadata;
                let api = (*frame).api;
                let newest = if api.is_null() { xla::API_MINOR } else { (*api).version.minor };
                (*metadata).api_version.major = 0;
                (*metadata).api_version.minor = newest.min(xla::API_MINOR);
                (*metadata).traits = 0;
                return true;
            }
            extension = (*extension).next;
        }
        false
    }
}

/// The message as C text; what follows a NUL byte is lost.
fn c_text(message: &str) -> CString {
    CString::new(message.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

impl FfiError {
    /// The plugin's form of this error.
    ///
    /// # Safety
    /// `api` is the plugin's.
    unsafe fn to_raw(&self, api: *const xla::Api) -> *mut xla::Error {
        let message = c_text(&self.message);
        let mut args = xla::ErrorCreate {
            struct_size: std::mem::offset_of!(xla::ErrorCreate, code) + size_of::<c_int>(),
            extension_start: null_mut(),
            message: message.as_ptr(),
            code: self.code as c_int,
        };
        // SAFETY: every version of the API has this function.
        unsafe { (*api).error_create.map_or(null_mut(), |create| create(&mut args)) }
    }
}

/// Drops the error that a function of the API returned; whether there was one is the result.
///
/// # Safety
/// `error` is null or an error of `api` that the caller owns.
unsafe fn discard(api: *const xla::Api, error: *mut xla::Error) -> bool {
    if error.is_null() {
        return false;
    }
    let mut args =
        xla::ErrorDestroy { struct_size: size_of::<xla::ErrorDestroy>(), extension_start: null_mut(), error };
    // SAFETY: passed on from the caller; every version of the API has this function.
    unsafe {
        if let Some(destroy) = (*api).error_destroy {
            destroy(&mut args);
        }
    }
    true
}
