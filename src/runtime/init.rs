//! Programs that join their job by themselves.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::PoisonError;

use crate::cluster::{self, ClusterError, Detected, Environment, Part};
use crate::launch::{ControllerEnv, EnvironmentError, PEER_FAILED, PROGRAM_FAILED, Settings};
use crate::pjrt::Value;
use crate::plugins::{self, FindError};
use crate::rendezvous::{self, Heartbeat, JoinError, JoinOptions};
use crate::transport::mesh::Choice;

use super::ending::{exit, show_failure, with_causes};
use super::join::{join, listen_for_peers};
use super::{DataPlaneOptions, DeviceOptions, Runtime, RuntimeError, World, WriteError};

/// How a process joins its job; see [`Runtime::builder`].
#[derive(Clone, Debug, Default)]
pub struct RuntimeBuilder {
    devices_per_process: Option<u32>,
    plugin: Option<String>,
    compilation_cache: Option<PathBuf>,
    plugin_options: Vec<(String, Value)>,
    alone: bool,
}

/// Why a process cannot take part in its job.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum InitError {
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Plugin(#[from] FindError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("{processes} processes cannot be divided into {slices} slices of equal size")]
    Slices { processes: u32, slices: u32 },
    #[error("{scheduler} started this process, {reason}: start the program with spmd-run, which has options for it")]
    Scheduler { scheduler: String, reason: String },
}

impl Runtime {
    /// Joins the job that this process is part of, and opens its devices: as a process that `spmd-run -n N -- PROGRAM`
    /// started, as one of a scheduler's (mpirun, Slurm, torchrun, GKE TPU, Kubernetes: [`cluster`]), or else
    /// alone. It is `jax.distributed.initialize` and the first look at `jax.devices()` in one.
    ///
    /// The plugin is the one that `--plugin` or `PJRT_PLUGIN_LIBRARY_PATH` names, or the usual one; CPU plugins make as many
    /// devices as `--devices-per-process` says, one if nothing does. When all is done, all processes call
    /// [`Runtime::shutdown`]; a process that ends without it ends the job. [`run`] takes care of both.
    ///
    /// # Errors
    /// The environment contradicts itself, there is no plugin, or the processes cannot meet.
    pub fn init() -> Result<Runtime, InitError> {
        Runtime::builder().init()
    }

    /// As [`Runtime::init`], with some things decided by the program.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Devices of the whole job.
    pub fn device_count(&self) -> usize {
        self.topology.device_count()
    }

    /// Devices of this process.
    pub fn local_device_count(&self) -> usize {
        self.local_device_ids().len()
    }

    /// Slices of the job: their devices share a fast interconnect.
    pub fn slice_count(&self) -> usize {
        self.topology.slice_count()
    }

    /// This process, from 0.
    pub fn process_index(&self) -> u32 {
        self.world.process_index()
    }

    /// Processes of the job.
    pub fn process_count(&self) -> u32 {
        self.world.process_count()
    }

    /// Leaves the job in order, once all processes want to. What goes on in the background, as runs of programs and the writing
    /// of a checkpoint, is finished first.
    ///
    /// # Errors
    /// That has failed, another process fails, or does not come.
    pub fn shutdown(&self) -> Result<(), RuntimeError> {
        self.flights.finish()?;
        let unfinished = std::mem::take(&mut *self.unfinished.lock().unwrap_or_else(PoisonError::into_inner));
        for finish in unfinished {
            finish().map_err(RuntimeError::Background)?;
        }
        Ok(self.world.shutdown()?)
    }
}

impl RuntimeBuilder {
    /// Devices of this process where the plugin can choose (CPU); what the launcher says counts more.
    pub fn devices_per_process(mut self, count: u32) -> Self {
        self.devices_per_process = Some(count);
        self
    }

    /// The plugin, a known name or a path; what the launcher says counts more.
    pub fn plugin(mut self, plugin: impl Into<String>) -> Self {
        self.plugin = Some(plugin.into());
        self
    }

    /// A folder with executables of earlier jobs ([`Runtime::keep_executables`]); what the launcher says counts more.
    pub fn compilation_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.compilation_cache = Some(folder.into());
        self
    }

    /// A create option of the plugin's own, such as `memory_fraction` for GPUs.
    pub fn plugin_option(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.plugin_options.push((name.into(), value.into()));
        self
    }

    /// A job of this process alone, whoever started it.
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Joins the job, as [`Runtime::init`].
    ///
    /// # Errors
    /// As of [`Runtime::init`].
    pub fn init(self) -> Result<Runtime, InitError> {
        quieten_plugins();
        let settings = Settings::from_env()?;
        let plugin = settings.plugin.clone().or(self.plugin);
        let plugin: PathBuf = plugins::find(plugin.as_deref())?.path;
        let per_process = settings.devices_per_process.or(self.devices_per_process);
        let devices = DeviceOptions { per_process, create_options: self.plugin_options };
        let (world, data_plane) = if self.alone { alone(&settings)? } else { meet(&settings)? };
        let runtime = Runtime::open(world, &plugin, devices, data_plane)?;
        if let Some(folder) = settings.compilation_cache.or(self.compilation_cache) {
            runtime.keep_executables(&folder)?;
        }
        Ok(runtime)
    }
}

fn alone(settings: &Settings) -> Result<(World, DataPlaneOptions), InitError> {
    Ok((World::alone().show_in(&settings.files)?, DataPlaneOptions::default()))
}

/// Finds out which process of which job this is, and meets the others.
fn meet(settings: &Settings) -> Result<(World, DataPlaneOptions), InitError> {
    let (mut options, launched) = match ControllerEnv::from_env()? {
        Some(ControllerEnv { process_count: 1, .. }) => return alone(settings),
        Some(place) => {
            let ControllerEnv { coordinator, listener, process_index, process_count, token } = place;
            let host_coordinator = match listener {
                // Who starts processes by hand leaves no socket.
                None if process_index == 0 => Some(rendezvous::listen(&coordinator)?),
                listener => listener,
            };
            let options = JoinOptions {
                host_coordinator,
                token,
                tls: settings.tls.clone(),
                heartbeat: Heartbeat::within(settings.stall_timeout),
                ..JoinOptions::new(coordinator, process_index, process_count, settings.rendezvous_timeout)
            };
            (options, true)
        }
        None => match cluster::detect(&Environment::of_process())? {
            Some(detected) if detected.process_count != Some(1) => (of_scheduler(detected, settings)?, false),
            _ => return alone(settings),
        },
    };
    if let Some(slices) = settings.slices {
        let processes = options.process_count;
        let slice = Part::slice(options.process_index, processes, slices);
        options.slice = slice.ok_or(InitError::Slices { processes, slices })?.index;
    }
    settings.files.start_recording(options.process_index, options.process_count);
    let (world, data_plane) = join(options, None, settings.stall_timeout, Choice::Auto)?;
    let world = world.show_in(&settings.files)?;
    world.end_with_others(launched);
    Ok((world, data_plane))
}

fn of_scheduler(detected: Detected, settings: &Settings) -> Result<JoinOptions, InitError> {
    let scheduler = detected.scheduler.to_string();
    let wrong = |reason: String| InitError::Scheduler { scheduler: scheduler.clone(), reason };
    let on_one_host = detected.on_one_host();
    let process_count =
        detected.process_count.ok_or_else(|| wrong("and does not tell how many processes there are".to_owned()))?;
    let coordinator = detected.coordinator.map_err(wrong)?;
    let token = match detected.token {
        Some(token) => Some(token),
        None => ControllerEnv::token_from_env()?,
    };
    let host_coordinator = match detected.process_index {
        0 => Some(listen_for_peers(&coordinator, token.is_some() && !on_one_host)?),
        _ => None,
    };
    Ok(JoinOptions {
        host_coordinator,
        token,
        tls: settings.tls.clone(),
        heartbeat: Heartbeat::within(settings.stall_timeout),
        slice: detected.slice.map_or(0, |slice| slice.index),
        ..JoinOptions::new(coordinator, detected.process_index, process_count, settings.rendezvous_timeout)
    })
}

/// Has XLA log errors only, as it logs every client and every dump otherwise, unless the user has chosen. Nothing is done
/// where the process has several threads, one of which may be reading the environment.
pub fn quieten_plugins() {
    const LOG_LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";
    let is_only_thread = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    if is_only_thread && std::env::var_os(LOG_LEVEL).is_none() {
        // SAFETY: nothing else reads or writes the environment, as there is no other thread.
        unsafe { std::env::set_var(LOG_LEVEL, "2") };
    }
}

/// The `main` of a program for many processes: joins the job ([`Runtime::init`]), does the process's part of it, and leaves
/// or ends the job with the others.
///
/// A failure is printed once in the job, by the process where it began, and all processes end. Their exit codes are those of
/// `spmd-run`: 1 the program failed, 3 another process did.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     spmd_run::run(|runtime| {
///         println!("process {} sees {} devices", runtime.process_index(), runtime.device_count());
///         Ok(())
///     })
/// }
/// ```
pub fn run(part: impl FnOnce(&Runtime) -> Result<(), Box<dyn Error>>) -> ExitCode {
    let runtime = match Runtime::init() {
        Ok(runtime) => runtime,
        Err(error) => {
            show_failure(&with_causes(&error));
            let is_of_peer = matches!(&error, InitError::Join(_))
                || matches!(&error, InitError::Runtime(error) if error.is_of_peer());
            return ExitCode::from(if is_of_peer { PEER_FAILED } else { PROGRAM_FAILED });
        }
    };
    let outcome = part(&runtime).and_then(|()| Ok(runtime.shutdown()?));
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    let message = with_causes(&*error);
    let (message, code) = match runtime.world.abort(&message) {
        Some(first) => (runtime.world.message_of(&first, ControllerEnv::is_set()), PEER_FAILED),
        None => (Some(message), PROGRAM_FAILED),
    };
    message.iter().for_each(|message| show_failure(message));
    exit(code)
}
