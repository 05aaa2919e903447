//! What the plugin alone takes for a step.

use std::ptr::{NonNull, null_mut};
use std::time::{Duration, Instant};

use super::{Buffer, Error, Event, LoadedExecutable, Result, ffi};

impl LoadedExecutable {
    /// Executes the program `steps` times through the C function alone, on argument lists that are made once, and returns
    /// the time of each step: until every device is done and the results are released. No step of
    /// [`execute`](Self::execute) can take less; for benchmarks.
    ///
    /// The arguments are not checked, so they must be those of an execution that succeeded, with nothing donated; executions have
    /// launch id 0.
    ///
    /// # Errors
    /// The numbers of devices or arguments differ, or the plugin fails.
    pub fn time_bare<'a, A: AsRef<[&'a Buffer]>>(&self, args: &[A], steps: usize) -> Result<Vec<Duration>> {
        let num_devices = self.devices.len();
        let num_args = args.first().map_or(0, |args| args.as_ref().len());
        let expected = self.parameters.as_ref().map_or(num_args, Vec::len);
        if args.len() != num_devices || args.iter().any(|args| args.as_ref().len() != expected) {
            let problem = format!("the program takes {expected} arguments on each of {num_devices} devices");
            return Err(Error::Invalid(problem));
        }
        let lists: Vec<Vec<*mut ffi::Buffer>> =
            args.iter().map(|args| args.as_ref().iter().map(|buffer| buffer.as_ptr()).collect()).collect();
        let argument_lists: Vec<*const *mut ffi::Buffer> = lists.iter().map(|list| list.as_ptr()).collect();
        let mut outputs: Vec<Vec<*mut ffi::Buffer>> = vec![vec![null_mut(); self.num_outputs]; num_devices];
        let output_lists: Vec<*mut *mut ffi::Buffer> = outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut done: Vec<*mut ffi::Event> = vec![null_mut(); num_devices];
        let mut options = ffi::ExecuteOptions::EMPTY;
        let client = self.client();
        let mut times = Vec::with_capacity(steps);
        for _ in 0..steps {
            let start = Instant::now();
            // SAFETY: executable and arguments are live; every list has the length that is given, and outlives the call.
            unsafe { self.start(&mut options, &argument_lists, num_args, &output_lists, &mut done) }?;
            let mut outcome = Ok(());
            for event in done.iter().copied().filter_map(NonNull::new) {
                // SAFETY: a new event of this client.
                outcome = outcome.and(unsafe { Event::from_raw(event, client.clone()) }.wait());
            }
            for buffer in outputs.iter().flatten().copied().filter_map(NonNull::new) {
                // SAFETY: a new buffer of this client.
                drop(unsafe { Buffer::from_raw(buffer, client.clone()) });
            }
            outcome?;
            times.push(start.elapsed());
        }
        Ok(times)
    }
}
