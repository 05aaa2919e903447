//! Error paths, on a plugin that can be given holes. It is compiled from C with gcc when the tests run.

mod common;
mod harness;

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use common::*;
use harness::build_plugin;
use spmd_run::dtype::DType;
use spmd_run::pjrt::*;
use tempfile::TempDir;

/// `struct mock` of tests/mock_plugin/plugin.c.
#[repr(C)]
struct Mock {
    major: c_int,
    minor: c_int,
    table_size: usize,
    null_slot: c_int,
    null_api: bool,
    null_outputs: bool,
    ignore_options: bool,
    no_extensions: bool,
    initialized: c_int,
    live_clients: c_int,
    live_buffers: c_int,
    live_executables: c_int,
    live_loaded: c_int,
    live_events: c_int,
    live_errors: c_int,
    clients_destroyed: c_int,
    used_after_client: c_int,
    kv_log: [u8; 256],
}

impl Mock {
    fn live_handles(&self) -> [c_int; 5] {
        [self.live_buffers, self.live_executables, self.live_loaded, self.live_events, self.live_errors]
    }
}

/// A copy of the mock plugin of its own, so that no test sees another's state.
struct MockPlugin {
    path: PathBuf,
    state: *mut Mock,
    _folder: TempDir,
}

impl MockPlugin {
    fn new(configure: impl FnOnce(&mut Mock)) -> MockPlugin {
        static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mock_plugin.so");
        std::fs::write(
            &path,
            LIBRARY
                .get_or_init(|| build_plugin("tests/mock_plugin/plugin.c".as_ref(), &folder.path().join("built.so"))),
        )
        .unwrap();
        // SAFETY: our own library, which stays loaded; `mock` returns its static state.
        let state = unsafe {
            let library = Box::leak(Box::new(libloading::Library::new(&path).unwrap()));
            library.get::<unsafe extern "C" fn() -> *mut Mock>(b"mock\0").unwrap()()
        };
        let plugin = MockPlugin { path, state, _folder: folder };
        // SAFETY: nobody else uses this copy's state yet.
        configure(unsafe { &mut *plugin.state });
        plugin
    }

    fn load(&self) -> Result<Plugin> {
        Plugin::load(&self.path)
    }

    fn state(&self) -> &Mock {
        // SAFETY: read only while no call into the plugin is under way.
        unsafe { &*self.state }
    }
}

/// Uses all that the mock plugin has.
fn live_a_whole_life(plugin: &Plugin) -> Result<()> {
    plugin.attributes()?;
    let client = plugin.create_client(&[("cpu_device_count".to_owned(), 2.into())], None)?;
    client.platform_name()?;
    client.process_index()?;
    client.addressable_memories()?;
    let devices = client.addressable_devices();
    let data = bytes_of(&[1.0, 2.0]);
    let buffers = devices
        .iter()
        .map(|device| client.buffer_from_host(&data, DType::F32, &[2], HostLayout::RowMajor, device))
        .collect::<Result<Vec<_>>>()?;
    let executable = client.compile(&Program { code: b"good", format: ProgramFormat::Hlo }, &[])?;
    let execution = executable.execute(&[[&buffers[0]], [&buffers[1]]], &ExecuteOptions::default())?;
    execution.wait()?;
    for event in &execution.done {
        assert!(event.is_ready()?);
    }
    assert_eq!(execution.outputs[1][0].to_host()?, data);
    assert_eq!(execution.outputs[1][0].device()?, devices[1]);
    let (sender, receiver) = mpsc::channel();
    execution.done[0].on_ready(move |outcome| sender.send(outcome).unwrap())?;
    assert!(receiver.recv().unwrap().is_err());
    Ok(())
}

#[test]
fn everything_is_destroyed_once() {
    let mock = MockPlugin::new(|_| ());
    live_a_whole_life(&mock.load().unwrap()).unwrap();
    live_a_whole_life(&mock.load().unwrap()).unwrap();
    let state = mock.state();
    assert_eq!(state.initialized, 1);
    assert_eq!((state.live_clients, state.clients_destroyed), (0, 2));
    assert_eq!(state.live_handles(), [0; 5]);
}

#[test]
fn the_client_outlives_what_was_made_with_it() {
    let mock = MockPlugin::new(|_| ());
    let plugin = mock.load().unwrap();
    let client = plugin.create_client(&[("cpu_device_count".to_owned(), 1.into())], None).unwrap();
    let device = client.addressable_devices().remove(0);
    let data = bytes_of(&[1.0]);
    let buffer = client.buffer_from_host(&data, DType::F32, &[1], HostLayout::RowMajor, &device).unwrap();
    let executable = client.compile(&Program { code: b"good", format: ProgramFormat::Hlo }, &[]).unwrap();
    let execution = executable.execute(&[[&buffer]], &ExecuteOptions::default()).unwrap();
    drop(client);
    drop(plugin);
    drop(device);
    assert_eq!(buffer.to_host().unwrap(), data);
    drop(buffer);
    drop(executable);
    assert_eq!(mock.state().live_clients, 1);
    drop(execution);
    let state = mock.state();
    assert_eq!((state.clients_destroyed, state.used_after_client), (1, 0));
    assert_eq!(state.live_handles(), [0; 5]);
}

/// The slots that the mock plugin fills, with their names.
const SLOTS: [(c_int, &str); 33] = [
    (0, "PJRT_Error_Destroy"),
    (1, "PJRT_Error_Message"),
    (2, "PJRT_Error_GetCode"),
    (3, "PJRT_Plugin_Initialize"),
    (4, "PJRT_Plugin_Attributes"),
    (5, "PJRT_Event_Destroy"),
    (6, "PJRT_Event_IsReady"),
    (8, "PJRT_Event_Await"),
    (9, "PJRT_Event_OnReady"),
    (10, "PJRT_Client_Create"),
    (11, "PJRT_Client_Destroy"),
    (12, "PJRT_Client_PlatformName"),
    (13, "PJRT_Client_ProcessIndex"),
    (15, "PJRT_Client_Devices"),
    (16, "PJRT_Client_AddressableDevices"),
    (19, "PJRT_Client_AddressableMemories"),
    (20, "PJRT_Client_Compile"),
    (22, "PJRT_Client_BufferFromHostBuffer"),
    (23, "PJRT_DeviceDescription_Id"),
    (24, "PJRT_DeviceDescription_ProcessIndex"),
    (29, "PJRT_Device_GetDescription"),
    (30, "PJRT_Device_IsAddressable"),
    (31, "PJRT_Device_LocalHardwareId"),
    (44, "PJRT_Executable_NumOutputs"),
    (51, "PJRT_LoadedExecutable_GetExecutable"),
    (52, "PJRT_LoadedExecutable_AddressableDevices"),
    (55, "PJRT_LoadedExecutable_Execute"),
    (58, "PJRT_Buffer_Destroy"),
    (59, "PJRT_Buffer_ElementType"),
    (60, "PJRT_Buffer_Dimensions"),
    (65, "PJRT_Buffer_Device"),
    (68, "PJRT_Buffer_IsDeleted"),
    (70, "PJRT_Buffer_ToHostBuffer"),
];

#[test]
fn a_missing_function_is_named_and_never_called() {
    for (slot, name) in SLOTS {
        let mock = MockPlugin::new(|mock| mock.null_slot = slot);
        let plugin = mock.load().unwrap();
        let result = live_a_whole_life(&plugin);
        // Nothing is lost without these: errors have no details, handles are not freed.
        let dispensable = name.contains("Destroy") || name.contains("Error_") || name.contains("Initialize");
        match result {
            Ok(()) => assert!(dispensable, "{name}"),
            Err(Error::Lacks { plugin, what }) => {
                assert!(!dispensable, "{name}");
                assert_eq!(what, name);
                assert_eq!(plugin, "mock_plugin.so (PJRT 0.114)");
            }
            Err(other) => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn functions_past_the_end_of_a_short_table_are_missing() {
    const HEAD: usize = 40;
    let mock = MockPlugin::new(|mock| mock.table_size = HEAD + 52 * size_of::<usize>());
    let client = mock.load().unwrap().create_client(&[], None).unwrap();
    let error = client.compile(&Program { code: b"good", format: ProgramFormat::Hlo }, &[]).unwrap_err();
    assert_eq!(error.to_string(), "plugin mock_plugin.so (PJRT 0.114) lacks PJRT_LoadedExecutable_AddressableDevices");
    drop(client);
    assert_eq!((mock.state().live_clients, mock.state().live_handles()), (0, [0; 5]));
}

#[test]
fn what_cannot_be_a_plugin_is_refused() {
    let refused = |configure: fn(&mut Mock)| {
        let mock = MockPlugin::new(configure);
        let error = mock.load().unwrap_err();
        assert!(matches!(error, Error::NotAPlugin { .. }), "{error:?}");
        assert_eq!(mock.state().initialized, 0);
        error.to_string()
    };
    assert!(refused(|mock| mock.null_api = true).contains("GetPjrtApi returned null"));
    assert!(refused(|mock| mock.table_size = 16).contains("16 bytes"));
    assert!(refused(|mock| mock.major = 1).contains("it speaks PJRT C API 1.114, this program 0.x from 0.57 on"));
    assert!(refused(|mock| mock.minor = 40).contains("it speaks PJRT C API 0.40"));
}

#[test]
fn files_that_are_no_plugins_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Plugin::load(folder.path().join("nope.so")).unwrap_err();
    assert!(matches!(missing, Error::Load { .. }) && missing.to_string().contains("nope.so"), "{missing}");
    let text = folder.path().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    assert!(matches!(Plugin::load(&text).unwrap_err(), Error::Load { .. }));
    let (source, other) = (folder.path().join("other.c"), folder.path().join("other.so"));
    std::fs::write(&source, "int nothing_of_pjrt(void) { return 0; }").unwrap();
    build_plugin(&source, &other);
    let error = Plugin::load(&other).unwrap_err();
    assert!(error.to_string().contains("exports no function GetPjrtApi"), "{error}");
}

#[test]
fn attributes_of_a_newer_plugin_are_read() {
    let attributes = MockPlugin::new(|_| ()).load().unwrap().attributes().unwrap();
    assert_eq!(attributes.len(), 2);
    assert_eq!(attributes["mock_version"], Value::Int(3));
    assert_eq!(attributes["vendor"], Value::String("nobody".to_owned()));
}

#[test]
fn extensions_are_optional() {
    let plugin = MockPlugin::new(|_| ()).load().unwrap();
    assert_eq!(
        plugin.extensions(),
        [Extension { number: 5, name: Some("FFI") }, Extension { number: 777, name: None }]
    );
    assert!(plugin.ffi().is_none(), "its FFI extension is too short to hold functions");
    let bare = MockPlugin::new(|mock| mock.no_extensions = true).load().unwrap();
    assert!(bare.extensions().is_empty() && bare.ffi().is_none());
}

#[test]
fn an_option_without_effect_is_an_error() {
    let options = [("cpu_device_count".to_owned(), 1.into())];
    let obeys = MockPlugin::new(|_| ());
    let client = obeys.load().unwrap().create_client(&options, None).unwrap();
    assert_eq!(client.addressable_devices().len(), 1);
    let ignores = MockPlugin::new(|mock| mock.ignore_options = true);
    let error = ignores.load().unwrap().create_client(&options, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "plugin mock_plugin.so (PJRT 0.114) ignored the option cpu_device_count=1: it created 2 devices"
    );
    assert_eq!(ignores.state().live_clients, 0);
    let error = obeys.load().unwrap().create_client(&[("process_id".to_owned(), 3.into())], None).unwrap_err();
    assert!(error.to_string().contains("process_id=3: its process index is 0"), "{error}");
}

#[test]
fn errors_carry_code_message_and_function() {
    let mock = MockPlugin::new(|_| ());
    let plugin = mock.load().unwrap();
    let error = plugin.create_client(&[("fail".to_owned(), true.into())], None).unwrap_err();
    assert_eq!(error.to_string(), "PJRT_Client_Create: told to fail (INVALID_ARGUMENT)");
    assert_eq!(error.code(), Some(ErrorCode::InvalidArgument));
    let client = plugin.create_client(&[], None).unwrap();
    let error = client.compile(&Program { code: b"bad", format: ProgramFormat::Hlo }, &[]).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Unimplemented));
    assert_eq!(mock.state().live_errors, 0);
}

#[test]
fn null_handles_are_errors() {
    let mock = MockPlugin::new(|mock| mock.null_outputs = true);
    let client = mock.load().unwrap().create_client(&[("cpu_device_count".to_owned(), 1.into())], None).unwrap();
    let device = &client.addressable_devices()[0];
    assert!(device.default_memory().unwrap_err().to_string().contains("returned no memory"));
    let data = bytes_of(&[1.0]);
    let buffer = client.buffer_from_host(&data, DType::F32, &[1], HostLayout::RowMajor, device).unwrap();
    let executable = client.compile(&Program { code: b"good", format: ProgramFormat::Hlo }, &[]).unwrap();
    let error = executable.execute(&[[&buffer]], &ExecuteOptions::default()).unwrap_err();
    assert!(error.to_string().contains("returned no buffer"), "{error}");
}

#[test]
fn plugins_rendezvous_through_our_key_value_store() {
    struct Store;

    impl KeyValueStore for Store {
        fn get(&self, key: &str, timeout: Duration) -> std::result::Result<Vec<u8>, String> {
            assert_ne!(key, "panic");
            Ok(format!("got {key} in {timeout:?}").into_bytes())
        }

        fn try_get(&self, key: &str) -> std::result::Result<Option<Vec<u8>>, String> {
            Ok((key == "mock/key").then(|| b"there".to_vec()))
        }

        fn put(&self, key: &str, value: &[u8]) -> std::result::Result<(), String> {
            Err(format!("no room for {key}={}", String::from_utf8_lossy(value)))
        }
    }

    let mock = MockPlugin::new(|_| ());
    let store: Arc<dyn KeyValueStore> = Arc::new(Store);
    let client = mock.load().unwrap().create_client(&[], Some(store.clone())).unwrap();
    assert_eq!(Arc::strong_count(&store), 2, "the client may call the store as long as it lives");
    drop(client);
    assert_eq!(Arc::strong_count(&store), 1);
    let log = mock.state().kv_log;
    let log = std::str::from_utf8(&log).unwrap().trim_end_matches('\0');
    assert_eq!(
        log,
        "put no room for mock/key=value;get got mock/key in 2s;try there;\
         try no value was put under the key missing;get the key-value store panicked at the key panic;"
    );
    assert_eq!(mock.state().live_errors, 0);
}
