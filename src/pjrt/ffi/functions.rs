//! The argument structs of the functions that we call.

use std::ffi::{c_char, c_int, c_void};

use super::*;

/// The argument struct of a PJRT function.
///
/// # Safety
/// The struct is `repr(C)`, laid out as in the C header, starts with `struct_size: usize`, and all-zero bytes are a
/// value of it.
pub unsafe trait Args: Sized {
    /// The function's C name.
    const NAME: &'static str;
    /// The index of the function's slot.
    const SLOT: usize;
    /// `struct_size`: the bytes up to the end of the last field.
    const SIZE: usize;

    /// All fields zero but `struct_size`, padding included.
    fn zeroed() -> Self {
        // SAFETY: all-zero bytes are a value of Self, and its first field is the usize `struct_size`.
        unsafe {
            let mut args = std::mem::MaybeUninit::<Self>::zeroed();
            args.as_mut_ptr().cast::<usize>().write(Self::SIZE);
            args.assume_init()
        }
    }
}

/// The argument struct of a function that takes one handle and nothing else.
///
/// # Safety
/// `set_handle` sets the only input of the function.
pub unsafe trait Query: Args {
    /// What the function is asked about.
    type Handle;

    /// Sets the handle.
    fn set_handle(&mut self, handle: *mut Self::Handle);
}

macro_rules! functions {
    ($($slot:ident => $args:ident { $($field:ident: $ty:ty,)* })*) => {$(
        #[repr(C)]
        pub struct $args {
            pub struct_size: usize,
            pub extension_start: *mut ExtensionBase,
            $(pub $field: $ty,)*
        }

        // SAFETY: declared repr(C) above with the size first; fields are numbers, raw pointers and optional functions.
        unsafe impl Args for $args {
            const NAME: &'static str = stringify!($slot);
            const SLOT: usize = slot_index(stringify!($slot));
            const SIZE: usize = {
                let ends: &[usize] = &[
                    std::mem::offset_of!($args, extension_start) + size_of::<*mut ExtensionBase>(),
                    $(std::mem::offset_of!($args, $field) + size_of::<$ty>(),)*
                ];
                ends[ends.len() - 1]
            };
        }
    )*};
}

macro_rules! queries {
    ($($slot:ident => $args:ident of $handle:ident { $($field:ident: $ty:ty,)* })*) => {
        functions! {$($slot => $args { handle: *mut $handle, $($field: $ty,)* })*}

        $(
            // SAFETY: every field after the handle is an output, or may stay null.
            unsafe impl Query for $args {
                type Handle = $handle;

                fn set_handle(&mut self, handle: *mut $handle) {
                    self.handle = handle;
                }
            }
        )*
    };
}

functions! {
    PJRT_Error_Destroy => ErrorDestroy { error: *mut Error, }
    PJRT_Error_Message => ErrorMessage { error: *const Error, message: *const c_char, message_size: usize, }
    PJRT_Error_GetCode => ErrorGetCode { error: *const Error, code: c_int, }
    PJRT_Plugin_Initialize => PluginInitialize {}
    PJRT_Plugin_Attributes => PluginAttributes { attributes: *const NamedValue, num_attributes: usize, }
    PJRT_Event_OnReady => EventOnReady {
        event: *mut Event,
        callback: Option<OnReadyCallback>,
        user_arg: *mut c_void,
    }
    PJRT_Client_Create => ClientCreate {
        create_options: *const NamedValue,
        num_options: usize,
        kv_get_callback: Option<KeyValueCallback<KeyValueGetArgs>>,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: Option<KeyValueCallback<KeyValuePutArgs>>,
        kv_put_user_arg: *mut c_void,
        client: *mut Client,
        kv_try_get_callback: Option<KeyValueCallback<KeyValueTryGetArgs>>,
        kv_try_get_user_arg: *mut c_void,
    }
    PJRT_Client_Compile => ClientCompile {
        client: *mut Client,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut LoadedExecutable,
    }
    PJRT_Client_BufferFromHostBuffer => BufferFromHostBuffer {
        client: *mut Client,
        data: *const c_void,
        element_type: c_int,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        host_buffer_semantics: c_int,
        device: *mut Device,
        memory: *mut Memory,
        device_layout: *mut MemoryLayout,
        done_with_host_buffer: *mut Event,
        buffer: *mut Buffer,
    }
    PJRT_Client_DefaultDeviceAssignment => DefaultDeviceAssignment {
        client: *mut Client,
        num_replicas: c_int,
        num_partitions: c_int,
        default_assignment_size: usize,
        default_assignment: *mut c_int,
    }
    PJRT_LoadedExecutable_Execute => Execute {
        executable: *mut LoadedExecutable,
        options: *mut ExecuteOptions,
        argument_lists: *const *const *mut Buffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut Buffer,
        device_complete_events: *mut *mut Event,
        execute_device: *mut Device,
    }
    PJRT_Executable_Serialize => ExecutableSerialize {
        executable: *const Executable,
        bytes: *const c_char,
        bytes_size: usize,
        serialized: *mut SerializedExecutable,
        deleter: Option<SerializedExecutableDeleter>,
    }
    PJRT_Executable_DeserializeAndLoad => ExecutableDeserializeAndLoad {
        client: *mut Client,
        bytes: *const c_char,
        bytes_size: usize,
        loaded: *mut LoadedExecutable,
        compile_options: *const c_char,
        compile_options_size: usize,
    }
    PJRT_Executable_OptimizedProgram => OptimizedProgram { executable: *mut Executable, program: *mut Program, }
    PJRT_Buffer_ToHostBuffer => BufferToHostBuffer {
        src: *mut Buffer,
        host_layout: *mut MemoryLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut Event,
    }
    PJRT_Buffer_CopyToDevice => BufferCopyToDevice {
        buffer: *mut Buffer,
        dst_device: *mut Device,
        dst_buffer: *mut Buffer,
    }
    PJRT_Buffer_CopyToMemory => BufferCopyToMemory {
        buffer: *mut Buffer,
        dst_memory: *mut Memory,
        dst_buffer: *mut Buffer,
    }
}

queries! {
    PJRT_Event_Destroy => EventDestroy of Event {}
    PJRT_Event_IsReady => EventIsReady of Event { is_ready: bool, }
    PJRT_Event_Await => EventAwait of Event {}
    PJRT_Client_Destroy => ClientDestroy of Client {}
    PJRT_Client_PlatformName => ClientPlatformName of Client { text: *const c_char, text_size: usize, }
    PJRT_Client_ProcessIndex => ClientProcessIndex of Client { process_index: c_int, }
    PJRT_Client_PlatformVersion => ClientPlatformVersion of Client { text: *const c_char, text_size: usize, }
    PJRT_Client_Devices => ClientDevices of Client { devices: *const *mut Device, num_devices: usize, }
    PJRT_Client_AddressableDevices => ClientAddressableDevices of Client {
        devices: *const *mut Device,
        num_devices: usize,
    }
    PJRT_Client_AddressableMemories => ClientAddressableMemories of Client {
        memories: *const *mut Memory,
        num_memories: usize,
    }
    PJRT_DeviceDescription_Id => DeviceId of DeviceDescription { id: c_int, }
    PJRT_DeviceDescription_ProcessIndex => DeviceProcessIndex of DeviceDescription { process_index: c_int, }
    PJRT_DeviceDescription_Attributes => DeviceAttributes of DeviceDescription {
        num_attributes: usize,
        attributes: *const NamedValue,
    }
    PJRT_DeviceDescription_Kind => DeviceKind of DeviceDescription { text: *const c_char, text_size: usize, }
    PJRT_DeviceDescription_DebugString => DeviceDebugString of DeviceDescription {
        text: *const c_char,
        text_size: usize,
    }
    PJRT_DeviceDescription_ToString => DeviceToString of DeviceDescription { text: *const c_char, text_size: usize, }
    PJRT_Device_GetDescription => DeviceGetDescription of Device { description: *mut DeviceDescription, }
    PJRT_Device_IsAddressable => DeviceIsAddressable of Device { is_addressable: bool, }
    PJRT_Device_LocalHardwareId => DeviceLocalHardwareId of Device { local_hardware_id: c_int, }
    PJRT_Device_AddressableMemories => DeviceAddressableMemories of Device {
        memories: *const *mut Memory,
        num_memories: usize,
    }
    PJRT_Device_DefaultMemory => DeviceDefaultMemory of Device { memory: *mut Memory, }
    PJRT_Device_MemoryStats => DeviceMemoryStats of Device {
        bytes_in_use: i64,
        peak_bytes_in_use: i64,
        peak_bytes_in_use_is_set: bool,
        num_allocs: i64,
        num_allocs_is_set: bool,
        largest_alloc_size: i64,
        largest_alloc_size_is_set: bool,
        bytes_limit: i64,
        bytes_limit_is_set: bool,
        bytes_reserved: i64,
        bytes_reserved_is_set: bool,
        peak_bytes_reserved: i64,
        peak_bytes_reserved_is_set: bool,
        bytes_reservable_limit: i64,
        bytes_reservable_limit_is_set: bool,
        largest_free_block_bytes: i64,
        largest_free_block_bytes_is_set: bool,
        pool_bytes: i64,
        pool_bytes_is_set: bool,
        peak_pool_bytes: i64,
        peak_pool_bytes_is_set: bool,
        peak_allocated_bytes: i64,
        peak_allocated_bytes_is_set: bool,
    }
    PJRT_Memory_Id => MemoryId of Memory { id: c_int, }
    PJRT_Memory_Kind => MemoryKind of Memory { text: *const c_char, text_size: usize, }
    PJRT_Memory_DebugString => MemoryDebugString of Memory { text: *const c_char, text_size: usize, }
    PJRT_Memory_AddressableByDevices => MemoryAddressableByDevices of Memory {
        devices: *const *mut Device,
        num_devices: usize,
    }
    PJRT_Executable_Destroy => ExecutableDestroy of Executable {}
    PJRT_Executable_Name => ExecutableName of Executable { text: *const c_char, text_size: usize, }
    PJRT_Executable_NumReplicas => ExecutableNumReplicas of Executable { count: usize, }
    PJRT_Executable_NumPartitions => ExecutableNumPartitions of Executable { count: usize, }
    PJRT_Executable_NumOutputs => ExecutableNumOutputs of Executable { count: usize, }
    PJRT_Executable_SizeOfGeneratedCodeInBytes => ExecutableCodeSize of Executable { size: i64, }
    PJRT_Executable_GetCostAnalysis => ExecutableCostAnalysis of Executable {
        num_properties: usize,
        properties: *const NamedValue,
    }
    PJRT_Executable_OutputElementTypes => ExecutableOutputTypes of Executable {
        types: *const c_int,
        num_types: usize,
    }
    PJRT_Executable_OutputDimensions => ExecutableOutputDimensions of Executable {
        num_outputs: usize,
        dims: *const i64,
        dim_sizes: *const usize,
    }
    PJRT_Executable_OutputMemoryKinds => ExecutableOutputMemoryKinds of Executable {
        num_outputs: usize,
        kinds: *const *const c_char,
        kind_sizes: *const usize,
    }
    PJRT_Executable_Fingerprint => ExecutableFingerprint of Executable { text: *const c_char, text_size: usize, }
    PJRT_Executable_GetCompiledMemoryStats => ExecutableMemoryStats of Executable {
        generated_code: i64,
        arguments: i64,
        outputs: i64,
        aliased: i64,
        temporaries: i64,
        host_generated_code: i64,
        host_arguments: i64,
        host_outputs: i64,
        host_aliased: i64,
        host_temporaries: i64,
        peak_memory: i64,
        total_size: i64,
        total_allocation: i64,
        indefinite_allocations: i64,
        peak_unpadded_heap: i64,
    }
    PJRT_LoadedExecutable_Destroy => LoadedExecutableDestroy of LoadedExecutable {}
    PJRT_LoadedExecutable_GetExecutable => GetExecutable of LoadedExecutable { executable: *mut Executable, }
    PJRT_LoadedExecutable_AddressableDevices => ExecutableAddressableDevices of LoadedExecutable {
        devices: *const *mut Device,
        num_devices: usize,
    }
    PJRT_LoadedExecutable_Delete => LoadedExecutableDelete of LoadedExecutable {}
    PJRT_LoadedExecutable_IsDeleted => LoadedExecutableIsDeleted of LoadedExecutable { is_deleted: bool, }
    PJRT_Buffer_Destroy => BufferDestroy of Buffer {}
    PJRT_Buffer_ElementType => BufferElementType of Buffer { element_type: c_int, }
    PJRT_Buffer_Dimensions => BufferDimensions of Buffer { dims: *const i64, num_dims: usize, }
    PJRT_Buffer_GetMemoryLayout => BufferGetMemoryLayout of Buffer { layout: MemoryLayout, }
    PJRT_Buffer_OnDeviceSizeInBytes => BufferOnDeviceSize of Buffer { size: usize, }
    PJRT_Buffer_Device => BufferDevice of Buffer { device: *mut Device, }
    PJRT_Buffer_Memory => BufferMemory of Buffer { memory: *mut Memory, }
    PJRT_Buffer_Delete => BufferDelete of Buffer {}
    PJRT_Buffer_IsDeleted => BufferIsDeleted of Buffer { is_deleted: bool, }
    PJRT_Buffer_ReadyEvent => BufferReadyEvent of Buffer { event: *mut Event, }
}
