//! Instructions: `[ROOT] name = shape opcode(operands), attributes`.

use std::borrow::Cow;

use super::Parser;
use super::computation::Scope;
use super::cursor::fail;
use super::error::{Failure, Result, hint};
use super::opcode::{Attr, AttrSet, Opcode, Rule};
use crate::dtype::DType;
use crate::hlo::shape::{compatible, dtype, is_tuple, leaves, text_without_layout};
use crate::proto::hlo_instruction_proto::ReplicaGroupList;
use crate::proto::precision_config::Precision;
use crate::proto::{
    CollectiveDeviceListProto, CustomCallApiVersion, DotDimensionNumbers, HloInstructionProto, ShapeProto, TriState,
};

/// An instruction whose text is being read.
pub(super) struct Draft {
    /// Where its opcode stands.
    pub(super) start: usize,
    pub(super) proto: HloInstructionProto,
    /// Called computations, with the place in which the protobuf form lists them.
    pub(super) called: Vec<(u8, i64)>,
    /// Which of the three messages holds it depends on the opcode.
    pub(super) dot: DotDimensionNumbers,
}

impl Draft {
    fn new(start: usize, opcode: &Opcode) -> Draft {
        let proto = HloInstructionProto { opcode: opcode.name.to_owned(), ..Default::default() };
        Draft { start, proto, called: Vec::new(), dot: DotDimensionNumbers::default() }
    }
}

/// The suffixes that turn an opcode into its asynchronous pair.
const ASYNC_SUFFIXES: [(&str, &str); 3] =
    [("-start", "async-start"), ("-update", "async-update"), ("-done", "async-done")];

impl<'a> Parser<'a> {
    pub(super) fn instruction(&mut self, scope: &mut Scope<'a>) -> Result<()> {
        let start = self.pos();
        let mut name = self.name("an instruction or '}'")?;
        let is_root = name == "ROOT" && !self.at(b'=');
        let mut name_start = start;
        if is_root {
            name_start = self.pos();
            name = self.name("an instruction after ROOT")?;
        }
        self.expect(b'=', "after the instruction's name")?;
        let index = self.right_hand_side(scope, Cow::Borrowed(name))?;
        scope.define(name, name_start, index)?;
        if is_root && scope.root.replace(index).is_some() {
            return Err(fail(start, "the computation has two ROOT instructions"));
        }
        Ok(())
    }

    /// Everything after `=`. Returns the instruction's index in its computation.
    pub(super) fn right_hand_side(&mut self, scope: &mut Scope<'a>, name: Cow<'a, str>) -> Result<u32> {
        let shape = self.optional_shape()?;
        self.operation(scope, Some(name), shape)
    }

    fn optional_shape(&mut self) -> Result<Option<ShapeProto>> {
        self.at_shape().then(|| self.shape()).transpose()
    }

    /// An instruction from its opcode on. One without a name is written in place of an operand; it has no attributes
    /// because the commas would not tell whose they are.
    fn operation(
        &mut self,
        scope: &mut Scope<'a>,
        name: Option<Cow<'a, str>>,
        shape: Option<ShapeProto>,
    ) -> Result<u32> {
        let start = self.pos();
        let (opcode, wrapped) = self.opcode()?;
        let with_attributes = name.is_some();
        let name = name.unwrap_or_else(|| format!("{}.anon", opcode.name).into());
        let mut draft = Draft::new(start, opcode);
        self.operands_of(scope, opcode, shape.as_ref(), &mut draft)?;
        let count = draft.proto.operand_ids.len();
        if !opcode.operands.accepts(count) {
            return Err(fail(start, format!("{} takes {}, found {count}", opcode.name, opcode.operands.describe())));
        }
        if let Some(wrapped) = wrapped.filter(|_| opcode.rule == Rule::AsyncStart) {
            let shape =
                shape.ok_or_else(|| fail(start, "the shape of an asynchronous operation cannot be left out"))?;
            return self.wrapped_async_start(scope, name, start, shape, wrapped, draft);
        }
        let seen = if with_attributes {
            self.attributes(scope, opcode, AttrSet::EMPTY, &mut draft)?
        } else if let Some(missing) = opcode.required.names().next() {
            let message =
                format!("{} needs the attribute '{missing}' and cannot be written as an operand", opcode.name);
            return Err(fail(start, message));
        } else {
            AttrSet::EMPTY
        };
        if let Some(wrapped) = wrapped {
            self.check_wrapped(scope, start, wrapped, &draft.proto)?;
        }
        self.finish_instruction(scope, name, start, opcode, seen, shape, draft)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one instruction, used once")]
    fn finish_instruction(
        &mut self,
        scope: &mut Scope<'a>,
        name: Cow<'a, str>,
        start: usize,
        opcode: &'static Opcode,
        seen: AttrSet,
        shape: Option<ShapeProto>,
        mut draft: Draft,
    ) -> Result<u32> {
        draft.called.sort_by_key(|&(place, _)| place);
        draft.proto.called_computation_ids = draft.called.iter().map(|&(_, id)| id).collect();
        self.set_defaults(scope, opcode, seen, start, &mut draft)?;
        let mut proto = draft.proto;
        proto.shape = match shape {
            Some(shape) => shape.into(),
            None => {
                let shape = self.infer(scope, opcode, &proto).map_err(|message| fail(start, message))?;
                self.charge(start, node_count(&shape))?;
                shape.into()
            }
        };
        if opcode.rule == Rule::Map {
            proto.dimensions = (0..proto.shape.dimensions.len() as i64).collect();
        }
        if let Some(sharding) = proto.sharding.take() {
            proto.sharding = self.spread_over_tuple(start, sharding, &proto.shape)?.into();
        }
        if let Some(replication) = proto.parameter_replication.as_option() {
            let (given, leaves) = (replication.replicated_at_leaf_buffers.len(), leaves(&proto.shape).len());
            if given != leaves {
                let message = format!("the parameter has {leaves} arrays, its parameter_replication {given} values");
                return Err(fail(start, message));
            }
        }
        if matches!(opcode.rule, Rule::AsyncStart | Rule::AsyncUpdate | Rule::AsyncDone) {
            self.copy_to_wrapped(scope, &proto);
        }
        if opcode.rule == Rule::Parameter {
            scope.add_parameter(start, proto.parameter_number)?;
        }
        if std::mem::take(&mut self.elided.last) {
            self.elided.names.push(name.clone().into_owned());
        }
        Ok(scope.push(name, proto))
    }

    /// The opcode, and for `slice-start` and the like the opcode that is made asynchronous.
    fn opcode(&mut self) -> Result<(&'static Opcode, Option<&'static Opcode>)> {
        let start = self.pos();
        let name = self.word("an opcode")?;
        if let Some(opcode) = Opcode::from_name(name) {
            return Ok((opcode, None));
        }
        for (suffix, async_name) in ASYNC_SUFFIXES {
            let wrapped =
                name.strip_suffix(suffix).and_then(Opcode::from_name).filter(|opcode| opcode.can_be_wrapped());
            if let (Some(wrapped), Some(opcode)) = (wrapped, Opcode::from_name(async_name)) {
                return Ok((opcode, Some(wrapped)));
            }
        }
        let hint = hint(name, Opcode::names());
        if self.at(b'[') || self.at(b'{') {
            return Err(fail(start, format!("unknown element type '{name}'")));
        }
        Err(fail(start, format!("unknown opcode '{name}'{hint}")))
    }

    /// What stands in parentheses after the opcode.
    fn operands_of(
        &mut self,
        scope: &mut Scope<'a>,
        opcode: &Opcode,
        shape: Option<&ShapeProto>,
        draft: &mut Draft,
    ) -> Result<()> {
        let place = "after the opcode";
        match opcode.rule {
            Rule::Parameter => {
                self.expect(b'(', place)?;
                let start = self.pos();
                draft.proto.parameter_number = self.integer()?;
                if draft.proto.parameter_number < 0 {
                    return Err(fail(start, "a parameter's number is not negative"));
                }
                self.expect(b')', "after the parameter's number")
            }
            Rule::Constant => {
                self.expect(b'(', place)?;
                let shape = shape.ok_or_else(|| fail(self.pos(), "the shape of a constant cannot be left out"))?;
                draft.proto.literal = self.literal(shape)?.into();
                self.expect(b')', "after the constant")
            }
            _ => {
                let operands = self.nested(|parser| {
                    parser.list(b'(', b')', "operands", |parser| parser.operand(scope).map(i64::from))
                })?;
                draft.proto.operand_ids = operands;
                Ok(())
            }
        }
    }

    /// `%x`, `f32[2] %x`, `%tuple#0` or an instruction in place, such as `add(x, y)`.
    fn operand(&mut self, scope: &mut Scope<'a>) -> Result<u32> {
        let start = self.pos();
        let shape = self.optional_shape()?;
        if self.word_is_followed_by(b'(') {
            return self.operation(scope, None, shape);
        }
        if scope.invents_parameters
            && let Some(shape) = &shape
        {
            return self.operand_or_parameter(scope, shape);
        }
        let name_start = self.pos();
        let name = self.name("an operand")?;
        let mut index = scope.find(name).ok_or_else(|| scope.unknown_instruction(name_start, name))?;
        while self.eat(b'#') {
            let start = self.pos();
            let element = self.integer()?;
            index = scope.tuple_element(start, index, element)?;
            self.charge(start, node_count(scope.shape(index)))?;
        }
        if let Some(declared) = shape
            && !compatible(&declared, scope.shape(index))
        {
            let (declared, actual) = (text_without_layout(&declared), text_without_layout(scope.shape(index)));
            return Err(fail(start, format!("the operand is declared as {declared}, '{name}' is {actual}")));
        }
        Ok(index)
    }

    /// An operand of a lone instruction: the first mention of a name, or a shape without one, is a parameter.
    fn operand_or_parameter(&mut self, scope: &mut Scope<'a>, shape: &ShapeProto) -> Result<u32> {
        if self.at(b',') || self.at(b')') {
            return Ok(scope.push_parameter("parameter.anon".into(), shape.clone()));
        }
        let start = self.pos();
        let name = self.name("an operand")?;
        if let Some(index) = scope.find(name) {
            return Ok(index);
        }
        let index = scope.push_parameter(name.into(), shape.clone());
        scope.define(name, start, index)?;
        Ok(index)
    }

    /// `slice-start(...)`: a computation around the operation, and the async-start that calls it.
    fn wrapped_async_start(
        &mut self,
        scope: &mut Scope<'a>,
        name: Cow<'a, str>,
        start: usize,
        shape: ShapeProto,
        wrapped: &'static Opcode,
        mut outer: Draft,
    ) -> Result<u32> {
        let (operand_shapes, result) = match shape.tuple_shapes.as_slice() {
            [operands, result, ..] if is_tuple(operands) => (operands.tuple_shapes.clone(), result.clone()),
            _ => return Err(async_shape(start)),
        };
        if !wrapped.operands.accepts(operand_shapes.len()) {
            let count = operand_shapes.len();
            return Err(fail(start, format!("{} takes {}, found {count}", wrapped.name, wrapped.operands.describe())));
        }
        let mut inner = Draft::new(start, wrapped);
        inner.proto.operand_ids = (0..operand_shapes.len() as i64).collect();
        let own = AttrSet::of(&[Attr::AsyncExecutionThread, Attr::OutputToOperandAliasing]);
        let seen = self.attributes(scope, wrapped, own, &mut inner)?;
        let (from, to) = (&mut inner.proto, &mut outer.proto);
        to.async_execution_thread = std::mem::take(&mut from.async_execution_thread);
        to.sharding = std::mem::take(&mut from.sharding);
        to.control_predecessor_ids = std::mem::take(&mut from.control_predecessor_ids);
        to.parameter_replication = std::mem::take(&mut from.parameter_replication);
        if !wrapped.allowed.contains(Attr::OutputToOperandAliasing) {
            to.output_operand_aliasing = std::mem::take(&mut from.output_operand_aliasing);
        }
        to.metadata = std::mem::take(&mut from.metadata);
        to.original_value = std::mem::take(&mut from.original_value);
        to.backend_config = std::mem::take(&mut from.backend_config);
        to.frontend_attributes = std::mem::take(&mut from.frontend_attributes);
        to.statistics_viz = std::mem::take(&mut from.statistics_viz);
        let mut body = Scope::default();
        for shape in operand_shapes {
            body.push_parameter("async_param".into(), shape);
        }
        self.finish_instruction(&mut body, wrapped.name.into(), start, wrapped, seen, Some(result), inner)?;
        let computation = self.finish_computation(start, "async_wrapped".into(), body)?;
        outer.called.push((0, computation as i64));
        let opcode = Opcode::from_name("async-start").ok_or_else(|| async_shape(start))?;
        self.finish_instruction(scope, name, start, opcode, AttrSet::EMPTY, Some(shape), outer)
    }

    /// Fills in what XLA stores although the text leaves it out.
    fn set_defaults(
        &mut self,
        scope: &Scope<'a>,
        opcode: &Opcode,
        seen: AttrSet,
        start: usize,
        draft: &mut Draft,
    ) -> Result<()> {
        let proto = &mut draft.proto;
        let operands = proto.operand_ids.len();
        match opcode.rule {
            Rule::Collective if proto.replica_group_list.is_none() => {
                proto.replica_group_list = Some(ReplicaGroupList::from(CollectiveDeviceListProto::default()));
            }
            Rule::Broadcast if !seen.contains(Attr::Dimensions) => {
                if !scope.operand_shape(proto, 0).dimensions.is_empty() {
                    return Err(fail(
                        start,
                        "broadcast needs the attribute 'dimensions' unless its operand is a scalar",
                    ));
                }
            }
            Rule::Compare if proto.comparison_type.is_empty() => {
                let by_type = comparison_type(scope.operand_shape(proto, 0));
                // What readers that do not know the order of its own go by.
                let total = by_type == "FLOAT" && proto.comparison_order.starts_with("TOTAL");
                proto.comparison_type = if total { "TOTALORDER" } else { by_type }.to_owned();
            }
            Rule::Dot | Rule::ScaledDot => {
                proto.dot_dimension_numbers = std::mem::take(&mut draft.dot).into();
                default_precision(proto, 2);
            }
            Rule::RaggedDot => {
                let numbers = proto.ragged_dot_dimension_numbers.get_or_insert_default();
                numbers.dot_dimension_numbers = std::mem::take(&mut draft.dot).into();
                default_precision(proto, 2);
            }
            Rule::Convolution => {
                proto.window.get_or_insert_default();
                default_group_counts(proto, seen);
                default_precision(proto, operands);
            }
            Rule::CustomCall => {
                default_group_counts(proto, seen);
                default_precision(proto, operands);
                if !seen.contains(Attr::ApiVersion) {
                    proto.custom_call_api_version = CustomCallApiVersion::API_VERSION_ORIGINAL.into();
                }
                let constraints = &proto.operand_shapes_with_layout;
                let actual = scope.operand_shapes(proto);
                let fits =
                    constraints.len() == operands && constraints.iter().zip(actual).all(|(a, b)| compatible(a, b));
                if proto.constrain_layout && !fits {
                    return Err(fail(start, "the operand layout constraints are not the shapes of the operands"));
                }
            }
            Rule::ReduceWindow | Rule::SelectAndScatter => {
                proto.window.get_or_insert_default();
            }
            Rule::TopK => {
                proto.largest |= !seen.contains(Attr::Largest);
                proto.is_stable |= !seen.contains(Attr::IsStable);
            }
            Rule::Scan if !seen.contains(Attr::IsAssociative) => {
                proto.is_associative = TriState::TRI_STATE_FALSE.into();
            }
            Rule::Outfeed if !seen.contains(Attr::OutfeedShape) => {
                self.charge(start, node_count(scope.operand_shape(proto, 0)))?;
                proto.outfeed_shape = scope.operand_shape(proto, 0).clone().into();
            }
            Rule::Fusion => {
                for &id in &proto.called_computation_ids {
                    self.computations[id as usize].is_fusion_computation = true;
                }
            }
            Rule::Conditional => check_branches(scope, seen, start, proto)?,
            Rule::AsyncStart => {
                let thread = proto.async_execution_thread.clone();
                for id in proto.called_computation_ids.clone() {
                    self.set_execution_thread(id, &thread);
                }
            }
            Rule::AsyncUpdate | Rule::AsyncDone => scope.check_async(start, proto)?,
            _ => match opcode.name {
                "triangular-solve" => drop(proto.triangular_solve_options.get_or_insert_default()),
                "cholesky" => drop(proto.cholesky_options.get_or_insert_default()),
                _ => {}
            },
        }
        Ok(())
    }

    /// `slice-done` continues a `slice-start`, not another operation.
    fn check_wrapped(
        &self,
        scope: &Scope<'a>,
        start: usize,
        wrapped: &Opcode,
        proto: &HloInstructionProto,
    ) -> Result<()> {
        let id = scope.async_start(proto).and_then(|start| start.called_computation_ids.first().copied());
        let Some(computation) = id.and_then(|id| self.computations.get(id as usize)) else { return Ok(()) };
        let started = &computation.instructions[(computation.root_id - (computation.id << 32)) as usize].opcode;
        if started == wrapped.name {
            Ok(())
        } else {
            Err(fail(start, format!("the operation that was started is {started}")))
        }
    }

    /// What is said of an asynchronous operation holds for the operation that it wraps as well.
    fn copy_to_wrapped(&mut self, scope: &Scope<'a>, proto: &HloInstructionProto) {
        let start = if proto.opcode == "async-start" { Some(proto) } else { scope.async_start(proto) };
        let id = start.and_then(|start| start.called_computation_ids.first().copied());
        let wrapped = id.and_then(|id| self.computations.get_mut(id as usize));
        let Some(wrapped) = wrapped else { return };
        let root = wrapped.root_id - (wrapped.id << 32);
        let root = &mut wrapped.instructions[root as usize];
        if proto.metadata.is_set() {
            root.metadata = proto.metadata.clone();
        }
        if proto.original_value.is_set() {
            root.original_value = proto.original_value.clone();
        }
        if !proto.backend_config.is_empty() {
            root.backend_config.clone_from(&proto.backend_config);
        }
        if proto.frontend_attributes.is_set() {
            root.frontend_attributes = proto.frontend_attributes.clone();
        }
        if proto.statistics_viz.is_set() {
            root.statistics_viz = proto.statistics_viz.clone();
        }
    }

    /// A computation that runs asynchronously runs on its caller's thread, with everything it calls.
    fn set_execution_thread(&mut self, id: i64, thread: &str) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let computation = &mut self.computations[id as usize];
            if computation.execution_thread == thread {
                continue;
            }
            computation.execution_thread = thread.to_owned();
            let calls = computation.instructions.iter().filter(|call| !call.opcode.starts_with("async-"));
            pending.extend(calls.flat_map(|call| &call.called_computation_ids));
        }
    }
}

/// The shapes that a shape consists of, itself included.
fn node_count(shape: &ShapeProto) -> usize {
    1 + shape.tuple_shapes.iter().map(node_count).sum::<usize>()
}

fn async_shape(start: usize) -> Failure {
    fail(start, "an asynchronous operation has the shape ((operands), results, ...)")
}

fn default_precision(proto: &mut HloInstructionProto, operands: usize) {
    let precision = &mut proto.precision_config.get_or_insert_default().operand_precision;
    if precision.is_empty() {
        *precision = vec![Precision::DEFAULT.into(); operands];
    }
}

fn default_group_counts(proto: &mut HloInstructionProto, seen: AttrSet) {
    if !seen.contains(Attr::FeatureGroupCount) {
        proto.feature_group_count = 1;
    }
    if !seen.contains(Attr::BatchGroupCount) {
        proto.batch_group_count = 1;
    }
}

/// How XLA compares values of the first operand's type when the text does not say.
fn comparison_type(shape: &ShapeProto) -> &'static str {
    match dtype(shape) {
        Some(DType::S1 | DType::S2 | DType::S4 | DType::S8 | DType::S16 | DType::S32 | DType::S64) => "SIGNED",
        Some(DType::Pred | DType::U1 | DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64) => {
            "UNSIGNED"
        }
        _ => "FLOAT",
    }
}

fn check_branches(scope: &Scope, seen: AttrSet, start: usize, proto: &HloInstructionProto) -> Result<()> {
    let selector = scope.operand_shape(proto, 0);
    let by_pred = match (selector.dimensions.is_empty(), dtype(selector)) {
        (true, Some(DType::Pred)) => true,
        (true, Some(DType::S32)) => false,
        _ => return Err(fail(start, "the first operand of a conditional is a scalar of type pred or s32")),
    };
    let expected: &[Attr] =
        if by_pred { &[Attr::TrueComputation, Attr::FalseComputation] } else { &[Attr::BranchComputations] };
    if let Some(missing) = AttrSet::of(expected).without(seen).names().next() {
        return Err(fail(start, format!("conditional needs the attribute '{missing}'")));
    }
    let (branches, operands) = (proto.called_computation_ids.len(), proto.operand_ids.len() - 1);
    if branches != operands {
        return Err(fail(start, format!("the conditional has {branches} branches and operands for {operands}")));
    }
    Ok(())
}
