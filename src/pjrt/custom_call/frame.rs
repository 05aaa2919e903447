//! What a custom call is given: buffers, attributes and the execution's identity.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::call::FfiError;
use super::{discard, packing};
use crate::dtype::DType;
use crate::pjrt::borrow;
use crate::pjrt::error::ErrorCode;
use crate::pjrt::ffi::xla;

/// The arguments of a custom call.
pub struct CallFrame<'a> {
    raw: &'a xla::CallFrame,
}

/// An argument or result of a custom call, in memory of the plugin: row-major unless the program says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct BufferRef<'a> {
    /// The element type.
    pub dtype: DType,
    /// The dimensions, in elements.
    pub dims: &'a [i64],
    /// The first byte; may be null when there are no bytes.
    pub ptr: *mut u8,
}

impl BufferRef<'_> {
    /// The number of elements.
    pub fn num_elements(&self) -> usize {
        self.dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).product()
    }

    /// The bytes in memory; elements narrower than a byte are [packed](super::is_packed).
    pub fn size_in_bytes(&self) -> usize {
        packing::stored_size(self.dtype, self.num_elements())
    }
}

/// An attribute of a custom call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attr<'a> {
    /// A truth value.
    Bool(bool),
    /// An integer of any width but `u64`.
    Int(i64),
    /// An integer of type `u64`.
    Unsigned(u64),
    /// A number of type `f32` or `f64`.
    Float(f64),
    /// Text.
    Str(&'a str),
    /// Several integers of type `s64`.
    Ints(&'a [i64]),
    /// Several numbers of another type.
    Array {
        /// The type of the numbers.
        dtype: DType,
        /// The numbers, one after the other.
        bytes: &'a [u8],
    },
}

macro_rules! xla_function {
    ($api:expr, $field:ident) => {
        // A function past the end of the plugin's own table does not exist.
        if $api.struct_size >= std::mem::offset_of!(xla::Api, $field) + size_of::<usize>() { $api.$field } else { None }
    };
}

impl<'a> CallFrame<'a> {
    /// The frame must be valid for `'a`.
    pub(super) fn new(raw: &'a xla::CallFrame) -> CallFrame<'a> {
        CallFrame { raw }
    }

    pub(super) fn api(&self) -> &'a xla::Api {
        // SAFETY: a frame for the execute stage has an api, which lives as long as the plugin.
        unsafe { &*self.raw.api }
    }

    /// The arguments.
    pub fn args(&self) -> Result<Vec<BufferRef<'a>>, FfiError> {
        // SAFETY: part of the plugin's frame.
        unsafe { read_buffers(&self.raw.args) }
    }

    /// The results, to be written. A result may share its memory with an argument if the program says so.
    pub fn results(&self) -> Result<Vec<BufferRef<'a>>, FfiError> {
        // SAFETY: part of the plugin's frame.
        unsafe { read_buffers(&self.raw.results) }
    }

    /// The attribute with this name, from the call's `backend_config`; `None` when there is none, or one of a type
    /// that we do not read.
    pub fn attr(&self, name: &str) -> Option<Attr<'a>> {
        let attrs = &self.raw.attrs;
        let size = usize::try_from(attrs.size).unwrap_or(0);
        // SAFETY: the three lists of the plugin's frame have `size` elements.
        let (types, names, values) =
            unsafe { (borrow(attrs.types, size), borrow(attrs.names, size), borrow(attrs.values, size)) };
        // SAFETY: names are valid for the call.
        let index = names
            .iter()
            .position(|span| unsafe { borrow((**span).ptr.cast::<u8>(), (**span).len) == name.as_bytes() })?;
        // SAFETY: type and value of one attribute belong together.
        unsafe { read_attr(*types.get(index)?, *values.get(index)?) }
    }

    /// The integer attribute with this name, or an error that says that it is missing.
    pub fn int_attr(&self, name: &str) -> Result<i64, FfiError> {
        match self.attr(name) {
            Some(Attr::Int(value)) => Ok(value),
            found => Err(FfiError::new(
                ErrorCode::InvalidArgument,
                format!("the custom call needs an integer attribute {name}, found {found:?}"),
            )),
        }
    }

    /// The `launch_id` of the execution.
    pub fn run_id(&self) -> Result<i64, FfiError> {
        let get = xla_function!(self.api(), run_id_get).ok_or_else(|| lacks("XLA_FFI_RunId_Get"))?;
        let mut args = xla::RunIdGet {
            struct_size: size_of::<xla::RunIdGet>(),
            extension_start: null_mut(),
            context: self.raw.context,
            run_id: 0,
        };
        // SAFETY: the context is the frame's own; the error is ours to discard.
        if unsafe { discard(self.api(), get(&mut args)) } {
            return Err(lacks("a run id for this call"));
        }
        Ok(args.run_id)
    }

    /// The number of the device among the client's addressable ones.
    pub fn device_ordinal(&self) -> Result<i32, FfiError> {
        let get = xla_function!(self.api(), device_ordinal_get).ok_or_else(|| lacks("XLA_FFI_DeviceOrdinal_Get"))?;
        let mut args = xla::DeviceOrdinalGet {
            struct_size: std::mem::offset_of!(xla::DeviceOrdinalGet, device_ordinal) + size_of::<i32>(),
            extension_start: null_mut(),
            context: self.raw.context,
            device_ordinal: 0,
        };
        // SAFETY: the context is the frame's own; the error is ours to discard.
        if unsafe { discard(self.api(), get(&mut args)) } {
            return Err(lacks("a device ordinal for this call"));
        }
        Ok(args.device_ordinal)
    }
}

fn lacks(what: &str) -> FfiError {
    FfiError::new(ErrorCode::Unimplemented, format!("the plugin lacks {what}"))
}

/// # Safety
/// `buffers` is part of a frame that is valid for `'a`.
unsafe fn read_buffers<'a>(buffers: &xla::Buffers) -> Result<Vec<BufferRef<'a>>, FfiError> {
    let size = usize::try_from(buffers.size).unwrap_or(0);
    // SAFETY: both lists have `size` elements.
    let (types, values) = unsafe { (borrow(buffers.types, size), borrow(buffers.values, size)) };
    types
        .iter()
        .zip(values)
        .map(|(kind, value)| {
            if *kind != xla::ARG_BUFFER {
                return Err(FfiError::new(ErrorCode::Unimplemented, format!("an operand of kind {kind} is no buffer")));
            }
            // SAFETY: a value of this kind is a buffer.
            let buffer = unsafe { &*value.cast::<xla::Buffer>() };
            let dtype = DType::from_primitive_type(buffer.dtype).ok_or_else(|| {
                FfiError::new(
                    ErrorCode::Unimplemented,
                    format!("the custom call has an operand of FFI type {}, which is no element type", buffer.dtype),
                )
            })?;
            // SAFETY: a buffer has `rank` dimensions.
            let dims = unsafe { borrow(buffer.dims, usize::try_from(buffer.rank).unwrap_or(0)) };
            Ok(BufferRef { dtype, dims, ptr: buffer.data.cast() })
        })
        .collect()
}

/// # Safety
/// `value` points to an attribute of type `kind` that is valid for `'a`.
unsafe fn read_attr<'a>(kind: c_int, value: *const std::ffi::c_void) -> Option<Attr<'a>> {
    // SAFETY: passed on from the caller.
    unsafe {
        match kind {
            xla::ATTR_STRING => {
                let span = &*value.cast::<xla::ByteSpan>();
                std::str::from_utf8(borrow(span.ptr.cast::<u8>(), span.len)).ok().map(Attr::Str)
            }
            xla::ATTR_SCALAR => {
                let scalar = &*value.cast::<xla::Scalar>();
                read_scalar(DType::from_primitive_type(scalar.dtype)?, scalar.value)
            }
            xla::ATTR_ARRAY => {
                let array = &*value.cast::<xla::Array>();
                Some(match DType::from_primitive_type(array.dtype)? {
                    DType::S64 => Attr::Ints(borrow(array.data.cast::<i64>(), array.size)),
                    dtype => Attr::Array { dtype, bytes: borrow(array.data.cast::<u8>(), array.size * dtype.size()) },
                })
            }
            _ => None,
        }
    }
}

/// # Safety
/// `value` points to a number of type `dtype`.
unsafe fn read_scalar<'a>(dtype: DType, value: *const std::ffi::c_void) -> Option<Attr<'a>> {
    // SAFETY: passed on from the caller.
    unsafe {
        Some(match dtype {
            DType::Pred => Attr::Bool(*value.cast::<u8>() != 0),
            DType::S8 => Attr::Int((*value.cast::<i8>()).into()),
            DType::S16 => Attr::Int((*value.cast::<i16>()).into()),
            DType::S32 => Attr::Int((*value.cast::<i32>()).into()),
            DType::S64 => Attr::Int(*value.cast::<i64>()),
            DType::U8 => Attr::Int((*value.cast::<u8>()).into()),
            DType::U16 => Attr::Int((*value.cast::<u16>()).into()),
            DType::U32 => Attr::Int((*value.cast::<u32>()).into()),
            DType::U64 => Attr::Unsigned(*value.cast::<u64>()),
            DType::F32 => Attr::Float((*value.cast::<f32>()).into()),
            DType::F64 => Attr::Float(*value.cast::<f64>()),
            _ => return None,
        })
    }
}
