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

/// A mesh or a spec that makes no sense, or a spec that does not fit its mesh or its array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum SpecError {
    /// A grid without dimensions.
    #[error("a mesh has at least one axis")]
    NoAxes,
    /// Two axes of a mesh have one name.
    #[error("the mesh has two axes '{axis}'")]
    AxisTwiceInMesh { axis: String },
    /// Other devices than the grid has places for.
    #[error("a mesh of {grid} has places for {count} devices, each of them once, and [{given}] were given")]
    Devices { grid: String, count: usize, given: String },
    /// Other slices than the axes between them have places for.
    #[error("number of slices {slices} must equal the product of dcn_mesh_shape {shape}")]
    Slices { slices: usize, shape: String },
    /// A slice with another number of devices than the axes inside have places for.
    #[error("number of devices {devices} of slice {slice} must equal the product of ici_mesh_shape {shape}")]
    SliceSize { slice: u32, devices: usize, shape: String },
    /// An axis that the mesh does not have.
    #[error("axis {axis} is not found in {mesh}")]
    NoSuchAxis { axis: String, mesh: String },
    /// One axis for two dimensions, or twice for one.
    #[error("{spec} uses axis '{axis}' twice: an axis can cut one dimension only")]
    AxisTwice { axis: String, spec: String },
    /// More entries than the array has dimensions.
    #[error("{spec} has {entries} entries, and an array {shape} has {rank} dimensions")]
    Rank { spec: String, entries: usize, shape: String, rank: usize },
    /// A dimension that cannot be cut into equal parts.
    #[error(
        "{sharding} cuts dimension {dim} into {parts} equal parts, so its size should be divisible by {parts}, but it is \
         {size} (full shape: {shape})"
    )]
    Indivisible { sharding: String, dim: usize, parts: usize, size: i64, shape: String },
    /// A device that is not one of the mesh.
    #[error("device {device} is none of {mesh}")]
    NoSuchDevice { device: usize, mesh: String },
    /// XLA's sharding cannot be made.
    #[error(transparent)]
    Sharding(#[from] ShardingError),
}
