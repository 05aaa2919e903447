//! What can be wrong with a sharding or with the shards of an array.

use crate::host_array::ArrayError;

/// A sharding that makes no sense, does not fit the array or the devices, or shards that do not make up an array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ShardingError {
    /// The protobuf contradicts itself.
    #[error("invalid sharding: {0}")]
    Invalid(String),
    /// Too many devices for anything that exists.
    #[error("invalid sharding: it uses {devices} devices, more than {limit}")]
    TooManyDevices { devices: String, limit: usize },
    /// The sharding tiles another number of dimensions than the array has.
    #[error("the sharding {sharding} tiles {tiled} dimensions, the array {shape} has {rank}")]
    Rank { sharding: String, tiled: usize, shape: String, rank: usize },
    /// A dimension is negative, or dynamic.
    #[error("the array {shape} has a dimension without a size")]
    Dimension { shape: String },
    /// The sharding was made for another number of devices.
    #[error("the sharding {sharding} uses {used}, the program has {available} devices")]
    DeviceCount { sharding: String, used: String, available: usize },
    /// A device that the sharding does not know.
    #[error("device {device} is none of the {devices} devices of the sharding {sharding}")]
    NoSuchDevice { device: usize, devices: usize, sharding: String },
    /// A sharding that says nothing of where an array's elements lie.
    #[error("the sharding {sharding} does not say where the elements of an array lie: {reason}")]
    NotAPlacement { sharding: String, reason: &'static str },
    /// A shard is not the one that the sharding asks for.
    #[error("the shard of device {device} is {actual}, the sharding {sharding} of {global} asks for {expected}")]
    WrongShard { device: usize, actual: String, expected: String, sharding: String, global: String },
    /// A device's shard was given twice.
    #[error("the shard of device {device} is there twice")]
    DuplicateShard { device: usize },
    /// Parts of the array are in no shard.
    #[error("no shard holds {missing} of {global}, sharded {sharding}")]
    MissingShards { missing: String, global: String, sharding: String },
    /// An array that cannot be made.
    #[error(transparent)]
    Array(#[from] ArrayError),
}
