//! Every module of the corpus loads, prints and verifies, and the printed text is the same module.

mod harness;

use buffa::Message;
use harness::{corpus, tsv};
use spmd_run::hlo::{self, HloModule, Program};
use spmd_run::partition;

fn load(bytes: &[u8], name: &str) -> HloModule {
    match hlo::load(bytes, name).unwrap_or_else(|error| panic!("{error}")) {
        Program::Hlo(module) => module,
        Program::Mlir(_) => panic!("{name} was taken for MLIR"),
    }
}

#[test]
fn print_and_parse_are_inverse() {
    let Some(corpus) = corpus() else { return };
    for row in tsv(&corpus.join("MANIFEST.tsv")).iter().filter(|row| row["format"] == "hlo_text") {
        let file = &row["file"];
        let module = load(&std::fs::read(corpus.join(file)).unwrap(), file);
        let printed = hlo::print(&module);
        let again = load(printed.as_bytes(), file);
        // As bytes, because NaNs do not equal themselves.
        assert!(module.proto.encode_to_vec() == again.proto.encode_to_vec(), "{file} changes when printed");
        assert_eq!((&module.config, &module.elided_constants), (&again.config, &again.elided_constants), "{file}");
        assert_eq!(hlo::print(&again), printed, "{file}");
        let binary = load(&module.proto.encode_to_vec(), file);
        assert!(binary.proto.encode_to_vec() == module.proto.encode_to_vec(), "{file} changes in its binary form");
    }
}

/// Modules that XLA refuses as well: inputs of its own tools, which are not meant to be compiled.
const INVALID: [&str; 3] = ["h2m_while.hlo", "h2m_import.hlo", "tools_print_indexing_test.hlo"];

#[test]
fn real_modules_verify() {
    let Some(corpus) = corpus() else { return };
    for row in tsv(&corpus.join("MANIFEST.tsv")).iter().filter(|row| row["format"] == "hlo_text") {
        let file = &row["file"];
        let module = load(&std::fs::read(corpus.join(file)).unwrap(), file);
        let count = |column: &str| row[column].parse().unwrap_or(1);
        let counts =
            [(count("num_replicas"), count("num_partitions")), (2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (1, 8), (2, 2)];
        let stated = (module.config.replica_count.unwrap_or(1), module.config.num_partitions.unwrap_or(1));
        let told = partition::program_counts(&Program::Hlo(module.clone()));
        let told = (told.replicas.unwrap_or(1), told.partitions.unwrap_or(1));
        let fits = |&(replicas, partitions): &(i64, i64)| hlo::verify(&module, replicas, partitions).is_ok();
        let is_valid = [stated, told].iter().chain(&counts).any(fits);
        let expected = !INVALID.iter().any(|name| file.ends_with(name));
        assert_eq!(is_valid, expected, "{file}: {:?}", hlo::verify(&module, stated.0, stated.1));
    }
}
