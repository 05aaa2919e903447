//! Named values: plugin attributes, create options, device attributes and cost properties.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt;

use super::ffi::{self, NamedValueData};
use super::{borrow, copy_text};

/// The value of an attribute or option.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    String(String),
    /// A 64-bit integer.
    Int(i64),
    /// Several 64-bit integers.
    IntList(Vec<i64>),
    /// A number; PJRT carries 32 bits of it, compile options 64.
    Float(f64),
    /// A truth value.
    Bool(bool),
}

impl Value {
    /// The integer, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The value that text stands for: `true` or `false`, a whole number, whole numbers with commas between, another number, or
    /// else text. A create option that XLA knows gets its type.
    pub fn parse(name: &str, text: &str) -> Value {
        let ints = || text.split(',').map(|int| int.trim().parse().ok()).collect::<Option<Vec<i64>>>();
        match (text.parse(), text.parse(), text.parse()) {
            (Ok(flag), ..) => Value::Bool(flag),
            (_, Ok(number), _) if !matches!(name, "visible_devices" | "memory_fraction") => Value::Int(number),
            (_, _, Ok(number)) if name != "visible_devices" => Value::Float(number),
            _ => ints().map_or_else(|| Value::String(text.to_owned()), Value::IntList),
        }
    }

    /// The number, if it is a float or an integer.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            Value::Int(value) => Some(*value as f64),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::String(value) => f.write_str(value),
            Value::Int(value) => write!(f, "{value}"),
            Value::IntList(values) => write!(f, "{values:?}"),
            Value::Float(value) => write!(f, "{value}"),
            Value::Bool(value) => write!(f, "{value}"),
        }
    }
}

macro_rules! value_from {
    ($($from:ty => $variant:ident),*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Value {
                Value::$variant(value.into())
            }
        }
    )*};
}

value_from!(&str => String, String => String, i64 => Int, Vec<i64> => IntList, f64 => Float, bool => Bool);

/// Reads an array of named values. Values of a kind that we do not know are left out.
///
/// # Safety
/// `values` is null or points to `count` named values laid out by the plugin, whose pointers are valid.
pub(super) unsafe fn read_named_values(values: *const ffi::NamedValue, count: usize) -> BTreeMap<String, Value> {
    if values.is_null() {
        return BTreeMap::new();
    }
    // A newer plugin's elements may be longer than ours: its own size is the distance from one to the next.
    // SAFETY: count is not checked here, but the first element is only read when there is one.
    let reported = if count == 0 { 0 } else { unsafe { (*values).struct_size } };
    let stride = reported.max(size_of::<ffi::NamedValue>()).next_multiple_of(align_of::<ffi::NamedValue>());
    (0..count)
        .filter_map(|index| {
            // SAFETY: the plugin laid out `count` elements `stride` bytes apart, each at least as long as ours.
            let value = unsafe { &*values.byte_add(index * stride) };
            // SAFETY: name, kind and value belong together in a value that the plugin filled in.
            unsafe { Some((copy_text(value.name, value.name_size), read_value(value)?)) }
        })
        .collect()
}

/// # Safety
/// `value.kind` says truly which arm of the union is set.
unsafe fn read_value(value: &ffi::NamedValue) -> Option<Value> {
    let data = value.value;
    // SAFETY: each arm is read only for its own kind, lists and text with the length that stands beside them.
    unsafe {
        Some(match value.kind {
            ffi::NAMED_VALUE_STRING => Value::String(copy_text(data.string, value.value_size)),
            ffi::NAMED_VALUE_INT64 => Value::Int(data.int64),
            ffi::NAMED_VALUE_INT64_LIST => Value::IntList(borrow(data.int64_list, value.value_size).to_vec()),
            ffi::NAMED_VALUE_FLOAT => Value::Float(data.float.into()),
            ffi::NAMED_VALUE_BOOL => Value::Bool(data.boolean),
            _ => return None,
        })
    }
}

/// The C form of `options`; it borrows names, text and lists from them.
pub(super) fn to_named_values(options: &[(String, Value)]) -> Vec<ffi::NamedValue> {
    options.iter().map(|(name, value)| to_named_value(name, value)).collect()
}

fn to_named_value(name: &str, value: &Value) -> ffi::NamedValue {
    let (kind, data, size): (c_int, _, _) = match value {
        Value::String(text) => (ffi::NAMED_VALUE_STRING, NamedValueData { string: text.as_ptr().cast() }, text.len()),
        Value::Int(int64) => (ffi::NAMED_VALUE_INT64, NamedValueData { int64: *int64 }, 1),
        Value::IntList(list) => (ffi::NAMED_VALUE_INT64_LIST, NamedValueData { int64_list: list.as_ptr() }, list.len()),
        Value::Float(float) => (ffi::NAMED_VALUE_FLOAT, NamedValueData { float: *float as f32 }, 1),
        Value::Bool(boolean) => (ffi::NAMED_VALUE_BOOL, NamedValueData { boolean: *boolean }, 1),
    };
    ffi::NamedValue {
        struct_size: size_of::<ffi::NamedValue>(),
        extension_start: std::ptr::null_mut(),
        name: name.as_ptr().cast(),
        name_size: name.len(),
        kind,
        value: data,
        value_size: size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_get_the_types_that_xla_asks_for() {
        assert_eq!(Value::parse("preallocate", "false"), Value::Bool(false));
        assert_eq!(Value::parse("memory_fraction", "1"), Value::Float(1.0));
        assert_eq!(Value::parse("collective_memory_size", "1024"), Value::Int(1024));
        assert_eq!(Value::parse("visible_devices", "3"), Value::IntList(vec![3]));
        assert_eq!(Value::parse("visible_devices", "0, 2"), Value::IntList(vec![0, 2]));
        assert_eq!(Value::parse("allocator", "cuda_async"), Value::String("cuda_async".to_owned()));
    }

    #[test]
    fn named_values_survive_the_c_form() {
        let options = vec![
            ("text".to_owned(), Value::from("µ")),
            ("int".to_owned(), Value::from(-3)),
            ("list".to_owned(), Value::from(vec![1, 2, 3])),
            ("float".to_owned(), Value::from(0.5)),
            ("bool".to_owned(), Value::from(true)),
        ];
        let raw = to_named_values(&options);
        // SAFETY: `raw` was just made from `options`, which still stand.
        let back = unsafe { read_named_values(raw.as_ptr(), raw.len()) };
        assert_eq!(back, options.into_iter().collect());
    }

    #[test]
    fn the_plugins_own_element_size_is_the_stride() {
        #[repr(C)]
        struct Longer {
            value: ffi::NamedValue,
            newer_field: u64,
        }
        let options = [("a".to_owned(), 1.into()), ("b".to_owned(), 2.into())];
        let mut raw: Vec<Longer> =
            to_named_values(&options).into_iter().map(|value| Longer { value, newer_field: u64::MAX }).collect();
        for longer in &mut raw {
            longer.value.struct_size = size_of::<Longer>();
        }
        // SAFETY: two elements of the size that they report.
        let back = unsafe { read_named_values(raw.as_ptr().cast(), raw.len()) };
        assert_eq!(back.get("b"), Some(&Value::Int(2)));
    }
}
