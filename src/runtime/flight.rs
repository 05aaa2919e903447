//! Executions that were started and not waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::pjrt::{Event, Execution, wait_all};
use crate::trace::{self, Event as Traced, Recorder};

use super::{RuntimeError, bridge};

/// An execution on this process's devices.
pub(super) struct Flight {
    /// Numbers of the devices in this process.
    devices: Arc<[u32]>,
    /// `None` where the plugin runs the collectives.
    bound: Option<bridge::Run>,
    done: Vec<Event>,
    times: Option<Times>,
}

/// What the timeline is told of an execution.
struct Times {
    recorder: &'static Recorder,
    program: u32,
    run: u64,
    start: u64,
    /// For each device.
    ends: Arc<[AtomicU64]>,
}

impl Flight {
    /// The execution `run` of a program on these devices, which was started at `start` if somebody keeps a timeline.
    pub fn new(
        execution: &mut Execution,
        devices: Arc<[u32]>,
        bound: Option<bridge::Run>,
        (program, run): (u32, u64),
        start: Option<(&'static Recorder, u64)>,
    ) -> Result<Flight, RuntimeError> {
        let done = std::mem::take(&mut execution.done);
        let Some((recorder, start)) = start else { return Ok(Flight { devices, bound, done, times: None }) };
        let ends: Arc<[AtomicU64]> = done.iter().map(|_| AtomicU64::new(0)).collect();
        for (device, done) in done.iter().enumerate() {
            let ends = Arc::clone(&ends);
            done.on_ready(move |_| ends[device].store(trace::now(), Ordering::Release))?;
        }
        Ok(Flight { devices, bound, done, times: Some(Times { recorder, program, run, start, ends }) })
    }

    /// Waits until every device is done; the first error in the order of devices is the result.
    pub fn finish(self) -> Result<(), RuntimeError> {
        let outcome = wait_all(&self.done);
        if let Some(Times { recorder, program, run, start, ends }) = self.times {
            for (&device, end) in self.devices.iter().zip(&*ends) {
                // The plugin may let us go before it calls back.
                let end = Some(end.load(Ordering::Acquire)).filter(|end| *end > 0).unwrap_or_else(trace::now);
                recorder.push(&Traced::Step { device, program, run, start, end });
            }
        }
        Ok(outcome?)
    }

    fn is_over(&self) -> bool {
        self.done.iter().all(|done| done.is_ready().unwrap_or(true))
    }
}

/// The executions that nobody has waited for, in the order of their start.
#[derive(Default)]
pub(super) struct Flights {
    flights: Mutex<Vec<Flight>>,
}

impl Flights {
    /// Makes way for an execution on these devices. Our collectives know calls of a device by their order, so an execution with
    /// such ones waits for the one before it. The plugin has the others wait for what they need.
    ///
    /// # Errors
    /// That of the execution before, where it was waited for. Otherwise its results carry it.
    pub fn make_way(&self, devices: &[u32], is_bridged: bool) -> Result<(), RuntimeError> {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let over = flights.iter().take_while(|flight| flight.is_over()).count();
        let over: Vec<Flight> = flights.drain(..over).collect();
        let is_before = |flight: &mut Flight| {
            is_bridged && flight.bound.is_some() && flight.devices.iter().any(|device| devices.contains(device))
        };
        let before: Vec<Flight> = flights.extract_if(.., is_before).collect();
        drop(flights);
        let (bridged, others): (Vec<Flight>, Vec<Flight>) = over.into_iter().partition(|flight| flight.bound.is_some());
        for flight in others {
            // Whoever reads its results is told.
            let _ = flight.finish();
        }
        bridged.into_iter().chain(before).try_for_each(Flight::finish)
    }

    pub fn add(&self, flight: Flight) {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner).push(flight);
    }

    /// Waits for all executions; the first error is the result.
    pub fn finish(&self) -> Result<(), RuntimeError> {
        let flights = std::mem::take(&mut *self.flights.lock().unwrap_or_else(PoisonError::into_inner));
        let mut outcome = Ok(());
        for flight in flights {
            outcome = outcome.and(flight.finish());
        }
        outcome
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        // Custom calls of an execution refer to what is bound to it until its end.
        let _ = self.finish();
    }
}
