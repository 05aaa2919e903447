//! What a controller does for its job as a member of it: it meets the others, and leaves or ends the job with them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use spmd_run::collective::Algorithm;
use spmd_run::rendezvous::JoinOptions;
use spmd_run::runtime::{self, DataPlaneOptions, World, WorldError};

use super::{AlgorithmChoice, JobOptions, join_failure};
use crate::cli::Failure;
use crate::cli::mpi::{self, Session};

/// How a controller takes part in its job.
#[allow(clippy::large_enum_variant, reason = "there is one of them")]
pub enum Membership {
    /// The job has one process.
    Alone,
    /// The job has several, of which the launcher started this one.
    Launched(JoinOptions),
    /// The job has several, of which someone started this one by hand, or a scheduler did.
    ByHand(JoinOptions, Option<Session>),
}

impl Membership {
    /// Meets the other processes, does this process's part of the job, and leaves or ends the job with them.
    pub fn take_part(
        self,
        job: &JobOptions,
        part: impl FnOnce(World, DataPlaneOptions) -> Result<u8, Failure>,
    ) -> Result<u8, Failure> {
        let (options, launched, session) = match self {
            Membership::Alone => {
                let world = World::alone().show_in(&job.files()).map_err(Failure::program)?;
                watch_time(job.timeout, world.clone(), false);
                save_when_stopped(job, &world)?;
                let done = part(world.clone(), DataPlaneOptions::default());
                let done = done.and_then(|code| world.shutdown().map(|()| code).map_err(of_end));
                return done.inspect_err(|failure| drop(world.abort(&failure.message())));
            }
            Membership::Launched(options) => (options, true, None),
            Membership::ByHand(options, session) => (options, false, session),
        };
        let bind = job.control.address()?;
        let files = job.files();
        files.start_recording(options.process_index, options.process_count);
        let (world, mut data_plane) =
            runtime::join(options, bind, job.stall_timeout, job.mesh_choice()).map_err(join_failure)?;
        data_plane.algorithm = match job.algorithm {
            AlgorithmChoice::Auto => Algorithm::Auto,
            AlgorithmChoice::Flat => Algorithm::Flat,
            AlgorithmChoice::Hierarchical => Algorithm::Hierarchical,
        };
        data_plane.links = job.links();
        let world = world.show_in(&files).map_err(Failure::program)?;
        if let Some(session) = &session {
            data_plane.transport = mpi::carrier(session);
        }
        watch_time(job.timeout, world.clone(), launched);
        save_when_stopped(job, &world)?;
        world.end_with_others(launched);
        let code = part(world.clone(), data_plane).and_then(|code| {
            world.shutdown().map_err(of_end)?;
            session.iter().for_each(mpi::finish);
            Ok(code)
        });
        code.inspect_err(|_| end_alone()).map_err(|failure| match world.abort(&failure.message()) {
            Some(first) => Failure::of_other(world.message_of(&first, launched)),
            None => failure,
        })
    }
}

/// A job that could not be left in order, or not leave what it was to.
fn of_end(error: WorldError) -> Failure {
    match error {
        WorldError::Write(error) => Failure::program(error),
        error => Failure::peer(error),
    }
}

/// Returns in the thread that comes first. What else fails then does so as the job is being ended, and tells nothing new.
fn end_alone() {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    while IS_ENDING.swap(true, Ordering::Relaxed) {
        std::thread::sleep(Duration::MAX);
    }
}

/// Ends the job when its time is over.
fn watch_time(limit: Option<Duration>, world: World, launched: bool) {
    let Some(limit) = limit else { return };
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        end_alone();
        let failure =
            Failure::program(anyhow::anyhow!("the job did not end within {} s (--timeout)", limit.as_secs_f64()));
        runtime::exit(match world.abort(&failure.message()) {
            Some(first) => Failure::of_other(world.message_of(&first, launched)).report(),
            None => failure.report(),
        });
    });
}

/// Has a process that is stopped by a signal save what it has recorded before it ends.
fn save_when_stopped(job: &JobOptions, world: &World) -> Result<(), Failure> {
    if !job.files().are_wanted() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::program)?;
    let world = world.clone();
    std::thread::spawn(move || {
        for signal in &mut signals {
            world.save_trace();
            // Ends the process.
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}
