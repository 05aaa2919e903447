use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::memory::{self, Memory};
use super::ring::Positions;

/// Bytes in a ring. A power of two, so that positions can go on counting.
const CAPACITY: usize = 1 << 19;

/// What comes before the bytes: the number, then the positions.
const HEAD: usize = 4096;
const POSITIONS_AT: usize = 128;

const NUMBER_LEN: usize = 32;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapped ring. Clones share it.
#[derive(Clone)]
pub(in crate::transport) struct Segment(Arc<Mapping>);

/// The head, and the bytes twice in a row: so any part of the ring is one slice.
struct Mapping(NonNull<u8>);

const MAPPED: usize = HEAD + 2 * CAPACITY;

// SAFETY: the memory belongs to the mapping; who reads and writes which part of it is `Segment`'s contract.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `Mapping::new` with this size; nobody has references when the last owner goes.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), MAPPED) };
    }
}

impl Mapping {
    fn new(file: &OwnedFd) -> io::Result<Mapping> {
        let (protection, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: a mapping of its own, of which parts are replaced.
        unsafe {
            let start = mmap_anonymous(std::ptr::null_mut(), MAPPED, ProtFlags::empty(), MapFlags::PRIVATE)?;
            let mapping =
                Mapping(NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?);
            mmap(start, HEAD + CAPACITY, protection, shared, file, 0)?;
            mmap(start.byte_add(HEAD + CAPACITY), CAPACITY, protection, shared, file, HEAD as u64)?;
            Ok(mapping)
        }
    }
}

impl Segment {
    /// Where writer and reader are.
    pub fn positions(&self) -> &Positions {
        // SAFETY: inside the mapping and aligned; made of atomics, so any contents are values.
        unsafe { self.0.0.byte_add(POSITIONS_AT).cast().as_ref() }
    }

    /// Bytes that fit.
    pub fn capacity(&self) -> u32 {
        CAPACITY as u32
    }

    fn at(&self, position: u32) -> *mut u8 {
        // SAFETY: less than the capacity, thus inside the mapping.
        unsafe { self.0.0.as_ptr().add(HEAD + position as usize % CAPACITY) }
    }

    /// Writes at a position. Only the ring's writer may, and only where it has space.
    pub fn write(&self, position: u32, bytes: &[u8]) {
        assert!(bytes.len() <= CAPACITY);
        // SAFETY: at most a ring's length from a place in its first half; no slice of `read` covers it as the reader
        // has released it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(position), bytes.len()) };
    }

    /// The bytes at a position. Only the ring's reader may ask, and only for what has arrived. The other process could
    /// change them, as it could send anything else.
    pub fn read(&self, position: u32, count: u32) -> &[u8] {
        let count = (count as usize).min(CAPACITY);
        // SAFETY: at most a ring's length from a place in its first half; the writer leaves it alone until released.
        unsafe { std::slice::from_raw_parts(self.at(position), count) }
    }
}

/// A ring that another process may open.
pub(in crate::transport) struct Offered {
    file: OwnedFd,
    segment: Segment,
    offer: Offer,
}

/// How another process finds a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Offer {
    /// The process that has the file open.
    pub process: u32,
    /// Its descriptor there.
    pub descriptor: u32,
    /// Where the number lies in that process.
    pub address: u64,
    /// What the file begins with.
    pub number: [u8; NUMBER_LEN],
}

/// Bytes of an [`Offer`] on the wire.
pub(in crate::transport) const OFFER_LEN: usize = 4 + 4 + 8 + NUMBER_LEN;

impl Offered {
    /// A new ring.
    pub fn new() -> io::Result<Offered> {
        memory::permit_siblings();
        let file = memfd_create("spmd-run", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (HEAD + CAPACITY) as u64)?;
        // Nobody can make it shorter and so take memory away from under the other.
        fcntl_add_seals(&file, SEALS)?;
        let segment = Segment(Arc::new(Mapping::new(&file)?));
        let mut number = [0; NUMBER_LEN];
        File::open("/dev/urandom")?.read_exact(&mut number)?;
        // SAFETY: the head of a mapping that nobody else has yet.
        unsafe { segment.0.0.cast::<[u8; NUMBER_LEN]>().write(number) };
        let (process, descriptor) = (std::process::id(), file.as_raw_fd() as u32);
        let address = segment.0.0.as_ptr() as u64;
        let offer = Offer { process, descriptor, address, number };
        Ok(Offered { file, segment, offer })
    }

    /// What the other process has to know.
    pub fn offer(&self) -> Offer {
        self.offer.clone()
    }

    /// The ring, once the other process has opened it or will not.
    pub fn into_segment(self) -> Segment {
        drop(self.file);
        self.segment
    }
}

impl Offer {
    /// The ring of another process. Fails if that runs elsewhere or may not be looked into.
    pub fn open(&self) -> io::Result<Segment> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let file = OwnedFd::from(OpenOptions::new().read(true).write(true).open(path)?);
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not the memory that was offered");
        let size = rustix::fs::fstat(&file)?.st_size;
        if size != (HEAD + CAPACITY) as i64 || !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(wrong());
        }
        let segment = Segment(Arc::new(Mapping::new(&file)?));
        // SAFETY: the head of the mapping, which nobody writes to any more.
        let number = unsafe { segment.0.0.cast::<[u8; NUMBER_LEN]>().read() };
        if number == self.number { Ok(segment) } else { Err(wrong()) }
    }

    /// The memory of that process, if this one may read it.
    pub fn memory(&self) -> io::Result<Memory> {
        Memory::open(self.process, self.address, &self.number)
    }

    pub fn to_bytes(&self) -> [u8; OFFER_LEN] {
        let mut bytes = [0; OFFER_LEN];
        let (process, descriptor) = (self.process.to_le_bytes(), self.descriptor.to_le_bytes());
        let fields = [&process[..], &descriptor, &self.address.to_le_bytes(), &self.number];
        for (place, byte) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *place = *byte;
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8; OFFER_LEN]) -> Offer {
        let mut fields = bytes.iter().copied();
        let mut word = || u32::from_le_bytes(std::array::from_fn(|_| fields.next().unwrap_or(0)));
        let (process, descriptor) = (word(), word());
        let address = u64::from(word()) | u64::from(word()) << 32;
        let mut number = [0; NUMBER_LEN];
        number.fill_with(|| fields.next().unwrap_or(0));
        Offer { process, descriptor, address, number }
    }
}

/// Where process ids mean the same: on one boot of one system, in one process namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct HostId([u8; HOST_LEN]);

/// Bytes of a [`HostId`] on the wire.
pub(in crate::transport) const HOST_LEN: usize = 32;

impl HostId {
    /// A host that no process shares with any other.
    pub const UNKNOWN: HostId = HostId([0; HOST_LEN]);

    /// This process's host.
    pub fn here() -> io::Result<HostId> {
        let boot = fs::read("/proc/sys/kernel/random/boot_id")?;
        let namespace = fs::read_link("/proc/self/ns/pid")?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&boot).update(namespace.as_os_str().as_encoded_bytes());
        Ok(HostId(*hasher.finalize().as_bytes()))
    }

    pub fn is_same(&self, other: &HostId) -> bool {
        self == other && *self != HostId::UNKNOWN
    }

    pub fn to_bytes(self) -> [u8; HOST_LEN] {
        self.0
    }

    pub fn from_bytes(bytes: [u8; HOST_LEN]) -> HostId {
        HostId(bytes)
    }
}
