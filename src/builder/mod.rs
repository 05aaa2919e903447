//! Programs built in Rust: operations on typed handles become an HLO module.
//!
//! ```
//! use spmd_run::builder::Builder;
//! use spmd_run::dtype::DType::F32;
//!
//! let b = Builder::new("linear");
//! let x = b.parameter("x", F32, &[8, 4]);
//! let w = b.parameter("w", F32, &[4, 2]);
//! let bias = b.parameter("bias", F32, &[2]);
//! let y = (x.matmul(w) + bias).tanh();
//! let loss = (y * y).mean(&[]);
//! let gradients = b.grad(loss, &[w, bias]);
//! let module = b.build(&[loss, gradients[0], gradients[1]])?;
//! assert!(spmd_run::hlo::print(&module).contains("f32[8,2] tanh("));
//! # Ok::<(), spmd_run::builder::BuildError>(())
//! ```
//!
//! # Errors
//!
//! Operations return handles and never a `Result`: a numerical program is formulas, and `((x? * w?)? + bias?)?` would hide
//! them, where operators such as `+` could not ask for a `?` in the first place. So a call that is wrong is remembered by
//! the builder with its place in the caller's source (`#[track_caller]`), what it returns is a handle on which all further
//! operations do nothing, and [`Builder::build`] returns the first error: it names the line that is wrong, as an error
//! at the call would.
//!
//! ```
//! use spmd_run::builder::Builder;
//! use spmd_run::dtype::DType::F32;
//!
//! let b = Builder::new("wrong");
//! let x = b.parameter("x", F32, &[2, 3]);
//! let y = (x + x.transpose(&[1, 0])).tanh();
//! let error = b.build(&[y]).unwrap_err().to_string();
//! assert!(error.ends_with("add: the shapes f32[2,3] and f32[3,2] cannot be broadcast to one"), "{error}");
//! ```
//!
//! # Shapes
//!
//! Every operation knows the shape of its result at once: it follows by the rules that parse and check HLO text
//! ([`hlo::verify`](crate::hlo::verify())), so that a program which was built is one that verifies. Dimensions and axes are
//! `i64` as in XLA, and axes count from the end when they are negative, as in NumPy. Operands of elementwise operations are
//! broadcast as in NumPy; numbers take the type of the operand beside them (JAX's weak types). Element types are never
//! changed in silence, see [`Op::convert`].
//!
//! # Devices
//!
//! A program is written for whole arrays, and XLA's partitioner divides the work: give parameters a sharding
//! ([`Builder::sharded_parameter`]), and intermediate values where it matters ([`Op::with_sharding`]). Where each device's
//! part of the work is to be written by hand, with collectives, see [`Builder::shard_map`].

mod collectives;
mod constant;
mod contraction;
mod control;
mod einsum;
mod elementwise;
mod error;
mod functions;
mod gather;
mod grad;
mod graph;
mod movement;
mod op;
mod operators;
mod permutes;
pub mod random;
mod reduction;
mod region;
mod sharding;
mod sort;
#[cfg(test)]
mod tests;

use std::cell::{RefCell, RefMut};
use std::panic::Location;

use crate::dtype::DType;
use crate::hlo::{self, HloModule, ModuleConfig, shape};
use crate::mesh::{HloSharding, Mesh, NamedSharding};
use crate::proto::device_assignment_proto::ComputationDevice;
use crate::proto::op_sharding::Type;
use crate::proto::{
    DeviceAssignmentProto, HloInstructionProto, HloModuleProto, Kind, OpSharding, ProgramShapeProto, ShapeProto,
};

pub use contraction::{Conv, DotDims};
pub use error::BuildError;
pub use gather::{GatherDims, ScatterDims};
pub use op::{Op, Operand};

use graph::{Graph, OpId};

/// Builds one program. See the [module](self) for how.
pub struct Builder {
    graph: RefCell<Graph>,
}

impl Builder {
    /// A program without parameters yet. The name shows in messages and dumps.
    pub fn new(name: &str) -> Builder {
        Builder { graph: RefCell::new(Graph::new(name)) }
    }

    fn graph(&self) -> RefMut<'_, Graph> {
        self.graph.borrow_mut()
    }

    /// The next parameter, an array of this shape, which every device holds as a whole.
    ///
    /// Parameters belong to the whole program: inside a loop's body or the like, it is an error to make one.
    #[track_caller]
    pub fn parameter(&self, name: &str, dtype: DType, dims: &[i64]) -> Op<'_> {
        self.add_parameter(name, shape::array(dtype, dims), None)
    }

    /// The next parameter, an array of this global shape that lies on the devices as `sharding` says.
    ///
    /// It is an error if the axes do not divide the dimensions, or the program has shardings over other numbers of devices.
    #[track_caller]
    pub fn sharded_parameter(&self, name: &str, dtype: DType, dims: &[i64], sharding: &NamedSharding) -> Op<'_> {
        match self.checked_sharding(sharding, dims) {
            Ok(proto) => self.add_parameter(name, shape::array(dtype, dims), Some(proto)),
            Err(message) => self.fail("parameter", message),
        }
    }

    /// The next parameter, which lies on the devices as XLA says of another program's result.
    #[track_caller]
    pub(crate) fn placed_parameter(&self, dtype: DType, dims: &[i64], sharding: &HloSharding) -> Op<'_> {
        self.add_parameter("array", shape::array(dtype, dims), Some(sharding.to_proto()))
    }

    #[track_caller]
    fn add_parameter(&self, name: &str, shape: ShapeProto, sharding: Option<OpSharding>) -> Op<'_> {
        let location = Location::caller();
        let added = self.graph().add_parameter(name, shape.into(), sharding, location);
        self.handle("parameter", added, location)
    }

    /// Lets a result take the memory of this parameter, which the caller then gives up: an array passed for it cannot be
    /// used again. As `donate_argnums` of `jax.jit`, it takes effect where a result has the parameter's shape.
    #[track_caller]
    pub fn donate(&self, parameter: Op<'_>) {
        let Some(id) = self.own("donate", parameter, Location::caller()) else { return };
        let mut graph = self.graph();
        let instruction = graph.instruction(id);
        if instruction.opcode == "parameter" && id.computation == 0 {
            let number = instruction.parameter_number;
            graph.donated.push(number);
        } else {
            graph.fail(Location::caller(), "donate: only a parameter can be donated".to_owned());
        }
    }

    /// The module that computes these results, as one tuple.
    ///
    /// A result with a sharding of its own ([`Op::with_sharding`]) lies on the devices so, for others XLA chooses. The
    /// builder can go on: what is added later is not part of the module.
    ///
    /// # Errors
    /// The first call that was wrong, and where it stands.
    #[track_caller]
    pub fn build(&self, results: &[Op<'_>]) -> Result<HloModule, BuildError> {
        let location = Location::caller();
        let own: Option<Vec<OpId>> = results.iter().map(|result| self.own("build", *result, location)).collect();
        let graph = self.graph();
        if let Some(error) = &graph.error {
            return Err(error.clone());
        }
        let wrong = |message| BuildError::new(location, format!("build: {message}"));
        let own = own.ok_or_else(|| wrong("a result could not be built".to_owned()))?;
        graph.check_results(&own).map_err(wrong)?;
        assemble(&graph, &own).map_err(wrong)
    }

    /// The first call that was wrong so far.
    pub fn error(&self) -> Option<BuildError> {
        self.graph().error.clone()
    }

    /// Adds an instruction; its shape follows from the operands where it is not given.
    #[track_caller]
    fn push<'b>(&'b self, instruction: HloInstructionProto, operands: &[Op<'b>]) -> Op<'b> {
        self.push_calling(instruction, operands, &[])
    }

    /// As [`Builder::push`], for an instruction that calls computations.
    #[track_caller]
    fn push_calling<'b>(&'b self, instruction: HloInstructionProto, operands: &[Op<'b>], called: &[u32]) -> Op<'b> {
        let location = Location::caller();
        let own = |operand: &Op| self.own(&instruction.opcode, *operand, location);
        let own: Option<Vec<OpId>> = operands.iter().map(own).collect();
        let Some(own) = own else { return self.failed() };
        let opcode = instruction.opcode.clone();
        let says_itself = region::is_mark(&instruction) || matches!(opcode.as_str(), "constant" | "call");
        let mut pushed = self.graph().push(instruction, &own, called, location);
        if let (Ok(id), false) = (&pushed, says_itself) {
            pushed = self.marked(*id, location);
        }
        self.handle(&opcode, pushed, location)
    }

    /// An array of a region with automatic axes, once it says that it is; other values as they are.
    fn marked(&self, id: OpId, location: &'static Location<'static>) -> Result<OpId, String> {
        let mut graph = self.graph();
        let shape = (*graph.instruction(id).shape).clone();
        let Some(region) = graph.marking_region().filter(|_| shape::dtype(&shape).is_some()) else { return Ok(id) };
        let mark = region.mark(shape)?;
        graph.push(mark, &[id], &[], location)
    }

    /// The place of an operand in the graph; `None` if it has failed or belongs to another builder.
    fn own(&self, what: &str, op: Op<'_>, location: &'static Location<'static>) -> Option<OpId> {
        if !std::ptr::eq(op.builder, self) {
            self.graph().fail(location, format!("{what}: an operand belongs to another builder"));
            return None;
        }
        op.id
    }

    fn handle<'b>(&'b self, what: &str, id: Result<OpId, String>, location: &'static Location<'static>) -> Op<'b> {
        match id {
            Ok(id) => Op { builder: self, id: Some(id) },
            Err(message) => {
                self.graph().fail(location, format!("{what}: {message}"));
                self.failed()
            }
        }
    }

    /// Remembers an error.
    #[track_caller]
    fn fail(&self, what: &str, message: impl ToString) -> Op<'_> {
        self.graph().fail(Location::caller(), format!("{what}: {}", message.to_string()));
        self.failed()
    }

    /// The handle of what could not be built.
    fn failed(&self) -> Op<'_> {
        Op { builder: self, id: None }
    }

    /// A sharding in XLA's terms, once it fits the array and all others of the program.
    fn checked_sharding(&self, sharding: &NamedSharding, dims: &[i64]) -> Result<OpSharding, String> {
        sharding.check(dims).map_err(|error| error.to_string())?;
        self.use_mesh(sharding.mesh())?;
        Ok(sharding.to_hlo(dims.len()).map_err(|error| error.to_string())?.to_proto())
    }

    /// Makes the program one for the mesh's devices.
    fn use_mesh(&self, mesh: &Mesh) -> Result<(), String> {
        let mut graph = self.graph();
        let own = mesh.sorted_devices();
        match &graph.devices {
            Some(devices) if devices.len() != own.len() => {
                let (count, devices) = (own.len(), devices.len());
                Err(format!("{mesh} has {count} devices, and the program uses a mesh of {devices} already"))
            }
            Some(devices) if devices != own => {
                Err(format!("{mesh} has the devices {own:?}, and the program uses {devices:?} already"))
            }
            _ => {
                graph.devices = Some(own.to_vec());
                Ok(())
            }
        }
    }
}

/// One partition on each of these devices.
fn device_assignment(devices: &[u32]) -> DeviceAssignmentProto {
    let on = |&device: &u32| ComputationDevice { replica_device_ids: vec![device.into()], ..Default::default() };
    DeviceAssignmentProto {
        replica_count: 1,
        computation_count: devices.len() as i32,
        computation_devices: devices.iter().map(on).collect(),
        ..Default::default()
    }
}

/// The module of everything that was built, with these results.
fn assemble(graph: &Graph, results: &[OpId]) -> Result<HloModule, String> {
    let (computations, donations) = graph.with_results(results);
    let entry = computations.last().ok_or("there is no computation")?;
    let program_shape: ProgramShapeProto = (*entry.program_shape).clone();
    let partitions = graph.partitions();
    let shardings: Vec<Option<OpSharding>> = results.iter().map(|&result| graph.result_sharding(result)).collect();
    let mut proto = HloModuleProto {
        name: graph.name.clone(),
        entry_computation_name: entry.name.clone(),
        entry_computation_id: entry.id,
        host_program_shape: Some(program_shape).into(),
        device_assignment: graph.devices.as_deref().map(device_assignment).into(),
        ..HloModuleProto::default()
    };
    for (parameter, result) in donations {
        let kind = Kind::MAY_ALIAS.into();
        let entry = crate::proto::hlo_input_output_alias_proto::AliasEntryProto {
            output_shape_index: vec![result],
            parameter_number: parameter,
            kind,
            ..Default::default()
        };
        proto.input_output_alias.get_or_insert_default().entries.push(entry);
    }
    proto.computations = computations;
    let mut config = ModuleConfig { num_partitions: partitions, ..ModuleConfig::default() };
    if partitions.is_some() {
        config.allow_spmd_sharding_propagation_to_output = shardings.iter().map(Option::is_none).collect();
        let whole = OpSharding { r#type: Type::REPLICATED.into(), ..OpSharding::default() };
        let root = proto.computations.last_mut().and_then(|entry| entry.instructions.last_mut());
        if let Some(root) = root.filter(|_| !results.is_empty()) {
            let tuple = OpSharding {
                r#type: Type::TUPLE.into(),
                tuple_shardings: shardings.into_iter().map(|it| it.unwrap_or_else(|| whole.clone())).collect(),
                ..OpSharding::default()
            };
            root.sharding = Some(tuple).into();
        }
    }
    let module = HloModule { proto, config, ..HloModule::default() };
    hlo::verify(&module, 1, partitions.unwrap_or(1)).map_err(|error| error.to_string())?;
    Ok(module)
}
