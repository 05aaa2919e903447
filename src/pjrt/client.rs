//! Clients: the devices that this process can use through a plugin.

use std::ffi::c_int;
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::buffer::Buffer;
use super::device::{Device, DeviceInfo, Memory};
use super::error::{Error, Result};
use super::executable::LoadedExecutable;
use super::ffi;
use super::key_value::{Callbacks, KeyValueStore};
use super::layout::{self, HostLayout};
use super::plugin::Plugin;
use super::value::{Value, to_named_values};
use super::{borrow, copy_text};
use crate::dtype::DType;

/// A client of a plugin. Clones share one, which is destroyed when the last handle to it, or to anything made by it,
/// is dropped.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    devices: Vec<DeviceInfo>,
    addressable: Vec<usize>,
    raw: RawClient,
    /// Dropped after the client, which may call it until then.
    _key_value_store: Option<Callbacks>,
}

struct RawClient {
    ptr: NonNull<ffi::Client>,
    plugin: Plugin,
}

// SAFETY: PJRT clients may be used from any thread; the rest is written once, before the client is shared.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl RawClient {
    fn query<Q: ffi::Query<Handle = ffi::Client>>(&self) -> Result<Q> {
        // SAFETY: the client lives until self is dropped.
        unsafe { self.plugin.query(self.ptr) }
    }
}

impl Drop for RawClient {
    fn drop(&mut self) {
        // SAFETY: the last owner is gone.
        unsafe { self.plugin.destroy::<ffi::ClientDestroy>(self.ptr) }
    }
}

/// What a program's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramFormat {
    /// A serialized `HloModuleProto`.
    Hlo,
    /// A serialized `HloModuleProtoWithConfig`.
    HloWithConfig,
    /// StableHLO: MLIR text or bytecode.
    Mlir,
}

impl ProgramFormat {
    /// The name by which plugins know the format.
    pub fn name(self) -> &'static str {
        match self {
            ProgramFormat::Hlo => "hlo",
            ProgramFormat::HloWithConfig => "hlo_with_config",
            ProgramFormat::Mlir => "mlir",
        }
    }
}

/// A program to compile.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// The program itself.
    pub code: &'a [u8],
    /// What `code` is.
    pub format: ProgramFormat,
}

impl Plugin {
    /// Creates a client. `options` are the plugin's own; for the CPU plugin `cpu_device_count`, for GPUs `node_id`,
    /// `num_nodes` and others. `key_value_store` serves plugins that rendezvous by themselves.
    ///
    /// Older plugins ignore options that they do not know. Where an option's effect shows in the client
    /// (`cpu_device_count`, `process_id`, `node_id`) it is checked, and a client that is not as asked is refused.
    pub fn create_client(
        &self,
        options: &[(String, Value)],
        key_value_store: Option<Arc<dyn KeyValueStore>>,
    ) -> Result<Client> {
        let named_values = to_named_values(options);
        let callbacks = key_value_store.map(Callbacks::new);
        // SAFETY: the options live through the call, the callbacks until the client is gone.
        let args = unsafe {
            self.call::<ffi::ClientCreate>(|args| {
                args.create_options = named_values.as_ptr();
                args.num_options = named_values.len();
                if let Some(callbacks) = &callbacks {
                    callbacks.install(args);
                }
            })
        }?;
        let ptr = NonNull::new(args.client).ok_or_else(|| no_handle("PJRT_Client_Create", "client"))?;
        let client = Client::new(RawClient { ptr, plugin: self.clone() }, callbacks)?;
        client.check_options(options)?;
        Ok(client)
    }
}

/// The error for a plugin that reports success but leaves the result null.
pub(super) fn no_handle(function: &str, what: &str) -> Error {
    Error::Invalid(format!("{function} reported success but returned no {what}"))
}

impl Client {
    fn new(raw: RawClient, key_value_store: Option<Callbacks>) -> Result<Client> {
        let all = raw.query::<ffi::ClientDevices>()?;
        // SAFETY: the client's own list of its devices.
        let devices = unsafe { borrow(all.devices, all.num_devices) }
            .iter()
            .map(|device| {
                let device = NonNull::new(*device).ok_or_else(|| no_handle("PJRT_Client_Devices", "device"))?;
                // SAFETY: a device of this live client.
                unsafe { DeviceInfo::read(&raw.plugin, device) }
            })
            .collect::<Result<Vec<_>>>()?;
        let local = raw.query::<ffi::ClientAddressableDevices>()?;
        // SAFETY: the client's own list of its addressable devices.
        let addressable = unsafe { borrow(local.devices, local.num_devices) }
            .iter()
            .map(|device| {
                let index = devices.iter().position(|info| info.ptr.as_ptr() == *device);
                index.ok_or_else(|| Error::Invalid("an addressable device is missing among all devices".to_owned()))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Client(Arc::new(Inner { devices, addressable, raw, _key_value_store: key_value_store })))
    }

    fn check_options(&self, options: &[(String, Value)]) -> Result<()> {
        for (name, value) in options {
            let Some(asked) = value.as_int() else { continue };
            let (found, text) = match name.as_str() {
                "cpu_device_count" => {
                    let count = self.0.addressable.len();
                    (i64::try_from(count).ok(), format!("it created {count} devices"))
                }
                "process_id" | "node_id" => {
                    let index = self.process_index()?;
                    (Some(index.into()), format!("its process index is {index}"))
                }
                _ => continue,
            };
            if found != Some(asked) {
                return Err(self.plugin().option_ignored(name, value, text));
            }
        }
        Ok(())
    }

    /// The plugin that made this client.
    pub fn plugin(&self) -> &Plugin {
        &self.0.raw.plugin
    }

    pub(super) fn device_info(&self, index: usize) -> &DeviceInfo {
        &self.0.devices[index]
    }

    /// The device behind a pointer that the plugin returned.
    pub(super) fn device_of(&self, ptr: *mut ffi::Device, function: &str) -> Result<Device> {
        let index = self.0.devices.iter().position(|info| info.ptr.as_ptr() == ptr);
        index.map(|index| Device::new(self.clone(), index)).ok_or_else(|| no_handle(function, "device of this client"))
    }

    /// The platform's name: `cpu`, `cuda`, `tpu`.
    pub fn platform_name(&self) -> Result<String> {
        let args = self.0.raw.query::<ffi::ClientPlatformName>()?;
        // SAFETY: text that the client owns.
        Ok(unsafe { copy_text(args.text, args.text_size) })
    }

    /// The platform's version, in the plugin's own words.
    pub fn platform_version(&self) -> Result<String> {
        let args = self.0.raw.query::<ffi::ClientPlatformVersion>()?;
        // SAFETY: text that the client owns.
        Ok(unsafe { copy_text(args.text, args.text_size) })
    }

    /// The index of this process among those that the plugin knows; 0 when it knows of no others.
    pub fn process_index(&self) -> Result<i32> {
        Ok(self.0.raw.query::<ffi::ClientProcessIndex>()?.process_index)
    }

    /// All devices, those of other processes included.
    pub fn devices(&self) -> Vec<Device> {
        (0..self.0.devices.len()).map(|index| Device::new(self.clone(), index)).collect()
    }

    /// The devices that this process can put data on.
    pub fn addressable_devices(&self) -> Vec<Device> {
        self.0.addressable.iter().map(|&index| Device::new(self.clone(), index)).collect()
    }

    /// The memories that this process can put data in.
    pub fn addressable_memories(&self) -> Result<Vec<Memory>> {
        let args = self.0.raw.query::<ffi::ClientAddressableMemories>()?;
        // SAFETY: the client's own list of its memories.
        unsafe { Memory::list(self, args.memories, args.num_memories) }
    }

    /// The device ids that the plugin would choose, as `[replica][partition]`.
    pub fn default_device_assignment(&self, replicas: usize, partitions: usize) -> Result<Vec<Vec<i32>>> {
        let too_large = || Error::Invalid(format!("{replicas} replicas × {partitions} partitions are too many"));
        let num_replicas = c_int::try_from(replicas).map_err(|_| too_large())?;
        let num_partitions = c_int::try_from(partitions).map_err(|_| too_large())?;
        if replicas == 0 || partitions == 0 {
            return Err(Error::Invalid("a device assignment needs at least one replica and one partition".to_owned()));
        }
        let count = num_replicas.checked_mul(num_partitions).ok_or_else(too_large)?.cast_unsigned() as usize;
        let mut ids: Vec<c_int> = vec![0; count];
        // SAFETY: the client is live, and `ids` has the length that is given.
        unsafe {
            self.plugin().call::<ffi::DefaultDeviceAssignment>(|args| {
                args.client = self.0.raw.ptr.as_ptr();
                args.num_replicas = num_replicas;
                args.num_partitions = num_partitions;
                args.default_assignment_size = ids.len();
                args.default_assignment = ids.as_mut_ptr();
            })
        }?;
        Ok(ids.chunks(partitions).map(<[c_int]>::to_vec).collect())
    }

    /// Compiles `program` with a serialized `CompileOptionsProto`, as from [`CompileOptions::encode`].
    ///
    /// [`CompileOptions::encode`]: super::CompileOptions::encode
    pub fn compile(&self, program: &Program<'_>, options: &[u8]) -> Result<LoadedExecutable> {
        let format = program.format.name();
        let raw_program = ffi::Program {
            struct_size: size_of::<ffi::Program>(),
            extension_start: null_mut(),
            code: program.code.as_ptr().cast_mut().cast(),
            code_size: program.code.len(),
            format: format.as_ptr().cast(),
            format_size: format.len(),
        };
        // SAFETY: the client is live; program and options live through the call, which only reads them.
        let args = unsafe {
            self.plugin().call::<ffi::ClientCompile>(|args| {
                args.client = self.0.raw.ptr.as_ptr();
                args.program = &raw_program;
                args.compile_options = options.as_ptr().cast();
                args.compile_options_size = options.len();
            })
        }?;
        let executable = NonNull::new(args.executable).ok_or_else(|| no_handle("PJRT_Client_Compile", "executable"))?;
        // SAFETY: a new executable of this client.
        unsafe { LoadedExecutable::from_raw(executable, self.clone()) }
    }

    /// Loads what [`LoadedExecutable::serialize`] gave, for the devices that it was compiled for. The bytes are trusted:
    /// plugins run what they find in them.
    pub fn load(&self, serialized: &[u8]) -> Result<LoadedExecutable> {
        // SAFETY: the client is live; the bytes live through the call, which only reads them.
        let args = unsafe {
            self.plugin().call::<ffi::ExecutableDeserializeAndLoad>(|args| {
                args.client = self.0.raw.ptr.as_ptr();
                args.bytes = serialized.as_ptr().cast();
                args.bytes_size = serialized.len();
            })
        }?;
        let loaded =
            NonNull::new(args.loaded).ok_or_else(|| no_handle("PJRT_Executable_DeserializeAndLoad", "executable"))?;
        // SAFETY: a new executable of this client.
        unsafe { LoadedExecutable::from_raw(loaded, self.clone()) }
    }

    /// Copies an array from host memory to a device, where it gets the default layout. `data` may be reused as soon as
    /// this returns.
    ///
    /// `dims` are in elements; types narrower than a byte take a whole byte per element in `data`.
    pub fn buffer_from_host(
        &self,
        data: &[u8],
        dtype: DType,
        dims: &[i64],
        layout: HostLayout<'_>,
        device: &Device,
    ) -> Result<Buffer> {
        self.buffer_from_host_to(data, dtype, dims, layout, Place { device: Some(device), ..Place::default() })
    }

    /// As [`buffer_from_host`](Self::buffer_from_host), to any place and with any layout there.
    ///
    /// Programs whose parameters have other layouts than the default ones need their arguments so: plugins do not check
    /// it, and compute with misplaced elements.
    pub fn buffer_from_host_to(
        &self,
        data: &[u8],
        dtype: DType,
        dims: &[i64],
        layout: HostLayout<'_>,
        place: Place<'_>,
    ) -> Result<Buffer> {
        let element_type = layout::buffer_type(self.plugin(), dtype)?;
        let strides = layout::byte_strides(layout, dtype, dims)?;
        layout::check_span(data.len(), dtype, dims, strides.as_deref())?;
        if place.device.is_none() && place.memory.is_none() {
            return Err(Error::Invalid("a buffer needs a device or a memory".to_owned()));
        }
        if let Some(order) = place.minor_to_major {
            layout::check_order(order, dims)?;
            self.check_device_layout(order)?;
        }
        let mut device_layout = place.minor_to_major.map(layout::to_raw);
        // SAFETY: client and destination are live; the plugin copies the data, whose extent was checked, during the
        // call.
        let args = unsafe {
            self.plugin().call::<ffi::BufferFromHostBuffer>(|args| {
                args.client = self.0.raw.ptr.as_ptr();
                args.data = data.as_ptr().cast();
                args.element_type = element_type;
                args.dims = dims.as_ptr();
                args.num_dims = dims.len();
                if let Some(strides) = &strides {
                    args.byte_strides = strides.as_ptr();
                    args.num_byte_strides = strides.len();
                }
                args.host_buffer_semantics = ffi::IMMUTABLE_ONLY_DURING_CALL;
                args.device = place.device.map_or(null_mut(), Device::as_ptr);
                args.memory = place.memory.map_or(null_mut(), Memory::as_ptr);
                args.device_layout = device_layout.as_mut().map_or(null_mut(), std::ptr::from_mut);
            })
        }?;
        let buffer =
            NonNull::new(args.buffer).ok_or_else(|| no_handle("PJRT_Client_BufferFromHostBuffer", "buffer"))?;
        // SAFETY: a new buffer of this client.
        let buffer = unsafe { Buffer::from_raw(buffer, self.clone()) };
        if let Some(done) = NonNull::new(args.done_with_host_buffer) {
            // SAFETY: a new event of this client.
            unsafe { super::event::Event::from_raw(done, self.clone()) }.wait()?;
        }
        Ok(buffer)
    }

    /// Refuses a device layout that the plugin would get wrong: CPU plugins up to 0.106 (the next one known is 0.115)
    /// always copy row-major, and only call the result by the layout that was asked for.
    fn check_device_layout(&self, minor_to_major: &[i64]) -> Result<()> {
        let is_row_major = minor_to_major.is_sorted_by(|minor, major| minor > major);
        if !is_row_major && self.plugin().api_version().minor < 115 && self.platform_name()? == "cpu" {
            return Err(self.plugin().lacks(format!(
                "copies to the device in another order of dimensions ({minor_to_major:?}) than row-major"
            )));
        }
        Ok(())
    }
}

/// Where on a device an array goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place<'a> {
    /// The device; may be left out when there is a memory.
    pub device: Option<&'a Device>,
    /// The memory; `None` means the device's default one.
    pub memory: Option<&'a Memory>,
    /// The dimensions from the one that varies fastest to the slowest; `None` means the device's default layout.
    pub minor_to_major: Option<&'a [i64]>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("plugin", self.plugin())
            .field("devices", &self.0.devices.len())
            .field("addressable_devices", &self.0.addressable.len())
            .finish()
    }
}
