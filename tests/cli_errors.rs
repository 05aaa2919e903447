//! Wrong input gets a clear error and an exit code, before anything is run.

mod harness;

use std::net::TcpListener;
use std::path::PathBuf;

use harness::{Outcome, command, run, spmd_run};
use spmd_run::dtype::DType;
use spmd_run::host_array::{HostArray, npz};
use tempfile::TempDir;

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn with(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, contents).expect("a file in a temporary folder");
        path.display().to_string()
    }

    fn npz(&self, name: &str, arrays: &[(&str, HostArray)]) -> String {
        let path = self.path(name);
        let arrays = arrays.iter().map(|(name, array)| ((*name).to_owned(), array));
        npz::write_npz(&path, arrays).expect("an npz in a temporary folder");
        path.display().to_string()
    }

    /// What a command printed to standard error, without the temporary folder's name.
    fn stderr(&self, outcome: &Outcome) -> String {
        outcome.stderr.replace(&format!("{}/", self.0.path().display()), "")
    }
}

const ADD: &str = "HloModule add\n\nENTRY main {\n  x = f32[4] parameter(0)\n  y = f32[4] parameter(1)\n  ROOT sum = f32[4] add(x, y)\n}\n";

fn floats(len: usize) -> HostArray {
    HostArray::zeros(DType::F32, &[len]).expect("a small array")
}

/// Checks the exit code, that standard output is empty, and all of the message's parts.
#[track_caller]
fn fails(files: &Files, outcome: &Outcome, code: i32, parts: &[&str]) {
    let stderr = files.stderr(outcome);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(code), ""), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "no {part:?} in:\n{stderr}");
    }
}

#[test]
fn files_that_are_no_programs() {
    let files = Files::new();
    let missing = files.path("nope.hlo").display().to_string();
    fails(&files, &spmd_run([&missing]), 1, &["nope.hlo: No such file"]);
    fails(&files, &spmd_run([&files.with("empty.hlo", "")]), 1, &["empty.hlo", "empty"]);
    let garbage: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fails(&files, &spmd_run([&files.with("garbage.hlo", garbage)]), 1, &["garbage.hlo"]);
    fails(&files, &spmd_run([&files.with("cut.hlo", &ADD[..ADD.len() - 20])]), 1, &["cut.hlo:6:"]);
}

#[test]
fn words_that_are_no_files() {
    let files = Files::new();
    fails(&files, &spmd_run(["device"]), 2, &["'device' is neither a file nor a command: did you mean 'devices'?"]);
    fails(&files, &spmd_run(["plugn", "list"]), 2, &["did you mean 'plugin'?"]);
    fails(&files, &spmd_run(["-n", "2", "devices"]), 2, &["put it first: spmd-run devices"]);
    fails(&files, &spmd_run(["program"]), 1, &["program: No such file"]);
    assert_eq!(spmd_run(["help"]).success("help").stdout, spmd_run(["--help"]).success("--help").stdout);
    let npz = files.npz("in.npz", &[("arg0", floats(4))]);
    fails(&files, &spmd_run([&npz]), 1, &["in.npz: this is an archive of arrays (.npz)", "--input"]);
    fails(&files, &spmd_run([&files.with("README.md", "# a\n\n`x = y`")]), 1, &["README.md: this text is no program"]);
}

#[test]
fn mistakes_in_mlir_are_shown_with_the_place() {
    let files = Files::new();
    let text = "module {\n  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n    %0 = stablehlo.add %a, %b : tensor<4xf32>\n    return %0 : tensor<4xf32>\n  }\n}\n";
    let program = files.with("wrong.mlir", text);
    let outcome = spmd_run([&program]);
    assert_eq!(outcome.code, Some(1));
    insta::assert_snapshot!(files.stderr(&outcome), @r"
    error: wrong.mlir:3:28: use of undeclared SSA value name
    3 |     %0 = stablehlo.add %a, %b : tensor<4xf32>
      |                            ^
    ");
    fails(&files, &spmd_run(["-n", "2", &program]), 1, &["[0] error: wrong.mlir:3:28: use of undeclared"]);
}

#[test]
fn broken_mlir_never_ends_the_process() {
    let files = Files::new();
    let deep = files.with("deep.mlir", "module {".repeat(20_000));
    fails(&files, &spmd_run([&deep]), 1, &["deep.mlir:1:4104: nested deeper than 512 levels"]);
    let cut = files.with("cut.mlirbc", b"ML\xefR\x0dStableHLO_v1.15.0");
    fails(&files, &spmd_run([&cut]), 1, &["cut.mlirbc: this MLIR bytecode is cut short", "PJRT_Client_Compile"]);
}

#[test]
fn programs_with_mistakes_are_shown_with_the_place() {
    let files = Files::new();
    let with = |from: &str, to: &str| files.with("wrong.hlo", ADD.replace(from, to));
    fails(&files, &spmd_run([with("add(x", "ad(x")]), 1, &["wrong.hlo:6:", "ad", "^"]);
    fails(&files, &spmd_run([with("add(x, y)", "add(x, z)")]), 1, &["wrong.hlo:6:", "z", "^"]);
    fails(&files, &spmd_run([with("add(x, y)", "call(x, y), to_apply=nope")]), 1, &["wrong.hlo:6:", "nope", "^"]);
    fails(&files, &spmd_run([with("y = f32[4]", "y = f32[5]")]), 1, &["wrong.hlo", "sum"]);
    let reduced = "add(x, y)\n}\n";
    let groups = files.with(
        "groups.hlo",
        format!(
            "HloModule g, replica_count=2\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}}\n{}",
            &ADD[14..].replace(reduced, "all-reduce(x), replica_groups={{0,2}}, to_apply=add\n}\n")
        ),
    );
    fails(&files, &spmd_run(["-n", "2", &groups]), 1, &["groups.hlo", "sum", "2"]);
}

#[test]
fn devices_that_do_not_match_the_program() {
    let files = Files::new();
    let outcome = spmd_run(["-n", "4", "--devices-per-process", "1", "hlo/dp_tp_mlp_step.hlo"]);
    let message = "the program needs 8 devices (1 replica × 8 partitions), the global view has 4: try -n 4 \
                   --devices-per-process 2";
    fails(&files, &outcome, 1, &[message]);
    fails(
        &files,
        &spmd_run(["-n", "3", "hlo/dp_tp_mlp_step.hlo"]),
        1,
        &["3 processes cannot share evenly", "try -n 2"],
    );
    let program = files.with("huge.hlo", ADD.replace("HloModule add", "HloModule add, replica_count=6000000000"));
    fails(&files, &spmd_run(["-n", "2", &program]), 1, &["needs 6000000000 devices", "at most 2048"]);
    fails(&files, &spmd_run(["--devices-per-process", "3000", &program]), 2, &["3000 is not in 1..=2048"]);
}

#[test]
fn arguments_that_do_not_match_the_program() {
    let files = Files::new();
    let program = files.with("add.hlo", ADD);
    let input =
        |arrays: &[(&str, HostArray)]| spmd_run([program.as_str(), "--input", files.npz("in.npz", arrays).as_str()]);
    fails(&files, &input(&[("arg0", floats(4))]), 1, &["takes 2 arguments", "arg1 (f32[4])", "--fill"]);
    let three = [("arg0", floats(4)), ("arg1", floats(4)), ("arg2", floats(4))];
    fails(&files, &input(&three), 1, &["in.npz: 'arg2' is not an argument", "arg0 to arg1"]);
    fails(&files, &input(&[("arg0", floats(4)), ("arg1", floats(5))]), 1, &["in.npz: arg1", "f32[5]", "f32[4]"]);
    let ints = HostArray::zeros(DType::S32, &[4]).expect("a small array");
    fails(&files, &input(&[("arg0", floats(4)), ("arg1", ints)]), 1, &["in.npz: arg1", "s32", "f32"]);
    let not_npz = files.with("text.npz", "no zip");
    fails(&files, &spmd_run([&program, "--input", &not_npz]), 1, &["text.npz"]);
    let several = ["-n", "2", &program, "--input", &files.npz("in.npz", &[("arg0", floats(4))])];
    let outcome = spmd_run(several);
    fails(&files, &outcome, 1, &["takes 2 arguments"]);
    assert_eq!(outcome.stderr.matches("takes 2 arguments").count(), 1, "{}", outcome.stderr);
}

#[test]
fn results_that_are_not_as_expected() {
    let files = Files::new();
    let program = files.with("add.hlo", ADD);
    let expect = files.npz("out.npz", &[("out0", floats(4))]);
    let outcome = spmd_run([&program, "--fill", "ones", "--expect", &expect]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stdout.contains("out0: "), "{}", outcome.stdout);
    let expect = files.npz("out.npz", &[("out0", floats(5))]);
    let outcome = spmd_run([&program, "--fill", "ones", "--expect", &expect]);
    fails(&files, &outcome, 1, &["error: out.npz: out0 is f32[5], the program's is f32[4]"]);
}

#[test]
fn results_go_where_they_are_wanted() {
    let files = Files::new();
    let program = files.with("add.hlo", ADD);
    let output = files.with("out.npz", "something old");
    spmd_run([&program, "--fill", "ones", "--output", &output]).success("a file is replaced");
    let array = npz::read_npz(&files.path("out.npz")).expect("an archive").remove("out0").expect("a result");
    assert_eq!(array.dims(), [4]);
    spmd_run([&program, "--output", "/dev/null"]).success("devices are written to");
    let nowhere = files.path("nowhere/out.npz").display().to_string();
    fails(&files, &spmd_run([&program, "--output", &nowhere]), 1, &["cannot write nowhere/out.npz: No such file"]);
    fails(&files, &spmd_run([&program, "--output", "/dev/full"]), 1, &["/dev/full: No space left on device"]);
    fails(&files, &spmd_run([&program, "--output", "/dev/stdout"]), 2, &["standard output carries the report"]);
    let folder = files.path("").display().to_string();
    fails(&files, &spmd_run([&program, "--output", &folder]), 1, &["cannot write", "is a directory"]);

    let report = spmd_run([&program, "--fill", "iota", "--print", "--format", "json"]).success("json").stdout;
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["values"]["out0"], serde_json::json!([0.0, 2.0, 4.0, 6.0]));
    assert!(report["steps"]["median_seconds"].is_number(), "{report}");
}

#[test]
fn plugins_that_are_missing_or_none() {
    let files = Files::new();
    let program = files.with("add.hlo", ADD);
    let text = files.with("plugin.so", "not an ELF file");
    fails(&files, &spmd_run(["--plugin", &text, &program]), 1, &["--plugin: ", "plugin.so"]);
    fails(&files, &spmd_run(["--plugin", "cpuu", &program]), 1, &["unknown plugin 'cpuu'", "did you mean 'cpu'?"]);
    let mut nowhere = command([&program]);
    nowhere.env_remove("PJRT_PLUGIN_LIBRARY_PATH").env("XDG_CACHE_HOME", files.path("cache")).env("PATH", "");
    let message = ["PJRT_PLUGIN_LIBRARY_PATH", "cache", "Python packages", "spmd-run plugin install cpu"];
    fails(&files, &run(nowhere), 1, &message);
    let libc = std::fs::read_to_string("/proc/self/maps").expect("the own mappings");
    let libc = libc.lines().filter_map(|line| line.split_whitespace().last()).find(|path| path.contains("libc.so"));
    fails(&files, &spmd_run(["--plugin", libc.expect("libc"), &program]), 1, &["GetPjrtApi"]);
}

#[test]
fn constants_without_values() {
    let files = Files::new();
    let text = "HloModule m\nENTRY e {\n  c = f32[9] constant({...})\n  d = f32[9] constant({...})\n  ROOT r = f32[9] add(c, d)\n}\n";
    let program = files.with("elided.hlo", text);
    let message =
        "elided.hlo: the text leaves out the values of 'c' and 1 more constants ({...}), so results mean nothing";
    let printed = spmd_run(["--print", &program]).success("XLA runs such programs, and so do we");
    assert!(printed.stderr.contains(message) && printed.stderr.contains("print_large_constants"), "{}", printed.stderr);
}

#[test]
fn wrong_usage() {
    let files = Files::new();
    let program = files.with("add.hlo", ADD);
    fails(&files, &spmd_run(["--repaet", "3", &program]), 2, &["--repaet", "'--repeat'"]);
    fails(&files, &spmd_run(["--hosts", "a:2", "-n", "3", &program]), 2, &["-n 3: the hosts have 2 slots (a:2)"]);
    fails(&files, &spmd_run(["-n", "0", &program]), 2, &["--processes", "a number of processes from 1 to 65536"]);
    fails(&files, &spmd_run(["--fill", "noise", &program]), 2, &["noise", "zeros"]);
    fails(&files, &spmd_run(["-n", "-1", &program]), 2, &["--processes", "a number of processes from 1 to 65536"]);
    fails(&files, &spmd_run(["-np", "2", &program]), 2, &["as in -n 4"]);
    fails(&files, &spmd_run(["--metrics", "9100", &program]), 2, &["it takes HOST:PORT"]);
    fails(&files, &spmd_run(["--arg", "-1=x.npy", &program]), 2, &["'-1' is not an argument's number"]);
    fails(&files, &spmd_run(["--expect", "x", "--rtol", "-1", &program]), 2, &["must be finite and not negative"]);
    for option in [&["--repeat", "2"][..], &["--output", "out.npz"], &["--warmup", "1"], &["--print"]] {
        let outcome = spmd_run(option.iter().chain(&["--check", &program]));
        fails(&files, &outcome, 2, &[option[0], "--check", "cannot be used with"]);
    }
    let mut misspelt = command([&program]);
    misspelt.env("SPMD_COORDINATR", "x");
    fails(&files, &run(misspelt), 2, &["SPMD_COORDINATR", "SPMD_COORDINATOR"]);
}

#[test]
fn a_coordinator_port_that_is_in_use() {
    let files = Files::new();
    let program = files.with("add.hlo", ADD);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let outcome = spmd_run(["-n", "2", "--coordinator", &address, "--process-id", "0", &program]);
    fails(&files, &outcome, 3, &["cannot listen on", "in use"]);
}
