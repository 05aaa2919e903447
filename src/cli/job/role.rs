//! Who a process is: the one that starts the others, one that it or a scheduler has started, or one started by hand.

use spmd_run::cluster::{self, Detected, Environment, Part};
use spmd_run::launch::ControllerEnv;
use spmd_run::rendezvous::{Heartbeat, JoinOptions};
use spmd_run::runtime;

use super::{Cluster, JobOptions, Membership, Transport, job_token};
use crate::cli::Failure;
use crate::cli::mpi::{self, Meeting};

/// Who this process is.
#[allow(clippy::large_enum_variant, reason = "a process has one")]
pub enum Role {
    /// The one that starts the controllers.
    Launcher { processes: u32 },
    /// A controller.
    Controller(Box<Membership>),
}

impl JobOptions {
    /// Decides who this process is, by the options and the environment; `devices` as for [`JobOptions::run`].
    pub fn role(&self, devices: impl FnOnce() -> Result<Option<u32>, Failure>) -> Result<Role, Failure> {
        self.refuse_missing_transport()?;
        self.launch.check_usage()?;
        if let Some(environment) = ControllerEnv::from_env().map_err(Failure::wrong_usage)? {
            let ControllerEnv { coordinator, listener, process_index, process_count, token } = environment;
            if process_count == 1 && !self.control.is_watched() {
                return Ok(Role::Controller(Membership::Alone.into()));
            }
            if let Some(processes) = self.processes.filter(|&processes| processes != process_count) {
                return Err(Failure::usage(format!(
                    "-n {processes}: the launcher started {process_count} processes: leave -n out"
                )));
            }
            let options = self.control.watch(JoinOptions {
                host_coordinator: listener,
                token,
                ..self.join_options(coordinator, process_index, process_count)?
            })?;
            return Ok(Role::Controller(Membership::Launched(options).into()));
        }
        let processes = || self.launch.processes(self.processes, self.plugin.as_deref(), devices);
        if self.launch.are_over_hosts() {
            let launcher = if self.launch.is_by_ray() { "--launcher ray" } else { "--hosts" };
            self.refuse_options_of_members(&format!("{launcher} starts all processes itself"))?;
            let processes = processes()?;
            let shares = self.launch.shares(processes)?;
            let of_shares = shares.map(|shares| shares.iter().map(|share| share.processes).sum());
            return self.launcher(of_shares.or(processes).unwrap_or(1));
        }
        if let (Some(coordinator), Some(process_index), Some(process_count)) =
            (&self.coordinator, self.process_id, self.processes)
        {
            if self.transport == Transport::Mpi {
                return Err(Failure::usage(
                    "--transport mpi: MPI knows which process this is: leave --process-id and -n out, and start with mpirun",
                ));
            }
            let token = job_token(self.token_file.as_deref())?;
            let host_coordinator =
                if process_index == 0 { Some(self.control.listen(coordinator, token.is_some())?) } else { None };
            let options = JoinOptions {
                host_coordinator,
                token,
                ..self.join_options(coordinator.clone(), process_index, process_count)?
            };
            return Ok(Role::Controller(Membership::ByHand(self.control.watch(options)?, None).into()));
        }
        let detected = match self.cluster {
            Cluster::Auto => cluster::detect(&Environment::of_process()).map_err(Failure::wrong_usage)?,
            Cluster::None => None,
        };
        match detected {
            Some(detected) if detected.process_count != Some(1) => Ok(Role::Controller(self.join(detected)?.into())),
            single => self.launch_here(single.as_ref(), processes()?.unwrap_or(1)),
        }
    }

    /// A single controller has a launcher too, which is there to tell the story when a plugin ends the process.
    fn launch_here(&self, single: Option<&Detected>, processes: u32) -> Result<Role, Failure> {
        self.refuse_options_of_members(
            "no scheduler started this process, and joining by hand needs all of --coordinator, --process-id and -n",
        )?;
        if self.transport == Transport::Mpi && processes > 1 {
            return Err(Failure::usage(format!(
                "--transport mpi: MPI did not start this process: mpirun -n {processes} spmd-run … without -n"
            )));
        }
        if let Some(single) = single.filter(|_| processes > 1) {
            tracing::info!("{} started one process: -n {processes} starts {processes} on this host", single.scheduler);
        }
        self.launcher(processes)
    }

    /// The one that starts this many processes.
    fn launcher(&self, processes: u32) -> Result<Role, Failure> {
        slice_of(0, processes, self.slices.unwrap_or(1))?;
        // On a Ray cluster they are set anew.
        let of_others = std::env::var(cluster::MEGASCALE_NUM_SLICES)
            .ok()
            .filter(|count| *count != self.slices.unwrap_or(1).to_string() && !self.launch.is_by_ray());
        if let Some(count) = of_others {
            tracing::warn!(
                "{}={count} is set, and this job has {} slice(s): it may be left over from another job; give --slices",
                cluster::MEGASCALE_NUM_SLICES,
                self.slices.unwrap_or(1)
            );
        }
        Ok(Role::Launcher { processes })
    }

    /// Refuses what is for processes that join a job.
    fn refuse_options_of_members(&self, reason: &str) -> Result<(), Failure> {
        let of_members = [
            ("--coordinator", self.coordinator.is_some()),
            ("--process-id", self.process_id.is_some()),
            ("--token-file", self.token_file.is_some()),
        ];
        match of_members.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Failure::usage(format!("{option}: {reason}"))),
            None => Ok(()),
        }
    }

    /// Takes this process's place in the job of a scheduler.
    fn join(&self, mut detected: Detected) -> Result<Membership, Failure> {
        let scheduler = detected.scheduler;
        let process_index = detected.process_index;
        let process_count = self.process_count_of(&detected)?;
        if let Some(asked) = self.process_id.filter(|&asked| asked != process_index) {
            return Err(Failure::usage(format!(
                "--process-id {asked}: {scheduler} says that this is process {process_index}: leave it out"
            )));
        }
        if let Some(coordinator) = &self.coordinator {
            detected.coordinator = Ok(coordinator.clone());
        }
        let is_given = self.coordinator.is_some();
        let token = job_token(self.token_file.as_deref())?.or(detected.token.take());
        let Meeting { host_coordinator, token, session } =
            mpi::meet(&mut detected, is_given, self.transport == Transport::Mpi, token)?;
        let coordinator = detected.coordinator.clone().map_err(|reason| {
            Failure::usage(format!("{scheduler} started this process, {reason}: give --coordinator HOST:PORT"))
        })?;
        if detected.local.is_some() && !detected.on_one_host() && runtime::is_loopback(&coordinator) {
            return Err(Failure::usage(format!(
                "the coordinator {coordinator} is a loopback address, which leads every host to itself, and {scheduler} \
                 started processes on several: give the address of process 0's host"
            )));
        }
        let host_coordinator = match (host_coordinator, process_index) {
            (None, 0) => {
                let is_shared = token.is_some() && !detected.on_one_host();
                Some(self.control.listen(&coordinator, is_shared)?)
            }
            (listener, _) => listener,
        };
        if process_index == 0 {
            tracing::info!("{detected}");
        } else {
            tracing::debug!("{detected}");
        }
        let mut options = JoinOptions {
            host_coordinator,
            token,
            expected_hosts: detected.hosts,
            ..self.join_options(coordinator, process_index, process_count)?
        };
        if let Some(slice) = detected.slice {
            if let Some(slices) = self.slices.filter(|&slices| slices != slice.count) {
                return Err(Failure::usage(format!(
                    "--slices {slices}: {scheduler} says that there are {}: leave it out",
                    slice.count
                )));
            }
            options.slice = slice.index;
        }
        Ok(Membership::ByHand(self.control.watch(options)?, session))
    }

    /// How many processes a scheduler has started.
    fn process_count_of(&self, detected: &Detected) -> Result<u32, Failure> {
        let scheduler = detected.scheduler;
        match (detected.process_count, self.processes) {
            (Some(there), Some(asked)) if there != asked => Err(Failure::usage(format!(
                "-n {asked}: {scheduler} started {there} processes: leave -n out, or give --cluster none to start \
                 {asked} processes here"
            ))),
            (Some(count), _) | (None, Some(count)) => Ok(count),
            (None, None) => Err(Failure::usage(format!(
                "{scheduler} started this process and does not tell how many there are: give -n, or --cluster none \
                 to run here alone"
            ))),
        }
    }

    /// What a process says when it joins, as far as the options go.
    fn join_options(
        &self,
        coordinator: String,
        process_index: u32,
        process_count: u32,
    ) -> Result<JoinOptions, Failure> {
        Ok(JoinOptions {
            slice: slice_of(process_index, process_count, self.slices.unwrap_or(1))?,
            tls: self.tls.chosen(),
            heartbeat: Heartbeat::within(self.stall_timeout),
            ..JoinOptions::new(coordinator, process_index, process_count, self.rendezvous_timeout)
        })
    }
}

/// The slice of a process, when all are divided into this many.
pub fn slice_of(process_index: u32, process_count: u32, slices: u32) -> Result<u32, Failure> {
    let slice = Part::slice(process_index, process_count, slices);
    let uneven =
        || format!("--slices {slices}: {process_count} process(es) cannot be divided into that many of equal size");
    Ok(slice.ok_or_else(|| Failure::usage(uneven()))?.index)
}
