//! Where plugin files are: the cache folder, the Python packages, and what the environment says about both.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::command::run;
use super::{FindError, Found, KNOWN, Known, LIBRARY_PATH, Place};

/// Prints the package folders of a Python. It runs without the `site` module's start-up, so neither `.pth` files nor a
/// `sitecustomize` of the user are executed; a virtual environment is then only known by its `pyvenv.cfg`.
const PACKAGE_FOLDERS: &str = "
import os, site, sys
root = os.path.dirname(os.path.dirname(sys.executable))
if os.path.exists(os.path.join(root, 'pyvenv.cfg')):
    print(os.path.join(root, 'lib', 'python%d.%d' % sys.version_info[:2], 'site-packages'))
print('\\n'.join(site.getsitepackages() + [site.getusersitepackages()]))
";

/// The parts of the environment that decide where plugins are.
pub(super) struct Places {
    library_path: Option<OsString>,
    cache: Option<PathBuf>,
    /// Roots of activated Python environments.
    environments: Vec<PathBuf>,
    /// The Python interpreter to ask for its folders and to run pip with.
    pub(super) python: OsString,
    python_folders: OnceCell<Vec<PathBuf>>,
}

impl Places {
    pub(super) fn from_environment() -> Places {
        Places::new(|name| env::var_os(name), "python3".into())
    }

    /// `variable` looks up an environment variable.
    pub(super) fn new(variable: impl Fn(&str) -> Option<OsString>, python: OsString) -> Places {
        let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Places {
            library_path: variable(LIBRARY_PATH).filter(|value| !value.is_empty()),
            // The XDG base directory specification has relative paths ignored.
            cache: absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache"))),
            environments: ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(absolute).collect(),
            python,
            python_folders: OnceCell::new(),
        }
    }

    /// The folder that holds one folder for each installed wheel.
    pub(super) fn cache(&self) -> Option<PathBuf> {
        Some(self.cache.as_ref()?.join("spmd-run").join("plugins"))
    }

    pub(super) fn find(&self, requested: Option<&str>) -> Result<Found, FindError> {
        match (requested, &self.library_path) {
            (Some(name), _) => match Known::named(name) {
                Ok(known) => self.look_up(
                    known,
                    vec![
                        (Place::Argument, format!("'{name}', a known name")),
                        (Place::Environment, "not read, since --plugin is given".to_owned()),
                    ],
                ),
                Err(_) if name.contains('/') || name.ends_with(".so") || Path::new(name).exists() => {
                    usable(Path::new(name), Place::Argument)
                }
                Err(unknown) => Err(unknown.into()),
            },
            (None, Some(path)) => usable(Path::new(path), Place::Environment),
            (None, None) => {
                let tried = [(Place::Argument, "not given"), (Place::Environment, "not set")];
                self.look_up(&KNOWN[0], tried.map(|(place, what)| (place, what.to_owned())).into())
            }
        }
    }

    /// A known plugin in the cache, else among the Python packages. `tried` tells of the places before these two.
    pub(super) fn look_up(&self, known: &'static Known, mut tried: Vec<(Place, String)>) -> Result<Found, FindError> {
        let in_cache = match (&known.pinned, self.cache()) {
            (Some(pinned), Some(cache)) => {
                let path = pinned.path_in(&cache, known);
                match check_shared_object(&path) {
                    Ok(()) => return Ok(Found { path, place: Place::Cache }),
                    Err(reason) => format!("{} {reason}", path.display()),
                }
            }
            (Some(_), None) => NO_CACHE.to_owned(),
            (None, _) => "not for this plugin".to_owned(),
        };
        tried.push((Place::Cache, in_cache));

        let folders = self.python_folders();
        for path in folders.iter().map(|folder| folder.join(known.file)).filter(|path| path.exists()) {
            match check_shared_object(&path) {
                Ok(()) => return Ok(Found { path, place: Place::Python }),
                Err(reason) => tried.push((Place::Python, format!("{} {reason}", path.display()))),
            }
        }
        let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        tried.push((
            Place::Python,
            match folders.as_slice() {
                [] => "python3 is missing or does not answer".to_owned(),
                _ => format!("no {} in {}", known.file, folders.join(", ")),
            },
        ));
        Err(FindError::Missing { known, tried })
    }

    /// Package folders of activated environments and of the interpreter, in order; asked for once.
    fn python_folders(&self) -> &[PathBuf] {
        self.python_folders.get_or_init(|| {
            let mut folders: Vec<_> = self.environments.iter().flat_map(|root| site_packages(root)).collect();
            let mut python = Command::new(&self.python);
            python.args(["-I", "-S", "-c", PACKAGE_FOLDERS]);
            if let Ok(output) = run(python, Duration::from_secs(10)) {
                folders.extend(output.stdout.lines().map(PathBuf::from));
            }
            let mut seen = HashSet::new();
            folders.retain(|folder| seen.insert(folder.clone()));
            folders
        })
    }
}

/// What is wrong when there is no cache folder.
pub(super) const NO_CACHE: &str = "no folder, because neither XDG_CACHE_HOME nor HOME is an absolute path";

/// The `lib/python3.*/site-packages` folders of an environment.
fn site_packages(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root.join("lib")) else { return Vec::new() };
    let mut folders: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path().join("site-packages"))
        .filter(|folder| folder.is_dir())
        .collect();
    folders.sort();
    folders
}

fn usable(path: &Path, place: Place) -> Result<Found, FindError> {
    match check_shared_object(path) {
        Ok(()) => Ok(Found { path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()), place }),
        Err(reason) => Err(FindError::Unusable { path: path.to_owned(), place, reason }),
    }
}

/// Says why a file cannot be loaded as a plugin, as far as its ELF header tells; the reason continues the file's name.
pub(super) fn check_shared_object(path: &Path) -> Result<(), String> {
    const MACHINE: u64 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    const SHARED_OBJECT: u64 = 3;
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "does not exist".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err("is not a file".to_owned());
    }
    let mut header = Vec::with_capacity(64);
    File::open(path).and_then(|file| file.take(64).read_to_end(&mut header)).map_err(unreadable)?;
    let number = |at: usize, width: usize| {
        let bytes = header.get(at..at + width).unwrap_or_default();
        bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    if header.len() < 64 || !header.starts_with(b"\x7fELF\x02\x01") || number(16, 2) != SHARED_OBJECT {
        return Err("is no shared object (a 64-bit ELF library)".to_owned());
    }
    if number(18, 2) != MACHINE {
        return Err(format!("is built for another processor (ELF machine {}, here {MACHINE})", number(18, 2)));
    }
    let (sections, size_of_section, count) = (number(40, 8), number(58, 2), number(60, 2));
    if sections.saturating_add(size_of_section * count) > metadata.len() {
        return Err(format!("is truncated (it ends at byte {})", metadata.len()));
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file that passes for a shared object of this machine.
    pub(crate) fn shared_object() -> Vec<u8> {
        let mut bytes = fs::read(env::current_exe().unwrap()).unwrap();
        bytes.truncate(64);
        bytes[16] = 3;
        bytes[40..64].fill(0);
        bytes
    }

    /// Writes a script to run. A shell writes it, since a file that this process has had open for writing may still be
    /// open in a child that another test is starting, and cannot be executed then.
    pub(crate) fn script(path: &Path, text: &str) {
        let writer = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
        assert!(Command::new("sh").args(["-c", writer]).arg(path).arg(text).status().unwrap().success());
    }

    fn write(path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Places whose variables are given and whose python3 prints nothing.
    fn places(home: &Path, variables: &[(&str, &Path)]) -> Places {
        let variable = |name: &str| match name {
            "HOME" => Some(home.into()),
            _ => variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()),
        };
        Places::new(variable, "true".into())
    }

    fn cached(home: &Path) -> PathBuf {
        home.join(".cache/spmd-run/plugins/lammps-jax-pjrt-cpu-0.11.2/pjrt_c_api_cpu_plugin.so")
    }

    #[test]
    fn searches_argument_then_variable_then_cache_then_python() {
        let home = tempfile::tempdir().unwrap();
        let (root, elf) = (home.path(), shared_object());
        let named = root.join("named.so");
        let environment = root.join("environment");
        let package = environment.join("lib/python3.11/site-packages").join(KNOWN[0].file);
        let all = places(root, &[(LIBRARY_PATH, &named), ("VIRTUAL_ENV", &environment)]);
        let without_variable = places(root, &[("VIRTUAL_ENV", &environment)]);

        write(&package, &elf);
        assert_eq!(without_variable.find(None).unwrap(), Found { path: package, place: Place::Python });
        write(&cached(root), &elf);
        assert_eq!(without_variable.find(None).unwrap(), Found { path: cached(root), place: Place::Cache });
        write(&named, &elf);
        assert_eq!(all.find(None).unwrap(), Found { path: named.clone(), place: Place::Environment });
        assert_eq!(all.find(Some("cpu")).unwrap().place, Place::Cache);
        assert_eq!(all.find(named.to_str()).unwrap(), Found { path: named, place: Place::Argument });
    }

    #[test]
    fn missing_plugin_lists_every_place_and_what_to_type() {
        let home = tempfile::tempdir().unwrap();
        let message = places(home.path(), &[]).find(None).unwrap_err().to_string();
        let expected = format!(
            "the plugin 'cpu' was not found; looked at, in this order:\n  \
             1. --plugin: not given\n  \
             2. PJRT_PLUGIN_LIBRARY_PATH: not set\n  \
             3. cache: {} does not exist\n  \
             4. Python packages: python3 is missing or does not answer\n\
             install it with: spmd-run plugin install cpu",
            cached(home.path()).display()
        );
        assert_eq!(message, expected);

        let message = places(home.path(), &[]).find(Some("tpu")).unwrap_err().to_string();
        assert!(message.contains("2. PJRT_PLUGIN_LIBRARY_PATH: not read, since --plugin is given"), "{message}");
        assert!(message.ends_with("install it with: python3 -m pip install libtpu"), "{message}");
    }

    #[test]
    fn a_named_file_that_is_no_plugin_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let broken = home.path().join("broken.so");
        write(&cached(home.path()), &shared_object());
        let missing = places(home.path(), &[(LIBRARY_PATH, &broken)]).find(None).unwrap_err();
        assert_eq!(missing.to_string(), format!("PJRT_PLUGIN_LIBRARY_PATH: {} does not exist", broken.display()));

        let reason = |bytes: &[u8]| {
            write(&broken, bytes);
            let error = places(home.path(), &[]).find(broken.to_str()).unwrap_err().to_string();
            error.rsplit_once("broken.so ").unwrap().1.to_owned()
        };
        assert_eq!(reason(b""), "is no shared object (a 64-bit ELF library)");
        assert_eq!(reason(b"#!/bin/sh\necho no plugin\n"), "is no shared object (a 64-bit ELF library)");
        let mut other = shared_object();
        other[18] = 8;
        assert!(reason(&other).starts_with("is built for another processor (ELF machine 8"));
        let mut truncated = shared_object();
        truncated[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(reason(&truncated), "is truncated (it ends at byte 64)");
        let folder = places(home.path(), &[]).find(home.path().to_str()).unwrap_err().to_string();
        assert!(folder.ends_with("is not a file"), "{folder}");
    }

    #[test]
    fn broken_file_in_the_cache_is_passed_over_and_reported() {
        let home = tempfile::tempdir().unwrap();
        write(&cached(home.path()), b"half a plugin");
        let message = places(home.path(), &[]).find(None).unwrap_err().to_string();
        assert!(message.contains("pjrt_c_api_cpu_plugin.so is no shared object"), "{message}");
        assert!(message.ends_with("spmd-run plugin install cpu"), "{message}");
    }

    #[test]
    fn relative_cache_folder_is_ignored() {
        let home = tempfile::tempdir().unwrap();
        let relative = places(home.path(), &[("XDG_CACHE_HOME", Path::new("here"))]);
        assert_eq!(relative.cache().unwrap(), home.path().join(".cache/spmd-run/plugins"));
        let none = Places::new(|_| None, "true".into());
        assert!(none.find(None).unwrap_err().to_string().contains("3. cache: no folder, because neither"));
    }

    #[test]
    fn python_is_asked_without_running_site_customization() {
        let home = tempfile::tempdir().unwrap();
        let python = home.path().join("python3");
        let packages = home.path().join("packages");
        write(&packages.join(KNOWN[2].file), &shared_object());
        let text = format!("#!/bin/sh\n[ \"$1 $2 $3\" = '-I -S -c' ] && echo '{}'\n", packages.display());
        script(&python, &text);
        let places = Places::new(|_| None, python.into());
        assert_eq!(places.find(Some("cpu-0.81")).unwrap().path, packages.join(KNOWN[2].file));
    }
}
