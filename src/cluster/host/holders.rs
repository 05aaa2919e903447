//! Processes that keep TPU chips to themselves: a chip's device file can be open once at a time.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// A process that has a chip's device file open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// The file, such as `/dev/vfio/0`.
    pub device: String,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub command: String,
}

/// Those of the host whose files are at `root`, as far as this user may see what other processes have open.
pub fn holders(root: &Path) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir(root.join("proc")) else { return Vec::new() };
    let mut holders = Vec::new();
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let targets = files.flatten().filter_map(|file| Some(fs::read_link(file.path()).ok()?.to_str()?.to_owned()));
        holders.extend(targets.filter(|target| is_chip(target)).map(|device| {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default().trim().to_owned();
            Holder { device, pid, command }
        }));
    }
    holders.sort();
    holders.dedup();
    holders
}

/// Whether a file is a chip's: `/dev/accel0`, `/dev/accel/0` or `/dev/vfio/0`, and not `/dev/vfio/vfio`, which all share.
fn is_chip(path: &str) -> bool {
    let number = ["/dev/accel/", "/dev/accel", "/dev/vfio/"].into_iter().find_map(|start| path.strip_prefix(start));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_chips_are_held() {
        let root = tempfile::tempdir().unwrap();
        let open = [
            (12, "accel", &["/dev/accel0", "/dev/null", "/dev/accel"][..]),
            (7, "vfio", &["/dev/vfio/3", "/dev/vfio/vfio", "socket:[1]", "/dev/vfio/3"]),
            (9, "none", &["/dev/accelerometer", "/tmp/dev/vfio/0"]),
        ];
        for (pid, command, files) in open {
            let folder = root.path().join("proc").join(pid.to_string());
            fs::create_dir_all(folder.join("fd")).unwrap();
            fs::write(folder.join("comm"), format!("{command}\n")).unwrap();
            for (number, file) in files.iter().enumerate() {
                symlink(file, folder.join("fd").join(number.to_string())).unwrap();
            }
        }
        fs::create_dir_all(root.path().join("proc/self/fd")).unwrap();
        let holder = |device: &str, pid, command: &str| Holder { device: device.into(), pid, command: command.into() };
        assert_eq!(holders(root.path()), [holder("/dev/accel0", 12, "accel"), holder("/dev/vfio/3", 7, "vfio")]);
        assert!(holders(Path::new("/nonexistent")).is_empty());
    }
}
