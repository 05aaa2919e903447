//! A real Ray cluster of several nodes on this machine.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The Python that has Ray, by its path. `run.sh test` makes one.
pub const PYTHON: &str = "SPMD_TEST_RAY";

/// The PATH on which `python3` is the one that has Ray. `None` where no Ray is installed.
pub fn path() -> Option<OsString> {
    let Some(python) = std::env::var_os(PYTHON).map(PathBuf::from) else {
        eprintln!(
            "skipped: no Ray is installed ({PYTHON} is the path of a Python that has it; ./run.sh test makes one)"
        );
        return None;
    };
    let programs = python.parent().expect("a path").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = [programs].into_iter().chain(std::env::split_paths(&path));
    Some(std::env::join_paths(paths).expect("a PATH"))
}

/// Two TPU slices of four hosts with four chips each, and a node without chips.
pub struct RayCluster {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// `HOST:PORT`
    pub address: String,
    /// The PATH on which python3 is the one that has Ray.
    pub path: OsString,
}

impl RayCluster {
    /// Starts it; its nodes cache and make temporary files in this folder. `None` where no Ray is installed.
    pub fn start(folder: &Path) -> Option<RayCluster> {
        let path = path()?;
        let mut command = Command::new("python3");
        command.arg(super::root().join("tests/harness/ray_cluster.py")).env("PATH", &path);
        command.env("XDG_CACHE_HOME", folder.join("cache")).env("TMPDIR", folder).env("MEGASCALE_SLICE_ID", "7");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let (orders, answers) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        let mut cluster = RayCluster { child, orders, answers: BufReader::new(answers), address: String::new(), path };
        cluster.address = cluster.answer();
        Some(cluster)
    }

    /// Gives it an order and returns the answer.
    pub fn ask(&mut self, order: &str) -> String {
        let orders = self.orders.as_mut().expect("it runs");
        orders.write_all(format!("{order}\n").as_bytes()).expect("the cluster listens");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        assert!(!line.is_empty(), "the cluster has ended, see above");
        line.trim().to_owned()
    }
}

impl Drop for RayCluster {
    fn drop(&mut self) {
        // At the end of its input it ends its nodes.
        self.orders = None;
        let _ = self.child.wait();
    }
}
