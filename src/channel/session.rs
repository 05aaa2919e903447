//! A TLS connection after its handshake, used by a thread that reads and one that writes.

use std::io::{self, IoSlice, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::{Connection, ConnectionCommon};

const BINDING: &[u8] = b"EXPORTER-spmd-run";

/// The keys of a connection. Locked only while bytes are sealed or opened, never while the socket is waited for.
pub struct Session(Mutex<Connection>);

impl Session {
    pub fn new(connection: Connection) -> Session {
        Session(Mutex::new(connection))
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the first bytes of `data`, at most 64 KiB, and adds their records to `records`; how many it took.
    pub fn seal(&self, data: &[IoSlice<'_>], records: &mut Vec<u8>) -> io::Result<usize> {
        let mut connection = self.lock();
        let count = connection.writer().write_vectored(data)?;
        while connection.wants_write() {
            connection.write_tls(records)?;
        }
        Ok(count)
    }

    /// Takes in records, until some of what was sealed in them is in `into`; how much that is, 0 when the other end has closed
    /// the connection. `None` if there are too few records.
    pub fn open(&self, records: &mut &[u8], into: &mut [u8]) -> io::Result<Option<usize>> {
        let mut connection = self.lock();
        loop {
            match connection.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome.map(Some),
            }
            if records.is_empty() {
                return Ok(None);
            }
            connection.read_tls(records)?;
            connection.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// What only the two ends of this connection know.
    pub fn binding(&self) -> io::Result<[u8; 32]> {
        match &*self.lock() {
            Connection::Client(connection) => binding_of(connection),
            Connection::Server(connection) => binding_of(connection),
        }
    }
}

/// As [`Session::binding`].
pub fn binding_of<Data>(connection: &ConnectionCommon<Data>) -> io::Result<[u8; 32]> {
    connection.export_keying_material([0; 32], BINDING, None).map_err(io::Error::other)
}
