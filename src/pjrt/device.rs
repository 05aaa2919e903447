//! Devices and their memories.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;

use super::client::{Client, no_handle};
use super::error::Result;
use super::ffi;
use super::plugin::Plugin;
use super::value::{Value, read_named_values};
use super::{borrow, copy_text};

/// What never changes about a device, read once when the client is created.
pub(super) struct DeviceInfo {
    pub(super) ptr: NonNull<ffi::Device>,
    description: NonNull<ffi::DeviceDescription>,
    id: i32,
    process_index: i32,
    local_hardware_id: Option<i32>,
}

impl DeviceInfo {
    /// # Safety
    /// `ptr` is a device of a live client of `plugin`.
    pub(super) unsafe fn read(plugin: &Plugin, ptr: NonNull<ffi::Device>) -> Result<DeviceInfo> {
        // SAFETY: the device is live, and so is its description.
        unsafe {
            let description = plugin.query::<ffi::DeviceGetDescription>(ptr)?.description;
            let description =
                NonNull::new(description).ok_or_else(|| no_handle("PJRT_Device_GetDescription", "description"))?;
            let is_addressable = plugin.query::<ffi::DeviceIsAddressable>(ptr)?.is_addressable;
            let local_hardware_id = if is_addressable {
                Some(plugin.query::<ffi::DeviceLocalHardwareId>(ptr)?.local_hardware_id)
            } else {
                None
            };
            Ok(DeviceInfo {
                ptr,
                description,
                id: plugin.query::<ffi::DeviceId>(description)?.id,
                process_index: plugin.query::<ffi::DeviceProcessIndex>(description)?.process_index,
                local_hardware_id,
            })
        }
    }
}

/// A device of a client.
#[derive(Clone)]
pub struct Device {
    client: Client,
    index: usize,
}

impl Device {
    pub(super) fn new(client: Client, index: usize) -> Device {
        Device { client, index }
    }

    fn info(&self) -> &DeviceInfo {
        self.client.device_info(self.index)
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::Device {
        self.info().ptr.as_ptr()
    }

    fn query<Q: ffi::Query<Handle = ffi::Device>>(&self) -> Result<Q> {
        // SAFETY: the device lives as long as its client.
        unsafe { self.client.plugin().query(self.info().ptr) }
    }

    fn query_description<Q: ffi::Query<Handle = ffi::DeviceDescription>>(&self) -> Result<Q> {
        // SAFETY: the description lives as long as its client.
        unsafe { self.client.plugin().query(self.info().description) }
    }

    /// The client that this device belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The id, unique among all devices that the plugin knows.
    pub fn id(&self) -> i32 {
        self.info().id
    }

    /// The process that owns the device.
    pub fn process_index(&self) -> i32 {
        self.info().process_index
    }

    /// The number of the device on its host; `None` for devices of other processes.
    pub fn local_hardware_id(&self) -> Option<i32> {
        self.info().local_hardware_id
    }

    /// Whether this process can put data on the device.
    pub fn is_addressable(&self) -> bool {
        self.info().local_hardware_id.is_some()
    }

    /// The vendor's name for this kind of device.
    pub fn kind(&self) -> Result<String> {
        let args = self.query_description::<ffi::DeviceKind>()?;
        // SAFETY: text that the description owns.
        Ok(unsafe { copy_text(args.text, args.text_size) })
    }

    /// The plugin's verbose description of the device.
    pub fn debug_string(&self) -> Result<String> {
        let args = self.query_description::<ffi::DeviceDebugString>()?;
        // SAFETY: text that the description owns.
        Ok(unsafe { copy_text(args.text, args.text_size) })
    }

    /// The plugin's short description of the device.
    pub fn description(&self) -> Result<String> {
        let args = self.query_description::<ffi::DeviceToString>()?;
        // SAFETY: text that the description owns.
        Ok(unsafe { copy_text(args.text, args.text_size) })
    }

    /// What the plugin says of the device, such as `coords` and `slice_index` on TPUs.
    pub fn attributes(&self) -> Result<BTreeMap<String, Value>> {
        let args = self.query_description::<ffi::DeviceAttributes>()?;
        // SAFETY: the description's own list of attributes.
        Ok(unsafe { read_named_values(args.attributes, args.num_attributes) })
    }

    /// The memories that the device can reach.
    pub fn memories(&self) -> Result<Vec<Memory>> {
        let args = self.query::<ffi::DeviceAddressableMemories>()?;
        // SAFETY: the device's own list of its memories.
        unsafe { Memory::list(&self.client, args.memories, args.num_memories) }
    }

    /// The memory that buffers go to when nothing else is said.
    pub fn default_memory(&self) -> Result<Memory> {
        let args = self.query::<ffi::DeviceDefaultMemory>()?;
        // SAFETY: a memory of this client.
        unsafe { Memory::from_raw(&self.client, args.memory, "PJRT_Device_DefaultMemory") }
    }

    /// How much memory is in use; not every plugin can tell.
    pub fn allocator_stats(&self) -> Result<AllocatorStats> {
        let args = self.query::<ffi::DeviceMemoryStats>()?;
        Ok(AllocatorStats {
            bytes_in_use: args.bytes_in_use,
            peak_bytes_in_use: args.peak_bytes_in_use_is_set.then_some(args.peak_bytes_in_use),
            bytes_limit: args.bytes_limit_is_set.then_some(args.bytes_limit),
            largest_free_block_bytes: args.largest_free_block_bytes_is_set.then_some(args.largest_free_block_bytes),
        })
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        self.as_ptr() == other.as_ptr()
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("id", &self.id())
            .field("process_index", &self.process_index())
            .field("local_hardware_id", &self.local_hardware_id())
            .finish()
    }
}

/// The state of a device's allocator, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorStats {
    /// Allocated now.
    pub bytes_in_use: i64,
    /// The most that was ever allocated.
    pub peak_bytes_in_use: Option<i64>,
    /// The most that can be allocated.
    pub bytes_limit: Option<i64>,
    /// The largest piece that can be allocated now.
    pub largest_free_block_bytes: Option<i64>,
}

/// A memory that devices can reach: high-bandwidth memory, pinned host memory and so on.
#[derive(Clone)]
pub struct Memory {
    ptr: NonNull<ffi::Memory>,
    client: Client,
}

// SAFETY: PJRT memories may be used from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// `ptr` is null or a memory of `client`.
    pub(super) unsafe fn from_raw(client: &Client, ptr: *mut ffi::Memory, function: &str) -> Result<Memory> {
        let ptr = NonNull::new(ptr).ok_or_else(|| no_handle(function, "memory"))?;
        Ok(Memory { ptr, client: client.clone() })
    }

    /// # Safety
    /// `memories` points to `count` memories of `client`.
    pub(super) unsafe fn list(client: &Client, memories: *const *mut ffi::Memory, count: usize) -> Result<Vec<Memory>> {
        // SAFETY: passed on from the caller.
        unsafe { borrow(memories, count) }
            .iter()
            // SAFETY: passed on from the caller.
            .map(|memory| unsafe { Memory::from_raw(client, *memory, "the list of memories") })
            .collect()
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::Memory {
        self.ptr.as_ptr()
    }

    fn query<Q: ffi::Query<Handle = ffi::Memory>>(&self) -> Result<Q> {
        // SAFETY: the memory lives as long as its client.
        unsafe { self.client.plugin().query(self.ptr) }
    }

    /// The id, unique among all memories.
    pub fn id(&self) -> Result<i32> {
        Ok(self.query::<ffi::MemoryId>()?.id)
    }

    /// The kind: `device`, `pinned_host`, `unpinned_host`.
    pub fn kind(&self) -> Result<String> {
        let args = self.query::<ffi::MemoryKind>()?;
        // SAFETY: text that the memory owns.
        Ok(unsafe { copy_text(args.text, args.text_size) })
    }

    /// The plugin's verbose description of the memory.
    pub fn debug_string(&self) -> Result<String> {
        let args = self.query::<ffi::MemoryDebugString>()?;
        // SAFETY: text that the memory owns.
        Ok(unsafe { copy_text(args.text, args.text_size) })
    }

    /// The devices that reach this memory.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let args = self.query::<ffi::MemoryAddressableByDevices>()?;
        // SAFETY: the memory's own list of devices.
        unsafe { borrow(args.devices, args.num_devices) }
            .iter()
            .map(|device| self.client.device_of(*device, "PJRT_Memory_AddressableByDevices"))
            .collect()
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Memory) -> bool {
        self.ptr == other.ptr
    }
}

impl Eq for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("id", &self.id().ok()).field("kind", &self.kind().ok()).finish()
    }
}
