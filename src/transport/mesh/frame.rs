use crate::transport::Tag;

/// What a frame is. Every frame begins with a header of [`HEADER_LEN`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Kind {
    /// The message itself follows.
    Data = 1,
    /// The receiver has posted its buffer for a large message.
    Ready = 2,
    /// The sender of this frame has been waiting for a while, to receive or to send this message.
    Note = 3,
    /// The sender ends the job; the reason follows.
    Abort = 4,
    /// The sender leaves in good order.
    Bye = 5,
    /// Where a message lies in the sender's memory follows. The sender leaves it there until it is taken.
    Lend = 6,
    /// The receiver of a lent message has read it.
    Taken = 7,
}

/// A cache line, so that what follows stays aligned in shared memory.
pub(in crate::transport) const HEADER_LEN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Header {
    pub kind: Kind,
    /// Number of bytes that follow the header.
    pub len: u64,
    pub tag: Tag,
    /// Counts the frames to this peer from 1 where they go by several lanes and may overtake each other; else 0.
    pub order: u64,
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let [a, b, c, d, e] = self.tag.0;
        let mut bytes = [0; HEADER_LEN];
        for (place, word) in
            bytes.as_chunks_mut().0.iter_mut().zip([self.kind as u64, self.len, a, b, c, d, e, self.order])
        {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// `None` if no process of this job writes such a header.
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Option<Header> {
        let mut words = [0; 8];
        for (word, place) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*place);
        }
        let [kind, len, a, b, c, d, e, order] = words;
        let kind = match kind {
            1 => Kind::Data,
            2 => Kind::Ready,
            3 => Kind::Note,
            4 => Kind::Abort,
            5 => Kind::Bye,
            6 => Kind::Lend,
            7 => Kind::Taken,
            _ => return None,
        };
        Some(Header { kind, len, tag: Tag([a, b, c, d, e]), order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        for kind in [Kind::Data, Kind::Ready, Kind::Note, Kind::Abort, Kind::Bye, Kind::Lend, Kind::Taken] {
            let header = Header { kind, len: 1 << 40, tag: Tag([1, u64::MAX, 3, 4, 5]), order: 6 };
            assert_eq!(Header::from_bytes(&header.to_bytes()), Some(header));
        }
        assert_eq!(Header::from_bytes(&[0; HEADER_LEN]), None);
    }
}
