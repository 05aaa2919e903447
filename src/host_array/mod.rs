//! Arrays in host memory: made, filled, read, written, compared and printed.

mod array;
mod compare;
mod display;
mod element;
mod fill;
mod json;
mod nd;
pub mod npz;
mod region;
mod typed;

pub(crate) use array::shape_text;
pub use array::{ArrayError, HostArray};
pub use compare::{Comparison, Mismatch, compare};
pub use fill::{Fill, ParseFillError};
pub(crate) use region::{Side, copy_region};
pub use typed::Element;
