//! What a rejected text is told: where and why.

use crate::hlo::source::{Position, floor_char_boundary};

/// A text that is no HLO module, or one that this parser cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", position.report(message))]
pub struct ParseError {
    /// Where it is wrong.
    pub position: Position,
    /// What is wrong and what was expected.
    pub message: String,
}

/// A failure while parsing: a byte offset and the message. Boxed, so that results stay one word.
pub(super) type Failure = Box<(usize, String)>;

pub(super) type Result<T> = std::result::Result<T, Failure>;

/// Bytes of a message; shapes in it can be long.
const LONGEST_MESSAGE: usize = 1000;

impl ParseError {
    /// The first error that MLIR's parser, inside a plugin, found in a program's text, from the plugin's own message:
    /// `-:3:28: error: use of undeclared SSA value name`. `None` if the message names no place in the text, as for
    /// bytecode. `file` is the file's name.
    pub fn from_mlir_diagnostic(file: &str, text: &[u8], diagnostic: &str) -> Option<ParseError> {
        const HERE: &str = "-:";
        let text = std::str::from_utf8(text).ok()?;
        diagnostic.lines().find_map(|line| {
            let start = line.match_indices(HERE).map(|(at, _)| at);
            let mut start = start.filter(|&at| at == 0 || line[..at].ends_with(' '));
            let mut parts = line[start.next()? + HERE.len()..].splitn(3, ':');
            let (line, column) = (parts.next()?.parse::<usize>().ok()?, parts.next()?.parse::<usize>().ok()?);
            let message = parts.next()?.trim().strip_prefix("error:")?.trim_start();
            let before: usize = text.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
            Some(ParseError::new(file, text, before.saturating_add(column.saturating_sub(1)), message.to_owned()))
        })
    }

    pub(in crate::hlo) fn new(file: &str, text: &str, offset: usize, mut message: String) -> ParseError {
        if message.len() > LONGEST_MESSAGE {
            message.truncate(floor_char_boundary(&message, LONGEST_MESSAGE));
            message.push_str("...");
        }
        ParseError { position: Position::new(file, text, offset), message }
    }
}

/// Candidates that `nearest` looks at; the rest would cost more than the hint is worth.
const CANDIDATES: usize = 10_000;

/// Longest name that `nearest` compares.
const LONGEST_NAME: usize = 64;

/// The candidate that `name` is probably a misspelling of.
pub(super) fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    if name.len() > LONGEST_NAME {
        return None;
    }
    let limit = (name.len() / 3).max(usize::from(name.len() > 1));
    candidates
        .into_iter()
        .take(CANDIDATES)
        .filter(|candidate| candidate.len() <= LONGEST_NAME && candidate.len().abs_diff(name.len()) <= limit)
        .map(|candidate| (edit_distance(name.as_bytes(), candidate.as_bytes()), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// The end of a message about an unknown name: `; did you mean 'all-reduce'?`, or nothing.
pub(super) fn hint<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> String {
    nearest(name, candidates).map(|candidate| format!("; did you mean '{candidate}'?")).unwrap_or_default()
}

/// The hint, or what `otherwise` says if no candidate is near.
pub(super) fn hint_or<'c>(
    name: &str,
    candidates: impl IntoIterator<Item = &'c str>,
    otherwise: impl FnOnce() -> String,
) -> String {
    let hint = hint(name, candidates);
    if hint.is_empty() { otherwise() } else { hint }
}

fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &byte) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &other) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(byte != other);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_names() {
        let opcodes = ["add", "all-reduce", "all-gather"];
        assert_eq!(nearest("all-redcue", opcodes), Some("all-reduce"));
        assert_eq!(nearest("ad", opcodes), Some("add"));
        assert_eq!(nearest("multiply", opcodes), None);
    }

    #[test]
    fn errors_of_mlir_are_found_in_the_text() {
        let text = "module {\n  func.func @main() {\n    %0 = nope\n  }\n}\n";
        let find = |message: &str| ParseError::from_mlir_diagnostic("m.mlir", text.as_bytes(), message);
        let error = find(
            "PJRT_Client_Compile: -:3:10: error: custom op 'nope' is unknown\n<unknown>:0: error: Failed\n (UNKNOWN)",
        );
        insta::assert_snapshot!(error.unwrap(), @r"
        m.mlir:3:10: custom op 'nope' is unknown
        3 |     %0 = nope
          |          ^
        ");
        assert_eq!(find("-:99:1: error: x").map(|error| error.position.line), Some(6));
        for elsewhere in
            ["", "model.py:3:10: error: x", "a-:3:10: error: x", "-:3:10: note: x", "-:0:0: error: x", "-:3"]
        {
            assert!(find(elsewhere).is_none(), "{elsewhere}");
        }
    }
}
