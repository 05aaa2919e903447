//! `spmd-run bench`: what it measures is right, and wrong input gets a clear error.

mod harness;

use harness::{Outcome, spmd_run};
use serde_json::Value;

const OPS: [&str; 7] = ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "ppermute", "broadcast", "sendrecv"];

/// Small sizes and few steps.
const BRIEF: [&str; 8] = ["-b", "1K", "-e", "300K", "-f", "256", "--iters", "3"];

fn collectives(arguments: &[&str]) -> Outcome {
    spmd_run(["bench", "collectives"].iter().chain(&BRIEF).chain(arguments))
}

fn report(arguments: &[&str]) -> Value {
    let stdout = collectives(&[arguments, &["--json"]].concat()).success(&arguments.join(" ")).stdout;
    serde_json::from_str(&stdout).expect("JSON")
}

/// The rows, of which none has wrong elements.
fn checked(arguments: &[&str]) -> Vec<Value> {
    let rows = report(arguments)["rows"].as_array().expect("rows").clone();
    for row in &rows {
        assert_eq!(row["wrong"], 0, "{arguments:?}: {row}");
        let times = ["min_seconds", "median_seconds", "p99_seconds"].map(|name| row[name].as_f64().expect("a time"));
        assert!(0.0 < times[0] && times[0] <= times[1] && times[1] <= times[2], "{row}");
    }
    rows
}

#[test]
fn every_collective_between_processes_is_right() {
    let rows = checked(&["-n", "2", "--devices-per-process", "2"]);
    assert_eq!(rows.len(), OPS.len() * 2 * 2);
    for op in OPS {
        for through in ["program", "engine"] {
            let of_op = rows.iter().filter(|row| row["op"] == op && row["through"] == through);
            let sizes: Vec<u64> = of_op.map(|row| row["size_bytes"].as_u64().expect("a size")).collect();
            assert_eq!(sizes, [1 << 10, 256 << 10], "{op} {through}");
        }
    }
    let first = &rows[0];
    let ratio = |a: &str, b: &str| first[a].as_f64().unwrap() / first[b].as_f64().unwrap();
    assert!((ratio("busbw_bytes_per_second", "algbw_bytes_per_second") - 1.5).abs() < 1e-9, "{first}");
    let algbw = 1024.0 / first["median_seconds"].as_f64().unwrap();
    assert!((algbw / first["algbw_bytes_per_second"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{first}");
}

#[test]
fn types_reductions_groups_and_transports() {
    let variants: [&[&str]; 6] = [
        &["-n", "2", "-d", "bfloat16", "-o", "prod", "--transport", "tcp"],
        &["-n", "4", "-d", "int8", "-o", "max", "--groups", "MOD:2"],
        &["-n", "2", "--devices-per-process", "2", "-d", "f8e4m3fn", "--groups", "3,0/1,2", "--transport", "shm"],
        &["-n", "3", "-d", "double", "-o", "min", "--measure", "program"],
        // All devices in one process: collectives are the plugin's where it has them.
        &["-n", "1", "--devices-per-process", "4", "-d", "s64", "--groups", "DIV:2"],
        &["all_gather,sendrecv", "broadcast", "-n", "1"],
    ];
    for arguments in variants {
        assert!(checked(arguments).len() >= 6, "{arguments:?}");
    }
}

#[test]
fn text_has_the_columns_of_nccl_tests() {
    let text = collectives(&["-n", "2", "all_reduce", "-c", "0", "--groups", "0/1"]).success("text").stdout;
    let header = ["# minBytes 1024 maxBytes 307200 step: 256(factor)", "# Transport: shm between all processes"];
    for line in header.iter().chain(&["#  Rank  0 Group  1 Pid", "# Out of bounds values : 0 OK"]) {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    let rows: Vec<Vec<&str>> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 4, "{text}");
    let row = &rows[0];
    assert_eq!((row.len(), &row[1..5], row[8]), (12, &["256", "f32", "sum", "-1"][..], "N/A"), "{text}");
}

#[test]
fn csv_and_pictures() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["plot.svg", "plot.png"] {
        let path = folder.path().join(name);
        let arguments = ["-n", "2", "all_reduce,alltoall", "--format", "csv", "--plot"];
        let csv = collectives(&[&arguments[..], &[path.to_str().expect("UTF-8")]].concat()).success("csv").stdout;
        let rows: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(rows, [15; 9], "{csv}");
        assert!(csv.starts_with("op,size_bytes,count,dtype,redop,root,ranks,through,steps,min_seconds,"), "{csv}");
        let picture = std::fs::read(&path).expect("a picture");
        match name {
            "plot.svg" => {
                let picture = String::from_utf8(picture).expect("SVG is text");
                for text in ["bus bandwidth (GB/s)", "all_reduce", "alltoall", "dashed: engine alone", "256K"] {
                    assert!(picture.contains(text), "no {text:?} in the picture");
                }
            }
            _ => assert!(picture.starts_with(b"\x89PNG\r\n") && picture.len() > 10_000, "{} bytes", picture.len()),
        }
    }
}

#[test]
fn starts_and_dispatches() {
    let startup = spmd_run(["bench", "startup", "-n", "2", "--repeat", "2", "--format", "json"]).success("startup");
    let startup: Value = serde_json::from_str(&startup.stdout).expect("JSON");
    let phase = |name: &str| startup["phases"][name]["median_seconds"].as_f64().expect(name);
    let before = ["processes", "rendezvous", "plugin", "client", "device_count"].map(phase);
    assert!(before.iter().all(|&seconds| 0.0 < seconds && seconds < phase("total")), "{startup}");
    assert!(phase("transport") > 0.0);

    let text = spmd_run(["bench", "startup", "--repeat", "1"]).success("startup").stdout;
    assert!(text.starts_with("1 starts of 1 process(es)") && text.contains("\ntotal "), "{text}");

    let arguments = ["bench", "dispatch", "-n", "2", "--devices-per-process", "2", "--iters", "60", "--format", "json"];
    let dispatch: Value = serde_json::from_str(&spmd_run(arguments).success("dispatch").stdout).expect("JSON");
    for (row, program) in dispatch["rows"].as_array().expect("rows").iter().zip(["empty", "small"]) {
        assert_eq!((row["program"].as_str(), row["step"]["steps"].as_u64()), (Some(program), Some(60)));
        assert!(row["plugin"]["median_seconds"].as_f64() > Some(0.0), "{row}");
    }
    assert!(spmd_run(["bench", "dispatch", "--iters", "60"]).success("dispatch").stdout.contains("\nsmall    on top "));
}

#[test]
fn wrong_input() {
    let cases: [(&[&str], &[&str]); 20] = [
        (&["all_redcue"], &["unknown collective 'all_redcue'", "all_reduce, all_gather"]),
        (&["-b", "1022"], &["1022 bytes are no whole number of f32 elements, of 4 bytes each"]),
        (&["-b", "4", "-d", "c64"], &["4 bytes are no whole number of c64"]),
        (&["-b", "1M"], &["the first size, 1048576 bytes, is larger than the last one, 307200"]),
        (&["-b", "0"], &["must be more than 0"]),
        (&["-b", "1X"], &["unknown unit 'X'"]),
        (&["-b", "-8"], &["unexpected argument"]),
        (&["-e", "99999999999999999999G"], &["write a whole number"]),
        (&["-e", "9999999T"], &["larger than memory"]),
        (&["-e", "512T"], &["bytes of memory, this host has"]),
        (&["-f", "1"], &["1 is not in 2.."]),
        (&["-d", "f31"], &["unknown element type 'f31'"]),
        (&["-d", "pred"], &["pred collectives are not measured"]),
        (&["-d", "c64", "-o", "max"], &["max is not defined for c64"]),
        (&["-o", "avg"], &["invalid value 'avg'", "sum, prod, min, max"]),
        (&["--iters", "0"], &["number would be zero for non-zero type"]),
        (&["-n", "2", "--groups", "MOD:4"], &["MOD:4 makes 4 groups, the job has 2 ranks"]),
        (&["-n", "2", "--groups", "0,5"], &["0,5 names rank 5, the job has ranks 0 to 1"]),
        (&["--plot", "plot.pdf"], &["must end in .svg or .png"]),
        (&["--json", "--format", "csv"], &["cannot be used with"]),
    ];
    for (arguments, parts) in cases {
        // Later options count, but -b and -e may be given once.
        let brief =
            if arguments.iter().any(|it| ["-b", "-e", "-f", "--iters"].contains(it)) { &[][..] } else { &BRIEF };
        let size = if arguments == ["-b", "1M"] { &["-e", "300K"][..] } else { &[] };
        let outcome = spmd_run(["bench", "collectives"].iter().chain(brief).chain(arguments).chain(size));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", outcome.stderr);
        for part in parts {
            assert!(outcome.stderr.contains(part), "{arguments:?}: no {part:?} in\n{}", outcome.stderr);
        }
    }
    let missing = collectives(&["--plot", "no/such/folder/plot.svg"]);
    assert_eq!(missing.code, Some(1), "{}", missing.stderr);
    assert!(missing.stderr.contains("cannot write no/such/folder/plot.svg"), "{}", missing.stderr);
    let by_hand = ["bench", "startup", "-n", "1", "--coordinator", "127.0.0.1:0", "--process-id", "0"];
    assert_eq!(spmd_run(by_hand).code, Some(2));
}
