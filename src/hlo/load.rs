//! Programs from the bytes of a file, in any form that XLA and its front ends write.

use std::fmt;

use buffa::{DecodeError, DecodeOptions, Message};
use serde::Serialize;

use super::nesting::check_nesting;
use super::parse::is_instruction;
use super::{HloModule, ParseError, Program, parse, shape};
use crate::proto::{HloModuleProto, HloProto};

/// What MLIR bytecode starts with.
const MLIR_MAGIC: &[u8] = b"ML\xefR";

/// Containers that people hand over as they are, and how each starts.
const CONTAINERS: [(&[u8], &str, &str); 7] = [
    (b"\x93NUMPY", "an array (.npy)", "which goes to a program as an argument: --arg 0=FILE"),
    (b"\x1f\x8b", "gzip data", "unpack it first: gunzip"),
    (b"PK\x03\x04", "a zip archive", "unpack it first: unzip"),
    (b"\x28\xb5\x2f\xfd", "zstd data", "unpack it first: unzstd"),
    (b"\x7fELF", "an ELF object", "pass the program's HLO, not what was compiled from it"),
    (b"\xff\xfe", "text in UTF-16", "make it UTF-8 first: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "make it UTF-8 first: iconv -f UTF-16 -t UTF-8"),
];

/// First words of MLIR text: a module, a function, or a mesh or resources before them.
const MLIR_WORDS: [&str; 6] = ["module", "builtin.module", "\"builtin.module\"", "func.func", "sdy.mesh", "{-#"];

/// One of these stands in HLO text, be it a module, some computations or a lone instruction with a name.
const HLO_WORDS: [&str; 3] = ["HloModule", " = ", "ENTRY"];

/// A file that holds no program, or a broken one.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Nothing but white space.
    #[error("{name}: the file is empty")]
    Empty {
        /// The file.
        name: String,
    },
    /// Text with an error in it.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// HLO text in another encoding than UTF-8.
    #[error("{name}: HLO text must be UTF-8, byte {offset} is not")]
    Encoding {
        /// The file.
        name: String,
        /// The first wrong byte, from 0.
        offset: usize,
    },
    /// Text in no language that we know.
    #[error(
        "{name}: this text is no program: it starts with '{start}', where HLO text starts with 'HloModule' and StableHLO \
         with 'module'"
    )]
    Text {
        /// The file.
        name: String,
        /// Its first word, shortened.
        start: String,
    },
    /// A packed program, or something else entirely.
    #[error("{name}: this is {what}, {advice}")]
    Container {
        /// The file.
        name: String,
        /// What it is.
        what: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// Bytes in no form that we know.
    #[error(
        "{name}: {length} bytes that are no program{}: no HLO text, no MLIR bytecode, no HloModuleProto ({module}), no \
         HloProto ({dump})",
        if *.truncated { ", or one cut short" } else { "" }
    )]
    Binary {
        /// The file.
        name: String,
        /// Its length.
        length: usize,
        /// Whether the file ends in the middle of a message.
        truncated: bool,
        /// Why it is no module.
        module: String,
        /// Why it is no dump.
        dump: String,
    },
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// HLO text.
    HloText,
    /// A serialized `HloModuleProto`.
    HloModuleProto,
    /// A serialized `HloProto`: a module in a dump.
    HloProto,
    /// MLIR text: StableHLO.
    StablehloText,
    /// MLIR bytecode: StableHLO.
    MlirBytecode,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::HloText => "HLO text",
            Form::HloModuleProto => "HloModuleProto",
            Form::HloProto => "HloProto",
            Form::StablehloText => "StableHLO text",
            Form::MlirBytecode => "MLIR bytecode",
        })
    }
}

/// The program in a file's bytes, told apart by content: HLO text, a serialized `HloModuleProto` or `HloProto` (what XLA
/// dumps), StableHLO text, MLIR bytecode. StableHLO stays as it is: a plugin reads it.
///
/// Nothing is verified here beyond the syntax.
///
/// # Errors
/// The bytes are no program; the message says what was tried. `name` is the file's, for messages.
pub fn load(bytes: &[u8], name: &str) -> Result<Program, LoadError> {
    load_with_form(bytes, name).map(|(program, _)| program)
}

/// As [`load`], with the form that the bytes are in.
///
/// # Errors
/// As those of [`load`].
pub fn load_with_form(bytes: &[u8], name: &str) -> Result<(Program, Form), LoadError> {
    let name = || name.to_owned();
    if bytes.starts_with(MLIR_MAGIC) {
        return Ok((Program::Mlir(bytes.to_vec()), Form::MlirBytecode));
    }
    if is_npz(bytes) {
        let advice = "which hold a program's arguments (--input) or results (--expect)";
        return Err(LoadError::Container { name: name(), what: "an archive of arrays (.npz)", advice });
    }
    if let Some(&(_, what, advice)) = CONTAINERS.iter().find(|(magic, ..)| bytes.starts_with(magic)) {
        return Err(LoadError::Container { name: name(), what, advice });
    }
    if !looks_like_text(bytes) {
        return load_proto(bytes, name());
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(error) if bytes.starts_with(b"HloModule") => {
            return Err(LoadError::Encoding { name: name(), offset: error.valid_up_to() });
        }
        Err(_) => return load_proto(bytes, name()),
    };
    let code = skip_comments(text);
    if code.is_empty() {
        return Err(LoadError::Empty { name: name() });
    }
    if is_mlir(code) {
        check_nesting(text, &name())?;
        return Ok((Program::Mlir(bytes.to_vec()), Form::StablehloText));
    }
    // What starts like this is a script or a text with headings, whatever it quotes.
    if !code.starts_with('#') && (HLO_WORDS.iter().any(|word| code.contains(word)) || is_instruction(code)) {
        return Ok((Program::Hlo(parse(text, &name())?), Form::HloText));
    }
    let start = code.split_whitespace().next().unwrap_or_default().chars().take(20).collect();
    Err(LoadError::Text { name: name(), start })
}

/// Whether text starts as MLIR does: with a word of it, or with the definition of an alias, `#name = …` or `!name = …`.
fn is_mlir(code: &str) -> bool {
    let is_name = |character: char| character.is_alphanumeric() || matches!(character, '_' | '.' | '$' | '-');
    let starts_with = |word: &&str| {
        let rest = code.strip_prefix(*word);
        rest.is_some_and(|rest| !rest.starts_with(is_name) || !word.ends_with(is_name))
    };
    let alias = code.strip_prefix(['#', '!']).filter(|rest| rest.starts_with(is_name));
    let defines = |rest: &str| rest.trim_start_matches(is_name).trim_start().starts_with('=');
    alias.is_some_and(defines) || MLIR_WORDS.iter().any(starts_with)
}

/// Whether a zip archive's first file is an array.
fn is_npz(bytes: &[u8]) -> bool {
    const HEADER: usize = 30;
    let (Some(header), true) = (bytes.get(..HEADER), bytes.starts_with(b"PK\x03\x04")) else { return false };
    let length = usize::from(u16::from_le_bytes([header[26], header[27]]));
    bytes.get(HEADER..HEADER + length).is_some_and(|name| name.ends_with(b".npy"))
}

/// Whether no byte near the start is a control character that text has no use for.
fn looks_like_text(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(1024)];
    start.iter().all(|byte| *byte >= b' ' && *byte != 0x7f || matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c))
}

/// The text from its first word on that stands in no comment.
fn skip_comments(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        let rest = match text.get(..2) {
            Some("//") => text.split_once('\n'),
            Some("/*") => text.split_once("*/"),
            _ => return text,
        };
        text = rest.map_or("", |(_, rest)| rest);
    }
}

fn load_proto(bytes: &[u8], name: String) -> Result<(Program, Form), LoadError> {
    // The dump first: its module stands where a module has its name, so a dump may pass for a module of a strange name.
    let dump = decode::<HloProto>(bytes);
    if let Ok(HloProto { hlo_module, .. }) = &dump
        && !hlo_module.computations.is_empty()
    {
        return Ok((Program::Hlo(from_proto((**hlo_module).clone())), Form::HloProto));
    }
    let module = decode::<HloModuleProto>(bytes);
    match module {
        Ok(proto) if !proto.computations.is_empty() => Ok((Program::Hlo(from_proto(proto)), Form::HloModuleProto)),
        module => {
            let truncated = matches!(module, Err(DecodeError::UnexpectedEof));
            let why = |error: Option<DecodeError>| error.map_or("it has no computations".into(), |e| e.to_string());
            Err(LoadError::Binary {
                name,
                length: bytes.len(),
                truncated,
                module: why(module.err()),
                dump: why(dump.err()),
            })
        }
    }
}

/// Decodes a message. Hostile input can ask for structures many times its own size, so what they may take is bounded:
/// real modules need up to 20 bytes for each of theirs.
pub(crate) fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    let limit = bytes.len().saturating_mul(24).saturating_add(32 << 20);
    DecodeOptions::new().with_element_memory_limit(limit).decode_from_slice(bytes)
}

fn from_proto(mut proto: HloModuleProto) -> HloModule {
    for instruction in proto.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        if let Some(shape) = instruction.shape.as_option_mut() {
            shape::set_missing_layouts(shape);
        }
    }
    let mut module = HloModule { proto, ..HloModule::default() };
    module.config.is_scheduled = !module.proto.schedule.sequences.is_empty();
    module
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "HloModule m\n\nENTRY %e {\n  ROOT %p = f32[2] parameter(0)\n}\n";

    fn module() -> HloModuleProto {
        parse(TEXT, "m.hlo").unwrap().proto
    }

    fn message(bytes: &[u8]) -> String {
        load(bytes, "m.hlo").unwrap_err().to_string()
    }

    #[test]
    fn every_form_is_told_apart() {
        let hlo = |bytes: &[u8]| match load(bytes, "m").unwrap() {
            Program::Hlo(module) => module.proto,
            Program::Mlir(_) => panic!("taken for MLIR"),
        };
        assert_eq!(hlo(TEXT.as_bytes()), module());
        assert_eq!(hlo(format!("\u{feff}// a comment\n/* and\nanother */ {TEXT}").as_bytes()), module());
        assert_eq!(hlo(&module().encode_to_vec()), module());
        let dump = HloProto { hlo_module: Some(module()).into(), ..HloProto::default() };
        assert_eq!(hlo(&dump.encode_to_vec()), module());
        for text in [
            "f32[2] negate(f32[2] p)",
            "// one\n(f32[2], s32[]) tuple(f32[2] a, s32[] b)",
            "ROOT %x=f32[] sine(f32[] p)",
        ] {
            assert_eq!(hlo(text.as_bytes()), parse(text, "m").unwrap().proto);
        }
        let mlir = [
            "module @m {}",
            "module{}",
            "#loc = loc(unknown)\nmodule {}",
            "!t = tensor<4xf32>\nmodule {}",
            "func.func @main() { return }",
        ];
        for text in mlir {
            assert!(matches!(load(text.as_bytes(), "m"), Ok(Program::Mlir(bytes)) if bytes == text.as_bytes()));
        }
        assert!(matches!(load(b"ML\xefR\x0dStableHLO", "m"), Ok(Program::Mlir(_))));
    }

    #[test]
    fn unknown_fields_survive() {
        let mut bytes = module().encode_to_vec();
        // Field 1000 with the bytes "new".
        bytes.extend_from_slice(b"\xc2\x3e\x03new");
        let Program::Hlo(module) = load(&bytes, "m").unwrap() else { panic!("taken for MLIR") };
        let again = module.proto.encode_to_vec();
        assert_eq!(again.len(), bytes.len());
        assert!(again.windows(6).any(|window| window == b"\xc2\x3e\x03new"));
    }

    #[test]
    fn what_is_no_program_is_explained() {
        insta::assert_snapshot!(message(b""), @"m.hlo: the file is empty");
        insta::assert_snapshot!(message(b" // nothing\n"), @"m.hlo: the file is empty");
        insta::assert_snapshot!(
            message(b"digraph G { a -> b }"),
            @"m.hlo: this text is no program: it starts with 'digraph', where HLO text starts with 'HloModule' and StableHLO with 'module'"
        );
        insta::assert_snapshot!(
            message(b"# spmd-run\n\nRuns `%a = f32[] add(%b)` and modules."),
            @"m.hlo: this text is no program: it starts with '#', where HLO text starts with 'HloModule' and StableHLO with 'module'"
        );
        insta::assert_snapshot!(
            message(b"f[1] (or so) is x=1"),
            @"m.hlo: this text is no program: it starts with 'f[1]', where HLO text starts with 'HloModule' and StableHLO with 'module'"
        );
        insta::assert_snapshot!(
            message(b"modules, meshes and more"),
            @"m.hlo: this text is no program: it starts with 'modules,', where HLO text starts with 'HloModule' and StableHLO with 'module'"
        );
        let npz = [b"PK\x03\x04".as_slice(), &[0; 22], &[8, 0, 0, 0], b"arg0.npy"].concat();
        insta::assert_snapshot!(
            message(&npz),
            @"m.hlo: this is an archive of arrays (.npz), which hold a program's arguments (--input) or results (--expect)"
        );
        insta::assert_snapshot!(message(b"PK\x03\x04"), @"m.hlo: this is a zip archive, unpack it first: unzip");
        insta::assert_snapshot!(
            message(b"\x93NUMPY\x01\0"),
            @"m.hlo: this is an array (.npy), which goes to a program as an argument: --arg 0=FILE"
        );
        insta::assert_snapshot!(message(b"\x1f\x8b\x08\0"), @"m.hlo: this is gzip data, unpack it first: gunzip");
        let utf16: Vec<u8> = format!("\u{feff}{TEXT}").encode_utf16().flat_map(u16::to_le_bytes).collect();
        insta::assert_snapshot!(
            message(&utf16),
            @"m.hlo: this is text in UTF-16, make it UTF-8 first: iconv -f UTF-16 -t UTF-8"
        );
        insta::assert_snapshot!(
            message("module {".repeat(520).as_bytes()).lines().next().unwrap(),
            @"m.hlo:1:4104: nested deeper than 512 levels"
        );
        insta::assert_snapshot!(message(b"HloModule caf\xe9"), @"m.hlo: HLO text must be UTF-8, byte 13 is not");
        insta::assert_snapshot!(
            message(&[0xff; 64]),
            @"m.hlo: 64 bytes that are no program: no HLO text, no MLIR bytecode, no HloModuleProto (varint exceeded maximum length of 10 bytes), no HloProto (varint exceeded maximum length of 10 bytes)"
        );
        let proto = module().encode_to_vec();
        insta::assert_snapshot!(
            message(&proto[..proto.len() / 2]),
            @"m.hlo: 64 bytes that are no program, or one cut short: no HLO text, no MLIR bytecode, no HloModuleProto (unexpected end of buffer), no HloProto (unexpected end of buffer)"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = load(&bytes, "m");
        }

        #[test]
        fn damaged_modules_never_panic(at: prop::sample::Index, value: u8, cut: prop::sample::Index) {
            let mut bytes = module().encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] = value;
            bytes.truncate(cut.index(bytes.len() + 1));
            if let Ok(Program::Hlo(module)) = load(&bytes, "m") {
                super::super::print(&module);
            }
        }
    }

    /// Two bytes of input each for structures of a thousand.
    #[test]
    fn a_flood_of_empty_messages_is_refused() {
        let mut computation = Vec::new();
        computation.extend(std::iter::repeat_n([0x12, 0x00], 1 << 20).flatten());
        let mut bytes = vec![0x1a, 0x80, 0x80, 0x80, 0x01];
        bytes.extend(computation);
        assert_eq!(decode::<HloModuleProto>(&bytes).unwrap_err(), DecodeError::ElementMemoryLimitExceeded);
    }
}
