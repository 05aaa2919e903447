//! Derivatives of operations on each element by itself.

use super::{Derivatives, Site, is_float, not_differentiable};

impl<'b> Site<'b> {
    #[track_caller]
    pub(super) fn elementwise(&self) -> Derivatives<'b> {
        let (opcode, y, g) = (self.instruction.opcode.as_str(), self.result, self.derivative);
        if let [x] = self.operands[..] {
            let derivative = match opcode {
                "negate" => -g,
                "abs" => g * x.sign(),
                "exponential" => g * y,
                "exponential-minus-one" => g * (y + 1),
                "log" => g / x,
                "log-plus-one" => g / (x + 1),
                "sqrt" => g * 0.5 / y,
                "rsqrt" => g * -0.5 * y / x,
                "cbrt" => g / (3.0 * y * y),
                "sine" => g * x.cos(),
                "cosine" => -(g * x.sin()),
                "tan" => g * (1.0 + y * y),
                "tanh" => g * (1.0 - y) * (1.0 + y),
                "logistic" => g * y * (1.0 - y),
                "erf" => g * std::f64::consts::FRAC_2_SQRT_PI * (-(x * x)).exp(),
                "convert" if is_float(x.dtype()) => g.convert(x.dtype()),
                "floor" | "ceil" | "round-nearest-even" | "sign" => return Ok(vec![None]),
                _ => return Err(not_differentiable(opcode)),
            };
            return Ok(vec![Some(derivative)]);
        }
        if let ("select", [predicate, on_true, on_false]) = (opcode, &self.operands[..]) {
            let chosen = self.wanted[1].then(|| predicate.select(g, on_true.zeros_like()));
            let other = self.wanted[2].then(|| predicate.select(on_false.zeros_like(), g));
            return Ok(vec![None, chosen, other]);
        }
        let [a, b] = self.operands[..] else { return Err(not_differentiable(opcode)) };
        let [by_a, by_b] = [self.wanted[0], self.wanted[1]];
        let mut derivatives = vec![None, None];
        match opcode {
            "add" | "subtract" => {
                derivatives[0] = by_a.then_some(g);
                if by_b {
                    derivatives[1] = Some(if opcode == "add" { g } else { -g });
                }
            }
            "multiply" => {
                if by_a {
                    derivatives[0] = Some(g * b);
                }
                if by_b {
                    derivatives[1] = Some(g * a);
                }
            }
            "divide" => {
                if by_a {
                    derivatives[0] = Some(g / b);
                }
                if by_b {
                    derivatives[1] = Some(-g * a / (b * b));
                }
            }
            "power" => {
                if by_a {
                    // 0 to a power of 0 is 1 all around.
                    derivatives[0] = Some(b.eq(0).select(0, g * b * a.pow(b - 1)));
                }
                if by_b {
                    let logarithm = a.eq(0).select(1, a).log();
                    derivatives[1] = Some(a.eq(0).select(0, g * y * logarithm));
                }
            }
            "maximum" | "minimum" => {
                let (a_wins, b_wins) = if opcode == "maximum" { (a.gt(b), b.gt(a)) } else { (a.lt(b), b.lt(a)) };
                let half = a.eq(b).select(g * 0.5, 0);
                if by_a {
                    derivatives[0] = Some(a_wins.select(g, half));
                }
                if by_b {
                    derivatives[1] = Some(b_wins.select(g, half));
                }
            }
            "atan2" => {
                let square = a * a + b * b;
                if by_a {
                    derivatives[0] = Some(g * b / square);
                }
                if by_b {
                    derivatives[1] = Some(-g * a / square);
                }
            }
            "remainder" => {
                derivatives[0] = by_a.then_some(g);
                if by_b {
                    let quotient = a / b;
                    derivatives[1] = Some(-g * quotient.sign() * quotient.abs().floor());
                }
            }
            _ => return Err(not_differentiable(opcode)),
        }
        Ok(derivatives)
    }
}
