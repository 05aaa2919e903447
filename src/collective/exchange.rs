use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::trace::{self, ExchangeTimes, Recorder};
use crate::transport::{Loan, Receive, Segment, Tag, Transport, TransportError, Wait};

/// One call of one group to one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct InstanceId {
    pub program: u64,
    pub run: u64,
    pub key: u32,
    pub group: u32,
    pub trip: u64,
}

/// Bits of a tag's fourth word that hold the step; the trip takes the rest.
const STEP_BITS: u32 = 28;

/// The step of a call's first messages where these only say that a process is there.
pub(super) const MEETING: u32 = (1 << STEP_BITS) - 1;

impl InstanceId {
    fn tag(&self, digest: u64, step: u32) -> Tag {
        let place = u64::from(self.key) << 32 | u64::from(self.group);
        Tag([self.program, self.run, place, self.trip << STEP_BITS | u64::from(step), digest])
    }

    /// The call that a message belongs to, and its instruction's digest on the sender.
    pub fn of_tag(tag: &Tag) -> (InstanceId, u64) {
        let Tag([program, run, place, trip, digest]) = *tag;
        let id = InstanceId { program, run, key: (place >> 32) as u32, group: place as u32, trip: trip >> STEP_BITS };
        (id, digest)
    }
}

/// The messages of one call. Each pair of processes that exchanges anything does so in both directions in its first step,
/// if only an empty message: so no process runs ahead of one that takes its data, and each sees where the other is.
pub(super) struct Exchange<'a> {
    pub transport: Option<&'a dyn Transport>,
    pub id: InstanceId,
    pub digest: u64,
    pub deadline: Instant,
    /// Counts the bytes that are sent.
    pub sent: &'a AtomicU64,
    pub judge: &'a (dyn Fn(u32, &Tag) -> Option<String> + 'a),
    /// Keeps the time, if anyone does.
    pub times: Option<(&'static Recorder, &'a ExchangeTimes)>,
}

impl<'a> Exchange<'a> {
    /// Provides memory for the message of `step` from process `from`.
    ///
    /// # Safety
    /// As for [`Receive::post`].
    pub unsafe fn post(&self, from: u32, step: u32, into: Vec<Segment>) -> Result<Receive<'a>, TransportError> {
        // SAFETY: handed on to our caller.
        unsafe { Receive::post(self.transport()?, from, self.id.tag(self.digest, step), into, self.deadline) }
    }

    pub fn send(&self, to: u32, step: u32, data: &[IoSlice<'_>]) -> Result<(), TransportError> {
        let tag = self.id.tag(self.digest, step);
        let bytes: usize = data.iter().map(|slice| slice.len()).sum();
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.sending(bytes, || self.call(to, |wait| self.transport()?.send(to, tag, data, wait)))
    }

    /// Sends a message of any size. The data stays as it is until [`Exchange::reclaim`] has returned.
    pub fn lend(&self, to: u32, step: u32, data: &[IoSlice<'_>]) -> Result<Loan<'a>, TransportError> {
        let (transport, tag) = (self.transport()?, self.id.tag(self.digest, step));
        let bytes = data.iter().map(|slice| slice.len()).sum();
        self.sending(bytes, || self.call(to, |wait| Loan::new(transport, to, tag, data, wait)))
    }

    pub fn reclaim(&self, from: u32, loan: Loan<'_>) -> Result<(), TransportError> {
        self.waiting_for(from, || self.call(from, |wait| loan.finish(wait)))
    }

    pub fn finish(&self, from: u32, receive: Receive<'_>) -> Result<(), TransportError> {
        self.waiting_for(from, || self.call(from, |wait| receive.finish(wait)))
    }

    /// Shows the small message of `step` from process `from`, for which no memory was provided, to `with`.
    pub fn take(&self, from: u32, step: u32, len: usize, with: &mut dyn FnMut(&[u8])) -> Result<(), TransportError> {
        let tag = self.id.tag(self.digest, step);
        let take =
            |with: &mut dyn FnMut(&[u8])| self.call(from, |wait| self.transport()?.take(from, tag, len, wait, with));
        let Some((recorder, times)) = self.times else { return take(with) };
        times.taking(recorder, from, step, |arrived| match arrived {
            None => take(with),
            Some(arrived) => take(&mut |bytes| {
                arrived.set(trace::now());
                with(bytes);
            }),
        })
    }

    /// Waits for moments until the small message of `step` from process `from` is there; whether it is.
    pub fn arrives_soon(&self, from: u32, step: u32) -> bool {
        let tag = self.id.tag(self.digest, step);
        let look = || self.transport.is_some_and(|transport| transport.arrives_soon(from, tag));
        match self.times {
            Some((recorder, times)) => times.looking(recorder, from, step, look),
            None => look(),
        }
    }

    /// As [`Transport::depth`].
    pub fn depth(&self, to: u32) -> usize {
        self.transport.map_or(1, |transport| transport.depth(to))
    }

    fn sending<R>(&self, bytes: usize, send: impl FnOnce() -> R) -> R {
        match self.times {
            Some((_, times)) => times.sending(bytes, send),
            None => send(),
        }
    }

    fn waiting_for<R>(&self, peer: u32, wait: impl FnOnce() -> R) -> R {
        match self.times {
            Some((recorder, times)) => times.waiting(recorder, peer, wait),
            None => wait(),
        }
    }

    fn call<R>(&self, peer: u32, call: impl FnOnce(&Wait<'_>) -> R) -> R {
        call(&Wait { deadline: self.deadline, judge: &|tag| (self.judge)(peer, tag) })
    }

    fn transport(&self) -> Result<&'a dyn Transport, TransportError> {
        self.transport.ok_or_else(|| TransportError::Misuse("there is no transport to other processes".to_owned()))
    }
}
