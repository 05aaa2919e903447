//! What processes leave for process 0 when they end, in order or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::wire::Body;

/// Filled by the coordinator, read by the process that hosts it.
#[derive(Debug, Default)]
pub struct Estate {
    contents: Mutex<Contents>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Contents {
    left: BTreeMap<u32, Body>,
    /// Those that are connected and have left nothing yet, but for process 0.
    expected: BTreeSet<u32>,
}

impl Estate {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn expect(&self, process: u32) {
        if process != 0 {
            self.contents().expected.insert(process);
        }
    }

    pub fn expect_no_more(&self, process: u32) {
        self.contents().expected.remove(&process);
        self.changed.notify_all();
    }

    pub fn receive(&self, process: u32, body: Body) {
        self.contents().left.insert(process, body);
        self.expect_no_more(process);
    }

    /// What there is once every connected process has left something, or at the end of this time.
    pub fn take(&self, limit: Duration) -> Vec<Body> {
        let contents = self.contents();
        let waited = self.changed.wait_timeout_while(contents, limit, |contents| !contents.expected.is_empty());
        let (mut contents, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut contents.left).into_values().collect()
    }
}
