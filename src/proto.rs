//! Protobuf types of HLO modules and compile options, generated from `proto/`.

#![allow(missing_docs)]

mod inline;
mod instruction;
mod shape;
mod shared;

mod generated {
    include!(concat!(env!("OUT_DIR"), "/proto.rs"));
}

pub use generated::xla::*;
pub use inline::{InlineList, InlineString};
pub use instruction::HloInstructionProto;
pub use shape::SharedShape;
pub use shared::Shared;
