//! What the processes of a job do together with values in their own memory, as `jax.experimental.multihost_utils`.
//!
//! Every process calls these in the same order, as it does programs.

use std::io::IoSlice;
use std::time::Instant;

use crate::dtype::DType;
use crate::host_array::HostArray;
use crate::transport::{Tag, Wait};

use super::arrays::{GATHER, receive};
use super::device_list::DeviceList;
use super::{ArrayError, Runtime, RuntimeError};

/// Elements that a message shows; of larger arrays it has a checksum.
const SHOWN: usize = 16;

/// The array of process 0, in every process. What the others give does not matter.
///
/// # Errors
/// Another process fails.
pub fn broadcast_one_to_all(runtime: &Runtime, array: &HostArray) -> Result<HostArray, ArrayError> {
    let gathering = runtime.next_gathering();
    let shape = (array.dtype(), array.dims().to_vec());
    let (dtype, dims): (DType, Vec<usize>) =
        runtime.world.all_gather(&format!("broadcast/{gathering}"), shape).map_err(RuntimeError::from)?.swap_remove(0);
    let size = dims.iter().product::<usize>() * dtype.size();
    let data = spread(runtime, &runtime.devices, 0, Tag([GATHER, gathering, u64::MAX, 1, 0]), size, || {
        Ok(array.data().to_vec())
    })?;
    Ok(HostArray::new(dtype, dims, data)?)
}

/// The arrays of all processes, in every process: one after the other along the first dimension if `tiled`, else with one more
/// dimension in front.
///
/// # Errors
/// The arrays are of different types or shapes, are scalars that are to be tiled, or another process fails.
pub fn process_allgather(runtime: &Runtime, array: &HostArray, tiled: bool) -> Result<HostArray, ArrayError> {
    let gathering = runtime.next_gathering();
    let shape = [("the array to be gathered".to_owned(), array.shape_text())];
    runtime.world.agree(&format!("gathering/{gathering}"), &shape)?;
    let count = runtime.world.process_count();
    let mut dims = array.dims().to_vec();
    match dims.first_mut() {
        Some(rows) if tiled => *rows *= count as usize,
        None if tiled => return Err(ArrayError::Scalar),
        _ => dims.insert(0, count as usize),
    }
    let mut data = Vec::with_capacity(array.size() * count as usize);
    for process in 0..count {
        let tag = Tag([GATHER, gathering, u64::MAX, 2, process.into()]);
        data.extend(spread(runtime, &runtime.devices, process, tag, array.size(), || Ok(array.data().to_vec()))?);
    }
    Ok(HostArray::new(array.dtype(), dims, data)?)
}

/// Waits until every process is here, under the same name.
///
/// # Errors
/// Another process is somewhere else, which the message tells, or fails.
pub fn sync_global_devices(runtime: &Runtime, name: &str) -> Result<(), RuntimeError> {
    let gathering = runtime.next_gathering();
    runtime.world.agree(&format!("sync/{gathering}"), &[("waits for all at".to_owned(), name.to_owned())])
}

/// Checks that all processes have the same array; `name` is what the message calls it.
///
/// # Errors
/// They have not, and the message tells who has what, or another process fails.
pub fn assert_equal(runtime: &Runtime, name: &str, array: &HostArray) -> Result<(), RuntimeError> {
    let gathering = runtime.next_gathering();
    let shape = array.shape_text();
    let value = if array.num_elements() <= SHOWN {
        format!("{shape} {array}")
    } else {
        format!("{shape} BLAKE3 {}", &blake3::hash(array.data()).to_hex()[..16])
    };
    runtime.world.agree(&format!("equal/{gathering}"), &[(name.to_owned(), value)])
}

/// Brings bytes of one process to all that have some of these devices.
pub(super) fn spread(
    runtime: &Runtime,
    devices: &DeviceList,
    from: u32,
    tag: Tag,
    size: usize,
    data: impl FnOnce() -> Result<Vec<u8>, RuntimeError>,
) -> Result<Vec<u8>, RuntimeError> {
    let this = runtime.world.process_index();
    let Some(transport) = runtime.transport.as_deref() else { return data() };
    let wait = Wait { deadline: Instant::now() + runtime.world.limit(), judge: &|_| None };
    if from != this {
        return receive(transport, from, tag, size, &wait);
    }
    let data = data()?;
    for other in devices.processes().iter().copied().filter(|&other| other != this) {
        transport.send(other, tag, &[IoSlice::new(&data)], &wait)?;
    }
    Ok(data)
}
