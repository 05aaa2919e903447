//! How deep MLIR text nests. MLIR's own parser calls itself for each level and overflows the stack of its process.

use super::ParseError;

/// Levels that a text may have. Programs have a few dozen, and MLIR copes with some thousands.
const LIMIT: usize = 512;

/// Checks that no bracket of the text, outside of strings and comments, is nested deeper than the limit.
pub(super) fn check_nesting(text: &str, file: &str) -> Result<(), ParseError> {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0usize, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at += string_length(&bytes[at..]),
            b'/' if bytes[at..].starts_with(b"//") => {
                at += bytes[at..].iter().take_while(|&&byte| byte != b'\n').count();
                continue;
            }
            b'-' if bytes[at..].starts_with(b"->") => at += 1,
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b')' | b']' | b'}' | b'>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > LIMIT {
            return Err(ParseError::new(file, text, at, format!("nested deeper than {LIMIT} levels")));
        }
        at += 1;
    }
    Ok(())
}

/// Bytes of the string that starts here, without its closing quote.
fn string_length(bytes: &[u8]) -> usize {
    let mut length = 1;
    while let Some(&byte) = bytes.get(length).filter(|&&byte| byte != b'"') {
        length += if byte == b'\\' { 2 } else { 1 };
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_open_brackets_nest() {
        let lines = [r#"%0 = "a<<[{\"((" {x = "{"} : () -> (tensor<2xf32>)"#, "// ((((", "} [<(-> )>]"];
        assert_eq!(check_nesting(&lines.join("\n").repeat(LIMIT), "m"), Ok(()));
    }

    #[test]
    fn deep_brackets_are_refused_where_they_are() {
        for (open, close) in [("module {", "}"), ("tuple<", ">"), ("[", "]"), ("(", ")")] {
            let text = |depth: usize| open.repeat(depth) + &close.repeat(depth);
            assert_eq!(check_nesting(&text(LIMIT), "m"), Ok(()));
            let error = check_nesting(&text(100_000), "m").unwrap_err();
            assert_eq!(error.position.column, open.len() * (LIMIT + 1));
            assert_eq!(error.message, "nested deeper than 512 levels");
        }
    }
}
