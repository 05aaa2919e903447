//! One total order for everything that waits for other processes.
//!
//! XLA's CPU runtime starts whatever has its data: neither side effects nor control dependencies keep two collectives
//! of a device in order. So the order is made of data: every bridged collective takes a token, a `u32[]` that nobody
//! looks at, and returns one for the next. Loops, conditionals and calls that hold collectives carry the token through.
//!
//! It also starts nothing that is to write where something unfinished reads or writes. The four bytes of a token that is
//! no longer needed could become part of any later array, which then waited for the collective: so all tokens are kept
//! to the end of a program in which a collective takes long.

use std::collections::{HashMap, HashSet};

use super::custom_call::make_marker;
use super::module::{self, Fresh};
use crate::collective::CollectiveSpec;
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::{
    HloComputationProto, HloInstructionCommon, HloInstructionProto, HloModuleProto, InlineList, LiteralProto,
    ShapeProto, SharedShape,
};

/// What a computation that the token passes through is to its caller.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Entry,
    /// Takes the token as a parameter of its own.
    Callee,
    /// Has one parameter, to which the token is added.
    Branch,
    LoopBody,
    /// As a loop body, but returns no token.
    LoopCondition,
}

/// Programs of up to this many steps are carried out one after the other by XLA, which waits for each.
const SEQUENTIAL: usize = 8;

/// Threads a token through the bridged collectives. `members` are the computations that it passes through, each called
/// from one place.
pub(super) fn thread(
    module: &mut HloModuleProto,
    members: &HashSet<i64>,
    bridged: &mut HashMap<i64, CollectiveSpec>,
    fresh: &mut Fresh,
) {
    let mut roles = HashMap::new();
    if !bridged.is_empty() {
        roles.insert(module.entry_computation_id, Role::Entry);
    }
    for instruction in module.computations.iter().flat_map(|computation| &computation.instructions) {
        let callees = instruction.called_computation_ids.iter().filter(|callee| members.contains(callee));
        for (slot, &callee) in callees.enumerate() {
            let role = match (instruction.opcode.as_str(), slot) {
                // XLA lists a loop's body first.
                ("while", 0) => Role::LoopBody,
                ("while", _) => Role::LoopCondition,
                ("conditional", _) => Role::Branch,
                _ => Role::Callee,
            };
            roles.insert(callee, role);
        }
    }
    for computation in &mut module.computations {
        if let Some(&role) = roles.get(&computation.id) {
            Threader::new(computation, members, bridged, fresh).run(role);
        }
    }
}

/// The shape with the token added: one more element of a tuple, or a pair with an array.
fn with_token(shape: &ShapeProto) -> ShapeProto {
    let mut elements = if shape::is_tuple(shape) { shape.tuple_shapes.clone() } else { vec![shape.clone()] };
    elements.push(token_shape());
    shape::tuple(elements)
}

fn token_shape() -> ShapeProto {
    shape::scalar(DType::U32)
}

struct Threader<'a> {
    computation: &'a mut HloComputationProto,
    members: &'a HashSet<i64>,
    bridged: &'a mut HashMap<i64, CollectiveSpec>,
    fresh: &'a mut Fresh,
    shapes: HashMap<i64, SharedShape>,
    /// Tuples that are used as a whole.
    whole: HashSet<i64>,
    /// What stands for a whole tuple that a token was added to.
    without_token: HashMap<i64, i64>,
    token: i64,
    /// All tokens so far.
    tokens: Vec<i64>,
}

impl<'a> Threader<'a> {
    fn new(
        computation: &'a mut HloComputationProto,
        members: &'a HashSet<i64>,
        bridged: &'a mut HashMap<i64, CollectiveSpec>,
        fresh: &'a mut Fresh,
    ) -> Self {
        let shapes = module::shapes(computation);
        let users = computation.instructions.iter().filter(|instruction| instruction.opcode != "get-tuple-element");
        let mut whole: HashSet<i64> = users.flat_map(|user| user.operand_ids.iter().copied()).collect();
        whole.insert(computation.root_id);
        Threader {
            computation,
            members,
            bridged,
            fresh,
            shapes,
            whole,
            without_token: HashMap::new(),
            token: 0,
            tokens: vec![],
        }
    }

    fn run(mut self, role: Role) {
        let mut instructions = std::mem::take(&mut self.computation.instructions);
        match role {
            Role::Entry => {
                let literal = LiteralProto { shape: token_shape().into(), u32s: vec![0], ..Default::default() };
                let first = HloInstructionCommon { literal: literal.into(), ..Default::default() };
                self.token = self.emit("constant", "collectives", token_shape(), first);
            }
            Role::Callee => {
                let parameters = instructions.iter().filter(|instruction| instruction.opcode == "parameter");
                let parameter_number = parameters.count() as i64;
                let parameter = HloInstructionCommon { parameter_number, ..Default::default() };
                self.token = self.emit("parameter", "collectives", token_shape(), parameter);
                let program_shape = self.computation.program_shape.get_or_insert_default();
                program_shape.parameters.push(token_shape().into());
                program_shape.parameter_names.push("collectives".to_owned());
            }
            Role::Branch | Role::LoopBody | Role::LoopCondition => {
                if let Some(at) = instructions.iter().position(|instruction| instruction.opcode == "parameter") {
                    let parameter = instructions.remove(at);
                    self.produce(parameter);
                }
                for parameter in &mut self.computation.program_shape.get_or_insert_default().parameters {
                    *parameter = with_token(parameter).into();
                }
            }
        }
        let given = self.token;
        for instruction in instructions {
            self.rewrite(instruction);
        }

        if let Some(&root) = self.without_token.get(&self.computation.root_id) {
            self.computation.root_id = root;
        }
        if role == Role::LoopBody && self.token == given {
            // Only the condition has collectives. A token that the loop hands through would not wait for the loop.
            let operand_ids = [given, given].into();
            let next = HloInstructionCommon { operand_ids, ..Default::default() };
            self.token = self.emit("add", "collectives", token_shape(), next);
        }
        if role == Role::Entry && self.bridged.values().any(CollectiveSpec::is_long) {
            self.mark_end();
        }
        if matches!(role, Role::Callee | Role::Branch | Role::LoopBody) {
            self.computation.root_id = self.add_token(self.computation.root_id);
            let result = &mut self.computation.program_shape.get_or_insert_default().result;
            *result = with_token(result).into();
        }
    }

    /// Adds what needs all tokens and comes after everything else, and enough steps for XLA to go on past a collective.
    fn mark_end(&mut self) {
        let root = self.computation.instructions.iter().find(|instruction| instruction.id == self.computation.root_id);
        let results = match root {
            Some(root) if root.opcode == "tuple" => root.operand_ids.clone(),
            _ => [self.computation.root_id].into(),
        };
        let mut operands = std::mem::take(&mut self.tokens);
        let is_array = |id: &i64| self.shapes.get(id).is_some_and(|shape| shape::dtype(shape).is_some());
        operands.extend(results.into_iter().filter(is_array));
        for operand_ids in std::iter::repeat_n(InlineList::default(), SEQUENTIAL).chain([operands.into()]) {
            let mut marker = make_marker(operand_ids);
            marker.id = self.fresh.instruction(self.computation.id);
            marker.name = self.fresh.name("end").into();
            self.computation.instructions.push(marker);
        }
    }

    fn rewrite(&mut self, mut instruction: HloInstructionProto) {
        if instruction.opcode != "get-tuple-element" {
            for operand in &mut instruction.operand_ids {
                *operand = *self.without_token.get(operand).unwrap_or(operand);
            }
        }
        if self.bridged.contains_key(&instruction.id) {
            instruction.operand_ids.push(self.token);
            instruction.details_mut().operand_shapes_with_layout.push(token_shape());
            self.produce(instruction);
        } else if instruction.called_computation_ids.iter().any(|callee| self.members.contains(callee)) {
            match instruction.opcode.as_str() {
                "while" => instruction.operand_ids.iter_mut().for_each(|operand| *operand = self.add_token(*operand)),
                "conditional" => {
                    instruction.operand_ids.iter_mut().skip(1).for_each(|operand| *operand = self.add_token(*operand));
                }
                _ => instruction.operand_ids.push(self.token),
            }
            self.produce(instruction);
        } else {
            self.computation.instructions.push(instruction);
        }
    }

    /// Emits an instruction that yields the token on top of what it did before, and gives its users what they knew.
    fn produce(&mut self, mut instruction: HloInstructionProto) {
        let old = instruction.id;
        let shape = instruction.shape.as_option().cloned().unwrap_or_default();
        let elements = if shape::is_tuple(&shape) { shape.tuple_shapes.len() } else { 1 };
        instruction.shape = with_token(&shape).into();
        instruction.details_mut().original_value = None.into();
        instruction.details_mut().is_composite = false;
        let name = instruction.name.clone();
        if shape::is_tuple(&shape) {
            self.computation.instructions.push(instruction);
            if self.whole.contains(&old) {
                let parts = self.elements_of(old, &shape, &name);
                let tuple = HloInstructionCommon { operand_ids: parts, ..Default::default() };
                let id = self.emit("tuple", &name, shape, tuple);
                self.without_token.insert(old, id);
            }
            self.token = self.element(old, elements, &name, token_shape());
            self.tokens.push(self.token);
        } else {
            instruction.id = self.fresh.instruction(self.computation.id);
            let id = instruction.id;
            if let Some(spec) = self.bridged.remove(&old) {
                self.bridged.insert(id, spec);
            }
            self.computation.instructions.push(instruction);
            let only = HloInstructionCommon { operand_ids: [id].into(), ..Default::default() };
            self.emit_as(old, "get-tuple-element", &name, shape, only);
            self.token = self.element(id, elements, &name, token_shape());
            self.tokens.push(self.token);
        }
    }

    /// A tuple of this value, or of this tuple's elements, and the token.
    fn add_token(&mut self, value: i64) -> i64 {
        let shape = self.shapes.get(&value).cloned().unwrap_or_default();
        let mut parts = match shape::is_tuple(&shape) {
            false => [value].into(),
            true => match self.computation.instructions.iter().rfind(|it| it.id == value && it.opcode == "tuple") {
                Some(tuple) => tuple.operand_ids.clone(),
                None => self.elements_of(value, &shape, "collectives"),
            },
        };
        parts.push(self.token);
        let tuple = HloInstructionCommon { operand_ids: parts, ..Default::default() };
        self.emit("tuple", "collectives", with_token(&shape), tuple)
    }

    fn elements_of(&mut self, tuple: i64, shape: &ShapeProto, name: &str) -> InlineList<i64> {
        let shapes = shape.tuple_shapes.iter().cloned().enumerate();
        shapes.map(|(index, shape)| self.element(tuple, index, name, shape)).collect()
    }

    fn element(&mut self, tuple: i64, index: usize, name: &str, shape: ShapeProto) -> i64 {
        let element =
            HloInstructionCommon { operand_ids: [tuple].into(), tuple_index: index as i64, ..Default::default() };
        self.emit("get-tuple-element", name, shape, element)
    }

    fn emit(&mut self, opcode: &str, name: &str, shape: impl Into<SharedShape>, rest: HloInstructionCommon) -> i64 {
        let id = self.fresh.instruction(self.computation.id);
        self.emit_as(id, opcode, name, shape, rest);
        id
    }

    fn emit_as(
        &mut self,
        id: i64,
        opcode: &str,
        name: &str,
        shape: impl Into<SharedShape>,
        rest: HloInstructionCommon,
    ) {
        let shape = shape.into();
        self.shapes.insert(id, shape.clone());
        let (name, opcode) = (self.fresh.name(name).into(), opcode.into());
        let instruction = HloInstructionCommon { id, opcode, name, shape: shape.into(), ..rest };
        self.computation.instructions.push(instruction.into());
    }
}
