//! What the launcher and its helper on a host say to each other, over the agent's standard input and output.
//!
//! Frames of a length (4 bytes, little endian) and a message in postcard's form. Both sides send a sign of life every
//! second, and take a silence for the end of the connection.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::printer::Stream;
use super::super::progress::Place;

/// The time between two signs of life.
pub const BEAT: Duration = Duration::from_secs(1);
/// The silence after which the other side counts as gone.
pub const SILENCE: Duration = Duration::from_secs(15);
/// The most bytes of a file in one frame.
pub const PIECE: usize = 256 << 10;
const MAX_FRAME: usize = 4 << 20;

/// What the launcher says.
#[derive(Serialize, Deserialize)]
pub enum Order {
    /// The first message: the working directory, and the files that the controllers will read.
    Prepare {
        directory: OsString,
        files: Vec<FileOffer>,
    },
    /// The next bytes of a file.
    Piece {
        file: u32,
        bytes: Vec<u8>,
    },
    /// Open a socket for the coordinator, at the interface that leads to these addresses; at the loopback one if there are
    /// none.
    Listen {
        towards: Vec<IpAddr>,
    },
    Start(Start),
    /// A signal to all controllers.
    Signal(i32),
    Alive,
}

#[derive(Serialize, Deserialize)]
pub struct FileOffer {
    /// As the controllers' arguments name it.
    pub path: OsString,
    /// BLAKE3 of its contents.
    pub hash: [u8; 32],
}

/// The controllers to start.
#[derive(Serialize, Deserialize)]
pub struct Start {
    /// The index of the first.
    pub first: u32,
    pub count: u32,
    /// How many the whole job has.
    pub process_count: u32,
    pub coordinator: String,
    pub token: String,
    pub chips: Option<Vec<u32>>,
    pub args: Vec<OsString>,
    pub envs: Vec<(OsString, OsString)>,
    pub restarts: u32,
}

/// What a helper says.
#[derive(Serialize, Deserialize)]
pub enum Word {
    /// The answer to [`Order::Prepare`].
    Ready(Ready),
    Listening(SocketAddr),
    /// Something that was asked for cannot be done.
    Failed(String),
    Output {
        process: u32,
        stream: Stream,
        bytes: Vec<u8>,
    },
    /// A controller has ended, with this status as the system gives it.
    Ended {
        process: u32,
        status: i32,
        phase: Option<String>,
    },
    /// All controllers have ended, and all that they printed has been said.
    Finished,
    /// A sign of life, with how far the controllers are.
    Alive(Vec<Place>),
}

#[derive(Serialize, Deserialize)]
pub struct Ready {
    /// Which of the files are not there.
    pub missing: Vec<u32>,
    /// Where other hosts reach this one.
    pub address: IpAddr,
    /// The same for two helpers if they share all addresses, the loopback one too.
    pub machine: String,
}

/// Writes one message.
pub fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&encode(message)?)?;
    to.flush()
}

fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Reads one message.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    postcard::from_bytes(&frame).map_err(io::Error::other)
}

/// A pipe that is read with a limit on silence.
pub struct Patient<T> {
    pub pipe: T,
    pub limit: Duration,
}

impl<T: Read + AsFd> Read for Patient<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = Timespec::try_from(self.limit).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(&self.pipe, PollFlags::IN)];
        match poll(&mut polled, Some(&limit)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => self.pipe.read(buffer),
            Err(error) => Err(error.into()),
        }
    }
}

/// Messages from other threads, for a thread that polls.
pub struct Inbox<T> {
    receiver: Receiver<T>,
    wake: OwnedFd,
}

/// Puts messages into an [`Inbox`]; waits while that is full.
pub struct Letterbox<T> {
    sender: SyncSender<T>,
    wake: OwnedFd,
}

impl<T> Inbox<T> {
    /// An inbox for this many messages.
    pub fn new(room: usize) -> io::Result<(Self, Letterbox<T>)> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(room);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let inbox = Self { receiver, wake: wake.try_clone()? };
        Ok((inbox, Letterbox { sender, wake }))
    }

    /// The messages that have arrived.
    pub fn take(&self) -> Vec<T> {
        // Before the messages are taken, so that a later one wakes again.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        self.receiver.try_iter().collect()
    }

    /// Readable when there are messages.
    pub fn wake(&self) -> std::os::fd::BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl<T> Letterbox<T> {
    /// Puts a message in; false when nobody will take it.
    pub fn put(&self, message: T) -> bool {
        let is_put = self.sender.send(message).is_ok();
        loop {
            match rustix::io::write(&self.wake, &1u64.to_ne_bytes()) {
                Err(Errno::INTR) => {}
                _ => return is_put,
            }
        }
    }

    pub fn another(&self) -> io::Result<Self> {
        Ok(Self { sender: self.sender.clone(), wake: self.wake.try_clone()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_travel_and_garbage_does_not() {
        let mut bytes = Vec::new();
        write(&mut bytes, &Order::Signal(15)).unwrap();
        write(&mut bytes, &Order::Piece { file: 2, bytes: vec![7; 300] }).unwrap();
        let mut rest = &bytes[..];
        assert!(matches!(read(&mut rest).unwrap(), Order::Signal(15)));
        assert!(matches!(read(&mut rest).unwrap(), Order::Piece { file: 2, bytes } if bytes == [7; 300]));
        assert_eq!(read::<Order>(&mut rest).err().unwrap().kind(), io::ErrorKind::UnexpectedEof);
        assert!(read::<Order>(&mut &b"bash: some greeting of a shell"[..]).is_err());
        assert!(read::<Order>(&mut &[1, 0, 0, 0, 99][..]).is_err());
    }

    #[test]
    fn silence_has_a_limit() {
        let (pipe, _writer) = io::pipe().unwrap();
        let error = Patient { pipe, limit: Duration::from_millis(1) }.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
