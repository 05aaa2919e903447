//! Protobuf types of HLO modules and compile options, generated from `proto/`.

#![allow(missing_docs)]

mod instruction;
mod shared;

mod generated {
    include!(concat!(env!("OUT_DIR"), "/proto.rs"));
}

pub use generated::xla::*;
pub use instruction::HloInstructionProto;
pub use shared::Shared;
