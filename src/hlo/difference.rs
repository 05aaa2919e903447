use std::fmt;

use super::{Program, print};

/// Where two programs begin to differ. It is shown as `in ENTRY %main:` and a line of each program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The computation, or function, as its first line reads; empty outside of any.
    pub within: String,
    /// The line of the first program, usually an instruction; empty past its end.
    pub first: String,
    /// The line of the second program in its place.
    pub second: String,
}

/// Finds the first instruction in which two programs differ; `None` if they are the same, or neither has text.
pub fn first_difference(first: &Program, second: &Program) -> Option<Difference> {
    let (first, second) = (text(first)?, text(second)?);
    let (mut first, mut second) = (first.lines(), second.lines());
    let mut within = "";
    // The names of modules tell less than what is in them.
    let is_header = |line: &str| line.starts_with("HloModule ");
    let headers = match (first.clone().next(), second.clone().next()) {
        (Some(one), Some(other)) if is_header(one) && is_header(other) => {
            first.next();
            second.next();
            (one != other).then(|| Difference { within: String::new(), first: one.into(), second: other.into() })
        }
        _ => None,
    };
    loop {
        match (first.next(), second.next()) {
            (None, None) => return headers,
            (Some(one), Some(other)) if one == other => {
                if one.ends_with('{') {
                    within = one.trim_end_matches('{').trim();
                } else if one.trim() == "}" {
                    within = "";
                }
            }
            (one, other) => {
                let line = |line: Option<&str>| line.unwrap_or_default().trim().to_owned();
                return Some(Difference { within: within.to_owned(), first: line(one), second: line(other) });
            }
        }
    }
}

fn text(program: &Program) -> Option<String> {
    match program {
        Program::Hlo(module) => Some(print(module)),
        Program::Mlir(code) => String::from_utf8(code.clone()).ok(),
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |line: &str| if line.is_empty() { "nothing".to_owned() } else { line.to_owned() };
        if !self.within.is_empty() {
            write!(f, "in {}", self.within)?;
        }
        write!(f, ":\n  {}\n  {}", shown(&self.first), shown(&self.second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::parse;

    #[test]
    fn the_first_differing_instruction_is_found() {
        let program = |operation: &str| {
            let text = format!(
                "HloModule m\n\nENTRY main {{\n  x = f32[4] parameter(0)\n  y = f32[4] {operation}(x, x)\n  ROOT z = f32[4] \
                 negate(y)\n}}"
            );
            Program::Hlo(parse(&text, "m.hlo").unwrap())
        };
        assert_eq!(first_difference(&program("add"), &program("add")), None);
        insta::assert_snapshot!(first_difference(&program("add"), &program("multiply")).unwrap(), @"
        in ENTRY %main:
          %y = f32[4] add(%x, %x)
          %y = f32[4] multiply(%x, %x)
        ");
        let renamed = |name: &str| {
            Program::Hlo(
                parse(&format!("HloModule {name}\nENTRY e {{\n  ROOT x = f32[] parameter(0)\n}}"), "m").unwrap(),
            )
        };
        assert!(first_difference(&renamed("a"), &renamed("b")).unwrap().second.starts_with("HloModule b"));
        let mlir = |text: &str| Program::Mlir(text.into());
        let longer = first_difference(&mlir("module {\n  a\n}"), &mlir("module {\n  a\n  b\n}")).unwrap();
        assert_eq!((&*longer.within, &*longer.first, &*longer.second), ("module", "}", "b"));
        assert_eq!(first_difference(&mlir("same"), &program("add")).unwrap().first, "same");
    }
}
