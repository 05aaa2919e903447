//! Why a process gave up, as far as its output tells.

/// Longer words are cut.
const LONGEST: usize = 1000;
/// Lines of a message that are kept.
const LINES: usize = 4;

/// Listens to a process's lines. XLA and Abseil print a message, in one line or several, and then a stack that names
/// nothing, as plugins come without symbols.
#[derive(Debug, Default)]
pub(super) struct LastWords {
    /// The lines of the message with which the process gave up.
    fatal: Vec<String>,
    /// The message has ended.
    complete: bool,
    /// The last line that is none of a stack.
    last: Option<String>,
}

impl LastWords {
    pub(super) fn hear(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(&line[..line.len().min(LONGEST)]);
        let line = line.trim_end();
        if is_of_stack(line) {
            self.complete = !self.fatal.is_empty();
        } else if let (true, Some(message)) = (self.fatal.is_empty(), fatal_message(line)) {
            self.fatal.push(message);
        } else if !self.fatal.is_empty() && !self.complete && self.fatal.len() < LINES {
            self.fatal.push(line.to_owned());
        } else if !line.is_empty() {
            self.last = Some(line.to_owned());
        }
    }

    /// The words, if there are any.
    pub(super) fn text(&self) -> Option<String> {
        if self.fatal.is_empty() { self.last.clone() } else { Some(self.fatal.join("\n")) }
    }
}

/// What follows the severity, the time and the thread in `F0000 00:00:1700000000.123456  4242 shape_util.cc:1] Check failed`.
fn fatal_message(line: &str) -> Option<String> {
    let date = line.split_whitespace().next()?.strip_prefix('F')?;
    if date.len() != 4 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(line.split_whitespace().skip(3).collect::<Vec<_>>().join(" "))
}

/// Whether a line is a stack frame of a library without symbols, which says nothing to anyone and comes by the dozen.
pub(super) fn is_unnamed_frame(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    line.starts_with(b"@ ") && line.ends_with(b" (unknown)")
}

/// A stack frame, or a line around a stack.
fn is_of_stack(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("***") || line.starts_with("@ ") || line.starts_with("WARNING: All log messages before absl")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(output: &str) -> String {
        let mut words = LastWords::default();
        output.lines().for_each(|line| words.hear(line.as_bytes()));
        words.text().unwrap_or_default()
    }

    #[test]
    fn the_failed_check_is_found() {
        let output = "warning: something else
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
F0000 00:00:1700000000.610380   30798 shape_util.cc:1527] Check failed: input_shape.has_layout() s8[8,2,4]
of an operand
*** Check failure stack trace: ***
    @     0x7f62ab52a5d4  (unknown)
    @     0x5617c0de8a1b  main
Aborted
";
        insta::assert_snapshot!(words(output), @r"
        shape_util.cc:1527] Check failed: input_shape.has_layout() s8[8,2,4]
        of an operand
        ");
    }

    #[test]
    fn otherwise_the_last_line_counts() {
        let output =
            "reading\nterminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n\n";
        assert_eq!(words(output), "  what():  std::bad_alloc");
        assert_eq!(words(""), "");
        assert_eq!(words("F12 not a date"), "F12 not a date");
    }
}
