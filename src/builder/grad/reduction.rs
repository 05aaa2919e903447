//! Derivatives of reductions.

use super::{Derivatives, Op, Site, not_differentiable};
use crate::hlo::shape;
use crate::proto::{HloInstructionDetails, HloInstructionProto};

impl<'b> Site<'b> {
    #[track_caller]
    pub(super) fn reduce(&self) -> Derivatives<'b> {
        let (g, x, y) = (self.derivative, self.operands[0], self.result);
        let dims = x.dims();
        let reduced = &self.instruction.dimensions;
        let kept: Vec<i64> = (0..dims.len() as i64).filter(|dim| !reduced.contains(dim)).collect();
        if self.operands.len() != 2 || self.wanted[1] {
            return Err(not_differentiable("a reduction with such operands"));
        }
        let spread = g.broadcast_in_dim(&dims, &kept);
        let derivative = match self.reducer().as_deref() {
            Some("add") => spread,
            Some("maximum" | "minimum") => {
                let is_chosen = x.eq(y.broadcast_in_dim(&dims, &kept)).convert(x.dtype());
                let count = is_chosen.sum(reduced).broadcast_in_dim(&dims, &kept);
                spread * is_chosen / count
            }
            Some("multiply") => spread * product_of_others(x, &kept, reduced),
            other => return Err(not_differentiable(&by_other("a reduction", other))),
        };
        Ok(vec![Some(derivative), None])
    }

    /// Maxima and minima over windows: the derivative goes to the first element of each that compares so with all others. What
    /// surrounds the array is padded first, as plugins for CPUs want it, and is never chosen before an element.
    #[track_caller]
    fn chosen_in_windows(&self, outside: f64, keeps: fn(Op<'b>, Op<'b>) -> Op<'b>) -> Derivatives<'b> {
        let (b, g, x) = (self.result.builder, self.derivative, self.operands[0]);
        let mut window = (*self.instruction.details().window).clone();
        let around: Vec<(i64, i64, i64)> =
            window.dimensions.iter().map(|dim| (dim.padding_low, dim.padding_high, 0)).collect();
        window.dimensions.iter_mut().for_each(|dim| (dim.padding_low, dim.padding_high) = (0, 0));
        let scalars = [shape::scalar(x.dtype()), shape::scalar(x.dtype())];
        let select = b.function("select", &scalars, None, |pair| keeps(pair[0], pair[1]));
        let (Some(select), Some(adder)) = (select, b.reducer("add", g.dtype())) else {
            return Err("a choice in windows could not be built".to_owned());
        };
        let padded = x.pad(outside, &around);
        let scatter = HloInstructionProto::new("select-and-scatter")
            .with_details(HloInstructionDetails { window: Some(window).into(), ..Default::default() });
        let made = b.push_calling(scatter, &[padded, g, b.scalar(g.dtype(), 0)], &[select, adder]);
        let back: Vec<(i64, i64, i64)> = around.iter().map(|(low, high, _)| (-low, -high, 0)).collect();
        Ok(vec![Some(made.pad(0, &back)), None])
    }

    /// Reductions over windows. In a sum, each element has its part in the windows that it lies in.
    #[track_caller]
    pub(super) fn reduce_window(&self) -> Derivatives<'b> {
        let window = &self.instruction.details().window.dimensions;
        let is_plain = window.iter().all(|dim| dim.base_dilation == 1 && dim.window_dilation == 1);
        if self.operands.len() != 2 || self.wanted[1] || !is_plain {
            return Err(not_differentiable("a reduction over windows with such operands"));
        }
        match self.reducer().as_deref() {
            Some("add") => {}
            Some("maximum") => return self.chosen_in_windows(f64::NEG_INFINITY, |a, b| a.ge(b)),
            Some("minimum") => return self.chosen_in_windows(f64::INFINITY, |a, b| a.le(b)),
            other => return Err(not_differentiable(&by_other("a reduction over windows", other))),
        }
        let (g, dims) = (self.derivative, self.operands[0].dims());
        let mut padding = Vec::with_capacity(dims.len());
        for ((dim, &size), windows) in window.iter().zip(&dims).zip(g.dims()) {
            let low = dim.size - 1 - dim.padding_low;
            let spread = (windows - 1) * dim.stride + 1;
            padding.push((low, size + dim.size - 1 - spread - low, dim.stride - 1));
        }
        let sizes: Vec<i64> = window.iter().map(|dim| dim.size).collect();
        let (ones, none) = (vec![1; dims.len()], vec![(0, 0); dims.len()]);
        let sums = g.pad(0, &padding).reduce_window(0, &sizes, &ones, &none, |a, b| a + b);
        Ok(vec![Some(sums), None])
    }
}

/// What a reduction does that has no derivative.
fn by_other(what: &str, reducer: Option<&str>) -> String {
    match reducer {
        Some(opcode) => format!("{what} by '{opcode}'"),
        None => format!("{what} by a function of several operations"),
    }
}

/// For each element the product of all others that it is reduced with, also where there are zeros among them.
#[track_caller]
fn product_of_others<'b>(x: Op<'b>, kept: &[i64], reduced: &[i64]) -> Op<'b> {
    let order = [kept, reduced].concat();
    let lined_up = x.transpose(&order);
    let kept_dims: Vec<i64> = kept.iter().map(|&dim| x.dim(dim)).collect();
    let count: i64 = reduced.iter().map(|&dim| x.dim(dim)).product();
    let rows = lined_up.reshape(&[&kept_dims[..], &[count]].concat());
    let last = [kept.len() as i64];
    let others = products_before(rows) * products_before(rows.reverse(&last)).reverse(&last);
    let mut places = vec![0; order.len()];
    for (place, &dim) in order.iter().enumerate() {
        places[dim as usize] = place as i64;
    }
    others.reshape(&lined_up.dims()).transpose(&places)
}

/// For each element the product of those before it along the last dimension, in steps that double.
#[track_caller]
fn products_before<'b>(rows: Op<'b>) -> Op<'b> {
    let rank = rows.rank();
    let moved = |rows: Op<'b>, by: i64| {
        let mut padding = vec![(0, 0, 0); rank];
        padding[rank - 1] = (by, -by, 0);
        rows.pad(1, &padding)
    };
    let count = rows.dim(-1);
    let mut products = moved(rows, 1);
    let mut by = 1;
    while by < count {
        products = products * moved(products, by);
        by *= 2;
    }
    products
}
