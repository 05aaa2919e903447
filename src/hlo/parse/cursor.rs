//! The byte cursor: whitespace, comments, names, numbers and strings.
//!
//! HLO text needs no token stream: what may follow is always known, and its first byte tells the alternatives apart.
//! Between calls the cursor stands on the first byte of a token, behind all whitespace and comments.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memmem};

use super::error::{Failure, Result};

#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    pos: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Cursor<'a> {
        let pos = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let mut cursor = Cursor { text, pos };
        cursor.skip_space();
        cursor
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// Where the next token starts.
    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// The first byte of the next token; `None` at the end of the text.
    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.pos).copied()
    }

    #[inline]
    pub(super) fn at(&self, byte: u8) -> bool {
        self.peek() == Some(byte)
    }

    /// The first byte of the token after the one-byte token that stands here.
    pub(super) fn peek_second(&self) -> Option<u8> {
        let mut ahead = *self;
        ahead.advance(1);
        ahead.peek()
    }

    #[inline]
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let found = self.at(byte);
        if found {
            self.advance(1);
        }
        found
    }

    pub(super) fn eat_str(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token.as_bytes());
        if found {
            self.advance(token.len());
        }
        found
    }

    /// Eats a name if it is this one.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == Some(word);
        if found {
            self.advance(word.len());
        }
        found
    }

    /// Eats `byte`, which stands where `place` says: `expect(b')', "after the operands")`.
    #[inline]
    pub(super) fn expect(&mut self, byte: u8, place: &str) -> Result<()> {
        if self.eat(byte) { Ok(()) } else { Err(self.missing(byte, place)) }
    }

    #[cold]
    fn missing(&self, byte: u8, place: &str) -> Failure {
        self.expected(&format!("'{}' {place}", byte as char))
    }

    /// The name that stands here, without a leading `%`: `[A-Za-z_][A-Za-z0-9_.-]*`.
    pub(super) fn peek_word(&self) -> Option<&'a str> {
        let rest = self.rest();
        if !rest.first().is_some_and(|&byte| byte.is_ascii_alphabetic() || byte == b'_') {
            return None;
        }
        let length = rest.iter().position(|&byte| !NAME_BYTES[usize::from(byte)]).unwrap_or(rest.len());
        self.text.get(self.pos..self.pos + length)
    }

    /// Does `byte` follow directly on the name that stands here?
    pub(super) fn word_is_followed_by(&self, byte: u8) -> bool {
        self.peek_word().is_some_and(|word| self.rest().get(word.len()) == Some(&byte))
    }

    /// Eats a name that has no `%`.
    pub(super) fn word(&mut self, what: &str) -> Result<&'a str> {
        let word = self.peek_word().ok_or_else(|| self.expected(what))?;
        self.advance(word.len());
        Ok(word)
    }

    /// Eats a name with or without a leading `%`.
    pub(super) fn name(&mut self, what: &str) -> Result<&'a str> {
        if !self.at(b'%') {
            return self.word(what);
        }
        self.pos += 1;
        self.word(what)
    }

    /// Eats a name with or without a leading `%`, if there is one.
    pub(super) fn eat_name(&mut self) -> Option<&'a str> {
        if self.at(b'%') {
            self.pos += 1;
        }
        let name = self.peek_word()?;
        self.advance(name.len());
        Some(name)
    }

    /// Eats what looks like a shape with its layout and returns its text; gives up on very long ones.
    pub(super) fn eat_shape_text(&mut self) -> Option<&'a str> {
        /// A bound, because each operand of a hostile text may start what never ends.
        const LONGEST: usize = 1 << 12;
        let rest = self.rest();
        let rest = &rest[..rest.len().min(LONGEST)];
        let through = |start: usize, byte| Some(start + rest[start..].iter().position(|&it| it == byte)? + 1);
        let length = if rest.first() == Some(&b'(') {
            let mut depth = 0usize;
            let end = rest.iter().position(|byte| {
                match byte {
                    b'(' => depth += 1,
                    b')' => depth -= 1,
                    _ => {}
                }
                // The first byte opens the tuple, so the depth is positive until it closes.
                depth == 0
            });
            end? + 1
        } else {
            let word = rest.iter().position(|&byte| !byte.is_ascii_alphanumeric())?;
            if rest[word] != b'[' {
                return None;
            }
            let dimensions = through(word, b']')?;
            if rest.get(dimensions) == Some(&b'{') { through(dimensions, b'}')? } else { dimensions }
        };
        let text = self.text.get(self.pos..self.pos + length);
        self.advance(length);
        text
    }

    /// Eats a decimal integer. As XLA does, values above `i64::MAX` are taken as the bits of a `u64`.
    pub(super) fn integer(&mut self) -> Result<i64> {
        if let Some(value) = self.eat_short_integer() {
            return Ok(value);
        }
        let start = self.pos;
        let rest = self.rest();
        let negative = rest.first() == Some(&b'-');
        let digits = rest[usize::from(negative)..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Err(self.expected("an integer"));
        }
        let length = usize::from(negative) + digits;
        let number = &self.text[start..start + length];
        let value = match number.parse::<i64>() {
            Ok(value) => value,
            Err(_) => {
                number.parse::<u64>().map_err(|_| fail(start, "the integer needs more than 64 bits"))?.cast_signed()
            }
        };
        self.advance(length);
        Ok(value)
    }

    /// Eats an integer that surely fits; `None` for others, for fractions and for what is no number.
    #[inline]
    pub(super) fn eat_short_integer(&mut self) -> Option<i64> {
        const MOST_DIGITS: usize = 18;
        let rest = self.rest();
        let sign = usize::from(rest.first() == Some(&b'-'));
        let mut value = 0;
        let mut length = sign;
        while let Some(digit) = rest.get(length).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit < 10) {
            if length == sign + MOST_DIGITS {
                return None;
            }
            value = value * 10 + i64::from(digit);
            length += 1;
        }
        if length == sign || matches!(rest.get(length), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        self.advance(length);
        Some(if sign == 1 { -value } else { value })
    }

    pub(super) fn integer_i32(&mut self) -> Result<i32> {
        let start = self.pos;
        i32::try_from(self.integer()?).map_err(|_| fail(start, "the integer needs more than 32 bits"))
    }

    /// Eats what [`Cursor::peek_number`] has found.
    pub(super) fn float(&mut self, number: &str) -> Result<f64> {
        let start = self.pos;
        let value = number.parse().map_err(|_| self.expected("a number"))?;
        if f64::is_infinite(value) {
            return Err(fail(start, "the number is out of range for double precision"));
        }
        self.advance(number.len());
        Ok(value)
    }

    /// `[-]digits[.digits][e[+-]digits]` as far as it starts here; infinities and NaNs are the caller's.
    pub(super) fn peek_number(&self) -> &'a str {
        let rest = self.rest();
        let mut length = usize::from(rest.first() == Some(&b'-'));
        length += rest[length..].iter().take_while(|&&byte| byte.is_ascii_digit() || byte == b'.').count();
        if let [b'e' | b'E', exponent @ ..] = &rest[length..] {
            let sign = usize::from(matches!(exponent.first(), Some(b'+' | b'-')));
            length += 1 + sign + exponent[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        }
        &self.text[self.pos..self.pos + length]
    }

    /// Eats a run of bytes that `accepts`, such as `0_0x1_1`.
    pub(super) fn run(&mut self, what: &str, accepts: impl Fn(u8) -> bool) -> Result<&'a str> {
        let length = self.rest().iter().take_while(|&&byte| byte.is_ascii() && accepts(byte)).count();
        if length == 0 {
            return Err(self.expected(what));
        }
        let run = &self.text[self.pos..self.pos + length];
        self.advance(length);
        Ok(run)
    }

    /// Eats a string in single or double quotes and resolves its C escapes.
    pub(super) fn bytes(&mut self) -> Result<Cow<'a, [u8]>> {
        let start = self.pos;
        let rest = self.rest();
        let quote = match rest.first() {
            Some(&quote @ (b'"' | b'\'')) => quote,
            _ => return Err(self.expected("a string in quotes")),
        };
        let mut length = 1;
        let mut escaped = false;
        loop {
            let plain = rest.get(length..).and_then(|rest| memchr2(quote, b'\\', rest));
            length += plain.ok_or_else(|| fail(start, "the string does not end"))?;
            if rest[length] == quote {
                break;
            }
            escaped = true;
            length += 2;
        }
        let raw = &rest[1..length];
        let value = if escaped { Cow::Owned(unescape(raw, start + 1)?) } else { Cow::Borrowed(raw) };
        self.advance(length + 1);
        Ok(value)
    }

    /// Eats a string that must be UTF-8.
    pub(super) fn string(&mut self) -> Result<String> {
        let start = self.pos;
        String::from_utf8(self.bytes()?.into_owned()).map_err(|_| fail(start, "the string is not UTF-8 once unescaped"))
    }

    /// Eats text in balanced braces, braces within double quotes not counted, and returns it with its braces.
    pub(super) fn braces(&mut self) -> Result<&'a str> {
        let start = self.pos;
        let rest = self.rest();
        if rest.first() != Some(&b'{') {
            return Err(self.expected("'{'"));
        }
        let mut depth = 0usize;
        let mut quoted = false;
        let mut length = 0;
        while let Some(&byte) = rest.get(length) {
            length += 1;
            match byte {
                b'\\' if quoted => length += 1,
                b'"' => quoted = !quoted,
                b'{' if !quoted => depth += 1,
                b'}' if !quoted => {
                    depth -= 1;
                    if depth == 0 {
                        let braces = &self.text[start..start + length];
                        self.advance(length);
                        return Ok(braces);
                    }
                }
                _ => {}
            }
        }
        Err(fail(start, "the braces do not close"))
    }

    /// "expected WHAT, found ..." at the next token.
    pub(super) fn expected(&self, what: &str) -> Failure {
        fail(self.pos, format!("expected {what}, found {}", self.found()))
    }

    fn found(&self) -> String {
        if self.rest().starts_with(b"/*") {
            return "a comment that does not end".to_owned();
        }
        match (self.peek_word(), self.text[self.pos..].chars().next()) {
            (_, None) => "the end of the text".to_owned(),
            (Some(word), _) if word.len() <= 40 => format!("'{word}'"),
            (_, Some(character)) if character.is_control() => format!("the character {:?}", character),
            (_, Some(character)) => format!("'{character}'"),
        }
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.pos..]
    }

    #[inline]
    fn advance(&mut self, length: usize) {
        self.pos += length;
        self.skip_space();
    }

    #[inline(always)]
    fn skip_space(&mut self) {
        // Nearly always there is one space or none.
        if self.at(b' ') {
            self.pos += 1;
        }
        if self.peek().is_some_and(|byte| byte <= b' ' || byte == b'/') {
            self.skip_more_space();
        }
    }

    #[inline(never)]
    fn skip_more_space(&mut self) {
        loop {
            let rest = self.rest();
            self.pos += match rest {
                [space, ..] if space.is_ascii_whitespace() => {
                    rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
                }
                [b'/', b'/', ..] => memchr(b'\n', rest).unwrap_or(rest.len()),
                [b'/', b'*', comment @ ..] => match memmem::find(comment, b"*/") {
                    Some(length) => length + 4,
                    None => return,
                },
                _ => return,
            };
        }
    }
}

pub(super) fn fail(offset: usize, message: impl Into<String>) -> Failure {
    Box::new((offset, message.into()))
}

/// Which bytes may stand in a name.
static NAME_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = matches!(byte as u8, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-');
        byte += 1;
    }
    table
};

fn unescape(raw: &[u8], start: usize) -> Result<Vec<u8>> {
    let mut value = Vec::with_capacity(raw.len());
    let mut at = 0;
    while let Some(&byte) = raw.get(at) {
        at += 1;
        if byte != b'\\' {
            value.push(byte);
            continue;
        }
        let escape = raw.get(at).copied();
        at += 1;
        match escape {
            Some(b'n') => value.push(b'\n'),
            Some(b'r') => value.push(b'\r'),
            Some(b't') => value.push(b'\t'),
            Some(b'a') => value.push(7),
            Some(b'b') => value.push(8),
            Some(b'f') => value.push(12),
            Some(b'v') => value.push(11),
            Some(same @ (b'\\' | b'\'' | b'"' | b'?')) => value.push(same),
            Some(b'0'..=b'7') => {
                let (code, digits) = number(&raw[at - 1..], 8, 3);
                at += digits - 1;
                value.push(u8::try_from(code).map_err(|_| fail(start + at, "the octal escape is above \\377"))?);
            }
            Some(b'x' | b'X') => {
                let (code, digits) = number(&raw[at..], 16, 8);
                let code = u8::try_from(code).ok().filter(|_| digits > 0);
                value.push(code.ok_or_else(|| fail(start + at, "expected one byte in hexadecimal after \\x"))?);
                at += digits;
            }
            Some(kind @ (b'u' | b'U')) => {
                let length = if kind == b'u' { 4 } else { 8 };
                let (code, digits) = number(&raw[at..], 16, length);
                let character = char::from_u32(code).filter(|_| digits == length);
                let character =
                    character.ok_or_else(|| fail(start + at, "expected a Unicode character in hexadecimal"))?;
                value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                at += digits;
            }
            _ => return Err(fail(start + at - 1, "unknown escape in the string")),
        }
    }
    Ok(value)
}

/// The value and length of the at most `longest` digits at the start.
fn number(raw: &[u8], radix: u32, longest: usize) -> (u32, usize) {
    let digits = raw.iter().take(longest).map_while(|&byte| char::from(byte).to_digit(radix));
    digits.fold((0, 0), |(value, count), digit| (value.wrapping_mul(radix) | digit, count + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_space_comments_and_bom() {
        let mut cursor = Cursor::new("\u{feff} \r\n// line\n/* block\n*/ a /*index=5*/, b");
        assert_eq!(cursor.word("").unwrap(), "a");
        assert!(cursor.eat(b','));
        assert_eq!(cursor.word("").unwrap(), "b");
        assert_eq!(cursor.peek(), None);
    }

    #[test]
    fn integers() {
        assert_eq!(Cursor::new("-12]").integer().unwrap(), -12);
        assert_eq!(Cursor::new("-999999999999999999").integer().unwrap(), -999_999_999_999_999_999);
        assert_eq!(Cursor::new("9223372036854775807").integer().unwrap(), i64::MAX);
        assert_eq!(Cursor::new("9999999999999999999").integer().unwrap(), 9_999_999_999_999_999_999u64 as i64);
        assert_eq!(Cursor::new("18446744073709551615").integer().unwrap(), -1);
        assert!(Cursor::new("18446744073709551616").integer().is_err());
        assert!(Cursor::new("-").integer().is_err());
    }

    #[test]
    fn floats() {
        let float = |text| {
            let mut cursor = Cursor::new(text);
            cursor.float(cursor.peek_number())
        };
        assert_eq!(float("-1.5e-3,").unwrap(), -1.5e-3);
        assert_eq!(float(".5").unwrap(), 0.5);
        assert_eq!(float("2E+1e").unwrap(), 20.0);
        for bad in ["1e400", "e", "1e", "1.2.3", "-", "+1"] {
            assert!(float(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn strings() {
        assert_eq!(Cursor::new(r#"'a"b'"#).string().unwrap(), "a\"b");
        assert_eq!(Cursor::new(r#""\x41\102\n\u00e9""#).string().unwrap(), "AB\né");
        assert_eq!(&*Cursor::new(r#""\377""#).bytes().unwrap(), b"\xff");
        assert!(Cursor::new(r#""\377""#).string().is_err());
        assert!(Cursor::new(r#""\"#).bytes().is_err());
    }

    #[test]
    fn braces_are_balanced_outside_strings() {
        assert_eq!(Cursor::new(r#"{"a}": {"b": "\"}"}} rest"#).braces().unwrap(), r#"{"a}": {"b": "\"}"}}"#);
        assert!(Cursor::new("{{}").braces().is_err());
    }
}
