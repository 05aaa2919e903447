//! How a process ends when its job fails, in it or elsewhere.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use crate::launch::PEER_FAILED;
use crate::rendezvous::Abort;

use super::World;

/// How long a process may take to notice by itself that the job has failed elsewhere.
const GRACE: Duration = Duration::from_secs(1);

impl World {
    /// Ends this process some time after another one has ended the job, even if it is stuck in the plugin. `launched` as for
    /// [`message_of`](Self::message_of).
    pub fn end_with_others(&self, launched: bool) {
        let world = self.clone();
        self.on_abort(move |abort| {
            if abort.reported && abort.process_index == Some(world.process_index()) {
                return;
            }
            let message = world.message_of(abort, launched);
            let world = world.clone();
            std::thread::spawn(move || {
                std::thread::sleep(GRACE);
                world.save_trace();
                message.iter().for_each(|message| show_failure(message));
                exit(PEER_FAILED);
            });
        });
    }

    /// What this process says of the failure that has ended the job elsewhere. If a launcher has `launched` the processes,
    /// the failure is told once: by the process where it began or, when that is gone, by the first of the others.
    pub fn message_of(&self, abort: &Abort, launched: bool) -> Option<String> {
        let first_of_others = u32::from(abort.process_index == Some(0));
        let is_told = launched && (abort.reported || self.process_index() != first_of_others);
        (!is_told).then(|| abort.to_string())
    }
}

/// Ends the process at once. A plugin's threads may still be at work, and the destructors that run at an orderly exit would
/// take from under them what they use.
pub fn exit(code: u8) -> ! {
    let _ = std::io::stdout().flush();
    // SAFETY: it does nothing but end the process.
    unsafe { libc::_exit(code.into()) }
}

/// Prints a failure to standard error, in one piece, as other processes write to the same stream.
pub fn show_failure(message: &str) {
    let _ = std::io::stderr().write_all(format!("error: {message}\n").as_bytes());
}

/// An error and its causes, without those that it tells of itself.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failed {
        #[error("cannot read {0}: {1}")]
        TellsItsCause(&'static str, #[source] std::fmt::Error),
        #[error("step {0} failed")]
        HidesItsCause(u32, #[source] Box<Failed>),
    }

    #[test]
    fn causes_are_told_once() {
        let cause = Failed::TellsItsCause("x.npz", std::fmt::Error);
        let error = Failed::HidesItsCause(3, cause.into());
        assert_eq!(with_causes(&error), format!("step 3 failed: cannot read x.npz: {}", std::fmt::Error));
    }
}
