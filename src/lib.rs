//! Runs one SPMD program over many devices on many host processes, through any PJRT plugin, CPU included.
//!
//! It is two things in one: the command `spmd-run`, which runs programs that JAX, PyTorch/XLA or a compiler wrote, and the
//! library that it is a thin layer over, in which the same programs are built in Rust.
//!
//! # A tour
//!
//! A **runtime** is one process's part of a job. [`run`] joins whatever job the process was started in (by
//! `spmd-run -n 4 -- ./program`, by a scheduler, or alone) and leaves it in the end; [`Runtime::init`](runtime::Runtime::init)
//! is for programs that want to do that themselves.
//!
//! A **[`Mesh`](mesh::Mesh)** gives the axes of a grid of devices names, and a **[`NamedSharding`](mesh::NamedSharding)**
//! says which axes cut which dimensions of an array, as in `jax.sharding`.
//!
//! An **[`Array`](runtime::Array)** lies on the devices of the whole job; each process has the parts on its own.
//!
//! A **[`Builder`](builder::Builder)** makes programs of formulas, derivatives included, and a
//! **[`Program`](runtime::Program)** is one that was compiled. It is written for whole arrays: XLA's partitioner divides the
//! work and inserts the collectives.
//!
//! ```
//! use spmd_run::builder::Builder;
//! use spmd_run::dtype::DType::F32;
//! use spmd_run::host_array::HostArray;
//! use spmd_run::mesh::Mesh;
//! use spmd_run::runtime::{Array, Program, Runtime};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = Runtime::builder().devices_per_process(4).init()?;
//! let mesh = Mesh::new(&[("data", 2), ("model", 2)])?;
//! let (of_batch, of_weights) = (mesh.sharding(("data", None))?, mesh.sharding((None, "model"))?);
//!
//! // One step of gradient descent on a linear layer, the batch over one axis, its outputs over the other.
//! let b = Builder::new("step");
//! let w = b.sharded_parameter("w", F32, &[3, 4], &of_weights);
//! let x = b.sharded_parameter("x", F32, &[8, 3], &of_batch);
//! let loss = x.matmul(w).tanh().mean(&[]);
//! let next = (w - b.grad(loss, &[w])[0] * 0.5).with_sharding(&of_weights);
//! let step = Program::compile(&runtime, b.build(&[next, loss])?)?;
//!
//! let ones = |rows, columns| HostArray::from_elements(&[rows, columns], &vec![1f32; rows * columns]);
//! let x = Array::from_host(&runtime, &ones(8, 3)?, &of_batch)?;
//! let mut w = Array::from_host(&runtime, &ones(3, 4)?, &of_weights)?;
//! let mut losses = Vec::new();
//! for _ in 0..3 {
//!     let mut results = step.run(&[&w, &x])?;
//!     let loss = results.remove(1);
//!     losses.push(loss.to_host()?.to_elements::<f32>()?[0]);
//!     w = results.remove(0);
//! }
//! assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?}");
//! runtime.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! Loops and branches are [`scan`](builder::Builder::scan), [`fori_loop`](builder::Builder::fori_loop),
//! [`while_loop`](builder::Builder::while_loop) and [`cond`](builder::Builder::cond), whose bodies are closures that may use
//! values around them; gradients go through all but the third:
//!
//! ```
//! use spmd_run::builder::Builder;
//! use spmd_run::dtype::DType::F32;
//!
//! let b = Builder::new("layers");
//! let x = b.parameter("x", F32, &[8, 16]);
//! let weights = b.parameter("weights", F32, &[12, 16, 16]);
//! let (x, _) = b.scan(&[x], &[weights], |x, w| (vec![x[0].matmul(w[0]).gelu()], vec![]));
//! let gradient = b.grad(x[0].mean(&[]), &[weights])[0];
//! assert_eq!(gradient.dims(), [12, 16, 16]);
//! b.build(&[gradient])?;
//! # Ok::<(), spmd_run::builder::BuildError>(())
//! ```
//!
//! Where each device's part is to be written by hand, with `psum` and the like, there is
//! [`shard_map`](builder::Builder::shard_map). A mesh over several slices is made by [`Mesh::hybrid`](mesh::Mesh::hybrid).
//! `docs/coming-from-jax.md` has what is called how in JAX and here, and `examples/` a program for each idea: begin with
//! `train_gpt.rs`.
//!
//! # Training that survives
//!
//! Arrays come from files ([`Array::from_stored`](runtime::Array::from_stored)), of which each process reads its part.
//! **[`Checkpoints`](checkpoint::Checkpoints)** save them, with what the program needs beside them, and bring them back in jobs
//! of any number of processes: started by `spmd-run --max-restarts`, a job goes on from the latest one after a failure. When a
//! scheduler is about to take a host away, the processes
//! [save at one step](runtime::Runtime::reached_preemption_sync_point). What processes do together with values in their own
//! memory is in [`multihost`](runtime::multihost).
//!
//! # Programs from elsewhere
//!
//! What JAX exports is read by [`hlo::load`](hlo::load()), and compiled by
//! [`Program::from_source`](runtime::Program::from_source), or as the command does by
//! [`Executable`](runtime::Executable), which takes and gives arrays of the host:
//!
//! ```no_run
//! use spmd_run::hlo;
//! use spmd_run::host_array::{Fill, HostArray};
//! use spmd_run::runtime::{Executable, Plan, Runtime};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = Runtime::builder().devices_per_process(8).init()?;
//! let plan = Plan { replicas: 1, partitions: 8, processes: 1, devices_per_process: 8 };
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
pub mod channel;
pub mod chart;
pub mod checkpoint;
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
pub mod quantity;
pub mod rendezvous;
pub mod report;
pub mod runtime;
pub mod trace;
pub mod transport;
pub mod whole_file;

pub use runtime::run;
