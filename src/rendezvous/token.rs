//! The secret that the processes of a job share.

use std::fmt;
use std::io;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};

/// The secret that the processes of one job share. It is never sent: processes prove to each other that they know it.
///
/// `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct JobToken(String);

/// A name that tells jobs apart, for messages: eight hexadecimal digits, or nothing where a job has none.
///
/// Everyone who can connect may read it, so it is made of tokens only that are too long to be guessed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobId(pub(super) [u8; JobId::LENGTH]);

impl JobId {
    pub(super) const LENGTH: usize = 4;

    /// The id of the job that has this token; none for short tokens.
    pub fn of(token: Option<&JobToken>) -> Self {
        let long = token.filter(|token| token.is_long());
        let Some([a, b, c, d, ..]) = long.map(|token| token.derive_key("spmd-run 2026-11 job id")) else {
            return Self::default();
        };
        Self([a, b, c, d])
    }

    /// Whether both are known, and differ.
    pub(super) fn differs_from(self, other: Self) -> bool {
        self != other && ![self, other].contains(&Self::default())
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            id if id == Self::default() => f.write_str("without an id"),
            Self(bytes) => write!(f, "{:08x}", u32::from_be_bytes(bytes)),
        }
    }
}

/// A text that cannot serve as a job token.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the job token has {length} characters, it needs at least {}: make one with `openssl rand -hex 32`",
    JobToken::MIN_LENGTH
)]
pub struct InvalidToken {
    length: usize,
}

impl JobToken {
    /// The environment variable that carries the token from the launcher, or the user, to a process.
    pub const VARIABLE: &str = "SPMD_JOB_TOKEN";
    const MIN_LENGTH: usize = 16;
    /// As many characters as a token of 128 random bits has.
    const LONG: usize = 32;

    /// A fresh token of 256 random bits.
    pub fn random() -> io::Result<Self> {
        let bytes = random_bytes::<32>()?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The token as text, to hand on to another process by its environment or by a private file.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether it is too long to be guessed from what everyone may see.
    pub(super) fn is_long(&self) -> bool {
        self.0.len() >= Self::LONG
    }

    /// A key for one purpose, from which the token cannot be found. The context names the purpose, and is fixed text.
    pub fn derive_key(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, self.0.as_bytes())
    }
}

impl FromStr for JobToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let text = text.trim();
        match text.chars().count() {
            length if length < Self::MIN_LENGTH => Err(InvalidToken { length }),
            _ => Ok(Self(text.to_owned())),
        }
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobToken(hidden)")
    }
}

/// Bytes from the kernel's generator.
pub(super) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_random_and_hidden() {
        let token = JobToken::random().unwrap();
        assert_eq!(token.reveal().len(), 64);
        assert_ne!(token, JobToken::random().unwrap());
        assert!(!format!("{token:?}").contains(token.reveal()));
        assert_eq!(format!(" {} \n", token.reveal()).parse::<JobToken>().unwrap(), token);
        assert_ne!(token.derive_key("one"), token.derive_key("two"));
    }

    #[test]
    fn ids_tell_jobs_apart_where_tokens_are_long() {
        let ids = [(); 2].map(|()| JobId::of(Some(&JobToken::random().unwrap())));
        assert!(ids[0].differs_from(ids[1]) && !ids[0].differs_from(ids[0]));
        let short = JobId::of(Some(&"a short password".parse().unwrap()));
        assert!(short == JobId::of(None) && !short.differs_from(ids[0]));
        assert_eq!((ids[0].to_string().len(), short.to_string()), (8, "without an id".to_owned()));
    }

    #[test]
    fn short_tokens_are_refused() {
        let error = "secret".parse::<JobToken>().unwrap_err();
        insta::assert_snapshot!(error, @"the job token has 6 characters, it needs at least 16: make one with `openssl rand -hex 32`");
    }
}
