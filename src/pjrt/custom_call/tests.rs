//! Handlers called with frames of our own making, as a plugin too old for futures would.

use std::mem::{MaybeUninit, offset_of};
use std::sync::mpsc;
use std::time::Duration;

use super::*;

/// Hands the message back as the error, leaked.
unsafe extern "C" fn create_error(args: *mut xla::ErrorCreate) -> *mut xla::Error {
    // SAFETY: the caller's arguments, whose message is a C string.
    let message = unsafe { std::ffi::CStr::from_ptr((*args).message) }.to_owned();
    message.into_raw().cast()
}

unsafe extern "C" fn never_called(_: *mut xla::FutureCreate) -> *mut xla::Error {
    unreachable!("a function past the end of the table")
}

/// An API without functions past the errors'.
fn old_api(minor: c_int) -> xla::Api {
    // SAFETY: all-zero bytes are an API without functions.
    let mut api: xla::Api = unsafe { MaybeUninit::zeroed().assume_init() };
    api.struct_size = offset_of!(xla::Api, handler_register);
    api.version.minor = minor;
    api.error_create = Some(create_error);
    // Beyond the table's end there may be anything.
    api.future_create = Some(never_called);
    api
}

fn frame(api: &xla::Api) -> xla::CallFrame {
    // SAFETY: all-zero bytes are a frame without arguments.
    let mut frame: xla::CallFrame = unsafe { MaybeUninit::zeroed().assume_init() };
    frame.struct_size = size_of::<xla::CallFrame>();
    frame.api = api;
    frame.stage = xla::STAGE_EXECUTE;
    frame
}

/// Calls `handler` and returns its error's message, if any.
fn call(frame: &mut xla::CallFrame, handler: &dyn Fn(&CallFrame<'_>) -> Outcome) -> Option<String> {
    // SAFETY: a frame as plugins pass it; its errors are C strings.
    unsafe {
        let error = handle(frame, handler);
        (!error.is_null()).then(|| CString::from_raw(error.cast()).into_string().unwrap())
    }
}

#[test]
fn without_futures_the_call_returns_when_it_is_complete() {
    let api = old_api(1);
    let (sender, receiver) = mpsc::channel();
    let error = call(&mut frame(&api), &|frame| {
        let (outcome, completion) = frame.defer();
        let sender = sender.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            sender.send(()).unwrap();
            completion.complete(Ok(()));
        });
        outcome
    });
    assert_eq!(error, None);
    receiver.try_recv().expect("the call waits until it is complete");
    let error = call(&mut frame(&api), &|frame| {
        let (outcome, completion) = frame.defer();
        completion.complete(Err(FfiError::new(ErrorCode::Aborted, "no more")));
        outcome
    });
    assert_eq!(error.as_deref(), Some("no more"));
    let error = call(&mut frame(&api), &|frame| frame.defer().0);
    assert_eq!(error.as_deref(), Some("a deferred custom call was abandoned"));
}

#[test]
fn missing_functions_are_errors_of_the_call() {
    let api = old_api(1);
    let error = call(&mut frame(&api), &|frame| frame.run_id().map(drop).into());
    assert_eq!(error.as_deref(), Some("the plugin lacks XLA_FFI_RunId_Get"));
    let error = call(&mut frame(&api), &|frame| frame.device_ordinal().map(drop).into());
    assert_eq!(error.as_deref(), Some("the plugin lacks XLA_FFI_DeviceOrdinal_Get"));
    let error = call(&mut frame(&api), &|frame| frame.int_attr("key").map(drop).into());
    assert!(error.is_some_and(|error| error.contains("integer attribute key")));
}

#[test]
fn the_version_that_a_handler_claims_is_not_newer_than_the_plugins() {
    for (plugin, claimed) in [(1, 1), (2, 2), (3, 3), (9, 3)] {
        let api = old_api(plugin);
        // SAFETY: all-zero bytes are metadata without answers.
        let mut metadata: xla::Metadata = unsafe { MaybeUninit::zeroed().assume_init() };
        metadata.api_version.minor = -1;
        let base = xla::ExtensionBase {
            struct_size: size_of::<xla::MetadataExtension>(),
            kind: xla::EXTENSION_METADATA,
            next: null_mut(),
        };
        let mut extension = xla::MetadataExtension { base, metadata: &mut metadata };
        let mut frame = frame(&api);
        frame.extension_start = (&raw mut extension).cast();
        assert_eq!(call(&mut frame, &|_| panic!("only the metadata is asked for")), None);
        assert_eq!((metadata.api_version.major, metadata.api_version.minor), (0, claimed));
    }
}

#[test]
fn other_stages_do_not_run_the_handler() {
    let api = old_api(1);
    let mut frame = frame(&api);
    frame.stage = xla::STAGE_EXECUTE - 1;
    assert_eq!(call(&mut frame, &|_| panic!("only the execute stage runs it")), None);
}
