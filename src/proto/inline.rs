//! Fields that are short in nearly every instruction and then need no memory of their own.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut};

use buffa::{DecodeError, ProtoList, ProtoString, WirePayload};
use compact_str::CompactString;
use smallvec::SmallVec;

/// A string; up to 24 bytes stand in the field itself.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InlineString(CompactString);

impl InlineString {
    /// The string.
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ProtoString for InlineString {
    fn from_wire(payload: WirePayload<'_>) -> Result<InlineString, DecodeError> {
        payload.to_str().map(InlineString::from)
    }
}

impl Deref for InlineString {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for InlineString {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for InlineString {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<String> for InlineString {
    fn from(string: String) -> InlineString {
        InlineString(string.into())
    }
}

impl From<&str> for InlineString {
    #[inline]
    fn from(string: &str) -> InlineString {
        InlineString(string.into())
    }
}

impl From<InlineString> for String {
    fn from(string: InlineString) -> String {
        string.0.into()
    }
}

impl PartialEq<str> for InlineString {
    #[inline]
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for InlineString {
    #[inline]
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for InlineString {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl fmt::Display for InlineString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for InlineString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A list of ids; up to two stand in the field itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineList<T>(SmallVec<[T; 2]>);

impl<T> Default for InlineList<T> {
    #[inline]
    fn default() -> InlineList<T> {
        InlineList(SmallVec::new())
    }
}

impl<T: Clone + PartialEq + fmt::Debug + Send + Sync> ProtoList<T> for InlineList<T> {
    #[inline]
    fn push(&mut self, value: T) {
        self.0.push(value);
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T> InlineList<T> {
    /// Appends an element.
    #[inline]
    pub fn push(&mut self, value: T) {
        self.0.push(value);
    }

    /// Removes the last element and returns it.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }
}

impl<T> Deref for InlineList<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for InlineList<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T> From<Vec<T>> for InlineList<T> {
    fn from(list: Vec<T>) -> InlineList<T> {
        InlineList(list.into_iter().collect())
    }
}

impl<T, const N: usize> From<[T; N]> for InlineList<T> {
    #[inline]
    fn from(list: [T; N]) -> InlineList<T> {
        InlineList(list.into_iter().collect())
    }
}

impl<T> FromIterator<T> for InlineList<T> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> InlineList<T> {
        InlineList(items.into_iter().collect())
    }
}

impl<T> Extend<T> for InlineList<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        self.0.extend(items);
    }
}

impl<T> IntoIterator for InlineList<T> {
    type Item = T;
    type IntoIter = smallvec::IntoIter<[T; 2]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'l, T> IntoIterator for &'l InlineList<T> {
    type Item = &'l T;
    type IntoIter = std::slice::Iter<'l, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'l, T> IntoIterator for &'l mut InlineList<T> {
    type Item = &'l mut T;
    type IntoIter = std::slice::IterMut<'l, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: PartialEq, const N: usize> PartialEq<[T; N]> for InlineList<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        **self == *other
    }
}
