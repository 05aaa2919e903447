//! The instructions so far, in their computations.

mod captured;
mod order;
mod saved;

use std::collections::{HashMap, HashSet};
use std::panic::Location;

use super::BuildError;
use super::region::Region;
use crate::hlo::{infer_shape, shape, verify_instruction};
use crate::mesh::PartitionSpec;
use crate::proto::{
    HloComputationProto, HloInstructionCommon, HloInstructionProto, OpMetadata, OpSharding, ProgramShapeProto,
    ShapeProto, SharedShape,
};

/// Where an instruction is: the program itself is computation 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpId {
    pub computation: u32,
    pub index: u32,
}

/// What the instructions of a computation may use beside each other.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// The program.
    Entry,
    /// Values of the program around it, which come in as further elements of the tuple that is its one parameter, after
    /// the first `fixed`: a loop's body, a branch.
    Body { fixed: usize },
    /// Nothing but constants: a reduction, a comparison, the program of one device.
    Function,
}

#[derive(Debug)]
pub(super) struct Computation {
    pub proto: HloComputationProto,
    scope: Scope,
    is_open: bool,
    /// Values from around it, in the order of the parameter's elements, and their stand-ins.
    pub captures: Vec<(OpId, OpId)>,
    /// Values of other computations that are computed again here.
    copies: HashMap<OpId, OpId>,
    /// The manual region that it is.
    pub region: Option<Region>,
    /// The loop, branch or call that runs it.
    caller: Option<OpId>,
    /// What it computes derivatives of.
    reverse: Option<saved::Reverse>,
    /// Values of it that the instruction which runs it returns for the derivatives, and where those are then.
    saved: HashMap<OpId, OpId>,
}

/// How often a loop runs, and where its counter, the first element of its state, begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    pub start: i32,
    pub count: i32,
}

/// A program that is being built.
#[derive(Debug)]
pub(super) struct Graph {
    pub name: String,
    pub error: Option<BuildError>,
    /// The program's devices in ascending order, once a mesh says so.
    pub devices: Option<Vec<u32>>,
    /// Numbers of parameters.
    pub donated: Vec<i64>,
    computations: Vec<Computation>,
    /// Those that are being built, each inside the one before it.
    open: Vec<u32>,
    /// Computations of the usual reductions, by opcode and element type.
    pub reducers: HashMap<(String, i32), u32>,
    /// Loops of which it is known how often they run.
    pub loops: HashMap<OpId, Turns>,
    /// The borders of manual regions, where arrays become parts of them and back: how they are cut.
    pub borders: HashMap<OpId, (Region, PartitionSpec)>,
    next_name: u64,
}

impl Graph {
    pub fn new(name: &str) -> Graph {
        let mut graph = Graph {
            name: identifier(name),
            error: None,
            devices: None,
            donated: Vec::new(),
            computations: Vec::new(),
            open: Vec::new(),
            reducers: HashMap::new(),
            loops: HashMap::new(),
            borders: HashMap::new(),
            next_name: 0,
        };
        graph.open("main", Scope::Entry, None);
        graph
    }

    /// Keeps the first error.
    pub fn fail(&mut self, location: &'static Location<'static>, message: String) {
        self.error.get_or_insert(BuildError::new(location, message));
    }

    /// How many devices the program has, once a mesh says so.
    pub fn partitions(&self) -> Option<i64> {
        self.devices.as_ref().map(|devices| devices.len() as i64)
    }

    pub fn instruction(&self, id: OpId) -> &HloInstructionProto {
        &self.computations[id.computation as usize].proto.instructions[id.index as usize]
    }

    pub fn computation(&self, index: u32) -> &Computation {
        &self.computations[index as usize]
    }

    /// The computation that instructions are added to.
    pub fn current(&self) -> u32 {
        self.open.last().copied().unwrap_or(0)
    }

    /// The place of an instruction's operand.
    pub fn operand(&self, id: OpId, operand: usize) -> Option<OpId> {
        let operand = *self.instruction(id).operand_ids.get(operand)?;
        Some(OpId { index: order::index_of(operand) as u32, ..id })
    }

    /// What a value was computed from in its computation, each after what it was computed from itself; the value is the last.
    pub fn ancestors(&self, last: OpId) -> Vec<OpId> {
        let instructions = &self.computations[last.computation as usize].proto.instructions;
        let order = order::ordered(instructions, &[last.index as usize], |_| false);
        order.into_iter().map(|index| OpId { index: index as u32, ..last }).collect()
    }

    /// The result of a computation that is over.
    pub fn root(&self, computation: u32) -> OpId {
        let root = self.computations[computation as usize].proto.root_id;
        OpId { computation, index: order::index_of(root) as u32 }
    }

    /// The computations that an instruction calls.
    pub fn called(&self, id: OpId) -> Vec<u32> {
        self.instruction(id).called_computation_ids.iter().map(|&called| (called - 1) as u32).collect()
    }

    /// The parameters of a computation.
    pub fn parameters(&self, computation: u32) -> Vec<OpId> {
        let instructions = (0..).zip(&self.computations[computation as usize].proto.instructions);
        let parameters = instructions.filter(|(_, instruction)| instruction.opcode == "parameter");
        parameters.map(|(index, _)| OpId { computation, index }).collect()
    }

    /// The manual region that is being built.
    pub fn region(&self) -> Option<&Region> {
        self.open.iter().rev().find_map(|&index| self.computations[index as usize].region.as_ref())
    }

    /// The region, with automatic axes, of which values of the current computation must say that they are its own: all but
    /// those of functions of scalars.
    pub fn marking_region(&self) -> Option<&Region> {
        let current = &self.computations[self.current() as usize];
        let is_of_scalars = matches!(current.scope, Scope::Function) && current.region.is_none();
        self.region().filter(|region| !region.is_full() && !region.is_trivial() && !is_of_scalars)
    }

    /// Starts a computation inside the current one.
    pub fn open(&mut self, name: &str, scope: Scope, region: Option<Region>) -> u32 {
        let index = self.computations.len() as u32;
        let proto = HloComputationProto {
            name: self.unique_name(name),
            id: i64::from(index) + 1,
            ..HloComputationProto::default()
        };
        self.computations.push(Computation {
            proto,
            scope,
            is_open: true,
            captures: Vec::new(),
            copies: HashMap::new(),
            region,
            caller: None,
            reverse: None,
            saved: HashMap::new(),
        });
        self.open.push(index);
        index
    }

    /// Ends the current computation, and all that an error left open inside it, with its result.
    pub fn close(&mut self, computation: u32, root: Option<OpId>) {
        while let Some(index) = self.open.pop() {
            self.computations[index as usize].is_open = false;
            if index == computation {
                break;
            }
        }
        if let Some(root) = root {
            let result = (*self.instruction(root).shape).clone();
            let root_id = self.instruction(root).id;
            let proto = &mut self.computations[computation as usize].proto;
            proto.root_id = root_id;
            proto.program_shape = Some(program_shape(&proto.instructions, result)).into();
        }
    }

    fn unique_name(&mut self, name: &str) -> String {
        self.next_name += 1;
        format!("{}.{}", identifier(name), self.next_name)
    }

    pub fn add_parameter(
        &mut self,
        name: &str,
        shape: SharedShape,
        sharding: Option<OpSharding>,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let computation = self.current();
        if computation != 0 {
            return Err(format!("'{name}' must be made outside of loops, branches and other functions"));
        }
        let mut instruction = parameter(shape);
        instruction.sharding = sharding.into();
        let numbered = self.numbered(computation, instruction);
        self.insert(computation, name, numbered, &[], &[], location)
    }

    /// The next parameter of the current computation.
    pub fn argument(
        &mut self,
        shape: impl Into<SharedShape>,
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let computation = self.current();
        let numbered = self.numbered(computation, parameter(shape.into()));
        self.insert(computation, "argument", numbered, &[], &[], location)
    }

    fn numbered(&self, computation: u32, mut instruction: HloInstructionProto) -> HloInstructionProto {
        let others = &self.computations[computation as usize].proto.instructions;
        instruction.parameter_number = others.iter().filter(|other| other.opcode == "parameter").count() as i64;
        instruction
    }

    /// Adds an instruction to the current computation.
    pub fn push(
        &mut self,
        instruction: HloInstructionProto,
        operands: &[OpId],
        called: &[u32],
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let operands =
            operands.iter().map(|&operand| self.import_here(operand, location)).collect::<Result<Vec<_>, _>>()?;
        let name = instruction.opcode.clone();
        let pushed = self.insert(self.current(), &name, instruction, &operands, called, location)?;
        for &called in called {
            self.computations[called as usize].caller = Some(pushed);
        }
        Ok(pushed)
    }

    fn insert(
        &mut self,
        computation: u32,
        name: &str,
        mut instruction: HloInstructionProto,
        operands: &[OpId],
        called: &[u32],
        location: &'static Location<'static>,
    ) -> Result<OpId, String> {
        let name = self.unique_name(name);
        let owner = &self.computations[computation as usize].proto;
        let index = owner.instructions.len() as u32;
        let operand_protos: Vec<&HloInstructionProto> =
            operands.iter().map(|operand| &owner.instructions[operand.index as usize]).collect();
        let called_protos: Vec<&HloComputationProto> =
            called.iter().map(|&called| &self.computations[called as usize].proto).collect();
        instruction.name = name.into();
        instruction.id = owner.id << 32 | i64::from(index);
        instruction.operand_ids = operand_protos.iter().map(|operand| operand.id).collect();
        instruction.called_computation_ids = called_protos.iter().map(|called| called.id).collect();
        instruction.metadata = Some(metadata(location)).into();
        if instruction.shape.is_unset() {
            let shapes: Vec<&ShapeProto> = operand_protos.iter().map(|operand| &**operand.shape).collect();
            let result = called_protos.first().map(|called| &**called.program_shape.result);
            let mut inferred = infer_shape(&instruction, &shapes, result)?;
            shape::set_row_major(&mut inferred);
            instruction.shape = inferred.into();
        }
        verify_instruction(&instruction, operand_protos, &called_protos, self.partitions().unwrap_or(1))?;
        self.computations[computation as usize].proto.instructions.push(instruction);
        Ok(OpId { computation, index })
    }

    /// A copy of a function that is over, with two more parameters that it does not use.
    pub fn with_two_more(
        &mut self,
        function: u32,
        shape: &ShapeProto,
        location: &'static Location<'static>,
    ) -> Result<u32, String> {
        let (copied, root) = (self.computations[function as usize].proto.instructions.clone(), self.root(function));
        let copy = self.open("less", Scope::Function, None);
        for instruction in copied {
            let (name, operands) = (instruction.opcode.clone(), instruction.operand_ids.clone());
            let operands: Vec<OpId> = operands
                .into_iter()
                .map(|operand| OpId { computation: copy, index: order::index_of(operand) as u32 })
                .collect();
            self.insert(copy, &name, instruction, &operands, &[], location)?;
        }
        for _ in 0..2 {
            self.argument(shape.clone(), location)?;
        }
        self.close(copy, Some(OpId { computation: copy, ..root }));
        Ok(copy)
    }

    pub fn check_results(&self, results: &[OpId]) -> Result<(), String> {
        if self.open.len() > 1 {
            return Err("a loop, a branch or another function is not finished".to_owned());
        }
        for &result in results {
            let instruction = self.instruction(result);
            if result.computation != 0 {
                return Err(format!("'{}' is no value of the program itself", instruction.name));
            }
            if shape::dtype(&instruction.shape).is_none() {
                return Err(format!("'{}' is a tuple: give its elements", instruction.name));
            }
        }
        Ok(())
    }

    /// The sharding that a result was given.
    pub fn result_sharding(&self, result: OpId) -> Option<OpSharding> {
        self.instruction(result).sharding.as_option().cloned()
    }

    /// All computations that are needed, callees first, the program last and with these results; and which parameter
    /// gives its memory to which result.
    pub fn with_results(&self, results: &[OpId]) -> (Vec<HloComputationProto>, Vec<(i64, i64)>) {
        let mut entry = self.computations[0].proto.clone();
        let shapes: Vec<ShapeProto> = results.iter().map(|&id| (**self.instruction(id).shape).clone()).collect();
        let root = HloInstructionProto::from(HloInstructionCommon {
            name: format!("results.{}", self.next_name + 1).into(),
            opcode: "tuple".into(),
            shape: shape::tuple(shapes).into(),
            id: entry.id << 32 | entry.instructions.len() as i64,
            operand_ids: results.iter().map(|&id| self.instruction(id).id).collect(),
            ..Default::default()
        });
        entry.root_id = root.id;
        entry.instructions.push(root);
        order::put_in_order(&mut entry);
        let donations = self.donations(&entry, results);
        let mut computations = Vec::new();
        let mut listed = HashSet::new();
        self.list_called(&entry, &mut listed, &mut computations);
        computations.push(entry);
        (computations, donations)
    }

    fn list_called(
        &self,
        caller: &HloComputationProto,
        listed: &mut HashSet<i64>,
        computations: &mut Vec<HloComputationProto>,
    ) {
        for id in caller.instructions.iter().flat_map(|instruction| &instruction.called_computation_ids) {
            if listed.insert(*id) {
                let mut called = self.computations[(*id - 1) as usize].proto.clone();
                order::put_in_order(&mut called);
                self.list_called(&called, listed, computations);
                computations.push(called);
            }
        }
    }

    /// Each donated parameter with the first result of its shape and sharding that no other took.
    fn donations(&self, entry: &HloComputationProto, results: &[OpId]) -> Vec<(i64, i64)> {
        let mut taken = HashSet::new();
        let mut pairs = Vec::new();
        for parameter in entry.instructions.iter().filter(|instruction| instruction.opcode == "parameter") {
            if !self.donated.contains(&parameter.parameter_number) {
                continue;
            }
            let fits = |result: &OpId| {
                let result = self.instruction(*result);
                shape::compatible(&parameter.shape, &result.shape)
                    && (self.devices.is_none() || parameter.sharding == result.sharding)
            };
            let free = results.iter().enumerate().find(|(index, result)| !taken.contains(index) && fits(result));
            if let Some((index, _)) = free {
                taken.insert(index);
                pairs.push((parameter.parameter_number, index as i64));
            }
        }
        pairs
    }
}

fn parameter(shape: SharedShape) -> HloInstructionProto {
    HloInstructionCommon { opcode: "parameter".into(), shape: Some(shape).into(), ..Default::default() }.into()
}

fn program_shape(instructions: &[HloInstructionProto], result: SharedShape) -> ProgramShapeProto {
    let parameters = instructions.iter().filter(|instruction| instruction.opcode == "parameter");
    let parameters: Vec<&HloInstructionProto> = parameters.collect();
    ProgramShapeProto {
        parameters: parameters.iter().map(|parameter| (*parameter.shape).clone()).collect(),
        parameter_names: parameters.iter().map(|parameter| parameter.name.to_string()).collect(),
        result: Some(result).into(),
        ..ProgramShapeProto::default()
    }
}

fn metadata(location: &Location<'_>) -> OpMetadata {
    OpMetadata {
        source_file: location.file().to_owned(),
        source_line: location.line() as i32,
        source_column: location.column() as i32,
        ..OpMetadata::default()
    }
}

/// The name with what HLO text cannot hold left out.
fn identifier(name: &str) -> String {
    let kept = name.chars().map(|c| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' });
    let kept: String = kept.collect();
    if kept.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') { kept } else { format!("_{kept}") }
}
