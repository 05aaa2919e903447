use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::channel::{self, Channel};
use crate::transport::mesh::inbox::Source;
use crate::transport::mesh::stream::{Buffered, TakeIn, hung_up};

use super::{CONFIRM_AFTER, HEADER_LEN, Lane, MAX_RECORD, Progress};

/// Takes in what comes by a lane: bytes out of records.
pub(in crate::transport) struct Reader {
    lane: Arc<Lane>,
    /// The records; `None` while there is no connection.
    records: Option<Buffered<channel::Reader>>,
    /// Bytes of the present record that are still in `records`.
    left: usize,
    /// Bytes out of records, whatever becomes of the connection.
    taken_in: u64,
    /// How many of them a record to the other end is known to be due for.
    noted: u64,
    is_ending: bool,
}

impl Reader {
    pub(super) fn new(lane: Arc<Lane>, reader: channel::Reader) -> Reader {
        Reader { lane, records: Some(Buffered::new(reader)), left: 0, taken_in: 0, noted: 0, is_ending: false }
    }

    /// Gives up the connection, if there is one, so that nothing more is taken in before another one is there. How far this
    /// end has come.
    pub(in crate::transport::mesh) fn suspend(&mut self, reason: &str) -> Progress {
        self.records = None;
        self.left = 0;
        self.lane.break_off(reason);
        Progress { taken_in: self.taken_in, sent: self.lane.lock().sent }
    }

    /// Goes on over a new connection, which does not block, where the other end has come this far; since
    /// [`Reader::suspend`] nothing was taken in. Returns how many bytes are sent again.
    pub(in crate::transport::mesh) fn resume(&mut self, channel: Channel, theirs: Progress) -> Result<u64, String> {
        if self.records.is_some() {
            return Err("there is a connection already".to_owned());
        }
        let socket: Arc<TcpStream> = Arc::clone(channel.socket());
        let (reader, writer) = channel.split();
        let again = self.lane.resume(writer, socket, theirs)?;
        self.records = Some(Buffered::new(reader));
        Ok(again)
    }
}

impl TakeIn for Reader {
    fn take_in(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(records) = &mut self.records else { return if self.is_ending { Err(hung_up()) } else { Ok(0) } };
        match unpack(records, &mut self.left, &self.lane, into) {
            Ok(count) => {
                self.taken_in += count as u64;
                self.lane.taken_in.store(self.taken_in, Ordering::Relaxed);
                // What waited to be sent goes out whenever there is nothing to read.
                if count == 0 || self.taken_in - self.noted >= CONFIRM_AFTER {
                    self.noted = self.taken_in;
                    self.lane.go_on();
                }
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error),
            Err(_) if self.is_ending => {
                self.records = None;
                self.lane.finish();
                Err(hung_up())
            }
            // The other end has everything. What it has not said on other lanes yet does not end with this one.
            Err(_) if self.lane.has_ended() => {
                self.records = None;
                self.lane.close();
                Ok(0)
            }
            Err(error) => {
                self.suspend(&error.to_string());
                Ok(0)
            }
        }
    }

    fn expect_end(&mut self) {
        self.is_ending = true;
        self.lane.note_end_of_other();
    }
}

fn unpack(
    records: &mut Buffered<channel::Reader>,
    left: &mut usize,
    lane: &Lane,
    into: &mut [u8],
) -> io::Result<usize> {
    let malformed = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
    while *left == 0 {
        let Some(header) = records.available(HEADER_LEN)?.first_chunk::<HEADER_LEN>() else { return Ok(0) };
        let [a, b, c, d, taken_in @ ..] = *header;
        records.consume(HEADER_LEN);
        *left = u32::from_le_bytes([a, b, c, d]) as usize;
        if *left > MAX_RECORD {
            return Err(malformed(format!("a record of {left} bytes")));
        }
        lane.confirm(u64::from_le_bytes(taken_in)).map_err(malformed)?;
    }
    let most = into.len().min(*left);
    let count = records.read(&mut into[..most], false)?;
    *left -= count;
    Ok(count)
}
