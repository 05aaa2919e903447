//! The mutual proof of the job token, before anything else is read.
//!
//! Peer and coordinator each send a hello: a fixed mark, the protocol's version, the job's id and a random challenge. The
//! peer then sends a keyed hash of both hellos, the coordinator a verdict and its own keyed hash. Each hash also covers
//! who made it, so that neither can be sent back as the other. All messages have a fixed length: nothing is parsed before
//! the token is proved.

use std::io;

use super::token::{JobId, JobToken, random_bytes};
use super::wire::PROTOCOL;

const MARK: [u8; 8] = *b"spmd-run";
const CHALLENGE: usize = 32;
/// The length of the mark, which tells a coordinator from other servers.
pub const MARK_LENGTH: usize = MARK.len();
/// The length of a hello.
pub const HELLO_LENGTH: usize = MARK.len() + 2 + JobId::LENGTH + CHALLENGE;
/// The length of the peer's proof.
pub const PROOF_LENGTH: usize = 32;
/// The length of the coordinator's answer to it.
pub const VERDICT_LENGTH: usize = 1 + PROOF_LENGTH;

const CONTEXT: &str = "spmd-run 2026-11 rendezvous handshake";

/// What proofs are made with.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a token. Jobs without a token have a key too, which everybody can know.
    pub fn new(token: Option<&JobToken>) -> Self {
        Self(token.map_or_else(|| blake3::derive_key(CONTEXT, b""), |token| token.derive_key(CONTEXT)))
    }

    fn proof(&self, role: &[u8], hellos: &Hellos) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(role).update(&hellos.peer).update(&hellos.coordinator);
        hasher.update(hellos.binding.as_ref().map_or(&[], |binding| &binding[..])).finalize()
    }

    /// The proof that a peer sends.
    pub fn peer_proof(&self, hellos: &Hellos) -> [u8; PROOF_LENGTH] {
        *self.proof(b"peer", hellos).as_bytes()
    }

    /// Whether a peer's proof is right.
    pub fn accepts_peer(&self, hellos: &Hellos, proof: [u8; PROOF_LENGTH]) -> bool {
        self.proof(b"peer", hellos) == proof
    }

    /// What the coordinator answers a right proof with.
    pub fn verdict(&self, hellos: &Hellos) -> [u8; VERDICT_LENGTH] {
        let mut verdict = [1; VERDICT_LENGTH];
        verdict[1..].copy_from_slice(self.proof(b"coordinator", hellos).as_bytes());
        verdict
    }

    /// Whether the coordinator accepted this peer and has proved itself.
    pub fn accepts_coordinator(&self, hellos: &Hellos, verdict: [u8; VERDICT_LENGTH]) -> bool {
        let [accepted, proof @ ..] = verdict;
        accepted == 1 && self.proof(b"coordinator", hellos) == proof
    }
}

/// The answer to a wrong proof.
pub const REFUSAL: [u8; VERDICT_LENGTH] = [0; VERDICT_LENGTH];

/// What each side sent first.
pub struct Hellos {
    pub peer: [u8; HELLO_LENGTH],
    pub coordinator: [u8; HELLO_LENGTH],
    /// What only the two ends of an encrypted connection know, so that nobody passes a proof on from one to another.
    pub binding: Option<[u8; 32]>,
}

/// A hello of a process of this job, with a fresh challenge.
pub fn hello(job: JobId) -> io::Result<[u8; HELLO_LENGTH]> {
    let mut hello = [0; HELLO_LENGTH];
    let (mark, rest) = hello.split_at_mut(MARK.len());
    mark.copy_from_slice(&MARK);
    let (version, rest) = rest.split_at_mut(2);
    version.copy_from_slice(&PROTOCOL.to_le_bytes());
    let (id, challenge) = rest.split_at_mut(JobId::LENGTH);
    id.copy_from_slice(&job.0);
    challenge.copy_from_slice(&random_bytes::<CHALLENGE>()?);
    Ok(hello)
}

/// Whether bytes start with the mark.
pub fn is_marked(bytes: &[u8]) -> bool {
    bytes.starts_with(&MARK)
}

/// The version in a hello.
pub fn version(hello: &[u8; HELLO_LENGTH]) -> u16 {
    u16::from_le_bytes([hello[MARK.len()], hello[MARK.len() + 1]])
}

/// The job in a hello.
pub fn job(hello: &[u8; HELLO_LENGTH]) -> JobId {
    let start = MARK.len() + 2;
    let mut id = [0; JobId::LENGTH];
    id.copy_from_slice(&hello[start..start + JobId::LENGTH]);
    JobId(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_is_accepted_and_proofs_cannot_be_reflected() {
        let token = JobToken::random().unwrap();
        let (key, other, none) = (Key::new(Some(&token)), Key::new(Some(&JobToken::random().unwrap())), Key::new(None));
        let id = JobId::of(Some(&token));
        let hellos = Hellos { peer: hello(id).unwrap(), coordinator: hello(id).unwrap(), binding: Some([1; 32]) };
        assert!(key.accepts_peer(&hellos, key.peer_proof(&hellos)));
        assert!(key.accepts_coordinator(&hellos, key.verdict(&hellos)));
        for wrong in [&other, &none] {
            assert!(!key.accepts_peer(&hellos, wrong.peer_proof(&hellos)));
            assert!(!key.accepts_coordinator(&hellos, wrong.verdict(&hellos)));
        }
        assert!(!key.accepts_coordinator(&hellos, REFUSAL));
        let mut reflected = [1; VERDICT_LENGTH];
        reflected[1..].copy_from_slice(&key.peer_proof(&hellos));
        assert!(!key.accepts_coordinator(&hellos, reflected));
        let replayed = Hellos { coordinator: hello(id).unwrap(), ..hellos };
        assert!(!key.accepts_peer(&replayed, key.peer_proof(&hellos)));
        let proof = key.peer_proof(&hellos);
        let elsewhere = Hellos { binding: Some([2; 32]), ..hellos };
        assert!(!key.accepts_peer(&elsewhere, proof));
        let hellos = elsewhere;
        assert_eq!((version(&hellos.peer), job(&hellos.peer)), (PROTOCOL, id));
        assert!(is_marked(&hellos.peer) && !is_marked(b"HTTP/1.1"));
    }
}
