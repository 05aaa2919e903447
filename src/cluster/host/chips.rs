//! Accelerator chips, as the PCI bus shows them. Device nodes alone prove little: other vendors have `/dev/accel*` and
//! `/dev/vfio/*` as well.

use std::fs;
use std::path::Path;

use serde::Serialize;

const DEVICES: &str = "sys/bus/pci/devices";

/// Who makes a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Vendor {
    /// PCI vendor 0x1ae0; TPUs.
    Google,
    /// PCI vendor 0x10de; GPUs.
    Nvidia,
}

/// A chip on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chip {
    /// Its place on the bus, `0000:00:04.0`.
    pub address: String,
    /// Its maker.
    pub vendor: Vendor,
    /// What it is, or its PCI device id.
    pub kind: String,
}

/// PCI device ids of TPUs, as JAX knows them.
const TPUS: [(&str, &str); 7] = [
    ("0x0027", "TPU v2 or v3"),
    ("0x0056", "TPU plc"),
    ("0x005e", "TPU v4"),
    ("0x0062", "TPU v5p"),
    ("0x0063", "TPU v5e"),
    ("0x006f", "TPU v6e"),
    ("0x0076", "TPU 7x"),
];

/// The chips of the host whose files are at `root`, in the order of their addresses.
pub fn chips(root: &Path) -> Vec<Chip> {
    let Ok(entries) = fs::read_dir(root.join(DEVICES)) else { return Vec::new() };
    let mut chips: Vec<Chip> = entries.flatten().filter_map(|entry| chip(&entry.path())).collect();
    chips.sort_by(|a, b| a.address.cmp(&b.address));
    chips
}

/// The TPU chips among [`chips`].
pub fn tpu_chips(root: &Path) -> Vec<Chip> {
    chips(root).into_iter().filter(|chip| chip.vendor == Vendor::Google).collect()
}

fn chip(device: &Path) -> Option<Chip> {
    let read = |file: &str| Some(fs::read_to_string(device.join(file)).ok()?.trim().to_ascii_lowercase());
    let id = read("device")?;
    let (vendor, kind) = match &*read("vendor")? {
        // Google makes other PCI devices too, network cards among them.
        "0x1ae0" => (Vendor::Google, TPUS.iter().find(|(known, _)| *known == id)?.1.to_owned()),
        // Bridges and sound devices of graphics cards have other classes.
        "0x10de" if matches!(read("class")?.get(..6)?, "0x0300" | "0x0302") => (Vendor::Nvidia, format!("GPU {id}")),
        _ => return None,
    };
    Some(Chip { address: device.file_name()?.to_string_lossy().into_owned(), vendor, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chips_count() {
        let root = tempfile::tempdir().unwrap();
        let devices = [
            ("0000:00:05.0", "0x1ae0", "0x0063", "0x120000"),
            ("0000:00:04.0", "0x1AE0", "0x0063", "0x120000"),
            ("0000:00:06.0", "0x1ae0", "0x0042", "0x020000"),
            ("0000:01:00.0", "0x10de", "0x2335", "0x030200"),
            ("0000:01:00.1", "0x10de", "0x22bc", "0x040300"),
            ("0000:02:00.0", "0x8086", "0x0063", "0x120000"),
        ];
        for (address, vendor, device, class) in devices {
            let folder = root.path().join(DEVICES).join(address);
            fs::create_dir_all(&folder).unwrap();
            for (file, value) in [("vendor", vendor), ("device", device), ("class", class)] {
                fs::write(folder.join(file), format!("{value}\n")).unwrap();
            }
        }
        let found: Vec<String> =
            chips(root.path()).into_iter().map(|chip| format!("{} {}", chip.address, chip.kind)).collect();
        assert_eq!(found, ["0000:00:04.0 TPU v5e", "0000:00:05.0 TPU v5e", "0000:01:00.0 GPU 0x2335"]);
        assert_eq!(tpu_chips(root.path()).len(), 2);
        assert!(chips(Path::new("/nonexistent")).is_empty());
    }
}
