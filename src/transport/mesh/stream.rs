//! Bytes that come over TCP, taken in by whoever waits for them.

use std::io::{self, Read};

use crate::channel;

use super::inbox::Source;
use super::lane;

/// Bytes that are taken in at a time, unless they go straight to where they belong.
const BUFFER_LEN: usize = 64 << 10;

/// What comes by a connection, or by a lane that may have several of them, one after the other.
pub(in crate::transport) enum Stream {
    Connection(Buffered<channel::Reader>),
    Lane(Buffered<lane::Reader>),
}

/// Where bytes are taken in from.
pub(in crate::transport) trait TakeIn {
    /// Takes in what is there now; 0 if that is nothing. Fails once no more can come.
    fn take_in(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// As [`Source::expect_end`].
    fn expect_end(&mut self) {}
}

/// Bytes of a source that were taken in before anyone knew where they belong, and then the source.
pub(in crate::transport) struct Buffered<S> {
    pub source: S,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<S> Buffered<S> {
    pub fn new(source: S) -> Buffered<S> {
        Buffered { source, buffer: vec![0; BUFFER_LEN], start: 0, end: 0 }
    }
}

/// Why nothing more comes from a peer that closed its side.
pub(super) fn hung_up() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")
}

/// Does not block.
impl TakeIn for channel::Reader {
    fn take_in(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            return match self.read(into) {
                Ok(0) if !into.is_empty() => Err(hung_up()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                outcome => outcome,
            };
        }
    }
}

impl<S: TakeIn> Source for Buffered<S> {
    fn available(&mut self, wanted: usize) -> io::Result<&[u8]> {
        // Until there is nothing: what TLS has opened already does not make the socket readable.
        while self.end - self.start < wanted.min(BUFFER_LEN) {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            match self.source.take_in(&mut self.buffer[self.end..])? {
                0 => break,
                count => self.end += count,
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
    }

    fn read(&mut self, into: &mut [u8], _is_large: bool) -> io::Result<usize> {
        if self.start == self.end && into.len() >= BUFFER_LEN {
            return self.source.take_in(into);
        }
        let available = self.available(1)?;
        let count = available.len().min(into.len());
        into[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
    }

    fn expect_end(&mut self) {
        self.source.expect_end();
    }
}

impl Source for Stream {
    fn available(&mut self, wanted: usize) -> io::Result<&[u8]> {
        match self {
            Stream::Connection(reader) => reader.available(wanted),
            Stream::Lane(reader) => reader.available(wanted),
        }
    }

    fn consume(&mut self, count: usize) {
        match self {
            Stream::Connection(reader) => reader.consume(count),
            Stream::Lane(reader) => reader.consume(count),
        }
    }

    fn read(&mut self, into: &mut [u8], is_large: bool) -> io::Result<usize> {
        match self {
            Stream::Connection(reader) => reader.read(into, is_large),
            Stream::Lane(reader) => reader.read(into, is_large),
        }
    }

    fn expect_end(&mut self) {
        match self {
            Stream::Connection(reader) => reader.expect_end(),
            Stream::Lane(reader) => reader.expect_end(),
        }
    }
}
