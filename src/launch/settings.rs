//! Options of `spmd-run` that reach programs which join a job by themselves.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::environment::EnvironmentError;
use crate::rendezvous::Tls;
use crate::trace::Files;

/// The number of devices that each process makes.
pub const DEVICES_PER_PROCESS: &str = "SPMD_DEVICES_PER_PROCESS";
/// The number of slices that the processes are divided into.
pub const SLICES: &str = "SPMD_SLICES";
/// The plugin's name or path.
pub const PLUGIN: &str = "SPMD_PLUGIN";
/// The folder with executables of earlier jobs.
pub const COMPILATION_CACHE: &str = "SPMD_COMPILATION_CACHE";
/// Seconds until all processes must have joined.
pub const RENDEZVOUS_TIMEOUT: &str = "SPMD_RENDEZVOUS_TIMEOUT";
/// Seconds that a process waits for the others.
pub const STALL_TIMEOUT: &str = "SPMD_STALL_TIMEOUT";

/// That connections are encrypted: with certificates made of the job's token (`job`), or those in a folder.
pub const TLS: &str = "SPMD_TLS";
const TLS_OF_TOKEN: &str = "job";
/// Where process 0 writes the job's trace.
pub const TRACE: &str = "SPMD_TRACE";
/// Where process 0 writes the report on it.
pub const REPORT: &str = "SPMD_REPORT";

/// All of them.
pub(super) const NAMES: [&str; 9] =
    [DEVICES_PER_PROCESS, SLICES, PLUGIN, COMPILATION_CACHE, RENDEZVOUS_TIMEOUT, STALL_TIMEOUT, TLS, TRACE, REPORT];

/// What the user said to `spmd-run`, for a program that joins the job by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `--devices-per-process`
    pub devices_per_process: Option<u32>,
    /// `--slices`
    pub slices: Option<u32>,
    /// `--plugin`
    pub plugin: Option<String>,
    /// `--compilation-cache`
    pub compilation_cache: Option<PathBuf>,
    /// `--rendezvous-timeout`
    pub rendezvous_timeout: Duration,
    /// `--stall-timeout`
    pub stall_timeout: Duration,
    /// `--tls`
    pub tls: Option<Tls>,
    /// `--trace` and `--report`
    pub files: Files,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            devices_per_process: None,
            slices: None,
            plugin: None,
            compilation_cache: None,
            rendezvous_timeout: Duration::from_secs(300),
            stall_timeout: Duration::from_secs(600),
            tls: None,
            files: Files::default(),
        }
    }
}

impl Settings {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// A number that is none.
    pub fn from_env() -> Result<Settings, EnvironmentError> {
        Settings::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, EnvironmentError> {
        let compilation_cache = variable(COMPILATION_CACHE).map(PathBuf::from);
        let file = |name| variable(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let files = Files { trace: file(TRACE), report: file(REPORT) };
        let mut settings = Settings { plugin: variable(PLUGIN), compilation_cache, files, ..Settings::default() };
        for (name, place) in [(DEVICES_PER_PROCESS, &mut settings.devices_per_process), (SLICES, &mut settings.slices)]
        {
            let Some(count) = variable(name) else { continue };
            let number = count.parse().ok().filter(|&number: &u32| number > 0);
            *place = Some(number.ok_or_else(|| wrong(name, count, "it must be a number above 0"))?);
        }
        settings.tls = variable(TLS).map(|text| match &*text {
            TLS_OF_TOKEN => Tls::OfToken,
            folder => Tls::OfFolder(folder.into()),
        });
        for (name, place) in
            [(RENDEZVOUS_TIMEOUT, &mut settings.rendezvous_timeout), (STALL_TIMEOUT, &mut settings.stall_timeout)]
        {
            let Some(text) = variable(name) else { continue };
            let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            *place = seconds.ok_or_else(|| wrong(name, text, "it must be a number of seconds"))?;
        }
        Ok(settings)
    }

    /// The environment variables that say the same.
    pub fn to_env(&self) -> Vec<(&'static str, OsString)> {
        let counts = [(DEVICES_PER_PROCESS, self.devices_per_process), (SLICES, self.slices)];
        let counts = counts.into_iter().filter_map(|(name, count)| Some((name, count?.to_string().into())));
        let plugin = self.plugin.clone().map(|plugin| (PLUGIN, plugin.into()));
        let cache = self.compilation_cache.clone().map(|folder| (COMPILATION_CACHE, folder.into()));
        let seconds = |limit: Duration| limit.as_secs_f64().to_string().into();
        let limits =
            [(RENDEZVOUS_TIMEOUT, seconds(self.rendezvous_timeout)), (STALL_TIMEOUT, seconds(self.stall_timeout))];
        let tls = self.tls.as_ref().map(|tls| match tls {
            Tls::OfToken => TLS_OF_TOKEN.into(),
            Tls::OfFolder(folder) => folder.into(),
        });
        let files = [(TRACE, &self.files.trace), (REPORT, &self.files.report)];
        let files = files.into_iter().filter_map(|(name, path)| Some((name, path.clone()?.into())));
        counts.chain(plugin).chain(cache).chain(limits).chain(tls.map(|tls| (TLS, tls))).chain(files).collect()
    }
}

fn wrong(name: &'static str, value: String, reason: &str) -> EnvironmentError {
    EnvironmentError::Value { name, value, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn settings_travel_through_the_environment() {
        let settings = Settings {
            devices_per_process: Some(2),
            slices: Some(2),
            plugin: Some("cpu".to_owned()),
            compilation_cache: Some("executables".into()),
            rendezvous_timeout: Duration::from_millis(1500),
            stall_timeout: Duration::from_secs(7),
            tls: Some(Tls::OfFolder("certificates".into())),
            files: Files { trace: Some("run.json".into()), report: Some("run.html".into()) },
        };
        let variables: HashMap<&str, OsString> = settings.to_env().into_iter().collect();
        let read = Settings::read(|name| variables.get(name)?.clone().into_string().ok()).unwrap();
        assert_eq!(read, settings);
        let settings = Settings { tls: Some(Tls::OfToken), ..settings };
        let variables: HashMap<&str, OsString> = settings.to_env().into_iter().collect();
        assert_eq!(Settings::read(|name| variables.get(name)?.clone().into_string().ok()).unwrap(), settings);
        assert_eq!(Settings::read(|_| None).unwrap(), Settings::default());
    }

    #[test]
    fn what_is_no_number_is_named() {
        let error = Settings::read(|name| (name == DEVICES_PER_PROCESS).then(|| "0".to_owned())).unwrap_err();
        insta::assert_snapshot!(error, @"SPMD_DEVICES_PER_PROCESS=0: it must be a number above 0");
        let error = Settings::read(|name| (name == STALL_TIMEOUT).then(|| "-1".to_owned())).unwrap_err();
        insta::assert_snapshot!(error, @"SPMD_STALL_TIMEOUT=-1: it must be a number of seconds");
    }
}
