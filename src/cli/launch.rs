//! Options of the launcher, which starts the processes of a job here or on other hosts.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use spmd_run::cluster::host::{self, Vendor};
use spmd_run::launch::hosts::{self, By, HostListError, SSH_COMMAND, Share};
use spmd_run::launch::{self, End, Hosts, Job, LaunchError, Outcome, RayCluster};
use spmd_run::plugins;

use super::Failure;
use super::job::seconds;

#[derive(Args)]
pub struct LaunchOptions {
    /// Hosts to start processes on over ssh, in mpirun's syntax; one each, K with HOST:K, or an even share of -n
    #[arg(long, visible_alias = "host", value_name = "HOST[:K],…", conflicts_with = "hostfile")]
    hosts: Option<String>,

    /// File with a host a line, as in mpirun: HOST [slots=K] [max_slots=K]
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,

    /// Command that runs a command on another host: words, to which host and command are added
    #[arg(long, env = launch::SSH, value_name = "COMMAND", default_value = SSH_COMMAND, hide_env_values = true)]
    ssh: String,

    /// What starts the processes: this command itself, or a Ray cluster, one process on each of its nodes
    #[arg(long, value_enum, default_value = "auto", hide_possible_values = true, value_name = "auto|ray")]
    launcher: Launcher,

    /// The Ray cluster: auto, HOST:PORT or ray://HOST:PORT
    #[arg(long, env = "RAY_ADDRESS", value_name = "ADDRESS", default_value = "auto", hide_env_values = true)]
    ray_address: String,

    /// What each Ray node gives to the job [default: all its TPUs, or GPUs for a GPU plugin; without any, one CPU]
    #[arg(long, value_name = "NAME=AMOUNT,…", value_delimiter = ',', value_parser = resource)]
    ray_resources: Vec<(String, f64)>,

    /// Environment variable to give to all processes (may be repeated)
    #[arg(short = 'x', long = "export", value_name = "NAME[=VALUE]")]
    exports: Vec<OsString>,

    /// Accelerator chips of each host to use, by number, divided in order among the host's processes
    #[arg(long, value_name = "0,1,…", value_delimiter = ',')]
    chips: Option<Vec<u32>>,

    /// One process per chip, each seeing one device, instead of one per host; on CPUs one per device of the program
    #[arg(long, conflicts_with = "devices_per_process")]
    pub per_chip: bool,

    /// Folder for what each process prints, as process-0.out, process-0.err, …, beside showing it
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,

    /// Seconds that processes may take to end, and to save what they have, after Ctrl-C or SIGTERM, before they are killed
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds, allow_negative_numbers = true)]
    stop_timeout: Duration,

    /// How often to start the whole job again when a process died or a host was lost
    #[arg(long, value_name = "R", default_value_t = 0, allow_negative_numbers = true)]
    max_restarts: u32,
}

/// What starts the processes of a job.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Launcher {
    Auto,
    Ray,
}

/// `NAME=AMOUNT` of a Ray resource
fn resource(text: &str) -> Result<(String, f64), String> {
    let (name, amount) = text.split_once('=').ok_or("not of the form NAME=AMOUNT")?;
    match amount.parse() {
        Ok(amount) if amount > 0.0 && f64::is_finite(amount) && !name.is_empty() => Ok((name.to_owned(), amount)),
        _ => Err(format!("'{amount}' is not an amount above 0")),
    }
}

/// Variables that go to other hosts unasked, as they are about the job and not about a host.
const EXPORTED: [&str; 7] = [
    "LIBTPU_INIT_ARGS",
    "PJRT_PLUGIN_LIBRARY_PATH",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "TF_CPP_MAX_VLOG_LEVEL",
    "TF_CPP_MIN_LOG_LEVEL",
    "XLA_FLAGS",
];

/// How long processes may take to end when another one has failed, if process 0 then has a file to write.
const WRITING: Duration = Duration::from_secs(15);

impl LaunchOptions {
    /// Whether other hosts were asked for.
    pub fn are_over_hosts(&self) -> bool {
        self.hosts.is_some() || self.hostfile.is_some() || self.is_by_ray()
    }

    /// Whether a Ray cluster gives the hosts.
    pub fn is_by_ray(&self) -> bool {
        self.launcher == Launcher::Ray
    }

    /// Refuses what cannot be asked for together.
    pub fn check_usage(&self) -> Result<(), Failure> {
        let of_others = [
            ("--hosts", self.hosts.is_some()),
            ("--hostfile", self.hostfile.is_some()),
            ("--chips", self.chips.is_some()),
        ];
        match of_others.iter().find(|(_, given)| *given) {
            Some((option, _)) if self.is_by_ray() => {
                Err(Failure::usage(format!("{option}: Ray decides where a job runs: leave it out")))
            }
            _ if !self.ray_resources.is_empty() && !self.is_by_ray() => {
                Err(Failure::usage("--ray-resources is for jobs on a Ray cluster: add --launcher ray"))
            }
            _ if !self.ray_resources.is_empty() && self.per_chip => Err(Failure::usage(
                "--ray-resources: with --per-chip each node gives all its chips: leave one of them out",
            )),
            _ => Ok(()),
        }
    }

    /// How many processes were asked for: with `-n`, or one for each of the chips, or of the devices that are needed.
    pub fn processes(
        &self,
        asked: Option<u32>,
        plugin: Option<&str>,
        devices: impl FnOnce() -> Result<Option<u32>, Failure>,
    ) -> Result<Option<u32>, Failure> {
        if !self.per_chip {
            return Ok(asked);
        }
        let hosts = self.shares(None)?.map_or(1, |shares| shares.len());
        let follows = match self.chips(plugin)? {
            Some(chips) => u32::try_from(chips.len() * hosts).ok(),
            None if asked.is_some() => return Ok(asked),
            None => devices()?,
        };
        match (asked, follows) {
            (Some(asked), Some(follows)) if asked != follows => Err(Failure::usage(format!(
                "-n {asked}: --per-chip makes {follows} processes, one for each chip: leave -n out"
            ))),
            (None, None) => Err(Failure::usage("--per-chip: how many devices there are cannot be told: give -n")),
            _ => Ok(follows),
        }
    }

    /// The chips of each host to use; all that this host has, where each process is to have one.
    fn chips(&self, plugin: Option<&str>) -> Result<Option<Vec<u32>>, Failure> {
        let mut seen = HashSet::new();
        if let Some(twice) = self.chips.iter().flatten().find(|chip| !seen.insert(**chip)) {
            return Err(Failure::usage(format!("--chips: {twice} is given twice")));
        }
        match vendor_of(plugin) {
            _ if self.chips.is_some() => Ok(self.chips.clone()),
            _ if self.is_by_ray() => Ok(None),
            Some(_) if self.per_chip && self.are_over_hosts() => {
                Err(Failure::usage("--per-chip: say which chips each host has: --chips 0,1,…"))
            }
            Some(vendor) if self.per_chip => {
                let chips = host::chips(Path::new("/")).iter().filter(|chip| chip.vendor == vendor).count();
                Ok(Some((0..chips as u32).collect()))
            }
            _ => Ok(None),
        }
    }

    /// The hosts with the number of processes on each.
    pub fn shares(&self, processes: Option<u32>) -> Result<Option<Vec<Share>>, Failure> {
        let slots = match (&self.hosts, &self.hostfile) {
            (Some(hosts), _) => hosts::parse(hosts),
            (_, Some(file)) => {
                let text = fs::read_to_string(file).with_context(|| file.display().to_string());
                hosts::parse_file(file, &text.map_err(Failure::wrong_usage)?)
            }
            _ => return Ok(None),
        };
        let shares = slots.and_then(|slots| hosts::share(&slots, processes));
        shares.map(Some).map_err(|error: HostListError| Failure::wrong_usage(error))
    }

    /// Checks that no two processes would open the same chips.
    pub fn check(&self, processes: u32, plugin: Option<&str>) -> Result<(), Failure> {
        if self.is_by_ray() {
            return Ok(());
        }
        let shares = self.shares(Some(processes))?;
        let most = shares.iter().flatten().map(|share| share.processes).max().unwrap_or(processes);
        if most == 1 || self.chips(plugin)?.is_some() || vendor_of(plugin).is_none() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{most} processes on one host would each open all its chips: start one on each host, or give each process chips \
             of its own with --per-chip or --chips"
        )))
    }

    /// Starts this very command in every process and waits for the job's end. `files` are those that the command reads; the
    /// first is what the job is about. When the job fails, process 0 `writes` something before it ends.
    pub fn launch(
        &self,
        processes: u32,
        plugin: Option<&str>,
        slices: u32,
        files: &[&Path],
        start_limit: Duration,
        writes: bool,
    ) -> Result<u8, Failure> {
        let by = match self.shares(Some(processes))? {
            Some(shares) => Some(By::Ssh { shares, agent: self.ssh.clone() }),
            None => self.is_by_ray().then(|| By::Ray(self.cluster(plugin, slices))),
        };
        let hosts = by.map(|by| Hosts { by, files: files.iter().map(|&file| file.to_owned()).collect(), start_limit });
        let job = this_command(processes)?;
        let job = Job {
            grace: if writes { WRITING } else { job.grace },
            envs: self.environment(hosts.is_some())?,
            log_dir: self.log_dir.clone(),
            max_restarts: self.max_restarts,
            stop_timeout: self.stop_timeout,
            chips: self.chips(plugin)?,
            hosts,
            ..job
        };
        run(&job, files.first().copied())
    }

    fn cluster(&self, plugin: Option<&str>, slices: u32) -> RayCluster {
        RayCluster {
            address: self.ray_address.clone(),
            slices,
            per_chip: self.per_chip,
            resources: self.ray_resources.iter().cloned().collect::<BTreeMap<_, _>>(),
            accelerator: vendor_of(plugin).map(|vendor| match vendor {
                Vendor::Google => "TPU",
                Vendor::Nvidia => "GPU",
            }),
        }
    }

    /// The variables that all processes get beside what their host has.
    fn environment(&self, over_hosts: bool) -> Result<Vec<(OsString, OsString)>, Failure> {
        let own = |name: &OsString| Some((name.clone(), std::env::var_os(name)?));
        let mut all: Vec<_> = match over_hosts {
            true => EXPORTED.iter().filter_map(|name| own(&name.into())).collect(),
            false => Vec::new(),
        };
        for export in &self.exports {
            let text = export.to_string_lossy();
            all.push(match text.split_once('=') {
                Some(("", _)) => return Err(Failure::usage(format!("-x {text}: a name must come before the '='"))),
                Some((name, value)) => (name.into(), value.into()),
                None => {
                    own(export).ok_or_else(|| Failure::usage(format!("-x {text}: there is no such variable here")))?
                }
            });
        }
        Ok(all)
    }
}

/// Whose chips a plugin drives, as far as its name or its file's tells.
fn vendor_of(plugin: Option<&str>) -> Option<Vendor> {
    let plugin = plugin.map(str::to_owned).or_else(|| std::env::var(plugins::LIBRARY_PATH).ok())?;
    let name = plugin.rsplit('/').next().unwrap_or_default();
    match name {
        _ if name == "tpu" || name.contains("libtpu") => Some(Vendor::Google),
        _ if name.contains("cuda") => Some(Vendor::Nvidia),
        _ => None,
    }
}

/// A job whose processes run this very command.
pub fn this_command(processes: u32) -> Result<Job, Failure> {
    let program = std::env::current_exe().map_err(Failure::program)?;
    Ok(Job { args: std::env::args_os().skip(1).collect(), ..Job::new(processes, program) })
}

/// Starts a job and waits for its end. `subject` is what it is about, for messages.
pub fn run(job: &Job, subject: Option<&Path>) -> Result<u8, Failure> {
    let outcome = launch::run(job).map_err(|error| match error {
        LaunchError::Host(_) | LaunchError::Ray(_) => Failure::peer(error),
        LaunchError::Chips(_) => Failure::wrong_usage(error),
        _ => Failure::program(error),
    })?;
    let is_lost = matches!(&outcome, Outcome::Failed(failed) if matches!(failed.end, End::Lost(_)));
    // A process that fails by itself has said why.
    if is_lost || !(0..=3).contains(&outcome.exit_code()) {
        let subject = subject.map_or(String::new(), |subject| format!("{}: ", subject.display()));
        eprintln!("error: {subject}{outcome}{}", advice(&outcome));
    }
    Ok(outcome.exit_code())
}

/// What to do when a signal ended a controller that nobody sent it.
fn advice(outcome: &Outcome) -> &'static str {
    let Outcome::Failed(failed) = outcome else { return "" };
    let Some(phase) = &failed.phase else { return "" };
    match failed.end.signal() {
        Some(libc::SIGKILL) => {
            "\nif nobody killed it, the system did, as memory ran out: see dmesg, and take fewer processes or a smaller \
             program"
        }
        Some(libc::SIGABRT | libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP) => {
            // MLIR is read by nobody before the plugin does.
            if phase.starts_with("importing") {
                return "\nthe plugin crashed: the file may be damaged; if it is not, try another version of the plugin \
                        (--plugin), and report this program to its makers";
            }
            "\nthe plugin crashed: try another version of it (--plugin), and report this program to its makers"
        }
        _ => "",
    }
}

/// Options of the helper that a launcher starts on each host.
#[derive(Args)]
pub struct HelperOptions {
    /// Tell by the exit code whether this binary has this hash
    #[arg(long, value_name = "HASH")]
    is: Option<String>,

    /// A folder for the helper's files
    #[arg(required_unless_present = "is")]
    folder: Option<PathBuf>,
}

/// `spmd-run __host`: a launcher's helper.
pub fn help(options: &HelperOptions) -> Result<u8, Failure> {
    match (&options.is, &options.folder) {
        (Some(hash), _) => Ok(u8::from(!hosts::is_this_program(hash))),
        (None, Some(folder)) => hosts::serve(folder).map_err(Failure::program),
        (None, None) => Err(Failure::usage("__host is for launchers")),
    }
}
