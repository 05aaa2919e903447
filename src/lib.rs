//! Runs one SPMD program over many devices on many host processes, through any PJRT plugin, CPU included.
//!
//! The command `spmd-run` is a thin layer over this library. A job's life, as each of its processes sees it:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use spmd_run::host_array::{Fill, HostArray};
//! use spmd_run::runtime::{DataPlaneOptions, Executable, Plan, Runtime, World};
//! use spmd_run::{hlo, plugins};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let plan = Plan { replicas: 1, partitions: 8, processes: 1, devices_per_process: 8 };
//! let plugin = plugins::find(None)?;
//! let runtime = Runtime::open(World::alone(), &plugin.path, plan.devices_per_process, DataPlaneOptions::default())?;
//! println!("{} devices", runtime.topology().device_count());
//!
//! let program = hlo::load(&std::fs::read("hlo/dp_tp_mlp_step.hlo")?, "dp_tp_mlp_step.hlo")?;
//! let executable = Executable::compile(&runtime, plan, Some(program))?;
//! let arguments: Vec<HostArray> = executable
//!     .parameters()
//!     .iter()
//!     .enumerate()
//!     .map(|(index, parameter)| HostArray::filled(Fill::Ones, index, parameter.dtype, &parameter.dims_usize()))
//!     .collect::<Result<_, _>>()?;
//! let results = executable.run(&executable.load(&arguments)?)?;
//! for array in executable.gather(&results)? {
//!     println!("{array}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `ARCHITECTURE.md` tells how the modules fit together.

pub mod bench;
pub mod builder;
mod bulk_copy;
pub mod cluster;
pub mod collective;
pub mod dtype;
pub mod hlo;
pub mod host_array;
pub mod inspect;
pub mod launch;
pub mod library_calls;
pub mod lower;
pub mod mesh;
mod narrow_float;
pub mod partition;
pub mod pjrt;
pub mod plugins;
pub mod proto;
pub mod rendezvous;
pub mod runtime;
pub mod transport;

pub use runtime::run;
