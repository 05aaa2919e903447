//! What a rejected text says: where, the line, a caret and the reason.

use std::fmt;

/// A text that is no HLO module, or one that this parser cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The file's name as the caller gave it.
    pub file: String,
    /// Line of the offending text, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong and what was expected.
    pub message: String,
    excerpt: String,
    caret: usize,
}

impl std::error::Error for ParseError {}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        let number = self.line.to_string();
        writeln!(f, "{}", format!("{number} | {}", self.excerpt).trim_end())?;
        write!(f, "{:margin$} | {:caret$}^", "", "", margin = number.len(), caret = self.caret)
    }
}

/// A failure while parsing: a byte offset and the message. Boxed, so that results stay one word.
pub(super) type Failure = Box<(usize, String)>;

pub(super) type Result<T> = std::result::Result<T, Failure>;

/// Characters of a line that are shown on either side of the caret.
const EXCERPT: usize = 90;

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

    pub(super) fn new(file: &str, text: &str, offset: usize, mut message: String) -> ParseError {
        if message.len() > LONGEST_MESSAGE {
            message.truncate(floor_char_boundary(&message, LONGEST_MESSAGE));
            message.push_str("...");
        }
        let offset = floor_char_boundary(text, offset);
        let line_start = text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[offset..].find('\n').map_or(text.len(), |length| offset + length);
        let before: Vec<char> = text[line_start..offset].chars().map(printable).collect();
        let after = text[offset..line_end].trim_end_matches('\r').chars().map(printable);
        let cut = before.len().saturating_sub(EXCERPT);
        let mut excerpt = String::new();
        if cut > 0 {
            excerpt.push_str("...");
        }
        excerpt.extend(&before[cut..]);
        let caret = excerpt.chars().count();
        excerpt.extend(after.clone().take(EXCERPT));
        if after.count() > EXCERPT {
            excerpt.push_str("...");
        }
        ParseError {
            file: file.to_owned(),
            line: text[..line_start].bytes().filter(|&byte| byte == b'\n').count() + 1,
            column: before.len() + 1,
            message,
            excerpt,
            caret,
        }
    }
}

/// Tabs become spaces so that the caret stands under its character; control characters never reach a terminal.
fn printable(character: char) -> char {
    match character {
        '\t' => ' ',
        character if character.is_control() => '\u{fffd}',
        character => character,
    }
}

fn floor_char_boundary(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
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
        assert_eq!(find("-:99:1: error: x").map(|error| error.line), Some(6));
        for elsewhere in
            ["", "model.py:3:10: error: x", "a-:3:10: error: x", "-:3:10: note: x", "-:0:0: error: x", "-:3"]
        {
            assert!(find(elsewhere).is_none(), "{elsewhere}");
        }
    }

    #[test]
    fn long_lines_are_cut_around_the_caret() {
        let text = format!("{}\n{}?{}", "first", "a".repeat(500), "b".repeat(500));
        let error = ParseError::new("f", &text, 506, "odd".into());
        assert_eq!((error.line, error.column), (2, 501));
        let shown = error.to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1].find('?'), lines[2].find('^'));
        assert!(lines[1].len() < 250);
    }
}
