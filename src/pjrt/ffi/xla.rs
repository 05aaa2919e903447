//! The raw ABI of XLA's FFI: what a plugin passes to custom-call handlers.
//!
//! Names follow the C header with the `XLA_FFI_` taken off.

use std::ffi::{c_char, c_int, c_void};

/// The two headers declare these alike.
pub use super::{ApiVersion, ExtensionBase};

/// The newest FFI version whose structs are declared here; a handler must not claim a newer one than the plugin's.
pub const API_MINOR: c_int = 3;

pub const EXTENSION_METADATA: c_int = 1;
pub const STAGE_EXECUTE: c_int = 3;

pub const ARG_BUFFER: c_int = 1;

pub const ATTR_ARRAY: c_int = 1;
pub const ATTR_SCALAR: c_int = 3;
pub const ATTR_STRING: c_int = 4;

#[repr(C)]
pub struct Error {
    _private: [u8; 0],
}

#[repr(C)]
pub struct Future {
    _private: [u8; 0],
}

#[repr(C)]
pub struct ExecutionContext {
    _private: [u8; 0],
}

/// `XLA_FFI_Api`; of its functions only those before `struct_size` exist.
#[repr(C)]
pub struct Api {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub version: ApiVersion,
    pub internal_api: *const c_void,
    pub error_create: Option<unsafe extern "C" fn(*mut ErrorCreate) -> *mut Error>,
    pub error_get_message: *const c_void,
    pub error_destroy: Option<unsafe extern "C" fn(*mut ErrorDestroy)>,
    pub handler_register: *const c_void,
    pub stream_get: *const c_void,
    pub type_register: *const c_void,
    pub execution_context_get: *const c_void,
    pub state_set: *const c_void,
    pub state_get: *const c_void,
    pub device_memory_allocate: *const c_void,
    pub device_memory_free: *const c_void,
    pub thread_pool_schedule: *const c_void,
    pub thread_pool_num_threads: *const c_void,
    pub future_create: Option<unsafe extern "C" fn(*mut FutureCreate) -> *mut Error>,
    pub future_set_available: Option<unsafe extern "C" fn(*mut FutureSetAvailable) -> *mut Error>,
    pub future_set_error: Option<unsafe extern "C" fn(*mut FutureSetError) -> *mut Error>,
    pub run_id_get: Option<unsafe extern "C" fn(*mut RunIdGet) -> *mut Error>,
    pub device_ordinal_get: Option<unsafe extern "C" fn(*mut DeviceOrdinalGet) -> *mut Error>,
}

#[repr(C)]
pub struct ErrorCreate {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub message: *const c_char,
    pub code: c_int,
}

#[repr(C)]
pub struct ErrorDestroy {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub error: *mut Error,
}

#[repr(C)]
pub struct FutureCreate {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub future: *mut Future,
}

#[repr(C)]
pub struct FutureSetAvailable {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub future: *mut Future,
}

#[repr(C)]
pub struct FutureSetError {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub future: *mut Future,
    pub error: *mut Error,
}

#[repr(C)]
pub struct RunIdGet {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub context: *mut ExecutionContext,
    pub run_id: i64,
}

#[repr(C)]
pub struct DeviceOrdinalGet {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub context: *mut ExecutionContext,
    pub device_ordinal: i32,
}

#[repr(C)]
pub struct Buffer {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub dtype: c_int,
    pub data: *mut c_void,
    pub rank: i64,
    pub dims: *const i64,
}

#[repr(C)]
pub struct ByteSpan {
    pub ptr: *const c_char,
    pub len: usize,
}

#[repr(C)]
pub struct Scalar {
    pub dtype: c_int,
    pub value: *const c_void,
}

#[repr(C)]
pub struct Array {
    pub dtype: c_int,
    pub size: usize,
    pub data: *const c_void,
}

/// `XLA_FFI_Args` and `XLA_FFI_Rets`, which are laid out alike.
#[repr(C)]
pub struct Buffers {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub size: i64,
    pub types: *const c_int,
    pub values: *const *const c_void,
}

#[repr(C)]
pub struct Attrs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub size: i64,
    pub types: *const c_int,
    pub names: *const *const ByteSpan,
    pub values: *const *const c_void,
}

/// `XLA_FFI_CallFrame`; `future` exists only where the api has futures.
#[repr(C)]
pub struct CallFrame {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub api: *const Api,
    pub context: *mut ExecutionContext,
    pub stage: c_int,
    pub args: Buffers,
    pub results: Buffers,
    pub attrs: Attrs,
    pub future: *mut Future,
}

#[repr(C)]
pub struct Metadata {
    pub struct_size: usize,
    pub api_version: ApiVersion,
    pub traits: u32,
}

#[repr(C)]
pub struct MetadataExtension {
    pub base: ExtensionBase,
    pub metadata: *mut Metadata,
}
