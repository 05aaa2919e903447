//! HLO as StableHLO, by XLA's own conversion.
//!
//! No function of the PJRT C API converts HLO to StableHLO, but XLA does so whenever Shardy partitions a module, and
//! dumps what Shardy is given. So the module is compiled for Shardy on a client that is thrown away, and what comes of
//! the compilation does not matter.

use super::{Dump, Error, program_bytes};
use crate::hlo::{HloModule, Program, groups};
use crate::pjrt::{CompileOptions, Plugin, Value};

/// The pass that converts.
const PASS: &str = "shardy-xla";

/// XLA before this flag ignores shardings that are not Shardy's; with it on, it ends the process on them.
const NAMED_SHARDINGS_FLAG: &str = "xla_enable_hlo_sharding_v3";

/// XLA ends the process when it converts one of these.
const WITHOUT_FORM: &str = "ragged-all-to-all";

/// The module as StableHLO text.
///
/// Before it converts, XLA inlines calls and removes arrays without elements. What only the header of HLO text says of
/// sharding propagation is lost.
///
/// # Errors
/// The module is not valid for these numbers of replicas and partitions, or holds what StableHLO has no form for; or
/// the plugin has no Shardy.
pub fn to_stablehlo(plugin: &Plugin, module: &HloModule, replicas: i64, partitions: i64) -> Result<String, Error> {
    let mut instructions = module.proto.computations.iter().flat_map(|computation| &computation.instructions);
    if let Some(instruction) = instructions.find(|instruction| instruction.opcode == WITHOUT_FORM) {
        let message = format!("instruction '{}': XLA makes no StableHLO of {WITHOUT_FORM}", instruction.name);
        return Err(Error::Malformed(message));
    }
    let mut module = HloModule { proto: module.proto.clone(), ..HloModule::default() };
    // XLA's conversion drops the device order of groups that are spelled as axes of a mesh.
    groups::expand_replica_groups(&mut module.proto).map_err(|error| Error::Malformed(error.to_string()))?;
    // Shardy does not run for one partition, nor for several replicas of several partitions.
    let compiled_partitions = if partitions > 1 { partitions } else { replicas.max(2) };
    let program = program_bytes(&Program::Hlo(module));
    let compile = |env_overrides| {
        let options = CompileOptions {
            num_partitions: compiled_partitions,
            use_spmd_partitioning: true,
            use_shardy_partitioner: true,
            env_overrides,
            ..CompileOptions::default()
        };
        Dump::of_compilation(plugin, &program, options, PASS)
    };
    let mut dump = compile(vec![(NAMED_SHARDINGS_FLAG.to_owned(), Value::Bool(false))])?;
    if dump.error().is_some_and(|error| error.to_string().contains(NAMED_SHARDINGS_FLAG)) {
        dump = compile(Vec::new())?;
    }
    let text = dump.shardy_text("input_module.mlir", "StableHLO form of the module")?;
    let compiled_for = format!("mhlo.num_partitions = {compiled_partitions} : i32");
    let counts = format!("mhlo.num_partitions = {partitions} : i32, mhlo.num_replicas = {replicas} : i32");
    Ok(text.replacen(&compiled_for, &counts, 1))
}
