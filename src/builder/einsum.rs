//! Equations of indices as a dot product.

use super::{DotDims, Op};

struct Equation {
    left: Vec<char>,
    right: Vec<char>,
    result: Vec<char>,
}

fn parse(equation: &str) -> Result<Equation, String> {
    let form = || format!("'{equation}' is no equation of the form ab,bc->ac");
    let (operands, result) = equation.split_once("->").ok_or_else(form)?;
    let (left, right) = operands.split_once(',').ok_or_else(form)?;
    let indices = |text: &str| {
        let indices: Vec<char> = text.trim().chars().collect();
        let twice = indices.iter().enumerate().any(|(place, index)| indices[..place].contains(index));
        let letters = indices.iter().all(char::is_ascii_alphabetic);
        if letters && !twice { Ok(indices) } else { Err(format!("'{text}' must be letters, each once")) }
    };
    let equation = Equation { left: indices(left)?, right: indices(right)?, result: indices(result)? };
    let known = |index: &&char| !equation.left.contains(index) && !equation.right.contains(index);
    match equation.result.iter().find(known) {
        Some(index) => Err(format!("the result has the index '{index}', which no operand has")),
        None => Ok(equation),
    }
}

#[track_caller]
pub(super) fn einsum<'b>(equation: &str, left: Op<'b>, right: Op<'b>) -> Op<'b> {
    let builder = left.builder;
    let equation = match parse(equation) {
        Ok(equation) => equation,
        Err(message) => return builder.fail("einsum", message),
    };
    for (operand, indices) in [(left, &equation.left), (right, &equation.right)] {
        let Some((_, dims)) = operand.array("einsum") else { return builder.failed() };
        if dims.len() != indices.len() {
            let (text, indices) = (operand.text(), indices.iter().collect::<String>());
            return builder.fail(
                "einsum",
                format!("{text} has {} dimensions, and '{indices}' names {}", dims.len(), indices.len()),
            );
        }
    }
    // What only one side has and the result lacks is summed before.
    let (left, of_left) = sum_lonely(left, &equation.left, &equation.right, &equation.result);
    let (right, of_right) = sum_lonely(right, &equation.right, &equation.left, &equation.result);
    let mut dims = DotDims::default();
    let mut order = Vec::new();
    for (place, index) in of_left.iter().enumerate() {
        let Some(partner) = of_right.iter().position(|other| other == index) else { continue };
        if equation.result.contains(index) {
            dims.lhs_batch.push(place as i64);
            dims.rhs_batch.push(partner as i64);
            order.push(*index);
        } else {
            dims.lhs_contracting.push(place as i64);
            dims.rhs_contracting.push(partner as i64);
        }
    }
    order.extend(of_left.iter().filter(|index| !of_right.contains(index)));
    order.extend(of_right.iter().filter(|index| !of_left.contains(index)));
    let places = equation.result.iter().filter_map(|index| order.iter().position(|other| other == index));
    let places: Vec<i64> = places.map(|place| place as i64).collect();
    left.dot_general(right, &dims).transpose(&places)
}

#[track_caller]
fn sum_lonely<'b>(operand: Op<'b>, indices: &[char], other: &[char], result: &[char]) -> (Op<'b>, Vec<char>) {
    let is_lonely = |index: &char| !other.contains(index) && !result.contains(index);
    let lonely: Vec<i64> = (0..).zip(indices).filter(|(_, index)| is_lonely(index)).map(|(place, _)| place).collect();
    let kept = indices.iter().copied().filter(|index| !is_lonely(index)).collect();
    let operand = if lonely.is_empty() { operand } else { operand.sum(&lonely) };
    (operand, kept)
}
