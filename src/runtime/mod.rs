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
mod pipeline;
mod plan;
mod preemption;
mod program;
mod topology;
mod world;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::channel::Identity;
use crate::collective::{Algorithm, CollectiveSpec, Communicator, Limits, Links, ProgramCollectives, World as Devices};
use crate::launch::phase::{self, Phase};
use crate::pjrt::{Client, Plugin, Value};
use crate::rendezvous::Progress;
use crate::trace;
use crate::transport::mesh::{Choice, MeshError, MeshOptions, connect_mesh};
use crate::transport::{Carrier, Transport};
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

/// How much longer than the coordinator lets it a collective waits by itself.
const UNWATCHED: Duration = Duration::from_secs(30);

/// How long [`Runtime::open`] took on this process, by its steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opening {
    /// Loading the plugin's library.
    pub plugin: Duration,
    /// Creating its client with the devices.
    pub client: Duration,
    /// Learning of the devices of all processes: `device_count` is known after it.
    pub topology: Duration,
    /// Connecting to the other processes, and measuring what the links carry.
    pub transport: Duration,
}

/// How processes reach each other's data plane.
#[derive(Clone, Debug)]
pub struct DataPlaneOptions {
    /// The address that this process listens on.
    pub address: IpAddr,
    /// A secret that all processes of the job share.
    pub secret: [u8; 32],
    /// What connections between processes are encrypted with, if they are.
    pub identity: Option<Identity>,
    /// What carries the data.
    pub transport: Carrier,
    /// How collectives go between slices, or else hosts.
    pub algorithm: Algorithm,
    /// What the links carry by which [`Algorithm::Auto`] decides; `None` to measure it.
    pub links: Option<Links>,
}

impl Default for DataPlaneOptions {
    fn default() -> Self {
        let transport = Carrier::Mesh(Choice::Auto);
        DataPlaneOptions {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            secret: [0; 32],
            identity: None,
            transport,
            algorithm: Algorithm::Auto,
            links: None,
        }
    }
}

impl Runtime {
    /// Opens this process's devices and meets the others. `devices` may be just their number.
    pub fn open(
        world: World,
        plugin: &Path,
        devices: impl Into<DeviceOptions>,
        data_plane: DataPlaneOptions,
    ) -> Result<Runtime, RuntimeError> {
        let mut opening = Opening::default();
        let mut lap = Instant::now();
        let mut phase = trace::phase("load the plugin");
        let mut took = |step: &mut Duration, next: Option<&str>| {
            *step = std::mem::replace(&mut lap, Instant::now()).elapsed();
            phase = None;
            phase = next.and_then(trace::phase);
        };
        native::prepare(&world, plugin, data_plane.address)?;
        let plugin = Plugin::load(plugin)?;
        took(&mut opening.plugin, Some("create the client"));
        let native::Opened { client, is_native } = native::open(&plugin, &devices.into(), &world)?;
        took(&mut opening.client, Some("learn of all devices"));
        let (listener, data_address) = match data_plane.transport {
            Carrier::Mesh(_) if world.process_count() > 1 => Some(listen(data_plane.address)?),
            _ => None,
        }
        .unzip();
        let processes = world.all_gather("topology", describe(&client, world.slice_index(), data_address)?)?;
        let topology = Topology::new(processes)?;
        if is_native {
            native::check_view(&client, &topology)?;
        }
        took(&mut opening.topology, Some("connect"));
        let transport: Option<Arc<dyn Transport>> = match (listener, &data_plane.transport) {
            (Some(listener), Carrier::Mesh(choice)) => {
                Some(connect(&world, &topology, listener, &data_plane, *choice)?)
            }
            #[cfg(feature = "mpi")]
            (_, Carrier::Mpi(session)) => Some(over_mpi(&world, &topology, session)?),
            _ => None,
        };
        let devices = Devices {
            process_index: world.process_index(),
            devices_per_process: topology.devices_per_process(),
            slices: topology.slices(),
        };
        // The coordinator watches over waits, and knows who is to blame. This is for what escapes it.
        let limits = Limits { timeout: world.limit().saturating_add(UNWATCHED) };
        let found = match &transport {
            Some(transport) if data_plane.algorithm == Algorithm::Auto && !is_native => {
                links::find(&world, &topology, &**transport, data_plane.links)?
            }
            _ => None,
        };
        let (links, cluster) = found.unzip();
        let communicator = match cluster {
            Some(cluster) => Communicator::with_cluster(devices, transport.clone(), limits, cluster),
            None => Communicator::with_algorithm(devices, transport.clone(), limits, data_plane.algorithm),
        };
        let communicator = Arc::new(communicator?);
        let of_job = Arc::downgrade(&communicator);
        world.on_abort(move |abort| {
            if let Some(communicator) = of_job.upgrade() {
                communicator.abort(&abort.to_string());
            }
        });
        world.report({
            let of_job = Arc::downgrade(&communicator);
            let device_count = topology.device_ids(world.process_index()).len() as u32;
            move || progress(of_job.upgrade().as_deref(), device_count)
        });
        took(&mut opening.transport, None);
        identify(&world, &topology);
        tracing::debug!(
            "opened {} of {} devices: {opening:?}",
            topology.device_ids(world.process_index()).len(),
            topology.device_count()
        );
        let devices = Arc::new(DeviceList::whole(&topology, &world)?);
        Ok(Runtime {
            world,
            client,
            is_native,
            topology,
            transport,
            communicator,
            links,
            compilation_cache: OnceLock::new(),
            devices,
            parts: Mutex::default(),
            preemption: OnceLock::new(),
            unfinished: Mutex::default(),
            flights: Flights::default(),
            opening,
        })
    }

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

/// Tells the timeline which devices this process has.
fn identify(world: &World, topology: &Topology) {
    let process = topology.processes().get(world.process_index() as usize);
    if let (Some(recorder), Some(process)) = (trace::recorder(), process) {
        recorder.identify(|identity| {
            identity.host = process.host.clone();
            identity.first_device = process.devices.first().map_or(0, |device| device.id);
            identity.devices = process.devices.iter().map(|device| device.kind.clone()).collect();
        });
    }
}

/// How far this process is, for its signs of life.
fn progress(communicator: Option<&Communicator>, device_count: u32) -> Progress {
    let Phase { text, step, .. } = phase::now();
    let position = communicator.map(Communicator::position).unwrap_or_default();
    Progress {
        phase: text,
        step,
        collective: position.instruction,
        waits: position.waits,
        late_devices: position.late_devices,
        entered: position.entered,
        sent_bytes: position.sent_bytes,
        device_count,
    }
}

fn connect(
    world: &World,
    topology: &Topology,
    listener: TcpListener,
    data_plane: &DataPlaneOptions,
    choice: Choice,
) -> Result<Arc<dyn Transport>, MeshError> {
    let addresses: Vec<SocketAddr> = topology.processes().iter().filter_map(|process| process.data_address).collect();
    let DataPlaneOptions { secret, identity, .. } = data_plane;
    let options = MeshOptions { identity: identity.clone(), choice, slices: topology.slices(), timeout: world.limit() };
    Ok(Arc::new(connect_mesh(world.process_index(), listener, &addresses, secret, options)?))
}

#[cfg(feature = "mpi")]
fn over_mpi(
    world: &World,
    topology: &Topology,
    session: &crate::transport::mpi::Session,
) -> Result<Arc<dyn Transport>, MeshError> {
    let hosts: Vec<&str> = topology.processes().iter().map(|process| &*process.host).collect();
    let processes_here = hosts.iter().filter(|host| Some(*host) == hosts.get(world.process_index() as usize)).count();
    Ok(Arc::new(crate::transport::mpi::MpiTransport::new(session, processes_here)?))
}

/// A client with this many devices, of a process that no other one matters to.
pub(crate) fn create_client(plugin: &Plugin, devices: u32) -> Result<Client, RuntimeError> {
    Ok(native::open(plugin, &devices.into(), &World::alone())?.client)
}

fn describe(client: &Client, slice_index: u32, data_address: Option<SocketAddr>) -> Result<Process, RuntimeError> {
    let devices = client.addressable_devices();
    let describe_device = |device: &crate::pjrt::Device| {
        // A plugin that sees several slices, as that for TPUs, knows better.
        let slice_index = match device.attributes()?.get("slice_index") {
            Some(Value::Int(index)) => u32::try_from(*index).unwrap_or(slice_index),
            _ => slice_index,
        };
        Ok(Device { id: 0, plugin_id: device.id(), kind: device.kind()?, slice_index })
    };
    let version = client.plugin().api_version();
    Ok(Process {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        platform: client.platform_name()?,
        platform_version: client.platform_version()?,
        pjrt_api_version: (version.major, version.minor),
        devices: devices.iter().map(describe_device).collect::<Result<_, RuntimeError>>()?,
        data_address,
    })
}

fn listen(address: IpAddr) -> Result<(TcpListener, SocketAddr), RuntimeError> {
    let bound =
        TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr().map(|bound| (listener, bound)));
    bound.map_err(|source| RuntimeError::Listen { address, source })
}
