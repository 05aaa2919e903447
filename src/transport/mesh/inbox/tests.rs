use super::*;

/// Bytes that have all come.
struct Bytes(Vec<u8>);

impl Source for Bytes {
    fn available(&mut self, _wanted: usize) -> io::Result<&[u8]> {
        Ok(&self.0)
    }

    fn consume(&mut self, count: usize) {
        self.0.drain(..count);
    }

    fn read(&mut self, into: &mut [u8], _is_large: bool) -> io::Result<usize> {
        let count = into.len().min(self.0.len());
        into[..count].copy_from_slice(&self.0[..count]);
        self.consume(count);
        Ok(count)
    }
}

fn frame(kind: Kind, tag: u64, order: u64, bytes: &[u8]) -> Vec<u8> {
    let header = Header { kind, len: bytes.len() as u64, tag: Tag([tag; 5]), order };
    [&header.to_bytes()[..], bytes].concat()
}

#[test]
fn what_overtakes_other_frames_is_shown_after_them() {
    let lanes = [
        [frame(Kind::Data, 3, 3, b"third"), frame(Kind::Note, 5, 5, b"")].concat(),
        [frame(Kind::Data, 1, 1, b"first"), frame(Kind::Ready, 4, 4, b"")].concat(),
        Vec::new(),
    ];
    let mut inbox = Inbox::new(1, lanes.map(Bytes).into(), None);
    let shown = |inbox: &Inbox<Bytes>, version: &mut Option<u64>| {
        let mut tags: Vec<u64> = inbox.unmatched(version).iter().map(|tag| tag.0[0]).collect();
        tags.sort_unstable();
        tags
    };
    let mut version = None;
    inbox.receive();
    assert_eq!(shown(&inbox, &mut version), [1]);
    assert!(shown(&inbox, &mut version).is_empty(), "nothing has changed");
    inbox.source(2).0 = frame(Kind::Data, 2, 2, b"second");
    inbox.receive();
    assert_eq!(shown(&inbox, &mut version), [1, 2, 3, 4, 5]);
    // Who asks for it gets it at any time.
    assert!(inbox.take(&Tag([3; 5]), 5, &mut |bytes| assert_eq!(bytes, b"third")).is_some_and(|taken| taken.is_ok()));
}
