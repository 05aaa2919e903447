//! Hundreds of small programs of JAX, in every form that JAX and XLA hand out: they load, verify and print, and mean what
//! they meant to JAX. `generate.py` tells how they were made.

mod archive;
#[path = "../common/mod.rs"]
mod common;
mod same;

use archive::{Entry, corpus};
use buffa::Message;
use spmd_run::hlo::{self, HloModule, Program};
use spmd_run::host_array::{Fill, HostArray};
use spmd_run::runtime::{DataPlaneOptions, Executable, Plan, Runtime, World};

fn load(entry: &Entry, form: &str) -> Option<HloModule> {
    let name = format!("{}.{form}", entry.name);
    match hlo::load(entry.files.get(form)?, &name).unwrap_or_else(|error| panic!("{error}")) {
        Program::Hlo(module) => Some(module),
        Program::Mlir(_) => panic!("{name} was taken for MLIR"),
    }
}

/// Fails with all that `check` says of the programs, so that one run shows every difference.
fn for_each(check: impl Fn(&Entry) -> Result<(), String>) {
    let failures: Vec<String> = corpus()
        .iter()
        .filter_map(|entry| check(entry).err().map(|error| format!("{}: {error}", entry.name)))
        .collect();
    assert!(failures.is_empty(), "{} programs:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_corpus_is_large_and_every_form_is_well_represented() {
    let corpus = corpus();
    let count = |form| corpus.iter().filter(|entry| entry.files.contains_key(form)).count();
    assert!(corpus.len() >= 600);
    assert_eq!((count("pb"), count("hlo")), (corpus.len(), corpus.len()));
    for form in ["compiled.hlo", "mlir", "mlirbc"] {
        assert!(count(form) >= 150, "{form}: {}", count(form));
    }
}

#[test]
fn texts_are_the_modules_that_jax_serializes() {
    for_each(|entry| {
        let (text, proto) = (load(entry, "hlo").unwrap(), load(entry, "pb").unwrap());
        same::modules(&text.proto, &proto.proto)
    });
}

#[test]
fn print_and_parse_are_inverse() {
    for_each(|entry| {
        for form in ["hlo", "compiled.hlo", "pb"] {
            let Some(module) = load(entry, form) else { continue };
            let printed = hlo::print(&module);
            let again = hlo::parse(&printed, "print").map_err(|error| format!("{form}: {error}"))?;
            same::modules(&again.proto, &module.proto).map_err(|difference| format!("{form}: {difference}"))?;
            if form != "pb" && again.proto.encode_to_vec() != module.proto.encode_to_vec() {
                return Err(format!("{form}: not the same bytes"));
            }
            if again.config != module.config {
                return Err(format!("{form}: {:?} became {:?}", module.config, again.config));
            }
            if hlo::print(&again) != printed {
                return Err(format!("{form}: the second print is not the first"));
            }
        }
        Ok(())
    });
}

#[test]
fn every_module_passes_the_verifier() {
    for_each(|entry| {
        for form in ["hlo", "compiled.hlo", "pb"] {
            let Some(module) = load(entry, form) else { continue };
            hlo::verify(&module, 1, entry.partitions).map_err(|error| format!("{form}: {error}"))?;
        }
        Ok(())
    });
}

/// What a program gives for arguments made by a rule.
fn results(runtime: &Runtime, plan: Plan, program: Program) -> Result<Vec<HostArray>, Box<dyn std::error::Error>> {
    let executable = Executable::compile(runtime, plan, Some(program))?;
    let fill = Fill::Random { seed: 1 };
    let argument = |(index, parameter): (usize, &spmd_run::runtime::GlobalArray)| {
        HostArray::filled(fill, index, parameter.dtype, &parameter.dims_usize())
    };
    let arguments: Vec<HostArray> =
        executable.parameters().iter().enumerate().map(argument).collect::<Result<_, _>>()?;
    Ok(executable.gather(&executable.run(&executable.load(&arguments)?)?)?)
}

/// Runs the `part`th of `parts` shares of the programs for this number of partitions.
fn results_are_those_of_jax_module(partitions: u32, part: usize, parts: usize) {
    let plan = Plan { replicas: 1, partitions, processes: 1, devices_per_process: partitions };
    let plugin = common::plugin();
    let runtime = Runtime::open(World::alone(), plugin.path(), partitions, DataPlaneOptions::default()).unwrap();
    let corpus = corpus();
    let runnable = corpus.iter().filter(|entry| entry.partitions == i64::from(partitions) && entry.not_run.is_empty());
    let mut failures = Vec::new();
    for entry in runnable.skip(part).step_by(parts) {
        let run = |form: &str| {
            entry.files.get(form).map(|bytes| {
                // The last name before a crash of the compiler is the one that matters.
                eprintln!("{}.{form}", entry.name);
                let program = hlo::load(bytes, &entry.name).unwrap();
                results(&runtime, plan, program).map_err(|error| format!("{}.{form}: {error}", entry.name))
            })
        };
        let expected = match run("pb").unwrap() {
            Ok(expected) => expected,
            Err(error) => {
                failures.push(error);
                continue;
            }
        };
        for form in ["hlo", "mlir", "mlirbc"] {
            match run(form) {
                None => {}
                Some(Ok(results)) if results == expected => {}
                Some(Ok(_)) => failures.push(format!("{}.{form}: other results", entry.name)),
                Some(Err(error)) => failures.push(error),
            }
        }
    }
    assert!(failures.is_empty(), "{} programs:\n{}", failures.len(), failures.join("\n"));
}

macro_rules! shares {
    ($($name:ident: $partitions:literal, $part:literal of $parts:literal;)+) => {
        $(
            #[test]
            fn $name() {
                results_are_those_of_jax_module($partitions, $part, $parts);
            }
        )+
    };
}

shares! {
    results_of_one_device_are_those_of_jax_module_0: 1, 0 of 8;
    results_of_one_device_are_those_of_jax_module_1: 1, 1 of 8;
    results_of_one_device_are_those_of_jax_module_2: 1, 2 of 8;
    results_of_one_device_are_those_of_jax_module_3: 1, 3 of 8;
    results_of_one_device_are_those_of_jax_module_4: 1, 4 of 8;
    results_of_one_device_are_those_of_jax_module_5: 1, 5 of 8;
    results_of_one_device_are_those_of_jax_module_6: 1, 6 of 8;
    results_of_one_device_are_those_of_jax_module_7: 1, 7 of 8;
    results_of_eight_devices_are_those_of_jax_module_0: 8, 0 of 4;
    results_of_eight_devices_are_those_of_jax_module_1: 8, 1 of 4;
    results_of_eight_devices_are_those_of_jax_module_2: 8, 2 of 4;
    results_of_eight_devices_are_those_of_jax_module_3: 8, 3 of 4;
}
