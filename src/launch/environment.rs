//! What a launcher tells its controllers.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;

use super::{phase, settings};
use crate::rendezvous::{InvalidToken, JobToken};

/// Where the coordinator listens, as `HOST:PORT`.
pub const COORDINATOR: &str = "SPMD_COORDINATOR";
/// The number of an inherited listening socket for the coordinator; process 0 only.
pub const COORDINATOR_FD: &str = "SPMD_COORDINATOR_FD";
/// The controller's process index.
pub const PROCESS_INDEX: &str = "SPMD_PROCESS_INDEX";
/// How many controllers the job has.
pub const PROCESS_COUNT: &str = "SPMD_PROCESS_COUNT";
/// The number of an inherited descriptor of memory in which the controller notes its [`phase`].
pub const PHASE_FD: &str = "SPMD_PHASE_FD";
/// How often the launcher has started the job before, after a failure.
pub const RESTART_COUNT: &str = "SPMD_RESTART_COUNT";
/// Where a launcher on another host has put its input files; see [`shipped`](super::shipped).
pub const SHIPPED_FILES: &str = "SPMD_SHIPPED_FILES";
/// Where other hosts reach a helper's host, by who started it.
pub const HOST_ADDRESS: &str = "SPMD_HOST_ADDRESS";
/// The command that runs a command on another host, as of [`By::Ssh`](super::hosts::By::Ssh).
pub const SSH: &str = "SPMD_SSH";

const PREFIX: &str = "SPMD_";
/// Variables of test suites, which are nobody else's concern.
const TEST_PREFIX: &str = "SPMD_TEST_";
const KNOWN: [&str; 10] = [
    COORDINATOR,
    COORDINATOR_FD,
    PROCESS_INDEX,
    PROCESS_COUNT,
    PHASE_FD,
    RESTART_COUNT,
    SHIPPED_FILES,
    HOST_ADDRESS,
    SSH,
    JobToken::VARIABLE,
];

/// This process's place in a job, as its launcher says.
#[derive(Debug)]
pub struct ControllerEnv {
    /// Where the coordinator listens, as `HOST:PORT`.
    pub coordinator: String,
    /// The socket to serve the coordinator on; process 0 has one from the local launcher.
    pub listener: Option<TcpListener>,
    /// This process, from 0.
    pub process_index: u32,
    /// How many processes the job has.
    pub process_count: u32,
    /// The job's secret.
    pub token: Option<JobToken>,
}

/// Environment variables that make no sense.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// A variable that starts like ours and is not.
    #[error("unknown environment variable {name}: {}", suggestion(.nearest))]
    Unknown {
        /// The variable.
        name: String,
        /// The known one most like it.
        nearest: Option<&'static str>,
    },
    /// Only some of the variables that go together are set.
    #[error("{present} is set but {absent} is not: a launcher sets both, set all of them or none")]
    Incomplete {
        /// A variable that is set.
        present: &'static str,
        /// One that is not.
        absent: &'static str,
    },
    /// A value that cannot be read.
    #[error("{name}={value}: {reason}")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What the launcher left for this process has been taken over already.
    #[error("the environment has been read already, and what is inherited works once")]
    Taken,
    /// The token is not one. Its value is not shown.
    #[error("SPMD_JOB_TOKEN: {0}")]
    Token(InvalidToken),
}

fn suggestion(nearest: &Option<&'static str>) -> String {
    match nearest {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("known are {}", KNOWN.join(", ")),
    }
}

impl ControllerEnv {
    /// Reads the environment of this process; `None` when no launcher started it.
    ///
    /// Takes over what is inherited from the launcher, which works once. A job token alone is allowed, for processes that are told
    /// their place by options: see [`token_from_env`](Self::token_from_env).
    pub fn from_env() -> Result<Option<Self>, EnvironmentError> {
        let variables = Variables::read(std::env::vars_os())?;
        let Some(place) = variables.place()? else { return Ok(None) };
        static TAKEN: AtomicBool = AtomicBool::new(false);
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Err(EnvironmentError::Taken);
        }
        let listener = match variables.coordinator_fd {
            // SAFETY: the launcher opened it for this process to own, and the flag above lets only one caller come here.
            Some(fd) if place.process_index == 0 => Some(unsafe { take_listener(fd) }?),
            _ => None,
        };
        if let Some(fd) = variables.phase_fd {
            // SAFETY: as above.
            unsafe { take_phase(fd) }?;
        }
        Ok(Some(Self {
            coordinator: place.coordinator,
            listener,
            process_index: place.process_index,
            process_count: place.process_count,
            token: variables.token,
        }))
    }

    /// Whether a launcher started this process.
    pub fn is_set() -> bool {
        std::env::var_os(PROCESS_INDEX).is_some()
    }

    /// The variables that tell a process its place in a job.
    pub fn place(coordinator: &str, process_index: u32, process_count: u32) -> [(&'static str, OsString); 3] {
        let (index, count) = (process_index.to_string(), process_count.to_string());
        [(COORDINATOR, coordinator.into()), (PROCESS_INDEX, index.into()), (PROCESS_COUNT, count.into())]
    }

    /// The job token of the environment, for processes that are told the rest by options.
    pub fn token_from_env() -> Result<Option<JobToken>, EnvironmentError> {
        Ok(Variables::read(std::env::vars_os())?.token)
    }
}

#[derive(Debug, Default)]
struct Variables {
    coordinator: Option<String>,
    coordinator_fd: Option<RawFd>,
    process_index: Option<u32>,
    process_count: Option<u32>,
    phase_fd: Option<RawFd>,
    token: Option<JobToken>,
}

#[derive(Debug)]
struct Place {
    coordinator: String,
    process_index: u32,
    process_count: u32,
}

impl Variables {
    fn read(all: impl Iterator<Item = (OsString, OsString)>) -> Result<Self, EnvironmentError> {
        let mut ours: Vec<_> = all
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with(PREFIX) && !name.starts_with(TEST_PREFIX))
            .filter(|(name, _)| !settings::NAMES.contains(&&**name))
            .collect();
        ours.sort();
        let mut variables = Self::default();
        for (name, value) in ours {
            match &*name {
                COORDINATOR => variables.coordinator = Some(parse(COORDINATOR, &value)?),
                COORDINATOR_FD => variables.coordinator_fd = Some(parse(COORDINATOR_FD, &value)?),
                PROCESS_INDEX => variables.process_index = Some(parse(PROCESS_INDEX, &value)?),
                PROCESS_COUNT => variables.process_count = Some(parse(PROCESS_COUNT, &value)?),
                PHASE_FD => variables.phase_fd = Some(parse(PHASE_FD, &value)?),
                JobToken::VARIABLE => {
                    variables.token = Some(value.to_string_lossy().parse().map_err(EnvironmentError::Token)?);
                }
                RESTART_COUNT | SHIPPED_FILES | HOST_ADDRESS | SSH => {}
                _ => return Err(EnvironmentError::Unknown { nearest: nearest(&name), name }),
            }
        }
        Ok(variables)
    }

    fn place(&self) -> Result<Option<Place>, EnvironmentError> {
        match (&self.coordinator, self.process_index, self.process_count) {
            (None, None, None) => Ok(None),
            (Some(coordinator), Some(process_index), Some(process_count)) if process_index < process_count => {
                Ok(Some(Place { coordinator: coordinator.clone(), process_index, process_count }))
            }
            (Some(_), Some(process_index), Some(process_count)) => Err(EnvironmentError::Value {
                name: PROCESS_INDEX,
                value: process_index.to_string(),
                reason: format!("it must be below {PROCESS_COUNT}={process_count}"),
            }),
            (coordinator, process_index, process_count) => {
                let set = [
                    (COORDINATOR, coordinator.is_some()),
                    (PROCESS_INDEX, process_index.is_some()),
                    (PROCESS_COUNT, process_count.is_some()),
                ];
                let find =
                    |wanted| set.iter().find(|(_, is_set)| *is_set == wanted).map_or(COORDINATOR, |(name, _)| name);
                Err(EnvironmentError::Incomplete { present: find(true), absent: find(false) })
            }
        }
    }
}

fn parse<T: FromStr>(name: &'static str, value: &OsStr) -> Result<T, EnvironmentError> {
    let value = value.to_string_lossy();
    value.parse().map_err(|_| EnvironmentError::Value {
        name,
        value: value.to_string(),
        reason: "it must be a whole number".to_owned(),
    })
}

fn nearest(name: &str) -> Option<&'static str> {
    const NEAR: f64 = 0.5;
    let distance = |known: &str| strsim::normalized_damerau_levenshtein(&name[PREFIX.len()..], &known[PREFIX.len()..]);
    let known = KNOWN.into_iter().chain(settings::NAMES).map(|known| (distance(known), known));
    known.filter(|(likeness, _)| *likeness >= NEAR).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

/// Takes over the inherited listening socket.
///
/// # Safety
/// As [`take`].
unsafe fn take_listener(fd: RawFd) -> Result<TcpListener, EnvironmentError> {
    let is_listening = |socket: BorrowedFd<'_>| rustix::net::sockopt::socket_acceptconn(socket).unwrap_or(false);
    // SAFETY: the caller's promise.
    Ok(unsafe { take(COORDINATOR_FD, fd, is_listening, "it is no listening socket") }?.into())
}

/// Takes over the inherited memory for this process's phase.
///
/// # Safety
/// As [`take`].
unsafe fn take_phase(fd: RawFd) -> Result<(), EnvironmentError> {
    let is_memory = |memory: BorrowedFd<'_>| rustix::fs::fcntl_get_seals(memory).is_ok();
    // SAFETY: the caller's promise.
    let memory = unsafe { take(PHASE_FD, fd, is_memory, "it is no shared memory") }?;
    phase::share(memory).map_err(|error| wrong_descriptor(PHASE_FD, fd, error))
}

/// Takes over an inherited descriptor, if it is what it should be.
///
/// # Safety
/// When the number is that of a descriptor of the right kind, nothing else in this process owns it.
unsafe fn take(
    name: &'static str,
    fd: RawFd,
    is_right: impl FnOnce(BorrowedFd<'_>) -> bool,
    otherwise: &str,
) -> Result<OwnedFd, EnvironmentError> {
    if fd < 3 {
        return Err(wrong_descriptor(name, fd, "it is a standard stream"));
    }
    // SAFETY: the borrow ends in this function, and nobody else in this process closes an inherited descriptor. The
    // number may still be wrong; the kernel says so.
    let inherited = unsafe { BorrowedFd::borrow_raw(fd) };
    if !is_right(inherited) {
        return Err(wrong_descriptor(name, fd, otherwise));
    }
    rustix::io::fcntl_setfd(inherited, FdFlags::CLOEXEC)
        .map_err(|error| wrong_descriptor(name, fd, io::Error::from(error)))?;
    // SAFETY: the descriptor is open and of the right kind, so the caller's promise holds for it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn wrong_descriptor(name: &'static str, fd: RawFd, reason: impl ToString) -> EnvironmentError {
    EnvironmentError::Value { name, value: fd.to_string(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Variables, EnvironmentError> {
        Variables::read(variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn a_place_is_read() {
        let variables = read(&[
            ("PATH", "/bin"),
            ("SPMD_TEST_PLUGINS", "x"),
            (COORDINATOR, "host-a:4000"),
            (PROCESS_INDEX, "2"),
            (PROCESS_COUNT, "4"),
            (JobToken::VARIABLE, "0123456789abcdef"),
        ])
        .unwrap();
        let place = variables.place().unwrap().unwrap();
        assert_eq!((&*place.coordinator, place.process_index, place.process_count), ("host-a:4000", 2, 4));
        assert_eq!(variables.token.unwrap().reveal(), "0123456789abcdef");
        assert!(read(&[(JobToken::VARIABLE, "0123456789abcdef")]).unwrap().place().unwrap().is_none());
    }

    #[test]
    fn wrong_variables_are_named() {
        let error = read(&[("SPMD_PROCES_INDX", "1")]).unwrap_err();
        insta::assert_snapshot!(error, @"unknown environment variable SPMD_PROCES_INDX: did you mean SPMD_PROCESS_INDEX?");
        let error = read(&[("SPMD_INITIALIZATION", "1")]).unwrap_err();
        insta::assert_snapshot!(error, @"unknown environment variable SPMD_INITIALIZATION: known are SPMD_COORDINATOR, SPMD_COORDINATOR_FD, SPMD_PROCESS_INDEX, SPMD_PROCESS_COUNT, SPMD_PHASE_FD, SPMD_RESTART_COUNT, SPMD_SHIPPED_FILES, SPMD_HOST_ADDRESS, SPMD_SSH, SPMD_JOB_TOKEN");
        let error = read(&[(PROCESS_COUNT, "four")]).unwrap_err();
        insta::assert_snapshot!(error, @"SPMD_PROCESS_COUNT=four: it must be a whole number");
        let error = read(&[(PROCESS_COUNT, "4"), (PROCESS_INDEX, "0")]).unwrap().place().unwrap_err();
        insta::assert_snapshot!(error, @"SPMD_PROCESS_INDEX is set but SPMD_COORDINATOR is not: a launcher sets both, set all of them or none");
        let error =
            read(&[(PROCESS_COUNT, "4"), (PROCESS_INDEX, "4"), (COORDINATOR, "h:1")]).unwrap().place().unwrap_err();
        insta::assert_snapshot!(error, @"SPMD_PROCESS_INDEX=4: it must be below SPMD_PROCESS_COUNT=4");
        let error = read(&[(JobToken::VARIABLE, "secret")]).unwrap_err();
        insta::assert_snapshot!(error, @"SPMD_JOB_TOKEN: the job token has 6 characters, it needs at least 16: make one with `openssl rand -hex 32`");
    }

    #[test]
    fn a_descriptor_that_is_no_socket_is_refused() {
        // SAFETY: none of these is a descriptor of the right kind.
        let (standard, closed, no_memory) =
            unsafe { (take_listener(0), take_listener(1_000_000), take_phase(1_000_000)) };
        insta::assert_snapshot!(standard.unwrap_err(), @"SPMD_COORDINATOR_FD=0: it is a standard stream");
        insta::assert_snapshot!(closed.unwrap_err(), @"SPMD_COORDINATOR_FD=1000000: it is no listening socket");
        insta::assert_snapshot!(no_memory.unwrap_err(), @"SPMD_PHASE_FD=1000000: it is no shared memory");
    }
}
