//! The raw ABI of the PJRT C API: structs, slots and the macro that declares a function's arguments.
//!
//! Names follow the C header with the `PJRT_` and `_Args` taken off. Every argument struct starts with its size, and
//! reports exactly the bytes up to the end of its last field: tail padding may become a field in a later version.

mod functions;
mod slots;
#[cfg(test)]
mod tests;
pub mod xla;

pub use functions::*;
pub use slots::{SLOT_NAMES, slot_index};

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut};

/// The major number of the API, which must match; structs are declared as of 0.114.
pub const API_MAJOR: c_int = 0;
/// The slots were rearranged in 0.57; with an older plugin every call would land in the wrong function.
pub const OLDEST_MINOR: c_int = 57;

macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque!(
    Error,
    Event,
    Client,
    Device,
    DeviceDescription,
    Memory,
    Buffer,
    Executable,
    LoadedExecutable,
    SerializedExecutable
);

#[repr(C)]
pub struct ExtensionBase {
    pub struct_size: usize,
    pub kind: c_int,
    pub next: *mut ExtensionBase,
}

#[repr(C)]
pub struct ApiVersion {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub major: c_int,
    pub minor: c_int,
}

/// The head of `PJRT_Api`; the function slots follow it.
#[repr(C)]
pub struct ApiHead {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub version: ApiVersion,
}

pub type GetPjrtApi = unsafe extern "C" fn() -> *const ApiHead;

/// The value field of `PJRT_NamedValue`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union NamedValueData {
    pub string: *const c_char,
    pub int64: i64,
    pub int64_list: *const i64,
    pub float: f32,
    pub boolean: bool,
}

#[repr(C)]
pub struct NamedValue {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub name: *const c_char,
    pub name_size: usize,
    pub kind: c_int,
    pub value: NamedValueData,
    pub value_size: usize,
}

pub const NAMED_VALUE_STRING: c_int = 0;
pub const NAMED_VALUE_INT64: c_int = 1;
pub const NAMED_VALUE_INT64_LIST: c_int = 2;
pub const NAMED_VALUE_FLOAT: c_int = 3;
pub const NAMED_VALUE_BOOL: c_int = 4;

#[repr(C)]
pub struct Program {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub code: *mut c_char,
    pub code_size: usize,
    pub format: *const c_char,
    pub format_size: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryLayout {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub arm: MemoryLayoutArm,
    pub kind: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union MemoryLayoutArm {
    pub tiled: TiledLayout,
    pub strides: StridedLayout,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TiledLayout {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub minor_to_major: *const i64,
    pub minor_to_major_size: usize,
    pub tile_dims: *const i64,
    pub tile_dim_sizes: *const usize,
    pub num_tiles: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct StridedLayout {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub byte_strides: *const i64,
    pub num_byte_strides: usize,
}

pub const LAYOUT_TILED: c_int = 0;

/// The plugin copies the host data before the call returns.
pub const IMMUTABLE_ONLY_DURING_CALL: c_int = 0;

#[repr(C)]
pub struct ExecuteOptions {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub send_callbacks: *mut c_void,
    pub recv_callbacks: *mut c_void,
    pub num_send_ops: usize,
    pub num_recv_ops: usize,
    pub launch_id: c_int,
    pub non_donatable_input_indices: *const i64,
    pub num_non_donatable_input_indices: usize,
    pub context: *mut c_void,
    pub call_location: *const c_char,
    pub num_tasks: usize,
    pub task_ids: *mut c_int,
    pub incarnation_ids: *mut i64,
    pub multi_slice_config: *mut c_void,
    pub use_major_to_minor_data_layout_for_callbacks: bool,
    pub hlo_output_callbacks: *mut c_void,
    pub num_hlo_output_callbacks: usize,
}

impl ExecuteOptions {
    pub const EMPTY: ExecuteOptions = ExecuteOptions {
        struct_size: offset_of!(ExecuteOptions, num_hlo_output_callbacks) + size_of::<usize>(),
        extension_start: null_mut(),
        send_callbacks: null_mut(),
        recv_callbacks: null_mut(),
        num_send_ops: 0,
        num_recv_ops: 0,
        launch_id: 0,
        non_donatable_input_indices: null(),
        num_non_donatable_input_indices: 0,
        context: null_mut(),
        call_location: null(),
        num_tasks: 0,
        task_ids: null_mut(),
        incarnation_ids: null_mut(),
        multi_slice_config: null_mut(),
        use_major_to_minor_data_layout_for_callbacks: false,
        hlo_output_callbacks: null_mut(),
        num_hlo_output_callbacks: 0,
    };
}

pub type CallbackError = unsafe extern "C" fn(c_int, *const c_char, usize) -> *mut Error;
pub type ValueDeleter = unsafe extern "C" fn(*mut c_char);

#[repr(C)]
pub struct KeyValueGetArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub key: *const c_char,
    pub key_size: usize,
    pub timeout_in_ms: c_int,
    pub callback_error: *const CallbackError,
    pub user_arg: *mut c_void,
    pub value: *mut c_char,
    pub value_size: usize,
    pub value_deleter: Option<ValueDeleter>,
}

#[repr(C)]
pub struct KeyValueTryGetArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub key: *const c_char,
    pub key_size: usize,
    pub callback_error: *const CallbackError,
    pub user_arg: *mut c_void,
    pub value: *mut c_char,
    pub value_size: usize,
    pub value_deleter: Option<ValueDeleter>,
}

#[repr(C)]
pub struct KeyValuePutArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub key: *const c_char,
    pub key_size: usize,
    pub value: *const c_char,
    pub value_size: usize,
    pub callback_error: *const CallbackError,
    pub user_arg: *mut c_void,
}

pub type KeyValueCallback<A> = unsafe extern "C" fn(*mut A) -> *mut Error;
pub type SerializedExecutableDeleter = unsafe extern "C" fn(*mut SerializedExecutable);
pub type OnReadyCallback = unsafe extern "C" fn(*mut Error, *mut c_void);

pub const EXTENSION_FFI: c_int = 5;
pub const EXTENSION_XLA_TRANSFORM: c_int = 24;

/// The names of the extension types, at their numbers.
pub const EXTENSION_NAMES: [&str; 25] = [
    "Gpu_Custom_Call",
    "Profiler",
    "Custom_Partitioner",
    "Stream",
    "Layouts",
    "FFI",
    "MemoryDescriptions",
    "Triton",
    "RawBuffer",
    "PhaseCompile",
    "Example",
    "Unknown",
    "CrossHostTransfers",
    "ExecutableMetadata",
    "Callback",
    "HostAllocator",
    "TpuTopology",
    "TpuExecutable",
    "Megascale",
    "Shardings",
    "AbiVersion",
    "Collectives",
    "MultiSlice",
    "HostMemoryAllocator",
    "XlaTransform",
];

#[repr(C)]
pub struct FfiExtension {
    pub base: ExtensionBase,
    pub type_register: *mut c_void,
    pub user_data_add: *mut c_void,
    pub register_handler: Option<unsafe extern "C" fn(*mut RegisterHandlerArgs) -> *mut Error>,
}

#[repr(C)]
pub struct RegisterHandlerArgs {
    pub struct_size: usize,
    pub target_name: *const c_char,
    pub target_name_size: usize,
    pub handler: *mut c_void,
    pub platform_name: *const c_char,
    pub platform_name_size: usize,
    pub traits: c_int,
}

#[repr(C)]
pub struct XlaTransformExtension {
    pub base: ExtensionBase,
    pub register: Option<unsafe extern "C" fn(*mut RegisterTransformArgs) -> *mut Error>,
    pub clear: Option<unsafe extern "C" fn(*mut ClearTransformArgs) -> *mut Error>,
}

/// The end of XLA's passes, before instructions are scheduled and code is generated.
pub const TRANSFORM_BEFORE_SCHEDULING: c_int = 0;

#[repr(C)]
pub struct RegisterTransformArgs {
    pub struct_size: usize,
    pub name: *const c_char,
    pub name_size: usize,
    pub stage: c_int,
    pub callbacks: *const TransformCallbacks,
}

#[repr(C)]
pub struct ClearTransformArgs {
    pub struct_size: usize,
    pub stage: c_int,
    pub name: *const c_char,
    pub name_size: usize,
    pub callbacks: *const TransformCallbacks,
    pub cleared: bool,
}

#[repr(C)]
pub struct TransformCallbacks {
    pub version: i64,
    pub dtor: Option<unsafe extern "C" fn(*mut TransformCallbacks)>,
    pub transform: unsafe extern "C" fn(*mut TransformCallbacks, *mut TransformArgs),
}

#[repr(C)]
pub struct TransformText {
    pub data: *const c_char,
    pub size: usize,
}

#[repr(C)]
pub struct TransformArgs {
    pub struct_size: usize,
    pub api_version: i64,
    pub data: *mut c_void,
    pub cleanup: Option<unsafe extern "C" fn(*mut c_void)>,
    pub has_error: bool,
    pub code: c_int,
    pub error_message: TransformText,
    pub hlo_module: TransformText,
    pub transformed_hlo_module: TransformText,
    pub changed: bool,
}
