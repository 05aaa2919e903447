//! Signals to the launcher, as a descriptor to poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// The signals that end or stop a job, and the one that says a child has ended.
pub struct Signals(SignalDelivery<UnixStream, SignalOnly>);

impl Signals {
    /// Catches the signals from now on.
    pub fn catch() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let signals = [SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCHLD];
        Ok(Self(SignalDelivery::with_pipe(read, write, SignalOnly, signals)?))
    }

    /// The signals that arrived, without the children's.
    pub fn take(&mut self) -> Vec<i32> {
        self.0.pending().filter(|signal| *signal != SIGCHLD).collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_read().as_fd()
    }
}

/// `signal 9 (SIGKILL)`
pub fn describe(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}
