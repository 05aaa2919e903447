//! LAPACK's routines as JAX's programs call them give what JAX's own give, and calls that nobody answers are named.

mod harness;

use std::io::Read;
use std::path::PathBuf;

use harness::{Outcome, command, root, run, spmd_run};
use tempfile::TempDir;

/// The programs of `tests/data/lapack`, unpacked.
struct Programs(TempDir);

impl Programs {
    fn unpack() -> Programs {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let archive = std::fs::File::open(root().join("tests/data/lapack/programs.zip")).expect("the archive");
        let mut archive = zip::ZipArchive::new(archive).expect("a zip file");
        for index in 0..archive.len() {
            let mut file = archive.by_index(index).expect("a file of the archive");
            let name = file.name().expect("a name").into_owned();
            let mut content = Vec::new();
            file.read_to_end(&mut content).expect("its content");
            std::fs::write(folder.path().join(name), content).expect("a file in a temporary folder");
        }
        Programs(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Runs `name.extension` over `PROCESSESxDEVICES` and compares its results with JAX's.
    fn run(&self, name: &str, extension: &str, layout: &str, tolerance: &str, plugin: Option<&PathBuf>) -> Outcome {
        let (processes, devices) = layout.split_once('x').expect("a layout is PROCESSESxDEVICES");
        let program = self.path(&format!("{name}.{extension}"));
        let (input, expected) = (self.path(&format!("{name}.in.npz")), self.path(&format!("{name}.out.npz")));
        let mut arguments = vec!["-n", processes, "--devices-per-process", devices, &program, "--input", &input];
        arguments.extend(["--expect", &expected, "--rtol", tolerance, "--atol", tolerance]);
        let plugin = plugin.map(|plugin| plugin.display().to_string());
        arguments.extend(plugin.iter().flat_map(|plugin| ["--plugin", plugin]));
        // Fresh memory holds anything but zeros.
        let mut command = command(arguments);
        command.env("GLIBC_TUNABLES", "glibc.malloc.perturb=1");
        run(command)
    }
}

fn routines_give_what_jax_gives(element_type: &str, tolerance: &str) {
    let programs = Programs::unpack();
    let outputs = std::fs::read_to_string(programs.path(&format!("{element_type}.outputs.tsv"))).expect("a table");
    programs.run(element_type, "hlo.pb", "1x1", tolerance, None).success(&outputs);
}

#[test]
fn routines_of_f32_give_what_jax_gives() {
    routines_give_what_jax_gives("f32", "2e-4");
}

#[test]
fn routines_of_f64_give_what_jax_gives() {
    routines_give_what_jax_gives("f64", "1e-10");
}

#[test]
fn routines_of_c64_give_what_jax_gives() {
    routines_give_what_jax_gives("c64", "2e-4");
}

#[test]
fn routines_of_c128_give_what_jax_gives() {
    routines_give_what_jax_gives("c128", "1e-10");
}

#[test]
fn gradients_through_routines_are_the_same_in_every_layout() {
    let programs = Programs::unpack();
    for layout in ["1x4", "2x2", "4x1"] {
        programs.run("gradients", "hlo", layout, "1e-4", None).success(layout);
    }
}

#[test]
fn other_plugins_get_the_routines_as_well() {
    let plugins = std::env::var_os("SPMD_TEST_PLUGINS").unwrap_or_default();
    let plugins: Vec<PathBuf> = std::env::split_paths(&plugins).filter(|path| !path.as_os_str().is_empty()).collect();
    if plugins.is_empty() {
        eprintln!("skipped: SPMD_TEST_PLUGINS names no further plugins");
    }
    let programs = Programs::unpack();
    for plugin in plugins {
        programs.run("gradients", "hlo", "2x2", "1e-4", Some(&plugin)).success(&plugin.display().to_string());
    }
}

#[test]
fn stablehlo_may_call_routines() {
    Programs::unpack().run("solve", "mlir", "1x1", "1e-4", None).success("solve.mlir");
}

/// Runs a program whose entry computation has these lines.
fn run_lines(lines: &str, options: &[&str]) -> Outcome {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("program.hlo");
    std::fs::write(&program, format!("HloModule calls\n\nENTRY main {{\n{lines}\n}}\n")).expect("a file");
    spmd_run(["--fill", "iota"].iter().chain(options).copied().chain([program.to_str().expect("a path")]))
}

#[test]
fn calls_that_cannot_run_are_named_before_anything_is_compiled() {
    let lines = r#"  x = f32[2] parameter(0)
  y = f32[2] custom-call(x), custom_call_target="xla_ffi_python_cpu_callback", api_version=API_VERSION_TYPED_FFI, backend_config={index = 0 : ui64}
  z = f32[2] custom-call(y), custom_call_target="nobody_knows_this"
  ROOT w = f32[2] custom-call(z), custom_call_target="nobody_knows_this""#;
    for options in [&[][..], &["--check"]] {
        let outcome = run_lines(lines, options);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        for part in ["xla_ffi_python_cpu_callback (1 call): ", "Python", "nobody_knows_this (2 calls): "] {
            assert!(outcome.stderr.contains(part), "{part:?} is missing in\n{}", outcome.stderr);
        }
        assert!(!outcome.stderr.contains("PJRT_Client_Compile"), "{}", outcome.stderr);
    }
}

#[test]
fn calls_that_the_plugin_refuses_are_explained() {
    let lines = r#"  x = f32[2,2] parameter(0)
  ROOT y = f32[2,2] custom-call(x), custom_call_target="lapack_sgetri""#;
    let outcome = run_lines(lines, &["--check"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    for part in ["PJRT_Client_Compile", "lapack_sgetri (1 call): a LAPACK routine"] {
        assert!(outcome.stderr.contains(part), "{part:?} is missing in\n{}", outcome.stderr);
    }
}

#[test]
fn a_callback_that_nothing_needs_is_no_obstacle() {
    let lines = r#"  x = f32[2] parameter(0)
  y = f32[2] custom-call(x), custom_call_target="xla_ffi_python_cpu_callback", api_version=API_VERSION_TYPED_FFI, backend_config={index = 0 : ui64}
  ROOT z = f32[2] add(x, x)"#;
    run_lines(lines, &[]).success("a dead custom call");
}

#[test]
fn calls_that_do_not_fit_their_routine_are_errors() {
    let call = |operands: &str, result: &str, target: &str, attributes: &str| {
        format!(
            "  x = f32[3,3]{{0,1}} parameter(0)\n  v = f32[3] parameter(1)\n  w = f32[2,3]{{0,1}} parameter(2)\n  ROOT y = {result} custom-call({operands}), \
             custom_call_target=\"lapack_{target}_ffi\", api_version=API_VERSION_TYPED_FFI, backend_config={{{attributes}}}"
        )
    };
    let getrf = "(f32[3,3]{0,1}, s32[3], s32[])";
    for (lines, part) in [
        (call("x", "(f32[3,3]{0,1}, s32[2], s32[])", "sgetrf", ""), "result 1 is s32[2], the routine takes s32[3]"),
        (call("x", "(f32[3,3]{0,1}, s32[3])", "sgetrf", ""), "result 2 is missing"),
        (call("x", getrf, "dgetrf", ""), "operand 0 is f32[3, 3], the routine takes f64[3, 3]"),
        (call("v", getrf, "sgetrf", ""), "no matrix"),
        (call("x", "(f32[3,3]{0,1}, s32[])", "spotrf", ""), "attribute uplo"),
        (call("x", "(f32[3,3]{0,1}, s32[])", "spotrf", "uplo = 88 : ui8"), "attribute uplo is 'X'"),
        (call("x, x", "f32[3,3]{0,1}", "sorgqr", ""), "operand 1 is f32[3, 3], the routine takes f32[3]"),
        (call("w, v", "f32[2,3]{0,1}", "sorgqr", ""), "no unitary matrix"),
        (call("x", "(f32[3,3]{0,1}, f32[2], s32[])", "sgehrd", "low = 0 : i32, high = 9 : i32"), "rows 0 to 9"),
    ] {
        let outcome = run_lines(&lines, &[]);
        assert_eq!(outcome.code, Some(1), "{lines}\n{outcome:?}");
        assert!(outcome.stderr.contains(part), "{part:?} is missing in\n{}", outcome.stderr);
    }
}
