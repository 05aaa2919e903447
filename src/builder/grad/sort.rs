//! Derivatives of sorts: they go back to where the elements came from.

use super::{Derivatives, Op, Site};
use crate::dtype::DType;

impl<'b> Site<'b> {
    #[track_caller]
    pub(super) fn sort(&self) -> Derivatives<'b> {
        let b = self.result.builder;
        let axis = self.instruction.dimensions[0];
        let comparison = self.called()[0];
        let origins = b.iota(DType::S32, &self.operands[0].dims(), axis);
        let sorted = b.sort_as(comparison, &[&self.operands[..], &[origins]].concat(), axis);
        let order = *sorted.last().ok_or("a sort could not be built")?;
        let given: Vec<Op<'b>> = self.cotangent.iter().copied().flatten().collect();
        let back = b.sort_by(&[&[order], &given[..]].concat(), axis, |pairs| pairs[0].lt(pairs[1]));
        let mut back = back.into_iter().skip(1);
        let mut derivatives: Vec<Option<Op<'b>>> =
            self.cotangent.iter().map(|part| part.and_then(|_| back.next())).collect();
        derivatives.resize(self.operands.len(), None);
        Ok(derivatives)
    }
}
