//! Fetching a pinned wheel and unpacking its plugin into the cache.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::command::{Output, run};
use super::places::{NO_CACHE, Places, check_shared_object};
use super::{Known, Pinned, UnknownName};

/// Upper limit of a download; pip's own time-outs end a dead connection long before.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(1800);

/// Work folders start with this name, in the cache itself, so that a rename suffices at the end.
const WORK_PREFIX: &str = ".installing-";

/// What [`super::install`] did.
#[derive(Debug, PartialEq, Eq)]
pub struct Installed {
    /// The plugin in the cache.
    pub path: PathBuf,
    /// False when it was there already.
    pub fresh: bool,
}

/// Why a plugin could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The name is not known.
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    /// The plugin is not one that `install` can choose.
    #[error(
        "'{}' depends on the machine's driver and libraries and is not installed from here: install its Python package \
         with: {}\n(or name a plugin file with --plugin PATH)",
        known.name, known.install_command()
    )]
    NotPinned {
        /// The plugin.
        known: &'static Known,
    },
    /// The wheel is for another operating system or processor.
    #[error(
        "'{}' exists for Linux on x86-64, this is {os} on {arch}: name a plugin file with --plugin PATH",
        known.name
    )]
    Platform {
        /// The plugin.
        known: &'static Known,
        /// This operating system.
        os: &'static str,
        /// This processor.
        arch: &'static str,
    },
    /// There is no cache folder.
    #[error("cache: {NO_CACHE}; set one of them")]
    NoCache,
    /// Python 3 cannot be started.
    #[error(
        "{python} cannot be started ({error}), its pip is needed to download a plugin; on Debian: \
         apt-get install python3-pip"
    )]
    NoPython {
        /// The interpreter.
        python: String,
        /// What the system says.
        error: io::Error,
    },
    /// Python 3 has no pip.
    #[error("{python} has no pip, which is needed to download a plugin; on Debian: apt-get install python3-pip")]
    NoPip {
        /// The interpreter.
        python: String,
    },
    /// pip did not bring the wheel.
    #[error(
        "pip could not download {requirement}:\n{output}\nwithout a network, put the wheel into a folder and set \
         PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER"
    )]
    Download {
        /// The requirement in pip's notation.
        requirement: String,
        /// pip's last lines.
        output: String,
    },
    /// The wheel is not the pinned one.
    #[error(
        "{file} has the wrong SHA-256 and was thrown away: expected {expected}, got {got}; \
         a mirror or proxy may have changed it"
    )]
    Checksum {
        /// The wheel's file name.
        file: String,
        /// The pinned checksum.
        expected: &'static str,
        /// The checksum of what came.
        got: String,
    },
    /// The wheel cannot be unpacked, or what it holds is not a plugin.
    #[error("{wheel}: {reason}")]
    Wheel {
        /// The wheel's file name.
        wheel: String,
        /// What is wrong.
        reason: String,
    },
    /// A file or folder of the cache cannot be written.
    #[error("cannot write {}: {error}; {}", path.display(), write_advice(error))]
    Write {
        /// What was written.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

fn write_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, or choose a folder on another disk with XDG_CACHE_HOME"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "choose a folder that you may write with XDG_CACHE_HOME"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "a file stands where the cache's folder should be: remove it, or choose another folder with XDG_CACHE_HOME"
        }
        _ => "choose another folder with XDG_CACHE_HOME",
    }
}

/// Two installs at once each work in a folder of their own, and the last rename wins with the same bytes.
pub(super) fn install(places: &Places, known: &'static Known) -> Result<Installed, InstallError> {
    let pinned = known.pinned.as_ref().ok_or(InstallError::NotPinned { known })?;
    let cache = places.cache().ok_or(InstallError::NoCache)?;
    let path = pinned.path_in(&cache, known);
    if check_shared_object(&path).is_ok() {
        return Ok(Installed { path, fresh: false });
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(InstallError::Platform { known, os: std::env::consts::OS, arch: std::env::consts::ARCH });
    }
    remove_left_over(&cache);
    let work = fs::create_dir_all(&cache)
        .and_then(|()| tempfile::Builder::new().prefix(WORK_PREFIX).tempdir_in(&cache))
        .map_err(|error| InstallError::Write { path: cache, error })?;
    let wheel = download(places, known, pinned, work.path())?;
    verify(&wheel, pinned)?;
    let unpacked = work.path().join("plugin.so");
    unpack(&wheel, known.file, &unpacked)?;
    let parent = path.parent().unwrap_or(&path);
    fs::create_dir_all(parent)
        .and_then(|()| fs::rename(&unpacked, &path))
        .map_err(|error| InstallError::Write { path: path.clone(), error })?;
    Ok(Installed { path, fresh: true })
}

/// Removes the work folders of installs that were killed; one in use is younger than the limit of a download.
fn remove_left_over(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let old = |modified: SystemTime| modified.elapsed().is_ok_and(|age| age > 2 * DOWNLOAD_LIMIT);
        let is_work = entry.file_name().to_string_lossy().starts_with(WORK_PREFIX);
        if is_work && entry.metadata().and_then(|metadata| metadata.modified()).is_ok_and(old) {
            // Another install may be doing the same; nothing is lost when it stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Has pip put the wheel into `folder`; returns its path.
fn download(places: &Places, known: &Known, pinned: &Pinned, folder: &Path) -> Result<PathBuf, InstallError> {
    let requirement = format!("{}=={}", known.distribution, pinned.version);
    tracing::info!("downloading {requirement}");
    let python = places.python.to_string_lossy().into_owned();
    let mut pip = Command::new(&places.python);
    pip.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--progress-bar=off"])
        .args(["--no-deps", "--only-binary=:all:", "-d"])
        .arg(folder)
        .arg(&requirement);
    let Output { status, stdout, stderr } = match run(pip, DOWNLOAD_LIMIT) {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(InstallError::Download { requirement, output: error.to_string() });
        }
        Err(error) => return Err(InstallError::NoPython { python, error }),
    };
    if stderr.contains("No module named pip") {
        return Err(InstallError::NoPip { python });
    }
    if stderr.contains("[Errno 28]") {
        return Err(InstallError::Write { path: folder.to_owned(), error: io::ErrorKind::StorageFull.into() });
    }
    let wheel = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    match wheel {
        Some(wheel) if status.success() => Ok(wheel),
        _ => {
            let lines: Vec<_> = stdout.lines().chain(stderr.lines()).collect();
            let output = lines[lines.len().saturating_sub(8)..].join("\n");
            Err(InstallError::Download { requirement, output })
        }
    }
}

fn verify(wheel: &Path, pinned: &'static Pinned) -> Result<(), InstallError> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    let unreadable =
        |error| InstallError::Wheel { wheel: file_name(wheel), reason: format!("cannot be read: {error}") };
    let mut file = File::open(wheel).map_err(unreadable)?;
    loop {
        match file.read(&mut chunk).map_err(unreadable)? {
            0 => break,
            count => hasher.update(&chunk[..count]),
        }
    }
    let got: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    match got == pinned.sha256 {
        true => Ok(()),
        false => Err(InstallError::Checksum { file: file_name(wheel), expected: pinned.sha256, got }),
    }
}

/// Writes the member `file` of the wheel to `target` and has it on the disk before it gets its name.
fn unpack(wheel: &Path, file: &str, target: &Path) -> Result<(), InstallError> {
    let broken = |reason: String| InstallError::Wheel { wheel: file_name(wheel), reason };
    let opened = File::open(wheel).map_err(|error| broken(format!("cannot be read: {error}")))?;
    let mut archive = zip::ZipArchive::new(opened).map_err(|error| broken(error.to_string()))?;
    let mut member = archive.by_name(file).map_err(|error| broken(format!("{file}: {error}")))?;
    let write = |error| InstallError::Write { path: target.to_owned(), error };
    let mut output = File::create(target).map_err(write)?;
    io::copy(&mut member, &mut output).map_err(write)?;
    output.set_permissions(fs::Permissions::from_mode(0o755)).and_then(|()| output.sync_all()).map_err(write)?;
    check_shared_object(target).map_err(|reason| broken(format!("{file} {reason}")))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::places::tests::{script, shared_object};
    use super::*;
    use std::io::Write;

    /// A home folder with a `python3` whose pip is a shell script.
    struct Home(tempfile::TempDir);

    impl Home {
        /// `pip` sees the download folder as `$folder` and the wheel that tests made as `$wheel`.
        fn new(pip: &str) -> Home {
            let home = Home(tempfile::tempdir().unwrap());
            let wheel = home.0.path().join("made.whl");
            let arguments = "while [ \"$1\" != -d ]; do shift; done\nfolder=$2\nrequirement=$3";
            script(&home.python(), &format!("#!/bin/sh\n{arguments}\nwheel='{}'\n{pip}\n", wheel.display()));
            home
        }

        fn python(&self) -> PathBuf {
            self.0.path().join("python3")
        }

        fn places(&self) -> Places {
            let home = self.0.path().to_owned();
            Places::new(move |name| (name == "HOME").then(|| home.clone().into()), self.python().into())
        }

        /// Makes the wheel with this one member and a known plugin that pins it.
        fn known(&self, member: &str, content: &[u8]) -> &'static Known {
            let wheel = self.0.path().join("made.whl");
            let mut archive = zip::ZipWriter::new(File::create(&wheel).unwrap());
            archive.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(content).unwrap();
            archive.finish().unwrap();
            let sum: String = Sha256::digest(fs::read(&wheel).unwrap()).iter().map(|b| format!("{b:02x}")).collect();
            Box::leak(Box::new(Known {
                name: "made",
                about: "made for this test",
                distribution: "made-plugin",
                file: "made/plugin.so",
                pinned: Some(Pinned { version: "1.2", sha256: Box::leak(sum.into_boxed_str()) }),
            }))
        }

        fn folder(&self) -> PathBuf {
            self.0.path().join(".cache/spmd-run/plugins")
        }

        fn left_in_cache(&self) -> usize {
            fs::read_dir(self.folder()).map(|entries| entries.count()).unwrap_or(0)
        }
    }

    const COPY: &str =
        "cp \"$wheel\" \"$folder/made_plugin-1.2-py3-none-any.whl\"; echo \"$requirement\" >> \"$0.log\"";

    #[test]
    fn installs_once_and_then_leaves_it_alone() {
        let home = Home::new(COPY);
        let known = home.known("made/plugin.so", &shared_object());
        let path = home.folder().join("made-plugin-1.2/plugin.so");
        assert_eq!(install(&home.places(), known).unwrap(), Installed { path: path.clone(), fresh: true });
        assert_eq!(fs::read(&path).unwrap(), shared_object());
        assert_eq!(install(&home.places(), known).unwrap(), Installed { path, fresh: false });
        assert_eq!(fs::read_to_string(home.0.path().join("python3.log")).unwrap(), "made-plugin==1.2\n");
        assert_eq!(home.left_in_cache(), 1);
    }

    #[test]
    fn replaces_a_broken_plugin() {
        let home = Home::new(COPY);
        let known = home.known("made/plugin.so", &shared_object());
        let path = home.folder().join("made-plugin-1.2/plugin.so");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, b"half").unwrap();
        assert!(install(&home.places(), known).unwrap().fresh);
        assert_eq!(fs::read(&path).unwrap(), shared_object());
    }

    #[test]
    fn several_installs_at_once_all_succeed() {
        let home = Home::new(COPY);
        let known = home.known("made/plugin.so", &shared_object());
        std::thread::scope(|scope| {
            let installs: Vec<_> = (0..4).map(|_| scope.spawn(|| install(&home.places(), known))).collect();
            for install in installs {
                assert_eq!(fs::read(install.join().unwrap().unwrap().path).unwrap(), shared_object());
            }
        });
        assert_eq!(home.left_in_cache(), 1);
    }

    #[test]
    fn wrong_checksum_installs_nothing() {
        let home = Home::new("echo something else > \"$folder/made_plugin-1.2-py3-none-any.whl\"");
        let known = home.known("made/plugin.so", &shared_object());
        let error = install(&home.places(), known).unwrap_err().to_string();
        assert!(error.starts_with("made_plugin-1.2-py3-none-any.whl has the wrong SHA-256"), "{error}");
        assert_eq!(home.left_in_cache(), 0);
    }

    #[test]
    fn wheel_without_the_plugin_or_with_something_else_is_refused() {
        let home = Home::new(COPY);
        let error = install(&home.places(), home.known("made/other.so", &shared_object())).unwrap_err().to_string();
        assert!(error.starts_with("made_plugin-1.2-py3-none-any.whl: made/plugin.so: "), "{error}");
        let error = install(&home.places(), home.known("made/plugin.so", b"text")).unwrap_err().to_string();
        assert!(error.ends_with("made/plugin.so is no shared object (a 64-bit ELF library)"), "{error}");
        assert_eq!(home.left_in_cache(), 0);
    }

    #[test]
    fn failing_pip_is_quoted() {
        let home = Home::new("echo 'ERROR: No matching distribution found for made-plugin==1.2' >&2; exit 1");
        let known = home.known("made/plugin.so", &shared_object());
        let error = install(&home.places(), known).unwrap_err().to_string();
        assert!(error.starts_with("pip could not download made-plugin==1.2:\nERROR: No matching"), "{error}");
        assert!(error.contains("PIP_FIND_LINKS"), "{error}");
        assert_eq!(home.left_in_cache(), 0);
    }

    #[test]
    fn pip_on_a_full_disk_says_so() {
        let home = Home::new("echo 'OSError: [Errno 28] No space left on device' >&2; exit 2");
        let known = home.known("made/plugin.so", &shared_object());
        let error = install(&home.places(), known).unwrap_err().to_string();
        assert!(
            error
                .ends_with("no storage space; free some space, or choose a folder on another disk with XDG_CACHE_HOME"),
            "{error}"
        );
    }

    #[test]
    fn missing_pip_or_python_says_what_to_install() {
        let home = Home::new("echo \"$0: No module named pip\" >&2; exit 1");
        let known = home.known("made/plugin.so", &shared_object());
        let error = install(&home.places(), known).unwrap_err();
        assert!(matches!(error, InstallError::NoPip { .. }), "{error}");
        fs::remove_file(home.python()).unwrap();
        let error = install(&home.places(), known).unwrap_err();
        assert!(matches!(error, InstallError::NoPython { .. }), "{error}");
    }

    #[test]
    fn unwritable_cache_is_named() {
        let home = Home::new(COPY);
        let known = home.known("made/plugin.so", &shared_object());
        fs::write(home.0.path().join(".cache"), b"a file in the way").unwrap();
        let error = install(&home.places(), known).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write {}", home.folder().display())), "{error}");
        assert!(error.ends_with("remove it, or choose another folder with XDG_CACHE_HOME"), "{error}");
    }

    #[test]
    fn plugins_that_depend_on_the_machine_are_left_to_pip() {
        let home = Home::new(COPY);
        let error = install(&home.places(), Known::named("cuda12").unwrap()).unwrap_err().to_string();
        assert!(error.contains("python3 -m pip install jax-cuda12-pjrt"), "{error}");
    }
}
