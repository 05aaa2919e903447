//! Shapes: text form, sizes, layouts, and constructors for the usual ones.

use std::fmt::{self, Write};

use crate::dtype::DType;
use crate::proto::{LayoutProto, PrimitiveType, ShapeProto, TileProto};

/// The size that stands for an unbounded dynamic dimension (`?` in text).
pub const UNBOUNDED: i64 = i64::MIN;

/// An array of these dimensions with a row-major layout.
pub fn array(dtype: DType, dims: &[i64]) -> ShapeProto {
    ShapeProto {
        element_type: dtype.primitive_type().into(),
        dimensions: dims.to_vec(),
        is_dynamic_dimension: vec![false; dims.len()],
        layout: Some(row_major(dims.len())).into(),
        ..ShapeProto::default()
    }
}

/// An array without dimensions.
pub fn scalar(dtype: DType) -> ShapeProto {
    array(dtype, &[])
}

/// A tuple of these shapes.
pub fn tuple(elements: Vec<ShapeProto>) -> ShapeProto {
    ShapeProto { element_type: PrimitiveType::TUPLE.into(), tuple_shapes: elements, ..ShapeProto::default() }
}

/// The shape of values that only order side effects.
pub fn token() -> ShapeProto {
    ShapeProto { element_type: PrimitiveType::TOKEN.into(), ..ShapeProto::default() }
}

/// The layout with the last dimension minor.
pub fn row_major(rank: usize) -> LayoutProto {
    LayoutProto {
        minor_to_major: (0..rank as i64).rev().collect(),
        tail_padding_alignment_in_elements: 1,
        ..LayoutProto::default()
    }
}

/// Gives every array of the shape a plain row-major layout.
pub fn set_row_major(shape: &mut ShapeProto) {
    if dtype(shape).is_some() {
        shape.layout = Some(row_major(shape.dimensions.len())).into();
    }
    shape.tuple_shapes.iter_mut().for_each(set_row_major);
}

/// Gives every array of the shape that has no layout a row-major one, which is what its text would mean.
pub fn set_missing_layouts(shape: &mut ShapeProto) {
    if shape.layout.is_unset() && dtype(shape).is_some() {
        shape.layout = Some(row_major(shape.dimensions.len())).into();
    }
    shape.tuple_shapes.iter_mut().for_each(set_missing_layouts);
}

/// Whether every array of the shape has no layout or the plain row-major one.
pub fn is_row_major(shape: &ShapeProto) -> bool {
    has_default_layout(shape) && shape.tuple_shapes.iter().all(is_row_major)
}

/// The element type of an array; `None` for tuples, tokens and the like.
pub fn dtype(shape: &ShapeProto) -> Option<DType> {
    DType::from_primitive_type(shape.element_type.to_i32())
}

/// Whether the shape is a tuple.
pub fn is_tuple(shape: &ShapeProto) -> bool {
    shape.element_type == PrimitiveType::TUPLE
}

/// Whether the shape is a token.
pub fn is_token(shape: &ShapeProto) -> bool {
    shape.element_type == PrimitiveType::TOKEN
}

/// The number of elements of an array, dynamic dimensions at their bound; `None` if the shape is no array, is unbounded
/// or does not fit 63 bits.
pub fn num_elements(shape: &ShapeProto) -> Option<u64> {
    dtype(shape)?;
    if shape.dimensions.iter().any(|&dim| dim < 0) {
        return None;
    }
    if shape.dimensions.contains(&0) {
        return Some(0);
    }
    shape.dimensions.iter().try_fold(1i64, |product, &dim| product.checked_mul(dim)).map(|product| product as u64)
}

/// Bytes of all arrays of the shape in host memory, where narrow types take a byte; `None` if that overflows or an array
/// is unbounded.
pub fn byte_size(shape: &ShapeProto) -> Option<u64> {
    match dtype(shape) {
        Some(dtype) => num_elements(shape)?.checked_mul(dtype.size() as u64),
        None => shape.tuple_shapes.iter().try_fold(0u64, |sum, element| sum.checked_add(byte_size(element)?)),
    }
}

/// The shapes of a tuple's parts that are no tuples, in order; the shape itself if it is none.
pub fn leaves(shape: &ShapeProto) -> Vec<&ShapeProto> {
    if is_tuple(shape) { shape.tuple_shapes.iter().flat_map(leaves).collect() } else { vec![shape] }
}

/// Whether both have the same element types, dimensions and tuple structure; layouts and dynamic sizes may differ.
pub fn compatible(a: &ShapeProto, b: &ShapeProto) -> bool {
    a.element_type == b.element_type
        && a.dimensions == b.dimensions
        && a.tuple_shapes.len() == b.tuple_shapes.len()
        && a.tuple_shapes.iter().zip(&b.tuple_shapes).all(|(a, b)| compatible(a, b))
}

/// Whether `dims` names each of the first `rank` dimensions once.
pub fn is_permutation(dims: &[i64], rank: usize) -> bool {
    // Nearly every layout.
    if dims.len() == rank && dims.iter().rev().copied().eq(0..rank as i64) {
        return true;
    }
    let mut seen = vec![false; rank];
    dims.len() == rank
        && dims.iter().all(|&dim| {
            let place = usize::try_from(dim).ok().and_then(|dim| seen.get_mut(dim));
            place.is_some_and(|seen| !std::mem::replace(seen, true))
        })
}

fn has_default_layout(shape: &ShapeProto) -> bool {
    let layout = &*shape.layout;
    let rank = shape.dimensions.len() as i64;
    layout.minor_to_major.iter().rev().copied().eq(0..layout.minor_to_major.len() as i64)
        && (layout.minor_to_major.len() as i64 == rank || shape.layout.is_unset())
        && LayoutText(layout).attributes().is_empty()
}

/// The text form; a row-major layout, which is what XLA assumes where none stands, is left out: `f32[8,128]`,
/// `(bf16[4]{0:S(5)}, token[])`.
pub fn text(shape: &ShapeProto) -> String {
    Text { shape, layouts: Layouts::Unusual }.to_string()
}

/// The text form with every layout spelled out: `f32[8,128]{1,0}`.
pub fn text_with_layout(shape: &ShapeProto) -> String {
    Text { shape, layouts: Layouts::All }.to_string()
}

/// The text form without layouts.
pub fn text_without_layout(shape: &ShapeProto) -> String {
    Text { shape, layouts: Layouts::None }.to_string()
}

#[derive(Clone, Copy, PartialEq)]
enum Layouts {
    None,
    Unusual,
    All,
}

struct Text<'a> {
    shape: &'a ShapeProto,
    layouts: Layouts,
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Text { shape, layouts } = *self;
        if is_tuple(shape) || shape.element_type == PrimitiveType::BUFFER {
            f.write_str(if is_tuple(shape) { "(" } else { "b(" })?;
            for (index, shape) in shape.tuple_shapes.iter().enumerate() {
                f.write_str(if index > 0 { ", " } else { "" })?;
                Text { shape, layouts }.fmt(f)?;
            }
            return f.write_char(')');
        }
        write!(f, "{}[", type_name(shape.element_type.to_i32()))?;
        for (index, &dim) in shape.dimensions.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            match shape.is_dynamic_dimension.get(index) {
                Some(true) if dim == UNBOUNDED => f.write_char('?')?,
                Some(true) => write!(f, "<={dim}")?,
                _ => write!(f, "{dim}")?,
            }
        }
        f.write_char(']')?;
        let show = match layouts {
            Layouts::None => false,
            Layouts::Unusual => !has_default_layout(shape),
            Layouts::All => shape.layout.is_set() && !(shape.dimensions.is_empty() && has_default_layout(shape)),
        };
        if show { LayoutText(&shape.layout).fmt(f) } else { Ok(()) }
    }
}

/// XLA's lower-case name of an element type, known to us as an array type or not.
fn type_name(number: i32) -> &'static str {
    const OTHERS: [(PrimitiveType, &str); 4] = [
        (PrimitiveType::TUPLE, "tuple"),
        (PrimitiveType::OPAQUE_TYPE, "opaque"),
        (PrimitiveType::TOKEN, "token"),
        (PrimitiveType::BUFFER, "buffer"),
    ];
    let other = || OTHERS.iter().find(|(primitive, _)| *primitive as i32 == number).map(|(_, name)| *name);
    DType::from_primitive_type(number).map(DType::name).or_else(other).unwrap_or("invalid")
}

/// A layout in braces.
struct LayoutText<'a>(&'a LayoutProto);

impl LayoutText<'_> {
    /// What stands after the colon: tiles, memory space and the like.
    fn attributes(&self) -> String {
        let layout = self.0;
        let mut out = String::new();
        let tiles: String = layout.tiles.iter().map(tile_text).collect();
        if !tiles.is_empty() {
            out += &format!("T{tiles}");
        }
        let mut number = |mark: &str, value: i64, default: i64| {
            if value != 0 && value != default {
                out += &format!("{mark}({value})");
            }
        };
        number("L", layout.tail_padding_alignment_in_elements, 1);
        for (mark, primitive) in [("#", layout.index_primitive_type), ("*", layout.pointer_primitive_type)] {
            if primitive != PrimitiveType::PRIMITIVE_TYPE_INVALID {
                out += &format!("{mark}({})", type_name(primitive.to_i32()));
            }
        }
        let mut number = |mark: &str, value: i64| {
            if value != 0 {
                out += &format!("{mark}({value})");
            }
        };
        number("E", layout.element_size_in_bits);
        number("S", layout.memory_space);
        if !layout.split_configs.is_empty() {
            out += "SC";
            for split in &layout.split_configs {
                out += &format!("({}:{})", split.dimension, join(&split.split_indices));
            }
        }
        if layout.physical_shape.is_set() {
            out += &format!("P({})", text_with_layout(&layout.physical_shape));
        }
        if layout.dynamic_shape_metadata_prefix_bytes != 0 {
            out += &format!("M({})", layout.dynamic_shape_metadata_prefix_bytes);
        }
        out
    }
}

impl fmt::Display for LayoutText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attributes = self.attributes();
        let colon = if attributes.is_empty() { "" } else { ":" };
        write!(f, "{{{}{colon}{attributes}}}", join(&self.0.minor_to_major))
    }
}

fn tile_text(tile: &TileProto) -> String {
    /// A dimension that is merged with the next more minor one.
    const COMBINE: i64 = i64::MIN;
    let dims = tile.dimensions.iter().map(|&dim| if dim == COMBINE { "*".to_owned() } else { dim.to_string() });
    format!("({})", dims.collect::<Vec<_>>().join(","))
}

/// Numbers with commas between them, without spaces.
pub(crate) fn join<T: fmt::Display>(numbers: &[T]) -> String {
    let mut out = String::new();
    for (index, number) in numbers.iter().enumerate() {
        let _ = write!(out, "{}{number}", if index > 0 { "," } else { "" });
    }
    out
}
