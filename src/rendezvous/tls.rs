//! Where the certificates of an encrypted job come from.

use std::path::PathBuf;

use super::{JobToken, JoinError};
use crate::channel::Identity;

/// Has a job's connections encrypted, on the control plane and for data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Each process makes a certificate of an authority that is made of the job's token, so whoever has the token has what it
    /// takes, and nobody else.
    OfToken,
    /// The files of [`Identity::of_folder`] lie here.
    OfFolder(PathBuf),
}

impl Tls {
    /// This process's certificate, and what it asks others to show.
    ///
    /// # Errors
    /// The files are not there or not right, or the job has no token that is too long to be guessed: every stranger may see a
    /// certificate, and could try tokens on it.
    pub fn identity(&self, token: Option<&JobToken>) -> Result<Identity, JoinError> {
        match (self, token) {
            (Tls::OfFolder(folder), _) => Ok(Identity::of_folder(folder)?),
            (Tls::OfToken, Some(token)) if token.is_long() => {
                Ok(Identity::of_secret(&token.derive_key("spmd-run 2026-11 certificate authority"))?)
            }
            (Tls::OfToken, _) => Err(JoinError::Options(
                "certificates can only be made of a secret of 32 characters or more: set SPMD_JOB_TOKEN to the same for every \
                 process (openssl rand -hex 32 makes one), or give certificates in files (--tls=DIR)"
                    .to_owned(),
            )),
        }
    }
}
