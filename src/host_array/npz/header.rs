//! The header of a `.npy` file: a Python dictionary of dtype, order and shape.

use std::io::Read;

use crate::dtype::DType;

/// Every `.npy` file begins with this.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";

/// Longer than the header of any array of plain numbers.
const MAX_LENGTH: usize = 1 << 16;
/// As many dimensions as NumPy knows.
const MAX_RANK: usize = 64;
/// NumPy aligns the data that follows.
const ALIGNMENT: usize = 64;

/// What the elements of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host_array) enum Element {
    /// A type that the header names.
    Typed(DType),
    /// As many bytes, of whatever type.
    Raw(usize),
}

/// A header that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host_array) struct Header {
    pub element: Element,
    pub big_endian: bool,
    pub fortran_order: bool,
    pub dims: Vec<usize>,
}

/// Element types with NumPy's (or `ml_dtypes`') name and the code that files carry.
const TYPES: [(DType, &str, &str); 32] = [
    (DType::Pred, "bool", "b1"),
    (DType::S1, "int1", "V1"),
    (DType::S2, "int2", "V1"),
    (DType::S4, "int4", "V1"),
    (DType::S8, "int8", "i1"),
    (DType::S16, "int16", "i2"),
    (DType::S32, "int32", "i4"),
    (DType::S64, "int64", "i8"),
    (DType::U1, "uint1", "V1"),
    (DType::U2, "uint2", "V1"),
    (DType::U4, "uint4", "V1"),
    (DType::U8, "uint8", "u1"),
    (DType::U16, "uint16", "u2"),
    (DType::U32, "uint32", "u4"),
    (DType::U64, "uint64", "u8"),
    (DType::F4E2M1FN, "float4_e2m1fn", "V1"),
    (DType::F6E2M3FN, "float6_e2m3fn", "V1"),
    (DType::F6E3M2FN, "float6_e3m2fn", "V1"),
    (DType::F8E3M4, "float8_e3m4", "V1"),
    (DType::F8E4M3, "float8_e4m3", "V1"),
    (DType::F8E4M3B11FNUZ, "float8_e4m3b11fnuz", "V1"),
    (DType::F8E4M3FN, "float8_e4m3fn", "V1"),
    (DType::F8E4M3FNUZ, "float8_e4m3fnuz", "V1"),
    (DType::F8E5M2, "float8_e5m2", "V1"),
    (DType::F8E5M2FNUZ, "float8_e5m2fnuz", "V1"),
    (DType::F8E8M0FNU, "float8_e8m0fnu", "V1"),
    (DType::F16, "float16", "f2"),
    (DType::BF16, "bfloat16", "V2"),
    (DType::F32, "float32", "f4"),
    (DType::F64, "float64", "f8"),
    (DType::C64, "complex64", "c8"),
    (DType::C128, "complex128", "c16"),
];

/// NumPy's or `ml_dtypes`' name of a type.
pub(super) fn numpy_name(dtype: DType) -> &'static str {
    TYPES[dtype as usize].1
}

/// Whether files carry the type as raw elements.
pub(super) fn is_raw(dtype: DType) -> bool {
    TYPES[dtype as usize].2.starts_with('V')
}

/// The bytes before the data of an array.
pub(super) fn text(dtype: DType, dims: &[usize]) -> Vec<u8> {
    let code = TYPES[dtype as usize].2;
    let order = if dtype.size() == 1 || is_raw(dtype) { '|' } else { '<' };
    let shape: String = dims.iter().map(|dim| format!("{dim}, ")).collect();
    let shape = if dims.len() == 1 { shape.trim_end() } else { shape.trim_end_matches(", ") };
    let dictionary = format!("{{'descr': '{order}{code}', 'fortran_order': False, 'shape': ({shape}), }}");
    let prefix = MAGIC.len() + 4;
    let length = (prefix + dictionary.len() + 1).next_multiple_of(ALIGNMENT) - prefix;
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    header.extend((length as u16).to_le_bytes());
    header.extend(format!("{dictionary:<0$}\n", length - 1).bytes());
    header
}

impl Header {
    /// Reads a header and says how many bytes it took; errors are sentences about the file.
    pub(super) fn read(reader: &mut impl Read) -> Result<(Header, u64), String> {
        let mut exactly = |count: usize| {
            let mut bytes = vec![0; count];
            reader.read_exact(&mut bytes).map_err(|error| format!("the header cannot be read: {error}")).map(|()| bytes)
        };
        let start = exactly(MAGIC.len() + 2).map_err(|_| "not a .npy array: too short".to_owned())?;
        let Some(&[major, minor]) = start.strip_prefix(MAGIC) else {
            return Err("not a .npy array".to_owned());
        };
        let length = match (major, minor) {
            (1, 0) => exactly(2)?,
            (2 | 3, 0) => exactly(4)?,
            _ => return Err(format!("version {major}.{minor} of the .npy format is unknown")),
        };
        let before = (start.len() + length.len()) as u64;
        let length = length.iter().rev().fold(0usize, |value, &byte| value << 8 | usize::from(byte));
        if length > MAX_LENGTH {
            return Err(format!("a header of {length} bytes"));
        }
        let text = String::from_utf8(exactly(length)?).map_err(|_| "the header is not text".to_owned())?;
        let header = Scanner(&text).header()?;
        Ok((header, before + length as u64))
    }

    /// The element type, if the header names it.
    pub(in crate::host_array) fn dtype(&self) -> Option<DType> {
        match self.element {
            Element::Typed(dtype) => Some(dtype),
            Element::Raw(_) => None,
        }
    }

    /// Whether the elements are of this type, or raw ones that may be.
    pub(in crate::host_array) fn holds(&self, dtype: DType) -> bool {
        match self.element {
            Element::Typed(found) => found == dtype,
            Element::Raw(size) => is_raw(dtype) && size == dtype.size(),
        }
    }

    /// Bytes of an element.
    pub(in crate::host_array) fn element_size(&self) -> usize {
        match self.element {
            Element::Typed(dtype) => dtype.size(),
            Element::Raw(size) => size,
        }
    }

    /// Bytes of the array, if they can be addressed.
    pub(in crate::host_array) fn data_length(&self) -> Option<usize> {
        if self.dims.contains(&0) {
            return Some(0);
        }
        let length = self.dims.iter().try_fold(self.element_size(), |length, &dim| length.checked_mul(dim))?;
        isize::try_from(length).is_ok().then_some(length)
    }
}

/// Byte order and meaning of a `descr`: `<f4`, `|V2`, or the name of a type.
fn element(descr: &str) -> Result<(bool, Element), String> {
    let code = descr.trim_start_matches(['<', '>', '|', '=']);
    let typed = TYPES.iter().find(|(_, name, known)| (code == *known && !known.starts_with('V')) || code == *name);
    let element = match (typed, code.strip_prefix('V').map(str::parse)) {
        (Some(&(dtype, ..)), _) => Element::Typed(dtype),
        (None, Some(Ok(size @ 1..=16))) => Element::Raw(size),
        // `ml_dtypes` has numpy.save write this for float8_e5m2.
        (None, None) if code == "f1" => Element::Raw(1),
        _ => return Err(format!("elements of the type '{}' are no numbers that XLA knows", descr.escape_debug())),
    };
    Ok((descr.starts_with('>'), element))
}

/// What is left of the header's text.
struct Scanner<'a>(&'a str);

impl<'a> Scanner<'a> {
    fn header(&mut self) -> Result<Header, String> {
        let (mut descr, mut fortran_order, mut dims) = (None, None, None);
        self.expect('{')?;
        while !self.skip('}') {
            let key = self.string()?;
            self.expect(':')?;
            match key {
                "descr" => descr = Some(self.descr()?),
                "fortran_order" => fortran_order = Some(self.boolean()?),
                "shape" => dims = Some(self.dims()?),
                _ => return Err(format!("the header has an unknown key '{}'", key.escape_debug())),
            }
            if !self.skip(',') {
                self.expect('}')?;
                break;
            }
        }
        let missing = |key| format!("the header has no '{key}'");
        let (big_endian, element) = descr.ok_or_else(|| missing("descr"))?;
        Ok(Header {
            element,
            big_endian,
            fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
            dims: dims.ok_or_else(|| missing("shape"))?,
        })
    }

    fn descr(&mut self) -> Result<(bool, Element), String> {
        if self.skip('[') {
            return Err("a structured array: save its fields as arrays of their own".to_owned());
        }
        element(self.string()?)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        match self.word(|c| c.is_ascii_alphabetic()) {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(self.unexpected("True or False")),
        }
    }

    fn dims(&mut self) -> Result<Vec<usize>, String> {
        let mut dims = Vec::new();
        self.expect('(')?;
        while !self.skip(')') {
            let digits = self.word(|c| c.is_ascii_digit());
            if digits.is_empty() {
                return Err(self.unexpected("a dimension"));
            }
            dims.push(digits.parse().map_err(|_| format!("a dimension of {digits} elements"))?);
            // Python 2 wrote its long integers so.
            self.0 = self.0.strip_prefix('L').unwrap_or(self.0);
            if !self.skip(',') {
                self.expect(')')?;
                break;
            }
        }
        if dims.len() > MAX_RANK {
            return Err(format!("an array of {} dimensions", dims.len()));
        }
        Ok(dims)
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let quote = if self.skip('"') {
            '"'
        } else if self.skip('\'') {
            '\''
        } else {
            return Err(self.unexpected("a quoted name"));
        };
        let (text, rest) = self.0.split_once(quote).ok_or_else(|| self.unexpected("a closing quote"))?;
        self.0 = rest;
        Ok(text)
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let text = self.0.trim_start();
        let (word, rest) = text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()));
        self.0 = rest;
        word
    }

    fn skip(&mut self, c: char) -> bool {
        let rest = self.0.trim_start().strip_prefix(c);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.skip(c) { Ok(()) } else { Err(self.unexpected(&format!("'{c}'"))) }
    }

    fn unexpected(&self, wanted: &str) -> String {
        let next: String = self.0.chars().take(16).collect();
        match &next[..] {
            "" => format!("the header ends where {wanted} belongs"),
            _ => format!("the header has {next:?} where {wanted} belongs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_stand_at_their_dtypes_index() {
        for (index, (dtype, _, code)) in TYPES.iter().enumerate() {
            assert_eq!(*dtype as usize, index);
            assert!(code.ends_with(&dtype.size().to_string()), "{dtype}");
        }
    }

    #[test]
    fn headers_are_those_of_numpy() {
        let text = |dims: &[usize]| String::from_utf8_lossy(&text(DType::F32, dims)[10..]).into_owned();
        assert!(text(&[]).starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (), } "));
        assert!(text(&[3]).starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), } "));
        assert!(text(&[2, 3]).starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } "));
        for rank in 0..40 {
            let header = super::text(DType::BF16, &vec![1234567; rank]);
            assert_eq!(header.len() % ALIGNMENT, 0);
            let (read, length) = Header::read(&mut &header[..]).unwrap();
            assert_eq!((read.dims.len(), length as usize), (rank, header.len()));
            assert_eq!(read.element, Element::Raw(2));
        }
    }

    fn parse(dictionary: &str) -> Result<Header, String> {
        Scanner(dictionary).header()
    }

    #[test]
    fn headers_of_other_writers_are_read() {
        let expected =
            Header { element: Element::Typed(DType::F64), big_endian: true, fortran_order: true, dims: vec![3, 4] };
        for dictionary in [
            "{'descr': '>f8', 'fortran_order': True, 'shape': (3, 4), }   \n",
            "{\"shape\":(3L,4L),\"fortran_order\":True,\"descr\":\">f8\"}",
        ] {
            assert_eq!(parse(dictionary).unwrap(), expected);
        }
        for (descr, element) in [
            ("<V2", Element::Raw(2)),
            ("|V1", Element::Raw(1)),
            ("<f1", Element::Raw(1)),
            ("|b1", Element::Typed(DType::Pred)),
            ("bfloat16", Element::Typed(DType::BF16)),
            ("int4", Element::Typed(DType::S4)),
            ("<c16", Element::Typed(DType::C128)),
        ] {
            let header = parse(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ()}}"));
            assert_eq!(header.unwrap().element, element, "{descr}");
        }
    }

    #[test]
    fn broken_headers_are_explained() {
        let mut messages = String::new();
        for dictionary in [
            "",
            "{",
            "[1]",
            "{'descr': '<f4'}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, -4), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999, ), }",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (), }",
            "{'descr': '|O', 'fortran_order': False, 'shape': (), }",
            "{'descr': '<U3', 'fortran_order': False, 'shape': (), }",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (), }",
            "{'descr': '<f4",
            "{'what': 1}",
        ] {
            messages += &format!("{}\n", parse(dictionary).unwrap_err());
        }
        insta::assert_snapshot!(messages, @r#"
        the header ends where '{' belongs
        the header ends where a quoted name belongs
        the header has "[1]" where '{' belongs
        the header has no 'fortran_order'
        the header has "-4), }" where a dimension belongs
        a dimension of 99999999999999999999999 elements
        the header has "0, 'shape': (), " where True or False belongs
        elements of the type '|O' are no numbers that XLA knows
        elements of the type '<U3' are no numbers that XLA knows
        a structured array: save its fields as arrays of their own
        the header has "<f4" where a closing quote belongs
        the header has an unknown key 'what'
        "#);
        assert!(parse(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({})}}", "1,".repeat(65))).is_err());
    }
}
