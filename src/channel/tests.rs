use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider, ring};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{RootCertStore, SupportedCipherSuite, Tls13CipherSuite};

use super::identity::provider;
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (caller, listener.accept().unwrap().0)
}

/// Both ends of a connection, which each read a byte, as some refusals come after the handshake only.
fn meet(caller: Option<&Identity>, called: Option<&Identity>) -> [io::Result<Channel>; 2] {
    let (near, far) = sockets();
    let end = Instant::now() + PATIENCE;
    let greet = |channel: io::Result<Channel>| {
        let mut channel = channel?;
        channel.write_all(&[1])?;
        channel.flush()?;
        channel.read_exact(&mut [0])?;
        Ok(channel)
    };
    std::thread::scope(|scope| {
        let called = scope.spawn(|| greet(Channel::answer(far, called, end)));
        [greet(Channel::call(near, caller, end)), called.join().unwrap()]
    })
}

fn of_secret(byte: u8) -> Identity {
    Identity::of_secret(&[byte; 32]).unwrap()
}

/// An identity of an authority of its own, which has signed for these years only.
fn of_years(first: i32, last: i32, provider: Arc<CryptoProvider>) -> Identity {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let mut roots = RootCertStore::empty();
    roots.add(authority.self_signed(&key).unwrap().der().clone()).unwrap();
    let own_key = KeyPair::generate().unwrap();
    let mut own = CertificateParams::default();
    (own.not_before, own.not_after) = (date_time_ymd(first, 1, 1), date_time_ymd(last, 1, 1));
    let own = own.signed_by(&own_key, &Issuer::new(authority, key)).unwrap();
    let own_key = PrivatePkcs8KeyDer::from(own_key.serialize_der());
    Identity::new(roots, vec![own.der().clone()], own_key.into(), provider).unwrap()
}

#[test]
fn members_of_a_job_meet_and_share_what_nobody_else_knows() {
    let [near, far] = meet(Some(&of_secret(1)), Some(&of_secret(1))).map(Result::unwrap);
    assert_eq!(near.binding().unwrap(), far.binding().unwrap());
    let [other, _] = meet(Some(&of_secret(1)), Some(&of_secret(1))).map(Result::unwrap);
    assert!(near.binding().unwrap().is_some_and(|binding| Some(binding) != other.binding().unwrap()));
    let [plain, _] = meet(None, None).map(Result::unwrap);
    assert_eq!(plain.binding().unwrap(), None);
}

#[test]
fn both_sides_of_a_refusal_say_why() {
    let said = |caller: &Identity, called: &Identity| {
        meet(Some(caller), Some(called)).map(|outcome| match outcome {
            Ok(_) => "nothing".to_owned(),
            Err(error) => reason_of_refusal(&error).unwrap_or_else(|| error.to_string()),
        })
    };
    let [caller, called] = said(&of_secret(1), &of_secret(2));
    insta::assert_snapshot!(caller, @"its certificate is of another authority: all processes of a job need the same secret, or certificates of the same ca.crt");
    insta::assert_snapshot!(called, @"it finds this process's certificate to be of another authority: all processes of a job need the same secret, or certificates of the same ca.crt");
    let others = [1, 2].map(|_| of_years(1990, 3000, provider()));
    assert_eq!(said(&others[0], &others[1]), [caller, called]);
    let [old, young] = [(1990, 2000), (3000, 3001)].map(|(first, last)| of_years(first, last, provider()));
    let [caller, called] = said(&old, &old);
    insta::assert_snapshot!(caller, @"its certificate has expired");
    insta::assert_snapshot!(called, @"it finds that this process's certificate has expired: renew it, or compare the clocks");
    let [caller, _] = said(&young, &young);
    insta::assert_snapshot!(caller, @"its certificate is not valid yet: compare the clocks");
}

#[test]
fn who_does_not_speak_tls_is_turned_away() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[22, 3, 1, 0, 4, 1, 0, 0, 0], &PLAIN_ONLY] {
        let (mut near, far) = sockets();
        near.write_all(bytes).unwrap();
        let error = Channel::answer(far, Some(&of_secret(1)), Instant::now() + PATIENCE).err().unwrap();
        let reason = reason_of_refusal(&error).unwrap();
        assert!(!reason.is_empty() && !reason.contains("certificate"), "{reason}");
    }
    // One that begins well and goes on slowly has as long as everyone.
    let (mut near, far) = sockets();
    near.write_all(&[22, 3, 1]).unwrap();
    let error = Channel::answer(far, Some(&of_secret(1)), Instant::now() + Duration::from_millis(50)).err().unwrap();
    assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
}

/// Sends a pattern both ways over sockets that do not block.
fn exchange(identity: &Identity, total: usize) {
    const PATTERN: [u8; 251] = {
        let mut pattern = [0; 251];
        let mut index = 0;
        while index < pattern.len() {
            pattern[index] = index as u8;
            index += 1;
        }
        pattern
    };
    let ends = meet(Some(identity), Some(identity)).map(Result::unwrap);
    std::thread::scope(|scope| {
        for channel in ends {
            channel.socket().set_nonblocking(true).unwrap();
            let (mut reader, mut writer) = channel.split();
            scope.spawn(move || {
                let mut sent = 0;
                while sent < total || !writer.is_flushed() {
                    let (piece, rest) = (&PATTERN[sent % 251..], PATTERN.repeat(200));
                    let len = (total - sent).min(piece.len() + rest.len());
                    let slices = [
                        IoSlice::new(&piece[..len.min(piece.len())]),
                        IoSlice::new(&rest[..len.saturating_sub(piece.len())]),
                    ];
                    match writer.write_vectored(&slices) {
                        Ok(count) => sent += count,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            scope.spawn(move || {
                let (mut received, mut chunk, mut size) = (0, vec![0; 70_000], 1);
                while received < total {
                    size = size * 3 % 70_000 + 1;
                    match reader.read(&mut chunk[..size]) {
                        Ok(0) => panic!("it ends after {received} bytes"),
                        Ok(count) => {
                            assert!((received..).zip(&chunk[..count]).all(|(at, byte)| *byte == PATTERN[at % 251]));
                            received += count;
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
}

#[test]
fn bytes_go_both_ways_at_once() {
    exchange(&of_secret(1), 3_000_000);
}

/// After so many records new keys are due: with the usual limit after 256 GiB.
#[test]
fn keys_are_renewed() {
    let mut provider = ring::default_provider();
    for suite in &mut provider.cipher_suites {
        let SupportedCipherSuite::Tls13(usual) = *suite;
        let CipherSuiteCommon { suite: name, hash_provider, .. } = usual.common;
        let common = CipherSuiteCommon { suite: name, hash_provider, confidentiality_limit: 20 };
        *suite = SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite { common, ..*usual })));
    }
    exchange(&of_years(1990, 3000, Arc::new(provider)), 3_000_000);
}
