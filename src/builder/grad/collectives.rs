//! Derivatives of collectives, and of the borders between whole arrays and the parts of devices.
//!
//! All devices together are one function, of which a collective is a linear part: its derivative is the transposed
//! collective. What is the same on several devices is a sum over them, of which each has a share.

use super::{Derivatives, Op, Site, not_differentiable};
use crate::builder::Builder;
use crate::builder::region::Region;
use crate::proto::{HloInstructionProto, SourceTarget};

impl<'b> Site<'b> {
    #[track_caller]
    pub(super) fn collective(&self) -> Derivatives<'b> {
        let (b, g, x) = (self.result.builder, self.derivative, self.operands[0]);
        let mut back = self.instruction.clone();
        back.shape = x.shape().into();
        let made = match back.opcode.as_str() {
            "all-reduce" if self.reducer().as_deref() == Some("add") => b.push_calling(back, &[g], &self.called()),
            "all-reduce" => return Err(not_differentiable("a maximum or minimum over devices")),
            "all-gather" => {
                back.opcode = "reduce-scatter".into();
                let adder = b.reducer("add", g.dtype()).ok_or("a sum could not be built")?;
                b.push_calling(back, &[g], &[adder])
            }
            "reduce-scatter" => {
                back.opcode = "all-gather".into();
                b.push(back, &[g])
            }
            "collective-permute" => {
                let turned = |pair: &SourceTarget| SourceTarget {
                    source: pair.target,
                    target: pair.source,
                    ..SourceTarget::default()
                };
                let pairs = self.instruction.details().source_target_pairs.iter().map(turned).collect();
                back.details_mut().source_target_pairs = pairs;
                b.push(back, &[g])
            }
            // What came from a device goes back to it.
            _ => b.push(back, &[g]),
        };
        Ok(vec![Some(made)])
    }

    /// A change of where values lie, or of whether they are whole.
    #[track_caller]
    pub(super) fn border(&self) -> Derivatives<'b> {
        let (b, g) = (self.result.builder, self.derivative);
        let border = self.result.id.and_then(|id| b.graph().borders.get(&id).cloned());
        let made = match (self.instruction.details().custom_call_target.as_str(), border) {
            ("Sharding", _) => {
                let mut back = self.instruction.clone();
                back.shape = g.shape().into();
                b.push(back, &[g])
            }
            ("SPMDFullToShardShape", Some((region, spec))) => {
                b.whole_of(&region, b.summed_over(&region, g, &region.others(&spec)), &spec)
            }
            ("SPMDShardToFullShape", Some((region, spec))) => {
                let sizes = region.others(&spec).into_iter().filter_map(|axis| region.mesh.axis_size(axis));
                let copies: usize = sizes.product();
                b.part_of(&region, if copies == 1 { g } else { g / copies as f64 }, &spec)
            }
            _ => return Err(not_differentiable("a custom call")),
        };
        Ok(vec![Some(made)])
    }
}

impl Builder {
    /// The sum over devices of what they hold outside of a manual region.
    #[track_caller]
    fn summed_over<'b>(&'b self, region: &Region, part: Op<'b>, axes: &[&str]) -> Op<'b> {
        let Some(shape) = part.shape().filter(|_| !axes.is_empty()) else { return part };
        let function = self.function("sum", &[shape], Some(region.clone()), |parts| self.tuple(&[parts[0].psum(axes)]));
        match function {
            Some(function) => self.push_calling(HloInstructionProto::new("call"), &[part], &[function]).element(0),
            None => self.failed(),
        }
    }
}
