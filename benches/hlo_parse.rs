//! Bytes per second of HLO text: parsed, parsed and serialized, verified, and taken all the way to the program that the
//! devices of one of two processes compile.
//!
//!     cargo bench --bench hlo_parse
//!
//! The texts are left in `target/tmp/hlo_parse`; `benches/parse_vs_xla.py` gives the same ones to XLA's parser.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use buffa::Message;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use spmd_run::hlo;
use spmd_run::lower::{self, Layout};

/// About this many bytes of text each.
const SIZE: usize = 4 << 20;

/// A training step as JAX prints it.
const SAMPLE: &str = include_str!("../hlo/scan_layers.hlo");

fn hlo_parse(criterion: &mut Criterion) {
    let directory = directory();
    let mut group = criterion.benchmark_group("hlo_parse");
    group.sample_size(20);
    for (name, text) in [("plain", copies(false)), ("metadata", copies(true)), ("literals", literals())] {
        std::fs::write(directory.join(name).with_extension("hlo"), &text).expect("cannot write a text");
        group.throughput(Throughput::Bytes(text.len() as u64));
        let parse = || hlo::parse(&text, name).unwrap_or_else(|error| panic!("{error}"));
        group.bench_function(format!("{name}/parse"), |bencher| bencher.iter_with_large_drop(parse));
        group.bench_function(format!("{name}/parse_and_serialize"), |bencher| {
            bencher.iter_with_large_drop(|| {
                let module = parse();
                (module.proto.encode_to_vec(), module)
            });
        });
    }
}

/// What is done to a module before a plugin compiles it, except for partitioning.
fn hlo_to_runnable(criterion: &mut Criterion) {
    let text = layers();
    std::fs::write(directory().join("layers.hlo"), &text).expect("cannot write a text");
    let layout = Layout { replicas: 4, partitions: 1, devices_per_process: vec![2, 2] };
    let parse = || hlo::parse(&text, "layers").unwrap_or_else(|error| panic!("{error}"));
    let verify = |module: &hlo::HloModule| hlo::verify(module, 4, 1).unwrap_or_else(|error| panic!("{error}"));
    let mut group = criterion.benchmark_group("hlo_to_runnable");
    group.sample_size(20);
    group.throughput(Throughput::Bytes(text.len() as u64));
    let module = parse();
    group.bench_function("verify", |bencher| bencher.iter(|| verify(&module)));
    group.bench_function("parse_verify_lower_serialize", |bencher| {
        bencher.iter(|| {
            let module = parse();
            verify(&module);
            let lowered = lower::lower(&module, &layout).unwrap_or_else(|error| panic!("{error}"));
            lowered.module.proto.encode_to_vec()
        });
    });
}

fn directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hlo_parse");
    std::fs::create_dir_all(&directory).expect("cannot create the directory of the texts");
    directory
}

/// A deep network, one instruction after the other, with an all-reduce in every layer.
fn layers() -> String {
    let mut text = "HloModule layers, replica_count=4\n\nsum {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  \
                    ROOT z = f32[] add(x, y)\n}\n\nENTRY main {\n  weights.0 = f32[16,16]{1,0} parameter(0)\n  \
                    sum.0 = f32[8,16]{1,0} parameter(1)\n"
        .to_owned();
    let mut layer = 0;
    while text.len() < SIZE {
        let (before, this) = (layer, layer + 1);
        let _ = write!(
            text,
            "  dot.{this} = f32[8,16]{{1,0}} dot(sum.{before}, weights.0), lhs_contracting_dims={{1}}, \
             rhs_contracting_dims={{0}}\n  \
             tanh.{this} = f32[8,16]{{1,0}} tanh(dot.{this})\n  \
             all-reduce.{this} = f32[8,16]{{1,0}} all-reduce(tanh.{this}), channel_id={this}, \
             replica_groups={{{{0,2}},{{1,3}}}}, use_global_device_ids=true, to_apply=sum\n  \
             sum.{this} = f32[8,16]{{1,0}} add(all-reduce.{this}, sum.{before})\n"
        );
        layer = this;
    }
    let _ = writeln!(text, "  ROOT result = (f32[8,16]{{1,0}}) tuple(sum.{layer})\n}}");
    text
}

/// The sample's computations over and over, the numbers of their names moved on, with or without what JAX notes of
/// every operation's origin.
fn copies(metadata: bool) -> String {
    let (_, module) = SAMPLE.split_once("HloModule").expect("the sample has a header");
    let (header, computations) = module.split_once("\n\n").expect("the sample has computations");
    let mut text = format!("HloModule{header}\n");
    let mut copy = 0;
    while text.len() < SIZE {
        for line in computations.lines() {
            let line = line.strip_prefix("ENTRY ").unwrap_or(line);
            for (index, word) in line.split('.').enumerate() {
                let digits = word.bytes().take_while(u8::is_ascii_digit).count();
                match word[..digits].parse::<usize>() {
                    Ok(number) if index > 0 => {
                        let _ = write!(text, ".{}{}", number + 1000 * copy, &word[digits..]);
                    }
                    _ => text += word,
                }
            }
            if metadata && line.contains(" = ") {
                let _ = write!(
                    text,
                    ", metadata={{op_name=\"jit(train_step)/jvp(layers)/while/body/closed_call/mlp/dot_general\" \
                     source_file=\"/home/user/train/model.py\" source_line={} source_end_line={} source_column=8 \
                     source_end_column=23}}",
                    copy, copy
                );
            }
            text.push('\n');
        }
        copy += 1;
        text.push('\n');
    }
    text
}

/// Constants of several types, as wide as a line of a real module gets.
fn literals() -> String {
    let mut text = "HloModule literals\n\nENTRY main {\n".to_owned();
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        state >> 8
    };
    let mut line = 0;
    while text.len() < SIZE {
        let mut values = |value: &dyn Fn(u32) -> String| {
            let row = |random: &mut dyn FnMut() -> u32| (0..64).map(|_| value(random())).collect::<Vec<_>>().join(", ");
            (0..64).map(|_| format!("{{ {} }}", row(&mut random))).collect::<Vec<_>>().join(", ")
        };
        let floats = values(&|bits| (bits as f32 / 7e5 - 12.0).to_string());
        let integers = values(&|bits| bits.to_string());
        let truths = values(&|bits| (bits & 1).to_string());
        let _ = write!(
            text,
            "  f.{line} = f32[64,64]{{1,0}} constant({{ {floats} }})\n  \
             s.{line} = s32[64,64]{{1,0}} constant({{ {integers} }})\n  \
             p.{line} = pred[64,64]{{1,0}} constant({{ {truths} }})\n"
        );
        line += 1;
    }
    text += "  ROOT r = () tuple()\n}\n";
    text
}

criterion_group!(benches, hlo_parse, hlo_to_runnable);
criterion_main!(benches);
