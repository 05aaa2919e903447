//! Places in the text of a module, as messages show them.

use std::fmt;

/// The text that a module was parsed from, and where its computations and instructions stand there.
///
/// Ids are those that the parser gave. A pass that changes ids or adds instructions drops the source.
pub struct Source {
    pub(super) file: String,
    pub(super) text: String,
    /// In the order of their ids, which are counted from 0.
    pub(super) computations: Vec<Places>,
}

/// Byte offsets of a computation's name and of its instructions' names. An instruction that has none in the text stands
/// where the text asks for it.
pub(super) struct Places {
    pub(super) name: usize,
    /// In the order of their ids, whose lower 32 bits are counted from 0.
    pub(super) instructions: Vec<usize>,
}

impl Source {
    /// Where the name of the instruction with this id stands; `None` if the text has no such instruction.
    pub fn locate_instruction(&self, id: i64) -> Option<Position> {
        let (computation, local) = (id >> 32, id & i64::from(u32::MAX));
        let offset = self.places(computation)?.instructions.get(usize::try_from(local).ok()?)?;
        Some(Position::new(&self.file, &self.text, *offset))
    }

    /// Where the name of the computation with this id stands; `None` if the text has no such computation.
    pub fn locate_computation(&self, id: i64) -> Option<Position> {
        Some(Position::new(&self.file, &self.text, self.places(id)?.name))
    }

    fn places(&self, computation: i64) -> Option<&Places> {
        self.computations.get(usize::try_from(computation).ok()?)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("file", &self.file).finish_non_exhaustive()
    }
}

/// A place in a text, with the line around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file's name as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    excerpt: String,
    caret: usize,
}

/// Characters of a line that are shown on either side of the caret.
const EXCERPT: usize = 90;

impl Position {
    pub(super) fn new(file: &str, text: &str, offset: usize) -> Position {
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
        Position {
            file: file.to_owned(),
            line: text[..line_start].bytes().filter(|&byte| byte == b'\n').count() + 1,
            column: before.len() + 1,
            excerpt,
            caret,
        }
    }

    /// `FILE:LINE:COLUMN: MESSAGE`, the line, and a caret under the place.
    pub fn report(&self, message: &str) -> String {
        let Position { file, line, column, excerpt, caret } = self;
        let margin = line.to_string().len();
        let line_text = format!("{line} | {excerpt}");
        format!("{file}:{line}:{column}: {message}\n{}\n{:margin$} | {:caret$}^", line_text.trim_end(), "", "")
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

/// The last character boundary at or before `offset`.
pub(super) fn floor_char_boundary(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_around_the_caret() {
        let text = format!("{}\n{}?{}", "first", "a".repeat(500), "b".repeat(500));
        let position = Position::new("f", &text, 506);
        assert_eq!((position.line, position.column), (2, 501));
        let shown = position.report("odd").to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1].find('?'), lines[2].find('^'));
        assert!(lines[1].len() < 250);
    }
}
