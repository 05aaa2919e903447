//! Whether the other end of a connection can still be reached.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// How long the other system must have been silent.
const SILENCE: Duration = Duration::from_millis(1200);
/// How often the system must have tried in vain: to send again what is on its way or, where this end's own network is down,
/// to send anything. It waits longer before each attempt, and the longer the slower the network is.
const ATTEMPTS: u8 = 3;

/// Whether the other system no longer acknowledges what is sent to it: it is down, or cut off, or this one is. A system answers for a
/// process that is stopped or does not read, so this says nothing about processes. False where the kernel does not tell.
pub fn is_cut_off(socket: BorrowedFd<'_>) -> bool {
    // SAFETY: all bytes may be zero.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointers lead to a value of the length that is given, and the kernel writes no more than that.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length)
    };
    let silent = Duration::from_millis(info.tcpi_last_ack_recv.into());
    // An answer, also that of a process that has no room for more, sets both back to zero.
    result == 0 && info.tcpi_retransmits.max(info.tcpi_probes) >= ATTEMPTS && silent >= SILENCE
}
