//! Shapes and shardings of a program's global arguments and results.

use super::{Error, GlobalArg};
use crate::hlo::{self, HloModule, Program, shape};
use crate::mesh::HloSharding;
use crate::pjrt::LoadedExecutable;
use crate::proto::op_sharding::Type;
use crate::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, OpSharding, ShapeProto};

/// The global arguments and results of a program, tuples flattened.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// The arguments.
    pub parameters: Vec<GlobalArg>,
    /// The results.
    pub results: Vec<GlobalArg>,
}

/// Of a program for one partition: every device has all of it.
pub(super) fn of_whole(module: &HloModuleProto) -> Signature {
    let whole = |shape: &ShapeProto| GlobalArg { shape: shape.clone(), sharding: OpSharding::default() };
    let program = &module.host_program_shape;
    let parameters = program.parameters.iter().flat_map(|shape| shape::leaves(shape)).map(whole).collect();
    let results = shape::leaves(&program.result).into_iter().map(whole).collect();
    Signature { parameters, results }
}

/// The module that a plugin made of a program, where it shows it.
pub fn compiled_module(executable: &LoadedExecutable) -> Option<HloModule> {
    let (code, format) = executable.optimized_program().inspect_err(|error| tracing::debug!("{error}")).ok()?;
    match hlo::load(&code, &format) {
        Ok(Program::Hlo(module)) => Some(module),
        _ => None,
    }
}

/// Of a program that a plugin partitioned while it compiled it. The shardings are those of the partitioner, which the
/// compiled module tells; of plugins that do not show that, those of the global program count.
///
/// Of StableHLO, for which `global` is `None`, the shapes are what the shards add up to: exact where these are even, as JAX
/// has them.
///
/// # Errors
/// The plugin does not show what it made of StableHLO, or what it shows does not fit.
pub fn signature_of_compiled(
    compiled: Option<&HloModule>,
    global: Option<&HloModule>,
    partitions: i64,
) -> Result<Signature, Error> {
    if partitions == 1 {
        return global.or(compiled).map(|module| of_whole(&module.proto)).ok_or(Error::NoShardings);
    }
    let compiled = compiled.filter(|module| module.proto.spmd_output_sharding.is_set());
    match (global, compiled) {
        (Some(global), Some(compiled)) => of_dump(&global.proto, &compiled.proto),
        (None, Some(compiled)) => of_partitioned(&compiled.proto),
        (Some(global), None) => of_declared(&global.proto),
        (None, None) => Err(Error::NoShardings),
    }
}

/// As the global program declares it; XLA replicates what has no sharding.
fn of_declared(global: &HloModuleProto) -> Result<Signature, Error> {
    let entry = entry(global).map(|entry| &entry.instructions[..]).unwrap_or_default();
    let program = &global.host_program_shape;
    let mut parameters = Vec::new();
    for (number, shape) in (0..).zip(&program.parameters) {
        let parameter = entry.iter().find(|it| it.opcode == "parameter" && it.parameter_number == number);
        let sharding = parameter.and_then(|it| it.sharding.as_option()).cloned().unwrap_or_default();
        parameters.extend(leaves(shape, &sharding)?);
    }
    let root = root(global).and_then(|root| root.sharding.as_option()).cloned().unwrap_or_default();
    Ok(Signature { parameters, results: leaves(&program.result, &root)? })
}

/// Of a program that XLA just partitioned: the shapes are the global program's, the shardings the partitioner's.
pub(super) fn of_dump(global: &HloModuleProto, partitioned: &HloModuleProto) -> Result<Signature, Error> {
    let program = &global.host_program_shape;
    let shardings = parameter_shardings(partitioned, program.parameters.len())?;
    let mut parameters = Vec::new();
    for (shape, sharding) in program.parameters.iter().zip(&shardings) {
        parameters.extend(leaves(shape, sharding)?);
    }
    let output = partitioned.spmd_output_sharding.as_option().cloned().unwrap_or_default();
    Ok(Signature { parameters, results: leaves(&program.result, &output)? })
}

/// Of a program that was partitioned before: the global shapes are what the shards add up to.
///
/// Text keeps the shardings of parameters only; results without one are what each device returns.
pub(super) fn of_partitioned(module: &HloModuleProto) -> Result<Signature, Error> {
    let program = &module.host_program_shape;
    let shardings = parameter_shardings(module, program.parameters.len())?;
    let mut parameters = Vec::new();
    for (shape, sharding) in program.parameters.iter().zip(&shardings) {
        parameters.extend(leaves(shape, sharding)?);
    }
    let output = module.spmd_output_sharding.as_option().or_else(|| root(module)?.sharding.as_option());
    let mut results = leaves(&program.result, &output.cloned().unwrap_or_else(per_device))?;
    for shard in parameters.iter_mut().chain(&mut results) {
        grow(shard)?;
    }
    Ok(Signature { parameters, results })
}

/// The sharding of each parameter; parameters that none is known of are whole on each device.
fn parameter_shardings(module: &HloModuleProto, count: usize) -> Result<Vec<OpSharding>, Error> {
    if !module.spmd_parameters_shardings.is_empty() {
        if module.spmd_parameters_shardings.len() != count {
            let found = module.spmd_parameters_shardings.len();
            return Err(Error::Malformed(format!("the program has {count} parameters and {found} shardings of them")));
        }
        return Ok(module.spmd_parameters_shardings.clone());
    }
    let mut shardings = vec![per_device(); count];
    for instruction in entry(module).into_iter().flat_map(|entry| &entry.instructions) {
        let place = usize::try_from(instruction.parameter_number).ok().and_then(|number| shardings.get_mut(number));
        if let (Some(place), "parameter", Some(sharding)) =
            (place, instruction.opcode.as_str(), instruction.sharding.as_option())
        {
            *place = sharding.clone();
        }
    }
    Ok(shardings)
}

fn entry(module: &HloModuleProto) -> Option<&HloComputationProto> {
    module.computations.iter().find(|computation| computation.id == module.entry_computation_id)
}

fn root(module: &HloModuleProto) -> Option<&HloInstructionProto> {
    entry(module).and_then(|entry| entry.instructions.iter().find(|it| it.id == entry.root_id))
}

fn per_device() -> OpSharding {
    OpSharding { r#type: Type::MANUAL.into(), ..OpSharding::default() }
}

/// The arrays of a shape with their shardings; one sharding may stand for all.
fn leaves(shape: &ShapeProto, sharding: &OpSharding) -> Result<Vec<GlobalArg>, Error> {
    let shapes = shape::leaves(shape);
    let shardings = match sharding.r#type.as_known() {
        Some(Type::TUPLE) => sharding.tuple_shardings.clone(),
        _ => vec![sharding.clone(); shapes.len()],
    };
    if shardings.len() != shapes.len() {
        let (arrays, found) = (shapes.len(), shardings.len());
        return Err(Error::Malformed(format!("a tuple of {arrays} arrays has {found} shardings")));
    }
    Ok(shapes
        .into_iter()
        .zip(shardings)
        .map(|(shape, sharding)| GlobalArg { shape: shape.clone(), sharding })
        .collect())
}

/// From the shape of a shard to that of the array.
fn grow(arg: &mut GlobalArg) -> Result<(), Error> {
    if let HloSharding::Tiled(tiling) = HloSharding::from_proto(&arg.sharding)? {
        for (extent, &tiles) in arg.shape.dimensions.iter_mut().zip(tiling.tiles()) {
            *extent = extent.saturating_mul(tiles as i64);
        }
    }
    Ok(())
}
