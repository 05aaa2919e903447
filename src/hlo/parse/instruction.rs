//! Instructions: `[ROOT] name = shape opcode(operands), attributes`.

use std::borrow::Cow;

use buffa::MessageField;

use super::Parser;
use super::attr::AttrSet;
use super::computation::Scope;
use super::cursor::fail;
use super::error::{Result, hint};
use super::infer::{in_transfer, infer};
use super::opcode::{Opcode, Rule};
use crate::hlo::shape::{compatible, leaves, text_without_layout};
use crate::proto::{DotDimensionNumbers, HloInstructionProto, ShapeProto, SharedShape};

/// An instruction whose text is being read.
pub(super) struct Draft<'a> {
    pub(super) name: Cow<'a, str>,
    /// Where its opcode stands.
    pub(super) start: usize,
    pub(super) opcode: &'static Opcode,
    /// The shape in the text.
    pub(super) shape: Option<SharedShape>,
    /// The attributes in the text.
    pub(super) seen: AttrSet,
    pub(super) proto: HloInstructionProto,
    /// Called computations, with the place in which the protobuf form lists them.
    pub(super) called: Vec<(u8, i64)>,
    /// Which of the three messages holds it depends on the opcode.
    pub(super) dot: MessageField<DotDimensionNumbers>,
}

impl<'a> Draft<'a> {
    #[inline]
    pub(super) fn new(
        name: Cow<'a, str>,
        start: usize,
        opcode: &'static Opcode,
        shape: Option<SharedShape>,
    ) -> Draft<'a> {
        let mut draft = Draft {
            name,
            start,
            opcode,
            shape,
            seen: AttrSet::EMPTY,
            proto: HloInstructionProto::default(),
            called: Vec::new(),
            dot: MessageField::none(),
        };
        draft.proto.opcode = opcode.name.into();
        draft
    }

    pub(super) fn check_operand_count(&self) -> Result<()> {
        let (opcode, count) = (self.opcode, self.proto.operand_ids.len());
        if opcode.operands.accepts(count) {
            return Ok(());
        }
        Err(fail(self.start, format!("{} takes {}, found {count}", opcode.name, opcode.operands.describe())))
    }
}

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

    /// An instruction from its opcode on. One without a name is written in place of an operand; it has no attributes
    /// because the commas would not tell whose they are.
    fn operation(
        &mut self,
        scope: &mut Scope<'a>,
        name: Option<Cow<'a, str>>,
        shape: Option<SharedShape>,
    ) -> Result<u32> {
        let start = self.pos();
        let (opcode, wrapped) = self.opcode()?;
        let in_place = name.is_none();
        let name = name.unwrap_or_else(|| format!("{}.anon", opcode.name).into());
        let mut draft = Draft::new(name, start, opcode, shape);
        self.operands(scope, &mut draft)?;
        draft.check_operand_count()?;
        if let Some(wrapped) = wrapped {
            if opcode.rule == Rule::AsyncStart {
                return self.wrapped_async_start(scope, wrapped, draft);
            }
            self.check_wrapped(scope, wrapped, &draft)?;
        }
        if !in_place {
            self.attributes(scope, AttrSet::EMPTY, &mut draft)?;
        } else if let Some(missing) = opcode.required.names().next() {
            let message =
                format!("{} needs the attribute '{missing}' and cannot be written as an operand", opcode.name);
            return Err(fail(start, message));
        }
        self.finish_instruction(scope, draft)
    }

    pub(super) fn finish_instruction(&mut self, scope: &mut Scope<'a>, mut draft: Draft<'a>) -> Result<u32> {
        draft.called.sort_by_key(|&(place, _)| place);
        draft.proto.called_computation_ids = draft.called.iter().map(|&(_, id)| id).collect();
        self.set_defaults(scope, &mut draft)?;
        // What the draft holds is large; it is moved once, to its place in the computation.
        let Draft { start, opcode, ref mut shape, ref mut proto, .. } = draft;
        proto.shape = match (opcode.rule, shape.take()) {
            (Rule::Recv, Some(shape)) => received(start, &shape)?.into(),
            // These are as XLA makes them, whatever the text says.
            (Rule::Outfeed | Rule::RecvDone | Rule::Send | Rule::SendDone, _) | (_, None) => {
                self.inferred_shape(scope, start, opcode, proto)?.into()
            }
            (_, Some(shape)) => shape.into(),
        };
        if let Some(sharding) = proto.sharding.take() {
            proto.sharding = self.spread_over_tuple(start, sharding, &proto.shape)?.into();
        }
        let async_start = match opcode.rule {
            Rule::AsyncStart => Some(None),
            Rule::AsyncUpdate => scope.async_start(proto).map(|(start, _)| Some(start)),
            _ => None,
        };
        match opcode.rule {
            Rule::AsyncStart | Rule::AsyncUpdate | Rule::AsyncDone => self.copy_to_wrapped(scope, start, proto)?,
            // The text may give dimensions; XLA takes all of them whatever it says.
            Rule::Map => proto.dimensions = (0..proto.shape.dimensions.len() as i64).collect(),
            Rule::Parameter => scope.add_parameter(start, proto.parameter_number)?,
            _ => {}
        }
        if let Some(replication) = proto.details().parameter_replication.as_option() {
            let (given, leaves) = (replication.replicated_at_leaf_buffers.len(), leaves(&proto.shape).len());
            if opcode.rule != Rule::Parameter || given != leaves {
                let message = "parameter_replication belongs to parameters and has a value for each of their arrays";
                return Err(fail(start, message));
            }
        }
        let index = scope.push(draft.name, start, draft.proto);
        if std::mem::take(&mut self.elided.last) {
            scope.elided.push(index);
        }
        if let Some(start) = async_start {
            scope.continue_async(index, start.unwrap_or(index));
        }
        Ok(index)
    }

    fn inferred_shape(
        &mut self,
        scope: &Scope<'a>,
        start: usize,
        opcode: &Opcode,
        proto: &HloInstructionProto,
    ) -> Result<ShapeProto> {
        let operands = scope.operand_shapes(proto);
        let cost: usize = operands.iter().copied().chain(self.called_result(proto)).map(shape_cost).sum();
        self.charge(start, 1 + cost)?;
        let mut shape =
            infer(opcode, proto, &operands, self.called_result(proto)).map_err(|message| fail(start, message))?;
        if opcode.rule == Rule::Transpose {
            // Where nobody says how it lies in memory, it lies as its operand does.
            let mut places = vec![0; proto.dimensions.len()];
            for (place, &dim) in (0..).zip(&proto.dimensions) {
                places[dim as usize] = place;
            }
            let order = &operands[0].layout.minor_to_major;
            shape.layout.get_or_insert_default().minor_to_major =
                order.iter().map(|&dim| places[dim as usize]).collect();
        }
        Ok(shape)
    }

    /// The result of the first computation that an instruction calls.
    fn called_result(&self, proto: &HloInstructionProto) -> Option<&ShapeProto> {
        let computation = self.computations.get(*proto.called_computation_ids.first()? as usize)?;
        Some(&computation.program_shape.result)
    }

    /// The opcode, and for `slice-start` and the like the opcode that is made asynchronous.
    fn opcode(&mut self) -> Result<(&'static Opcode, Option<&'static Opcode>)> {
        const ASYNC: [(&str, &str); 3] =
            [("-start", "async-start"), ("-update", "async-update"), ("-done", "async-done")];
        let start = self.pos();
        let name = self.word("an opcode")?;
        if let Some(opcode) = Opcode::from_name(name) {
            return Ok((opcode, None));
        }
        for (suffix, async_name) in ASYNC {
            let wrapped = name.strip_suffix(suffix).and_then(Opcode::from_name);
            let wrapped = wrapped.filter(|opcode| opcode.can_be_wrapped());
            if let (Some(wrapped), Some(opcode)) = (wrapped, Opcode::from_name(async_name)) {
                return Ok((opcode, Some(wrapped)));
            }
        }
        Err(fail(start, format!("unknown opcode '{name}'{}", hint(name, Opcode::names()))))
    }

    /// What stands in parentheses after the opcode.
    fn operands(&mut self, scope: &mut Scope<'a>, draft: &mut Draft<'a>) -> Result<()> {
        match draft.opcode.rule {
            Rule::Parameter => {
                self.expect(b'(', "after the opcode")?;
                let start = self.pos();
                draft.proto.parameter_number = self.integer()?;
                if draft.proto.parameter_number < 0 {
                    return Err(fail(start, "a parameter's number is not negative"));
                }
                self.expect(b')', "after the parameter's number")
            }
            Rule::Constant => {
                self.expect(b'(', "after the opcode")?;
                let Some(shape) = &mut draft.shape else {
                    return Err(fail(draft.start, "the shape of a constant cannot be left out"));
                };
                // XLA takes the layout from the literal, and literals are never packed.
                if shape.layout.element_size_in_bits != 0 {
                    shape.layout.get_or_insert_default().element_size_in_bits = 0;
                }
                draft.proto.literal = self.literal(shape)?.into();
                self.expect(b')', "after the constant")
            }
            _ => {
                let ids = &mut draft.proto.operand_ids;
                self.nested(|parser| {
                    parser.each(b'(', b')', "operands", |parser| {
                        ids.push(parser.operand(scope)?.into());
                        Ok(())
                    })
                })
            }
        }
    }

    /// `%x`, `f32[2] %x`, `%tuple#0` or an instruction in place, such as `add(x, y)`.
    fn operand(&mut self, scope: &mut Scope<'a>) -> Result<u32> {
        if let Some(index) = self.usual_operand(scope) {
            return Ok(index);
        }
        let start = self.pos();
        let mut shape = self.optional_shape()?;
        while shape.is_some() && !scope.invents_parameters && self.eat(b',') {
            // The XLA of jaxlib 0.10 passes over a shape that no name follows.
            shape = self.optional_shape()?;
        }
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
            self.charge(start, name.len() / 64)?;
            index = scope.tuple_element(start, index, element)?;
            self.charge(start, shape_cost(scope.shape(index)))?;
        }
        if let Some(declared) = shape
            && !std::ptr::eq(&*declared, scope.shape(index))
            && !compatible(&declared, scope.shape(index))
        {
            let (declared, actual) = (text_without_layout(&declared), text_without_layout(scope.shape(index)));
            return Err(fail(start, format!("the operand is declared as {declared}, '{name}' is {actual}")));
        }
        Ok(index)
    }

    /// Eats a name that is known and no more than that.
    fn usual_operand(&mut self, scope: &Scope<'a>) -> Option<u32> {
        let mut ahead = self.cursor;
        let name = ahead.eat_name()?;
        let index = if ahead.at(b',') || ahead.at(b')') { scope.find(name)? } else { return None };
        self.cursor = ahead;
        Some(index)
    }

    /// An operand of a lone instruction: the first mention of a name, or a shape without one, is a parameter.
    fn operand_or_parameter(&mut self, scope: &mut Scope<'a>, shape: &SharedShape) -> Result<u32> {
        if self.at(b',') || self.at(b')') {
            return Ok(scope.push_parameter(format!("_{}", scope.parameters()).into(), self.pos(), shape.clone()));
        }
        let start = self.pos();
        let name = self.name("an operand")?;
        if let Some(index) = scope.find(name) {
            return Ok(index);
        }
        let index = scope.push_parameter(name.into(), start, shape.clone());
        scope.define(name, start, index)?;
        Ok(index)
    }
}

/// The shape of a recv, of whose declared shape only the first element counts.
fn received(start: usize, declared: &ShapeProto) -> Result<ShapeProto> {
    let data =
        declared.tuple_shapes.first().ok_or_else(|| fail(start, "a recv has the shape (DATA, u32[], token[])"))?;
    Ok(in_transfer(data))
}

/// What copying a shape costs, in the unit of [`Parser::charge`].
pub(super) fn shape_cost(shape: &ShapeProto) -> usize {
    let own = 1 + (shape.dimensions.len() + shape.layout.tiles.len() + shape.layout.split_configs.len()) / 8;
    own + shape.tuple_shapes.iter().map(shape_cost).sum::<usize>()
}
