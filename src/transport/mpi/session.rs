use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mpi::environment::{Threading, Universe, initialize_with_threading};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Root};

/// This process's part of an MPI job. MPI is initialized while it lives, which works once in a process.
#[derive(Clone, Debug)]
pub struct Session {
    rank: u32,
    size: u32,
    mpi: Arc<Mutex<Mpi>>,
}

/// Why MPI cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// MPI works once in a process.
    #[error("MPI has been initialized in this process before")]
    Again,
    /// The library was built for programs of one thread.
    #[error(
        "this MPI library allows calls from one thread only ({0:?}), MPI_THREAD_SERIALIZED is needed: use another build \
         of it, or --transport tcp"
    )]
    Threads(Threading),
    /// The processes do not know each other.
    #[error(
        "MPI says that this is process {rank} of {size}, the process manager says {expected_rank} of {expected_size}: \
         spmd-run was built with another MPI library than that of the mpirun that started it"
    )]
    Place {
        /// This process, by MPI.
        rank: u32,
        /// How many there are, by MPI.
        size: u32,
        /// This process, by the environment.
        expected_rank: u32,
        /// How many there are, by the environment.
        expected_size: u32,
    },
}

/// What MPI's calls need. They are made by whoever holds the lock around this.
pub(super) struct Mpi {
    /// `None` when MPI is finalized. Never dropped otherwise: finalizing waits for the other processes.
    universe: ManuallyDrop<Option<Universe>>,
    /// Apart from that of any other user of MPI in this process. Freed by finalizing.
    communicator: ManuallyDrop<SimpleCommunicator>,
}

impl Mpi {
    /// The processes of the job; `None` when MPI is finalized.
    pub fn communicator(&self) -> Option<&SimpleCommunicator> {
        self.universe.as_ref().map(|_| &*self.communicator)
    }
}

// SAFETY: MPI's handles are the process's. `Session::start` makes sure that the library allows calls from any thread, one
// at a time, and the lock around this type sees to the latter.
unsafe impl Send for Mpi {}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mpi")
    }
}

impl Session {
    /// Initializes MPI in a process that its process manager numbers so. All processes of the job make this call.
    ///
    /// An error inside MPI, here and later, ends the process with a message of MPI's.
    pub fn start(expected_rank: u32, expected_size: u32) -> Result<Session, SessionError> {
        let (universe, level) = initialize_with_threading(Threading::Serialized).ok_or(SessionError::Again)?;
        let universe = ManuallyDrop::new(Some(universe));
        if level < Threading::Serialized {
            return Err(SessionError::Threads(level));
        }
        let world = SimpleCommunicator::world();
        // MPI counts in positive C ints.
        let (rank, size) = (world.rank() as u32, world.size() as u32);
        if (rank, size) != (expected_rank, expected_size) {
            return Err(SessionError::Place { rank, size, expected_rank, expected_size });
        }
        let communicator = ManuallyDrop::new(world.duplicate());
        Ok(Session { rank, size, mpi: Arc::new(Mutex::new(Mpi { universe, communicator })) })
    }

    /// This process, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many processes the job has.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Every process gets what process 0 gives; what others give is left aside. All processes make this call, before
    /// they finish.
    pub fn broadcast(&self, mine: Vec<u8>) -> Vec<u8> {
        let mpi = self.lock();
        let Some(communicator) = mpi.communicator() else { return mine };
        let root = communicator.process_at_rank(0);
        let mut len = mine.len() as u64;
        root.broadcast_into(&mut len);
        let mut bytes = mine;
        bytes.resize(usize::try_from(len).unwrap_or(0), 0);
        root.broadcast_into(&mut bytes[..]);
        bytes
    }

    /// Finalizes MPI, when all processes do so. A process that ends otherwise counts as failed, and `mpirun` ends the
    /// job.
    pub fn finish(&self) {
        drop(self.lock().universe.take());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Mpi> {
        self.mpi.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
