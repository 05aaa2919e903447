//! HLO modules: the protobuf model, its text form and the checks before a plugin sees it.
//!
//! [`load`] tells the forms of a program apart, [`parse`] reads HLO text as XLA's own parser does, [`verify`] checks a
//! module for the devices it is to run on, and [`print()`](print()) writes text that XLA reads back. In between, a module is its
//! protobuf form ([`HloModuleProto`]), to be read and changed field by field.
//!
//! ```
//! use spmd_run::hlo;
//!
//! let text = "HloModule double
//!
//! ENTRY main {
//!   x = f32[4] parameter(0)
//!   ROOT y = f32[4] add(x, x)
//! }";
//! let mut module = hlo::parse(text, "double.hlo")?;
//! hlo::verify(&module, 1, 1)?;
//! assert!(hlo::print(&module).contains("ROOT %y = f32[4] add(%x, %x)"));
//!
//! let root = module.proto.computations[0].instructions.last_mut().unwrap();
//! root.shape.get_or_insert_default().dimensions = vec![5];
//! let error = hlo::verify(&module, 1, 1).unwrap_err();
//! assert_eq!(error.message, "it has the shape f32[5], and it must be f32[4]");
//! assert!(error.to_string().starts_with("double.hlo:5:8: instruction 'y' of 'main': "));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attr;
mod dead_code;
mod difference;
pub mod groups;
mod infer;
pub mod literal;
mod load;
mod nesting;
mod opcode;
mod parse;
mod print;
pub mod shape;
mod source;
mod verify;

pub(crate) use dead_code::needed_instructions;
pub use dead_code::remove_dead_code;
pub use difference::{Difference, first_difference};
pub(crate) use infer::infer_shape;
pub(crate) use load::decode;
pub use load::{Form, LoadError, load, load_with_form};
pub use parse::{ParseError, parse};
pub use print::print;
pub use source::{Position, Source};
pub(crate) use verify::verify_instruction;
pub use verify::{VerifyError, verify};

use std::sync::Arc;

use crate::proto::HloModuleProto;

/// How many dimensions the labels of a convolution may name in an array, so that a number alone cannot ask for a long text.
const MAX_LABELS: usize = 64;

/// One HLO module: its protobuf form, and what only the header of its text says.
///
/// Modules are equal whatever text they come from.
#[derive(Clone, Debug, Default)]
pub struct HloModule {
    /// The module; fields that this project does not know are kept.
    pub proto: HloModuleProto,
    /// Settings of the text's header.
    pub config: ModuleConfig,
    /// Constants whose values the text leaves out (`constant({...})`). They hold the filler that XLA's own parser puts
    /// in, so the module compiles, but its results mean nothing.
    pub elided_constants: Vec<String>,
    /// The text that the module was parsed from, for messages that point into it: [`Source::locate_instruction`] and
    /// [`Position::report`]. `None` for a module that comes from a proto or out of a pass that rewrites ids.
    pub source: Option<Arc<Source>>,
}

impl PartialEq for HloModule {
    fn eq(&self, other: &HloModule) -> bool {
        let HloModule { proto, config, elided_constants, source: _ } = self;
        *proto == other.proto && *config == other.config && *elided_constants == other.elided_constants
    }
}

/// What the header of a module's text says and its protobuf form has no field for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleConfig {
    /// `replica_count`.
    pub replica_count: Option<i64>,
    /// `num_partitions`.
    pub num_partitions: Option<i64>,
    /// For each parameter whether the partitioner may choose its sharding; one entry may stand for all.
    pub allow_spmd_sharding_propagation_to_parameters: Vec<bool>,
    /// For each result whether the partitioner may choose its sharding; one entry may stand for all.
    pub allow_spmd_sharding_propagation_to_output: Vec<bool>,
    /// Whether the instructions stand in the order in which they run.
    pub is_scheduled: bool,
}

impl ModuleConfig {
    /// Whether the header sets anything over which XLA forgets how the instructions lay out arguments and results: they
    /// are row-major then unless the header says otherwise.
    fn ignores_instruction_layouts(&self) -> bool {
        let several = |count: Option<i64>| count.is_some_and(|count| count > 1);
        several(self.replica_count)
            || several(self.num_partitions)
            || !self.allow_spmd_sharding_propagation_to_parameters.is_empty()
            || !self.allow_spmd_sharding_propagation_to_output.is_empty()
    }
}

/// A program as it was loaded.
#[allow(clippy::large_enum_variant, reason = "there are never many of them, and they are not moved much")]
#[derive(Clone, Debug)]
pub enum Program {
    /// An HLO module.
    Hlo(HloModule),
    /// StableHLO, as text or as bytecode.
    Mlir(Vec<u8>),
}
