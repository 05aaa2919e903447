//! Options that every command with controller processes takes, and who this process is under them.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use spmd_run::launch::{self, ControllerEnv, LocalJob};
use spmd_run::rendezvous::{self, Abort, JobToken, JoinError, JoinOptions, Rendezvous};
use spmd_run::runtime::{DataPlaneOptions, World};
use spmd_run::transport::mesh::Choice;

use super::{Failure, exit};

#[derive(Args)]
pub struct JobOptions {
    /// Controller processes, one per host by default
    #[arg(short = 'n', long = "processes", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), allow_negative_numbers = true)]
    processes: Option<u32>,

    /// CPU devices per process [default: the program's devices ÷ N, else 1]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=2048), allow_negative_numbers = true)]
    pub devices_per_process: Option<u32>,

    /// PJRT plugin: a known name or the path of a shared library
    #[arg(long, value_name = "NAME|PATH")]
    pub plugin: Option<String>,

    /// Data plane between processes; auto takes shared memory where two processes can have it, else TCP
    #[arg(long, value_enum, default_value = "auto")]
    transport: Transport,

    /// Join the job whose process 0 listens at this address (started by hand, with --process-id and -n)
    #[arg(long, value_name = "HOST:PORT", requires = "process_id", requires = "processes")]
    coordinator: Option<String>,

    /// This process's index in a job started by hand
    #[arg(long, value_name = "I", requires = "coordinator", allow_negative_numbers = true)]
    process_id: Option<u32>,

    /// File with the secret that all processes of a job started by hand share [default: $SPMD_JOB_TOKEN]
    #[arg(long, value_name = "FILE", requires = "coordinator")]
    token_file: Option<PathBuf>,

    /// Seconds until all processes must have joined
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds, allow_negative_numbers = true)]
    pub rendezvous_timeout: Duration,

    /// Seconds that a process waits for the others in a collective or at a barrier
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds, allow_negative_numbers = true)]
    pub stall_timeout: Duration,

    /// Seconds until the whole job must have ended
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub timeout: Option<Duration>,

    #[command(flatten)]
    later: LaterOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Auto,
    Tcp,
    Shm,
    #[value(hide = true)]
    Mpi,
}

/// Options whose names are taken, so that they get a better answer than "unknown flag".
#[derive(Args)]
struct LaterOptions {
    #[arg(long, hide = true)]
    hosts: Option<String>,
    #[arg(long, hide = true)]
    hostfile: Option<PathBuf>,
    #[arg(long, hide = true)]
    slices: Option<u32>,
}

/// Who this process is.
pub enum Role {
    /// The one that starts the controllers.
    Launcher { processes: u32 },
    /// A controller.
    Controller(Membership),
}

/// How a controller takes part in its job.
pub enum Membership {
    /// The job has one process.
    Alone,
    /// The job has several, of which the launcher started this one.
    Launched(JoinOptions),
    /// The job has several, of which someone started this one by hand.
    ByHand(JoinOptions),
}

impl JobOptions {
    /// Decides who this process is, by the options and the environment.
    pub fn role(&self) -> Result<Role, Failure> {
        self.refuse_later_options()?;
        if let Some(environment) = ControllerEnv::from_env().map_err(Failure::wrong_usage)? {
            let ControllerEnv { coordinator, listener, process_index, process_count, token } = environment;
            if process_count == 1 {
                return Ok(Role::Controller(Membership::Alone));
            }
            if let Some(processes) = self.processes.filter(|&processes| processes != process_count) {
                return Err(Failure::usage(format!(
                    "-n {processes}: the launcher started {process_count} processes: leave -n out"
                )));
            }
            return Ok(Role::Controller(Membership::Launched(JoinOptions {
                host_coordinator: listener,
                token,
                ..JoinOptions::new(coordinator, process_index, process_count, self.rendezvous_timeout)
            })));
        }
        if let (Some(coordinator), Some(process_index), Some(process_count)) =
            (&self.coordinator, self.process_id, self.processes)
        {
            let host_coordinator =
                if process_index == 0 { Some(rendezvous::listen(coordinator).map_err(join_failure)?) } else { None };
            return Ok(Role::Controller(Membership::ByHand(JoinOptions {
                host_coordinator,
                token: self.token()?,
                ..JoinOptions::new(coordinator.clone(), process_index, process_count, self.rendezvous_timeout)
            })));
        }
        // A single controller has a launcher too, which is there to tell the story when a plugin ends the process.
        Ok(Role::Launcher { processes: self.processes.unwrap_or(1) })
    }

    fn token(&self) -> Result<Option<JobToken>, Failure> {
        let Some(file) = &self.token_file else {
            return ControllerEnv::token_from_env().map_err(Failure::wrong_usage);
        };
        let in_file = |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|error| in_file(&error))?;
        Ok(Some(text.parse().map_err(|error| in_file(&error))?))
    }

    fn refuse_later_options(&self) -> Result<(), Failure> {
        let later = [
            ("--hosts", self.later.hosts.is_some()),
            ("--hostfile", self.later.hostfile.is_some()),
            ("--slices", self.later.slices.is_some()),
            ("--transport mpi", self.transport == Transport::Mpi),
        ];
        match later.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Failure::usage(format!("{option} is not part of this version"))),
            None => Ok(()),
        }
    }
}

impl Membership {
    /// Meets the other processes, does this process's part of the job, and leaves or ends the job with them.
    pub fn take_part(
        self,
        job: &JobOptions,
        part: impl FnOnce(World, DataPlaneOptions) -> Result<u8, Failure>,
    ) -> Result<u8, Failure> {
        let (options, launched) = match self {
            Membership::Alone => {
                watch_time(job.timeout, World::alone(), false);
                return part(World::alone(), DataPlaneOptions::default());
            }
            Membership::Launched(options) => (options, true),
            Membership::ByHand(options) => (options, false),
        };
        let data_plane = DataPlaneOptions {
            address: address_towards(&options.coordinator),
            secret: options.token.as_ref().map_or([0; 32], |token| token.derive_key("spmd-run 2026 data plane")),
            transport: match job.transport {
                Transport::Tcp => Choice::Tcp,
                Transport::Shm => Choice::Shm,
                Transport::Auto | Transport::Mpi => Choice::Auto,
            },
        };
        let world = World::of(Rendezvous::join(options).map_err(join_failure)?, job.stall_timeout);
        watch_time(job.timeout, world.clone(), launched);
        leave_when_aborted(&world, launched);
        let code = part(world.clone(), data_plane).and_then(|code| {
            world.shutdown().map_err(Failure::peer)?;
            Ok(code)
        });
        code.map_err(|failure| match world.abort(&failure.message()) {
            Some(first) => of_other(&first, world.process_index(), launched),
            None => failure,
        })
    }
}

/// Starts this very command in every controller process and waits for the job's end. `subject` is what the job is
/// about, for messages.
pub fn launch(processes: u32, subject: Option<&Path>) -> Result<u8, Failure> {
    let program = std::env::current_exe().map_err(Failure::program)?;
    let job = LocalJob { args: std::env::args_os().skip(1).collect(), ..LocalJob::new(processes, program) };
    let outcome = launch::local(&job).map_err(Failure::program)?;
    // A process that fails by itself has said why.
    if !(0..=3).contains(&outcome.exit_code()) {
        let subject = subject.map_or(String::new(), |subject| format!("{}: ", subject.display()));
        eprintln!("error: {subject}{outcome}{}", advice(&outcome));
    }
    Ok(outcome.exit_code())
}

/// What to do when a signal ended a controller that nobody sent it.
fn advice(outcome: &launch::Outcome) -> &'static str {
    let launch::Outcome::Failed(failed) = outcome else { return "" };
    if failed.phase.is_none() {
        return "";
    }
    match failed.status.signal() {
        Some(libc::SIGKILL) => {
            "\nif nobody killed it, the system did, as memory ran out: see dmesg, and take fewer processes or a smaller \
             program"
        }
        Some(libc::SIGABRT | libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP) => {
            "\nthe plugin crashed: try another version of it (--plugin), and report this program to its makers"
        }
        _ => "",
    }
}

fn join_failure(error: JoinError) -> Failure {
    match error {
        JoinError::Options(_) => Failure::wrong_usage(error),
        _ => Failure::peer(error),
    }
}

/// The address of the interface that leads to the coordinator; loopback where that cannot be told.
fn address_towards(coordinator: &str) -> IpAddr {
    // Connecting a datagram socket sends nothing: it only chooses a route.
    let route = UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| {
        socket.connect(coordinator)?;
        socket.local_addr()
    });
    route.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}

/// The failure of this process because of another one's. In a job with a launcher the message is shown once: by the
/// process where the failure began or, when that is gone, by the first of the others.
fn of_other(abort: &Abort, this: u32, launched: bool) -> Failure {
    let failure = Failure::peer(anyhow::Error::msg(abort.to_string()));
    let first_of_others = if abort.process_index == Some(0) { 1 } else { 0 };
    if launched && (abort.reported || this != first_of_others) { failure.silent() } else { failure }
}

/// How long a process may take to end by itself when the job has failed elsewhere.
const GRACE: Duration = Duration::from_secs(1);

/// Ends this process when another one has ended the job, even if it is stuck in the program.
fn leave_when_aborted(world: &World, launched: bool) {
    let this = world.process_index();
    world.on_abort(move |abort| {
        if abort.process_index == Some(this) {
            return;
        }
        let failure = of_other(abort, this, launched);
        std::thread::spawn(move || {
            std::thread::sleep(GRACE);
            exit(failure.report());
        });
    });
}

/// Ends the job when its time is over.
fn watch_time(limit: Option<Duration>, world: World, launched: bool) {
    let Some(limit) = limit else { return };
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        let failure =
            Failure::program(anyhow::anyhow!("the job did not end within {} s (--timeout)", limit.as_secs_f64()));
        exit(match world.abort(&failure.message()) {
            Some(first) => of_other(&first, world.process_index(), launched).report(),
            None => failure.report(),
        });
    });
}

/// A year.
const MAX_SECONDS: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A number of seconds, fractions allowed.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() && duration <= MAX_SECONDS => Ok(duration),
        _ => Err(format!("must be more than 0 and at most {} seconds", MAX_SECONDS.as_secs())),
    }
}
