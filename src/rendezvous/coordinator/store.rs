//! What processes tell each other under keys, and who waits for a key.

use std::collections::HashMap;
use std::time::Instant;

use super::super::wire::{Body, MAX_NAME};

/// The most bytes that all values may have together.
const MAX_BYTES: usize = 4 << 30;

/// A process that waits for a key's value.
pub struct KeyWait {
    pub process: u32,
    pub call: u64,
    pub key: String,
    pub deadline: Instant,
}

#[derive(Default)]
pub struct Store {
    values: HashMap<String, Body>,
    bytes: usize,
    waits: Vec<KeyWait>,
}

impl Store {
    pub fn get(&self, key: &str) -> Option<&Body> {
        self.values.get(key)
    }

    /// A key is put once, so that a `get` always means the same value. The same value again is no harm. Returns who has
    /// waited for it.
    pub fn put(&mut self, key: String, value: &Body) -> Result<Vec<KeyWait>, String> {
        check_name("key", &key)?;
        if let Some(old) = self.values.get(&key) {
            return if old == value { Ok(Vec::new()) } else { Err(format!("key '{key}' has another value already")) };
        }
        self.take_room(key.len() + value.len()).map_err(|limit| format!("no room for key '{key}': {limit}"))?;
        let is_answered = |wait: &mut KeyWait| wait.key == key;
        let answered = self.waits.extract_if(.., is_answered).collect();
        self.values.insert(key, value.clone());
        Ok(answered)
    }

    /// Counts so many bytes as used, whoever keeps them, if there is room.
    pub fn take_room(&mut self, bytes: usize) -> Result<(), String> {
        let bytes = self.bytes + bytes;
        if bytes > MAX_BYTES {
            return Err(format!("the store is limited to {MAX_BYTES} bytes"));
        }
        self.bytes = bytes;
        Ok(())
    }

    pub fn wait(&mut self, wait: KeyWait) {
        self.waits.push(wait);
    }

    pub fn waits(&self) -> &[KeyWait] {
        &self.waits
    }

    /// Ends the waits that have run out, and returns them.
    pub fn expire(&mut self, now: Instant) -> Vec<KeyWait> {
        self.waits.extract_if(.., |wait| wait.deadline <= now).collect()
    }

    pub fn end_waits(&mut self) {
        self.waits.clear();
    }
}

pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.len() > MAX_NAME {
        return Err(format!("a {what} of {} bytes is too long: the limit is {MAX_NAME}", name.len()));
    }
    Ok(())
}
