//! Arrays that lie on the devices of a job.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::builder::{BuildError, Builder};
use crate::dtype::DType;
use crate::host_array::{self, FileError, HostArray, StoredArray};
use crate::mesh::{HloSharding, NamedSharding, ShardingError, SpecError};
use crate::pjrt::{Buffer, HostLayout};
use crate::transport::Tag;

use super::arrays::{GATHER, shape_text};
use super::device_list::DeviceList;
use super::{Program, Runtime, RuntimeError, multihost};

/// An array of the whole job, as `jax.Array`: of one global shape, in parts that lie on the devices of its sharding. Each
/// process holds those on its own devices.
///
/// The processes that have devices of the array's mesh make the same arrays in the same order.
pub struct Array {
    dtype: DType,
    dims: Vec<i64>,
    sharding: HloSharding,
    /// The devices that the sharding counts.
    devices: Arc<DeviceList>,
    /// With the global ids of their devices, those of this process in order.
    shards: Vec<(usize, Buffer)>,
}

/// A part of an array on a device of this process.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    /// The device's global id.
    pub device: usize,
    /// Which elements of the array it holds: a range for each dimension.
    pub index: Vec<Range<i64>>,
    /// The elements.
    pub data: HostArray,
}

/// Why an array cannot be made, or not be brought to the host.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ArrayError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Sharding(#[from] ShardingError),
    #[error(transparent)]
    Host(#[from] host_array::ArrayError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{array} was donated to a run, which has used up its memory: take the result that has its place")]
    Donated { array: String },
    #[error(
        "the array lies on the devices {from:?}, and {sharding} is for {to:?}: other devices get it by way of the host, with \
         Array::all_gather_to_host and Array::from_host"
    )]
    OtherDevices { sharding: String, from: Vec<u32>, to: Vec<u32> },
    #[error(
        "{array} lies on the devices {devices:?}, which are not of all processes, and only arrays of all can be saved"
    )]
    NotOfAll { array: String, devices: Vec<u32> },
    #[error("the part of {array} at [{index}] is {expected}, and {given} was given")]
    Part { array: String, index: String, expected: String, given: String },
    #[error(
        "the parts of {array} on this process's devices do not make up the whole: take Array::addressable_shards for what \
         is here, or Array::all_gather_to_host, which all processes call"
    )]
    NotAddressable { array: String },
    #[error("a process's part of {array} is a block of it, and the devices of this process hold none")]
    NoBlock { array: String },
    #[error("scalars have no first dimension along which to put them together: gather them without `tiled`")]
    Scalar,
}

impl Array {
    /// The whole array, which every process has, cut into parts for its devices: `jax.device_put`.
    ///
    /// # Errors
    /// The sharding does not fit the array or the job, or the devices have no room.
    pub fn from_host(runtime: &Runtime, whole: &HostArray, sharding: &NamedSharding) -> Result<Array, ArrayError> {
        let dims = whole.dims_i64();
        let (hlo, devices) = checked(runtime, &dims, sharding)?;
        Array::cut(runtime, whole, hlo, devices)
    }

    /// As [`Array::from_host`], for a sharding that fits the job.
    pub(super) fn cut(
        runtime: &Runtime,
        whole: &HostArray,
        sharding: HloSharding,
        devices: Arc<DeviceList>,
    ) -> Result<Array, ArrayError> {
        Array::from_parts(runtime, whole.dtype(), whole.dims_i64(), (sharding, devices), |sharding, partition| {
            Ok(sharding.shard(whole, partition)?.into_owned())
        })
    }

    /// A copy of the array on every device of the job; on those of a mesh it is [`from_host`](Array::from_host) with
    /// `mesh.sharding(())`.
    ///
    /// # Errors
    /// The devices have no room.
    pub fn replicated(runtime: &Runtime, whole: &HostArray) -> Result<Array, ArrayError> {
        let everywhere = (HloSharding::Replicated, Arc::clone(&runtime.devices));
        Array::from_parts(runtime, whole.dtype(), whole.dims_i64(), everywhere, |_, _| Ok(whole.clone()))
    }

    /// An array whose parts are what `part` makes for ranges of indices, asked only for the devices of this process:
    /// `jax.make_array_from_callback`.
    ///
    /// # Errors
    /// The sharding does not fit the shape or the job, or a part is not of the shape that its ranges have.
    pub fn from_callback(
        runtime: &Runtime,
        dtype: DType,
        dims: &[i64],
        sharding: &NamedSharding,
        mut part: impl FnMut(&[Range<i64>]) -> HostArray,
    ) -> Result<Array, ArrayError> {
        Array::from_ranges(runtime, dtype, dims, sharding, |index| Ok::<_, ArrayError>(part(index)))
    }

    /// An array that lies in a file, of which each process reads the parts for its own devices only. It must be of this type
    /// there; its shape is the file's.
    ///
    /// ```no_run
    /// # use spmd_run::{dtype::DType::F32, host_array::safetensors, mesh::Mesh, runtime::{Array, Runtime}};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = Runtime::init()?;
    /// let mesh = Mesh::new(&[("model", runtime.device_count())])?;
    /// let file = safetensors::open("model.safetensors".as_ref())?;
    /// let w = file.get("layers.0.w").ok_or("the file has no layers.0.w")?;
    /// let w = Array::from_stored(&runtime, w, F32, &mesh.sharding((None, "model"))?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The sharding does not fit the array or the job, the elements are of another type, or the file cannot be read.
    pub fn from_stored(
        runtime: &Runtime,
        stored: &StoredArray,
        dtype: DType,
        sharding: &NamedSharding,
    ) -> Result<Array, ArrayError> {
        let whole = stored.dims();
        let dims: Vec<i64> = whole.iter().map(|&dim| dim as i64).collect();
        stored.check(dtype, whole)?;
        Array::from_ranges(runtime, dtype, &dims, sharding, |index| {
            let ranges: Vec<Range<usize>> =
                index.iter().map(|range| range.start as usize..range.end as usize).collect();
            Ok::<_, ArrayError>(stored.read(dtype, whole, &ranges)?)
        })
    }

    /// As [`from_callback`](Array::from_callback), of parts that can fail. Each is asked for once, however many devices of
    /// this process hold it.
    pub(crate) fn from_ranges<E: From<ArrayError>>(
        runtime: &Runtime,
        dtype: DType,
        dims: &[i64],
        sharding: &NamedSharding,
        mut part: impl FnMut(&[Range<i64>]) -> Result<HostArray, E>,
    ) -> Result<Array, E> {
        let place = checked(runtime, dims, sharding)?;
        let mut known: HashMap<Vec<Range<i64>>, HostArray> = HashMap::new();
        Array::from_parts(runtime, dtype, dims.to_vec(), place, |sharding, partition| {
            let index = sharding.index_range(dims, partition).map_err(ArrayError::from)?.unwrap_or_default();
            if let Some(data) = known.get(&index) {
                return Ok(data.clone());
            }
            let data = part(&index)?;
            known.insert(index, data.clone());
            Ok(data)
        })
    }

    /// An array of which each process gives the block that its own devices hold, rows of a batch for example:
    /// `jax.make_array_from_process_local_data`. `dims` is the shape of the whole array.
    ///
    /// # Errors
    /// The sharding does not fit the shape or the job, or the block is not of the shape that this process's devices hold.
    pub fn from_local(
        runtime: &Runtime,
        local: &HostArray,
        dims: &[i64],
        sharding: &NamedSharding,
    ) -> Result<Array, ArrayError> {
        let (hlo, devices) = checked(runtime, dims, sharding)?;
        let array = || shape_text(local.dtype(), dims);
        let mut block: Option<Vec<Range<i64>>> = None;
        for (_, partition) in devices.of(runtime.process_index(), &runtime.topology) {
            let index = hlo.index_range(dims, partition)?.unwrap_or_default();
            block = Some(match block {
                None => index,
                Some(block) => {
                    let both = block.into_iter().zip(index);
                    both.map(|(a, b)| a.start.min(b.start)..a.end.max(b.end)).collect()
                }
            });
        }
        let block = block.ok_or_else(|| ArrayError::NoBlock { array: array() })?;
        let lengths: Vec<i64> = block.iter().map(|range| range.end - range.start).collect();
        if local.dims_i64() != lengths {
            return Err(ArrayError::Part {
                array: array(),
                index: ranges_text(&block),
                expected: shape_text(local.dtype(), &lengths),
                given: local.shape_text(),
            });
        }
        Array::from_parts(runtime, local.dtype(), dims.to_vec(), (hlo, devices), |sharding, partition| {
            let index = sharding.index_range(dims, partition)?.unwrap_or_default();
            let start: Vec<usize> =
                index.iter().zip(&block).map(|(own, block)| (own.start - block.start) as usize).collect();
            let extent: Vec<usize> = index.iter().map(|range| (range.end - range.start) as usize).collect();
            Ok(local.part(&start, &extent)?)
        })
    }

    /// Loads the part of each of this process's devices, which `part` makes by partition.
    fn from_parts<E: From<ArrayError>>(
        runtime: &Runtime,
        dtype: DType,
        dims: Vec<i64>,
        (sharding, devices): (HloSharding, Arc<DeviceList>),
        mut part: impl FnMut(&HloSharding, usize) -> Result<HostArray, E>,
    ) -> Result<Array, E> {
        let expected = sharding.shard_shape(&dims).map_err(ArrayError::from)?;
        let mut shards = Vec::new();
        for (device, id) in runtime.client.addressable_devices().iter().zip(runtime.local_device_ids()) {
            let Some(partition) = devices.partition_of(id) else { continue };
            let data = part(&sharding, partition)?;
            if data.dtype() != dtype || data.dims_i64() != expected {
                let index = sharding.index_range(&dims, partition).map_err(ArrayError::from)?.unwrap_or_default();
                return Err(E::from(ArrayError::Part {
                    array: shape_text(dtype, &dims),
                    index: ranges_text(&index),
                    expected: shape_text(dtype, &expected),
                    given: data.shape_text(),
                }));
            }
            let buffer = runtime.client.buffer_from_host(data.data(), dtype, &expected, HostLayout::RowMajor, device);
            shards.push((id as usize, buffer.map_err(|error| ArrayError::from(RuntimeError::from(error)))?));
        }
        Ok(Array { dtype, dims, sharding, devices, shards })
    }

    /// A result of a program.
    pub(super) fn of_result(
        dtype: DType,
        dims: Vec<i64>,
        sharding: HloSharding,
        devices: Arc<DeviceList>,
        shards: Vec<(usize, Buffer)>,
    ) -> Array {
        Array { dtype, dims, sharding, devices, shards }
    }

    /// The array cut otherwise, or in another order of the same devices: `jax.device_put` of an array that is there already.
    /// It compiles a program; what is needed at every step is better part of the step's own ([`Op::with_sharding`]).
    ///
    /// [`Op::with_sharding`]: crate::builder::Op::with_sharding
    ///
    /// # Errors
    /// The sharding does not fit the array or is for other devices, the array was donated, or a device or another process
    /// fails.
    pub fn reshard(&self, runtime: &Runtime, sharding: &NamedSharding) -> Result<Array, ArrayError> {
        sharding.check(&self.dims)?;
        let (from, to) = (self.devices.ids(), sharding.mesh().sorted_devices());
        if from != to {
            let (from, to) = (from.to_vec(), to.to_vec());
            return Err(ArrayError::OtherDevices { sharding: sharding.to_string(), from, to });
        }
        let builder = Builder::new("reshard");
        let moved = builder.placed_parameter(self.dtype, &self.dims, &self.sharding).with_sharding(sharding);
        let program = Program::compile(runtime, builder.build(&[moved])?)?;
        let moved = program.run(&[self])?.pop();
        moved.ok_or_else(|| RuntimeError::ArgumentCount { expected: 1, given: 0 }.into())
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape of the whole array.
    pub fn dims(&self) -> &[i64] {
        &self.dims
    }

    /// Which device holds which part, in XLA's terms: its devices are the partitions of a program.
    pub fn sharding(&self) -> &HloSharding {
        &self.sharding
    }

    /// Global ids of the devices that the array lies on, in the order of a program's partitions.
    pub fn devices(&self) -> &[u32] {
        self.devices.ids()
    }

    /// The part of a partition, with its device, if that is one of this process.
    fn part_of(&self, partition: usize) -> Option<(usize, &Buffer)> {
        let device = *self.devices.ids().get(partition)? as usize;
        Some((device, self.buffer(device)?))
    }

    /// The partition on a device.
    fn partition_of(&self, device: usize) -> usize {
        self.devices.partition_of(device as u32).unwrap_or(0)
    }

    /// As in `f32[8,4]`.
    pub fn shape_text(&self) -> String {
        shape_text(self.dtype, &self.dims)
    }

    /// The part on a device of this process.
    pub(super) fn buffer(&self, device: usize) -> Option<&Buffer> {
        self.shards.iter().find(|shard| shard.0 == device).map(|shard| &shard.1)
    }

    /// The parts on this process's devices that no device with a lower id has too, without padding: those of all processes
    /// make up the array once.
    pub(crate) fn owned_parts(&self) -> Result<Vec<Shard>, ArrayError> {
        self.check_alive()?;
        if self.devices.processes().len() < self.devices.world().process_count() as usize {
            return Err(ArrayError::NotOfAll { array: self.shape_text(), devices: self.devices.ids().to_vec() });
        }
        let dims: Vec<usize> = self.sharding.shard_shape(&self.dims)?.iter().map(|&dim| dim as usize).collect();
        let mut parts = Vec::new();
        for partition in self.sharding.owners()? {
            let Some((device, buffer)) = self.part_of(partition) else { continue };
            let Some(index) = self.sharding.index_range(&self.dims, partition)? else { continue };
            let extent: Vec<usize> = index.iter().map(|range| (range.end - range.start) as usize).collect();
            let padded = HostArray::new(self.dtype, dims.clone(), buffer.to_host().map_err(RuntimeError::from)?)?;
            let data = if extent == dims { padded } else { padded.part(&vec![0; dims.len()], &extent)? };
            parts.push(Shard { device, index, data });
        }
        Ok(parts)
    }

    /// Waits until the program that computes the array has done so on this process's devices.
    ///
    /// # Errors
    /// It failed.
    pub fn block_until_ready(&self) -> Result<(), ArrayError> {
        for (_, buffer) in &self.shards {
            buffer.ready_event().and_then(|ready| ready.wait()).map_err(RuntimeError::from)?;
        }
        Ok(())
    }

    /// Whether a program has used up the array's memory for its results.
    pub fn is_donated(&self) -> Result<bool, RuntimeError> {
        let first = self.shards.first();
        Ok(first.map_or(Ok(false), |(_, buffer)| buffer.is_deleted())?)
    }

    fn check_alive(&self) -> Result<(), ArrayError> {
        if self.is_donated()? { Err(ArrayError::Donated { array: self.shape_text() }) } else { Ok(()) }
    }

    /// The parts on the devices of this process, in host memory.
    ///
    /// # Errors
    /// The array was donated, or a device fails.
    pub fn addressable_shards(&self) -> Result<Vec<Shard>, ArrayError> {
        self.check_alive()?;
        let dims: Vec<usize> = self.sharding.shard_shape(&self.dims)?.iter().map(|&dim| dim as usize).collect();
        let shard = |(device, buffer): &(usize, Buffer)| {
            let data = buffer.to_host().map_err(RuntimeError::from)?;
            let partition = self.partition_of(*device);
            let index = self.sharding.index_range(&self.dims, partition)?.unwrap_or_default();
            Ok(Shard { device: *device, index, data: HostArray::new(self.dtype, dims.clone(), data)? })
        };
        self.shards.iter().map(shard).collect()
    }

    /// The whole array in host memory, if this process's devices hold all of it: as they do in a job of one process, and
    /// of an array that is the same on all devices.
    ///
    /// # Errors
    /// They do not, the array was donated, or a device fails.
    pub fn to_host(&self) -> Result<HostArray, ArrayError> {
        self.check_alive()?;
        if let (true, Some((_, buffer))) = (self.sharding.is_whole(), self.shards.first()) {
            let data = buffer.to_host().map_err(RuntimeError::from)?;
            let dims: Vec<usize> = self.dims.iter().map(|&dim| dim as usize).collect();
            return Ok(HostArray::new(self.dtype, dims, data)?);
        }
        let shards = self.addressable_shards()?.into_iter();
        let shards = shards.map(|shard| (self.partition_of(shard.device), shard.data));
        self.sharding.assemble(&self.dims, self.dtype, shards).map_err(|error| match error {
            ShardingError::MissingShards { .. } => ArrayError::NotAddressable { array: self.shape_text() },
            other => other.into(),
        })
    }

    /// The whole array in the host memory of every process that has devices of its mesh; these call it together. The bytes cross the network once for
    /// each process that lacks them, so it is for results, not for what a program computes with.
    ///
    /// # Errors
    /// The array was donated, or a device or another process fails.
    pub fn all_gather_to_host(&self, runtime: &Runtime) -> Result<HostArray, ArrayError> {
        self.check_alive()?;
        let gathering = self.devices.next_gathering();
        if runtime.transport.is_none() || self.sharding.is_whole() {
            return self.to_host();
        }
        let dims: Vec<usize> = self.sharding.shard_shape(&self.dims)?.iter().map(|&dim| dim as usize).collect();
        let size = dims.iter().product::<usize>() * self.dtype.size();
        let mut parts = Vec::new();
        for partition in self.sharding.owners()? {
            let owner = self.devices.process_of(partition, &runtime.topology);
            let tag = Tag([GATHER, gathering, u64::MAX, 0, partition as u64]);
            let data = multihost::spread(runtime, &self.devices, owner, tag, size, || match self.part_of(partition) {
                Some((_, buffer)) => Ok(buffer.to_host()?),
                None => Err(RuntimeError::OtherRuntime),
            })?;
            parts.push((partition, HostArray::new(self.dtype, dims.clone(), data)?));
        }
        Ok(self.sharding.assemble(&self.dims, self.dtype, parts)?)
    }
}

/// How and where an array of this shape lies.
fn checked(
    runtime: &Runtime,
    dims: &[i64],
    sharding: &NamedSharding,
) -> Result<(HloSharding, Arc<DeviceList>), ArrayError> {
    sharding.check(dims)?;
    let devices = runtime.device_list(sharding.mesh().sorted_devices())?;
    Ok((sharding.to_hlo(dims.len())?, devices))
}

fn ranges_text(ranges: &[Range<i64>]) -> String {
    let ranges: Vec<String> = ranges.iter().map(|range| format!("{}:{}", range.start, range.end)).collect();
    ranges.join(", ")
}

/// Shape and sharding, not the elements.
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.shape_text(), self.sharding)
    }
}
