//! Bytes that come over a TCP connection, taken in by whoever waits for them.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};

use crate::channel::Reader;

use super::inbox::Source;
use super::lane;

/// Bytes that are taken in at a time, unless they go straight to where they belong.
pub(super) const BUFFER_LEN: usize = 64 << 10;

/// What comes by a connection, or by a lane that may have several of them, one after the other.
pub(in crate::transport) enum Stream {
    Connection(StreamReader),
    Lane(lane::Reader),
}

pub(in crate::transport) struct StreamReader {
    /// Does not block.
    stream: Reader,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl StreamReader {
    pub fn new(stream: Reader) -> StreamReader {
        StreamReader { stream, buffer: vec![0; BUFFER_LEN], start: 0, end: 0 }
    }
}

impl AsFd for StreamReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.socket().as_fd()
    }
}

/// 0 if there is nothing now.
fn receive(stream: &mut Reader, into: &mut [u8]) -> io::Result<usize> {
    loop {
        return match stream.read(into) {
            Ok(0) if !into.is_empty() => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            outcome => outcome,
        };
    }
}

impl Source for StreamReader {
    fn available(&mut self, wanted: usize) -> io::Result<&[u8]> {
        // Until there is nothing: what TLS has opened already does not make the socket readable.
        while self.end - self.start < wanted.min(BUFFER_LEN) {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            match receive(&mut self.stream, &mut self.buffer[self.end..])? {
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
            return receive(&mut self.stream, into);
        }
        let available = self.available(1)?;
        let count = available.len().min(into.len());
        into[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
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
