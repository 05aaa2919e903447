use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::channel::{Channel, Identity};
use crate::transport::mesh::inbox::Source;
use crate::transport::mesh::stream::Buffered;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers that are the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// The byte at a place of the stream in one direction.
fn byte(direction: usize, at: usize) -> u8 {
    ((at ^ (at >> 8) ^ (at >> 16)) + direction * 91) as u8
}

/// A connection that is cut in both directions after so many bytes.
fn sockets(bytes: usize, resets: bool) -> (TcpStream, TcpStream) {
    let pair = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0)
    };
    let ((near, relay_near), (relay_far, far)) = (pair(), pair());
    let left = Arc::new(AtomicI64::new(bytes as i64));
    for (mut from, mut to) in [
        (relay_near.try_clone().unwrap(), relay_far.try_clone().unwrap()),
        (relay_far.try_clone().unwrap(), relay_near.try_clone().unwrap()),
    ] {
        let left = Arc::clone(&left);
        thread::spawn(move || {
            let mut chunk = [0; 8 << 10];
            while let Ok(count) = from.read(&mut chunk) {
                let may = left.fetch_sub(count as i64, Ordering::Relaxed).clamp(0, count as i64) as usize;
                if to.write_all(&chunk[..may]).is_err() || may < count || count == 0 {
                    break;
                }
            }
            for end in [&from, &to] {
                if resets {
                    let _ = socket2::SockRef::from(end).set_linger(Some(Duration::ZERO));
                }
                let _ = end.shutdown(Shutdown::Both);
            }
        });
    }
    (near, far)
}

/// The same, encrypted or not, as long as it is not cut before it begins.
fn channels(bytes: usize, resets: bool, identity: Option<&Identity>) -> io::Result<[Channel; 2]> {
    let (near, far) = sockets(bytes, resets);
    let end = Instant::now() + PATIENCE;
    let (near, far) = thread::scope(|scope| {
        let far = scope.spawn(|| Channel::answer(far, identity, end));
        (Channel::call(near, identity, end), far.join().unwrap())
    });
    let channels = [near?, far?];
    for channel in &channels {
        channel.socket().set_nonblocking(true)?;
    }
    Ok(channels)
}

struct End {
    lane: Arc<Lane>,
    reader: Mutex<Buffered<Reader>>,
    received: AtomicUsize,
}

impl End {
    fn new(channel: Channel, alarm: &Arc<OwnedFd>) -> End {
        let (lane, reader) = Lane::new(channel, Arc::clone(alarm)).unwrap();
        End { lane, reader: Mutex::new(Buffered::new(reader)), received: AtomicUsize::new(0) }
    }

    fn write(&self, direction: usize, total: usize, mut random: Random) {
        let mut written = 0;
        while written < total {
            let most = if random.below(3) == 0 { 300_000 } else { 200 };
            let len = (1 + random.below(most)).min(total - written);
            let bytes: Vec<u8> = (written..written + len).map(|at| byte(direction, at)).collect();
            let (first, second) = bytes.split_at(random.below(len));
            match self.lane.write(&[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        while !self.lane.is_flushed() {
            self.lane.go_on();
            thread::yield_now();
        }
    }

    fn read(&self, direction: usize, total: usize, mut random: Random) {
        let mut received = 0;
        let mut chunk = vec![0; 200_000];
        while received < total {
            let mut reader = self.reader.lock().unwrap();
            let count = if random.below(2) == 0 {
                let available = reader.available(1 + random.below(64)).unwrap();
                let count = available.len().min(1 + random.below(1000));
                chunk[..count].copy_from_slice(&available[..count]);
                reader.consume(count);
                count
            } else {
                let most = 1 + random.below(chunk.len());
                reader.read(&mut chunk[..most], false).unwrap()
            };
            drop(reader);
            for (at, found) in (received..).zip(&chunk[..count]) {
                assert_eq!(*found, byte(direction, at), "byte {at} of {total}");
            }
            received += count;
            self.received.store(received, Ordering::Relaxed);
            if count == 0 {
                thread::yield_now();
            }
        }
    }
}

/// Sends bytes both ways over connections of which each is cut after at most `most` bytes; how many there were, and how many
/// bytes went over them again.
fn exchange(total: usize, most: usize, seed: u64, identity: Option<&Identity>) -> (usize, u64) {
    let alarm = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let mut random = Random(seed);
    let mut connect = || loop {
        let (bytes, resets) = (random.below(most), random.below(2) == 0);
        if let Ok(channels) = channels(bytes, resets, identity) {
            return channels;
        }
    };
    let ends = connect().map(|channel| End::new(channel, &alarm));
    let (mut connections, mut again) = (1, 0);
    thread::scope(|scope| {
        for (index, end) in ends.iter().enumerate() {
            scope.spawn(move || end.write(index, total, Random(seed + 1)));
            scope.spawn(move || end.read(1 - index, total, Random(seed + 2)));
        }
        let is_done = || ends.iter().all(|end| end.received.load(Ordering::Relaxed) == total && end.lane.is_flushed());
        while !is_done() {
            if ends.iter().all(|end| end.lane.is_up()) {
                thread::yield_now();
                continue;
            }
            let [near, far] = connect();
            let mut readers = ends.each_ref().map(|end| end.reader.lock().unwrap());
            let progress = readers.each_mut().map(|reader| reader.source.suspend("it was cut"));
            again += readers[0].source.resume(near, progress[1]).unwrap()
                + readers[1].source.resume(far, progress[0]).unwrap();
            connections += 1;
        }
    });
    (connections, again)
}

#[test]
fn every_byte_arrives_once_however_often_the_connection_is_cut() {
    for seed in 0..4 {
        let (connections, again) = exchange(6_000_000, 700_000, seed, None);
        assert!(connections > 10 && again > 0, "{connections} connections, {again} bytes again");
    }
    let (connections, again) = exchange(60_000, 3_000, 5, None);
    assert!(connections > 30 && again > 0, "{connections} connections, {again} bytes again");
}

#[test]
fn the_same_under_tls() {
    let identity = Identity::of_secret(&[7; 32]).unwrap();
    let (connections, again) = exchange(4_000_000, 700_000, 6, Some(&identity));
    assert!(connections > 5 && again > 0, "{connections} connections, {again} bytes again");
}

#[test]
fn whoever_writes_waits_for_the_other_end() {
    let alarm = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let [near, _far] = channels(usize::MAX >> 1, false, None).unwrap();
    let end = End::new(near, &alarm);
    let bytes = vec![0; CAPACITY + 1];
    assert_eq!(end.lane.write(&[IoSlice::new(&bytes)]).unwrap(), CAPACITY);
    assert_eq!(end.lane.write(&[IoSlice::new(&bytes)]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    end.lane.break_off("it was cut");
    assert_eq!(end.lane.unattended_outage().unwrap().reason, "it was cut");
    assert!(end.lane.unattended_outage().is_none());
    end.lane.close();
    assert_eq!(end.lane.write(&[IoSlice::new(&bytes)]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert!(end.lane.write(&[]).is_ok() && end.lane.is_flushed(), "a message that was written before is not lost");
}

#[test]
fn the_other_end_must_have_what_it_confirmed_and_no_more_than_was_sent() {
    let alarm = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let [near, _far] = channels(usize::MAX >> 1, false, None).unwrap();
    let end = End::new(near, &alarm);
    end.lane.write(&[IoSlice::new(&[1; 100])]).unwrap();
    end.lane.confirm(60).unwrap();
    assert!(end.lane.confirm(101).is_err());
    let mut reader = end.reader.lock().unwrap();
    for taken_in in [59, 101] {
        let [again, _far] = channels(usize::MAX >> 1, false, None).unwrap();
        assert_eq!(reader.source.suspend("it was cut"), Progress { taken_in: 0, sent: 100 });
        assert!(reader.source.resume(again, Progress { taken_in, sent: 0 }).is_err());
    }
}
