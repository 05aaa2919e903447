//! Parses real modules, where a checkout with them stands beside this one.

use std::path::Path;

use spmd_run::hlo::{HloModule, parse};

#[test]
fn every_module_of_the_corpus_parses() {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/programs");
    let Ok(entries) = std::fs::read_dir(&programs) else {
        println!("skipped: there is no corpus at {}", programs.display());
        return;
    };
    let mut parsed = 0;
    let mut failures = String::new();
    for entry in entries {
        let path = entry.expect("the corpus is readable").path();
        if path.extension().is_none_or(|extension| extension != "hlo") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a corpus module is readable");
        match parse(&text, &path.display().to_string()) {
            Ok(module) => {
                parsed += 1;
                check_ids(&module);
            }
            Err(error) => failures += &format!("{error}\n"),
        }
    }
    assert!(failures.is_empty(), "{failures}");
    println!("{parsed} modules");
}

/// Ids say where an instruction stands, and what is used stands before its user.
fn check_ids(module: &HloModule) {
    for (computation_id, computation) in (0..).zip(&module.proto.computations) {
        assert_eq!(computation.id, computation_id);
        for (local_id, instruction) in (0..).zip(&computation.instructions) {
            assert_eq!(instruction.id, computation_id << 32 | local_id);
            let mut used = instruction.operand_ids.iter().chain(&instruction.control_predecessor_ids);
            assert!(used.all(|&id| id >> 32 == computation_id && id < instruction.id));
            assert!(instruction.called_computation_ids.iter().all(|&id| id < computation_id));
        }
    }
}
