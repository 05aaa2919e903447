//! Drives the real `spmd-run` binary.

#![allow(dead_code, reason = "no test uses all of it")]

pub mod by_hand;
pub mod itself;
pub mod job;
pub mod mpirun;
pub mod namespaces;
pub mod ray;
pub mod relay;
pub mod slurm;
pub mod ssh;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// Fails the test with everything that was printed unless the command succeeded.
    #[track_caller]
    pub fn success(self, what: &str) -> Outcome {
        assert_eq!(self.code, Some(0), "{what}\nstdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }
}

/// Fails the test unless the command ended with this exit code and said all of this.
#[track_caller]
pub fn fails(outcome: &Outcome, code: i32, parts: &[&str]) {
    assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
    for part in parts {
        assert!(outcome.stderr.contains(part), "no {part:?} in:\n{}", outcome.stderr);
    }
}

/// Runs `spmd-run` with these arguments in the repository's root.
pub fn spmd_run<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Outcome {
    run(command(arguments))
}

/// `spmd-run` with these arguments, in the repository's root, to be run by [`run`].
pub fn command<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spmd-run"));
    command.args(arguments).current_dir(root());
    command
}

/// Runs a command to its end; one that hangs fails the test.
pub fn run(command: Command) -> Outcome {
    finish(start(command))
}

/// Starts a command whose end is waited for with [`finish`].
pub fn start(mut command: Command) -> Child {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    child.expect("spmd-run cannot be started")
}

/// The command behind these words, which run it in their place.
pub fn behind(words: &[&str], command: &Command) -> Command {
    let mut made = Command::new(words[0]);
    made.args(&words[1..]).arg(command.get_program()).args(command.get_args());
    made.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(root());
    made
}

/// Waits for the end of a process whose output is piped; one that hangs fails the test.
pub fn finish(mut child: Child) -> Outcome {
    let stdout = collect(child.stdout.take().expect("stdout is piped"));
    let stderr = collect(child.stderr.take().expect("stderr is piped"));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("cannot wait for spmd-run") {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill().expect("cannot kill spmd-run");
            child.wait().expect("cannot wait for spmd-run");
            panic!("spmd-run hangs\nstderr:\n{}", stderr.join().expect("reader"));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |reader: std::thread::JoinHandle<String>| reader.join().expect("reader");
    Outcome { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

fn collect(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("cannot read a pipe");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Compiles a library from C with gcc and returns its bytes. The source's path starts at the repository's root.
pub fn build_plugin(source: &Path, library: &Path) -> Vec<u8> {
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(library).arg(root().join(source)).arg("-ldl");
    let gcc = gcc.output().expect("gcc must be installed");
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
    std::fs::read(library).expect("gcc has written it")
}

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The real public programs beside the repository, where they are.
pub fn corpus() -> Option<PathBuf> {
    let corpus = root().join("../shared/corpus");
    if corpus.join("MANIFEST.tsv").exists() {
        return Some(corpus);
    }
    eprintln!("skipped: no corpus at {}", corpus.display());
    None
}

/// Rows of a table with a header line, as (column name → value) lookups.
pub fn tsv(path: &Path) -> Vec<std::collections::HashMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines = text.lines();
    let names: Vec<String> = lines.next().expect("a header").split('\t').map(str::to_owned).collect();
    lines.map(|line| names.iter().cloned().zip(line.split('\t').map(str::to_owned)).collect()).collect()
}
