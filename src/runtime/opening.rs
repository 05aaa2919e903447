//! How a process opens its share of a job.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::channel::Identity;
use crate::collective::{Algorithm, Communicator, Limits, Links, World as Devices};
use crate::launch::phase::{self, Phase};
use crate::pjrt::{Client, Plugin, Value};
use crate::rendezvous::Progress;
use crate::trace;
use crate::transport::mesh::{Choice, MeshError, MeshOptions, connect_mesh};
use crate::transport::{Carrier, Transport};

use super::device_list::DeviceList;
use super::flight::Flights;
use super::{Device, DeviceOptions, JobLinks, Process, Runtime, RuntimeError, Topology, World, links, native};

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
        let (links, communicator) = start_engine(&world, &topology, transport.as_ref(), &data_plane, is_native)?;
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
}

/// What carries out collectives, and ends them when the job fails.
fn start_engine(
    world: &World,
    topology: &Topology,
    transport: Option<&Arc<dyn Transport>>,
    data_plane: &DataPlaneOptions,
    is_native: bool,
) -> Result<(Option<JobLinks>, Arc<Communicator>), RuntimeError> {
    let devices = Devices {
        process_index: world.process_index(),
        devices_per_process: topology.devices_per_process(),
        slices: topology.slices(),
    };
    // The coordinator watches over waits, and knows who is to blame. This is for what escapes it.
    let limits = Limits { timeout: world.limit().saturating_add(UNWATCHED) };
    let found = match transport {
        Some(transport) if data_plane.algorithm == Algorithm::Auto && !is_native => {
            links::find(world, topology, &**transport, data_plane.links)?
        }
        _ => None,
    };
    let (links, cluster) = found.unzip();
    let communicator = match cluster {
        Some(cluster) => Communicator::with_cluster(devices, transport.cloned(), limits, cluster),
        None => Communicator::with_algorithm(devices, transport.cloned(), limits, data_plane.algorithm),
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
    Ok((links, communicator))
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
pub(super) fn progress(communicator: Option<&Communicator>, device_count: u32) -> Progress {
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
