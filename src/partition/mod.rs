//! Turns a global program into the program of one device.
//!
//! XLA's own partitioner does it, inside the plugin: the program is compiled for all its devices on a client that is
//! thrown away, with the modules before and after partitioning dumped into a temporary directory.

mod counts;
mod dump;
mod signature;
mod stablehlo;
mod tuples;

#[cfg(test)]
mod tests;

use std::io;

use buffa::Message;

pub use counts::{CountSource, Counts, Found, find_counts, is_partitioned, program_counts, uses_shardy};
pub use dump::delete_dumps_of;
pub use signature::{Signature, compiled_module, signature_of_compiled};
pub use stablehlo::to_stablehlo;
pub use tuples::shard_tuples;

use crate::hlo::{HloModule, ModuleConfig, Program};
use crate::mesh::ShardingError;
use crate::pjrt::{self, CompileOptions, Plugin, ProgramFormat, Value};
use crate::proto;
use dump::Dump;

/// XLA's name of the pass that partitions.
const PARTITIONING: &str = "spmd-partitioning";

/// The program of one device, and how global arguments and results relate to it.
#[derive(Clone, Debug)]
pub struct Partitioned {
    /// The program that each device runs. Its collectives still name global devices, see [`crate::lower`].
    pub module: HloModule,
    /// The global arguments, tuples flattened.
    pub parameters: Vec<GlobalArg>,
    /// The global results, tuples flattened.
    pub results: Vec<GlobalArg>,
}

/// An argument or result of the global program.
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalArg {
    /// The shape of the whole array.
    pub shape: proto::ShapeProto,
    /// How it lies on the partitions of a replica. `Manual` means that each device has an array of this shape.
    pub sharding: proto::OpSharding,
}

/// Why a program could not be partitioned.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// XLA refuses the program.
    #[error(transparent)]
    Xla(#[from] pjrt::Error),
    /// The temporary directory for XLA's dumps.
    #[error("cannot use a temporary directory for partitioning: {0}")]
    Directory(#[from] io::Error),
    /// The compilation went well, and still there is no dump.
    #[error("the plugin {plugin} wrote no {what}: is its XLA too old, or does XLA_FLAGS filter its dumps?")]
    NoDump {
        /// The plugin's file.
        plugin: String,
        /// The dump that is missing.
        what: &'static str,
    },
    /// The dump cannot be read.
    #[error("cannot read XLA's dump {file}: {source}")]
    Decode {
        /// The file's name.
        file: String,
        /// Why.
        source: buffa::DecodeError,
    },
    /// A sharding that makes no sense.
    #[error(transparent)]
    Sharding(#[from] ShardingError),
    /// The plugin sees all processes, and does not tell how arguments and results lie on their devices.
    #[error(
        "the plugin does not show the program that it compiled, so nobody knows how arguments and results of StableHLO lie on \
         the devices: give the program as HLO"
    )]
    NoShardings,
    /// Shardings, parameters and results do not fit together.
    #[error("{0}")]
    Malformed(String),
}

/// Partitions a program for this number of replicas and partitions.
///
/// A program that was partitioned before is taken as it is, and so is one for a single partition.
pub fn partition(plugin: &Plugin, program: &Program, replicas: i64, partitions: i64) -> Result<Partitioned, Error> {
    let imported;
    let global = match program {
        Program::Hlo(module) => module,
        Program::Mlir(_) => {
            imported = import(plugin, program)?;
            &imported
        }
    };
    let mut module = HloModule {
        proto: global.proto.clone(),
        config: ModuleConfig {
            replica_count: Some(replicas),
            num_partitions: Some(partitions),
            ..global.config.clone()
        },
        ..HloModule::default()
    };
    if is_partitioned(global) {
        let Signature { parameters, results } = signature::of_partitioned(&global.proto)?;
        return Ok(Partitioned { module, parameters, results });
    }
    if partitions == 1 {
        let Signature { parameters, results } = signature::of_whole(&global.proto);
        return Ok(Partitioned { module, parameters, results });
    }
    let options = CompileOptions {
        num_replicas: replicas,
        num_partitions: partitions,
        use_spmd_partitioning: true,
        use_shardy_partitioner: uses_shardy(program),
        allow_spmd_sharding_propagation_to_parameters: global
            .config
            .allow_spmd_sharding_propagation_to_parameters
            .clone(),
        allow_spmd_sharding_propagation_to_output: global.config.allow_spmd_sharding_propagation_to_output.clone(),
        ..CompileOptions::default()
    };
    let dump = Dump::of_compilation(plugin, &program_bytes(program), options, PARTITIONING)?;
    module.proto = dump.module("after_spmd-partitioning", "module after partitioning")?;
    let Signature { parameters, results } = signature::of_dump(&global.proto, &module.proto)?;
    Ok(Partitioned { module, parameters, results })
}

/// The HLO form of a program.
pub fn import(plugin: &Plugin, program: &Program) -> Result<HloModule, Error> {
    match program {
        Program::Hlo(module) => Ok(module.clone()),
        Program::Mlir(_) => {
            // XLA refuses several partitions without SPMD partitioning, but only after it has dumped what it got.
            let options = CompileOptions {
                num_partitions: 2,
                use_shardy_partitioner: uses_shardy(program),
                ..CompileOptions::default()
            };
            let dump = Dump::of_compilation(plugin, &program_bytes(program), options, PARTITIONING)?;
            let proto = dump.module("before_optimizations", "HLO form of the program")?;
            Ok(HloModule { proto, ..HloModule::default() })
        }
    }
}

/// A program as plugins take it.
pub(crate) fn program_bytes(program: &Program) -> (Vec<u8>, ProgramFormat) {
    match program {
        Program::Hlo(module) => (module.proto.encode_to_vec(), ProgramFormat::Hlo),
        Program::Mlir(code) => (code.clone(), ProgramFormat::Mlir),
    }
}

/// The XLA flags that make a compilation dump its modules into this directory.
fn dump_flags(directory: String, pass: &str) -> Vec<(String, Value)> {
    vec![
        ("xla_dump_to".to_owned(), Value::String(directory)),
        ("xla_dump_hlo_as_proto".to_owned(), Value::Bool(true)),
        ("xla_dump_hlo_pass_re".to_owned(), Value::String(pass.to_owned())),
    ]
}
