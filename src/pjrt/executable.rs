//! Compiled programs and their execution.

mod bare;

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt;
use std::ptr::{NonNull, null, null_mut};

use super::buffer::Buffer;
use super::client::{Client, no_handle};
use super::device::Device;
use super::error::{Error, Result};
use super::event::Event;
use super::ffi;
use super::layout;
use super::value::{Value, read_named_values};
use super::{borrow, copy_text};
use crate::dtype::DType;

/// How to execute a program.
#[derive(Clone, Debug, Default)]
pub struct ExecuteOptions {
    /// Tells executions of one program apart; custom calls see it as their run id.
    pub launch_id: i32,
    /// Arguments that the program would donate to its results, but must not this time.
    pub non_donatable_inputs: Vec<i64>,
}

/// An execution that was started.
#[derive(Debug)]
pub struct Execution {
    /// The results, for each device. Their data may still be on its way.
    pub outputs: Vec<Vec<Buffer>>,
    /// Happen when each device is done with the program; they carry its errors.
    pub done: Vec<Event>,
}

impl Execution {
    /// Waits until every device is done; the first error in the order of devices is the result.
    pub fn wait(&self) -> Result<()> {
        super::event::wait_all(&self.done)
    }
}

/// The memory that a program takes on each device, in bytes, as the compiler reckons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStats {
    /// Machine code.
    pub generated_code: i64,
    /// Arguments.
    pub arguments: i64,
    /// Results.
    pub outputs: i64,
    /// Results that take their arguments' memory; counted in both.
    pub aliased: i64,
    /// Intermediate values.
    pub temporaries: i64,
    /// The most in use at any time; plugins before 0.72 do not tell.
    pub peak: Option<i64>,
}

/// A program that was compiled for devices and loaded onto them.
pub struct LoadedExecutable {
    handles: Handles,
    num_outputs: usize,
    devices: Vec<Device>,
    /// Numbers of element types, and dimensions.
    parameters: Option<Vec<(c_int, Vec<i64>)>>,
}

/// Both sides of a loaded executable; destroys them.
struct Handles {
    loaded: NonNull<ffi::LoadedExecutable>,
    executable: Option<NonNull<ffi::Executable>>,
    client: Client,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

impl Handles {
    fn query_loaded<Q: ffi::Query<Handle = ffi::LoadedExecutable>>(&self) -> Result<Q> {
        // SAFETY: the loaded executable lives until self is dropped.
        unsafe { self.client.plugin().query(self.loaded) }
    }

    fn executable(&self) -> Result<NonNull<ffi::Executable>> {
        self.executable.ok_or_else(|| no_handle("PJRT_LoadedExecutable_GetExecutable", "executable"))
    }

    fn query<Q: ffi::Query<Handle = ffi::Executable>>(&self) -> Result<Q> {
        // SAFETY: the executable lives until self is dropped.
        unsafe { self.client.plugin().query(self.executable()?) }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        let plugin = self.client.plugin();
        // SAFETY: nobody uses the handles after this.
        unsafe {
            if let Some(executable) = self.executable {
                plugin.destroy::<ffi::ExecutableDestroy>(executable);
            }
            plugin.destroy::<ffi::LoadedExecutableDestroy>(self.loaded);
        }
    }
}

impl LoadedExecutable {
    /// # Safety
    /// `loaded` is a live executable of `client` that nobody else destroys.
    pub(super) unsafe fn from_raw(loaded: NonNull<ffi::LoadedExecutable>, client: Client) -> Result<LoadedExecutable> {
        let mut handles = Handles { loaded, executable: None, client };
        handles.executable = NonNull::new(handles.query_loaded::<ffi::GetExecutable>()?.executable);
        let num_outputs = handles.query::<ffi::ExecutableNumOutputs>()?.count;
        let args = handles.query_loaded::<ffi::ExecutableAddressableDevices>()?;
        // SAFETY: the executable's own list of devices.
        let devices = unsafe { borrow(args.devices, args.num_devices) }
            .iter()
            .map(|device| handles.client.device_of(*device, "PJRT_LoadedExecutable_AddressableDevices"))
            .collect::<Result<_>>()?;
        Ok(LoadedExecutable { handles, num_outputs, devices, parameters: None })
    }

    /// The client that compiled the program.
    pub fn client(&self) -> &Client {
        &self.handles.client
    }

    /// The devices of this process that the program runs on, in the order of [`execute`](Self::execute)'s arguments.
    pub fn addressable_devices(&self) -> &[Device] {
        &self.devices
    }

    /// The number of results on each device.
    pub fn num_outputs(&self) -> usize {
        self.num_outputs
    }

    /// Tells the element types and dimensions of the program's parameters, which plugins do not tell, so that
    /// [`execute`](Self::execute) can refuse other arguments. Some plugins crash on them, others read past their end.
    pub fn declare_parameters<'a>(&mut self, parameters: impl IntoIterator<Item = (DType, &'a [i64])>) -> Result<()> {
        let plugin = self.client().plugin();
        let parameters = parameters
            .into_iter()
            .map(|(dtype, dims)| Ok((layout::buffer_type(plugin, dtype)?, dims.to_vec())))
            .collect::<Result<_>>()?;
        self.parameters = Some(parameters);
        Ok(())
    }

    /// Starts the program on all its addressable devices. `args` are the arguments for each device, in the order of
    /// [`addressable_devices`](Self::addressable_devices).
    ///
    /// Returns when the program is on its way, or done: plugins may run small programs for one device on this thread.
    /// Errors that come later are in [`Execution::done`]. Arguments that the program donates are deleted.
    ///
    /// Arguments are checked against [declared parameters](Self::declare_parameters); without these, against those of
    /// the first device, since plugins wait for ever when only some of the devices can start.
    pub fn execute<'a, A: AsRef<[&'a Buffer]>>(&self, args: &[A], options: &ExecuteOptions) -> Result<Execution> {
        let num_devices = self.devices.len();
        if args.len() != num_devices {
            return Err(Error::Invalid(format!(
                "the program runs on {num_devices} devices of this process, got arguments for {}",
                args.len()
            )));
        }
        let num_args = args.first().map_or(0, |args| args.as_ref().len());
        if num_devices > 1 || self.parameters.is_some() {
            for (device, args_of_device) in self.devices.iter().zip(args) {
                self.check_arguments(device, args_of_device.as_ref(), args[0].as_ref())?;
            }
        }
        let buffers: Vec<*mut ffi::Buffer> =
            args.iter().flat_map(|args| args.as_ref().iter().map(|buffer| buffer.as_ptr())).collect();
        let argument_lists: Vec<*const *mut ffi::Buffer> =
            (0..num_devices).map(|device| buffers[device * num_args..].as_ptr()).collect();
        let mut outputs: Vec<*mut ffi::Buffer> = vec![null_mut(); num_devices * self.num_outputs];
        let outputs_start = outputs.as_mut_ptr();
        let output_lists: Vec<*mut *mut ffi::Buffer> =
            // SAFETY: `outputs` has `num_outputs` elements for each device.
            (0..num_devices).map(|device| unsafe { outputs_start.add(device * self.num_outputs) }).collect();
        let mut done: Vec<*mut ffi::Event> = vec![null_mut(); num_devices];
        let mut raw_options = ffi::ExecuteOptions {
            launch_id: options.launch_id,
            non_donatable_input_indices: options.non_donatable_inputs.as_ptr(),
            num_non_donatable_input_indices: options.non_donatable_inputs.len(),
            ..ffi::ExecuteOptions::EMPTY
        };
        // SAFETY: executable and arguments are live; every list has the length that is given, and outlives the call.
        unsafe { self.start(&mut raw_options, &argument_lists, num_args, &output_lists, &mut done) }?;
        let client = self.client();
        let mut outputs = outputs.into_iter().map(|buffer| {
            let buffer = NonNull::new(buffer).ok_or_else(|| no_handle("PJRT_LoadedExecutable_Execute", "buffer"))?;
            // SAFETY: a new buffer of this client.
            Ok(unsafe { Buffer::from_raw(buffer, client.clone()) })
        });
        let done = done.into_iter().map(|event| {
            let event = NonNull::new(event).ok_or_else(|| no_handle("PJRT_LoadedExecutable_Execute", "event"))?;
            // SAFETY: a new event of this client.
            Ok(unsafe { Event::from_raw(event, client.clone()) })
        });
        Ok(Execution {
            outputs: (0..num_devices)
                .map(|_| outputs.by_ref().take(self.num_outputs).collect())
                .collect::<Result<_>>()?,
            done: done.collect::<Result<_>>()?,
        })
    }

    /// Calls the C function.
    ///
    /// # Safety
    /// There is an element for each device of the program in `argument_lists`, each a list of `num_args` live buffers, in
    /// `output_lists`, each with room for all results, and in `done`.
    unsafe fn start(
        &self,
        options: &mut ffi::ExecuteOptions,
        argument_lists: &[*const *mut ffi::Buffer],
        num_args: usize,
        output_lists: &[*mut *mut ffi::Buffer],
        done: &mut [*mut ffi::Event],
    ) -> Result<()> {
        // SAFETY: the executable is live; the lists are as the caller promises, and outlive the call.
        unsafe {
            self.client().plugin().call::<ffi::Execute>(|args| {
                args.executable = self.handles.loaded.as_ptr();
                args.options = options;
                args.argument_lists = argument_lists.as_ptr();
                args.num_devices = self.devices.len();
                args.num_args = num_args;
                args.output_lists = output_lists.as_ptr();
                args.device_complete_events = done.as_mut_ptr();
            })
        }?;
        Ok(())
    }

    /// Refuses arguments that would keep the program, or only this device, from starting.
    fn check_arguments(&self, device: &Device, args: &[&Buffer], args_of_first: &[&Buffer]) -> Result<()> {
        let expected = self.parameters.as_ref().map_or(args_of_first.len(), Vec::len);
        if args.len() != expected {
            return Err(Error::Invalid(format!(
                "the program takes {expected} arguments, device {} got {}",
                device.id(),
                args.len()
            )));
        }
        for (index, (buffer, first)) in args.iter().zip(args_of_first).enumerate() {
            let refuse = |reason: String| {
                Err(Error::Invalid(format!("argument {index} of the program for device {} {reason}", device.id())))
            };
            if buffer.is_deleted()? {
                return refuse("was deleted or donated".to_owned());
            }
            if !buffer.is_on(device)? {
                return refuse(format!("is on {:?}", buffer.device()?));
            }
            let (found, expected) = match &self.parameters {
                Some(parameters) => (buffer.shape()?, (parameters[index].0, &*parameters[index].1)),
                None if buffer.as_ptr() == first.as_ptr() => continue,
                None => (buffer.shape()?, first.shape()?),
            };
            if found != expected {
                let text = |(element_type, dims)| Ok(format!("{}{dims:?}", layout::dtype_of(element_type)?));
                return refuse(format!("is {}, expected {}", text(found)?, text(expected)?));
            }
        }
        Ok(())
    }

    /// The program's name.
    pub fn name(&self) -> Result<String> {
        let args = self.handles.query::<ffi::ExecutableName>()?;
        // SAFETY: text that the executable owns.
        Ok(unsafe { copy_text(args.text, args.text_size) })
    }

    /// Equal for equal programs compiled alike; not every plugin has one.
    pub fn fingerprint(&self) -> Result<Vec<u8>> {
        let args = self.handles.query::<ffi::ExecutableFingerprint>()?;
        // SAFETY: bytes that the executable owns.
        Ok(unsafe { borrow(args.text.cast::<u8>(), args.text_size) }.to_vec())
    }

    /// The number of replicas that the program was compiled for.
    pub fn num_replicas(&self) -> Result<usize> {
        Ok(self.handles.query::<ffi::ExecutableNumReplicas>()?.count)
    }

    /// The number of partitions that the program was compiled for.
    pub fn num_partitions(&self) -> Result<usize> {
        Ok(self.handles.query::<ffi::ExecutableNumPartitions>()?.count)
    }

    /// The element types of the results.
    pub fn output_dtypes(&self) -> Result<Vec<DType>> {
        let args = self.handles.query::<ffi::ExecutableOutputTypes>()?;
        // SAFETY: a list that the executable owns.
        unsafe { borrow(args.types, args.num_types) }.iter().map(|number| layout::dtype_of(*number)).collect()
    }

    /// The dimensions of the results.
    pub fn output_dims(&self) -> Result<Vec<Vec<i64>>> {
        let args = self.handles.query::<ffi::ExecutableOutputDimensions>()?;
        // SAFETY: lists that the executable owns; the dimensions of all results stand one after the other.
        let (ranks, mut dims) = unsafe {
            let ranks = borrow(args.dim_sizes, args.num_outputs);
            (ranks, borrow(args.dims, ranks.iter().sum()))
        };
        Ok(ranks
            .iter()
            .map(|&rank| {
                let (these, rest) = dims.split_at(rank.min(dims.len()));
                dims = rest;
                these.to_vec()
            })
            .collect())
    }

    /// The kinds of memory that the results are in.
    pub fn output_memory_kinds(&self) -> Result<Vec<String>> {
        let args = self.handles.query::<ffi::ExecutableOutputMemoryKinds>()?;
        // SAFETY: lists that the executable owns, of equal lengths.
        unsafe {
            let kinds = borrow(args.kinds, args.num_outputs);
            let sizes = borrow(args.kind_sizes, args.num_outputs);
            Ok(kinds.iter().zip(sizes).map(|(kind, size)| copy_text(*kind, *size)).collect())
        }
    }

    /// The size of the machine code in bytes; -1 where the plugin cannot tell.
    pub fn generated_code_size(&self) -> Result<i64> {
        Ok(self.handles.query::<ffi::ExecutableCodeSize>()?.size)
    }

    /// The memory that the program takes on each device.
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        let args = self.handles.query::<ffi::ExecutableMemoryStats>()?;
        Ok(MemoryStats {
            generated_code: args.generated_code,
            arguments: args.arguments,
            outputs: args.outputs,
            aliased: args.aliased,
            temporaries: args.temporaries,
            peak: (self.client().plugin().api_version().minor >= 72).then_some(args.peak_memory),
        })
    }

    /// The compiler's estimates, such as `flops` and `bytes accessed`.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, Value>> {
        let args = self.handles.query::<ffi::ExecutableCostAnalysis>()?;
        // SAFETY: a list that the executable owns.
        Ok(unsafe { read_named_values(args.properties, args.num_properties) })
    }

    /// The program after all of the compiler's passes, and the name of its format: `hlo_with_config`, `hlo` or `mlir`.
    pub fn optimized_program(&self) -> Result<(Vec<u8>, String)> {
        let mut program = ffi::Program {
            struct_size: size_of::<ffi::Program>(),
            extension_start: null_mut(),
            code: null_mut(),
            code_size: 0,
            format: null(),
            format_size: 0,
        };
        self.read_optimized_program(&mut program)?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        self.read_optimized_program(&mut program)?;
        code.truncate(program.code_size);
        // SAFETY: the format's name is static in the plugin.
        let format = unsafe { copy_text(program.format, program.format_size) };
        Ok((code, format))
    }

    /// The compiled program as bytes, for [`Client::load`](super::Client::load) of the same plugin on a machine of the same
    /// kind. Not every plugin can.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let executable = self.handles.executable()?;
        let plugin = self.client().plugin();
        // SAFETY: the executable is live.
        let args = unsafe {
            plugin.call::<ffi::ExecutableSerialize>(|args| args.executable = executable.as_ptr().cast_const())
        }?;
        // SAFETY: bytes that live until their deleter is called, once.
        unsafe {
            let bytes = borrow(args.bytes.cast::<u8>(), args.bytes_size).to_vec();
            if let Some(delete) = args.deleter {
                delete(args.serialized);
            }
            Ok(bytes)
        }
    }

    /// With a null `code` asks only for the size.
    fn read_optimized_program(&self, program: &mut ffi::Program) -> Result<()> {
        let executable = self.handles.executable()?;
        // SAFETY: the executable is live, and `code` null or of the size that the plugin asked for.
        unsafe {
            self.client().plugin().call::<ffi::OptimizedProgram>(|args| {
                args.executable = executable.as_ptr();
                args.program = program;
            })
        }
        .map(drop)
    }

    /// Unloads the program from its devices now; executing it after that is an error.
    pub fn delete(&self) -> Result<()> {
        self.handles.query_loaded::<ffi::LoadedExecutableDelete>().map(drop)
    }

    /// Whether the program was unloaded.
    pub fn is_deleted(&self) -> Result<bool> {
        Ok(self.handles.query_loaded::<ffi::LoadedExecutableIsDeleted>()?.is_deleted)
    }
}

impl fmt::Debug for LoadedExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedExecutable")
            .field("name", &self.name().ok())
            .field("devices", &self.devices)
            .field("num_outputs", &self.num_outputs)
            .finish()
    }
}
