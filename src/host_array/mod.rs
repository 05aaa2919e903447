//! Arrays in host memory: made, filled, read, written, compared and printed.

mod array;
mod compare;
mod display;
mod element;
mod file_error;
mod fill;
mod json;
mod nd;
pub mod npz;
mod region;
pub mod safetensors;
mod stored;
mod typed;

pub(crate) use array::shape_text;
pub use array::{ArrayError, HostArray};
pub use compare::{Comparison, Mismatch, compare};
pub use file_error::FileError;
pub use fill::{Fill, ParseFillError};
pub(crate) use region::{Side, copy_region};
pub use stored::StoredArray;
pub use typed::Element;
