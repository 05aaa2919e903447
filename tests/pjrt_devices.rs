//! Plugins, clients and devices as real plugins show them.

mod common;

use std::collections::BTreeSet;

use common::*;
use spmd_run::pjrt::*;

#[test]
fn a_plugin_tells_about_itself() {
    for plugin in plugins() {
        assert_eq!(plugin.api_version().major, 0);
        assert!(plugin.attributes().unwrap().contains_key("xla_version"));
        assert!(plugin.extensions().iter().any(|extension| extension.name == Some("FFI")));
        let again = Plugin::load(plugin.path()).unwrap();
        assert_eq!(again.path(), plugin.path());
    }
}

#[test]
fn devices_have_ids_kinds_and_memories() {
    for plugin in plugins() {
        let client = client(&plugin, 3);
        assert_eq!(client.platform_name().unwrap(), "cpu");
        assert!(!client.platform_version().unwrap().is_empty());
        assert_eq!(client.process_index().unwrap(), 0);
        let devices = client.devices();
        assert_eq!(devices, client.addressable_devices());
        for (index, device) in devices.iter().enumerate() {
            assert_eq!(device.id(), index as i32);
            assert_eq!(device.process_index(), 0);
            assert!(device.is_addressable() && device.local_hardware_id().is_some());
            assert!(!device.kind().unwrap().is_empty());
            assert!(!device.description().unwrap().is_empty() && !device.debug_string().unwrap().is_empty());
            device.attributes().unwrap();
            let memory = device.default_memory().unwrap();
            assert!(device.memories().unwrap().contains(&memory));
            assert!(memory.devices().unwrap().contains(device));
            assert!(!memory.kind().unwrap().is_empty() && !memory.debug_string().unwrap().is_empty());
            // CPUs have no allocator to ask, which the plugin says.
            assert!(device.allocator_stats().is_err());
        }
        let memories = client.addressable_memories().unwrap();
        let ids: BTreeSet<i32> = memories.iter().map(|memory| memory.id().unwrap()).collect();
        assert_eq!(ids.len(), memories.len());
    }
}

#[test]
fn options_that_a_plugin_does_not_follow_are_errors() {
    for plugin in plugins() {
        let options = [("cpu_device_count".to_owned(), 2.into()), ("process_id".to_owned(), 1.into())];
        match plugin.create_client(&options, None) {
            Ok(client) => assert_eq!(client.process_index().unwrap(), 1),
            Err(Error::OptionIgnored { option, .. }) => assert_eq!(option, "process_id"),
            Err(other) => panic!("{plugin:?}: {other}"),
        }
    }
}
