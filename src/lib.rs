//! Runs one SPMD program over many devices on many hosts, through any PJRT plugin.

pub mod collective;
pub mod dtype;
pub mod hlo;
pub mod host_array;
pub mod launch;
pub mod lower;
pub mod mesh;
pub mod partition;
pub mod pjrt;
pub mod plugins;
pub mod proto;
pub mod rendezvous;
pub mod runtime;
pub mod transport;
