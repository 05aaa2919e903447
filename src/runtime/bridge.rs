//! Where the custom calls of lowered programs land: the way from XLA's devices to the job's collectives.
//!
//! A handler knows of its execution only the `launch_id` that it was started with. [`Run`] binds such an id to what the
//! execution needs for as long as it lasts.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::collective::{CollectiveError, Input, Output, ProgramCollectives};
use crate::dtype::DType;
use crate::launch::phase;
use crate::lower::{COLLECTIVE_TARGET, LOGICAL_ID_TARGET, MARKER_TARGET};
use crate::pjrt::{self, Attr, BufferRef, CallFrame, CompileOptions, ErrorCode, FfiError, Outcome, Plugin, Value};

/// The platform under which CPU plugins look for custom calls.
const PLATFORM: &str = "Host";

/// What the custom calls of one execution refer to.
#[derive(Clone)]
pub struct RunContext {
    /// The program's collectives.
    pub collectives: Arc<ProgramCollectives>,
    /// Which execution of the program this is; the same on every process.
    pub run: u64,
    /// The number in the program of each of this process's devices; any for those that do not run it.
    pub logical_ids: Arc<[u32]>,
    /// Partitions of the program: the device with number d runs partition d mod `partitions` of replica d div `partitions`.
    pub partitions: u32,
}

/// Binds a launch id to an execution. Keep it until the execution is complete.
pub struct Run {
    launch_id: i32,
}

static RUNS: LazyLock<RwLock<HashMap<i64, Arc<RunContext>>>> = LazyLock::new(RwLock::default);

impl Run {
    /// Makes the context known under a launch id of its own.
    pub fn begin(context: RunContext) -> Run {
        static NEXT: AtomicI32 = AtomicI32::new(1);
        let context = Arc::new(context);
        loop {
            let launch_id = NEXT.fetch_add(1, Ordering::Relaxed) & i32::MAX;
            let mut runs = RUNS.write().unwrap_or_else(PoisonError::into_inner);
            // Zero is what executions have that set none.
            if launch_id != 0 && !runs.contains_key(&launch_id.into()) {
                runs.insert(launch_id.into(), context);
                return Run { launch_id };
            }
        }
    }

    /// To be passed to the execution.
    pub fn launch_id(&self) -> i32 {
        self.launch_id
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        RUNS.write().unwrap_or_else(PoisonError::into_inner).remove(&self.launch_id.into());
    }
}

/// Tells the plugin of our custom calls, the first time that it is asked to.
pub fn register(plugin: &Plugin) -> pjrt::Result<()> {
    static REGISTERED: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    if registered.contains(plugin.path()) {
        return Ok(());
    }
    let ffi = plugin.ffi().ok_or_else(|| pjrt::Error::Lacks {
        plugin: plugin.path().display().to_string(),
        what: "the FFI extension: its devices cannot take part in collectives across processes".to_owned(),
    })?;
    ffi.register(COLLECTIVE_TARGET, PLATFORM, collective)?;
    ffi.register(LOGICAL_ID_TARGET, PLATFORM, logical_id)?;
    ffi.register(MARKER_TARGET, PLATFORM, |_| Outcome::Done(Ok(())))?;
    registered.insert(plugin.path().to_owned());
    Ok(())
}

/// How a lowered program is compiled for the devices of one process.
///
/// XLA ends the whole process when one of its own collectives, between local devices, waits for longer than 40 seconds.
/// A device may well be that late because of another process, so XLA waits for longer than we do.
pub fn compile_options(devices_per_process: u32, limit: Duration) -> CompileOptions {
    let seconds = i32::try_from(limit.as_secs().saturating_mul(2)).unwrap_or(i32::MAX);
    let terminate = "xla_cpu_collective_call_terminate_timeout_seconds";
    CompileOptions {
        num_replicas: devices_per_process.into(),
        env_overrides: vec![(terminate.to_owned(), Value::Int(seconds.into()))],
        ..CompileOptions::default()
    }
}

fn collective(frame: &CallFrame<'_>) -> Outcome {
    match enter(frame) {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Done(Err(error)),
    }
}

fn enter(frame: &CallFrame<'_>) -> Result<Outcome, FfiError> {
    let (context, device) = place(frame)?;
    let key = frame.int_attr("key")?;
    let key = u32::try_from(key).map_err(|_| invalid(format!("{key} is no collective's key")))?;
    let (operands, results) = (frame.args()?, frame.results()?);
    if device == 0 {
        phase::collective(context.collectives.name(key).unwrap_or_default());
    }
    // The last ones only make an order.
    let (Some((_, operands)), Some((_, results))) = (operands.split_last(), results.split_last()) else {
        return Err(invalid("the custom call needs operands and results"));
    };
    let (inputs, unpacked): (Vec<Input>, Vec<Vec<u8>>) = operands.iter().map(input).unzip();
    let (outputs, to_pack): (Vec<Output>, Vec<Option<ToPack>>) = results.iter().map(output).unzip();
    let (outcome, completion) = frame.defer();
    context.collectives.enter(context.run, key, device, inputs, outputs, move |result| {
        drop(unpacked);
        to_pack.into_iter().flatten().for_each(ToPack::pack);
        completion.complete(result.map_err(to_ffi_error));
    });
    Ok(outcome)
}

/// A result whose elements share bytes in the plugin's memory, and its elements with a byte each.
struct ToPack {
    dtype: DType,
    elements: Vec<u8>,
    stored: *mut u8,
    stored_len: usize,
}

// SAFETY: the memory behind `stored` is the call's, whichever thread completes it.
unsafe impl Send for ToPack {}

impl ToPack {
    fn pack(self) {
        // SAFETY: the plugin keeps the result for us until the call is complete, which is after this.
        let stored = unsafe { std::slice::from_raw_parts_mut(self.stored, self.stored_len) };
        pjrt::pack(self.dtype, &self.elements, stored);
    }
}

/// An operand with its bytes, and what must live as long as these.
fn input(operand: &BufferRef<'_>) -> (Input, Vec<u8>) {
    let len = operand.size_in_bytes();
    if !pjrt::is_packed(operand.dtype) || len == 0 {
        // SAFETY: the plugin keeps operands as they are until the call is complete.
        return (unsafe { Input::new(operand.ptr, len) }, Vec::new());
    }
    let mut elements = vec![0; operand.num_elements()];
    // SAFETY: the plugin's memory of this operand.
    pjrt::unpack(operand.dtype, unsafe { std::slice::from_raw_parts(operand.ptr, len) }, &mut elements);
    // SAFETY: the elements do not move when their vector does, and it lives until the call is done.
    (unsafe { Input::new(elements.as_ptr(), elements.len()) }, elements)
}

/// A result with room for its bytes, and what is to be done with them once they are there.
fn output(result: &BufferRef<'_>) -> (Output, Option<ToPack>) {
    let stored_len = result.size_in_bytes();
    if !pjrt::is_packed(result.dtype) || stored_len == 0 {
        // SAFETY: the plugin leaves results to us until the call is complete, and they overlap nothing else as the
        // program declares no aliasing.
        return (unsafe { Output::new(result.ptr, stored_len) }, None);
    }
    let mut elements = vec![0; result.num_elements()];
    // SAFETY: the elements do not move when their vector does, and it lives until the call is done.
    let output = unsafe { Output::new(elements.as_mut_ptr(), elements.len()) };
    (output, Some(ToPack { dtype: result.dtype, elements, stored: result.ptr, stored_len }))
}

fn logical_id(frame: &CallFrame<'_>) -> Outcome {
    Outcome::Done(write_logical_id(frame))
}

fn write_logical_id(frame: &CallFrame<'_>) -> Result<(), FfiError> {
    let (context, device) = place(frame)?;
    let own = context.logical_ids.get(device as usize);
    let device = *own.ok_or_else(|| invalid(format!("the program does not run on local device {device}")))?;
    let id = match frame.attr("kind") {
        Some(Attr::Str("replica")) => device / context.partitions.max(1),
        Some(Attr::Str("partition")) => device % context.partitions.max(1),
        found => return Err(invalid(format!("the custom call needs a kind of id, found {found:?}"))),
    };
    match frame.results()?[..] {
        [result] if result.size_in_bytes() == size_of::<u32>() => {
            // SAFETY: the result is ours to write, and has room for these bytes.
            unsafe { result.ptr.cast::<u32>().write_unaligned(id) };
            Ok(())
        }
        _ => Err(invalid("the custom call needs one result of type u32[]")),
    }
}

/// The execution that a call belongs to, and the local device that it runs on.
fn place(frame: &CallFrame<'_>) -> Result<(Arc<RunContext>, u32), FfiError> {
    let launch_id = frame.run_id()?;
    let device = frame.device_ordinal()?;
    let device = u32::try_from(device).map_err(|_| invalid(format!("{device} is no local device")))?;
    let runs = RUNS.read().unwrap_or_else(PoisonError::into_inner);
    let context = runs.get(&launch_id).ok_or_else(|| invalid(format!("no execution has launch id {launch_id}")))?;
    Ok((context.clone(), device))
}

fn invalid(message: impl Into<String>) -> FfiError {
    FfiError::new(ErrorCode::InvalidArgument, message)
}

fn to_ffi_error(error: CollectiveError) -> FfiError {
    let code = match error {
        CollectiveError::Timeout { .. } => ErrorCode::DeadlineExceeded,
        CollectiveError::InvalidSpec { .. }
        | CollectiveError::InvalidWorld(_)
        | CollectiveError::DuplicateProgram(_)
        | CollectiveError::UnknownKey { .. }
        | CollectiveError::InvalidCall { .. } => ErrorCode::InvalidArgument,
        CollectiveError::Transport { .. } => ErrorCode::Unavailable,
        CollectiveError::Remote { .. } | CollectiveError::Aborted(_) | CollectiveError::Closed => ErrorCode::Aborted,
        CollectiveError::Diverged(_) => ErrorCode::FailedPrecondition,
        CollectiveError::Internal { .. } => ErrorCode::Internal,
    };
    FfiError::new(code, error.to_string())
}
