//! Runs a program once on one client, and once on several that stand for processes, lowered.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use buffa::Message;
use spmd_run::collective::{Communicator, Limits, World};
use spmd_run::hlo::{HloModule, ModuleConfig, Program as HloProgram, groups, shape};
use spmd_run::host_array::{Fill, HostArray};
use spmd_run::lower::{self, Layout, Lowered};
use spmd_run::mesh::HloSharding;
use spmd_run::partition::{self, GlobalArg, Partitioned};
use spmd_run::pjrt::{
    Buffer, Client, CompileOptions, ExecuteOptions, HostLayout, LoadedExecutable, Plugin, Program, ProgramFormat,
};
use spmd_run::runtime::bridge::{self, Run, RunContext};
use spmd_run::transport::Transport;
use spmd_run::transport::mesh::{Choice, MeshOptions, connect_mesh};

use super::client;

/// The results of each device, as bytes.
pub type Results = Vec<Vec<Vec<u8>>>;

pub struct Case {
    pub plugin: Plugin,
    pub program: HloProgram,
    pub replicas: i64,
    pub partitions: i64,
    pub fill: Fill,
}

impl Case {
    pub fn partition(&self) -> Partitioned {
        partition::partition(&self.plugin, &self.program, self.replicas, self.partitions).unwrap()
    }

    pub fn devices(&self) -> usize {
        (self.replicas * self.partitions) as usize
    }

    /// The arguments of each device. Replicas have arguments of their own where there are several.
    pub fn arguments(&self, parameters: &[GlobalArg]) -> Vec<Vec<HostArray>> {
        let shard = |device: usize, (index, arg): (usize, &GlobalArg)| {
            let dims: Vec<usize> = arg.shape.dimensions.iter().map(|&dim| dim as usize).collect();
            let dtype = shape::dtype(&arg.shape).unwrap();
            let replica = device / self.partitions as usize;
            let global = HostArray::filled(self.fill, index + 1000 * replica, dtype, &dims).unwrap();
            let sharding = HloSharding::from_proto(&arg.sharding).unwrap();
            sharding.shard(&global, device % self.partitions as usize).unwrap().into_owned()
        };
        let device = |device| parameters.iter().enumerate().map(|entry| shard(device, entry)).collect();
        (0..self.devices()).map(device).collect()
    }

    /// What the program gives on one client with all the devices.
    pub fn run_alone(&self, arguments: &[Vec<HostArray>]) -> Results {
        let client = client(&self.plugin, self.devices() as i64);
        let config = match &self.program {
            HloProgram::Hlo(module) => module.config.clone(),
            HloProgram::Mlir(_) => ModuleConfig::default(),
        };
        let options = CompileOptions {
            num_replicas: self.replicas,
            num_partitions: self.partitions,
            allow_spmd_sharding_propagation_to_parameters: config.allow_spmd_sharding_propagation_to_parameters,
            allow_spmd_sharding_propagation_to_output: config.allow_spmd_sharding_propagation_to_output,
            use_spmd_partitioning: self.partitions > 1,
            use_shardy_partitioner: self.partitions > 1 && partition::uses_shardy(&self.program),
            ..CompileOptions::default()
        };
        let code;
        let program = match &self.program {
            HloProgram::Mlir(code) => Program { code, format: ProgramFormat::Mlir },
            HloProgram::Hlo(module) => {
                let mut proto = module.proto.clone();
                groups::expand_replica_groups(&mut proto).unwrap();
                code = proto.encode_to_vec();
                Program { code: &code, format: ProgramFormat::Hlo }
            }
        };
        let executable = client.compile(&program, &options.encode()).unwrap();
        execute(&client, &executable, arguments, 0)
    }

    pub fn lower(&self, module: &HloModule, processes: usize) -> Lowered {
        let layout = Layout {
            replicas: self.replicas,
            partitions: self.partitions,
            devices_per_process: vec![(self.devices() / processes) as u32; processes],
        };
        lower::lower(module, &layout).unwrap()
    }

    /// What the lowered program gives, run `runs` times on as many clients as there are processes.
    pub fn run_bridged(&self, lowered: &Lowered, processes: usize, arguments: &[Vec<HostArray>], runs: u64) -> Results {
        bridge::register(&self.plugin).unwrap();
        let local = self.devices() / processes;
        let transports = transports(processes);
        let code = lowered.module.proto.encode_to_vec();
        let process = |index: usize, transport: Option<Arc<dyn Transport>>| {
            let client = client(&self.plugin, local as i64);
            let world = World {
                process_index: index as u32,
                devices_per_process: vec![local as u32; processes],
                slices: vec![],
            };
            let limits = Limits { timeout: Duration::from_secs(60) };
            let communicator = Communicator::new(world, transport, limits).unwrap();
            let collectives = communicator.program(1, lowered.collectives.clone()).unwrap();
            let options = bridge::compile_options(local as u32, limits.timeout);
            let program = Program { code: &code, format: ProgramFormat::Hlo };
            let executable = client.compile(&program, &options.encode()).unwrap();
            let mut results = Vec::new();
            for run in 1..=runs {
                let run = Run::begin(RunContext {
                    collectives: collectives.clone(),
                    run,
                    logical_ids: ((index * local) as u32..((index + 1) * local) as u32).collect(),
                    partitions: self.partitions as u32,
                });
                let arguments = &arguments[index * local..(index + 1) * local];
                results = execute(&client, &executable, arguments, run.launch_id());
            }
            results
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = transports
                .into_iter()
                .enumerate()
                .map(|(index, transport)| scope.spawn(move || process(index, transport)))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        })
    }
}

fn execute(client: &Client, executable: &LoadedExecutable, arguments: &[Vec<HostArray>], launch_id: i32) -> Results {
    let devices = executable.addressable_devices();
    let buffers: Vec<Vec<Buffer>> = arguments
        .iter()
        .zip(devices)
        .map(|(arguments, device)| {
            let to_device = |array: &HostArray| {
                let dims: Vec<i64> = array.dims().iter().map(|&dim| dim as i64).collect();
                client.buffer_from_host(array.data(), array.dtype(), &dims, HostLayout::RowMajor, device).unwrap()
            };
            arguments.iter().map(to_device).collect()
        })
        .collect();
    let arguments: Vec<Vec<&Buffer>> = buffers.iter().map(|buffers| buffers.iter().collect()).collect();
    let options = ExecuteOptions { launch_id, ..ExecuteOptions::default() };
    let execution = executable.execute(&arguments, &options).unwrap();
    execution.wait().unwrap();
    let to_host = |buffers: &Vec<Buffer>| buffers.iter().map(|buffer| buffer.to_host().unwrap()).collect();
    execution.outputs.iter().map(to_host).collect()
}

fn transports(processes: usize) -> Vec<Option<Arc<dyn Transport>>> {
    if processes == 1 {
        return vec![None];
    }
    let listeners: Vec<TcpListener> = (0..processes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    std::thread::scope(|scope| {
        let connect = |(index, listener): (usize, TcpListener)| {
            let addresses = &addresses;
            scope.spawn(move || {
                let timeout = Duration::from_secs(30);
                let options = MeshOptions { identity: None, choice: Choice::Auto, slices: Vec::new(), timeout };
                connect_mesh(index as u32, listener, addresses, b"a secret of the test", options).unwrap()
            })
        };
        let threads: Vec<_> = listeners.into_iter().enumerate().map(connect).collect();
        threads.into_iter().map(|thread| Some(Arc::new(thread.join().unwrap()) as Arc<dyn Transport>)).collect()
    })
}
