//! How often a loop turns, where that can be told before it runs.

use serde::Deserialize;

use super::graph::Graph;
use crate::hlo::literal::{self, Scalar};
use crate::proto::HloInstructionProto;

/// Instructions that pass a value on; more of them in a row are not looked through.
const MAX_STEPS: usize = 64;

/// What XLA's compiler leaves on loops.
#[derive(Deserialize)]
struct BackendConfig {
    known_trip_count: Option<KnownTripCount>,
}

#[derive(Deserialize)]
struct KnownTripCount {
    /// A 64-bit number, which protobuf's JSON writes as text.
    n: String,
}

/// A scalar that a loop carries or that stands outside of it.
#[derive(Clone, Copy)]
enum Value {
    Constant(i128),
    /// An element of the computation's only parameter.
    Carried(i64),
}

/// The trip count that the compiler noted, else that of a counting loop: a carried integer that starts at a constant,
/// grows or shrinks by a constant with every turn, and is compared with a constant or with a carried value that stays.
pub(super) fn trip_count(graph: &Graph, caller: usize, instruction: &HloInstructionProto) -> Option<u64> {
    noted(instruction).or_else(|| counted(graph, caller, instruction))
}

fn noted(instruction: &HloInstructionProto) -> Option<u64> {
    let config: BackendConfig = serde_json::from_slice(&instruction.details().backend_config).ok()?;
    config.known_trip_count?.n.parse().ok()
}

fn counted(graph: &Graph, caller: usize, instruction: &HloInstructionProto) -> Option<u64> {
    let [body, condition] = instruction.called_computation_ids[..] else { return None };
    let (body, condition) = (graph.find(body)?, graph.find(condition)?);
    let root = forwarded(graph, condition, graph.computation(condition).root_id)?;
    let [left, right] = root.operand_ids[..] else { return None };
    if root.opcode != "compare" {
        return None;
    }
    let direction = root.details().comparison_direction.as_str();
    let (counter, direction, limit) = match (value(graph, condition, left)?, value(graph, condition, right)?) {
        (Value::Carried(counter), limit) if step(graph, body, counter).is_some_and(|step| step != 0) => {
            (counter, direction, limit)
        }
        (limit, Value::Carried(counter)) => (counter, mirrored(direction), limit),
        _ => return None,
    };
    let initial = *instruction.operand_ids.first()?;
    let limit = match limit {
        Value::Constant(limit) => limit,
        Value::Carried(element) if step(graph, body, element)? == 0 => start(graph, caller, initial, element)?,
        Value::Carried(_) => return None,
    };
    trips(start(graph, caller, initial, counter)?, direction, limit, step(graph, body, counter)?)
}

/// Turns of a loop that counts from `start` by `step` for as long as the comparison with `limit` holds.
fn trips(start: i128, direction: &str, limit: i128, step: i128) -> Option<u64> {
    let distance = limit.checked_sub(start)?;
    let turns = match direction {
        "LT" if distance <= 0 => 0,
        "GT" if distance >= 0 => 0,
        "LE" if distance < 0 => 0,
        "GE" if distance > 0 => 0,
        "LT" if step > 0 => (distance - 1) / step + 1,
        "GT" if step < 0 => (distance + 1) / step + 1,
        "LE" if step > 0 => distance / step + 1,
        "GE" if step < 0 => distance / step + 1,
        "NE" if step != 0 && distance % step == 0 => distance / step,
        _ => return None,
    };
    u64::try_from(turns).ok()
}

fn mirrored(direction: &str) -> &str {
    match direction {
        "LT" => "GT",
        "GT" => "LT",
        "LE" => "GE",
        "GE" => "LE",
        same => same,
    }
}

/// By how much the body changes an element of what the loop carries, if that is the same with every turn.
fn step(graph: &Graph, body: usize, element: i64) -> Option<i128> {
    let root = forwarded(graph, body, graph.computation(body).root_id)?;
    if root.opcode != "tuple" {
        return None;
    }
    let next = *root.operand_ids.get(usize::try_from(element).ok()?)?;
    let is_element = |value: Option<Value>| matches!(value, Some(Value::Carried(carried)) if carried == element);
    if is_element(value(graph, body, next)) {
        return Some(0);
    }
    let next = forwarded(graph, body, next)?;
    let [left, right] = next.operand_ids[..] else { return None };
    match (next.opcode.as_str(), value(graph, body, left), value(graph, body, right)) {
        ("add", counter, Some(Value::Constant(step))) | ("add", Some(Value::Constant(step)), counter)
            if is_element(counter) =>
        {
            Some(step)
        }
        ("subtract", counter, Some(Value::Constant(step))) if is_element(counter) => step.checked_neg(),
        _ => None,
    }
}

/// The constant that an element of what the loop is given has.
fn start(graph: &Graph, caller: usize, initial: i64, element: i64) -> Option<i128> {
    let tuple = forwarded(graph, caller, initial)?;
    if tuple.opcode != "tuple" {
        return None;
    }
    match value(graph, caller, *tuple.operand_ids.get(usize::try_from(element).ok()?)?)? {
        Value::Constant(start) => Some(start),
        Value::Carried(_) => None,
    }
}

fn value(graph: &Graph, computation: usize, id: i64) -> Option<Value> {
    let instruction = forwarded(graph, computation, id)?;
    match instruction.opcode.as_str() {
        "constant" => {
            let mut found = None;
            let mut count = 0;
            literal::for_each_element(&instruction.literal, |element| {
                count += 1;
                if let Scalar::Int(number) = element {
                    found = Some(number);
                }
            })
            .ok()?;
            found.filter(|_| count == 1).map(Value::Constant)
        }
        "get-tuple-element" => {
            let tuple = forwarded(graph, computation, *instruction.operand_ids.first()?)?;
            (tuple.opcode == "parameter").then_some(Value::Carried(instruction.tuple_index))
        }
        _ => None,
    }
}

/// The instruction whose value this one passes on unchanged.
fn forwarded<'a>(graph: &Graph<'a>, computation: usize, id: i64) -> Option<&'a HloInstructionProto> {
    let mut instruction = graph.instruction(computation, id)?;
    for _ in 0..MAX_STEPS {
        let operand = graph.instruction(computation, *instruction.operand_ids.first().unwrap_or(&-1));
        let element = operand.filter(|operand| instruction.opcode == "get-tuple-element" && operand.opcode == "tuple");
        instruction = match (instruction.opcode.as_str(), element) {
            ("copy" | "reshape" | "bitcast" | "opt-barrier", _) => operand?,
            (_, Some(tuple)) => {
                let index = usize::try_from(instruction.tuple_index).ok()?;
                graph.instruction(computation, *tuple.operand_ids.get(index)?)?
            }
            _ => return Some(instruction),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo;

    #[test]
    fn turns_of_counting_loops() {
        assert_eq!(trips(0, "LT", 10, 1), Some(10));
        assert_eq!(trips(0, "LT", 10, 3), Some(4));
        assert_eq!(trips(5, "LT", 5, 1), Some(0));
        assert_eq!(trips(1, "LE", 10, 3), Some(4));
        assert_eq!(trips(9, "GE", 0, -1), Some(10));
        assert_eq!(trips(9, "GT", 0, -2), Some(5));
        assert_eq!(trips(0, "NE", 12, 4), Some(3));
        assert_eq!(trips(0, "NE", 12, 5), None);
        assert_eq!(trips(0, "LT", 10, 0), None);
        assert_eq!(trips(0, "LT", 10, -1), None);
        assert_eq!(trips(0, "EQ", 10, 1), None);
    }

    /// The trip count of a loop with this condition and this next value of its counter.
    fn of_loop(condition: &str, next: &str, attributes: &str) -> Option<u64> {
        let text = format!(
            "HloModule m

condition {{
  p = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ten = s32[] constant(10)
  ROOT more = pred[] compare({condition}
}}

body {{
  p = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  two = s32[] constant(2)
  next = s32[] {next}
  ROOT result = (s32[], s32[]) tuple(next, n)
}}

ENTRY main {{
  zero = s32[] constant(0)
  seven = s32[] constant(7)
  start = (s32[], s32[]) tuple(zero, seven)
  ROOT loop = (s32[], s32[]) while(start), condition=condition, body=body{attributes}
}}"
        );
        let module = hlo::parse(&text, "loop.hlo").unwrap_or_else(|error| panic!("{error}"));
        let walk = Graph::new(&module.proto).walk();
        assert_eq!(walk.loops.len(), 1);
        walk.loops[0].trip_count
    }

    #[test]
    fn loops_are_recognised() {
        assert_eq!(of_loop("i, ten), direction=LT", "add(i, two)", ""), Some(5));
        assert_eq!(of_loop("ten, i), direction=GE", "add(two, i)", ""), Some(6));
        assert_eq!(of_loop("i, n), direction=LT", "add(i, two)", ""), Some(4));
        assert_eq!(of_loop("n, i), direction=GT", "add(i, two)", ""), Some(4));
        assert_eq!(of_loop("i, n), direction=LT", "multiply(i, two)", ""), None);
        assert_eq!(of_loop("i, n), direction=LT", "subtract(i, two)", ""), None);
        let noted = ", backend_config={\"known_trip_count\":{\"n\":\"12\"}}";
        assert_eq!(of_loop("i, n), direction=LT", "multiply(i, two)", noted), Some(12));
    }
}
