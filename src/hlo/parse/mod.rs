//! HLO text to `HloModuleProto`, as XLA's own parser builds it.

mod asynchronous;
mod attributes;
mod computation;
mod cursor;
mod defaults;
mod error;
mod instruction;
mod literal;
mod metadata;
mod module;
mod names;
mod shape;
mod sharding;
mod window;

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use computation::Scope;
use cursor::{Cursor, fail};
use error::Result;
use foldhash::fast::RandomState;
use names::UniqueNames;

use super::source::Places;
use super::{HloModule, attr, infer, opcode};
use crate::proto::{HloComputationProto, SharedShape};

pub use error::ParseError;

/// Parses the text form of an HLO module.
///
/// It reads what XLA prints today and has printed over the last years, with or without `%` before names, shapes of
/// operands and layouts, and modules that lack their `HloModule` header. Instruction ids, the order of computations and
/// all other fields come out as XLA's own parser makes them.
///
/// # Errors
/// The first thing that is wrong, with its place in the text; `file` names the text there.
pub fn parse(text: &str, file: &str) -> std::result::Result<HloModule, ParseError> {
    Parser::new(text).module(file).map_err(|failure| {
        let (offset, message) = *failure;
        ParseError::new(file, text, offset, message)
    })
}

/// Whether a text starts as a lone instruction does: `[[ROOT] name =] shape opcode`.
pub(super) fn is_instruction(text: &str) -> bool {
    let mut parser = Parser::new(text);
    if !parser.at_shape() {
        parser.eat_word("ROOT");
        if parser.eat_name().is_none() || !parser.eat(b'=') {
            return false;
        }
    }
    matches!(parser.optional_shape(), Ok(Some(_))) && parser.peek_word().is_some()
}

/// Nesting of tuples, operands and computations that is accepted. Protobuf readers stop at 100 levels.
const MAX_DEPTH: usize = 64;

/// Shapes that a text may leave out, besides one for every four characters.
const COPIES: usize = 1 << 16;

type Map<K, V> = HashMap<K, V, RandomState>;

struct Parser<'a> {
    cursor: Cursor<'a>,
    depth: usize,
    /// Finished computations; the index is the id. Callees come first because the text defines before it uses.
    computations: Vec<HloComputationProto>,
    /// Where the finished computations stand.
    places: Vec<Places>,
    computation_by_name: Map<&'a str, usize>,
    computation_names: UniqueNames<'a>,
    instruction_names: UniqueNames<'a>,
    /// Room that finished computations have left behind for the next one.
    spare: Scope<'a>,
    /// The shapes of instructions, by their text.
    shapes: Map<&'a str, SharedShape>,
    elided: literal::Elided,
    /// Parts that may still be copied, so that a short text cannot ask for a large module.
    copies_left: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser {
            cursor: Cursor::new(text),
            depth: 0,
            computations: Vec::new(),
            places: Vec::new(),
            computation_by_name: Map::default(),
            computation_names: UniqueNames::default(),
            instruction_names: UniqueNames::default(),
            spare: Scope::default(),
            shapes: Map::default(),
            elided: literal::Elided::default(),
            copies_left: text.len() / 4 + COPIES,
        }
    }

    /// Accounts for a copy of about this many shapes or shardings that the text does not spell out.
    fn charge(&mut self, start: usize, cost: usize) -> Result<()> {
        match self.copies_left.checked_sub(cost) {
            Some(left) => {
                self.copies_left = left;
                Ok(())
            }
            None => Err(fail(start, "too many and too large shapes that the text does not spell out")),
        }
    }

    /// Runs `parse` one level deeper, within the limit that keeps hostile texts from exhausting the stack.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(fail(self.pos(), format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    /// Items between `open` and `close` with commas between them; `what` names the whole for messages.
    fn list<T>(
        &mut self,
        open: u8,
        close: u8,
        what: &str,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        self.each(open, close, what, |parser| {
            items.push(item(parser)?);
            Ok(())
        })?;
        Ok(items)
    }

    /// As [`Parser::list`], for items that `item` itself puts where they belong.
    fn each(&mut self, open: u8, close: u8, what: &str, mut item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        if !self.eat(open) {
            return Err(self.expected(&format!("'{}' before the {what}", open as char)));
        }
        while !self.at(close) {
            item(self)?;
            if !self.eat(b',') {
                break;
            }
        }
        if !self.eat(close) {
            return Err(self.expected(&format!("',' or '{}' in the {what}", close as char)));
        }
        Ok(())
    }

    /// `{1,2,3}`
    fn integers(&mut self) -> Result<Vec<i64>> {
        self.list(b'{', b'}', "integers", |parser| parser.integer())
    }

    fn boolean(&mut self) -> Result<bool> {
        if self.eat_word("true") {
            return Ok(true);
        }
        if self.eat_word("false") { Ok(false) } else { Err(self.expected("true or false")) }
    }
}

impl<'a> Deref for Parser<'a> {
    type Target = Cursor<'a>;

    fn deref(&self) -> &Cursor<'a> {
        &self.cursor
    }
}

impl DerefMut for Parser<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.cursor
    }
}

#[cfg(test)]
mod tests;
