//! Slurm's real controller and node daemon on this machine.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A cluster of this machine, with four CPUs whatever it has, in a partition `low` whose jobs give way to those in `high`.
pub struct Slurm {
    daemons: Vec<Child>,
    folder: TempDir,
}

impl Slurm {
    /// Starts munged, slurmctld and slurmd. `None` where they cannot be started.
    pub fn start() -> Option<Slurm> {
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
        for name in ["state", "spool"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let random = "of no importance, as nobody else is there".repeat(8);
        std::fs::write(folder.path().join("munge.key"), random).expect("a file");
        let chmod = Command::new("chmod").arg("600").arg(folder.path().join("munge.key")).status();
        assert!(chmod.expect("chmod starts").success());
        let host =
            rustix::system::uname().nodename().to_string_lossy().split('.').next().unwrap_or_default().to_owned();
        let [controller, node] = [(); 2].map(|()| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            listener.local_addr().expect("its address").port()
        });
        let config = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\nSlurmdPort={node}\n\
             AuthType=auth/munge\nAuthInfo=socket={place}/munge.socket,cred_expire=5\nSlurmUser=root\nSlurmdUser=root\n\
             StateSaveLocation={place}/state\nSlurmdSpoolDir={place}/spool\nSlurmctldPidFile={place}/slurmctld.pid\n\
             SlurmdPidFile={place}/slurmd.pid\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSlurmdParameters=config_overrides\n\
             MpiDefault=none\nReturnToService=2\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN\n\
             PartitionName=low Nodes=ALL Default=YES State=UP PriorityTier=1\n\
             PartitionName=high Nodes=ALL State=UP PriorityTier=10\n"
        );
        std::fs::write(folder.path().join("slurm.conf"), config).expect("a file");
        let mut slurm = Slurm { daemons: Vec::new(), folder };
        let munged = ["--foreground", "--force", "--num-threads=1"].map(str::to_owned);
        let files = [
            ("key-file", "key"),
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        ];
        let files = files.map(|(option, ending)| format!("--{option}={place}/munge.{ending}"));
        slurm.daemon("munged", munged.iter().chain(&files));
        slurm.daemon("slurmctld", ["-D", "-c"]);
        slurm.daemon("slurmd", ["-D"]);
        let start = Instant::now();
        while !slurm.says("sinfo", &["-h", "-o", "%T"]).contains("idle") {
            if start.elapsed() > Duration::from_secs(30) {
                eprintln!("skipped: Slurm does not start here: {}", slurm.log("slurmctld") + &slurm.log("slurmd"));
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(slurm)
    }

    fn daemon<A: AsRef<std::ffi::OsStr>>(&mut self, name: &str, arguments: impl IntoIterator<Item = A>) {
        let log = File::create(self.path(&format!("{name}.log"))).expect("a file");
        let errors = log.try_clone().expect("a file");
        let mut command = self.command(&format!("/usr/sbin/{name}"));
        command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(errors);
        self.daemons.push(command.spawn().expect("a daemon starts"));
    }

    /// A file of this cluster.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// One of Slurm's commands, for this cluster, in the repository's root.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("SLURM_CONF", self.path("slurm.conf")).current_dir(super::root());
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
