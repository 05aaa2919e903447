//! Shapes and layouts.

use super::Parser;
use super::cursor::fail;
use super::error::{Result, hint};
use crate::dtype::DType;
use crate::hlo::shape::{is_permutation, row_major};
use crate::proto::{LayoutProto, PrimitiveType, ShapeProto, SharedShape, SplitConfigProto, TileProto};

/// XLA's mark of a dimension without bound, written `?`.
const UNBOUNDED: i64 = i64::MIN;

/// XLA's mark of a dimension that a tile combines with the next one, written `*`.
const COMBINED: i64 = i64::MIN;

impl<'a> Parser<'a> {
    /// Does a shape stand here? Names are followed by no `[`, and no opcode is called `b`.
    pub(super) fn at_shape(&self) -> bool {
        if self.at(b'(') {
            return true;
        }
        match self.peek_word() {
            Some("b") => self.word_is_followed_by(b'(') || self.word_is_followed_by(b'['),
            Some(word) => {
                self.word_is_followed_by(b'[')
                    || self.word_is_followed_by(b' ') && primitive_type(word).is_some() && self.bracket_is_next()
            }
            None => false,
        }
    }

    /// Does a bracket follow on the word that stands here, with space before it?
    fn bracket_is_next(&self) -> bool {
        let mut ahead = self.cursor;
        ahead.eat_name().is_some() && ahead.at(b'[')
    }

    /// A shape, if one stands here.
    pub(super) fn optional_shape(&mut self) -> Result<Option<SharedShape>> {
        match self.known_shape() {
            None if self.at_shape() => self.shared_shape().map(Some),
            known => Ok(known),
        }
    }

    /// Eats a shape that has been spelled the same before.
    fn known_shape(&mut self) -> Option<SharedShape> {
        let mut ahead = self.cursor;
        // What follows may still belong to the shape if it opens a layout.
        let text = ahead.eat_shape_text().filter(|_| !ahead.at(b'{'))?;
        let shape = self.shapes.get(text)?.clone();
        self.cursor = ahead;
        Some(shape)
    }

    /// A shape, which is read once however often it is spelled the same.
    pub(super) fn shared_shape(&mut self) -> Result<SharedShape> {
        if let Some(shape) = self.known_shape() {
            return Ok(shape);
        }
        let start = self.pos();
        let shape = SharedShape::from(self.shape()?);
        self.shapes.insert(self.text()[start..self.pos()].trim_ascii_end(), shape.clone());
        Ok(shape)
    }

    /// A shape; an array without a layout gets the row-major one.
    pub(super) fn shape(&mut self) -> Result<ShapeProto> {
        if self.at(b'(') {
            return self.nested(|parser| {
                let tuple_shapes = parser.list(b'(', b')', "tuple shape", Parser::shape)?;
                Ok(ShapeProto { element_type: PrimitiveType::TUPLE.into(), tuple_shapes, ..Default::default() })
            });
        }
        let start = self.pos();
        let name = self.word("a shape, such as f32[8,128]")?;
        if name == "b" && self.at(b'(') {
            return self.nested(|parser| {
                parser.expect(b'(', "before the buffer's shape")?;
                let tuple_shapes = vec![parser.shape()?];
                parser.expect(b')', "after the buffer's shape")?;
                Ok(ShapeProto { element_type: PrimitiveType::BUFFER.into(), tuple_shapes, ..Default::default() })
            });
        }
        let element_type = primitive_type(name).ok_or_else(|| unknown_type(start, name))?;
        let mut shape = ShapeProto { element_type: element_type.into(), ..Default::default() };
        self.dimensions(&mut shape)?;
        let is_array = !matches!(element_type, PrimitiveType::TOKEN | PrimitiveType::OPAQUE_TYPE);
        if !is_array && !shape.dimensions.is_empty() {
            return Err(fail(start, format!("a {name} has no dimensions")));
        }
        if self.at(b'{') && self.peek_second().is_some_and(|byte| byte.is_ascii_digit() || byte == b':') {
            let start = self.pos();
            let layout = self.layout()?;
            check_layout(start, &layout, shape.dimensions.len())?;
            shape.layout = layout.into();
        } else if is_array {
            shape.layout = row_major(shape.dimensions.len()).into();
        }
        Ok(shape)
    }

    fn dimensions(&mut self, shape: &mut ShapeProto) -> Result<()> {
        self.expect(b'[', "after the element type")?;
        while !self.at(b']') {
            if self.eat(b'?') {
                shape.dimensions.push(UNBOUNDED);
                shape.is_dynamic_dimension.push(true);
            } else {
                let dynamic = self.eat_str("<=");
                let start = self.pos();
                let size = self.integer()?;
                if size < 0 {
                    return Err(fail(start, "a dimension's size is not negative"));
                }
                shape.dimensions.push(size);
                shape.is_dynamic_dimension.push(dynamic);
            }
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b']', "after the dimensions")
    }

    fn layout(&mut self) -> Result<LayoutProto> {
        self.expect(b'{', "before the layout")?;
        let mut layout = LayoutProto { tail_padding_alignment_in_elements: 1, ..Default::default() };
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            layout.minor_to_major.push(self.integer()?);
            if !self.eat(b',') {
                break;
            }
        }
        if self.eat(b':') {
            while !self.at(b'}') {
                self.layout_property(&mut layout)?;
            }
        }
        self.expect(b'}', "after the layout")?;
        Ok(layout)
    }

    /// One of the properties after the layout's colon, such as `T(8,128)`, `S(1)` or `E(4)`.
    fn layout_property(&mut self, layout: &mut LayoutProto) -> Result<()> {
        let start = self.pos();
        if self.eat(b'#') {
            layout.index_primitive_type = self.index_type()?.into();
            return Ok(());
        }
        if self.eat(b'*') {
            layout.pointer_primitive_type = self.index_type()?.into();
            return Ok(());
        }
        match self.word("a layout property")? {
            // XLA has no sparse arrays any more; it reads and drops these.
            "D" => drop(self.list(b'(', b')', "level types", Parser::level_type)?),
            "T" => {
                while self.at(b'(') {
                    let dimensions =
                        self.list(
                            b'(',
                            b')',
                            "tile",
                            |parser| {
                                if parser.eat(b'*') { Ok(COMBINED) } else { parser.integer() }
                            },
                        )?;
                    layout.tiles.push(TileProto { dimensions, ..Default::default() });
                }
            }
            "L" => layout.tail_padding_alignment_in_elements = self.integer_in_parentheses()?,
            "E" => layout.element_size_in_bits = self.integer_in_parentheses()?,
            "S" => layout.memory_space = self.integer_in_parentheses()?,
            "M" => layout.dynamic_shape_metadata_prefix_bytes = self.integer_in_parentheses()?,
            "SC" => {
                while self.eat(b'(') {
                    let dimension = self.integer()?;
                    let split_indices = self.list(b':', b')', "split indices", |parser| parser.integer())?;
                    layout.split_configs.push(SplitConfigProto { dimension, split_indices, ..Default::default() });
                }
            }
            "P" => return Err(fail(start, "physical shapes belong to sparse arrays, which XLA no longer has")),
            other => {
                let message = format!("unknown layout property '{other}'; expected D, T, L, #, *, E, S, SC, P or M");
                return Err(fail(start, message));
            }
        }
        Ok(())
    }

    fn integer_in_parentheses(&mut self) -> Result<i64> {
        self.expect(b'(', "after the layout property")?;
        let value = self.integer()?;
        self.expect(b')', "after the layout property")?;
        Ok(value)
    }

    fn index_type(&mut self) -> Result<PrimitiveType> {
        self.expect(b'(', "before the type")?;
        let start = self.pos();
        let name = self.word("an unsigned integer type")?;
        let index_type = primitive_type(name).filter(|_| name.starts_with('u'));
        self.expect(b')', "after the type")?;
        index_type.ok_or_else(|| fail(start, format!("expected an unsigned integer type, found '{name}'")))
    }

    fn level_type(&mut self) -> Result<()> {
        let start = self.pos();
        let level_type = self.word("a level type")?;
        if !["D", "C", "S", "H"].contains(&level_type) {
            return Err(fail(start, format!("unknown level type '{level_type}'; expected D, C, S or H")));
        }
        self.eat(b'+');
        self.eat(b'~');
        Ok(())
    }
}

fn check_layout(start: usize, layout: &LayoutProto, rank: usize) -> Result<()> {
    if layout.minor_to_major.len() != rank {
        let message = format!("the layout orders {} dimensions, the shape has {rank}", layout.minor_to_major.len());
        return Err(fail(start, message));
    }
    if !is_permutation(&layout.minor_to_major, rank) {
        return Err(fail(start, format!("the layout's order is no permutation of 0 to {}", rank.saturating_sub(1))));
    }
    Ok(())
}

/// The element type with this name in HLO text; tuples and buffers have none.
fn primitive_type(name: &str) -> Option<PrimitiveType> {
    match name {
        // The usual ones first; the table of all types is searched in order.
        "f32" => Some(PrimitiveType::F32),
        "bf16" => Some(PrimitiveType::BF16),
        "f16" => Some(PrimitiveType::F16),
        "s32" => Some(PrimitiveType::S32),
        "u32" => Some(PrimitiveType::U32),
        "pred" => Some(PrimitiveType::PRED),
        "token" => Some(PrimitiveType::TOKEN),
        "opaque" => Some(PrimitiveType::OPAQUE_TYPE),
        _ => buffa::Enumeration::from_i32(name.parse::<DType>().ok()?.primitive_type()),
    }
}

fn unknown_type(start: usize, name: &str) -> super::error::Failure {
    let names = DType::all().map(DType::name).chain(["token", "opaque"]);
    fail(start, format!("unknown element type '{name}'{}", hint(name, names)))
}
