//! The key-value store that a plugin uses to meet its peers in other processes.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use super::error::ErrorCode;
use super::ffi::{self, CallbackError};

/// A store that all processes of a job share. Plugins that know of other processes rendezvous through it.
///
/// Methods are called from any thread, several at once. Errors are messages; the plugin reports them as its own.
pub trait KeyValueStore: Send + Sync {
    /// The value of `key`, waiting up to `timeout` for it to be put.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, String>;

    /// The value of `key` if it was put already.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, String>;

    /// Stores `value` under `key`.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), String>;
}

/// A store in the form that C callbacks get as their user argument: a thin pointer.
pub(super) struct Callbacks(Box<Arc<dyn KeyValueStore>>);

impl Callbacks {
    pub(super) fn new(store: Arc<dyn KeyValueStore>) -> Callbacks {
        Callbacks(Box::new(store))
    }

    /// Hands the callbacks to the plugin; they may be called until `self` is dropped.
    pub(super) fn install(&self, args: &mut ffi::ClientCreate) {
        let user_arg = std::ptr::from_ref(&*self.0).cast_mut().cast::<c_void>();
        args.kv_get_callback = Some(get);
        args.kv_get_user_arg = user_arg;
        args.kv_try_get_callback = Some(try_get);
        args.kv_try_get_user_arg = user_arg;
        args.kv_put_callback = Some(put);
        args.kv_put_user_arg = user_arg;
    }
}

type Failure = (ErrorCode, String);

unsafe extern "C" fn get(args: *mut ffi::KeyValueGetArgs) -> *mut ffi::Error {
    // SAFETY: the plugin passes arguments that are valid for this call.
    let args = unsafe { &mut *args };
    let timeout = Duration::from_millis(args.timeout_in_ms.try_into().unwrap_or(0));
    // SAFETY: key and store come from the plugin as the API says; see `with_store`.
    let value = unsafe {
        with_store(args.user_arg, args.key, args.key_size, |store, key| {
            store.get(key, timeout).map_err(|message| (ErrorCode::DeadlineExceeded, message))
        })
    };
    let slots = (&mut args.value, &mut args.value_size, &mut args.value_deleter);
    // SAFETY: the plugin's own function for errors of callbacks.
    unsafe { hand_over(value, slots, args.callback_error) }
}

unsafe extern "C" fn try_get(args: *mut ffi::KeyValueTryGetArgs) -> *mut ffi::Error {
    // SAFETY: the plugin passes arguments that are valid for this call.
    let args = unsafe { &mut *args };
    // SAFETY: key and store come from the plugin as the API says; see `with_store`.
    let value = unsafe {
        with_store(args.user_arg, args.key, args.key_size, |store, key| {
            let value = store.try_get(key).map_err(|message| (ErrorCode::Internal, message))?;
            value.ok_or_else(|| (ErrorCode::NotFound, format!("no value was put under the key {key}")))
        })
    };
    let slots = (&mut args.value, &mut args.value_size, &mut args.value_deleter);
    // SAFETY: the plugin's own function for errors of callbacks.
    unsafe { hand_over(value, slots, args.callback_error) }
}

unsafe extern "C" fn put(args: *mut ffi::KeyValuePutArgs) -> *mut ffi::Error {
    // SAFETY: the plugin passes arguments that are valid for this call.
    let args = unsafe { &mut *args };
    // SAFETY: key, value and store come from the plugin as the API says; see `with_store`.
    let result = unsafe {
        with_store(args.user_arg, args.key, args.key_size, |store, key| {
            let value = super::borrow(args.value.cast::<u8>(), args.value_size);
            store.put(key, value).map_err(|message| (ErrorCode::Internal, message))
        })
    };
    match result {
        Ok(()) => null_mut(),
        // SAFETY: the plugin's own function for errors of callbacks.
        Err(failure) => unsafe { to_error(args.callback_error, failure) },
    }
}

/// Puts a copy of the value, its size and its deleter into the plugin's slots.
///
/// # Safety
/// As for [`to_error`].
unsafe fn hand_over(
    value: Result<Vec<u8>, Failure>,
    (memory, size, deleter): (&mut *mut c_char, &mut usize, &mut Option<ffi::ValueDeleter>),
    callback_error: *const CallbackError,
) -> *mut ffi::Error {
    match value.and_then(|value| to_c(&value)) {
        Ok(copy) => {
            (*memory, *size) = copy;
            *deleter = Some(delete_value);
            null_mut()
        }
        // SAFETY: passed on from the caller.
        Err(failure) => unsafe { to_error(callback_error, failure) },
    }
}

/// Runs `operation` on the store behind `user_arg`; a panic becomes a failure, for it must not cross into C.
///
/// # Safety
/// `user_arg` is what [`Callbacks::install`] set, and `key` points to `key_size` bytes.
unsafe fn with_store<T>(
    user_arg: *mut c_void,
    key: *const c_char,
    key_size: usize,
    operation: impl FnOnce(&dyn KeyValueStore, &str) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // SAFETY: passed on from the caller; the box lives as long as the client.
    let (store, key) = unsafe { (&*user_arg.cast::<Arc<dyn KeyValueStore>>(), super::copy_text(key, key_size)) };
    catch_unwind(AssertUnwindSafe(|| operation(&**store, &key)))
        .unwrap_or_else(|_| Err((ErrorCode::Internal, format!("the key-value store panicked at the key {key}"))))
}

unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
}

/// A copy of `value` for the plugin, which gives it back to [`delete_value`] without its length.
fn to_c(value: &[u8]) -> Result<(*mut c_char, usize), Failure> {
    // SAFETY: plain malloc, never of zero bytes.
    let memory = unsafe { malloc(value.len().max(1)) }.cast::<u8>();
    if memory.is_null() {
        return Err((ErrorCode::ResourceExhausted, format!("no memory for a value of {} bytes", value.len())));
    }
    // SAFETY: the new memory holds at least `value.len()` bytes.
    unsafe { memory.copy_from_nonoverlapping(value.as_ptr(), value.len()) };
    Ok((memory.cast(), value.len()))
}

unsafe extern "C" fn delete_value(value: *mut c_char) {
    // SAFETY: `value` came from malloc in `to_c`, or is null.
    unsafe { free(value.cast()) }
}

/// # Safety
/// `callback_error` is null or points to the plugin's function.
unsafe fn to_error(callback_error: *const CallbackError, (code, message): Failure) -> *mut ffi::Error {
    // SAFETY: passed on from the caller; the plugin copies the message.
    unsafe { (*callback_error)(code as c_int, message.as_ptr().cast(), message.len()) }
}
