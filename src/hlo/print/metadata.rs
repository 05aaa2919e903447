//! What says where things come from: metadata, stack frames, origins, frontend attributes.

use std::collections::BTreeMap;

use super::{Attributes, braced, quoted, write_to};
use crate::hlo::shape;
use crate::proto::payload::PayloadSource;
use crate::proto::{
    FrontendAttributes, HloModuleProto, OpMetadata, OriginalValueElementProto, OriginalValueProto, Payload, ShapeProto,
    StackFrameIndexProto,
};

/// The bytes inside double quotes, as C writes them: anything outside printable ASCII in octal.
pub(super) fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b'"' | b'\'' | b'\\' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b' '..=b'~' => out.push(char::from(byte)),
            _ => write_to(&mut out, format_args!("\\{byte:03o}")),
        }
    }
    out
}

/// A JSON object bare, anything else as a quoted string: the parser tells them apart by the brace.
pub(super) fn string_or_json(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => {
            text.to_owned()
        }
        _ => quoted(bytes),
    }
}

pub(super) fn frontend_attributes(attributes: &FrontendAttributes, out: &mut Attributes) {
    let mut entries: Vec<(&str, &str)> = attributes.map.iter().map(|e| (e.key.as_str(), e.value.as_str())).collect();
    entries.sort_unstable();
    let entries: Vec<String> =
        entries.iter().map(|(key, value)| format!("{key}={}", string_or_json(value.as_bytes()))).collect();
    if !entries.is_empty() {
        out.set("frontend_attributes", format_args!("{{{}}}", entries.join(",")));
    }
}

/// A payload's bytes, which may stand in the module's table.
pub(super) fn payload<'a>(payload: &'a Payload, module: &'a HloModuleProto) -> Option<&'a [u8]> {
    match payload.payload_source.as_ref()? {
        PayloadSource::Value(value) => Some(value),
        PayloadSource::Id(id) => module.payloads.get(usize::try_from(*id).ok()?).map(Vec::as_slice),
    }
}

/// Metadata without its braces.
pub(super) fn metadata(metadata: &OpMetadata, module: &HloModuleProto) -> String {
    let mut parts = Vec::new();
    let mut string = |name: &str, value: &str| {
        if !value.is_empty() {
            parts.push(format!("{name}={}", quoted(value.as_bytes())));
        }
    };
    string("op_type", &metadata.op_type);
    string("op_name", &metadata.op_name);
    string("source_file", &metadata.source_file);
    string("deduplicated_name", &metadata.deduplicated_name);
    string("scheduling_name", &metadata.scheduling_name);
    let numbers = [
        ("source_line", metadata.source_line),
        ("source_end_line", metadata.source_end_line),
        ("source_column", metadata.source_column),
        ("source_end_column", metadata.source_end_column),
        ("stack_frame_id", metadata.stack_frame_id),
    ];
    parts.extend(numbers.iter().filter(|(_, number)| *number != 0).map(|(name, number)| format!("{name}={number}")));
    if !metadata.profile_type.is_empty() {
        parts.push(format!("profile_type={}", braced(&metadata.profile_type)));
    }
    if let Some(payload) = payload(&metadata.metadata_payload, module) {
        parts.push(format!("metadata_payload={}", quoted(payload)));
    }
    parts.join(" ")
}

/// Where the leaves of a value stood before optimization, as a tree of the value's shape.
pub(super) fn original_value(value: &OriginalValueProto, shape: &ShapeProto) -> String {
    if value.is_synthetic_call {
        return "{[synthetic_call]}".to_owned();
    }
    let mut elements: Vec<&OriginalValueElementProto> = value.elements.iter().collect();
    elements.sort_by(|a, b| a.shape_index.cmp(&b.shape_index));
    let mut out = String::from("{");
    original_tree(&elements, 0, Some(shape), &mut out);
    out.push('}');
    out
}

/// One node: `elements` are those below it, sorted, whose indices agree in their first `depth` places. The shape, where
/// there is one, tells of leaves that have no element.
fn original_tree(elements: &[&OriginalValueElementProto], depth: usize, shape: Option<&ShapeProto>, out: &mut String) {
    const MAX_DEPTH: usize = 100;
    let inner = elements.partition_point(|element| element.shape_index.len() == depth);
    let (own, inner) = elements.split_at(inner);
    let shapes = shape.map_or(&[][..], |shape| &shape.tuple_shapes);
    let is_tuple = !inner.is_empty() || own.is_empty() && shape.is_some_and(shape::is_tuple);
    if is_tuple && depth < MAX_DEPTH {
        let mut children = BTreeMap::from_iter((0..shapes.len() as i64).map(|place| (place, &[][..])));
        children.extend(
            inner
                .chunk_by(|a, b| a.shape_index[depth] == b.shape_index[depth])
                .map(|child| (child[0].shape_index[depth], child)),
        );
        out.push('(');
        for (number, (&place, child)) in children.iter().enumerate() {
            out.push_str(if number > 0 { ", " } else { "" });
            original_tree(child, depth + 1, usize::try_from(place).ok().and_then(|place| shapes.get(place)), out);
        }
        out.push(')');
        return;
    }
    out.push('{');
    if let Some(array) = own.first().and_then(|leaf| leaf.original_array.as_option()) {
        write_to(out, format_args!("\"{}\"", array.instruction_name));
        if !array.shape_index.is_empty() {
            write_to(out, format_args!(" {}", braced(&array.shape_index)));
        }
    }
    out.push('}');
}

/// The tables that `stack_frame_id` in metadata refers to.
pub(super) fn stack_frames(index: &StackFrameIndexProto, out: &mut String) {
    let tables = [("FileNames", &index.file_names), ("FunctionNames", &index.function_names)];
    if index.stack_frames.is_empty() && tables.iter().all(|(_, names)| names.is_empty()) {
        return;
    }
    for (title, names) in tables {
        write_to(out, format_args!("\n{title}\n"));
        for (number, name) in names.iter().enumerate() {
            write_to(out, format_args!("{} {}\n", number + 1, quoted(name.as_bytes())));
        }
    }
    out.push_str("\nFileLocations\n");
    for (number, location) in index.file_locations.iter().enumerate() {
        write_to(
            out,
            format_args!(
                "{} {{file_name_id={} function_name_id={} line={} end_line={} column={} end_column={}}}\n",
                number + 1,
                location.file_name_id,
                location.function_name_id,
                location.line,
                location.end_line,
                location.column,
                location.end_column
            ),
        );
    }
    out.push_str("\nStackFrames\n");
    for (number, frame) in index.stack_frames.iter().enumerate() {
        // Text counts parents from 1, where 1 is no parent.
        let parent = i64::from(frame.parent_frame_id) + 1;
        let location = frame.file_location_id;
        write_to(out, format_args!("{} {{file_location_id={location} parent_frame_id={parent}}}\n", number + 1));
    }
}
