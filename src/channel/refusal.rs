//! Why two processes do not come to terms over TLS.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// What a process answers one that begins with TLS where it has none, or the other way round: the alert that there is no
/// version of TLS that both speak. Nothing else makes processes of a job send it, as they have the same versions.
pub const PLAIN_ONLY: [u8; 7] = [21, 3, 3, 0, 2, 2, 70];

/// Said of a process that has TLS where this one has not.
pub const NEEDS_TLS: &str = "it runs with --tls, this process without: give --tls to all processes of a job or to none";

/// Said of a process that has no TLS where this one has.
pub const LACKS_TLS: &str =
    "it runs without --tls, this process with it: give --tls to all processes of a job or to none";

/// Said of whoever sends something else than TLS.
pub const GARBAGE: &str = "it does not speak TLS";

/// Whether these first bytes are those of a TLS handshake.
pub fn is_client_hello(bytes: &[u8]) -> bool {
    bytes.starts_with(&[22, 3])
}

/// Whether these first bytes are those of an alert.
pub fn is_alert(bytes: &[u8]) -> bool {
    bytes.starts_with(&PLAIN_ONLY[..2])
}

/// What TLS has against the other end, or that against this one, if it is this by which the connection failed.
pub fn reason_of_refusal(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    let reason = match error {
        Error::AlertReceived(AlertDescription::ProtocolVersion) => LACKS_TLS,
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired"
        }
        Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            "its certificate is not valid yet: compare the clocks"
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate is of another authority: all processes of a job need the same secret, or certificates of the \
             same ca.crt"
        }
        Error::NoCertificatesPresented => "it shows no certificate",
        Error::InvalidMessage(_) => GARBAGE,
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "it finds that this process's certificate has expired: renew it, or compare the clocks"
        }
        Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "it finds this process's certificate to be of another authority: all processes of a job need the same secret, \
             or certificates of the same ca.crt"
        }
        Error::AlertReceived(alert) => return Some(format!("it does not accept this process: {alert:?}")),
        other => return Some(other.to_string()),
    };
    Some(reason.to_owned())
}
