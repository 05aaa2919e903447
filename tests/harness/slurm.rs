//! Slurm's real controller and node daemons on this machine.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::namespaces::Namespaces;

/// Nodes with four CPUs each, whatever they have, in a partition `low` whose jobs give way to those in `high`.
pub struct Slurm {
    daemons: Vec<Child>,
    folder: TempDir,
    /// What runs a command where the controller is.
    inside: Vec<String>,
}

struct Node {
    name: String,
    address: &'static str,
    /// What runs a command there.
    inside: Vec<String>,
}

impl Slurm {
    /// This machine as the only node. `None` where the daemons cannot be started.
    pub fn start() -> Option<Slurm> {
        Self::start_on(&[Node { name: host_name(), address: "127.0.0.1", inside: Vec::new() }], Vec::new())
    }

    /// The nodes `n0` and `n1` in these namespaces, and the controller in the first.
    pub fn on(network: &Namespaces) -> Option<Slurm> {
        const PLACES: [(&str, &str); 2] = [("n0", "10.78.0.1"), ("n1", "10.78.0.2")];
        let nodes = [0, 1].map(|host| {
            let hosts = network.files(host).join("hosts");
            let lines = PLACES.map(|(name, address)| format!("{address} {name}\n")).concat();
            std::fs::write(&hosts, format!("127.0.0.1 localhost\n{lines}")).expect("a file");
            let (name, address) = PLACES[host];
            let script = format!("hostname {name} && mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
            let words = ["unshare", "--uts", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned);
            Node { name: name.to_owned(), address, inside: [network.with_sys(host), words.into()].concat() }
        });
        Self::start_on(&nodes, network.with_sys(0))
    }

    fn start_on(nodes: &[Node], inside: Vec<String>) -> Option<Slurm> {
        const PROGRAMS: [&str; 5] = ["munged", "slurmctld", "slurmd", "srun", "sbatch"];
        let is_there =
            |name: &&str| ["/usr/sbin", "/usr/bin"].iter().any(|folder| Path::new(folder).join(name).exists());
        if let Some(missing) = PROGRAMS.into_iter().find(|name| !is_there(name)) {
            eprintln!("skipped: {missing} is not installed (Debian: slurmctld slurmd slurm-client munge)");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: Slurm's daemons start as root only");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = folder.path().display().to_string();
        std::fs::create_dir(folder.path().join("state")).expect("a folder");
        let random = "of no importance, as nobody else is there".repeat(8);
        std::fs::write(folder.path().join("munge.key"), random).expect("a file");
        let chmod = Command::new("chmod").arg("600").arg(folder.path().join("munge.key")).status();
        assert!(chmod.expect("chmod starts").success());
        let [control, daemons] = [(); 2].map(|()| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            listener.local_addr().expect("its address").port()
        });
        let lines =
            nodes.iter().map(|node| format!("NodeName={} NodeAddr={} CPUs=4 State=UNKNOWN\n", node.name, node.address));
        let config = format!(
            "ClusterName=test\nSlurmctldHost={host}({address})\nSlurmctldPort={control}\nSlurmdPort={daemons}\n\
             AuthType=auth/munge\nAuthInfo=socket={place}/munge.socket,cred_expire=5\nSlurmUser=root\nSlurmdUser=root\n\
             StateSaveLocation={place}/state\nSlurmdSpoolDir={place}/spool-%n\nSlurmctldPidFile={place}/slurmctld.pid\n\
             SlurmdPidFile={place}/slurmd-%n.pid\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSlurmdParameters=config_overrides\n\
             MpiDefault=none\nReturnToService=2\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n\
             {lines}\
             PartitionName=low Nodes=ALL Default=YES State=UP PriorityTier=1\n\
             PartitionName=high Nodes=ALL State=UP PriorityTier=10\n",
            host = host_name(),
            address = nodes[0].address,
            lines = lines.collect::<String>(),
        );
        std::fs::write(folder.path().join("slurm.conf"), config).expect("a file");
        let mut slurm = Slurm { daemons: Vec::new(), folder, inside };
        let munged = ["--foreground", "--force", "--num-threads=1"].map(str::to_owned);
        let files = [
            ("key-file", "key"),
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        ];
        let files = files.map(|(option, ending)| format!("--{option}={place}/munge.{ending}"));
        let controller = slurm.inside.clone();
        slurm.daemon("munged", &controller, munged.iter().chain(&files));
        slurm.daemon("slurmctld", &controller, ["-D", "-c"]);
        for node in nodes {
            slurm.daemon("slurmd", &node.inside, ["-D"]);
        }
        let start = Instant::now();
        while slurm.says("sinfo", &["-h", "-N", "-p", "low", "-o", "%T"]).matches("idle").count() < nodes.len() {
            if start.elapsed() > Duration::from_secs(30) {
                eprintln!("skipped: Slurm does not start here: {}", slurm.log("slurmctld") + &slurm.log("slurmd"));
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(slurm)
    }

    fn daemon<A: AsRef<OsStr>>(&mut self, name: &str, inside: &[String], arguments: impl IntoIterator<Item = A>) {
        let log = OpenOptions::new().create(true).append(true).open(self.path(&format!("{name}.log"))).expect("a file");
        let errors = log.try_clone().expect("a file");
        let mut command = self.command_inside(inside, &format!("/usr/sbin/{name}"));
        command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(errors);
        self.daemons.push(command.spawn().expect("a daemon starts"));
    }

    /// A file of this cluster.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// One of Slurm's commands, for this cluster, in the repository's root.
    pub fn command(&self, name: &str) -> Command {
        self.command_inside(&self.inside, name)
    }

    fn command_inside(&self, inside: &[String], name: &str) -> Command {
        let mut words = inside.iter().map(String::as_str).chain([name]);
        let mut command = Command::new(words.next().expect("a name"));
        command.args(words).env("SLURM_CONF", self.path("slurm.conf")).current_dir(super::root());
        command
    }

    /// What a command prints.
    pub fn says(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.command(name).args(arguments).output().expect("a command of Slurm starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

impl Drop for Slurm {
    fn drop(&mut self) {
        self.says("scancel", &["--user=root", "--full"]);
        // Jobs outlive the daemons: these are to end them.
        let start = Instant::now();
        while !self.says("squeue", &["--noheader"]).is_empty() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(100));
        }
        // Munge last, as the others speak by it.
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
