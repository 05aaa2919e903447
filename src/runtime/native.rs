//! How a process opens its devices, and plugins that see the devices of other processes by themselves (GPU, TPU).
//!
//! Which kind a plugin is shows when it is asked for devices. One that takes `cpu_device_count` makes as many as it is told and
//! knows of no other process. One that refuses this option gets its place among the processes (`node_id`, `num_nodes`), and
//! meets its peers through the key-value store of the job's rendezvous. libtpu gets it from its environment, before it is
//! loaded (`tpu.rs`).

mod tpu;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::partition::{self, Signature};
use crate::pjrt::{
    self, Client, CompileOptions, DeviceAssignment, ErrorCode, KeyValueStore, LoadedExecutable, Plugin, Program,
    ProgramFormat, Value,
};

use super::device_list::DeviceList;
use super::pipeline::{CompilerInput, donations, normalize};
use super::{Plan, Runtime, RuntimeError, Topology, World, WorldError};
use crate::hlo;

/// Which devices a process opens, and how.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// How many, where the plugin can choose (CPU); other plugins must have as many. `None` means one, or all that the plugin
    /// has.
    pub per_process: Option<u32>,
    /// Create options of the plugin's own, such as XLA's `allocator`, `memory_fraction`, `preallocate` and `visible_devices`
    /// for GPUs.
    pub create_options: Vec<(String, Value)>,
}

impl From<Option<u32>> for DeviceOptions {
    fn from(per_process: Option<u32>) -> DeviceOptions {
        DeviceOptions { per_process, create_options: Vec::new() }
    }
}

impl From<u32> for DeviceOptions {
    fn from(per_process: u32) -> DeviceOptions {
        Some(per_process).into()
    }
}

/// What processes tell each other before they load the plugin.
#[derive(Serialize, Deserialize)]
struct Introduction {
    slice: u32,
    address: IpAddr,
    tpu: tpu::Chips,
}

/// Has libtpu find its place in the job when it is loaded. Other plugins need nothing.
pub(super) fn prepare(world: &World, plugin: &Path, address: IpAddr) -> Result<(), WorldError> {
    let is_tpu = tpu::is_libtpu(plugin);
    let variables = if world.process_count() == 1 {
        if is_tpu { tpu::without_peers() } else { Vec::new() }
    } else {
        let own = Introduction { slice: world.slice_index(), address, tpu: tpu::Chips::of_environment() };
        let all = world.all_gather("introduction", own)?;
        if is_tpu { tpu::variables(&all, world.process_index() as usize) } else { Vec::new() }
    };
    for (name, value) in variables {
        tracing::debug!("libtpu: {name}={value}");
        // SAFETY: no other thread of this process reads its environment while a runtime is opened: those of the rendezvous
        // read and write sockets.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

/// A plugin's client, and whether the plugin runs whole programs over the devices of all processes.
pub(super) struct Opened {
    pub client: Client,
    pub is_native: bool,
}

/// How many devices, for plugins that can choose.
const CPU_DEVICE_COUNT: &str = "cpu_device_count";
/// This process among those that a plugin shall see.
const NODE_ID: &str = "node_id";
/// How many there are.
const NUM_NODES: &str = "num_nodes";

/// The create options that follow from the job, and nobody else may give.
pub const OPTIONS_OF_JOB: [&str; 4] = [CPU_DEVICE_COUNT, "process_id", NODE_ID, NUM_NODES];

/// Opens this process's devices. All processes call it together.
pub(super) fn open(plugin: &Plugin, options: &DeviceOptions, world: &World) -> Result<Opened, RuntimeError> {
    let bridged = match create_bridged(plugin, options) {
        Ok(client) => Some(client),
        Err(error) if refuses(&error, CPU_DEVICE_COUNT, options) => None,
        Err(error) => return Err(explained(error, plugin)),
    };
    if world.process_count() > 1 {
        let way = if bridged.is_some() { "each process by itself" } else { "all processes together" };
        let facts = [("PJRT C API", plugin.api_version().to_string()), ("devices are opened by", way.to_owned())];
        world.agree("plugin", &facts.map(|(name, value)| (name.to_owned(), value)))?;
    }
    let client = match bridged {
        Some(client) => client,
        None => create_native(plugin, options, world).map_err(|error| explained(error, plugin))?,
    };
    let found = client.addressable_devices().len();
    let is_native = client.platform_name()? != "cpu";
    // Devices that others own show that the plugin knows the way to them, whatever it is called.
    let is_native = is_native || client.devices().len() > found;
    match options.per_process {
        Some(asked) if asked as usize != found => Err(RuntimeError::LocalDevices { asked, found }),
        _ => Ok(Opened { client, is_native }),
    }
}

fn create_bridged(plugin: &Plugin, options: &DeviceOptions) -> pjrt::Result<Client> {
    let count = i64::from(options.per_process.unwrap_or(1));
    let mut all = options.create_options.clone();
    if !tpu::is_libtpu(plugin.path()) {
        all.push((CPU_DEVICE_COUNT.to_owned(), Value::Int(count)));
    }
    plugin.create_client(&all, None)
}

fn create_native(plugin: &Plugin, options: &DeviceOptions, world: &World) -> pjrt::Result<Client> {
    if world.process_count() == 1 {
        return plugin.create_client(&options.create_options, None);
    }
    let store = Arc::new(Store(world.clone()));
    let place = [(NODE_ID, world.process_index()), (NUM_NODES, world.process_count())]
        .map(|(name, number)| (name, number.into()));
    let mut all = options.create_options.clone();
    all.extend(place.map(|(name, number)| (name.to_owned(), Value::Int(number))));
    match plugin.create_client(&all, Some(store.clone())) {
        // It has its own ways to learn of the others.
        Err(error) if refuses(&error, NODE_ID, options) => plugin.create_client(&options.create_options, Some(store)),
        client => client,
    }
}

/// Whether a plugin does not know an option of ours; what is wrong may also be one of the user's.
fn refuses(error: &pjrt::Error, option: &str, options: &DeviceOptions) -> bool {
    let names_it = || options.create_options.is_empty() || error.to_string().contains(option);
    error.code() == Some(ErrorCode::InvalidArgument) && names_it()
}

/// Adds what to do when a plugin finds no device that it could drive.
fn explained(error: pjrt::Error, plugin: &Plugin) -> RuntimeError {
    let is_tpu = tpu::is_libtpu(plugin.path());
    let is_gpu = ["cuda", "rocm"].iter().any(|name| plugin.path().to_string_lossy().contains(name));
    let finds_none = matches!(error.code(), Some(ErrorCode::FailedPrecondition | ErrorCode::NotFound));
    let advice = match finds_none {
        true if is_tpu => {
            "this plugin drives TPUs: run it on a TPU host, as no other program's, or take --plugin cpu; `spmd-run doctor` \
             shows this host's chips and who holds them"
        }
        true if is_gpu => {
            "this plugin drives GPUs: is the vendor's driver installed, and a GPU of CUDA_VISIBLE_DEVICES there? `spmd-run \
             doctor` shows this host's chips; --plugin cpu needs none"
        }
        _ => return error.into(),
    };
    RuntimeError::NoDevices { source: error, advice }
}

/// Checks that the plugin sees the devices of all processes, and no others.
pub(super) fn check_view(client: &Client, topology: &Topology) -> Result<(), RuntimeError> {
    let mut seen: Vec<i32> = client.devices().iter().map(pjrt::Device::id).collect();
    let mut owned: Vec<i32> = plugin_ids(topology).collect();
    let count = owned.len();
    seen.sort_unstable();
    owned.sort_unstable();
    if seen == owned {
        return Ok(());
    }
    Err(RuntimeError::PartialView {
        platform: client.platform_name()?,
        seen: seen.len(),
        count,
        processes: topology.processes().len(),
    })
}

/// The plugin's ids of all devices, in the order of ours.
fn plugin_ids(topology: &Topology) -> impl Iterator<Item = i32> {
    topology.processes().iter().flat_map(|process| &process.devices).map(|device| device.plugin_id)
}

/// The key-value store that plugins meet in: the rendezvous's, under names of their own.
struct Store(World);

/// How the rendezvous's names of plugins' keys begin.
const KEYS: &str = "plugin/key/";
/// Where a process notes that its plugin has put something.
const WAS_HERE: &str = "plugin/here/";

/// The rendezvous takes names up to 1024 bytes; plugins put lists of devices into theirs.
fn name_of(key: &str) -> String {
    match key.len() {
        0..=900 => format!("{KEYS}{key}"),
        _ => format!("{KEYS}{}", blake3::hash(key.as_bytes()).to_hex()),
    }
}

impl Store {
    /// The processes whose plugins have not been heard of, as a clause.
    fn silent(&self) -> String {
        let is_silent = |index: &u32| matches!(self.0.is_posted(&format!("{WAS_HERE}{index}")), Ok(false));
        let hosts = self.0.hosts();
        let silent: Vec<(u32, &str)> = (0..self.0.process_count())
            .filter(is_silent)
            .map(|index| (index, hosts.get(index as usize).copied().unwrap_or_default()))
            .collect();
        match &silent[..] {
            [] => String::new(),
            silent => format!("; nothing came yet from the plugin of {}", crate::rendezvous::ProcessList(silent)),
        }
    }
}

impl KeyValueStore for Store {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, String> {
        let limit = timeout.min(self.0.limit());
        match self.0.get_bytes(&name_of(key), limit) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(format!("no process has put '{key}' within {} s{}", limit.as_secs_f64(), self.silent())),
            Err(error) => Err(error.to_string()),
        }
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
        self.0.try_get_bytes(&name_of(key)).map_err(|error| error.to_string())
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), String> {
        let put = |name: &str, value| self.0.put_bytes(name, value).map_err(|error| error.to_string());
        put(&name_of(key), value)?;
        put(&format!("{WAS_HERE}{}", self.0.process_index()), &[])
    }
}

/// A global program that every process compiles as it is.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct GlobalProgram {
    code: Vec<u8>,
    is_mlir: bool,
    /// A serialized `CompileOptionsProto`.
    options: Vec<u8>,
}

/// What process 0 makes of a program for plugins that see all devices; with its name, and what the user should know.
pub(super) fn prepare_program(
    program: &mut hlo::Program,
    plan: Plan,
    devices: &DeviceList,
    topology: &Topology,
) -> Result<(GlobalProgram, String, Vec<String>), RuntimeError> {
    let mut notes = Vec::new();
    normalize(program, plan.replicas.into(), plan.partitions.into(), &mut notes)?;
    let (name, tupled) = match program {
        hlo::Program::Hlo(module) if plan.partitions > 1 && partition::is_partitioned(module) => {
            return Err(RuntimeError::PartitionedBefore);
        }
        hlo::Program::Hlo(module) => (module.proto.name.clone(), super::pipeline::is_tupled(&module.proto)),
        hlo::Program::Mlir(_) => ("the program".to_owned(), false),
    };
    let all: Vec<i32> = plugin_ids(topology).collect();
    let ids = devices.ids().iter().filter_map(|&id| all.get(id as usize));
    let ids: Vec<i64> = ids.copied().map(i64::from).collect();
    let input = CompilerInput::whole(program, plan, tupled);
    let options = CompileOptions {
        device_assignment: Some(DeviceAssignment(ids.chunks(plan.partitions as usize).map(<[i64]>::to_vec).collect())),
        ..input.options
    };
    let is_mlir = input.format == ProgramFormat::Mlir;
    Ok((GlobalProgram { code: input.code, is_mlir, options: options.encode() }, name, notes))
}

impl GlobalProgram {
    /// Compiles the program for all devices, and reads from what comes of it how its arguments and results lie on them.
    pub fn compile(&self, client: &Client, plan: Plan) -> Result<Compiled, RuntimeError> {
        let format = if self.is_mlir { ProgramFormat::Mlir } else { ProgramFormat::Hlo };
        let executable = client.compile(&Program { code: &self.code, format }, &self.options)?;
        let global = match hlo::load(&self.code, "the program") {
            Ok(hlo::Program::Hlo(module)) => Some(module),
            _ => None,
        };
        let module = partition::compiled_module(&executable);
        let signature = partition::signature_of_compiled(module.as_ref(), global.as_ref(), plan.partitions.into())?;
        let donations = module.or(global).map(|module| donations(&module.proto)).unwrap_or_default();
        Ok(Compiled { executable, signature, donations })
    }
}

/// A global program on its devices.
pub(super) struct Compiled {
    pub executable: LoadedExecutable,
    pub signature: Signature,
    /// As [`Pipeline::donations`](super::Pipeline::donations).
    pub donations: Vec<(usize, Option<usize>)>,
}

impl Runtime {
    /// The global id of one of this process's devices.
    pub(super) fn global_id(&self, device: &pjrt::Device) -> Option<u32> {
        let process = self.topology.processes().get(self.process_index() as usize)?;
        process.devices.iter().find(|own| own.plugin_id == device.id()).map(|own| own.id)
    }
}
