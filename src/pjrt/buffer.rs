//! Arrays on devices.

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;

use super::borrow;
use super::client::{Client, no_handle};
use super::device::{Device, Memory};
use super::error::{Error, Result};
use super::event::Event;
use super::ffi;
use super::layout::{self, BufferLayout, HostLayout};
use crate::dtype::DType;

/// An array on a device.
///
/// A buffer that was donated to an execution, or deleted, stays valid to hold; using its data is an error.
pub struct Buffer {
    ptr: NonNull<ffi::Buffer>,
    client: Client,
}

// SAFETY: PJRT buffers may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// `ptr` is a live buffer of this client that nobody else destroys.
    pub(super) unsafe fn from_raw(ptr: NonNull<ffi::Buffer>, client: Client) -> Buffer {
        Buffer { ptr, client }
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::Buffer {
        self.ptr.as_ptr()
    }

    fn query<Q: ffi::Query<Handle = ffi::Buffer>>(&self) -> Result<Q> {
        // SAFETY: the buffer lives until self is dropped.
        unsafe { self.client.plugin().query(self.ptr) }
    }

    /// The client that this buffer belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The element type.
    pub fn dtype(&self) -> Result<DType> {
        layout::dtype_of(self.query::<ffi::BufferElementType>()?.element_type)
    }

    /// The dimensions, in elements.
    pub fn dims(&self) -> Result<&[i64]> {
        let args = self.query::<ffi::BufferDimensions>()?;
        // SAFETY: the list lives as long as the buffer.
        Ok(unsafe { borrow(args.dims, args.num_dims) })
    }

    /// The device that holds the array.
    pub fn device(&self) -> Result<Device> {
        self.client.device_of(self.query::<ffi::BufferDevice>()?.device, "PJRT_Buffer_Device")
    }

    pub(super) fn is_on(&self, device: &Device) -> Result<bool> {
        Ok(self.query::<ffi::BufferDevice>()?.device == device.as_ptr())
    }

    pub(super) fn shape(&self) -> Result<(c_int, &[i64])> {
        Ok((self.query::<ffi::BufferElementType>()?.element_type, self.dims()?))
    }

    /// The memory that holds the array.
    pub fn memory(&self) -> Result<Memory> {
        let args = self.query::<ffi::BufferMemory>()?;
        // SAFETY: a memory of this client.
        unsafe { Memory::from_raw(&self.client, args.memory, "PJRT_Buffer_Memory") }
    }

    /// The bytes that the array takes on the device, padding included.
    pub fn size_in_bytes(&self) -> Result<usize> {
        Ok(self.query::<ffi::BufferOnDeviceSize>()?.size)
    }

    /// How the array lies in device memory.
    pub fn layout(&self) -> Result<BufferLayout> {
        let args = self.query::<ffi::BufferGetMemoryLayout>()?;
        // SAFETY: just filled in by the plugin; its lists live as long as the buffer.
        Ok(unsafe { BufferLayout::from_raw(&args.layout) })
    }

    /// Copies the array to host memory, dense and row-major; types narrower than a byte take a whole one per element.
    /// Waits until the data is there.
    pub fn to_host(&self) -> Result<Vec<u8>> {
        let mut data = vec![0; layout::dense_size(self.dtype()?, self.dims()?)?];
        self.to_host_into(&mut data, HostLayout::RowMajor)?;
        Ok(data)
    }

    /// As [`to_host`](Self::to_host), into `data`, which must have the dense array's size.
    pub fn to_host_into(&self, data: &mut [u8], host_layout: HostLayout<'_>) -> Result<()> {
        let (dtype, dims) = (self.dtype()?, self.dims()?);
        layout::check_span(data.len(), dtype, dims, None)?;
        let rank = i64::try_from(dims.len()).unwrap_or(0);
        let row_major: Vec<i64>;
        let minor_to_major = match host_layout {
            HostLayout::RowMajor => {
                row_major = (0..rank).rev().collect();
                &row_major
            }
            HostLayout::MinorToMajor(order) => {
                layout::check_order(order, dims)?;
                order
            }
            HostLayout::Strides(_) => {
                return Err(Error::Invalid("arrays are copied to the host dense, not with strides".to_owned()));
            }
        };
        self.check_host_layout(minor_to_major)?;
        let mut raw_layout = layout::to_raw(minor_to_major);
        let needed = self.copy_to(std::ptr::null_mut(), 0, &mut raw_layout)?.dst_size;
        if needed > data.len() {
            return Err(Error::Invalid(format!(
                "the plugin wants {needed} bytes for {dtype}{dims:?}, which takes {} by our reckoning",
                data.len()
            )));
        }
        let args = self.copy_to(data.as_mut_ptr(), data.len(), &mut raw_layout)?;
        let event = NonNull::new(args.event).ok_or_else(|| no_handle("PJRT_Buffer_ToHostBuffer", "event"))?;
        // SAFETY: a new event of this client. The wait keeps `data` borrowed until the copy is complete.
        unsafe { Event::from_raw(event, self.client.clone()) }.wait()
    }

    /// Refuses a layout that the plugin would ignore: CPU plugins before 0.106 always copy in the device's own.
    fn check_host_layout(&self, minor_to_major: &[i64]) -> Result<()> {
        let plugin = self.client.plugin();
        if plugin.api_version().minor >= 106 || self.client.platform_name()? != "cpu" {
            return Ok(());
        }
        match self.layout()? {
            BufferLayout::Tiled { minor_to_major: own, .. } if own != minor_to_major => Err(plugin.lacks(format!(
                "copies to the host in another order of dimensions ({minor_to_major:?}) than the device's ({own:?})"
            ))),
            _ => Ok(()),
        }
    }

    /// Asks for a copy of `size` bytes to `data`; null only asks how many bytes it takes.
    fn copy_to(&self, data: *mut u8, size: usize, layout: &mut ffi::MemoryLayout) -> Result<ffi::BufferToHostBuffer> {
        // SAFETY: the buffer is live, and `data` null or valid for `size` bytes, which our only caller upholds.
        unsafe {
            self.client.plugin().call::<ffi::BufferToHostBuffer>(|args| {
                args.src = self.ptr.as_ptr();
                args.host_layout = layout;
                args.dst = data.cast();
                args.dst_size = size;
            })
        }
    }

    /// Copies the array to another device of the same client.
    pub fn copy_to_device(&self, device: &Device) -> Result<Buffer> {
        // SAFETY: buffer and device are live.
        let args = unsafe {
            self.client.plugin().call::<ffi::BufferCopyToDevice>(|args| {
                args.buffer = self.ptr.as_ptr();
                args.dst_device = device.as_ptr();
            })
        }?;
        self.copied(args.dst_buffer, "PJRT_Buffer_CopyToDevice")
    }

    /// Copies the array to a memory of the same client.
    pub fn copy_to_memory(&self, memory: &Memory) -> Result<Buffer> {
        // SAFETY: buffer and memory are live.
        let args = unsafe {
            self.client.plugin().call::<ffi::BufferCopyToMemory>(|args| {
                args.buffer = self.ptr.as_ptr();
                args.dst_memory = memory.as_ptr();
            })
        }?;
        self.copied(args.dst_buffer, "PJRT_Buffer_CopyToMemory")
    }

    fn copied(&self, buffer: *mut ffi::Buffer, function: &str) -> Result<Buffer> {
        let ptr = NonNull::new(buffer).ok_or_else(|| no_handle(function, "buffer"))?;
        Ok(Buffer { ptr, client: self.client.clone() })
    }

    /// Frees the array's memory now; the buffer can still be held.
    pub fn delete(&self) -> Result<()> {
        self.query::<ffi::BufferDelete>().map(drop)
    }

    /// Whether the array was deleted or donated.
    pub fn is_deleted(&self) -> Result<bool> {
        Ok(self.query::<ffi::BufferIsDeleted>()?.is_deleted)
    }

    /// Happens when the array's data is there; carries the error of whatever was to compute it.
    pub fn ready_event(&self) -> Result<Event> {
        let args = self.query::<ffi::BufferReadyEvent>()?;
        let ptr = NonNull::new(args.event).ok_or_else(|| no_handle("PJRT_Buffer_ReadyEvent", "event"))?;
        // SAFETY: a new event of this client.
        Ok(unsafe { Event::from_raw(ptr, self.client.clone()) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: nobody uses the buffer after this.
        unsafe { self.client.plugin().destroy::<ffi::BufferDestroy>(self.ptr) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("dtype", &self.dtype().ok()).field("dims", &self.dims().ok()).finish()
    }
}
