//! Derivatives of operations that move elements: the derivatives move back.

use super::{Op, Site};
use crate::proto::padding_config::PaddingConfigDimension;

impl<'b> Site<'b> {
    #[track_caller]
    pub(super) fn movement(&self) -> Vec<Option<Op<'b>>> {
        let (g, x) = (self.derivative, self.operands[0]);
        let dims = x.dims();
        match self.instruction.opcode.as_str() {
            "broadcast" => {
                let kept = &self.instruction.dimensions;
                let added: Vec<i64> = (0..g.rank() as i64).filter(|dim| !kept.contains(dim)).collect();
                vec![Some(if added.is_empty() { g } else { g.sum(&added) })]
            }
            "reshape" => vec![Some(g.reshape(&dims))],
            "transpose" => {
                let mut inverse = vec![0; dims.len()];
                for (to, &from) in self.instruction.dimensions.iter().enumerate() {
                    inverse[from as usize] = to as i64;
                }
                vec![Some(g.transpose(&inverse))]
            }
            "slice" => {
                let mut padding = Vec::with_capacity(dims.len());
                for ((slice, &size), &kept) in
                    self.instruction.details().slice_dimensions.iter().zip(&dims).zip(&g.dims())
                {
                    let spread = if kept == 0 { 0 } else { (kept - 1) * slice.stride + 1 };
                    padding.push((slice.start, size - slice.start - spread, slice.stride - 1));
                }
                vec![Some(g.pad(0, &padding))]
            }
            "pad" => self.pad(&dims),
            "concatenate" => {
                let dim = self.instruction.dimensions[0];
                let mut start = 0;
                let mut parts = Vec::with_capacity(self.operands.len());
                for (operand, wanted) in self.operands.iter().zip(&self.wanted) {
                    let end = start + operand.dim(dim);
                    parts.push(if *wanted { Some(g.slice(dim, start..end)) } else { None });
                    start = end;
                }
                parts
            }
            "reverse" => vec![Some(g.reverse(&self.instruction.dimensions))],
            "dynamic-slice" => vec![Some(x.zeros_like().dynamic_update_slice(g, &self.operands[1..]))],
            _ => {
                let (update, starts) = (self.operands[1], &self.operands[2..]);
                let mut derivatives = vec![None, None];
                if self.wanted[0] {
                    derivatives[0] = Some(g.dynamic_update_slice(update.zeros_like(), starts));
                }
                if self.wanted[1] {
                    derivatives[1] = Some(g.dynamic_slice(starts, &update.dims()));
                }
                derivatives
            }
        }
    }

    #[track_caller]
    fn pad(&self, dims: &[i64]) -> Vec<Option<Op<'b>>> {
        let g = self.derivative;
        let config = &self.instruction.details().padding_config.dimensions;
        let back = |dim: &PaddingConfigDimension| (-dim.edge_padding_low, -dim.edge_padding_high, 0);
        let back: Vec<(i64, i64, i64)> = config.iter().map(back).collect();
        let strides: Vec<i64> = config.iter().map(|dim| dim.interior_padding + 1).collect();
        let spread = g.pad(0, &back);
        let own = spread.strided_slice(&vec![0; dims.len()], &spread.dims(), &strides);
        let of_value = if self.wanted[1] { Some(g.sum(&[]) - own.sum(&[])) } else { None };
        vec![Some(own), of_value]
    }
}
