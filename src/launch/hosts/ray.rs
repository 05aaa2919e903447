//! The nodes of a Ray cluster as hosts.
//!
//! Ray speaks Python, so a driver in Python, [`MODULE`], reserves the nodes and starts a helper in an actor on each. It
//! calls the launcher at a Unix socket once for each helper, and from then on carries bytes between both; what the helpers
//! are and say is the same as behind ssh. Its end, by whatever cause, has Ray free all that the job had.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use signal_hook::consts::SIGTSTP;
use tempfile::TempDir;

use super::super::job::{LaunchError, failed};
use super::super::signals::Signals;
use super::super::watch::wait_for;
use super::agent::Binary;
use super::link::{Agent, Reached};
use super::wire::{BEAT, Inbox};

/// The source of the Python module `spmd_ray`, the driver.
pub const MODULE: &str = include_str!("spmd_ray.py");
const PYTHON: &str = "python3";
/// libtpu's coordinator of a job of several slices listens there, as Ray has it.
const MEGASCALE_PORT: u16 = 8081;
/// How long the driver may take for what takes no time.
const PATIENCE: Duration = Duration::from_secs(10);

/// A Ray cluster, and what a job takes of it.
#[derive(Clone, Debug)]
pub struct RayCluster {
    /// Where it is: `auto`, `HOST:PORT` or `ray://HOST:PORT`.
    pub address: String,
    /// How many slices the processes are divided into, in order.
    pub slices: u32,
    /// One process for each chip instead of one for each node.
    pub per_chip: bool,
    /// What each node gives; all of its accelerators if empty, one CPU if it has none.
    pub resources: BTreeMap<String, f64>,
    /// Ray's name for the accelerators, `TPU` or `GPU`; TPUs unless said, where nodes have some.
    pub accelerator: Option<&'static str>,
}

/// Why a Ray cluster gives no hosts.
#[derive(Debug, thiserror::Error)]
#[error("Ray: {0}")]
pub struct RayError(String);

/// What the driver says.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Event {
    Waiting(String),
    Placed(Vec<Node>),
    Failed(String),
    /// A helper, and why nothing more will come of it.
    Ended(u32, String),
}

/// A node that is the job's.
#[derive(Deserialize)]
struct Node {
    name: String,
    /// Where other nodes reach it.
    address: String,
    processes: u32,
}

/// Why each of the helpers is gone.
#[derive(Default)]
pub struct Obituaries {
    known: Mutex<HashMap<u32, String>>,
    news: Condvar,
}

impl Obituaries {
    /// Why a helper is gone. The driver says it before it hangs up, on another line.
    pub fn of(&self, host: u32) -> String {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.news.wait_timeout_while(known, PATIENCE, |known| !known.contains_key(&host));
        let (known, _) = waited.unwrap_or_else(PoisonError::into_inner);
        known.get(&host).cloned().unwrap_or_else(|| "the driver of Ray is gone".to_owned())
    }

    fn add(&self, host: u32, reason: String) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(host).or_insert(reason);
        self.news.notify_all();
    }
}

/// What came of asking for hosts.
pub enum Placed {
    /// They are there, as long as the driver is.
    Hosts(Driver, Vec<Reached>),
    /// A signal ended the wait.
    Stopped {
        /// Its number.
        signal: i32,
    },
}

/// The Python process. Dropping it frees the nodes.
pub struct Driver {
    child: Child,
    /// Chips of each node to divide among its processes.
    chips: Option<Vec<u32>>,
    /// For its socket.
    _folder: TempDir,
}

impl Driver {
    /// Starts it and waits until it has reserved the nodes of a job.
    pub fn start(
        cluster: &RayCluster,
        processes: u32,
        limit: Duration,
        binary: &Binary,
        signals: &mut Signals,
    ) -> Result<Placed, LaunchError> {
        let folder = tempfile::Builder::new().prefix("spmd-run-").tempdir().map_err(failed("make a folder"))?;
        let socket = folder.path().join("ray");
        let callers = UnixListener::bind(&socket).map_err(failed("make a socket in the folder for temporary files"))?;
        let module = folder.path().join("spmd_ray.py");
        std::fs::write(&module, MODULE).map_err(failed("write a temporary file"))?;
        let mut python = Command::new(PYTHON);
        // Ctrl-C is for the launcher.
        python.arg(&module).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        python.env("RAY_USAGE_STATS_ENABLED", "0");
        let child = python.spawn().map_err(|error| {
            RayError(format!("cannot run {PYTHON}: {error}: put the Python that has Ray on the PATH"))
        })?;
        let mut driver = Self { child, chips: None, _folder: folder };

        let request = json!({
            "address": cluster.address,
            "processes": processes,
            "slices": cluster.slices,
            "per_chip": cluster.per_chip,
            "resources": cluster.resources,
            "accelerator": cluster.accelerator,
            "limit": limit.as_secs_f64(),
            "socket": socket,
            "binary": binary.path,
            "hash": binary.hash,
            "helper": binary.helper(),
        });
        if let Some(input) = &mut driver.child.stdin {
            // A driver that has ended already has said why.
            let _ = input.write_all(format!("{request}\n").as_bytes());
        }
        let obituaries = Arc::new(Obituaries::default());
        let events = driver.listen(obituaries.clone()).map_err(failed("listen to the driver of Ray"))?;
        let last_words = driver.overhear().map_err(failed("listen to the driver of Ray"))?;
        let deadline = Instant::now() + limit + PATIENCE;
        let nodes = loop {
            wait_for([signals.as_fd(), events.wake()], Some(BEAT))?;
            if let Some(signal) = signals.take().into_iter().find(|signal| *signal != SIGTSTP) {
                return Ok(Placed::Stopped { signal });
            }
            match events.take().into_iter().next() {
                Some(Some(Event::Placed(nodes))) => break nodes,
                Some(Some(Event::Failed(reason))) => return Err(RayError(reason).into()),
                Some(Some(Event::Waiting(what))) => tracing::info!("waiting {what}"),
                Some(Some(Event::Ended(..))) => {}
                Some(None) => {
                    let words = last_words.join().unwrap_or_default();
                    return Err(RayError(format!("{PYTHON} has ended: {words}")).into());
                }
                None if Instant::now() >= deadline => {
                    let (address, limit) = (&cluster.address, limit.as_secs_f64());
                    let reason = format!(
                        "--ray-address {address}: no answer within {limit} s: is a Ray cluster there, of the version that \
                         {PYTHON} has?"
                    );
                    return Err(RayError(reason).into());
                }
                None => {}
            }
        };
        if cluster.per_chip {
            driver.chips = nodes.first().map(|node| (0..node.processes).collect());
        }
        let envs = multislice(&nodes, cluster.slices);
        let mut reached = Vec::new();
        for (node, envs) in nodes.into_iter().zip(envs) {
            if !wait_for([callers.as_fd()], Some(PATIENCE))?[0] {
                return Err(RayError("the driver does not call".to_owned()).into());
            }
            let (line, _) = callers.accept().map_err(failed("take a call of the driver of Ray"))?;
            let input = line.try_clone().map_err(failed("take a call of the driver of Ray"))?;
            reached.push(Reached {
                name: node.name,
                processes: node.processes,
                envs,
                agent: Agent::Actor(obituaries.clone()),
                input: File::from(OwnedFd::from(input)),
                output: File::from(OwnedFd::from(line)),
            });
        }
        Ok(Placed::Hosts(driver, reached))
    }

    /// Chips of each node to divide among its processes.
    pub fn chips(&self) -> Option<Vec<u32>> {
        self.chips.clone()
    }

    /// Reads what the driver says on a thread of its own. `None` is the last.
    fn listen(&mut self, obituaries: Arc<Obituaries>) -> io::Result<Inbox<Option<Event>>> {
        const ROOM: usize = 64;
        let (inbox, events) = Inbox::new(ROOM)?;
        let output: Option<ChildStdout> = self.child.stdout.take();
        std::thread::Builder::new().name("ray".to_owned()).spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(Event::Ended(host, reason)) => obituaries.add(host, reason),
                    Ok(event) => drop(events.put(Some(event))),
                    Err(error) => tracing::debug!("the driver of Ray said {line:?}: {error}"),
                }
            }
            events.put(None);
        })?;
        Ok(inbox)
    }

    /// Reads what the driver and Ray print otherwise, for who debugs; the last line is the result.
    fn overhear(&mut self) -> io::Result<JoinHandle<String>> {
        let stderr: Option<ChildStderr> = self.child.stderr.take();
        std::thread::Builder::new().name("ray".to_owned()).spawn(move || {
            let lines = stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).split(b'\n'));
            let mut last = String::new();
            for line in lines.map_while(Result::ok) {
                let line = String::from_utf8_lossy(line.trim_ascii()).into_owned();
                tracing::debug!("the driver of Ray printed: {line}");
                if !line.is_empty() {
                    last = line;
                }
            }
            last
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // At the end of its input the driver frees the nodes, for which it takes some seconds at most.
        self.child.stdin = None;
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The variables by which libtpu knows of several slices, for each of the nodes, which are in the order of the slices.
fn multislice(nodes: &[Node], slices: u32) -> Vec<Vec<(OsString, OsString)>> {
    let (count, slices) = (nodes.len(), slices as usize);
    let of_node = |index: usize| {
        let variables = [
            ("MEGASCALE_COORDINATOR_ADDRESS", nodes[0].address.clone()),
            ("MEGASCALE_PORT", MEGASCALE_PORT.to_string()),
            ("MEGASCALE_NUM_SLICES", slices.to_string()),
            ("MEGASCALE_SLICE_ID", (index * slices / count).to_string()),
        ];
        variables.map(|(name, value)| (name.into(), value.into())).into()
    };
    (0..count).map(|index| if slices > 1 { of_node(index) } else { Vec::new() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_told() {
        let node = |address: &str| Node { name: String::new(), address: address.to_owned(), processes: 1 };
        let nodes = ["10.0.0.7", "10.0.0.8", "10.0.0.9", "10.0.0.10"].map(node);
        let values = |envs: &[(OsString, OsString)]| {
            let values: Vec<_> = envs.iter().map(|(_, value)| value.to_str().unwrap()).collect();
            values.join(" ")
        };
        let all: Vec<_> = multislice(&nodes, 2).iter().map(|envs| values(envs)).collect();
        assert_eq!(all, ["10.0.0.7 8081 2 0", "10.0.0.7 8081 2 0", "10.0.0.7 8081 2 1", "10.0.0.7 8081 2 1"]);
        assert!(multislice(&nodes, 1).iter().all(Vec::is_empty));
    }

    #[test]
    fn events_are_understood() {
        let placed = r#"{"placed": [{"name": "a", "address": "10.0.0.7", "processes": 4}]}"#;
        assert!(matches!(serde_json::from_str(placed).unwrap(), Event::Placed(nodes) if nodes[0].processes == 4));
        let ended = serde_json::from_str(r#"{"ended": [3, "its Ray node has died"]}"#).unwrap();
        assert!(matches!(ended, Event::Ended(3, reason) if reason == "its Ray node has died"));
    }

    #[test]
    fn obituaries_are_kept() {
        let obituaries = Obituaries::default();
        obituaries.add(1, "first".to_owned());
        obituaries.add(1, "second".to_owned());
        assert_eq!(obituaries.of(1), "first");
    }
}
