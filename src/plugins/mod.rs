//! Which PJRT plugin to load: those known by name, where they are looked for, and how they get there.

mod command;
mod install;
mod places;

use std::fmt;
use std::path::{Path, PathBuf};

use places::Places;

pub use install::{InstallError, Installed};

/// The environment variable that names a plugin file, as in PyTorch/XLA and the PJRT examples.
pub const LIBRARY_PATH: &str = "PJRT_PLUGIN_LIBRARY_PATH";

/// A plugin that has a name.
#[derive(Debug, PartialEq, Eq)]
pub struct Known {
    /// What `--plugin` and `plugin install` call it.
    pub name: &'static str,
    /// One line on what it is.
    pub about: &'static str,
    /// The Python distribution whose wheel holds it.
    pub distribution: &'static str,
    /// The plugin's path inside the wheel, and so inside a folder of installed Python packages.
    pub file: &'static str,
    /// The one wheel that `install` takes; `None` where the right one depends on the machine.
    pub pinned: Option<Pinned>,
}

/// A version of a wheel and the checksum that it must have.
#[derive(Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The distribution's version.
    pub version: &'static str,
    /// SHA-256 of the wheel for Linux on x86-64, in hexadecimal.
    pub sha256: &'static str,
}

/// Every plugin known by name; the first one is the default.
pub const KNOWN: [Known; 6] = [
    Known {
        name: "cpu",
        about: "CPU, PJRT C API 0.115 (the default)",
        distribution: "lammps-jax-pjrt-cpu",
        file: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
        pinned: Some(Pinned {
            version: "0.11.2",
            sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
        }),
    },
    Known {
        name: "cpu-0.106",
        about: "CPU, PJRT C API 0.106 (for compatibility tests)",
        distribution: "fastatomstruct-xla-cpu",
        file: "fastatomstruct_xla_cpu/libpjrt_cpu.so",
        pinned: Some(Pinned {
            version: "2026.6.23",
            sha256: "88b1c430b341b4bea40a37420311c9c75db6e22b46d2ff95b6986577bee6afe9",
        }),
    },
    Known {
        name: "cpu-0.81",
        about: "CPU, PJRT C API 0.81 (for compatibility tests)",
        distribution: "xla-cpu-pjrt",
        file: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        pinned: Some(Pinned {
            version: "0.0.1",
            sha256: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
        }),
    },
    Known {
        name: "cuda12",
        about: "NVIDIA GPU, needs its driver and the CUDA 12 libraries",
        distribution: "jax-cuda12-pjrt",
        file: "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
        pinned: None,
    },
    Known {
        name: "cuda13",
        about: "NVIDIA GPU, needs its driver and the CUDA 13 libraries",
        distribution: "jax-cuda13-pjrt",
        file: "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
        pinned: None,
    },
    Known {
        name: "tpu",
        about: "TPU, needs a TPU host",
        distribution: "libtpu",
        file: "libtpu/libtpu.so",
        pinned: None,
    },
];

impl Pinned {
    /// Where the plugin is once installed in this cache folder.
    fn path_in(&self, cache: &Path, known: &Known) -> PathBuf {
        let file = known.file.rsplit('/').next().unwrap_or(known.file);
        cache.join(format!("{}-{}", known.distribution, self.version)).join(file)
    }
}

impl Known {
    /// The known plugin of this name.
    pub fn named(name: &str) -> Result<&'static Known, UnknownName> {
        KNOWN.iter().find(|known| known.name == name).ok_or_else(|| UnknownName { name: name.to_owned() })
    }

    /// The command that puts the plugin where [`find`] looks.
    pub fn install_command(&self) -> String {
        match self.pinned {
            Some(_) => format!("spmd-run plugin install {}", self.name),
            None => format!("python3 -m pip install {}", self.distribution),
        }
    }
}

/// A place where [`find`] looks, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A path given as `--plugin`.
    Argument,
    /// The environment variable [`LIBRARY_PATH`].
    Environment,
    /// The cache folder that [`install`] writes to.
    Cache,
    /// The packages of the Python installation.
    Python,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Argument => "--plugin",
            Place::Environment => LIBRARY_PATH,
            Place::Cache => "cache",
            Place::Python => "Python packages",
        })
    }
}

/// A plugin file that exists and is a shared object for this machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Found {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// Where it was found.
    pub place: Place,
}

/// A known plugin, and where it is now.
#[derive(Debug)]
pub struct Listing {
    /// The plugin.
    pub known: &'static Known,
    /// The file that its name leads to, if there is one.
    pub found: Option<Found>,
}

/// No known plugin has this name.
#[derive(Debug, thiserror::Error)]
#[error("unknown plugin '{name}'{}; known are {}; a file is given by its path", nearest(name), names())]
pub struct UnknownName {
    /// The name that was asked for.
    pub name: String,
}

fn names() -> String {
    KNOWN.map(|known| known.name).join(", ")
}

fn nearest(name: &str) -> String {
    KNOWN
        .iter()
        .map(|known| (strsim::damerau_levenshtein(&name.to_lowercase(), known.name), known.name))
        .filter(|(distance, _)| *distance <= 2)
        .min()
        .map(|(_, near)| format!(", did you mean '{near}'?"))
        .unwrap_or_default()
}

/// Why [`find`] gives no plugin.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The name is not known.
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    /// A file was named that cannot be a plugin.
    #[error("{place}: {} {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What named it.
        place: Place,
        /// What is wrong with it.
        reason: String,
    },
    /// The plugin is in none of the places.
    #[error(
        "the plugin '{}' was not found; looked at, in this order:\n{}install it with: {}",
        known.name, numbered(tried), known.install_command()
    )]
    Missing {
        /// The plugin looked for.
        known: &'static Known,
        /// Each place in order, with what was there.
        tried: Vec<(Place, String)>,
    },
}

fn numbered(tried: &[(Place, String)]) -> String {
    tried.iter().enumerate().map(|(i, (place, what))| format!("  {}. {place}: {what}\n", i + 1)).collect()
}

/// Finds the plugin to load: `requested` (a known name or a path), else the file that [`LIBRARY_PATH`] names, else the
/// default plugin. Names are looked up in the cache and then among the installed Python packages.
pub fn find(requested: Option<&str>) -> Result<Found, FindError> {
    Places::from_environment().find(requested)
}

/// Downloads the pinned wheel of a known plugin with pip, checks it and unpacks the plugin into the cache. Does nothing
/// when it is there already. Safe to call from several processes at once.
pub fn install(name: &str) -> Result<Installed, InstallError> {
    install::install(&Places::from_environment(), Known::named(name)?)
}

/// Every known plugin and where it is installed.
pub fn list() -> Vec<Listing> {
    let places = Places::from_environment();
    KNOWN.iter().map(|known| Listing { known, found: places.look_up(known, Vec::new()).ok() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_checksums_complete() {
        for (i, known) in KNOWN.iter().enumerate() {
            assert_eq!(Known::named(known.name).unwrap().file, KNOWN[i].file);
            if let Some(pinned) = &known.pinned {
                assert_eq!(pinned.sha256.len(), 64, "{}", known.name);
                assert!(pinned.sha256.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()));
            }
        }
    }

    #[test]
    fn unknown_name_lists_known_ones_and_the_nearest() {
        let message = Known::named("cpuu").unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown plugin 'cpuu', did you mean 'cpu'?; known are cpu, cpu-0.106, cpu-0.81, cuda12, cuda13, tpu; \
             a file is given by its path"
        );
        assert!(!Known::named("metal-gpu").unwrap_err().to_string().contains("did you mean"));
    }
}
