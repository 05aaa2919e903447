//! A message that several fields share.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use buffa::ProtoBox;

/// A message field's value, copied when it is first written to after others have come to share it.
///
/// A module has few different shapes and names one for each instruction, so cloning a shape must cost little.
#[derive(Default, PartialEq)]
pub struct Shared<T>(Arc<T>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(Arc::clone(&self.0))
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: Clone> ProtoBox<T> for Shared<T> {
    fn new(value: T) -> Shared<T> {
        Shared(Arc::new(value))
    }

    fn into_inner(self) -> T {
        Arc::unwrap_or_clone(self.0)
    }
}
