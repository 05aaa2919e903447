//! Global arrays on their way to devices and back.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use crate::dtype::DType;
use crate::host_array::HostArray;
use crate::mesh::{HloSharding, ShardingError};
use crate::pjrt::{Buffer, Client, Device, HostLayout};
use crate::transport::{Receive, Segment, Tag, Transport, Wait};

use super::device_list::DeviceList;
use super::error::ArgumentError;
use super::{Runtime, RuntimeError, Topology};

/// The shape of a global argument or result, and how its devices share it.
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalArray {
    /// Element type.
    pub dtype: DType,
    /// Dimensions of one replica's whole array.
    pub dims: Vec<i64>,
    /// Which partition holds which part.
    pub sharding: HloSharding,
}

impl GlobalArray {
    /// The shape of the part on each device, padding included: as in `f32[8,32]`.
    pub fn shard_text(&self) -> Result<String, ShardingError> {
        Ok(shape_text(self.dtype, &self.sharding.shard_shape(&self.dims)?))
    }

    /// The dimensions as host arrays have them.
    pub fn dims_usize(&self) -> Vec<usize> {
        self.dims.iter().map(|&dim| dim as usize).collect()
    }

    /// As in `f32[32,64]`.
    pub fn shape_text(&self) -> String {
        shape_text(self.dtype, &self.dims)
    }
}

pub(super) fn shape_text(dtype: DType, dims: &[i64]) -> String {
    let dims: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
    crate::host_array::shape_text(dtype, &dims)
}

/// Where a device stands in a program: replica and partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub replica: usize,
    pub partition: usize,
}

/// Arguments of a program on this process's devices.
pub struct Arguments {
    /// `[device][argument]`
    buffers: Vec<Vec<Buffer>>,
    /// Arguments that an execution uses up, with what it takes to load them again.
    donated: Vec<(usize, Vec<HostArray>)>,
}

impl Arguments {
    /// Cuts global arrays into shards and loads those of this process's devices.
    ///
    /// An array has the shape that the program takes, or, in a program of several replicas, one more leading dimension
    /// with the array of each replica.
    pub(super) fn load(
        client: &Client,
        devices: &[(Device, Place)],
        parameters: &[GlobalArray],
        donated: &[usize],
        replicas: usize,
        arrays: &[HostArray],
    ) -> Result<Arguments, RuntimeError> {
        if arrays.len() != parameters.len() {
            return Err(RuntimeError::ArgumentCount { expected: parameters.len(), given: arrays.len() });
        }
        let mut loaded = Arguments { buffers: devices.iter().map(|_| Vec::new()).collect(), donated: Vec::new() };
        for (index, (array, parameter)) in arrays.iter().zip(parameters).enumerate() {
            let in_argument = |source: ArgumentError| RuntimeError::Argument { index, source };
            let per_replica = split_replicas(array, parameter, replicas).map_err(in_argument)?;
            let mut shards = Vec::new();
            for ((device, place), buffers) in devices.iter().zip(&mut loaded.buffers) {
                let whole = per_replica.get(place.replica).unwrap_or(array);
                let shard =
                    parameter.sharding.shard(whole, place.partition).map_err(|error| in_argument(error.into()))?;
                buffers.push(upload(client, &shard, device)?);
                if donated.contains(&index) {
                    shards.push(shard.into_owned());
                }
            }
            if donated.contains(&index) {
                loaded.donated.push((index, shards));
            }
        }
        Ok(loaded)
    }

    /// Loads shards, `[device][argument]`.
    pub(super) fn load_shards(
        client: &Client,
        devices: &[(Device, Place)],
        parameters: &[GlobalArray],
        donated: &[usize],
        shards: &[Vec<HostArray>],
    ) -> Result<Arguments, RuntimeError> {
        let mut loaded = Arguments { buffers: Vec::new(), donated: Vec::new() };
        for ((device, _), shards) in devices.iter().zip(shards) {
            if shards.len() != parameters.len() {
                return Err(RuntimeError::ArgumentCount { expected: parameters.len(), given: shards.len() });
            }
            let buffers = shards.iter().map(|shard| upload(client, shard, device)).collect::<Result<_, _>>()?;
            loaded.buffers.push(buffers);
        }
        for &index in donated {
            let of_devices = shards.iter().filter_map(|shards| shards.get(index)).cloned().collect();
            loaded.donated.push((index, of_devices));
        }
        Ok(loaded)
    }

    /// Loads anew what an execution has used up.
    pub(super) fn renew_donated(&mut self, client: &Client, devices: &[(Device, Place)]) -> Result<(), RuntimeError> {
        for (index, shards) in &self.donated {
            for ((shard, (device, _)), buffers) in shards.iter().zip(devices).zip(&mut self.buffers) {
                if buffers[*index].is_deleted()? {
                    buffers[*index] = upload(client, shard, device)?;
                }
            }
        }
        Ok(())
    }

    /// The buffers: `[device][argument]`.
    pub fn by_device(&self) -> Vec<Vec<&Buffer>> {
        self.buffers.iter().map(|buffers| buffers.iter().collect()).collect()
    }
}

fn upload(client: &Client, shard: &HostArray, device: &Device) -> Result<Buffer, RuntimeError> {
    let dims = shard.dims_i64();
    Ok(client.buffer_from_host(shard.data(), shard.dtype(), &dims, HostLayout::RowMajor, device)?)
}

/// Each replica's array; empty when all replicas get the given one.
fn split_replicas(
    array: &HostArray,
    parameter: &GlobalArray,
    replicas: usize,
) -> Result<Vec<HostArray>, ArgumentError> {
    let given = array.dims_i64();
    if array.dtype() == parameter.dtype && given == parameter.dims {
        return Ok(Vec::new());
    }
    let is_stacked = replicas > 1 && given.split_first() == Some((&(replicas as i64), &parameter.dims[..]));
    if array.dtype() != parameter.dtype || !is_stacked {
        let stacked = if replicas > 1 { format!(", or one for each of {replicas} replicas") } else { String::new() };
        let expected = parameter.shape_text() + &stacked;
        return Err(ArgumentError::Shape { given: array.shape_text(), expected });
    }
    let dims = array.dims()[1..].to_vec();
    let size = array.size() / replicas;
    (0..replicas)
        .map(|replica| {
            let data = array.data()[replica * size..][..size].to_vec();
            Ok(HostArray::new(array.dtype(), dims.clone(), data)?)
        })
        .collect()
}

/// Puts a result together on process 0, or the first one that has devices of the program, from the shards of all; other
/// processes get `None`. In a program of
/// several replicas the result has a leading dimension with each replica's array.
pub(super) fn gather(
    runtime: &Runtime,
    (gathering, index): (u64, usize),
    result: &GlobalArray,
    shards: &[(Place, &Buffer)],
    layout: &JobLayout,
) -> Result<Option<HostArray>, RuntimeError> {
    let in_result = |source: ArgumentError| RuntimeError::Result { index, source };
    let shard_dims = result.sharding.shard_shape(&result.dims).map_err(|error| in_result(error.into()))?;
    let shard_dims: Vec<usize> = shard_dims.iter().map(|&dim| dim as usize).collect();
    let owners = result.sharding.owners().map_err(|error| in_result(error.into()))?;
    let deadline = Instant::now() + runtime.world.limit();
    let wait = Wait { deadline, judge: &|_| None };
    let transport = runtime.transport.as_deref();
    let root = layout.device_list.world().first();
    let mut replicas = Vec::new();
    for replica in 0..layout.replicas {
        let mut parts = Vec::new();
        for &partition in &owners {
            let place = Place { replica, partition };
            let tag = Tag([GATHER, gathering, index as u64, replica as u64, partition as u64]);
            let owner = layout.process_of(place, runtime.topology());
            if owner == layout.process_index {
                let Some((_, buffer)) = shards.iter().find(|(other, _)| *other == place) else { continue };
                let data = buffer.to_host()?;
                if layout.process_index == root {
                    parts.push((partition, data));
                } else if let Some(transport) = transport {
                    transport.send(root, tag, &[IoSlice::new(&data)], &wait)?;
                }
            } else if layout.process_index == root
                && let Some(transport) = transport
            {
                let size = shard_dims.iter().product::<usize>() * result.dtype.size();
                parts.push((partition, receive(transport, owner, tag, size, &wait)?));
            }
        }
        if layout.process_index == root {
            let parts: Result<Vec<_>, ArgumentError> = parts
                .into_iter()
                .map(|(partition, data)| Ok((partition, HostArray::new(result.dtype, shard_dims.clone(), data)?)))
                .collect();
            let whole = parts.and_then(|parts| Ok(result.sharding.assemble(&result.dims, result.dtype, parts)?));
            replicas.push(whole.map_err(in_result)?);
        }
    }
    if layout.process_index != root {
        return Ok(None);
    }
    stack(replicas, layout.replicas).map_err(|error| in_result(error.into()))
}

/// Which device of which process runs what.
pub(super) struct JobLayout {
    pub replicas: usize,
    pub partitions: usize,
    pub device_list: Arc<DeviceList>,
    pub process_index: u32,
}

impl JobLayout {
    /// The number of a device among those of the program.
    pub fn number(&self, place: Place) -> usize {
        place.replica * self.partitions + place.partition
    }

    fn process_of(&self, place: Place, topology: &Topology) -> u32 {
        self.device_list.process_of(self.number(place), topology)
    }
}

/// The first word of the tags of gathered results, which tells them from collectives.
pub(super) const GATHER: u64 = u64::from_be_bytes(*b"gathered");

pub(super) fn receive(
    transport: &dyn Transport,
    from: u32,
    tag: Tag,
    size: usize,
    wait: &Wait<'_>,
) -> Result<Vec<u8>, RuntimeError> {
    let mut data = vec![0; size];
    // SAFETY: `data` outlives the receive, which is finished or dropped in this function, and is not touched before.
    let receive = unsafe { Receive::post(transport, from, tag, vec![Segment::new(&mut data)], wait.deadline) }?;
    receive.finish(wait)?;
    Ok(data)
}

fn stack(mut replicas: Vec<HostArray>, count: usize) -> Result<Option<HostArray>, crate::host_array::ArrayError> {
    if count == 1 {
        return Ok(replicas.pop());
    }
    let Some(first) = replicas.first() else { return Ok(None) };
    let dtype = first.dtype();
    let dims = [&[count], first.dims()].concat();
    let data = replicas.into_iter().flat_map(HostArray::into_data).collect();
    HostArray::new(dtype, dims, data).map(Some)
}
