//! Plugins that see the devices of other processes by themselves: a mock of one, compiled from C with gcc when the tests run.

mod harness;

use std::net::TcpListener;
use std::process::{Command, Stdio};

use harness::{Outcome, build_plugin, command, fails, finish, run};
use tempfile::TempDir;

/// Three arguments, cut in different ways over four devices, and returned as they are.
const PROGRAM: &str = "HloModule identity, num_partitions=4

ENTRY main {
  x = f32[8,2] parameter(0), sharding={devices=[4,1]<=[4]}
  n = s32[4] parameter(1), sharding={devices=[2,2]<=[4] last_tile_dim_replicate}
  c = f32[3] parameter(2), sharding={replicated}
  ROOT t = (f32[8,2], s32[4], f32[3]) tuple(x, n, c),
    sharding={{devices=[4,1]<=[4]}, {devices=[2,2]<=[4] last_tile_dim_replicate}, {replicated}}
}
";

/// The plugin and the program, in a folder of their own.
struct Mock(TempDir);

impl Mock {
    fn new() -> Mock {
        let folder = tempfile::tempdir().unwrap();
        build_plugin("tests/mock_plugin/native.c".as_ref(), &folder.path().join("native.so"));
        std::fs::write(folder.path().join("identity.hlo"), PROGRAM).unwrap();
        Mock(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// `spmd-run` on the program, with devices as the environment says.
    fn command(&self, arguments: &[&str], devices: u32) -> Command {
        let (plugin, program) = (self.path("native.so"), self.path("identity.hlo"));
        let mut command = command([&["--plugin", &plugin], arguments, &[&program]].concat());
        command.env("MOCK_DEVICES", devices.to_string());
        command
    }

    fn run(&self, arguments: &[&str], devices: u32) -> Outcome {
        run(self.command(arguments, devices))
    }
}

#[test]
fn a_whole_program_runs_over_all_processes() {
    let mock = Mock::new();
    let data = mock.path("data.npz");
    let alone = ["-n", "1", "--fill", "iota", "--output", &data];
    mock.run(&alone, 4).success("one process");
    for (processes, devices) in [("2", 2), ("4", 1)] {
        // Results are returned arguments, so those of one process are what they must be.
        let files = ["--expect", &data, "--fill", "iota", "--warmup", "1", "--repeat", "3"];
        let outcome = mock.run(&[&["-n", processes], &files[..]].concat(), devices).success("several processes");
        assert_eq!(outcome.stdout.matches("bitwise equal").count(), 3, "{}", outcome.stdout);
        let line = format!("devices  4 (mock_gpu): {processes} processes");
        assert!(outcome.stdout.contains(&line), "{}", outcome.stdout);
    }
}

#[test]
fn create_options_reach_the_plugin() {
    let mock = Mock::new();
    let options = ["visible_devices=0,3", "memory_fraction=1", "preallocate=false", "allocator=platform"];
    let options: Vec<&str> = options.iter().flat_map(|option| ["--plugin-option", option]).collect();
    mock.run(&[&["-n", "2"], &options[..]].concat(), 7).success("two of seven devices");
    let unknown = mock.run(&["-n", "2", "--plugin-option", "memory_fractio=1"], 2);
    fails(&unknown, 1, &["Unexpected option name", "memory_fractio"]);
    let of_job = mock.run(&["--plugin-option", "num_nodes=2"], 2);
    fails(&of_job, 2, &["num_nodes follows from the job"]);
}

#[test]
fn a_node_that_never_comes_is_named() {
    let mock = Mock::new();
    let mut command = mock.command(&["-n", "4", "--stall-timeout", "2"], 1);
    command.env("MOCK_ABSENT", "2");
    let outcome = run(command);
    fails(&outcome, 3, &["no process has put 'mock/topology/2' within 2 s", "the plugin of process 2 ("]);
}

#[test]
fn nodes_that_do_not_fit_are_told_apart() {
    let mock = Mock::new();
    fails(&mock.run(&["-n", "2"], 3), 1, &["asks for 2 devices per process, this host has 3"]);
    let mut uneven = command(["devices", "-n", "2", "--plugin", &mock.path("native.so")]);
    uneven.env("MOCK_DEVICES", "1,2");
    fails(&run(uneven), 3, &["processes have different numbers of devices"]);
}

#[test]
fn plugins_of_different_kinds_are_told_apart() {
    let mock = Mock::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let coordinator = listener.local_addr().unwrap().to_string();
    drop(listener);
    let place = |index| ["-n", "2", "--coordinator", &coordinator, "--process-id", index];
    let mut cpu = command([&place("1")[..], &[&mock.path("identity.hlo")]].concat());
    let cpu = cpu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let native = mock.run(&place("0"), 2);
    fails(&native, 3, &["the processes do not do the same job", "devices are opened by"]);
    fails(&finish(cpu), 3, &["process 1", "each process by itself"]);
}
