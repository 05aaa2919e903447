//! `spmd-run inspect`: reports, forms and stages of the samples.

mod common;
mod harness;

use std::path::{Path, PathBuf};

use harness::{root, spmd_run, tsv};
use serde_json::Value;
use spmd_run::hlo::{self, HloModule, Program};

fn inspect(arguments: &[&str]) -> String {
    let arguments = ["inspect"].iter().chain(arguments);
    spmd_run(arguments).success("inspect").stdout
}

/// A report without what depends on the compiler's choices.
fn report(arguments: &[&str]) -> String {
    inspect(&[arguments, &["--no-compile"]].concat())
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&inspect(&[arguments, &["--format", "json"]].concat())).expect("JSON")
}

fn load(path: &Path) -> HloModule {
    let bytes = std::fs::read(path).expect("a file that was just written");
    match hlo::load(&bytes, "emitted").unwrap_or_else(|error| panic!("{error}")) {
        Program::Hlo(module) => module,
        Program::Mlir(_) => panic!("emitted MLIR"),
    }
}

#[test]
fn a_report_on_groups_inside_and_across_processes() {
    insta::assert_snapshot!(report(&["-n", "4", "hlo/dp_tp_mlp_step.hlo"]));
}

#[test]
fn a_report_on_every_kind_of_collective() {
    insta::assert_snapshot!(report(&["-n", "2", "hlo/subgroups.hlo"]));
}

#[test]
fn a_report_on_replicas_with_partitions() {
    insta::assert_snapshot!(report(&["-n", "2", "hlo/replicas_partitions.hlo"]));
}

#[test]
fn a_report_on_donated_arguments() {
    insta::assert_snapshot!(report(&["hlo/donated_state.hlo"]));
}

#[test]
fn a_report_as_json() {
    let mut report = json(&["-n", "2", "hlo/conditional.hlo"]);
    let memory = report["memory"].take();
    for part in ["bytes_at_most", "argument_bytes", "output_bytes", "temporary_bytes", "alias_bytes"] {
        assert!(memory[part].is_u64(), "{part} in {memory}");
    }
    assert_eq!(memory["argument_bytes"], 4 + 256);
    let text = serde_json::to_string_pretty(&report).expect("JSON");
    insta::assert_snapshot!(text);
}

/// XLA's compiler counts the turns of loops as well.
#[test]
fn trip_counts_are_those_that_the_compiler_finds() {
    for sample in ["scan_layers", "pipeline", "ring_attention"] {
        let file = format!("hlo/{sample}.hlo");
        let report = json(&["--no-compile", &file]);
        let loops = report["loops"].as_array().expect("loops");
        let mut ours: Vec<String> = loops.iter().map(|it| it["trip_count"].to_string()).collect();
        let optimized = inspect(&["--stage", "optimized", &file]);
        let mut theirs: Vec<String> = optimized
            .split("\"known_trip_count\":{\"n\":\"")
            .skip(1)
            .filter_map(|rest| Some(rest.split('"').next()?.to_owned()))
            .collect();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ours, theirs, "{sample}");
        assert!(!ours.is_empty(), "{sample} has loops");
    }
}

#[test]
fn hlo_and_protos_hold_the_same_module() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for row in tsv(&root().join("hlo/samples.tsv")).iter().filter(|row| row["file"].ends_with(".hlo")) {
        let file = format!("hlo/{}", row["file"]);
        let original = load(&root().join(&file));
        let (text, proto) = (folder.path().join("text.hlo"), folder.path().join("proto.pb"));
        let emit = |form: &str, path: &PathBuf| inspect(&["--emit", form, "-o", &path.display().to_string(), &file]);
        assert_eq!(emit("hlo", &text) + &emit("proto", &proto), "");
        assert_eq!(load(&text), original, "{file}");
        assert_eq!(load(&proto).proto, original.proto, "{file}");
    }
}

/// Every form of a program gives the same results.
#[test]
fn stablehlo_runs_like_the_program_that_it_was_made_of() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // XLA ends the process on it.
    let without_form = "ragged_all_to_all";
    let refused = spmd_run(["inspect", "--emit", "stablehlo", "hlo/ragged_all_to_all.hlo"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("XLA makes no StableHLO of ragged-all-to-all"), "{}", refused.stderr);
    for row in tsv(&root().join("hlo/samples.tsv")).iter().filter(|row| row["name"] != without_form) {
        let name = &row["name"];
        let emitted = folder.path().join(format!("{name}.mlir")).display().to_string();
        inspect(&["--emit", "stablehlo", "-o", &emitted, &format!("hlo/{}", row["file"])]);
        let (input, expected) = (format!("hlo/data/{name}.in.npz"), format!("hlo/data/{name}.out.npz"));
        let arguments =
            ["run", &emitted, "--input", &input, "--expect", &expected, "--rtol", &row["rtol"], "--atol", &row["atol"]];
        spmd_run(arguments).success(name);
    }
}

#[test]
fn plugins_of_other_versions_convert_and_report() {
    for plugin in common::plugins() {
        let plugin = plugin.path().display().to_string();
        let text = inspect(&["--plugin", &plugin, "--emit", "stablehlo", "hlo/tp_mlp.hlo"]);
        assert!(text.starts_with("module @tp_mlp") && text.contains("stablehlo.dot"), "{plugin}: {text}");
        let report = json(&["--plugin", &plugin, "hlo/tp_mlp.hlo"]);
        assert_eq!(report["collectives"].as_array().map(Vec::len), Some(1), "{plugin}");
        assert!(report["memory"].is_object(), "{plugin}: {}", report["memory_error"]);
    }
}

#[test]
fn stages_show_the_program_of_one_device() {
    let stage = |name: &str| inspect(&["-n", "2", "--stage", name, "hlo/tp_mlp.hlo"]);
    assert!(stage("global").starts_with("HloModule tp_mlp, num_partitions=4"));
    let partitioned = stage("partitioned");
    assert!(partitioned.contains("f32[32,16] parameter(1)") && partitioned.contains(" all-reduce("), "{partitioned}");
    let lowered = stage("lowered");
    assert!(lowered.contains("custom_call_target=\"spmd_run.collective\""), "{lowered}");
    assert!(lowered.starts_with("HloModule tp_mlp, replica_count=2"), "{lowered}");
    let optimized = stage("optimized");
    assert!(optimized.contains("is_scheduled=true") && optimized.contains("spmd_run.collective"), "{optimized}");
    for text in [partitioned, lowered, optimized] {
        hlo::parse(&text, "stage.hlo").unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

#[test]
fn library_calls_are_listed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("calls.hlo");
    let text = "HloModule calls\n\nENTRY main {\n  p = f32[4,4] parameter(0)\n  a = f32[4,4] custom-call(p), \
                custom_call_target=\"lapack_nothing\"\n  ROOT b = f32[4,4] custom-call(a), \
                custom_call_target=\"my_kernel\"\n}\n";
    std::fs::write(&path, text).expect("a file in a temporary folder");
    let report = json(&[&path.display().to_string()]);
    let targets: Vec<_> = report["custom_calls"].as_array().expect("a list").iter().map(|it| &it["target"]).collect();
    assert_eq!(targets, ["lapack_nothing", "my_kernel"]);
    assert!(report["memory"].is_null() && report["memory_error"].is_string(), "{report}");
}

#[test]
fn what_cannot_be_shown_is_explained() {
    let message = |arguments: &[&str], code: i32| {
        let outcome = spmd_run(["inspect"].iter().chain(arguments));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(code), ""), "{}", outcome.stderr);
        outcome.stderr
    };
    insta::assert_snapshot!(message(&["nope.hlo"], 1), @"error: nope.hlo: No such file or directory (os error 2)");
    insta::assert_snapshot!(message(&["-n", "3", "hlo/tp_mlp.hlo"], 1), @"error: the program needs 4 devices (1 replica × 4 partitions), which 3 processes cannot share evenly: try -n 2 --devices-per-process 2");
    insta::assert_snapshot!(message(&["--num-partitions", "2", "hlo/tp_mlp.hlo"], 1), @"error: the program says num_partitions=4, but --num-partitions 2 was given: leave the flag out");
    insta::assert_snapshot!(message(&["--emit", "stablehlo", "--stage", "lowered", "hlo/tp_mlp.hlo"], 2), @"error: --emit stablehlo goes with --stage global only: StableHLO cannot say that a program is that of one device already");
    assert!(message(&["--stage", "fused", "hlo/tp_mlp.hlo"], 2).contains("[possible values: global, partitioned"));
    assert!(message(&["--emit", "hlo", "--format", "json", "hlo/tp_mlp.hlo"], 2).contains("cannot be used with"));
}
