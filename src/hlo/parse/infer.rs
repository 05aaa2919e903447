//! Result shapes that the text leaves out.

use super::Parser;
use super::computation::Scope;
use super::opcode::{Opcode, Rule};
use crate::proto::{HloInstructionProto, ShapeProto};

impl<'a> Parser<'a> {
    pub(super) fn infer(
        &self,
        _scope: &Scope<'a>,
        opcode: &Opcode,
        _instruction: &HloInstructionProto,
    ) -> Result<ShapeProto, String> {
        match opcode.rule {
            Rule::Plain => Err(format!("the shape of {} cannot be left out", opcode.name)),
            _ => Err("todo".to_owned()),
        }
    }
}
