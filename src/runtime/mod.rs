//! Runs programs on the devices of a job: the global device view, compiled programs, and arrays in and out of them.

mod agreement;
mod array;
mod arrays;
pub mod bridge;
mod compilation;
mod device_list;
mod ending;
mod error;
mod executable;
mod flight;
mod gathering;
mod init;
mod join;
mod links;
pub mod multihost;
mod native;
mod opening;
mod pipeline;
mod plan;
mod preemption;
mod prepared;
mod program;
mod topology;
mod world;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::collective::{CollectiveSpec, Communicator, ProgramCollectives};
use crate::pjrt::{Client, Plugin};
use crate::transport::Transport;
use compilation::CompilationCache;
use device_list::DeviceList;
use flight::Flights;

pub use agreement::{Disagreement, Fact};
pub use array::{Array, ArrayError, Shard};
pub use arrays::{Arguments, GlobalArray};
pub use ending::{exit, show_failure, with_causes};
pub use error::{ArgumentError, RuntimeError, StepError};
pub use executable::{Executable, Results, StepTimes};
pub use gathering::WriteError;
pub use init::{InitError, RuntimeBuilder, quieten_plugins, run};
pub use join::{is_loopback, join, listen_for_peers};
pub use links::JobLinks;
pub use native::{DeviceOptions, OPTIONS_OF_JOB};
pub use opening::{DataPlaneOptions, Opening};
pub use pipeline::{Pipeline, program_of_one_device};
pub use plan::{Plan, PlanError, Request};
pub use program::Program;
pub use topology::{Device, Process, Topology, TopologyError};
pub use world::{World, WorldError};

/// One process's share of a job: its devices, the global view, and the way to the other processes.
pub struct Runtime {
    world: World,
    client: Client,
    /// Whether the plugin runs whole programs over the devices of all processes.
    is_native: bool,
    topology: Topology,
    /// `None` in a job of one process.
    transport: Option<Arc<dyn Transport>>,
    communicator: Arc<Communicator>,
    links: Option<JobLinks>,
    compilation_cache: OnceLock<CompilationCache>,
    /// All devices of the job.
    devices: Arc<DeviceList>,
    /// Those of meshes that have a part of them.
    parts: Mutex<Vec<Arc<DeviceList>>>,
    preemption: OnceLock<preemption::Preemption>,
    unfinished: Mutex<Vec<Unfinished>>,
    /// Goes after the communicator, without which no collective can keep an execution from its end.
    flights: Flights,
    opening: Opening,
}

/// Something that goes on in the background, to be waited for; its error is a sentence.
type Unfinished = Box<dyn FnOnce() -> Result<(), String> + Send>;

impl Runtime {
    /// Keeps executables in this folder and finds those of earlier jobs there, as JAX does in its compilation cache. What is in
    /// it is executed, so it must belong to users who are trusted. A folder once set stays.
    ///
    /// # Errors
    /// It cannot be made or written to.
    pub fn keep_executables(&self, folder: &Path) -> Result<(), RuntimeError> {
        let wrong = |source| RuntimeError::CompilationCache { folder: folder.to_owned(), source };
        let cache = CompilationCache::open(folder).map_err(wrong)?;
        self.compilation_cache.get_or_init(|| cache);
        Ok(())
    }

    /// How long the steps of opening took.
    pub fn opening(&self) -> Opening {
        self.opening
    }

    /// The processes of the job.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The global device view.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// This process's client of the plugin.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Global ids of this process's devices.
    pub fn local_device_ids(&self) -> Vec<u32> {
        self.topology.device_ids(self.world.process_index())
    }

    /// Registers collectives that no program has, to be called without the plugin. Every process registers the same ones
    /// in the same order.
    pub fn collectives(&self, specs: Vec<CollectiveSpec>) -> Result<Arc<ProgramCollectives>, RuntimeError> {
        Ok(self.communicator.program(self.devices.next_program(), specs)?)
    }

    /// What data travels by between processes; `None` in a job of one process.
    pub fn transport_name(&self) -> Option<&'static str> {
        self.transport.as_ref().map(|transport| transport.name())
    }

    /// What the links inside and between islands carry, by which algorithms are chosen; `None` where nothing is to be chosen.
    pub fn links(&self) -> Option<JobLinks> {
        self.links
    }

    /// Has [`Runtime::shutdown`] wait for something, and fail if that fails.
    pub(crate) fn finish_before_shutdown(&self, unfinished: impl FnOnce() -> Result<(), String> + Send + 'static) {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(unfinished));
    }

    /// A number that all processes give the same gathering of arrays, or another thing that they do together once.
    pub(crate) fn next_gathering(&self) -> u64 {
        self.devices.next_gathering()
    }
}

/// A client with this many devices, of a process that no other one matters to.
pub(crate) fn create_client(plugin: &Plugin, devices: u32) -> Result<Client, RuntimeError> {
    Ok(native::open(plugin, &devices.into(), &World::alone())?.client)
}
