//! A plugin that ends its process does not end the story: the launcher tells it.

mod harness;

use std::process::Command;
use std::sync::OnceLock;

use harness::{Outcome, build_plugin, command, run};
use tempfile::TempDir;

/// Slots of the PJRT API.
const COMPILE: &str = "20";
const EXECUTE: &str = "55";
const LOAD: &str = "56";

/// `spmd-run` with a plugin that crashes in the process at the call of a function.
fn crashing(signal: i32, slot: &str, call: &str, process: &str, arguments: &[&str]) -> Command {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        build_plugin("tests/mock_plugin/crash.c".as_ref(), &folder.path().join("crash.so"));
        folder
    });
    let mut command = command(arguments);
    command.arg("--plugin").arg(folder.path().join("crash.so"));
    let real = std::env::var_os("PJRT_PLUGIN_LIBRARY_PATH").expect("set PJRT_PLUGIN_LIBRARY_PATH to a CPU plugin");
    command.env("SPMD_TEST_PLUGIN", real).env("SPMD_TEST_CRASH", signal.to_string());
    command.env("SPMD_TEST_CRASH_AT", slot).env("SPMD_TEST_CRASH_CALL", call).env("SPMD_TEST_CRASH_IN", process);
    command
}

/// The launcher's report: what follows the processes' own lines.
#[track_caller]
fn report(outcome: &Outcome, code: i32) -> &str {
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(code), ""), "{}", outcome.stderr);
    &outcome.stderr[outcome.stderr.find("error: hlo/").unwrap_or(0)..]
}

#[test]
fn in_the_compiler_of_a_single_process() {
    let outcome = run(crashing(libc::SIGABRT, COMPILE, "2", "0", &["hlo/bf16_matmul.hlo"]));
    report(&outcome, 134);
    insta::assert_snapshot!(outcome.stderr, @r"
    F0000 00:00:1700000000.000001       1 compiler.cc:7] Check failed: shape.has_layout() f32[8]
    *** Check failure stack trace: ***
    error: hlo/bf16_matmul.hlo: process 0 failed: killed by signal 6 (SIGABRT) while compiling 'bf16_matmul'
    its last words: compiler.cc:7] Check failed: shape.has_layout() f32[8]
    the plugin crashed: try another version of it (--plugin), and report this program to its makers
    ");
}

/// The first process compiles, the second one loads what that has made.
#[test]
fn in_the_compiler_of_one_of_several_processes() {
    insta::allow_duplicates! {
        for (slot, call, process) in [(COMPILE, "2", "0"), (LOAD, "1", "1")] {
            let outcome = run(crashing(libc::SIGSEGV, slot, call, process, &["-n", "2", "hlo/bf16_matmul.hlo"]));
            let report = report(&outcome, 139).replace(&format!("process {process} failed"), "process INDEX failed");
            insta::assert_snapshot!(report, @r"
            error: hlo/bf16_matmul.hlo: process INDEX failed: killed by signal 11 (SIGSEGV) while compiling 'bf16_matmul'
            its last words: compiler.cc:7] Check failed: shape.has_layout() f32[8]
            the plugin crashed: try another version of it (--plugin), and report this program to its makers
            ");
        }
    }
}

#[test]
fn in_the_partitioner() {
    let outcome = run(crashing(libc::SIGILL, COMPILE, "1", "0", &["-n", "2", "hlo/gspmd_stablehlo.mlir"]));
    insta::assert_snapshot!(report(&outcome, 132), @r"
    error: hlo/gspmd_stablehlo.mlir: process 0 failed: killed by signal 4 (SIGILL) while importing and partitioning the program
    its last words: compiler.cc:7] Check failed: shape.has_layout() f32[8]
    the plugin crashed: the file may be damaged; if it is not, try another version of the plugin (--plugin), and report this program to its makers
    ");
}

#[test]
fn in_a_step() {
    let arguments = ["-n", "1", "hlo/bf16_matmul.hlo", "--repeat", "5"];
    let outcome = run(crashing(libc::SIGFPE, EXECUTE, "3", "0", &arguments));
    insta::assert_snapshot!(report(&outcome, 136), @r"
    error: hlo/bf16_matmul.hlo: process 0 failed: killed by signal 8 (SIGFPE) while running 'bf16_matmul', step 3
    its last words: compiler.cc:7] Check failed: shape.has_layout() f32[8]
    the plugin crashed: try another version of it (--plugin), and report this program to its makers
    ");
}

#[test]
fn for_lack_of_memory() {
    let outcome = run(crashing(libc::SIGKILL, COMPILE, "1", "0", &["hlo/bf16_matmul.hlo"]));
    insta::assert_snapshot!(report(&outcome, 137), @r"
    error: hlo/bf16_matmul.hlo: process 0 failed: killed by signal 9 (SIGKILL) while partitioning 'bf16_matmul'
    its last words: compiler.cc:7] Check failed: shape.has_layout() f32[8]
    if nobody killed it, the system did, as memory ran out: see dmesg, and take fewer processes or a smaller program
    ");
}
