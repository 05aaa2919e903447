//! The HLO parser survives every text.

use proptest::prelude::*;
use spmd_run::hlo::parse;

const MODULES: [&str; 3] = [
    r#"HloModule jit_f, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, buffer_donor={ (1, {}) }, entry_computation_layout={(f32[8,<=4]{1,0:T(8,128)S(1)}, s32[])->(f32[8,4]{1,0}, s32[])}, num_partitions=4, frontend_attributes={a="b",c={x = {"y"}}}

FileNames
1 "f.py"
FunctionNames
1 "f"
FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=1 end_column=9}
StackFrames
1 {file_location_id=1 parent_frame_id=1}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add.1 = f32[] add(f32[] %x, f32[] %y), metadata={op_type="add" op_name="a\"b" source_line=3 stack_frame_id=1}
}

ENTRY %main (p: f32[8,4], i: s32[]) -> (f32[8,4], s32[]) {
  %p = f32[8,<=4]{1,0:T(8,128)S(1)} parameter(0), sharding={devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  %i = s32[] parameter(1), sharding={mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)), [], replicated={'x'}}
  %c = f32[8,4]{0,1} constant({ {1, -2.5e3, inf, nan(0x1)}, {0,0,0,0}, {0,0,0,0}, {0,0,0,0}, {0,0,0,0}, {0,0,0,0}, {0,0,0,0}, {0,0,0,0} })
  %r = f32[8,4] all-reduce(%p), channel_id=1, replica_groups=mesh['a'=2,'b'=2] {'a':(1)2}, use_global_device_ids=true, to_apply=%add
  %s = f32[8,4] all-reduce(%r), replica_groups={{0,1},{2,3}}, to_apply=%add, control-predecessors={%c}
  %g = f32[16,4] all-gather(%s), replica_groups=[2,2]<=[4], dimensions={0}, backend_config={"a":{"b":[1]}}
  %k = f32[8,4] slice(%g), slice={[0:8], [0:4:1]}
  ROOT %t = (f32[8,4], s32[]) tuple(%k, %i), origin={({"a"}, {"b" {0}})}
}
"#,
    r#"HloModule m
cond { p = (s32[], f32[1,8,8,3]) parameter(0) c = s32[] constant(3) ROOT l = compare(p#0, c), direction=LT }
body {
  p = (s32[], f32[1,8,8,3]) parameter(0)
  k = f32[3,3,3,3] constant({...})
  v = f32[1,8,8,3] convolution(p#1, k), window={size=3x3 stride=1x1 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  ROOT t = (s32[], f32[1,8,8,3]) tuple(add(p#0, s32[] constant(1)), v)
}
ENTRY e {
  p = (s32[], f32[1,8,8,3]) parameter(0)
  w = (s32[], f32[1,8,8,3]) while(p), condition=cond, body=body
  s = ((s32[]), s32[], u32[]) negate-start(w#0), async_execution_thread="t"
  d = s32[] negate-done(s)
  f = s32[2] custom-call(d, w#1), custom_call_target="t", api_version=API_VERSION_TYPED_FFI, operand_layout_constraints={s32[], f32[1,8,8,3]{3,2,1,0}}, literal=s32[2]{0} {1,2}
  z = f32[4] pad(f32[2] broadcast(f32[] constant(0)), f32[] constant(1)), padding=1_1_0
  ROOT q = (s32[2], c64[2]) tuple(f, c64[2] constant({(1,2), (nan, -inf)}))
}
"#,
    "%fusion = f32[2]{0} fusion(f32[2]{0} %p0, f32[]), kind=kLoop, calls={ a = f32[2] parameter(0) b = f32[] parameter(1) ROOT c = negate(a) }",
];

#[test]
fn the_modules_themselves_parse() {
    for module in MODULES {
        if let Err(error) = parse(module, "module") {
            panic!("{error}");
        }
    }
}

#[test]
fn no_truncation_panics() {
    for module in MODULES {
        for end in 0..module.len() {
            let _ = parse(&module[..end], "truncated");
        }
    }
}

/// One change of a text at a place given as a fraction of its length.
#[derive(Clone, Debug)]
enum Change {
    Insert(f64, String),
    Remove(f64, usize),
    Copy(f64, f64, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let snippets = vec![
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        ",",
        "=",
        "%",
        "#0",
        "-",
        "\"",
        "'",
        "/*",
        "//",
        "<=",
        "->",
        "...",
        "f32[2]",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "1e400",
        "nan(0x0)",
        "\\377",
        "\u{0}",
        "é",
        "token[]",
        "(f32[])",
        "parameter(7)",
        "sharding={manual}",
        "dimensions={9}",
        "index=-1",
        "ROOT",
        "0x0",
    ];
    let snippet = prop_oneof![proptest::sample::select(snippets).prop_map(str::to_owned), "\\PC{1,3}"];
    prop_oneof![
        (0.0..1.0, snippet).prop_map(|(at, text)| Change::Insert(at, text)),
        (0.0..1.0, 1usize..20).prop_map(|(at, length)| Change::Remove(at, length)),
        (0.0..1.0, 0.0..1.0, 1usize..60).prop_map(|(from, to, length)| Change::Copy(from, to, length)),
    ]
}

fn apply(text: &str, change: &Change) -> String {
    let characters: Vec<char> = text.chars().collect();
    let place = |fraction: f64| (fraction * characters.len() as f64) as usize;
    let (at, removed, inserted) = match change {
        Change::Insert(at, text) => (place(*at), 0, text.chars().collect()),
        Change::Remove(at, length) => (place(*at), *length, Vec::new()),
        Change::Copy(from, to, length) => {
            (place(*to), 0, characters.iter().skip(place(*from)).take(*length).copied().collect())
        }
    };
    let rest = characters.iter().skip(at + removed);
    characters.iter().take(at).chain(&inserted).chain(rest).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_mutation_panics(module in 0..MODULES.len(), changes in proptest::collection::vec(change(), 1..6)) {
        let text = changes.iter().fold(MODULES[module].to_owned(), |text, change| apply(&text, change));
        if let Err(error) = parse(&text, "mutated") {
            prop_assert!(error.to_string().starts_with("mutated:"));
        }
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = parse(&text, "random");
    }
}
