use insta::assert_snapshot;
use proptest::prelude::*;
use proptest::sample::select;

use super::bitcast::{Path, Step, Value, path};
use super::*;
use crate::dtype::DType;
use crate::hlo;
use crate::proto::TileProto;

fn shape_of(dtype: DType, dims: &[i64], minor_to_major: &[i64], tiles: &[Vec<i64>]) -> ShapeProto {
    let mut shape = shape::array(dtype, dims);
    let layout = shape.layout.get_or_insert_default();
    layout.minor_to_major = minor_to_major.to_vec();
    layout.tiles = tiles.iter().map(|dims| TileProto { dimensions: dims.clone(), ..TileProto::default() }).collect();
    shape
}

/// Row-major indices of an array of these dimensions.
fn indices(dims: &[i64]) -> impl Iterator<Item = Vec<i64>> {
    let count = dims.iter().product();
    (0..count).map(|flat| {
        let mut rest = flat;
        let mut index: Vec<i64> = dims.iter().rev().map(|dim| (rest % dim, rest /= dim).0).collect();
        index.reverse();
        index
    })
}

fn flat(index: &[i64], dims: &[i64]) -> usize {
    index.iter().zip(dims).fold(0, |flat, (&index, &dim)| flat * dim + index) as usize
}

/// Where the element with this index lies in memory, and how many places there are, by the definition of layouts.
fn place(shape: &ShapeProto, index: &[i64]) -> (usize, usize) {
    let order = shape.layout.minor_to_major.iter().rev().map(|&dim| dim as usize);
    let (mut index, mut dims): (Vec<i64>, Vec<i64>) = order.map(|dim| (index[dim], shape.dimensions[dim])).unzip();
    for tile in &shape.layout.tiles {
        let tile = &tile.dimensions;
        while dims.len() < tile.len() {
            dims.insert(0, 1);
            index.insert(0, 0);
        }
        let first = dims.len() - tile.len();
        let (inner_index, inner_dims) = (index.split_off(first), dims.split_off(first));
        index.extend(inner_index.iter().zip(tile).map(|(index, tile)| index / tile));
        dims.extend(inner_dims.iter().zip(tile).map(|(dim, tile)| (dim + tile - 1) / tile));
        index.extend(inner_index.iter().zip(tile).map(|(index, tile)| index % tile));
        dims.extend(tile);
    }
    (flat(&index, &dims), dims.iter().product::<i64>() as usize)
}

/// The bytes of each element in turn, laid out as the shape says and read as another one.
fn reinterpret(from: &ShapeProto, to: &ShapeProto, bytes: &[u8]) -> Vec<u8> {
    let width = |shape| shape::dtype(shape).unwrap().size();
    let mut memory = Vec::new();
    for (index, element) in indices(&from.dimensions).zip(bytes.chunks(width(from))) {
        let (place, places) = place(from, &index);
        memory.resize(places * width(from), 0);
        memory[place * width(from)..][..width(from)].copy_from_slice(element);
    }
    let read = |index: Vec<i64>| memory[place(to, &index).0 * width(to)..][..width(to)].to_vec();
    indices(&to.dimensions).flat_map(read).collect()
}

/// What the steps make of the bytes of an array.
fn walk(path: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let ends = path.steps.iter().skip(1).map(|(start, _)| start).chain([&path.result]);
    for ((start, step), end) in path.steps.iter().zip(ends) {
        let width = start.dtype.size();
        let element = |index: &[i64]| bytes[flat(index, &start.dims) * width..][..width].to_vec();
        bytes = match step {
            Step::Reshape(_) | Step::BitcastConvert(_) | Step::Convert(_) => bytes,
            Step::Slice(_) => indices(&end.dims).flat_map(|index| element(&index)).collect(),
            Step::Pad(_) => indices(&end.dims)
                .flat_map(|index| {
                    let inside = index.iter().zip(&start.dims).all(|(index, dim)| index < dim);
                    if inside { element(&index) } else { vec![0; width] }
                })
                .collect(),
            Step::Transpose(permutation) => indices(&end.dims)
                .flat_map(|index| {
                    let mut source = vec![0; index.len()];
                    permutation.iter().zip(&index).for_each(|(&dim, &at)| source[dim] = at);
                    element(&source)
                })
                .collect(),
        };
    }
    bytes
}

/// An array's dimensions in a random order of memory.
fn ordered(dims: Vec<i64>) -> impl Strategy<Value = (Vec<i64>, Vec<i64>)> {
    let order: Vec<i64> = (0..dims.len() as i64).collect();
    (Just(dims), Just(order).prop_shuffle())
}

/// Two lists of dimensions with the same product.
fn same_sizes() -> impl Strategy<Value = (Vec<i64>, Vec<i64>)> {
    let factors = proptest::collection::vec(1i64..4, 0..6);
    factors.prop_flat_map(|factors| {
        let count = factors.len();
        let grouped = move |factors: Vec<i64>| {
            proptest::collection::vec(any::<bool>(), count).prop_map(move |starts| {
                let mut dims: Vec<i64> = Vec::new();
                for (factor, start) in factors.iter().zip(starts) {
                    match dims.last_mut() {
                        Some(last) if !start => *last *= factor,
                        _ => dims.push(*factor),
                    }
                }
                dims
            })
        };
        let shuffled = Just(factors.clone()).prop_shuffle().prop_flat_map(grouped);
        (grouped(factors), shuffled)
    })
}

fn bytes_of(shape: &ShapeProto) -> Vec<u8> {
    let count = shape::byte_size(shape).unwrap();
    (0..count).map(|byte| (byte % 251 + 1) as u8).collect()
}

fn check(from: &ShapeProto, to: &ShapeProto) {
    let path = path(from, to).unwrap();
    assert_eq!(path.result, Value { dtype: shape::dtype(to).unwrap(), dims: to.dimensions.clone() });
    let bytes = bytes_of(from);
    assert_eq!(walk(&path, &bytes), reinterpret(from, to, &bytes), "{:?}", path.steps);
}

proptest! {
    #[test]
    fn bitcasts_between_layouts_read_memory(
        (from, to) in same_sizes().prop_flat_map(|(from, to)| (ordered(from), ordered(to)))
    ) {
        check(&shape_of(DType::S16, &from.0, &from.1, &[]), &shape_of(DType::S16, &to.0, &to.1, &[]));
    }

    #[test]
    fn bitcasts_between_widths_read_memory(
        (from, to) in same_sizes().prop_flat_map(|(from, to)| (ordered(from), ordered(to))),
        wide in select(vec![DType::F64, DType::U32, DType::BF16]),
        narrow in select(vec![DType::U8, DType::S8]),
    ) {
        let mut dims = to.0.clone();
        let mut order: Vec<i64> = to.1.iter().map(|dim| dim + 1).collect();
        order.insert(0, 0);
        dims.insert(0, (wide.size() / narrow.size()) as i64);
        let (wide, narrow) = (shape_of(wide, &from.0, &from.1, &[]), shape_of(narrow, &dims, &order, &[]));
        check(&wide, &narrow);
        check(&narrow, &wide);
    }

    #[test]
    fn bitcasts_between_tiles_read_memory(
        (dims, order) in proptest::collection::vec(1i64..7, 0..4).prop_flat_map(ordered),
        ones in 0usize..3,
        tiles in select(vec![vec![vec![2, 4]], vec![vec![4]], vec![vec![4, 2], vec![2, 1]]]),
    ) {
        let larger: Vec<i64> = std::iter::repeat_n(1, ones).chain(dims.iter().copied()).collect();
        let minor = order.iter().map(|dim| dim + ones as i64);
        let larger_order: Vec<i64> = minor.chain((0..ones as i64).rev()).collect();
        let (small, large) = (shape_of(DType::U8, &dims, &order, &tiles), shape_of(DType::U8, &larger, &larger_order, &tiles));
        check(&small, &large);
        check(&large, &small);
        // Whole tiles may be read without them.
        let (_, places) = place(&small, &vec![0; dims.len()]);
        if places as u64 == shape::num_elements(&small).unwrap() {
            check(&small, &shape::array(DType::U8, &[places as i64]));
        }
    }
}

#[test]
fn few_steps_are_taken() {
    let steps = |from: &ShapeProto, to: &ShapeProto| path(from, to).unwrap().steps.into_iter().map(|(_, step)| step);
    let row_major = shape_of(DType::F32, &[8, 16], &[1, 0], &[]);
    let transposed = shape_of(DType::F32, &[16, 8], &[0, 1], &[]);
    assert_eq!(steps(&row_major, &row_major).count(), 0);
    assert!(steps(&row_major, &transposed).eq([Step::Transpose(vec![1, 0])]));
    assert!(steps(&row_major, &shape_of(DType::F32, &[128], &[0], &[])).eq([Step::Reshape(vec![128])]));
}

#[test]
fn what_no_operation_reads_is_refused() {
    let array = |dtype, dims: &[i64]| shape::array(dtype, dims);
    let refused = |from: &ShapeProto, to: &ShapeProto| path(from, to).err().expect("an error");
    let no_other = "no other operation reads elements of its operand's type as those of its result";
    assert_eq!(refused(&array(DType::C64, &[2]), &array(DType::F32, &[4])), no_other);
    assert_eq!(refused(&array(DType::S4, &[4]), &array(DType::S8, &[2])), no_other);
    let sizes = "the sizes of its operand and its result differ";
    assert_eq!(refused(&array(DType::F32, &[4]), &array(DType::F32, &[2])), sizes);
    assert_eq!(refused(&array(DType::U8, &[3]), &array(DType::U16, &[1])), sizes);
    let merged = shape_of(DType::F32, &[4, 4], &[1, 0], &[vec![i64::MIN, 2]]);
    assert_eq!(refused(&merged, &merged), "its layouts have tiles over merged dimensions");
    let mut dynamic = array(DType::F32, &[4]);
    dynamic.is_dynamic_dimension = vec![true];
    assert_eq!(path(&dynamic, &dynamic).unwrap().steps.len(), 0);
    assert!(refused(&dynamic, &array(DType::F32, &[2, 2])).contains("known at run time only"));
}

/// A module after it is undone, which must pass the checks and print to what is read back.
fn undone(text: &str) -> HloModule {
    let mut module = hlo::parse(text, "dump.hlo").unwrap_or_else(|error| panic!("{error}"));
    hlo::verify(&module, 1, 1).unwrap_or_else(|error| panic!("{error}"));
    undo(&mut module).unwrap_or_else(|error| panic!("{error}"));
    let printed = hlo::print(&module);
    hlo::verify(&module, 1, 1).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    hlo::parse(&printed, "undone.hlo").unwrap_or_else(|error| panic!("{error}\n{printed}"));
    module
}

#[test]
fn what_the_compiler_added_goes() {
    let text = r#"HloModule m, is_scheduled=true, entry_computation_layout={(f32[2,3]{0,1})->f32[6]{0}}

%fused (p: f32[2,3]) -> f32[6] {
  %p = f32[2,3]{0,1} parameter(0)
  %c = f32[2,3]{0,1} constant({{1, 2, 3}, {4, 5, 6}})
  %sum = f32[2,3]{0,1} add(%p, %c)
  ROOT %bitcast.1 = f32[6]{0} bitcast(%sum)
}

ENTRY %main (x: f32[2,3]) -> f32[6] {
  %x = f32[2,3]{0,1} parameter(0), sharding={replicated}
  %start = (f32[2,3]{0,1:S(5)}, f32[2,3]{0,1}, u32[]) copy-start(%x), cross_program_prefetch_index=0
  %done = f32[2,3]{0,1:S(5)} copy-done(%start)
  %call = f32[2,3]{0,1} custom-call(%done), custom_call_target="column_major", backend_config="kept"
  ROOT %fusion = f32[6]{0} fusion(%call), kind=kLoop, calls=%fused, control-predecessors={%x}, backend_config={"outer_dimension_partitions":["2"]}
}
"#;
    assert_snapshot!(hlo::print(&undone(text)), @r#"
    HloModule m, is_scheduled=true

    ENTRY %main {
      %x = f32[2,3] parameter(0), sharding={replicated}
      %start = f32[2,3] copy(%x)
      %call = f32[2,3]{0,1} custom-call(%start), custom_call_target="column_major", operand_layout_constraints={f32[2,3]{0,1}}, backend_config="kept"
      %c = f32[2,3] constant({{1, 2, 3}, {4, 5, 6}})
      %sum = f32[2,3] add(%call, %c)
      %bitcast.1.1 = f32[3,2] transpose(%sum), dimensions={1,0}
      ROOT %fusion = f32[6] reshape(%bitcast.1.1)
    }
    "#);
}

#[test]
fn fusions_go_where_they_are_called() {
    let text = "HloModule m, is_scheduled=true

%inner (a: f32[4], b: f32[4]) -> (f32[4], f32[4]) {
  %a = f32[4] parameter(0)
  %b = f32[4] parameter(1)
  %difference = f32[4] subtract(%b, %a)
  ROOT %pair = (f32[4], f32[4]) tuple(%difference, %a)
}

%outer (c: f32[4]) -> (f32[4], f32[4]) {
  %c = f32[4] parameter(0)
  %sine = f32[4] sine(%c)
  ROOT %nested = (f32[4], f32[4]) fusion(%sine, %c), kind=kLoop, calls=%inner
}

%same (d: f32[4]) -> f32[4] {
  ROOT %d = f32[4] parameter(0)
}

%twice (e: f32[4]) -> f32[4] {
  %e = f32[4] parameter(0)
  ROOT %negate = f32[4] negate(%e)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0)
  %both = (f32[4], f32[4]) fusion(%x), kind=kLoop, calls=%outer
  %first = f32[4] get-tuple-element(%both), index=0
  %forward = f32[4] fusion(%first), kind=kLoop, calls=%same
  %once = f32[4] fusion(%forward), kind=kLoop, calls=%twice
  ROOT %again = f32[4] fusion(%once), kind=kLoop, calls=%twice
}
";
    assert_snapshot!(hlo::print(&undone(text)), @"
    HloModule m, is_scheduled=true

    %twice {
      %e = f32[4] parameter(0)
      ROOT %negate = f32[4] negate(%e)
    }

    ENTRY %main {
      %x = f32[4] parameter(0)
      %sine = f32[4] sine(%x)
      %difference = f32[4] subtract(%x, %sine)
      %both = (f32[4], f32[4]) tuple(%difference, %sine)
      %first = f32[4] get-tuple-element(%both), index=0
      %forward = f32[4] copy(%first)
      %once = f32[4] call(%forward), to_apply=%twice
      ROOT %again = f32[4] call(%once), to_apply=%twice
    }
    ");
}

#[test]
fn dumps_are_told_apart() {
    let because = |header: &str, body: &str| {
        let text =
            format!("HloModule m{header}\n\nENTRY e {{\n  p = f32[4] parameter(0)\n  ROOT r = f32[4] {body}\n}}\n");
        compiled_because(&hlo::parse(&text, "m.hlo").unwrap())
    };
    assert_eq!(because(", is_scheduled=true", "negate(p)"), Some("is_scheduled=true"));
    assert_eq!(because("", "bitcast(p)"), Some("it has bitcasts"));
    let start = "negate(p)\n  s = ((f32[4]), f32[4]) negate-start(r)\n  d = f32[4] negate-done(s)";
    assert_eq!(because("", start), Some("it has asynchronous operations"));
    assert_eq!(because("", "negate(p)"), None);
}
