//! Events: something that the plugin finishes later.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;

use super::client::Client;
use super::error::Result;
use super::ffi;
use super::plugin::Plugin;

/// Something that the plugin will finish, with success or an error.
pub struct Event {
    ptr: NonNull<ffi::Event>,
    client: Client,
}

// SAFETY: PJRT events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

struct Callback {
    function: Box<dyn FnOnce(Result<()>) + Send>,
    /// Not the client: the callback may run on a thread that dropping the client would wait for.
    plugin: Plugin,
}

impl Event {
    /// # Safety
    /// `ptr` is a live event of this client that nobody else destroys.
    pub(super) unsafe fn from_raw(ptr: NonNull<ffi::Event>, client: Client) -> Event {
        Event { ptr, client }
    }

    fn query<Q: ffi::Query<Handle = ffi::Event>>(&self) -> Result<Q> {
        // SAFETY: the event lives until self is dropped.
        unsafe { self.client.plugin().query(self.ptr) }
    }

    /// Blocks until the event has happened; its error is the result.
    pub fn wait(&self) -> Result<()> {
        self.query::<ffi::EventAwait>().map(drop)
    }

    /// Whether the event has happened, with success or an error.
    pub fn is_ready(&self) -> Result<bool> {
        Ok(self.query::<ffi::EventIsReady>()?.is_ready)
    }

    /// Calls `callback` with the event's outcome, at once or later, on this thread or one of the plugin's.
    ///
    /// The callback must not block for long, and must not drop the last handle to the client. It runs even when the
    /// event is dropped before.
    pub fn on_ready(&self, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        let plugin = self.client.plugin();
        let callback = Box::into_raw(Box::new(Callback { function: Box::new(callback), plugin: plugin.clone() }));
        // SAFETY: the event is live; the callback gets the box back, once.
        let result = unsafe {
            plugin.call::<ffi::EventOnReady>(|args| {
                args.event = self.ptr.as_ptr();
                args.callback = Some(run_callback);
                args.user_arg = callback.cast();
            })
        };
        if result.is_err() {
            // SAFETY: a plugin that refuses to register a callback does not call it.
            drop(unsafe { Box::from_raw(callback) });
        }
        result.map(drop)
    }
}

unsafe extern "C" fn run_callback(error: *mut ffi::Error, user_arg: *mut c_void) {
    // SAFETY: `user_arg` is the box that `on_ready` gave away, and this is its only call.
    let Callback { function, plugin } = *unsafe { Box::from_raw(user_arg.cast::<Callback>()) };
    // SAFETY: the callee owns the error.
    let outcome = unsafe { plugin.check(error, "PJRT_Event_OnReady") };
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| function(outcome))).is_err();
    if panicked {
        tracing::error!("a callback of an event panicked");
    }
}

/// Waits for all of `events`, whatever becomes of them, and returns the first error in their order.
pub(crate) fn wait_all(events: &[Event]) -> Result<()> {
    let mut result = Ok(());
    for event in events {
        result = result.and(event.wait());
    }
    result
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody uses the event after this.
        unsafe { self.client.plugin().destroy::<ffi::EventDestroy>(self.ptr) }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("ready", &self.is_ready().ok()).finish()
    }
}
