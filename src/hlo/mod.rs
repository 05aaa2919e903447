//! HLO modules: the protobuf model, its text form and the checks before a plugin sees it.

pub mod literal;
pub mod shape;
