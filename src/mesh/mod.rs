//! How arrays lie on devices: meshes with named axes as in `jax.sharding`, and the index arithmetic of XLA's shardings.

mod cut;
mod device_order;
mod error;
mod from_proto;
mod hybrid;
#[allow(clippy::module_inception, reason = "a mesh is the first of what this module is about")]
mod mesh;
mod named;
mod named_sharding;
mod sharding;
mod shardy;
mod spec;
#[cfg(test)]
mod tests;
mod to_proto;

pub use error::{ShardingError, SpecError};
pub use mesh::Mesh;
pub use named_sharding::NamedSharding;
pub use sharding::{HloSharding, Subgroup, Tiling};
pub use spec::{Cut, PartitionSpec};
