//! How arrays lie on devices: the index arithmetic of XLA's shardings.

mod cut;
mod device_order;
mod error;
mod from_proto;
mod named;
mod sharding;

pub use error::ShardingError;
pub use sharding::{HloSharding, Subgroup, Tiling};
