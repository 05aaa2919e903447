//! What can go wrong between a program and its results.

use std::net::IpAddr;

use crate::collective::CollectiveError;
use crate::host_array::ArrayError;
use crate::library_calls::UnknownTarget;
use crate::mesh::ShardingError;
use crate::pjrt::ErrorCode;
use crate::transport::TransportError;
use crate::transport::mesh::MeshError;
use crate::{hlo, lower, partition, pjrt};

use super::{Disagreement, PlanError, TopologyError, WorldError};

/// Why a program could not be prepared or run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RuntimeError {
    #[error(transparent)]
    Pjrt(#[from] pjrt::Error),
    #[error(transparent)]
    World(#[from] WorldError),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    #[error("{0}")]
    OtherProgram(String),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Verify(#[from] hlo::VerifyError),
    #[error(transparent)]
    Partition(#[from] partition::Error),
    #[error("the program has custom calls that cannot run on CPUs:{}", listed(.0))]
    CustomCalls(Vec<UnknownTarget>),
    #[error("{source}; of the program's custom calls these are not known to run on CPUs:{}", listed(.unknown))]
    CustomCallRefused { source: Box<pjrt::Error>, unknown: Vec<UnknownTarget> },
    #[error(transparent)]
    Lower(#[from] lower::Error),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Mesh(#[from] MeshError),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("argument {index}: {source}")]
    Argument { index: usize, source: ArgumentError },
    #[error("result {index}: {source}")]
    Result { index: usize, source: ArgumentError },
    #[error(transparent)]
    Sharding(#[from] ShardingError),
    #[error("process 0 has no program to compile")]
    NoProgram,
    #[error("{0} cannot be exchanged with a device")]
    ArrayType(String),
    #[error("process 0 sent {what} that cannot be read: {source}")]
    Malformed { what: &'static str, source: buffa::DecodeError },
    #[error("the plugin shows its optimized program in a form that cannot be read ({0})")]
    OptimizedForm(String),
    #[error("cannot listen at {address} for data of other processes: {source}: is this an address of this host?")]
    Listen { address: IpAddr, source: std::io::Error },
    #[error("the job asks for {asked} devices per process, this host has {found}: try --devices-per-process {found}")]
    LocalDevices { asked: u32, found: usize },
    #[error("{source}: {advice}")]
    NoDevices { source: pjrt::Error, advice: &'static str },
    #[error(
        "the plugin for {platform} sees {seen} devices, the job's {processes} processes have {count}: one program cannot run on \
         devices that the plugin does not see; were processes started with parts of other jobs' variables?"
    )]
    PartialView { platform: String, seen: usize, count: usize, processes: usize },
    #[error(
        "the program was partitioned before, and plugins that see all processes partition it by themselves: give the \
         program as it was before"
    )]
    PartitionedBefore,
    #[error("argument {index}: {source}")]
    Step { index: usize, source: StepError },
    #[error("the mesh names device {device}, and the job has {count} devices")]
    NoSuchDevice { device: u32, count: usize },
    #[error(
        "process {process} has none of the devices {devices:?}: arrays and programs on a mesh are for the processes that have \
         devices in it (Runtime::takes_part)"
    )]
    NotTakingPart { process: u32, devices: Vec<u32> },
    #[error(
        "a program on the devices {devices:?} would have more of them in one process than in another: it needs the same \
         number in each process that takes part"
    )]
    UnevenMesh { devices: Vec<u32> },
    #[error("an argument lies on the devices of another runtime")]
    OtherRuntime,
    #[error(
        "the program has {0} replicas, and arrays have none: run it with Executable, or with one replica and as many \
         partitions"
    )]
    Replicas(u32),
    #[error("{}: executables cannot be kept there: {source}", .folder.display())]
    CompilationCache { folder: std::path::PathBuf, source: std::io::Error },
    #[error("cannot catch SIGTERM: {source}")]
    Signal { source: std::io::Error },
    #[error("cannot agree on a step at which to save before the job is taken away: {0}")]
    Preemption(String),
    #[error("{0}")]
    Background(String),
    #[error("the program takes {expected} arguments, {given} were given")]
    ArgumentCount { expected: usize, given: usize },
}

/// Why an array cannot be an argument or a result.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ArgumentError {
    #[error(transparent)]
    Sharding(#[from] ShardingError),
    #[error(transparent)]
    Array(#[from] ArrayError),
    #[error("is {given}, the program takes {expected}")]
    Shape { given: String, expected: String },
}

/// Why an array on the devices cannot be an argument.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum StepError {
    #[error("is {given}, the program takes {expected}")]
    Shape { given: String, expected: String },
    #[error("lies on the devices as {given}, the program takes it as {expected}: see Array::reshard")]
    Sharding { given: String, expected: String },
    #[error("lies on the devices {given:?}, the program runs on {expected:?}")]
    Devices { given: Vec<u32>, expected: Vec<u32> },
    #[error("was donated to an earlier run, which has used up its memory")]
    Donated,
}

fn listed(targets: &[UnknownTarget]) -> String {
    targets.iter().map(|target| format!("\n  {target}")).collect()
}

impl RuntimeError {
    /// Whether the failure is another process's or the rendezvous's rather than this program's.
    pub fn is_of_peer(&self) -> bool {
        match self {
            RuntimeError::World(error) => !matches!(error, WorldError::Write(_)),
            RuntimeError::Mesh(_)
            | RuntimeError::Topology(_)
            | RuntimeError::Disagreement(_)
            | RuntimeError::OtherProgram(_)
            | RuntimeError::Transport(_) => true,
            // Collectives end with these.
            RuntimeError::Pjrt(error) => {
                matches!(error.code(), Some(ErrorCode::Aborted | ErrorCode::Unavailable | ErrorCode::DeadlineExceeded))
            }
            _ => false,
        }
    }
}
