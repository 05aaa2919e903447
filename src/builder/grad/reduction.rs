//! Derivatives of reductions.

use super::{Derivatives, Op, Site, not_differentiable};

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
            _ => return Err(not_differentiable("a reduction by other than sum, product, maximum and minimum")),
        };
        Ok(vec![Some(derivative), None])
    }

    /// Sums over windows: each element has its part in the windows that it lies in.
    #[track_caller]
    pub(super) fn reduce_window(&self) -> Derivatives<'b> {
        let window = &self.instruction.details().window.dimensions;
        let is_plain = window.iter().all(|dim| dim.base_dilation == 1 && dim.window_dilation == 1);
        if self.operands.len() != 2 || self.wanted[1] || !is_plain || self.reducer().as_deref() != Some("add") {
            return Err(not_differentiable("a reduction over windows by other than sum"));
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
