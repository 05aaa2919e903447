//! Protobuf types of HLO modules and compile options, generated from `proto/`.

#![allow(missing_docs)]

mod generated {
    include!(concat!(env!("OUT_DIR"), "/proto.rs"));
}

pub use generated::xla::*;
