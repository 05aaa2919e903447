//! Sizes and offsets as the C compiler lays out the headers: PJRT C API 0.114, XLA FFI 0.3, on x86-64.

use std::mem::offset_of;

use super::*;

macro_rules! assert_sizes {
    ($($args:ident $size:literal,)*) => {$(
        assert_eq!(<$args as Args>::SIZE, $size, stringify!($args));
    )*};
}

#[test]
fn argument_structs_report_the_headers_sizes() {
    assert_sizes! {
        ErrorDestroy 24, ErrorMessage 40, ErrorGetCode 28, PluginInitialize 16, PluginAttributes 32,
        EventDestroy 24, EventIsReady 25, EventAwait 24, EventOnReady 40,
        ClientCreate 88, ClientDestroy 24, ClientPlatformName 40, ClientProcessIndex 28, ClientPlatformVersion 40,
        ClientDevices 40, ClientAddressableDevices 40, ClientAddressableMemories 40, ClientCompile 56,
        DefaultDeviceAssignment 48, BufferFromHostBuffer 120,
        DeviceId 28, DeviceProcessIndex 28, DeviceAttributes 40, DeviceKind 40, DeviceDebugString 40,
        DeviceToString 40, DeviceGetDescription 32, DeviceIsAddressable 25, DeviceLocalHardwareId 28,
        DeviceAddressableMemories 40, DeviceDefaultMemory 32, DeviceMemoryStats 201,
        MemoryId 28, MemoryKind 40, MemoryDebugString 40, MemoryAddressableByDevices 40,
        ExecutableDestroy 24, ExecutableName 40, ExecutableNumReplicas 32, ExecutableNumPartitions 32,
        ExecutableNumOutputs 32, ExecutableCodeSize 32, ExecutableCostAnalysis 40, ExecutableOutputTypes 40,
        ExecutableOutputDimensions 48, ExecutableOutputMemoryKinds 48, ExecutableFingerprint 40,
        ExecutableMemoryStats 144, OptimizedProgram 32,
        LoadedExecutableDestroy 24, GetExecutable 32, ExecutableAddressableDevices 40, LoadedExecutableDelete 24,
        LoadedExecutableIsDeleted 25, Execute 80,
        BufferDestroy 24, BufferElementType 28, BufferDimensions 40, BufferGetMemoryLayout 104,
        BufferOnDeviceSize 32, BufferDevice 32, BufferMemory 32, BufferDelete 24, BufferIsDeleted 25,
        BufferReadyEvent 32, BufferToHostBuffer 56, BufferCopyToDevice 40, BufferCopyToMemory 40,
    }
}

#[test]
fn plain_structs_have_the_headers_layout() {
    assert_eq!(size_of::<ApiHead>(), 40);
    assert_eq!((offset_of!(ApiHead, version), offset_of!(ApiVersion, minor)), (16, 20));
    assert_eq!(size_of::<ExtensionBase>(), 24);
    assert_eq!(size_of::<NamedValue>(), 56);
    assert_eq!((offset_of!(NamedValue, value), offset_of!(NamedValue, value_size)), (40, 48));
    assert_eq!(size_of::<Program>(), 48);
    assert_eq!((size_of::<TiledLayout>(), size_of::<StridedLayout>()), (56, 32));
    assert_eq!((offset_of!(MemoryLayout, arm), offset_of!(MemoryLayout, kind)), (16, 72));
    assert_eq!((ExecuteOptions::EMPTY.struct_size, offset_of!(ExecuteOptions, launch_id)), (144, 48));
    assert_eq!(offset_of!(ExecuteOptions, non_donatable_input_indices), 56);
    assert_eq!((offset_of!(KeyValueGetArgs, value), size_of::<KeyValueGetArgs>()), (56, 80));
    assert_eq!((offset_of!(KeyValueTryGetArgs, value), size_of::<KeyValueTryGetArgs>()), (48, 72));
    assert_eq!((offset_of!(KeyValuePutArgs, value), size_of::<KeyValuePutArgs>()), (32, 64));
    assert_eq!((offset_of!(FfiExtension, register_handler), size_of::<FfiExtension>()), (40, 48));
    assert_eq!((offset_of!(RegisterHandlerArgs, handler), offset_of!(RegisterHandlerArgs, traits)), (24, 48));
}

#[test]
fn inputs_and_outputs_stand_where_the_header_has_them() {
    assert_eq!((offset_of!(ClientCreate, client), offset_of!(ClientCreate, kv_try_get_callback)), (64, 72));
    assert_eq!((offset_of!(BufferFromHostBuffer, device), offset_of!(BufferFromHostBuffer, buffer)), (80, 112));
    assert_eq!((offset_of!(Execute, output_lists), offset_of!(Execute, device_complete_events)), (56, 64));
    assert_eq!(offset_of!(ExecutableMemoryStats, peak_memory), 104);
    assert_eq!((offset_of!(DeviceMemoryStats, bytes_limit), offset_of!(DeviceMemoryStats, pool_bytes)), (80, 160));
    assert_eq!(offset_of!(EventOnReady, user_arg), 32);
}

#[test]
fn xla_ffi_structs_have_the_headers_layout() {
    assert_eq!((offset_of!(xla::Api, error_create), size_of::<xla::Api>()), (48, 192));
    assert_eq!((offset_of!(xla::Api, future_create), offset_of!(xla::Api, run_id_get)), (152, 176));
    assert_eq!((offset_of!(xla::CallFrame, args), offset_of!(xla::CallFrame, results)), (40, 80));
    assert_eq!((offset_of!(xla::CallFrame, attrs), offset_of!(xla::CallFrame, future)), (120, 168));
    assert_eq!((offset_of!(xla::Metadata, api_version), offset_of!(xla::Metadata, traits)), (8, 32));
    assert_eq!((size_of::<xla::Buffer>(), offset_of!(xla::Buffer, dims)), (48, 40));
    assert_eq!((size_of::<xla::Scalar>(), size_of::<xla::Array>(), size_of::<xla::ByteSpan>()), (16, 24, 16));
    assert_eq!(size_of::<xla::FutureCreate>(), 24);
    assert_eq!((size_of::<xla::FutureSetAvailable>(), size_of::<xla::FutureSetError>()), (24, 32));
}

#[test]
fn slots_stand_at_the_headers_index() {
    for (name, index) in [
        ("PJRT_Error_Destroy", 0),
        ("PJRT_Client_Create", 10),
        ("PJRT_Client_BufferFromHostBuffer", 22),
        ("PJRT_LoadedExecutable_Execute", 55),
        ("PJRT_Buffer_ToHostBuffer", 70),
        ("PJRT_Executable_GetCompiledMemoryStats", 96),
        ("PJRT_Device_GetAttributes", 128),
    ] {
        assert_eq!(slot_index(name), index, "{name}");
    }
}
