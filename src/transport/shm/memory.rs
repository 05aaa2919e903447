//! The other process's memory, read where it lies: the system copies once what would go through a ring in two copies.

use std::io;

use rustix::process::{PTracer, getppid, set_ptracer};

use crate::transport;

/// Bytes that are read between two looks at whether to go on.
const STEP: usize = 4 << 20;

/// Runs of bytes that the system takes at a time.
const MAX_RUNS: usize = 512;

/// Where bytes lie in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Run {
    pub address: u64,
    pub len: u64,
}

/// Bytes of a [`Run`] on the wire.
pub(in crate::transport) const RUN_LEN: usize = 16;

impl Run {
    pub fn to_bytes(self) -> [u8; RUN_LEN] {
        let mut bytes = [0; RUN_LEN];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: &[u8; RUN_LEN]) -> Run {
        let (address, len) = bytes.split_at(8);
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        Run { address: word(address), len: word(len) }
    }
}

/// Permits the processes that the launcher started, or the scheduler's daemon, to read the memory of this one.
///
/// They have the same user, which is enough on most systems. Where processes may read their descendants only (Yama, as on
/// Ubuntu), the permission goes to the parent and with it to all descendants of that.
pub(super) fn permit_siblings() {
    if let Some(parent) = getppid() {
        // Fails where there is no Yama, and nothing is to be permitted.
        let _ = set_ptracer(PTracer::ProcessID(parent));
    }
}

/// The memory of another process that this one may read.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Memory {
    process: i32,
}

impl Memory {
    /// The memory of a process, or the system's reason why it cannot be read. It holds `expected` at `address`.
    pub fn open(process: u32, address: u64, expected: &[u8]) -> io::Result<Memory> {
        let memory = Memory { process: i32::try_from(process).map_err(io::Error::other)? };
        let mut found = vec![0; expected.len()];
        let run = Run { address, len: found.len() as u64 };
        // SAFETY: memory of our own.
        unsafe { memory.read(&[run], &[transport::Segment::new(&mut found)], || Ok::<_, io::Error>(()))? };
        if found == expected { Ok(memory) } else { Err(io::Error::other("another process than the one expected")) }
    }

    /// Copies `from` one after the other into the segments, which have as many bytes. Asks every few MiB whether to go on.
    ///
    /// # Safety
    /// The segments are valid for writes, and nothing else touches them.
    pub unsafe fn read<E: From<io::Error>>(
        &self,
        from: &[Run],
        into: &[transport::Segment],
        mut go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut here, mut there) = pair(from, into)?;
        let mut start = 0;
        while start < here.len() {
            go_on()?;
            let mut space = STEP;
            let fits = |run: &&libc::iovec| {
                let fits = run.iov_len <= space;
                space = space.saturating_sub(run.iov_len);
                fits
            };
            let end = start + here[start..].iter().take(MAX_RUNS).take_while(fits).count();
            let (to, at) = (&here[start..end], &there[start..end]);
            let (to_count, at_count) = (to.len() as libc::c_ulong, at.len() as libc::c_ulong);
            // SAFETY: the runs here lie within the segments, which are ours to write by the contract of this function; the
            // system checks those there.
            let count =
                unsafe { libc::process_vm_readv(self.process, to.as_ptr(), to_count, at.as_ptr(), at_count, 0) };
            let mut count = match usize::try_from(count) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => count,
                Err(_) => return Err(io::Error::last_os_error().into()),
            };
            // As many bytes as the system found, not always all.
            while count > 0 {
                let (to, at) = (&mut here[start], &mut there[start]);
                if count >= to.iov_len {
                    count -= to.iov_len;
                    start += 1;
                    continue;
                }
                for run in [to, at] {
                    run.iov_base = run.iov_base.wrapping_byte_add(count);
                    run.iov_len -= count;
                }
                count = 0;
            }
        }
        Ok(())
    }
}

/// Cuts both sides into runs of the same lengths, of at most [`STEP`] bytes.
fn pair(from: &[Run], into: &[transport::Segment]) -> io::Result<(Vec<libc::iovec>, Vec<libc::iovec>)> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a message of another size");
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let mut rest = from.iter().map(|run| (run.address, run.len)).filter(|(_, len)| *len > 0);
    let (mut address, mut left) = (0u64, 0u64);
    for segment in into {
        let mut offset = 0;
        while offset < segment.len() {
            if left == 0 {
                (address, left) = rest.next().ok_or_else(wrong)?;
            }
            let len = (segment.len() - offset).min(STEP).min(usize::try_from(left).unwrap_or(usize::MAX));
            let start = segment.start().wrapping_add(offset);
            here.push(libc::iovec { iov_base: start.cast(), iov_len: len });
            there.push(libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: len });
            offset += len;
            address = address.wrapping_add(len as u64);
            left -= len as u64;
        }
    }
    if left > 0 || rest.next().is_some() { Err(wrong()) } else { Ok((here, there)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Memory {
        let known = [1, 2, 3];
        Memory::open(std::process::id(), known.as_ptr() as u64, &known).unwrap()
    }

    fn run(bytes: &[u8]) -> Run {
        Run { address: bytes.as_ptr() as u64, len: bytes.len() as u64 }
    }

    fn read(from: &[Run], into: &mut [&mut [u8]]) -> io::Result<()> {
        let segments: Vec<transport::Segment> = into.iter_mut().map(|bytes| transport::Segment::new(bytes)).collect();
        // SAFETY: exclusive slices that outlive the call.
        unsafe { own().read(from, &segments, || Ok(())) }
    }

    #[test]
    fn pieces_of_different_lengths_are_put_together() {
        let source: Vec<u8> = (0..2 * STEP as u32 + 1000).map(|index| (index % 251) as u8).collect();
        let (head, tail) = source.split_at(STEP + 77);
        let mut target = vec![0; source.len()];
        let (first, rest) = target.split_at_mut(5);
        let (second, third) = rest.split_at_mut(10);
        read(&[run(head), run(&[]), run(tail)], &mut [first, &mut [], second, third]).unwrap();
        assert!(target == source);
    }

    #[test]
    fn many_small_pieces() {
        let source: Vec<u8> = (0..5000u32).map(|index| (index % 251) as u8).collect();
        let runs: Vec<Run> = source.chunks(3).map(run).collect();
        let mut target = vec![0; source.len()];
        read(&runs, &mut [&mut target[..]]).unwrap();
        assert!(target == source);
    }

    #[test]
    fn wrong_sizes_addresses_and_processes_are_errors() {
        let source = [7; 100];
        assert_eq!(read(&[run(&source)], &mut [&mut [0; 99]]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(&[run(&source)], &mut [&mut [0; 101]]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let nowhere = Run { address: 8, len: 100 };
        assert_eq!(read(&[nowhere], &mut [&mut [0; 100]]).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert!(Memory::open(u32::MAX, source.as_ptr() as u64, &source).is_err());
        assert!(Memory::open(std::process::id(), source.as_ptr() as u64, &[8; 100]).is_err());
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let process = ended.id();
        ended.wait().unwrap();
        assert!(Memory::open(process, source.as_ptr() as u64, &source).is_err());
    }

    #[test]
    fn reading_stops_when_told() {
        let source = vec![7; 3 * STEP];
        let mut target = vec![0; source.len()];
        let mut steps = 0;
        let go_on = || {
            steps += 1;
            if steps > 1 { Err(io::Error::other("no")) } else { Ok(()) }
        };
        // SAFETY: an exclusive slice that outlives the call.
        let outcome = unsafe { own().read(&[run(&source)], &[transport::Segment::new(&mut target)], go_on) };
        assert!(outcome.is_err());
        assert!(target[..STEP] == source[..STEP] && target[STEP..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn runs_survive_the_wire() {
        let run = Run { address: u64::MAX - 1, len: 1 << 40 };
        assert_eq!(Run::from_bytes(&run.to_bytes()), run);
    }
}
