//! What MPI does for a job that its process manager started: it tells all processes where to meet, and carries data. All
//! of that is nothing in a program that was built without MPI.

use std::net::TcpListener;

use spmd_run::rendezvous::JobToken;

#[cfg(feature = "mpi")]
pub use with_mpi::{Session, carrier, finish, meet};
#[cfg(not(feature = "mpi"))]
pub use without_mpi::{Session, carrier, finish, meet};

/// What a process has for the rendezvous.
pub struct Meeting {
    /// The coordinator's socket, if process 0 has it already.
    pub host_coordinator: Option<TcpListener>,
    /// The job's secret.
    pub token: Option<JobToken>,
    /// MPI, if it is to carry the data.
    pub session: Option<Session>,
}

#[cfg(feature = "mpi")]
mod with_mpi {
    use anyhow::{Context, anyhow};
    use spmd_run::cluster::{Detected, Scheduler, host};
    use spmd_run::rendezvous::{self, JobToken};
    use spmd_run::transport::Carrier;
    pub use spmd_run::transport::mpi::Session;

    use super::super::Failure;
    use super::super::job::join_failure;
    use super::Meeting;

    /// Has process 0 tell where it listens, and the job's secret, unless the user said where that is.
    pub fn meet(
        detected: &mut Detected,
        is_given: bool,
        carries_data: bool,
        token: Option<JobToken>,
    ) -> Result<Meeting, Failure> {
        let is_launcher = matches!(detected.scheduler, Scheduler::OpenMpi | Scheduler::Mpich);
        if carries_data && !detected.speaks_mpi {
            return Err(Failure::usage(format!(
                "--transport mpi: {} started this process, and not as one of MPI: use mpirun, or srun --mpi=pmix",
                detected.scheduler
            )));
        }
        if !carries_data && (is_given || !is_launcher) {
            return Ok(Meeting { host_coordinator: None, token, session: None });
        }
        let count = detected.process_count.unwrap_or_default();
        let session = Session::start(detected.process_index, count).map_err(Failure::program)?;
        let mut meeting = Meeting { host_coordinator: None, token, session: None };
        if !is_given {
            let mine = match detected.process_index {
                0 => Some(offer(detected, &mut meeting)),
                _ => None,
            };
            let words = mine.as_ref().map_or(Ok(Vec::new()), |mine| {
                postcard::to_stdvec(&mine.as_ref().map_err(|failure| failure.message()))
            });
            let words = session.broadcast(words.map_err(Failure::program)?);
            if let Some(Err(failure)) = mine {
                return Err(failure);
            }
            let (address, token) = postcard::from_bytes::<Result<(String, String), String>>(&words)
                .context("cannot read what process 0 says over MPI")
                .map_err(Failure::peer)?
                .map_err(|reason| Failure::peer(anyhow!("process 0: {reason}")))?;
            detected.coordinator = Ok(address);
            meeting.token = Some(token.parse().map_err(Failure::peer)?);
        }
        if carries_data {
            meeting.session = Some(session);
        } else {
            session.finish();
        }
        Ok(meeting)
    }

    /// Opens the coordinator's socket; returns its address and the secret.
    fn offer(detected: &Detected, meeting: &mut Meeting) -> Result<(String, String), Failure> {
        let host = if detected.on_one_host() { [127, 0, 0, 1].into() } else { host::address_for_peers() };
        let listener = rendezvous::listen(&std::net::SocketAddr::new(host, 0).to_string()).map_err(join_failure)?;
        let address = listener.local_addr().map_err(Failure::program)?.to_string();
        meeting.host_coordinator = Some(listener);
        let token = match meeting.token.take() {
            Some(token) => token,
            None => JobToken::random().map_err(Failure::program)?,
        };
        Ok((address, token.reveal().to_owned()))
    }

    pub fn carrier(session: &Session) -> Carrier {
        Carrier::Mpi(session.clone())
    }

    /// Leaves MPI in order, with all other processes.
    pub fn finish(session: &Session) {
        session.finish();
    }
}

#[cfg(not(feature = "mpi"))]
mod without_mpi {
    use spmd_run::cluster::Detected;
    use spmd_run::rendezvous::JobToken;
    use spmd_run::transport::Carrier;

    use super::super::Failure;
    use super::Meeting;

    pub enum Session {}

    pub fn meet(
        _detected: &mut Detected,
        _is_given: bool,
        _carries_data: bool,
        token: Option<JobToken>,
    ) -> Result<Meeting, Failure> {
        Ok(Meeting { host_coordinator: None, token, session: None })
    }

    pub fn carrier(session: &Session) -> Carrier {
        match *session {}
    }

    pub fn finish(session: &Session) {
        match *session {}
    }
}
