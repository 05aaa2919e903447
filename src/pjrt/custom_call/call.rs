//! How a custom call ends: at once, or later and from another thread.

use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::discard;
use super::frame::CallFrame;
use crate::pjrt::error::ErrorCode;
use crate::pjrt::ffi::xla;

/// An error of a custom call. It becomes the error of the execution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct FfiError {
    /// The canonical status code.
    pub code: ErrorCode,
    /// What went wrong.
    pub message: String,
}

impl FfiError {
    /// An error with this code and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> FfiError {
        FfiError { code, message: message.into() }
    }
}

/// What a handler returns.
#[derive(Debug)]
pub enum Outcome {
    /// The call is complete.
    Done(Result<(), FfiError>),
    /// The call is complete when its [`Completion`] is; see [`CallFrame::defer`].
    Pending(Pending),
}

impl Outcome {
    /// A call that failed.
    pub fn failed(code: ErrorCode, message: impl Into<String>) -> Outcome {
        Outcome::Done(Err(FfiError::new(code, message)))
    }
}

impl From<Result<(), FfiError>> for Outcome {
    fn from(result: Result<(), FfiError>) -> Outcome {
        Outcome::Done(result)
    }
}

/// The handler's side of a deferred call.
#[derive(Debug)]
pub struct Pending(pub(super) Waiting);

#[derive(Debug)]
pub(super) enum Waiting {
    /// The plugin waits.
    Future(NonNull<xla::Future>),
    /// The plugin has no futures: its thread waits in the handler's stead.
    Thread(Arc<Shared>),
}

/// Completes a deferred call, once and from any thread. Dropped without, the call fails.
#[derive(Debug)]
pub struct Completion(Option<Completer>);

#[derive(Debug)]
enum Completer {
    Future { api: NonNull<xla::Api>, future: NonNull<xla::Future> },
    Thread(Arc<Shared>),
}

// SAFETY: futures may be completed from any thread, and the plugin's API lives for ever.
unsafe impl Send for Completer {}
// SAFETY: a shared reference to a completer gives access to nothing.
unsafe impl Sync for Completer {}

#[derive(Debug, Default)]
pub(super) struct Shared {
    result: Mutex<Option<Result<(), FfiError>>>,
    is_complete: Condvar,
}

impl Shared {
    pub(super) fn wait(&self) -> Result<(), FfiError> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match result.take() {
                Some(result) => return result,
                None => result = self.is_complete.wait(result).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn complete(&self, result: Result<(), FfiError>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.is_complete.notify_all();
    }
}

impl CallFrame<'_> {
    /// Takes the end of this call into the caller's own hands: return the outcome, and complete the call when its
    /// results are written. The memory of arguments and results stays valid until then.
    ///
    /// No thread of the plugin is held up meanwhile, unless the plugin is too old to have futures.
    pub fn defer(&self) -> (Outcome, Completion) {
        match self.create_future() {
            Some((api, future)) => (
                Outcome::Pending(Pending(Waiting::Future(future))),
                Completion(Some(Completer::Future { api, future })),
            ),
            None => {
                let shared = Arc::new(Shared::default());
                (
                    Outcome::Pending(Pending(Waiting::Thread(shared.clone()))),
                    Completion(Some(Completer::Thread(shared))),
                )
            }
        }
    }

    fn create_future(&self) -> Option<(NonNull<xla::Api>, NonNull<xla::Future>)> {
        let api = self.api();
        let create = xla_function!(api, future_create)?;
        xla_function!(api, future_set_available)?;
        xla_function!(api, future_set_error)?;
        let mut args = xla::FutureCreate {
            struct_size: size_of::<xla::FutureCreate>(),
            extension_start: null_mut(),
            future: null_mut(),
        };
        // SAFETY: the API is the plugin's, and its error is ours to discard.
        let failed = unsafe { discard(api, create(&mut args)) };
        if failed {
            return None;
        }
        Some((NonNull::from(api), NonNull::new(args.future)?))
    }
}

impl Completion {
    /// Ends the call with `result`.
    ///
    /// The plugin may run on with the program before this returns, on this very thread: whatever comes after the call,
    /// the handlers of further calls included. Hold no lock that these take, and do not count on a quick return.
    pub fn complete(mut self, result: Result<(), FfiError>) {
        if let Some(completer) = self.0.take() {
            completer.complete(result);
        }
    }
}

impl Completer {
    fn complete(self, result: Result<(), FfiError>) {
        match (self, result) {
            (Completer::Thread(shared), result) => shared.complete(result),
            (Completer::Future { api, future }, Ok(())) => {
                let mut args = xla::FutureSetAvailable {
                    struct_size: size_of::<xla::FutureSetAvailable>(),
                    extension_start: null_mut(),
                    future: future.as_ptr(),
                };
                // SAFETY: the future is completed this once; `defer` made sure of the function.
                unsafe {
                    if let Some(set_available) = api.as_ref().future_set_available {
                        discard(api.as_ptr(), set_available(&mut args));
                    }
                }
            }
            (Completer::Future { api, future }, Err(error)) => {
                // SAFETY: as above; the error passes to the plugin.
                unsafe {
                    let mut args = xla::FutureSetError {
                        struct_size: size_of::<xla::FutureSetError>(),
                        extension_start: null_mut(),
                        future: future.as_ptr(),
                        error: error.to_raw(api.as_ptr()),
                    };
                    if let Some(set_error) = api.as_ref().future_set_error {
                        discard(api.as_ptr(), set_error(&mut args));
                    }
                }
            }
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(completer) = self.0.take() {
            let message = "a deferred custom call was abandoned";
            completer.complete(Err(FfiError::new(ErrorCode::Internal, message)));
        }
    }
}
