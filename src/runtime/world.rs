//! The processes of a job as one of them sees them: itself alone, or a member of a rendezvous.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::rendezvous::{Abort, Progress, Rendezvous, RendezvousError};
use crate::trace::{self, Files};

use super::gathering::{self, Gathering, WriteError};
use super::opening::progress;

/// The processes of a job. Every process makes the same calls in the same order.
#[derive(Clone, Debug)]
pub struct World {
    member: Option<Arc<Rendezvous>>,
    /// The processes that its calls are for, in order; `None` for all.
    among: Option<Arc<[u32]>>,
    /// How long a process waits for the others.
    limit: Duration,
    /// What becomes of what the processes record, if they do.
    gathering: Option<Arc<Gathering>>,
}

/// Longer than any job, and short enough to be added to a point in time.
const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Why something could not be agreed on with the other processes.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The rendezvous failed, or another process did.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// Another process sent what cannot be read; all run the same version, so this is a defect.
    #[error("cannot read '{name}' of another process: {source}")]
    Malformed {
        /// What was exchanged.
        name: String,
        /// Why it cannot be read.
        source: postcard::Error,
    },
    /// The job is done, and what it was to leave cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl World {
    /// A job of one process.
    pub fn alone() -> World {
        World { member: None, among: None, limit: UNLIMITED, gathering: None }
    }

    /// A job whose processes have met.
    pub fn of(rendezvous: Rendezvous, limit: Duration) -> World {
        rendezvous.report(|| progress(None, 0));
        World { member: Some(Arc::new(rendezvous)), among: None, limit: limit.min(UNLIMITED), gathering: None }
    }

    /// Has process 0 write these files in the end, of what the processes record from now on, or have recorded since
    /// [`Files::start_recording`].
    ///
    /// # Errors
    /// This is process 0, and cannot write them.
    pub fn show_in(mut self, files: &Files) -> Result<World, WriteError> {
        files.start_recording(self.process_index(), self.process_count());
        let Some(recorder) = trace::recorder().filter(|_| files.are_wanted()) else { return Ok(self) };
        if self.process_index() == 0 {
            files.paths().try_for_each(gathering::check)?;
        }
        if let Some(rendezvous) = &self.member {
            recorder.identify(|identity| identity.slice = rendezvous.slice_index());
            if rendezvous.process_index() != 0
                && let Ok(sample) = rendezvous.compare_clocks()
            {
                recorder.add_clock(sample);
            }
        }
        self.gathering = Some(Arc::new(Gathering::new(files.clone())));
        Ok(self)
    }

    /// Saves what has been recorded when the job has failed, in this process or another one, and this one is about to end.
    pub fn save_trace(&self) {
        if let Some(gathering) = &self.gathering {
            gathering.save(self.member.as_deref());
        }
    }

    /// This process, from 0.
    pub fn process_index(&self) -> u32 {
        self.member.as_ref().map_or(0, |rendezvous| rendezvous.process_index())
    }

    /// How many processes the job has.
    pub fn process_count(&self) -> u32 {
        self.member.as_ref().map_or(1, |rendezvous| rendezvous.process_count())
    }

    /// The slice that this process belongs to, from 0.
    pub fn slice_index(&self) -> u32 {
        self.member.as_ref().map_or(0, |rendezvous| rendezvous.slice_index())
    }

    /// How long a process waits for the others.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The names of the processes' hosts, by process index; empty in a job of one process.
    pub fn hosts(&self) -> Vec<&str> {
        self.member.iter().flat_map(|rendezvous| rendezvous.hosts()).map(String::as_str).collect()
    }

    /// Some of the processes, of which this one may be one: what these agree on, nobody else is asked for or waits for. Their
    /// first one has the part of process 0.
    pub(super) fn among(&self, processes: &[u32]) -> World {
        World { among: Some(processes.into()), ..self.clone() }
    }

    /// The process that has the part of process 0.
    pub(super) fn first(&self) -> u32 {
        self.among.as_ref().and_then(|processes| processes.first().copied()).unwrap_or(0)
    }

    /// Each of the processes, with the name of its host.
    pub(super) fn processes(&self) -> Vec<(u32, &str)> {
        let hosts = self.hosts();
        let host = |process: u32| (process, hosts.get(process as usize).copied().unwrap_or_default());
        match &self.among {
            Some(processes) => processes.iter().copied().map(host).collect(),
            None => (0..self.process_count()).map(host).collect(),
        }
    }

    /// Process 0 makes a value, and every process gets it. `name` is used once in a job.
    pub fn from_first<T, E>(&self, name: &str, make: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<WorldError>,
    {
        self.from_process(self.first(), name, make)
    }

    /// As [`from_first`](Self::from_first), from any process.
    pub fn from_process<T, E>(&self, index: u32, name: &str, make: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<WorldError>,
    {
        let alone = self.among.as_ref().is_some_and(|processes| processes.len() == 1);
        let Some(rendezvous) = self.member.as_ref().filter(|_| !alone) else { return make() };
        if rendezvous.process_index() == index {
            let value = make()?;
            rendezvous.put(name, &encode(name, &value)?).map_err(WorldError::from)?;
            return Ok(value);
        }
        let bytes = rendezvous.get(name, self.limit).map_err(WorldError::from)?;
        Ok(decode(name, &bytes)?)
    }

    /// Every process gives a value and gets those of all, in the order of process indices.
    pub fn all_gather<T: Serialize + DeserializeOwned>(&self, name: &str, value: T) -> Result<Vec<T>, WorldError> {
        let Some(rendezvous) = &self.member else { return Ok(vec![value]) };
        let value = encode(name, &value)?;
        let gathered = match &self.among {
            Some(processes) => self.gather_among(processes, rendezvous, name, value)?,
            None => rendezvous.all_gather(name, &value, self.limit)?,
        };
        gathered.iter().map(|bytes| decode(name, bytes)).collect()
    }

    /// The coordinator's own gathering waits for all processes, so the first of these does it.
    fn gather_among(
        &self,
        processes: &[u32],
        rendezvous: &Rendezvous,
        name: &str,
        value: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, WorldError> {
        let of = |process: u32| format!("{name}/of/{process}");
        let this = rendezvous.process_index();
        if this != self.first() {
            rendezvous.put(&of(this), &value)?;
        }
        self.from_first(&format!("{name}/of/all"), || {
            let gather = |&process: &u32| {
                if process == this { Ok(value.clone()) } else { rendezvous.get(&of(process), self.limit) }
            };
            Ok(processes.iter().map(gather).collect::<Result<_, _>>()?)
        })
    }

    /// Stores a value under a name for all processes.
    pub(super) fn put_bytes(&self, name: &str, value: &[u8]) -> Result<(), WorldError> {
        match &self.member {
            Some(rendezvous) => Ok(rendezvous.put(name, value)?),
            None => Ok(()),
        }
    }

    /// The value of a name, as soon as a process has put it; `None` if none did for this long.
    pub(super) fn get_bytes(&self, name: &str, limit: Duration) -> Result<Option<Vec<u8>>, WorldError> {
        let Some(rendezvous) = &self.member else { return Ok(None) };
        match rendezvous.get(name, limit) {
            Ok(value) => Ok(Some(value)),
            Err(RendezvousError::KeyMissing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The value of a name, if a process has put it already.
    pub(super) fn try_get_bytes(&self, name: &str) -> Result<Option<Vec<u8>>, WorldError> {
        match &self.member {
            Some(rendezvous) => Ok(rendezvous.try_get(name)?),
            None => Ok(None),
        }
    }

    /// Puts up a notice that all processes can see; again is no error.
    pub fn post(&self, name: &str) -> Result<(), WorldError> {
        self.put_bytes(name, &[])
    }

    /// Whether another process has put up this notice.
    pub fn is_posted(&self, name: &str) -> Result<bool, WorldError> {
        Ok(self.try_get_bytes(name)?.is_some())
    }

    /// Waits until every process is here.
    pub fn barrier(&self, name: &str) -> Result<(), WorldError> {
        match &self.member {
            Some(_) if self.among.is_some() => self.all_gather(name, ()).map(drop),
            Some(rendezvous) => Ok(rendezvous.barrier(name, self.limit)?),
            None => Ok(()),
        }
    }

    /// Ends the job for all processes. Returns the failure that came first, if this one did not.
    pub fn abort(&self, reason: &str) -> Option<Abort> {
        let first = self.stop(reason);
        self.save_trace();
        first
    }

    fn stop(&self, reason: &str) -> Option<Abort> {
        let rendezvous = self.member.as_ref()?;
        rendezvous.abort(reason);
        let (sender, receiver) = std::sync::mpsc::channel();
        rendezvous.on_abort(move |abort| {
            // The receiver waits below.
            let _ = sender.send(abort.clone());
        });
        let first = receiver.try_recv().ok()?;
        (!first.reported || first.process_index != Some(rendezvous.process_index())).then_some(first)
    }

    /// Has a function called when another process ends the job.
    pub fn on_abort(&self, callback: impl FnOnce(&Abort) + Send + 'static) {
        if let Some(rendezvous) = &self.member {
            rendezvous.on_abort(callback);
        }
    }

    /// Has this process's signs of life say how far it is.
    pub fn report(&self, progress: impl Fn() -> Progress + Send + 'static) {
        if let Some(rendezvous) = &self.member {
            rendezvous.report(progress);
        }
    }

    /// Leaves the job in order, when all processes are done.
    pub fn shutdown(&self) -> Result<(), WorldError> {
        let rendezvous = self.member.as_deref();
        if let (Some(gathering), Some(rendezvous)) = (&self.gathering, rendezvous)
            && rendezvous.process_index() != 0
        {
            gathering.hand_over(rendezvous, self.limit);
        }
        rendezvous.map_or(Ok(()), |rendezvous| rendezvous.shutdown(self.limit))?;
        if let Some(gathering) = self.gathering.as_ref().filter(|_| self.process_index() == 0) {
            gathering.write(rendezvous, Duration::ZERO)?;
        }
        Ok(())
    }
}

fn encode<T: Serialize>(name: &str, value: &T) -> Result<Vec<u8>, WorldError> {
    postcard::to_stdvec(value).map_err(|source| WorldError::Malformed { name: name.to_owned(), source })
}

fn decode<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, WorldError> {
    postcard::from_bytes(bytes).map_err(|source| WorldError::Malformed { name: name.to_owned(), source })
}
