//! Options that every command with controller processes takes.

mod member;
mod role;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use spmd_run::cluster::{self, Environment};
use spmd_run::collective::{Link, Links};
use spmd_run::launch::{COMPILATION_CACHE, ControllerEnv, Settings};
use spmd_run::pjrt::Value;
use spmd_run::plugins;
use spmd_run::rendezvous::{JobToken, JoinError, Tls};
use spmd_run::runtime::{self, DataPlaneOptions, DeviceOptions, Fact, Runtime, World};
use spmd_run::trace::Files;
use spmd_run::transport::mesh::Choice;

use super::Failure;
use super::control::ControlOptions;
use super::launch::LaunchOptions;
use super::report::check_writable;
pub use member::Membership;
pub use role::{Role, slice_of};

#[derive(Args)]
pub struct JobOptions {
    /// Controller processes, one per host by default
    #[arg(short = 'n', long = "processes", value_name = "N", value_parser = count_of_processes, allow_negative_numbers = true)]
    processes: Option<u32>,

    /// CPU devices per process [default: the program's devices ÷ N, else 1]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=2048), allow_negative_numbers = true)]
    devices_per_process: Option<u32>,

    /// PJRT plugin: a known name or the path of a shared library
    #[arg(long, value_name = "NAME|PATH")]
    pub plugin: Option<String>,

    /// Keep executables in this folder, and find those of earlier jobs there instead of compiling. It is read and written by
    /// every host, and must be trusted
    #[arg(long, value_name = "DIR", env = COMPILATION_CACHE)]
    compilation_cache: Option<PathBuf>,

    /// Create option of the plugin's own (may be repeated), such as memory_fraction=0.5, preallocate=false, allocator=platform
    /// or visible_devices=0,1 for GPUs
    #[arg(long, value_name = "NAME=VALUE", value_parser = plugin_option)]
    plugin_option: Vec<(String, Value)>,

    /// Data plane between processes; auto takes shared memory where two processes can have it, else TCP
    #[arg(long, value_enum, default_value = "auto")]
    transport: Transport,

    /// Collectives between slices, or else hosts: flat has every process exchange data with every other one, hierarchical has
    /// those of a slice act together; auto takes what is sooner over by what the links carry
    #[arg(long, value_enum, default_value = "auto")]
    algorithm: AlgorithmChoice,

    /// What a link inside a slice, or else host, carries for each process, as in 100GB/s,1us: --algorithm auto goes by it
    /// instead of measuring
    #[arg(long, value_name = "RATE,TIME", requires = "dcn")]
    ici: Option<Link>,

    /// What a link between slices, or else hosts, carries for each host, as in 10Gbit/s,0.2ms
    #[arg(long, value_name = "RATE,TIME", requires = "ici")]
    dcn: Option<Link>,

    /// Join the job whose process 0 listens at this address (started by hand, with --process-id and -n)
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,

    /// This process's index in a job started by hand
    #[arg(long, value_name = "I", allow_negative_numbers = true)]
    process_id: Option<u32>,

    /// File with the secret that all processes of a job started by hand or by a scheduler share [default:
    /// $SPMD_JOB_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    tls: TlsOptions,

    /// Whether to join the job of the scheduler that started this process (mpirun, Slurm, torchrun, …)
    #[arg(long, value_enum, default_value = "auto")]
    cluster: Cluster,

    /// Seconds until all processes must have joined
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds, allow_negative_numbers = true)]
    pub rendezvous_timeout: Duration,

    /// Seconds that a process waits for the others in a collective or at a barrier, or may be silent
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds, allow_negative_numbers = true)]
    pub stall_timeout: Duration,

    /// Seconds until the whole job must have ended
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub timeout: Option<Duration>,

    /// Write what all processes did and when, in Chrome's JSON, which ui.perfetto.dev shows
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,

    /// Write a page that shows how the job went: steps, devices, collectives, who waited for whom
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    #[command(flatten)]
    control: ControlOptions,

    #[command(flatten)]
    launch: LaunchOptions,

    /// Slices that the processes are divided into, in order; a scheduler may say it, too
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=65536))]
    slices: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Auto,
    Tcp,
    Shm,
    Mpi,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AlgorithmChoice {
    Auto,
    Flat,
    Hierarchical,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Cluster {
    Auto,
    None,
}

/// What encrypts a job.
#[derive(Args)]
pub struct TlsOptions {
    /// Encrypt what processes say to each other, with certificates made of the job's secret, or with those in this folder of
    /// each host: ca.crt, tls.crt, tls.key, as in a Kubernetes secret
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    tls: Option<Option<PathBuf>>,
}

impl TlsOptions {
    /// What was asked for.
    pub fn chosen(&self) -> Option<Tls> {
        self.tls.clone().map(|folder| folder.map_or(Tls::OfToken, Tls::OfFolder))
    }

    /// Checks files that are the same for all processes, as these are on one host.
    fn check(&self) -> Result<(), Failure> {
        match self.chosen() {
            Some(tls @ Tls::OfFolder(_)) => tls.identity(None).map(drop).map_err(join_failure),
            _ => Ok(()),
        }
    }
}

impl JobOptions {
    /// Starts the processes of the job, if that is this process's role and what `check` looks at for their number is in
    /// order: most mistakes show before a process is started, and then only once. Otherwise does this process's part.
    /// `files` are those that the job reads, first the one that it is about; `devices` tells how many devices it needs.
    pub fn run(
        &self,
        files: &[&Path],
        devices: impl FnOnce() -> Result<Option<u32>, Failure>,
        check: impl FnOnce(u32) -> Result<(), Failure>,
        part: impl FnOnce(World, DataPlaneOptions) -> Result<u8, Failure>,
    ) -> Result<u8, Failure> {
        match self.role(devices)? {
            Role::Launcher { processes } => {
                self.launch.check(processes, self.plugin.as_deref())?;
                check(processes)?;
                self.check_shown()?;
                // Other hosts have plugins of their own.
                if !self.launch.are_over_hosts() {
                    plugins::find(self.plugin.as_deref())?;
                    self.tls.check()?;
                }
                self.launch(processes, files)
            }
            Role::Controller(membership) => membership.take_part(self, part),
        }
    }

    /// The files that show how the job went.
    pub fn files(&self) -> Files {
        Files { trace: self.trace.clone(), report: self.report.clone() }
    }

    /// Checks that these can be written, where process 0 writes them.
    fn check_shown(&self) -> Result<(), Failure> {
        if self.trace.is_some() && self.trace == self.report {
            return Err(Failure::usage("--trace and --report: these are two files"));
        }
        if self.launch.are_over_hosts() { Ok(()) } else { self.files().paths().try_for_each(check_writable) }
    }

    /// Whether this process has been started as one of the job, for a program that joins it by itself.
    pub fn is_member(&self) -> Result<bool, Failure> {
        let by_hand = self.coordinator.is_some() && self.process_id.is_some() && self.processes.is_some();
        let is_launcher = self.cluster == Cluster::None || self.launch.are_over_hosts();
        if ControllerEnv::is_set() || by_hand || is_launcher {
            return Ok(ControllerEnv::is_set() || by_hand);
        }
        let detected = cluster::detect(&Environment::of_process()).map_err(Failure::wrong_usage)?;
        Ok(detected.is_some_and(|detected| detected.process_count != Some(1)))
    }

    /// Starts this command again in every process of the job: there it gives way to its program.
    pub fn launch_programs(&self, program: &Path) -> Result<u8, Failure> {
        match self.role(|| Ok(None))? {
            Role::Launcher { processes } => {
                self.check_shown()?;
                // Other hosts have programs of their own.
                if !self.launch.are_over_hosts() {
                    check_program(program)?;
                    self.tls.check()?;
                }
                // One that is looked for on the PATH is there on other hosts, or nowhere.
                let is_file = program.components().count() > 1 || program.is_absolute();
                self.launch(processes, if is_file { std::slice::from_ref(&program) } else { &[] })
            }
            Role::Controller(_) => Err(Failure::usage("this process is part of a job already")),
        }
    }

    /// The environment by which a program that joins the job by itself learns of these options.
    pub fn environment_of_program(&self) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let unheard = [
            ("--transport", self.transport != Transport::Auto),
            ("--timeout", self.timeout.is_some()),
            ("--algorithm", self.algorithm != AlgorithmChoice::Auto),
            ("--ici", self.ici.is_some()),
            ("--plugin-option", !self.plugin_option.is_empty()),
        ];
        if let Some((option, _)) = unheard.iter().find(|(_, given)| *given) {
            return Err(Failure::usage(format!("{option}: a program of its own cannot be told: leave it out")));
        }
        let settings = Settings {
            devices_per_process: self.devices_per_process(),
            slices: self.slices,
            plugin: self.plugin.clone(),
            compilation_cache: self.compilation_cache.clone(),
            rendezvous_timeout: self.rendezvous_timeout,
            stall_timeout: self.stall_timeout,
            tls: self.tls.chosen(),
            files: self.files(),
        };
        let mut environment = settings.to_env();
        if let (Some(coordinator), Some(index), Some(count)) = (&self.coordinator, self.process_id, self.processes) {
            environment.extend(ControllerEnv::place(coordinator, index, count));
            let token = job_token(self.token_file.as_deref())?;
            environment.extend(token.map(|token| (JobToken::VARIABLE, token.reveal().into())));
        }
        Ok(environment)
    }

    /// Starts the processes of the job and waits for its end; `files` as for [`JobOptions::run`].
    pub fn launch(&self, processes: u32, files: &[&Path]) -> Result<u8, Failure> {
        let (slices, writes) = (self.slices.unwrap_or(1), self.files().are_wanted());
        self.launch.launch(processes, self.plugin.as_deref(), slices, files, self.rendezvous_timeout, writes)
    }

    /// Opens the devices of this process and meets the others; `devices` are what the program needs, if there is one.
    pub fn open(&self, world: World, data_plane: DataPlaneOptions, devices: Option<u32>) -> Result<Runtime, Failure> {
        let plugin = plugins::find(self.plugin.as_deref())?;
        let devices = DeviceOptions {
            per_process: devices.or_else(|| self.devices_per_process()),
            create_options: self.plugin_option.clone(),
        };
        let runtime = Runtime::open(world, &plugin.path, devices, data_plane)?;
        if let Some(folder) = &self.compilation_cache {
            runtime.keep_executables(folder)?;
        }
        Ok(runtime)
    }

    /// CPU devices of each process, if that is said.
    pub fn devices_per_process(&self) -> Option<u32> {
        if self.launch.per_chip { Some(1) } else { self.devices_per_process }
    }

    /// What the links carry, if that is said.
    fn links(&self) -> Option<Links> {
        Some(Links { ici: self.ici?, dcn: self.dcn? })
    }

    fn mesh_choice(&self) -> Choice {
        match self.transport {
            Transport::Tcp => Choice::Tcp,
            Transport::Shm => Choice::Shm,
            Transport::Auto | Transport::Mpi => Choice::Auto,
        }
    }

    /// The options on which processes must agree, as facts for [`World::agree`].
    pub fn facts(&self) -> Vec<Fact> {
        let transport = self.transport.to_possible_value().map(|value| value.get_name().to_owned());
        let devices = self.devices_per_process.map_or_else(|| "as the program says".to_owned(), |it| it.to_string());
        let algorithm = self.algorithm.to_possible_value().map(|value| value.get_name().to_owned());
        vec![
            ("--transport".to_owned(), transport.unwrap_or_default()),
            ("--algorithm".to_owned(), algorithm.unwrap_or_default()),
            ("--devices-per-process".to_owned(), devices),
        ]
    }

    fn refuse_missing_transport(&self) -> Result<(), Failure> {
        if self.transport == Transport::Mpi && !cfg!(feature = "mpi") {
            return Err(Failure::usage(
                "--transport mpi: this spmd-run was built without MPI: build it with `cargo install --path . --features \
                 mpi`, which needs an MPI library and libclang (Debian: libopenmpi-dev, libclang-dev)",
            ));
        }
        if self.transport == Transport::Mpi && self.tls.chosen().is_some() {
            return Err(Failure::usage("--tls: MPI sends the data as it is: take --transport tcp or leave --tls out"));
        }
        Ok(())
    }
}

/// Whether a program can be started, where the system will look for it: what is wrong is then said once.
fn check_program(program: &Path) -> Result<(), Failure> {
    let may_run = |path: &Path| {
        rustix::fs::access(path, rustix::fs::Access::EXEC_OK)?;
        if path.is_dir() { Err(rustix::io::Errno::ISDIR) } else { Ok(()) }
    };
    let wrong = |reason: &dyn std::fmt::Display| Failure::usage(format!("{}: {reason}", program.display()));
    if program.components().count() != 1 || program.is_absolute() {
        return may_run(program).map_err(|error| wrong(&std::io::Error::from(error)));
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&folders).any(|folder| may_run(&folder.join(program)).is_ok()) {
        true => Ok(()),
        false => Err(wrong(&format!("no such program on the PATH; one in this folder is ./{}", program.display()))),
    }
}

/// The job's secret, from a file or the environment.
pub(super) fn job_token(file: Option<&Path>) -> Result<Option<JobToken>, Failure> {
    let Some(file) = file else {
        return ControllerEnv::token_from_env().map_err(Failure::wrong_usage);
    };
    let in_file = |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| in_file(&error))?;
    Ok(Some(text.parse().map_err(|error| in_file(&error))?))
}

pub(super) fn join_failure(error: JoinError) -> Failure {
    match error {
        JoinError::Options(_) | JoinError::Identity(_) => Failure::wrong_usage(error),
        _ => Failure::peer(error),
    }
}

/// Who comes from mpirun writes `-np 4`, of which clap takes the p for the number.
pub(super) fn count_of_processes(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| (1..=65536).contains(count));
    count.ok_or_else(|| "it takes a number of processes from 1 to 65536, as in -n 4".to_owned())
}

/// `NAME=VALUE`
fn plugin_option(text: &str) -> Result<(String, Value), String> {
    let (name, value) =
        text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("not of the form NAME=VALUE")?;
    if runtime::OPTIONS_OF_JOB.contains(&name) {
        return Err(format!("{name} follows from the job: see -n and --devices-per-process"));
    }
    Ok((name.to_owned(), Value::parse(name, value)))
}

/// A year.
const MAX_SECONDS: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A number of seconds, fractions allowed.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() && duration <= MAX_SECONDS => Ok(duration),
        _ => Err(format!("must be more than 0 and at most {} seconds", MAX_SECONDS.as_secs())),
    }
}
