//! An instruction in its place, with what it refers to.

use std::collections::HashMap;

use super::dims::{expect_dim, text};
use super::{Check, Instructions, Signature, ensure};
use crate::dtype::DType;
use crate::hlo::opcode::Opcode;
use crate::hlo::shape;
use crate::proto::{HloComputationProto, HloInstructionProto, ShapeProto};

/// An instruction and what it refers to.
pub(super) struct Site<'a, 'm> {
    pub(super) instruction: &'m HloInstructionProto,
    /// `None` for opcodes newer than this project.
    pub(super) opcode: Option<&'static Opcode>,
    pub(super) operands: Vec<&'m HloInstructionProto>,
    pub(super) called: Vec<&'a Signature<'m>>,
}

impl<'a, 'm> Site<'a, 'm> {
    /// Looks up what the instruction refers to among the instructions before it and the computations before its own,
    /// so that nothing that resolves can be part of a cycle.
    pub(super) fn resolve(
        computation: &'m HloComputationProto,
        instruction: &'m HloInstructionProto,
        seen: &Instructions<'m>,
        done: &'a HashMap<i64, Signature<'m>>,
    ) -> Result<Site<'a, 'm>, String> {
        let find = |what: &str, id: &i64| {
            seen.get(id).copied().ok_or_else(|| {
                match computation.instructions.iter().find(|instruction| instruction.id == *id) {
                    Some(other) => format!("its {what} '{}' stands after it", other.name),
                    None => format!("its {what} has the id {id}, which no instruction of the computation has"),
                }
            })
        };
        let operands = instruction.operand_ids.iter().map(|id| find("operand", id)).collect::<Result<_, _>>()?;
        instruction.control_predecessor_ids.iter().try_for_each(|id| find("control predecessor", id).map(drop))?;
        let called = instruction.called_computation_ids.iter().map(|id| {
            done.get(id).ok_or_else(|| match *id == computation.id {
                true => "it calls its own computation, and XLA has no recursion".to_owned(),
                false => format!("it calls the computation with the id {id}, which does not stand before this one"),
            })
        });
        let called = called.collect::<Result<_, _>>()?;
        Ok(Site { instruction, opcode: Opcode::from_name(&instruction.opcode), operands, called })
    }

    pub(super) fn shape(&self) -> &'m ShapeProto {
        &self.instruction.shape
    }

    /// The shape of an operand; the number of operands has been checked, so a missing one reads as an empty shape.
    pub(super) fn operand(&self, index: usize) -> &'m ShapeProto {
        static NONE: std::sync::LazyLock<ShapeProto> = std::sync::LazyLock::new(ShapeProto::default);
        self.operands.get(index).map_or(&NONE, |operand| &operand.shape)
    }

    /// The operand, which must be an array.
    pub(super) fn array(&self, index: usize) -> Result<&'m ShapeProto, String> {
        let shape = self.operand(index);
        ensure!(shape::dtype(shape).is_some(), "operand {index} is {}, and it must be an array", text(shape));
        Ok(shape)
    }

    /// The element type of an operand, which must be an array.
    pub(super) fn dtype(&self, index: usize) -> Result<DType, String> {
        let shape = self.operand(index);
        shape::dtype(shape).ok_or_else(|| format!("operand {index} is {}, and it must be an array", text(shape)))
    }

    pub(super) fn array_result(&self) -> Result<&'m ShapeProto, String> {
        ensure!(shape::dtype(self.shape()).is_some(), "its shape is {}, and it must be an array", text(self.shape()));
        Ok(self.shape())
    }

    /// The result must be an array of this type and these dimensions.
    pub(super) fn expect_result(&self, element: DType, dims: &[i64]) -> Check {
        super::dims::expect_array("it", self.shape(), element, dims)
    }

    /// The result must be a tuple of these shapes.
    pub(super) fn expect_tuple<'s>(&self, parts: impl IntoIterator<Item = &'s ShapeProto>) -> Check {
        let parts: Vec<&ShapeProto> = parts.into_iter().collect();
        let found = &self.shape().tuple_shapes;
        let fits = shape::is_tuple(self.shape())
            && found.len() == parts.len()
            && found.iter().zip(&parts).all(|(found, part)| super::dims::compatible(found, part));
        ensure!(
            fits,
            "it has the shape {}, and it must be ({})",
            text(self.shape()),
            parts.iter().map(|part| text(part)).collect::<Vec<_>>().join(", ")
        );
        Ok(())
    }

    pub(super) fn expect_type(&self, what: &str, found: &ShapeProto, expected: &ShapeProto) -> Check {
        ensure!(
            found.element_type == expected.element_type,
            "{what} has the shape {}, and its element type must be that of {}",
            text(found),
            text(expected)
        );
        Ok(())
    }

    /// The operand must be a scalar of another shape's element type.
    pub(super) fn scalar_of(&self, index: usize, like: &ShapeProto) -> Check {
        let scalar = self.array(index)?;
        ensure!(scalar.dimensions.is_empty(), "operand {index} is {}, and it must be a scalar", text(scalar));
        self.expect_type(&format!("operand {index}"), scalar, like)
    }

    /// The one entry of `dimensions`, below the rank of operand 0.
    pub(super) fn one_dimension(&self) -> Result<usize, String> {
        let [dim] = self.instruction.dimensions.as_slice() else {
            return Err(format!("it names {} dimensions instead of one", self.instruction.dimensions.len()));
        };
        expect_dim("dimension", *dim, self.array(0)?.dimensions.len())
    }
}
